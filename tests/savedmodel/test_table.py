"""Tables: round trips, TensorFlow's own files, and every kind of damage."""

import contextlib
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfreeze.errors import InputOutputError
from graphfreeze.savedmodel import table
from graphfreeze.savedmodel.checksum import extend, mask
from graphfreeze.savedmodel.table import build_table, decode_varint, encode_varint, read_table

ENTRIES = [(b"", b"header"), (b"a/b", b"1"), (b"a/c", b"22"), (b"b", b"")]
STEP = "Copy the model again from where it came from"

# Names that share prefixes, as names of variables do.
keys = st.text("ab/", max_size=12).map(str.encode) | st.binary(max_size=8)


@pytest.fixture
def check(tmp_path):
    """Reads damaged bytes and returns the problem that the error names."""
    path = tmp_path / "t.index"

    def run(data: bytes) -> str:
        path.write_bytes(data)
        with pytest.raises(InputOutputError) as caught:
            read_table(path)
        start, end = f"'{path}' is damaged or not a checkpoint index: ", f". {STEP}"
        text = str(caught.value)
        assert text.startswith(start)
        assert text.endswith(end)
        return text[len(start) : -len(end)]

    return run


def block(body: bytes, kind: int = 0) -> bytes:
    return body + bytes([kind]) + struct.pack("<I", mask(extend(0, body + bytes([kind]))))


def with_data_block(body: bytes, kind: int = 0, handles: int = 1) -> bytes:
    """A table around one data block made by hand; the index names it ``handles`` times."""
    index = table._BlockBuilder(1)
    for number in range(handles):
        index.add(b"k%d" % number, encode_varint(0) + encode_varint(len(body)))
    data = bytearray(block(body, kind))
    handle = table._append_block(data, index.finish())
    footer = (b"\0\0" + handle).ljust(40, b"\0")
    return bytes(data) + footer + struct.pack("<Q", table._MAGIC)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(keys, st.binary(max_size=30), max_size=60), st.sampled_from([1, 64, 1 << 18]))
def test_round_trip(content, block_size):
    entries = sorted(content.items())
    assert list(table._Reader(Path("t"), build_table(entries, block_size)).entries()) == entries


@pytest.mark.parametrize("order", [[b"b", b"a"], [b"a", b"a"]])
def test_keys_must_rise(order):
    with pytest.raises(ValueError, match="table keys must rise strictly"):
        build_table([(key, b"") for key in order])


def test_keys_must_rise_across_blocks():
    with pytest.raises(ValueError, match="table keys must rise strictly"):
        build_table([(b"b", b"x" * 9), (b"a", b"")], block_size=1)


@given(st.integers(0, (1 << 64) - 1))
def test_varint(number):
    data = encode_varint(number)
    assert decode_varint(data + b"\xff", 0, len(data) + 1) == (number, len(data))


def test_real_index(real_model: Path, tmp_path: Path):
    path = real_model / "variables" / "variables.index"
    if not path.exists():
        pytest.skip("has no variables")
    entries = read_table(path)
    copy = tmp_path / "copy.index"
    copy.write_bytes(build_table(entries))
    assert read_table(copy) == entries
    assert entries[0][0] == b""


def test_missing_file(tmp_path):
    with pytest.raises(InputOutputError) as caught:
        read_table(tmp_path / "none.index")
    assert str(caught.value) == f"cannot read '{tmp_path}/none.index': No such file or directory"


def test_empty_and_short(check):
    assert check(b"") == "it has 0 bytes, but the footer alone takes 48"
    assert check(b"x" * 47) == "it has 47 bytes, but the footer alone takes 48"


def test_another_kind_of_file(check):
    assert check(b"x" * 60) == "it ends with the number 0x7878787878787878 instead of the table mark 0xdb4775248b80fb57"


def test_cut_at_the_front(check):
    data = build_table(ENTRIES)
    assert check(data[10:]).startswith("a block should lie at bytes")


def test_one_wrong_byte_in_a_block(check):
    data = bytearray(build_table(ENTRIES))
    data[5] ^= 1
    assert check(bytes(data)).startswith("the checksum of the data block at byte 0 is 0x")


def test_endless_handle(check):
    data = build_table(ENTRIES)
    assert check(data[:-48] + b"\xff" * 40 + data[-8:]) == (
        "the place of a block cannot be read: a variable-length number is longer than 64 bits"
    )


def test_compression_of_an_unknown_kind(check):
    assert check(with_data_block(b"\0\0\0\0" + struct.pack("<I", 1), kind=7)) == (
        "the data block at byte 0 is compressed by method 7, expected none (0) or Snappy (1)"
    )


def test_damaged_snappy(check):
    assert check(with_data_block(b"\x03\x08ab", kind=1)) == (
        "the data block at byte 0 cannot be unpacked: a literal is cut off"
    )


def test_snappy_block(tmp_path):
    body = table._BlockBuilder(16)
    body.add(b"key", b"value")
    plain = body.finish()
    path = tmp_path / "t.index"
    path.write_bytes(with_data_block(bytes([len(plain), (len(plain) - 1) << 2]) + plain, kind=1))
    assert read_table(path) == [(b"key", b"value")]


def test_restart_count(check):
    assert check(with_data_block(b"\0\0\0")) == "the data block at byte 0 has 3 bytes, too few for its restart count"
    assert check(with_data_block(struct.pack("<I", 9))) == (
        "the data block at byte 0 claims 9 restart offsets, more than its 4 bytes hold"
    )


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (b"\0\x09\0a", "an entry of the data block at byte 0 reaches beyond its end"),
        (b"\x01\0\0", "an entry of the data block at byte 0 reaches beyond its end"),
        (b"\0\0\x09", "an entry of the data block at byte 0 reaches beyond its end"),
        (b"\0\x80", "an entry of the data block at byte 0 cannot be read: a variable-length number is cut off"),
        (b"\0\x01\0b\0\x01\0a", "key 'a' comes after 'b', but keys must rise strictly"),
        (b"\0\x01\0a\0\x01\0a", "key 'a' comes after 'a', but keys must rise strictly"),
    ],
)
def test_bad_entries(check, entry, problem):
    assert check(with_data_block(entry + struct.pack("<II", 0, 1))) == problem


def test_one_block_named_many_times(check):
    body = table._BlockBuilder(16)
    body.add(b"a", b"1")
    assert check(with_data_block(body.finish(), handles=2)) == (
        f"the data block at byte 0 overlaps the one before it, which ends at {len(body.finish()) + 5}"
    )


def test_keys_that_unpack_to_far_more_than_the_file(check, monkeypatch):
    monkeypatch.setattr(table, "_EXPANSION_FLOOR", 1000)
    long_key = b"k" * 2000
    bomb = b"\0" + encode_varint(2000) + b"\0" + long_key
    for number in range(400):
        bomb += encode_varint(2000 + number) + b"\x01\0a"
    assert check(with_data_block(bomb + struct.pack("<II", 0, 1))) == (
        "its keys unpack to far more bytes than the file has"
    )


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 200), st.integers(1, 255), st.integers(0, 200))
def test_any_damage_is_an_error_or_harmless(position, flip, cut):
    data = bytearray(build_table(ENTRIES, block_size=8))
    data[position % len(data)] ^= flip
    with contextlib.suppress(InputOutputError):
        list(table._Reader(Path("t"), bytes(data[: len(data) - cut] if cut < len(data) else data)).entries())
