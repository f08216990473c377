"""Snappy blocks: hand-made streams with every kind of element, and damaged ones."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphfreeze.savedmodel.snappy import unpack_snappy


@pytest.mark.parametrize(
    ("packed", "plain"),
    [
        (b"\x00", b""),
        (b"\x03\x08abc", b"abc"),
        # a literal, then a copy of 4 with an 11-bit offset that overlaps its own output
        (b"\x05\x00a\x01\x01", b"aaaaa"),
        # a copy of 6 with a 16-bit offset of 3
        (b"\x09\x08abc\x16\x03\x00", b"abcabcabc"),
        # the same with a 32-bit offset
        (b"\x09\x08abc\x17\x03\x00\x00\x00", b"abcabcabc"),
        # a literal whose length takes one and two further bytes
        (b"\x46\xf0\x45" + b"x" * 70, b"x" * 70),
        (b"\xac\x02\xf4\x2b\x01" + b"y" * 300, b"y" * 300),
    ],
)
def test_streams(packed, plain):
    assert unpack_snappy(packed) == plain


@pytest.mark.parametrize(
    ("packed", "problem"),
    [
        (b"", "its length is cut off"),
        (b"\xff\xff\xff\xff\xff", "its length is cut off"),
        (b"\x03\x08ab", "a literal is cut off"),
        (b"\x03\xf0", "the length of a literal is cut off"),
        (b"\x09\x08abc\x16\x03", "a copy is cut off"),
        (b"\x09\x08abc\x16\x04\x00", "a copy reaches 4 bytes back, but only 3 were unpacked"),
        (b"\x09\x08abc\x16\x00\x00", "a copy reaches 0 bytes back, but only 3 were unpacked"),
        (b"\x04\x08abc", "it unpacks to 3 bytes, expected 4"),
        (b"\x02\x08abc", "it unpacks to more than the 2 bytes it claims"),
        (b"\xff\xff\xff\x7f\x08abc", "8 bytes cannot unpack to 268435455"),
    ],
)
def test_damage(packed, problem):
    with pytest.raises(ValueError) as caught:
        unpack_snappy(packed)
    assert str(caught.value) == problem


@given(st.binary(max_size=60))
def test_any_bytes_give_a_result_or_a_value_error(data):
    with contextlib.suppress(ValueError):
        assert len(unpack_snappy(data)) <= 64 * len(data)
