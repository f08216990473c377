"""Reading bundles without TensorFlow: values, laziness, partitioned variables, and every kind of damage."""

import contextlib
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphfreeze.errors import GraphfreezeError, InputOutputError, UnsupportedModelError
from graphfreeze.savedmodel import bundle as bundle_module
from graphfreeze.savedmodel import protos, read_bundle, unused_bytes
from graphfreeze.savedmodel.checksum import masked_crc
from graphfreeze.savedmodel.slices import TensorSlice

STEP = "Copy the model again from where it came from"


def entry(shape=(2,), dtype=1, offset=0, size=None, shard_id=0, crc32c=None):
    """An entry over zeros, with the right checksum unless told."""
    made = protos.BundleEntryProto(dtype=dtype, offset=offset, shard_id=shard_id)
    made.shape.SetInParent()
    for length in shape:
        made.shape.dim.add(size=length)
    made.size = 4 * math.prod(shape) if size is None else size
    made.crc32c = masked_crc([bytes(max(0, min(made.size, 1 << 16)))]) if crc32c is None else crc32c
    return made


def sliced(shape, *parts):
    """The entry of a partitioned variable."""
    made = entry(shape, size=0, crc32c=0)
    for part in parts:
        proto = made.slices.add()
        for start, length in zip(part.starts, part.lengths, strict=True):
            proto.extent.add(start=start, length=length) if length >= 0 else proto.extent.add()
    return made


@pytest.fixture
def problem(raw_bundle):
    """Opens a damaged bundle and returns the problem that the error names."""

    def run(entries, key=None, **options):
        prefix = raw_bundle(entries, **options)
        with pytest.raises(InputOutputError) as caught:
            read_bundle(prefix) if key is None else read_bundle(prefix).read_tensor(key)
        start, end = f"the checkpoint '{prefix}' is damaged: ", f". {STEP}"
        text = str(caught.value)
        assert text.startswith(start)
        assert text.endswith(end)
        return text[len(start) : -len(end)]

    return run


def test_values_and_facts(make_bundle):
    bundle = make_bundle(b=np.arange(6.0).reshape(2, 3), a=np.int64(7), s=np.array([b"x", b""], object))
    assert list(bundle.entries) == ["a", "b", "s"]
    assert bundle.shape("b") == (2, 3)
    assert bundle.dtype("b") == np.float64
    assert bundle.data_type("s") == 7
    assert bundle.nbytes("b") == 48
    assert bundle.read_bytes("a") == (7).to_bytes(8, "little")
    assert bundle.read_tensor("a").shape == ()
    assert bundle.read_tensor("s").tolist() == [b"x", b""]
    np.testing.assert_array_equal(bundle.read_tensor("b"), np.arange(6.0).reshape(2, 3))


def test_tensors_are_read_only(make_bundle):
    array = make_bundle(a=[1.0]).read_tensor("a")
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 2


def test_large_tensors_are_mapped_and_unaligned_ones_too(make_bundle, monkeypatch):
    monkeypatch.setattr(bundle_module, "_MAP_FROM", 8)
    bundle = make_bundle(a=np.int8(1), b=np.arange(5.0), c=np.arange(5.0, dtype=np.float32))
    assert bundle.entries["b"].offset == 1
    np.testing.assert_array_equal(bundle.read_tensor("b"), np.arange(5.0))
    assert bundle.read_tensor("b").flags.aligned
    np.testing.assert_array_equal(bundle.read_tensor("c"), np.arange(5.0))


def test_only_the_bytes_of_the_tensor_are_read(make_bundle):
    bundle = make_bundle(a=np.arange(4.0), b=np.arange(4.0))
    path = bundle.shard_path(0)
    data = bytearray(path.read_bytes())
    data[:32] = b"\xff" * 32
    path.write_bytes(data)
    np.testing.assert_array_equal(bundle.read_tensor("b"), np.arange(4.0))
    with pytest.raises(InputOutputError, match=r"the checksum of tensor 'a' is 0x[0-9a-f]{8}, expected 0x[0-9a-f]{8}"):
        bundle.read_tensor("a")
    assert np.isnan(bundle.read_tensor("a", check=False)).all()


def test_unknown_key(make_bundle):
    bundle = make_bundle(a=[1.0])
    with pytest.raises(InputOutputError) as caught:
        bundle.read_tensor("b")
    assert str(caught.value) == f"'{bundle.prefix}.index' has no tensor 'b'"


def test_partitioned_variable(raw_bundle):
    parts = [TensorSlice((0, 0), (2, -1)), TensorSlice((2, 0), (1, 3))]
    prefix = raw_bundle(
        {
            b"v": sliced((3, 3), *parts),
            parts[0].key(b"v"): entry((2, 3), offset=4, crc32c=0),
            parts[1].key(b"v"): entry((1, 3), offset=28, crc32c=0),
        }
    )
    values = np.arange(1.0, 10.0, dtype=np.float32)
    prefix.with_name("bundle.data-00000-of-00001").write_bytes(bytes(4) + values.tobytes() + bytes(4))
    bundle = read_bundle(prefix)
    assert list(bundle.entries) == ["v"]
    assert len(bundle.raw_entries) == 2
    assert bundle.shape("v") == (3, 3)
    assert bundle.nbytes("v") == 36
    np.testing.assert_array_equal(bundle.read_tensor("v", check=False), values.reshape(3, 3))
    assert bundle.read_bytes("v") == values.tobytes()
    assert unused_bytes(bundle) == 8
    assert unused_bytes(bundle, ["v"]) == 44
    with pytest.raises(InputOutputError, match="the checksum of tensor 'v' is"):
        bundle.read_tensor("v")


@pytest.mark.parametrize(
    ("parts", "data", "words"),
    [
        ([((0,), (2,))], [], "the slice at [0] of 'v' has no entry"),
        ([((0,), (2,))], [(2,)], "the slices of 'v' hold 2 elements, expected 4"),
        ([((0,), (2,)), ((1,), (2,))], [(2,), (2,)], "the slices of 'v' overlap and do not cover it"),
        ([((0,), (2,)), ((3,), (2,))], [(2,), (2,)], "'v': a slice takes 3 to 5 of axis 0, which has 4 elements"),
        ([((0,), (4,))], [(2, 2)], "the slice at [0] of 'v' has another shape or type than its data"),
    ],
)
def test_slices_that_do_not_fit(problem, parts, data, words):
    boxes = [TensorSlice(*part) for part in parts]
    entries = {b"v": sliced((4,), *boxes)}
    for number, (box, shape) in enumerate(zip(boxes, data, strict=False)):
        entries[box.key(b"v")] = entry(shape, offset=16 * number)
    assert problem(entries, "v") == words


def test_huge_partitioned_variable_allocates_nothing(problem):
    part = TensorSlice((0,), (2,))
    assert problem({b"v": sliced((1 << 50,), part), part.key(b"v"): entry((2,))}, "v") == (
        f"the slices of 'v' hold 2 elements, expected {1 << 50}"
    )


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (entry((2,), offset=60), "'v' should lie at bytes 60 to 68 of 'bundle.data-00000-of-00001', which has 64"),
        (entry((2,), offset=-4), "'v' should lie at bytes -4 to 4 of 'bundle.data-00000-of-00001', which has 64"),
        (entry((2,), size=4), "'v' of type float32 and shape [2] should take 8 bytes, found 4"),
        (entry((2,), dtype=101, size=4), "'v' of type float32_ref and shape [2] should take 8 bytes, found 4"),
        (entry((-1,), size=4), "the shape of 'v' is [-1], but a stored tensor has known sizes"),
        (entry((1 << 40, 1 << 40), size=8), f"the shape of 'v' is impossibly large: [{1 << 40}, {1 << 40}]"),
        (entry((1 << 62, 0), size=0), f"the shape of 'v' is impossibly large: [{1 << 62}, 0]"),
        (entry((1,) * 65, size=4), "the shape of 'v' is impossibly large: [1, 1, 1, 1, 1, 1, 1, 1]"),
        (entry((9,), dtype=7, size=8), "'v' has 9 strings in 8 bytes"),
        (entry((2,), shard_id=3), "'v' lies in data shard 3, but there are 1"),
        (b"\xff\xff", "the entry of 'v' cannot be parsed"),
    ],
)
def test_hostile_entries(problem, made, words):
    assert problem({b"v": made}) == words


sizes = st.integers(-9, 70) | st.sampled_from([-(1 << 63), (1 << 63) - 1, 1 << 40])
any_entries = st.builds(
    entry,
    shape=st.lists(st.integers(-1, 5) | sizes, max_size=3),
    dtype=st.integers(0, 140) | st.sampled_from([-1, 1, 7, 999]),
    offset=sizes,
    size=sizes,
    shard_id=st.integers(-1, 2),
    crc32c=st.just(0),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(any_entries, min_size=1, max_size=3), st.booleans())
def test_any_entries_give_tensors_or_an_error_of_ours(raw_bundle, made, check):
    with contextlib.suppress(GraphfreezeError):
        bundle = read_bundle(raw_bundle({b"k%d" % number: value for number, value in enumerate(made)}))
        for key in bundle.entries:
            bundle.read_tensor(key, check=check)


def test_overlapping_entries(problem):
    assert problem({b"a": entry((4,)), b"b": entry((4,), offset=8)}) == "the bytes of 'a' and 'b' overlap"


def test_one_tensor_under_two_keys_is_no_overlap(raw_bundle):
    assert list(read_bundle(raw_bundle({b"a": entry((4,)), b"b": entry((4,))})).entries) == ["a", "b"]


def test_damaged_strings(problem):
    made = entry((2,), dtype=7, size=8, crc32c=0)
    assert problem({b"s": made}, "s") == "the strings of 's' cannot be read: its strings should take 0 bytes, found 2"


def test_a_type_without_elements(raw_bundle):
    bundle = read_bundle(raw_bundle({b"v": entry((1,), dtype=21, size=5)}))
    with pytest.raises(UnsupportedModelError) as caught:
        bundle.read_tensor("v")
    assert str(caught.value) == (
        "tensors of type 'variant' cannot be read from a checkpoint: their elements have no fixed size"
    )


def test_missing_shard(raw_bundle):
    prefix = raw_bundle({b"v": entry()})
    shard = prefix.with_name("bundle.data-00000-of-00001")
    shard.unlink()
    with pytest.raises(InputOutputError) as caught:
        read_bundle(prefix)
    assert str(caught.value) == f"'{shard}' is missing: tensor 'v' lies in it. Copy the whole 'variables' folder"


def test_shard_cut_off_after_opening(raw_bundle, monkeypatch):
    prefix = raw_bundle({b"v": entry((4,))})
    bundle = read_bundle(prefix)
    bundle.shard_path(0).write_bytes(b"1234")
    with pytest.raises(InputOutputError, match=r"'v' is cut off in 'bundle.data-00000-of-00001': expected 16 bytes"):
        bundle.read_tensor("v")
    monkeypatch.setattr(bundle_module, "_MAP_FROM", 1)
    with pytest.raises(InputOutputError, match=r"'v' is cut off in 'bundle.data-00000-of-00001'"):
        bundle.read_tensor("v")


def test_big_endian(raw_bundle):
    prefix = raw_bundle({}, endianness=1)
    with pytest.raises(InputOutputError) as caught:
        read_bundle(prefix)
    assert str(caught.value) == (
        f"the checkpoint '{prefix}' was written on a big-endian machine, which graphfreeze does not read. "
        "Load the model on such a machine and save it on a little-endian one"
    )


def test_newer_format(raw_bundle):
    version = type(protos.BundleHeaderProto().version)(min_consumer=2)
    prefix = raw_bundle({}, version=version)
    with pytest.raises(InputOutputError) as caught:
        read_bundle(prefix)
    assert str(caught.value) == (
        f"the checkpoint '{prefix}' needs a reader of bundle version 2, this one reads version 1. Upgrade graphfreeze"
    )


@pytest.mark.parametrize("shards", [0, -1, 100_000])
def test_impossible_number_of_shards(problem, shards):
    assert problem({}, num_shards=shards) == f"it claims {shards} data shards, expected 1 to 99999"


def test_missing_header(tmp_path):
    from graphfreeze.savedmodel.table import build_table

    (tmp_path / "b.index").write_bytes(build_table([(b"a", b"")]))
    with pytest.raises(InputOutputError) as caught:
        read_bundle(tmp_path / "b")
    assert str(caught.value) == f"the checkpoint '{tmp_path}/b' is damaged: the header entry is missing. {STEP}"


def test_real_bundle(real_model):
    if not (real_model / "variables").exists():
        pytest.skip("has no variables")
    bundle = read_bundle(real_model / "variables" / "variables")
    for key in bundle.entries:
        assert bundle.read_tensor(key).shape == bundle.shape(key)
    assert unused_bytes(bundle) == 0
