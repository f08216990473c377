"""Types by number, by name and as numpy dtypes."""

import ml_dtypes
import numpy as np
import pytest

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.savedmodel import DTYPE_NAMES, NUMPY_DTYPES, base_dtype, dtype_name, dtype_number, numpy_dtype


@pytest.mark.parametrize(
    ("number", "name", "dtype"),
    [
        (1, "float32", np.float32),
        (2, "float64", np.float64),
        (19, "float16", np.float16),
        (14, "bfloat16", ml_dtypes.bfloat16),
        (8, "complex64", np.complex64),
        (18, "complex128", np.complex128),
        (10, "bool", np.bool_),
        (9, "int64", np.int64),
        (25, "float8_e4m3fn", ml_dtypes.float8_e4m3fn),
        (7, "string", object),
    ],
)
def test_known_types(number, name, dtype):
    assert dtype_name(number) == name
    assert numpy_dtype(number) == np.dtype(dtype)
    assert numpy_dtype(number + 100) == np.dtype(dtype)
    assert dtype_name(number + 100) == name + "_ref"
    assert dtype_number(np.dtype(dtype)) == number


def test_references_and_unknown_numbers():
    assert base_dtype(101) == 1
    assert base_dtype(128) == 28
    assert base_dtype(1) == 1
    assert dtype_name(999) == "unknown type 999"


def test_quantised_types_are_stored_as_integers():
    assert numpy_dtype(11) == np.int8
    assert dtype_number(np.dtype(np.int8)) == 6


def test_byte_order_does_not_matter():
    assert dtype_number(np.dtype(">f4")) == 1


def test_no_elements_of_fixed_size():
    with pytest.raises(UnsupportedModelError) as caught:
        numpy_dtype(20)
    assert str(caught.value) == (
        "tensors of type 'resource' cannot be read from a checkpoint: their elements have no fixed size"
    )


def test_no_such_type():
    with pytest.raises(UnsupportedModelError) as caught:
        dtype_number(np.dtype("U3"))
    assert str(caught.value) == (
        "TensorFlow has no type for a numpy array of dtype '<U3'; strings are given as an object array of bytes"
    )


@pytest.mark.tf
def test_all_types_as_tensorflow_has_them():
    import tensorflow as tf

    for number, name in DTYPE_NAMES.items():
        if number == 0:
            continue
        assert tf.dtypes.as_dtype(number).name == name
        if number in NUMPY_DTYPES and "q" not in name:
            assert np.dtype(tf.dtypes.as_dtype(number).as_numpy_dtype) == NUMPY_DTYPES[number]
