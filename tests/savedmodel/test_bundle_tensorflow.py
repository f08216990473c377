"""Bundles compared with TensorFlow, both ways: it writes and we read, we write and it reads."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from graphfreeze.savedmodel import StoredTensor, read_bundle, repack_bundle, write_bundle

pytestmark = pytest.mark.tf

TENSORS = {
    "bfloat16": np.arange(5).astype(ml_dtypes.bfloat16),
    "bool": np.array([[True, False]]),
    "complex": np.array([1 + 2j], np.complex64),
    "empty": np.zeros((0, 3), np.float32),
    "empty_strings": np.zeros((0,), object),
    "float8": np.arange(3).astype(ml_dtypes.float8_e5m2),
    "half": np.arange(3, dtype=np.float16),
    "int4": np.arange(3).astype(ml_dtypes.int4),
    "nested/name": np.arange(12.0).reshape(3, 4),
    "scalar": np.float32(3.5).reshape(()),
    "strings": np.array([b"", b"ab", b"\0\xff" * 100], object),
    "text": np.array(b"one string", object),
    "uint64": np.array([1 << 63], np.uint64),
}


def check(bundle, reader):
    assert set(reader.get_variable_to_shape_map()) == set(bundle.entries)
    for key in bundle.entries:
        ours, theirs = bundle.read_tensor(key), reader.get_tensor(key)
        theirs = np.asarray(theirs, object) if ours.dtype == object else np.asarray(theirs)
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        assert ours.tolist() == theirs.tolist() if ours.dtype == object else ours.tobytes() == theirs.tobytes()


def test_tensorflow_writes(tmp_path):
    import tensorflow as tf

    names = sorted(TENSORS)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "v"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(TENSORS[name], tf.string if TENSORS[name].dtype == object else None) for name in names],
    )
    bundle = read_bundle(tmp_path / "v")
    assert list(bundle.entries) == names
    check(bundle, tf.train.load_checkpoint(str(tmp_path / "v")))


@pytest.mark.parametrize("repack", [False, True])
def test_we_write(tmp_path, repack):
    import tensorflow as tf

    if repack:
        repack_bundle(tmp_path / "v", None, put=TENSORS)
    else:
        write_bundle(tmp_path / "v", source=None, put=TENSORS)
    check(read_bundle(tmp_path / "v"), tf.train.load_checkpoint(str(tmp_path / "v")))


def test_a_large_index_of_several_blocks(tmp_path):
    import tensorflow as tf

    put = {f"layer_{number:05d}/a/rather/long/name/kernel": np.float32(number) for number in range(9000)}
    write_bundle(tmp_path / "v", source=None, put=put)
    assert (tmp_path / "v.index").stat().st_size > 1 << 18
    reader = tf.train.load_checkpoint(str(tmp_path / "v"))
    assert len(reader.get_variable_to_shape_map()) == 9000
    assert reader.get_tensor("layer_08999/a/rather/long/name/kernel") == 8999


def save_sliced(prefix, value, cuts):
    """TensorFlow writes ``value`` as a partitioned variable, and a plain one beside it."""
    import tensorflow as tf

    names, specs, tensors = ["plain"], [""], [tf.constant(1.0)]
    for start, stop in itertools.pairwise(cuts):
        names.append("part/v")
        specs.append(f"{value.shape[0]} {value.shape[1]} {start},{stop - start}:-")
        tensors.append(tf.constant(value[start:stop]))
    tf.raw_ops.SaveV2(prefix=str(prefix), tensor_names=names, shape_and_slices=specs, tensors=tensors)


@pytest.mark.parametrize("cuts", [[0, 2, 5], [0, 1, 2, 3, 4, 5], [0, 100, 5000, 20000]])
def test_partitioned_variables(tmp_path, cuts):
    import tensorflow as tf

    value = np.random.default_rng(0).normal(size=(cuts[-1], 3)).astype(np.float32)
    save_sliced(tmp_path / "v", value, cuts)
    bundle = read_bundle(tmp_path / "v")
    assert len(bundle.raw_entries) == len(cuts) - 1
    np.testing.assert_array_equal(bundle.read_tensor("part/v"), value)

    write_bundle(tmp_path / "w", source=bundle, put={"new": np.array(2.0), "renamed": StoredTensor("part/v")})
    reader = tf.train.load_checkpoint(str(tmp_path / "w"))
    np.testing.assert_array_equal(reader.get_tensor("part/v"), value)
    np.testing.assert_array_equal(reader.get_tensor("renamed"), value)

    repack_bundle(tmp_path / "p", read_bundle(tmp_path / "w"), put={}, drop=["part/v"])
    reader = tf.train.load_checkpoint(str(tmp_path / "p"))
    np.testing.assert_array_equal(reader.get_tensor("renamed"), value)
    assert not reader.has_tensor("part/v")
    # RestoreV2 reads one slice by its own key.
    spec = f"{cuts[-1]} 3 {cuts[1]},{cuts[2] - cuts[1]}:-"
    (part,) = tf.raw_ops.RestoreV2(
        prefix=str(tmp_path / "p"), tensor_names=["renamed"], shape_and_slices=[spec], dtypes=[tf.float32]
    )
    np.testing.assert_array_equal(part.numpy(), value[cuts[1] : cuts[2]])


def test_two_shards(tmp_path):
    import tensorflow as tf

    for number in range(2):
        tf.raw_ops.SaveV2(
            prefix=str(tmp_path / f"part{number}"),
            tensor_names=[f"t{number}"],
            shape_and_slices=[""],
            tensors=[tf.constant([float(number)] * 3)],
        )
    parts = [str(tmp_path / "part0"), str(tmp_path / "part1")]
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(tmp_path / "v"))
    bundle = read_bundle(tmp_path / "v")
    assert bundle.header.num_shards == 2
    check(bundle, tf.train.load_checkpoint(str(tmp_path / "v")))

    write_bundle(tmp_path / "w", source=bundle, put={"t2": np.ones(4)}, weights="link")
    assert read_bundle(tmp_path / "w").header.num_shards == 3
    check(read_bundle(tmp_path / "w"), tf.train.load_checkpoint(str(tmp_path / "w")))


def test_real_models(real_model, tmp_path):
    import tensorflow as tf

    prefix = real_model / "variables" / "variables"
    if not prefix.parent.exists():
        pytest.skip("has no variables")
    bundle = read_bundle(prefix)
    check(bundle, tf.train.load_checkpoint(str(prefix)))
    write_bundle(tmp_path / "w", source=bundle, put={"graphfreeze/new": np.ones(3)})
    check(read_bundle(tmp_path / "w"), tf.train.load_checkpoint(str(tmp_path / "w")))
    repack_bundle(tmp_path / "p", read_bundle(tmp_path / "w"), put={}, drop=["graphfreeze/new"])
    check(read_bundle(tmp_path / "p"), tf.train.load_checkpoint(str(tmp_path / "p")))
