"""Features of serialized protos, read off graphs that TensorFlow made, and protos that those graphs take."""

import numpy as np
import pytest

from graphfreeze.graph.examples import Examples, Feature
from graphfreeze.savedmodel import read_saved_model
from tests.conftest import MODELS

WANTED = {
    Feature(b"x", "float32", (3,)),
    Feature(b"id", "int64", ()),
    Feature(b"words", "string", None),
    Feature(b"more", "float32", None),
}


def test_a_model_that_parses_nothing():
    meta = read_saved_model(MODELS / "strings").proto.meta_graphs[0]
    examples = Examples(meta)
    assert examples.of_tensor("serving_default_words:0") is None
    assert {examples.of_function(f.signature.name, 1) for f in meta.graph_def.library.function} == {()}


@pytest.fixture(scope="module")
def parsing(tmp_path_factory):
    """A saved model that parses a batch, one proto, and a batch in a function of its own."""
    import tensorflow as tf

    features = {
        "x": tf.io.FixedLenFeature([3], tf.float32),
        "id": tf.io.FixedLenFeature([], tf.int64),
        "words": tf.io.VarLenFeature(tf.string),
        "more": tf.io.RaggedFeature(tf.float32),
    }

    class Parsing(tf.Module):
        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable(np.ones((3, 2), np.float32), name="kernel")

        def _use(self, found):
            x = tf.reshape(found["x"], [-1, 3]) @ self.kernel
            return x + tf.cast(tf.size(found["words"].values), tf.float32)

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def batch(self, examples):
            return self._use(tf.io.parse_example(examples, features))

        @tf.function(input_signature=[tf.TensorSpec([], tf.string, name="example")])
        def single(self, example):
            fixed = {k: v for k, v in features.items() if k != "more"}
            return self._use(tf.io.parse_single_example(example, fixed))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="examples")])
        def inner(self, examples):
            return self.batch(examples) + 1.0

    folder = tmp_path_factory.mktemp("parsing") / "model"
    model = Parsing()
    tf.saved_model.save(model, str(folder), signatures={"serving_default": model.batch})
    return folder


@pytest.mark.tf
def test_features_are_found(parsing):
    meta = read_saved_model(parsing).proto.meta_graphs[0]
    examples = Examples(meta)
    assert set(examples.of_tensor("serving_default_examples:0")) == WANTED
    found = {name: examples.of_function(name, 1) for name in meta.object_graph_def.concrete_functions}
    for part in ("batch", "inner"):
        (features,) = next(f for name, f in found.items() if f"_{part}_" in name)
        assert set(features) == WANTED, part
    (features,) = next(f for name, f in found.items() if "_single_" in name)
    assert set(features) == {f for f in WANTED if f.name != b"more"}


@pytest.mark.tf
def test_verify_calls_what_takes_protos(parsing, tmp_path):
    import graphfreeze
    from tests.runtime.verifying.models import start

    graphfreeze.rewrite(parsing, tmp_path / "out", freeze="kernel[:1]")
    findings = start(parsing, tmp_path / "out", tmp_path / "pair").all().findings
    assert {(f.where, f.status, f.what) for f in findings if f.check == "forward"} == {
        (where, "ok", "") for where in ("batch[0]", "single[0]", "inner[0]", "signature serving_default")
    }
    assert [f for f in findings if f.status == "failed"] == []
    assert ("TF1 loader", "ok") in {(f.check, f.status) for f in findings if f.where == "signature serving_default"}
