"""Writing bundles without TensorFlow: what is kept, added, dropped, linked and packed."""

import os
import resource
import stat
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from graphfreeze.errors import InputOutputError, InternalError
from graphfreeze.savedmodel import (
    NUMPY_DTYPES,
    StoredTensor,
    StreamedTensor,
    files,
    read_bundle,
    repack_bundle,
    unused_bytes,
    write_bundle,
)

names = st.text(min_size=1, max_size=10).filter(lambda name: name[0] != "\0")
numeric = st.sampled_from(["f2", "f4", "f8", "c8", "c16", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
numbers = numeric.flatmap(lambda d: hnp.arrays(np.dtype(d), hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
texts = st.lists(st.binary(max_size=20), max_size=5).map(lambda values: np.array([*values, None], object)[:-1])


def same(left, right):
    return (left.dtype == right.dtype and left.shape == right.shape and left.tolist() == right.tolist()) or (
        left.dtype != object and left.tobytes() == right.tobytes() and left.shape == right.shape
    )


@pytest.fixture
def target(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "variables"


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(names, numbers | texts, max_size=6), st.booleans())
def test_round_trip(tensors, repack):
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder, "v")
        if repack:
            repack_bundle(prefix, None, put=tensors)
        else:
            write_bundle(prefix, source=None, put=tensors)
        bundle = read_bundle(prefix)
        assert set(bundle.entries) == set(tensors)
        assert all(same(bundle.read_tensor(key), value) for key, value in tensors.items())
        assert unused_bytes(bundle) == 0


@pytest.mark.parametrize("dtype", sorted({d.name for d in NUMPY_DTYPES.values()}))
def test_every_type(target, dtype):
    value = np.array([0, 1, 1, 0]).astype(getattr(ml_dtypes, dtype, None) or dtype)
    write_bundle(target, source=None, put={"v": value})
    found = read_bundle(target).read_tensor("v")
    assert found.dtype == value.dtype
    assert found.tobytes() == value.tobytes()


def test_old_shards_stay_and_one_is_added(make_bundle, target):
    source = make_bundle(a=[1.0, 2.0], b=[3.0], c=[4.0])
    write_bundle(target, source=source, put={"b": np.array([5.0]), "d": np.array(6)}, drop=["c"])
    bundle = read_bundle(target)
    assert sorted(path.name for path in target.parent.iterdir()) == [
        "variables.data-00000-of-00002",
        "variables.data-00001-of-00002",
        "variables.index",
    ]
    assert bundle.shard_path(0).read_bytes() == source.shard_path(0).read_bytes()
    assert {key: bundle.read_tensor(key).tolist() for key in bundle.entries} == {"a": [1, 2], "b": [5], "d": 6}
    assert bundle.entries["a"] == source.entries["a"]
    assert bundle.entries["b"].shard_id == 1
    assert unused_bytes(bundle) == 16
    assert unused_bytes(bundle, ["a"]) == 32


def test_nothing_to_put_adds_no_shard(make_bundle, target):
    source = make_bundle(a=[1.0], b=[2.0])
    write_bundle(target, source=source, put={}, drop=["b"])
    bundle = read_bundle(target)
    assert bundle.header == source.header
    assert list(bundle.entries) == ["a"]


def test_unknown_fields_of_entries_and_header_stay(make_bundle, target, tmp_path):
    from graphfreeze.savedmodel.table import build_table, read_table

    source = make_bundle(a=[1.0])
    index = source.prefix.with_name("variables.index")
    unknown = b"\xf8\x07\x2a"  # field 127, number 42
    index.write_bytes(build_table([(key, value + unknown) for key, value in read_table(index)]))
    write_bundle(target, source=read_bundle(source.prefix), put={"b": np.array(1.0)})
    rows = dict(read_table(target.with_name("variables.index")))
    assert unknown in rows[b""]
    assert unknown in rows[b"a"]
    assert unknown not in rows[b"b"]


def test_stored_tensor_takes_another_name(make_bundle, target):
    source = make_bundle(a=[1.0, 2.0])
    write_bundle(target, source=source, put={"b": StoredTensor("a")}, drop=["a"])
    bundle = read_bundle(target)
    assert list(bundle.entries) == ["b"]
    assert bundle.header.num_shards == 1
    assert bundle.read_tensor("b").tolist() == [1.0, 2.0]


def test_streamed_tensor(target):
    pieces = [np.arange(4, dtype=np.float32), np.arange(4, 6, dtype=np.float32).tobytes(), np.float32([[6], [7]])]
    write_bundle(target, source=None, put={"v": StreamedTensor(1, (2, 4), lambda: pieces)})
    assert read_bundle(target).read_tensor("v").tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_streamed_tensor_of_the_wrong_size(target):
    with pytest.raises(InternalError) as caught:
        write_bundle(target, source=None, put={"v": StreamedTensor(1, (3,), lambda: [b"1234"])})
    assert str(caught.value) == "a tensor of shape [3] gave 4 bytes, expected 12"


def test_order_and_byte_order_of_arrays(target):
    put = {
        "big": np.arange(3, dtype=">f4"),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "stepped": np.arange(10.0)[::3],
    }
    write_bundle(target, source=None, put=put)
    bundle = read_bundle(target)
    assert all((bundle.read_tensor(key) == value).all() for key, value in put.items())


def test_a_quantised_tensor_stays_quantised(raw_bundle, target):
    from graphfreeze.savedmodel import protos

    entry = protos.BundleEntryProto(dtype=11, size=2)
    entry.shape.dim.add(size=2)
    source = read_bundle(raw_bundle({b"q": entry}))
    write_bundle(target, source=source, put={"q": np.array([1, 2], np.int8)})
    assert read_bundle(target).data_type("q") == 11


def test_hard_links(make_bundle, target):
    source = make_bundle(a=[1.0], b=[2.0])
    written = write_bundle(target, source=source, put={"a": np.array([9.0])}, weights="link")
    assert [path.name for path in written.linked] == ["variables.data-00000-of-00002"]
    assert written.linked[0].samefile(source.shard_path(0))
    assert stat.S_IMODE(source.shard_path(0).stat().st_mode) & 0o222 == 0
    assert read_bundle(target).read_tensor("a").tolist() == [9.0]
    assert source.read_tensor("a").tolist() == [1.0]


def test_links_follow_symbolic_links(make_bundle, target, tmp_path):
    source = make_bundle(a=[1.0])
    real = source.shard_path(0).rename(tmp_path / "elsewhere")
    source.shard_path(0).symlink_to(real)
    written = write_bundle(target, source=source, put={}, weights="link")
    assert not written.linked[0].is_symlink()
    assert written.linked[0].samefile(real)


def test_a_copy_of_a_protected_shard_can_be_written(make_bundle, target):
    source = make_bundle(a=[1.0])
    source.shard_path(0).chmod(0o444)
    write_bundle(target, source=source, put={})
    assert read_bundle(target).shard_path(0).stat().st_mode & 0o200


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (18, "they lie on different file systems. Write the model on the same one, or copy the weights instead"),
        (1, "Operation not permitted. Copy the weights instead"),
    ],
)
def test_links_that_cannot_be_made(make_bundle, target, monkeypatch, number, words):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    source = make_bundle(a=[1.0])
    with pytest.raises(InputOutputError) as caught:
        write_bundle(target, source=source, put={}, weights="link")
    assert str(caught.value) == (
        f"cannot link '{target}.data-00000-of-00001' to '{source.shard_path(0)}': {words} of linking them"
    )


def test_repack(make_bundle, target, tmp_path):
    first = make_bundle(a=[1.0, 2.0], b=[3.0], c=[4.0], s=np.array(b"text", object))
    (tmp_path / "mid").mkdir()
    write_bundle(tmp_path / "mid" / "v", source=first, put={"b": np.array([5.0])}, drop=["c"])
    source = read_bundle(tmp_path / "mid" / "v")
    assert unused_bytes(source) == 16
    repack_bundle(target, source, put={"d": np.array(7.0), "e": StoredTensor("a")}, drop=[])
    bundle = read_bundle(target)
    assert bundle.header.num_shards == 1
    assert unused_bytes(bundle) == 0
    found = {key: bundle.read_tensor(key).tolist() for key in bundle.entries}
    assert found == {"a": [1, 2], "b": [5], "d": 7, "e": [1, 2], "s": b"text"}
    # Two names of one tensor share its bytes.
    assert bundle.entries["a"].offset == bundle.entries["e"].offset


def test_repack_keeps_checksums_of_damaged_tensors(make_bundle, target):
    source = make_bundle(a=np.arange(4.0))
    source.shard_path(0).write_bytes(b"\xff" * 32)
    repack_bundle(target, source, put={})
    with pytest.raises(InputOutputError, match="the checksum of tensor 'a'"):
        read_bundle(target).read_tensor("a")


def test_partitioned_variables(make_sliced, target, tmp_path):
    source, value = make_sliced
    write_bundle(target, source=source, put={"w": StoredTensor("v"), "x": np.array(1.0)})
    bundle = read_bundle(target)
    assert list(bundle.entries) == ["v", "w", "x"]
    np.testing.assert_array_equal(bundle.read_tensor("w"), value)
    np.testing.assert_array_equal(bundle.read_tensor("v"), value)
    (tmp_path / "packed").mkdir()
    packed = tmp_path / "packed" / "v"
    repack_bundle(packed, bundle, put={}, drop=["v"])
    bundle = read_bundle(packed)
    assert len(bundle.raw_entries) == 2
    np.testing.assert_array_equal(bundle.read_tensor("w"), value)
    assert unused_bytes(bundle) == 0


def test_a_partitioned_variable_can_be_replaced(make_sliced, target):
    source, _ = make_sliced
    write_bundle(target, source=source, put={"v": np.ones((3, 3), np.float32)})
    bundle = read_bundle(target)
    assert not bundle.raw_entries
    assert bundle.read_tensor("v").tolist() == [[1, 1, 1]] * 3


@pytest.fixture
def make_sliced(raw_bundle):
    """A bundle with variable 'v' of 3 x 3 in two slices, and its value."""
    from graphfreeze.savedmodel import protos
    from graphfreeze.savedmodel.checksum import masked_crc
    from graphfreeze.savedmodel.slices import TensorSlice

    value = np.arange(9.0, dtype=np.float32).reshape(3, 3)
    whole = protos.BundleEntryProto(dtype=1)
    entries, offset = {b"v": whole}, 0
    for size in (3, 3):
        whole.shape.dim.add(size=size)
    for start, length in ((0, 2), (2, 1)):
        extent = whole.slices.add().extent
        extent.add(start=start, length=length)
        extent.add()
        data = value[start : start + length].tobytes()
        part = protos.BundleEntryProto(dtype=1, offset=offset, size=len(data), crc32c=masked_crc([data]))
        for size in (length, 3):
            part.shape.dim.add(size=size)
        entries[TensorSlice((start, 0), (length, -1)).key(b"v")] = part
        offset += len(data)
    prefix = raw_bundle(entries)
    prefix.with_name("bundle.data-00000-of-00001").write_bytes(value.tobytes())
    return read_bundle(prefix), value


@pytest.mark.parametrize("way", ["clone", "kernel", "pieces"])
def test_every_way_to_copy(make_bundle, target, monkeypatch, way):
    monkeypatch.setattr(files, "_BUFFER", 7)
    monkeypatch.setattr(files, "_STEP", 5)
    if way != "clone":
        monkeypatch.setattr(files, "_clone", lambda *_: False)
    if way == "pieces":
        monkeypatch.delattr(os, "copy_file_range")
    source = make_bundle(a=np.arange(50.0))
    seen = []
    write_bundle(target, source=source, put={"b": np.ones(3)}, progress=lambda *pair: seen.append(pair))
    bundle = read_bundle(target)
    assert bundle.read_tensor("a").tolist() == list(range(50))
    assert seen[-1] == (424, 424)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_copying_falls_back_when_the_kernel_will_not(make_bundle, target, monkeypatch):
    def refuse(*_, **__):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(files, "_clone", lambda *_: False)
    monkeypatch.setattr(os, "copy_file_range", refuse)
    write_bundle(target, source=make_bundle(a=np.arange(5.0)), put={})
    assert read_bundle(target).read_tensor("a").tolist() == [0, 1, 2, 3, 4]


def test_large_shards_do_not_pass_through_memory(tmp_path, target):
    size = 100_000_000
    prefix = tmp_path / "large"
    chunk = bytes(1 << 20)

    def chunks():
        for _ in range(size // len(chunk)):
            yield chunk
        yield chunk[: size % len(chunk)]

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    write_bundle(prefix, source=None, put={"v": StreamedTensor(4, (size,), chunks)})
    write_bundle(target, source=read_bundle(prefix), put={})
    repack_bundle(tmp_path / "packed", read_bundle(prefix), put={})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # KiB
    assert (tmp_path / "packed.data-00000-of-00001").stat().st_size == size


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"put": {}, "drop": ["z"]}, "the source bundle has no tensor 'z' to drop or to keep"),
        ({"put": {"b": StoredTensor("z")}}, "the source bundle has no tensor 'z' to drop or to keep"),
        ({"put": {"": np.array(1)}}, "a tensor cannot be named ''"),
        ({"put": {"\0a": np.array(1)}}, "a tensor cannot be named '\\x00a'"),
    ],
)
def test_requests_that_make_no_sense(make_bundle, target, options, words):
    with pytest.raises(InternalError) as caught:
        write_bundle(target, source=make_bundle(a=[1.0]), **options)
    assert str(caught.value) == words


def test_an_existing_bundle_is_not_replaced(make_bundle):
    source = make_bundle(a=[1.0])
    with pytest.raises(InputOutputError) as caught:
        write_bundle(source.prefix, source=source, put={})
    assert str(caught.value) == f"'{source.prefix}.index' exists already"
