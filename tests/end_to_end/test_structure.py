"""Structure in place of timing: no tensor of the table's shape, slots of the part's shape, files that stay small."""

import numpy as np
import pytest

import graphfreeze
from graphfreeze.planning.plan import Storage
from tests.conftest import MODELS, OBJECT_MODELS
from tests.end_to_end import cases

pytestmark = pytest.mark.tf

ROWS, WIDTH = 1000, 8
SMALL = 64 * 1024
MERGE = 8 * 1024
"""The largest merge of one read, or guard of one write: a lookup into scattered elements is some 50 nodes."""


def shapes_in(concrete):
    """Every output shape of every node, in the graph and in all functions it calls."""
    graph = concrete.graph.as_graph_def(add_shapes=True)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return {
        (node.op, tuple(d.size for d in shape.dim))
        for node in nodes
        for shape in node.attr["_output_shapes"].list.shape
    }


def traced_step(loaded, variables, optimizer):
    """One training step as a graph, with the update of the optimizer in it."""
    import tensorflow as tf

    optimizer.build(variables)

    @tf.function(input_signature=[tf.TensorSpec([4, 6], tf.int32)])
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(loaded.predict(ids)["y"] ** 2)
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return step.get_concrete_function()


@pytest.mark.parametrize("selector", ["table[:990]", "table[10:]", "table[[0, 2, 3, 5]]"])
def test_a_step_holds_no_tensor_of_the_shape_of_the_table(selector, tmp_path):
    import keras

    from tests.end_to_end.runs import load
    from tests.end_to_end.small_models import table

    source, out = table(tmp_path / "table", ROWS, WIDTH), tmp_path / "out"
    plan = graphfreeze.rewrite(source, out, freeze=selector)
    frozen = next(v for v in plan.meta_graphs[0].variables if v.frozen)
    assert frozen.strategy == "split"
    held = load(out)
    optimizer = keras.optimizers.Adam()
    found = shapes_in(traced_step(held, graphfreeze.trainable_variables(held), optimizer))
    assert not [op for op, shape in found if shape == (ROWS, WIDTH)]
    part = ROWS - frozen.frozen // WIDTH
    assert sorted(tuple(v.shape) for v in optimizer._momentums) == sorted([(part, WIDTH), (WIDTH, 3)])
    # The unfrozen model does hold such tensors, so the look-up above would see them.
    plain, whole = load(source), keras.optimizers.Adam()
    assert [
        op for op, shape in shapes_in(traced_step(plain, [plain.table, plain.head], whole)) if shape == (ROWS, WIDTH)
    ]


@pytest.mark.parametrize("strategy", ["stop", "split", "mask", "live"])
@pytest.mark.parametrize("name", ["mlp", "embedding", "keras_conv"])
def test_adam_takes_the_bytes_that_the_plan_says(name, strategy, tmp_path):
    import keras

    from tests.end_to_end.runs import load

    kind = "whole" if strategy == "stop" else "rows"
    plan = cases.rewrite({"fixture": name, "kind": kind, "strategy": strategy, "choice": "even"}, tmp_path / "out")
    optimizer = keras.optimizers.Adam()
    optimizer.build(graphfreeze.trainable_variables(load(tmp_path / "out")))
    slots = [np.asarray(v) for v in [*optimizer._momentums, *optimizer._velocities]]
    after = sum(v.optimizer_bytes[1] for v in plan.meta_graphs[0].variables)
    assert sum(slot.nbytes for slot in slots) == after
    before = sum(v.optimizer_bytes[0] for v in plan.meta_graphs[0].variables)
    assert after < before if strategy in ("stop", "split") else after == before


def size_of(path):
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def added_bytes(plan):
    """Parts and copies, and a mask of one bit an element where it is a variable."""
    total = 0
    for variable in plan.meta_graphs[0].variables:
        for atom in variable.atoms:
            if atom.storage is not Storage.BASE:
                total += int(np.prod(atom.region.storage_shape)) * variable.bytes // variable.elements
    return total


@pytest.mark.parametrize("kind", ["rows", "row list", "columns", "points", "dense mask", "strict"])
@pytest.mark.parametrize("name", OBJECT_MODELS)
def test_the_result_is_hardly_larger_than_the_original(name, kind, tmp_path):
    case = {"fixture": name, "kind": kind, "strategy": "auto", "choice": "even"}
    if not cases.makes_sense(case):
        assert name in ("scalars", "slots", "unnamed", "statistics", "custom_gradient") or kind != "rows"
        return
    plan = cases.rewrite(case, tmp_path / "out")
    reads = sum(len(v.reads) + len(v.writes) for v in plan.meta_graphs[0].variables if v.frozen)
    allowed = max(SMALL, MERGE * reads)
    assert size_of(tmp_path / "out") < size_of(MODELS / name) + added_bytes(plan) + allowed


@pytest.mark.parametrize(
    ("selector", "options", "allowed"),
    [
        ("table[:-50]", {}, 64),
        ("table[50:]", {}, 64),
        ("table[:-50]", {"strategy": "mask"}, 64),
        ("table[:, ::2]", {}, 64),
        ("table", {"strict": True}, 64),
        ("table[@MASK]", {}, SMALL),
        ("table[@ROWS]", {}, SMALL),
    ],
)
def test_the_graph_does_not_grow_with_the_table(selector, options, allowed, tmp_path):
    from tests.end_to_end.small_models import table

    grown, weights = [], []
    for rows in (200, 40_000):
        source, out = table(tmp_path / f"table_{rows}", rows), tmp_path / f"out_{rows}"
        np.save(tmp_path / "mask.npy", np.random.default_rng(0).random((rows, 8)) < 0.5)
        (tmp_path / "rows.txt").write_text("\n".join(map(str, range(0, rows, 3))))
        chosen = selector.replace("MASK", str(tmp_path / "mask.npy")).replace("ROWS", str(tmp_path / "rows.txt"))
        plan = graphfreeze.rewrite(source, out, freeze=chosen, **options)
        grown.append((out / "saved_model.pb").stat().st_size - (source / "saved_model.pb").stat().st_size)
        weights.append(added_bytes(plan))
    assert grown[1] - grown[0] < allowed
    assert weights[1] >= weights[0]


def test_keys_of_the_checkpoint_stay(tmp_path):
    import tensorflow as tf

    for name, selector in {
        "nested": ["below/below/below/below/kernel[:1]", "kernel", "below/kernel[[0], [0]]"],
        "keras_conv": ["variables/0[..., :2]", "variables/7"],
        "layer_norm_transformer": ["tokens[:5]", "blocks/**"],
    }.items():
        out = tmp_path / name
        graphfreeze.rewrite(MODELS / name, out, freeze=selector)
        before, after = (
            {key for key, _ in tf.train.list_variables(str(path / "variables" / "variables"))}
            for path in (MODELS / name, out)
        )
        assert before <= after
        assert {key.split("/")[0] for key in after - before} == {"graphfreeze"}
