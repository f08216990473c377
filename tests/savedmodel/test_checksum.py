"""Masked CRC-32C against published values."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphfreeze.savedmodel import checksum
from graphfreeze.savedmodel.checksum import extend, mask, masked_crc, unmask


def test_published_values():
    # RFC 3720, B.4, and the check value of the catalogue of CRCs.
    assert extend(0, bytes(32)) == 0x8A9136AA
    assert extend(0, b"\xff" * 32) == 0x62A8AB43
    assert extend(0, b"123456789") == 0xE3069283
    assert mask(extend(0, b"foo")) != extend(0, b"foo")


@given(st.integers(0, 0xFFFFFFFF))
def test_mask_and_unmask_are_inverse(crc):
    assert unmask(mask(crc)) == crc
    assert mask(unmask(crc)) == crc


@given(st.binary(max_size=200), st.integers(0, 200))
def test_streaming_in_any_pieces(data, cut):
    assert masked_crc([data[:cut], data[cut:]]) == mask(extend(0, data))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)])
def test_every_kind_of_buffer(kind, monkeypatch):
    monkeypatch.setattr(checksum, "_STEP", 7)
    data = bytes(range(100))
    assert extend(5, kind(data)) == extend(5, data)
    assert extend(0, kind(b"")) == 0


def test_arrays_of_any_type_count_as_their_bytes():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert extend(0, array) == extend(0, array.tobytes())
    assert extend(0, np.float32(3.5).reshape(())) == extend(0, np.float32(3.5).tobytes())
