"""String tensors as a bundle stores them."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphfreeze.savedmodel.checksum import extend, mask
from graphfreeze.savedmodel.strings import as_byte_strings, decode_strings, encode_strings


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_round_trip(values):
    data, crc = encode_strings(values)
    assert decode_strings(data, len(values)) == (values, crc)


def test_layout():
    data, crc = encode_strings([b"ab", b""])
    lengths = b"\2\0\0\0\0\0\0\0"
    stored = mask(extend(0, lengths)).to_bytes(4, "little")
    assert data == b"\2\0" + stored + b"ab"
    assert crc == mask(extend(0, lengths + stored + b"ab"))


def test_long_lengths_count_as_eight_bytes():
    from graphfreeze.savedmodel.strings import _lengths_crc

    assert _lengths_crc([1 << 32]) == extend(0, (1 << 32).to_bytes(8, "little"))
    assert _lengths_crc([(1 << 32) - 1]) == extend(0, b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    ("data", "count", "problem"),
    [
        (b"\1\0\0\0\0", 9, "9 strings cannot lie in 5 bytes"),
        (b"\1\0\0\0\0", 1, "its strings should take 1 bytes, found 0"),
        (b"\xff\xff\xff\xff\xff", 1, "a variable-length number is cut off"),
        (b"\1\0\0\0\0a", 1, "the checksum of its string lengths does not match"),
    ],
)
def test_damage(data, count, problem):
    with pytest.raises(ValueError) as caught:
        decode_strings(data, count)
    assert str(caught.value) == problem


@given(st.binary(max_size=40), st.integers(0, 10))
def test_any_bytes_give_a_result_or_a_value_error(data, count):
    with contextlib.suppress(ValueError):
        decode_strings(data, count, check=False)


def test_text_is_refused():
    with pytest.raises(TypeError, match="a string tensor takes bytes, got str"):
        as_byte_strings(np.array(["a"], object))
