"""Real models that tf_keras wrote: their keras_metadata.pb is set aside, and all invariants hold."""

import pytest

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
