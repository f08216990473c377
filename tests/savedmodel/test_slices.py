"""The ordered code of slice keys, against keys that TensorFlow wrote (see also test_bundle_tensorflow)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphfreeze.savedmodel import protos
from graphfreeze.savedmodel.slices import TensorSlice, _encode_number, _encode_signed, slice_key_name


@pytest.mark.parametrize(
    ("number", "code"),
    [(0, "80"), (1, "81"), (-1, "7f"), (63, "bf"), (64, "c040"), (-64, "40"), (-65, "3fbf"), (8191, "dfff"),
     (8192, "e02000"), (-8192, "2000"), (1 << 40, "fd0000000000"), ((1 << 63) - 1, "ffc07fffffffffffffff"),
     (-(1 << 63), "003f8000000000000000")],
)  # fmt: skip
def test_signed_numbers(number, code):
    assert _encode_signed(number).hex() == code


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_byte_order_is_value_order(left, right):
    assert (_encode_signed(left) < _encode_signed(right)) == (left < right)


@pytest.mark.parametrize(("number", "code"), [(0, "00"), (1, "01" + "01"), (255, "01ff"), (256, "020100")])
def test_unsigned_numbers(number, code):
    assert _encode_number(number).hex() == code


def test_key_of_a_slice():
    part = TensorSlice((0, 4), (10, -1))
    assert part.key(b"emb") == b"\0emb\x00\x01\x01\x02\x80\x8a\x84\x7f"


@given(st.binary(max_size=20))
def test_the_name_comes_back(name):
    assert slice_key_name(TensorSlice((0,), (1,)).key(name)) == name


def test_other_keys_have_no_name():
    assert slice_key_name(b"emb") is None
    assert slice_key_name(b"\0emb") is None


def test_from_proto_whole_axis():
    proto = protos.TensorSliceProto()
    proto.extent.add()
    proto.extent.add(start=2, length=3)
    part = TensorSlice.from_proto(proto)
    assert part == TensorSlice((0, 2), (-1, 3))
    assert part.index((5, 9)) == (slice(0, 5), slice(2, 5))
    assert part.shape_in((5, 9)) == (5, 3)


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        (TensorSlice((0,), (1,)), "a slice of rank 1 does not fit shape [5, 9]"),
        (TensorSlice((0, 8), (5, 2)), "a slice takes 8 to 10 of axis 1, which has 9 elements"),
        (TensorSlice((-1, 0), (1, 1)), "a slice takes -1 to 0 of axis 0, which has 5 elements"),
        (TensorSlice((3, 0), (-2, 1)), "a slice takes 3 to 1 of axis 0, which has 5 elements"),
    ],
)
def test_slices_that_do_not_fit(part, problem):
    with pytest.raises(ValueError, match="slice") as caught:
        part.index((5, 9))
    assert str(caught.value) == problem
