"""Real models that tf_keras wrote: their keras_metadata.pb is set aside, and all invariants hold."""

import pytest

import graphfreeze
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.passes.keras_metadata import KEPT, METADATA
from graphfreeze.savedmodel import open_draft
from tests.helpers.shared_models import shared_model
from tests.passes.invariants import broken
from tests.passes.rewriting import rewritten

TF_KERAS = ["rnnseries-gru_model", "scisharp-lstm_from_sequential", "scisharp-python_func_model"]


def weights(path):
    draft = open_draft(path)
    trace = trace_meta_graph(draft, draft.model.proto.meta_graphs[0])
    return [
        v
        for v in trace.variables
        if trace.kind(v) == "weight" and v.elements > 1 and not any(True for _ in trace.writes(v.index))
    ]


@pytest.mark.parametrize("index", ["", "[:1]"])
@pytest.mark.parametrize("name", TF_KERAS)
def test_keras_metadata_is_set_aside(name, index):
    path = shared_model(name)
    chosen = [v.path + index for v in weights(path) if not index or v.shape[0] > 1]
    done = rewritten(path, *chosen, allow_empty=True)
    assert broken(done) == []
    assert done.after.omit == {METADATA}
    assert done.after.extra_files == {KEPT: (path / METADATA).read_bytes()}
    assert (path / METADATA).is_file()


def test_a_model_without_metadata():
    done = rewritten("mlp", "out/bias")
    assert (done.after.omit, done.after.extra_files) == (set(), {})


@pytest.fixture
def with_metadata(fixture_copy):
    model = fixture_copy("mlp")
    (model / METADATA).write_bytes(b"metadata")
    return model


def files(model):
    return {str(p.relative_to(model)) for p in model.rglob(METADATA)}


def test_it_stays_aside_as_long_as_something_is_frozen(with_metadata, tmp_path):
    once, twice, part, plain = (tmp_path / name for name in ("once", "twice", "part", "plain"))
    graphfreeze.rewrite(with_metadata, once, freeze=["dense_0/kernel", "out/bias"])
    graphfreeze.rewrite(once, twice, freeze=["dense_0/kernel", "dense_1/bias"])
    graphfreeze.finalize(twice, part, unfreeze="dense_1/bias")
    for model in (once, twice, part):
        assert files(model) == {KEPT}
    graphfreeze.finalize(part, plain)
    assert files(plain) == {METADATA}
    assert (plain / METADATA).read_bytes() == b"metadata"


def test_a_plan_warns_of_it(with_metadata, tmp_path):
    plan = graphfreeze.plan(with_metadata, freeze="out/bias")
    (warning,) = plan.warnings
    assert warning == (
        "'keras_metadata.pb' is set aside: load_model of tf_keras would rebuild the layers from it and ignore the "
        "freeze; without it load_model fails. Load the result with tf.saved_model.load or TFSMLayer"
    )
    assert graphfreeze.rewrite(with_metadata, tmp_path / "out", freeze="out/bias").warnings == plan.warnings
    assert graphfreeze.plan(tmp_path / "out", freeze="out/bias").warnings == plan.warnings
    assert graphfreeze.inspect(with_metadata).warnings == ()
