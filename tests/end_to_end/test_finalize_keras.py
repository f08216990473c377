"""A rewritten model exported inside a larger Keras model: ``info`` is lost, marks on nodes are all that is left."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.end_to_end.cases import FULL, rewrite

pytestmark = pytest.mark.tf


def exported(path: Path, out: Path, change: Any) -> None:
    """TFSMLayer, a Dense layer on top, ``Model.export``."""
    import keras
    import tensorflow as tf

    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    layer = keras.layers.TFSMLayer(str(path), call_endpoint="serve")
    change(layer._reloaded_obj)
    (spec,) = tf.saved_model.load(str(path)).signatures["serving_default"].structured_input_signature[1].values()
    inputs = keras.Input(shape=spec.shape[1:], dtype=spec.dtype)
    model = keras.Model(inputs, keras.layers.Dense(2, name="top")(layer(inputs)))
    model.export(str(out), verbose=False)


def described(path: Path) -> dict[str, Any]:
    """What of an export does not depend on the order of a Python set: Keras numbers second copies by one."""
    from graphfreeze.savedmodel import object_paths
    from tests.helpers.canonical import canonical

    form = canonical(path)
    graph = form.meta.object_graph_def
    paths = object_paths(graph)
    names = {
        p: graph.nodes[n].variable.name for n, p in paths.items() if graph.nodes[n].WhichOneof("kind") == "variable"
    }

    def plain(text: str) -> str:
        parts = text.split("/")
        copy = "/".join(parts[:2])
        return (
            "/".join(["_all_variables", names[copy], *parts[2:]])
            if parts[0] == "_all_variables" and copy in names
            else text
        )

    def variable(number: int) -> tuple[Any, ...]:
        node = graph.nodes[number].variable
        return node.name, node.dtype, node.trainable, [d.size for d in node.shape.dim]

    bound = {
        name: [plain(paths[n]) if n in paths else str(graph.nodes[n].WhichOneof("kind")) for n in function.bound_inputs]
        for name, function in graph.concrete_functions.items()
    }
    return {
        "functions": [f.SerializeToString(deterministic=True) for f in form.meta.graph_def.library.function],
        "ops": sorted(n.op for n in form.meta.graph_def.node),
        "listed ops": [op.name for op in form.meta.meta_info_def.stripped_op_list.op],
        "signatures": form.meta.signature_def["serving_default"].SerializeToString(deterministic=True),
        "objects": {plain(p): graph.nodes[n].WhichOneof("kind") for n, p in paths.items()},
        "variables": {plain(p): variable(n) for n, p in paths.items() if p in names},
        "bound": bound,
        "saved keys": sorted(plain(entry[0]) for entry in form.saver.entries["SAVE"]),
        "saver ops": form.saver.ops,
        "tensors": {plain(key): value for key, value in form.tensors.items()},
    }


FIXTURES = ("keras_embedding", "keras_conv", "keras_gru", "keras_mixed")
HELD = (("whole", "auto"), ("strict", "stop"), ("rows", "split"), ("dense mask", "mask"), ("columns", "live"))
CASES = [(f, *h) for i, f in enumerate(FIXTURES) for j, h in enumerate(HELD) if FULL or (i + j) % 2 == 0]


@pytest.mark.parametrize(("fixture", "kind", "strategy"), CASES)
def test_inside_a_larger_keras_model(fixture, kind, strategy, tmp_path):
    from tests.end_to_end.test_finalize import effective_values
    from tests.helpers.resaved import assign_all, leftovers, train_a_little

    plan = rewrite({"fixture": fixture, "kind": kind, "choice": "even", "strategy": strategy}, tmp_path / "out")
    values: dict[str, Any] = {}

    def train(loaded):
        train_a_little(loaded)
        values.update(effective_values(loaded, plan))

    exported(tmp_path / "out", tmp_path / "trained", train)
    exported(MODELS / fixture, tmp_path / "expected", assign_all(values))
    done = graphfreeze.finalize(tmp_path / "trained", tmp_path / "plain")
    assert set(done.variables) == {v.name for v in plan.meta_graphs[0].variables if v.strategy}
    found, expected = described(tmp_path / "plain"), described(tmp_path / "expected")
    assert [part for part in expected if found[part] != expected[part]] == []
    assert not leftovers(tmp_path / "plain")


def test_an_export_can_be_frozen_again(tmp_path):
    """The second rewrite replaces the first, although nothing but marks tells about it."""
    from tests.helpers.resaved import train_a_little

    graphfreeze.rewrite(MODELS / "keras_embedding", tmp_path / "out", freeze=["**/embeddings[:2]"])
    exported(tmp_path / "out", tmp_path / "trained", train_a_little)
    plan = graphfreeze.rewrite(tmp_path / "trained", tmp_path / "again", freeze=["**/embeddings[2:4]"])
    (held,) = (v for v in plan.meta_graphs[0].variables if v.strategy)
    assert held.frozen == 2 * held.shape[1]
    assert not any("graphfreeze" in v.name for v in plan.meta_graphs[0].variables)
    graphfreeze.finalize(tmp_path / "again", tmp_path / "plain")
    graphfreeze.finalize(tmp_path / "trained", tmp_path / "expected")
    tensors = [described(tmp_path / name)["tensors"] for name in ("plain", "expected")]
    assert np.all([tensors[0][key] == tensors[1][key] for key in tensors[1]])
