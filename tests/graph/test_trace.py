"""Every use of every variable, on all fixtures."""

from collections import Counter

import pytest

from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.savedmodel import open_draft
from tests.conftest import MODELS, OBJECT_MODELS

FULL, GATHER, SHAPE, ND = "full", "gather", "shape", "gather_nd"

# By variable path, how often each access path occurs, over all functions and bindings; read off fixtures/recipes.
# A number stands for that many full reads.
READS = {
    "mlp": dict.fromkeys([f"{d}/{v}" for d in ("dense_0", "dense_1", "out") for v in ("kernel", "bias")], 1),
    "nested": {"/".join([*["below"] * depth, "kernel"]): 1 for depth in range(5)},
    "unnamed": {"first": 1, "second": 1, "pair/0": 1, "pair/1": 1},
    # _layer reads its kernel twice; it is bound to a, b and c.
    "shared_function": {"a": 2, "b": 2, "c": 2},
    "dtypes": dict.fromkeys(("half", "brain", "single", "double", "complex_single", "complex_double"), 1),
    "shapes": {"template": {SHAPE: 4}, "kernel": {FULL: 1, SHAPE: 1}, "open": {FULL: 1, SHAPE: 1}},
    "scalars": {"scale": 1, "offset": 1, "empty": 1, "counter": 1, "label": {GATHER: 1}},
    "embedding": {"embeddings": {GATHER: 1}, "dense/kernel": 1, "dense/bias": 1},
    "tied": {"table": {FULL: 1, GATHER: 1}, "projection": 1},
    "strings": {"embeddings": {GATHER: 1}, "dense/kernel": 1, "dense/bias": 1},
    # gather_nd by ResourceGatherNd at depth 1, 2, 3, and one read_value() for two GatherNd.
    "gathers": {
        "rows": {GATHER: 2},
        "columns": 1,
        "last": 1,
        "batched": 1,
        "points": {ND: 3, FULL: 1},
        "bags": {GATHER: 1},
    },
    # The kernel: in the loop, in both branches, outside.
    "loop": {"kernel": 4, "bias": 1},
    # The kernel: in a branch in the loop, in a branch of `once`; outer: in the loop, after it, in `once`.
    "cond_in_loop": {"kernel": 2, "outer": 3},
    "scan": {"table": {GATHER: 1}, "kernel": 1},
    "case": {"left": 2, "right": 2, "both": 2},
    # Plain, map_fn, map, reduce, MapDefun.
    "datasets": {"kernel": 5},
    # `clipped` reads the bias for the sum, for its IdentityN, and once in vain.
    "custom_gradient": {"kernel": 1, "bias": {FULL: 2, SHAPE: 1}},
    # `project` reads the scale twice to divide it by its norm, and once to return it.
    "statistics": {"kernel": 3, "scale": 6, "moving_mean": 3, "average": 2, "steps": {}},
    # Each step reads what it normalises with once, and what it moves.
    "norm_steps": {**dict.fromkeys(("kernel", "gamma", "beta", "mean", "variance", "head"), 3), "low": 2, "high": 2},
    # The first kernel also in the penalty.
    "keras_lists": {
        "offset": 1,
        "save_counter": {},
        "variables/0": 1,
        "variables/1": 2,
        "variables/2": 1,
        "variables/3": 1,
    },
    "slots": {
        "dense/kernel": 1,
        "dense/bias": 1,
        **{f"optimizer/{v}": {} for v in ("_iterations", "_learning_rate", *(f"_variables/{n}" for n in range(2, 6)))},
    },
    "layer_norm_transformer": {
        "tokens": {GATHER: 1, FULL: 1},
        "positions": 1,
        **dict.fromkeys(("norm/gamma", "norm/beta"), 1),
        **{
            f"blocks/{block}/{name}": 1
            for block in range(2)
            for name in (
                *("query_key_value", "output", "kernel_in", "kernel_out"),
                *(f"norm_{part}/{v}" for part in ("attention", "feed") for v in ("gamma", "beta")),
            )
        },
    },
    # Keras's Embedding asks for the table's shape, too.
    "keras_embedding": {"variables/0": {GATHER: 1, SHAPE: 1}, "variables/1": 1, "variables/2": 1},
    # Two endpoints; the head is in one of them.
    "keras_conv": {f"variables/{n}": 2 if n < 6 else 1 for n in range(8)},
    # Keras runs the GRU's cell once before its loop.
    "keras_gru": {**dict.fromkeys([f"variables/{n}" for n in range(3)], 2), "variables/3": {}, "variables/4": 1},
    "keras_mixed": {"variables/0": {GATHER: 1, SHAPE: 1}, **{f"variables/{n}": 1 for n in range(1, 5)}},
    "digits": {f"variables/{n}": 2 for n in range(7)},
}
READS["keras_gru"]["variables/5"] = 1

WRITES = {
    "norm_steps": {
        **dict.fromkeys(("kernel", "gamma", "beta", "head", "mean"), ["AssignSubVariableOp"] * 2),
        "variance": ["AssignVariableOp"] * 2,
        "low": ["AssignSubVariableOp"],
        "high": ["AssignVariableOp"],
    },
    "statistics": {
        "scale": ["AssignVariableOp"],
        "moving_mean": ["AssignSubVariableOp"],
        "average": ["AssignVariableOp"],
        "steps": ["AssignAddVariableOp"],
    },
    "digits": {"variables/4": ["AssignVariableOp"]},
}


def trace_of(name):
    draft = open_draft(MODELS / name)
    (meta,) = draft.model.proto.meta_graphs
    return trace_meta_graph(draft, meta)


def test_every_fixture_is_listed():
    # Training steps read dozens of slots; models_expected.toml has their numbers.
    assert set(READS) == {name for name in OBJECT_MODELS if not name.startswith("train_")}


@pytest.mark.parametrize("name", READS)
def test_reads_of_the_fixtures(name):
    trace = trace_of(name)
    found = {v.path: dict(Counter(r.access.shown.value for _, r in trace.reads(v.index))) for v in trace.variables}
    wanted = {path: reads if isinstance(reads, dict) else {FULL: reads} for path, reads in READS[name].items()}
    assert found == wanted


@pytest.mark.parametrize("name", READS)
def test_writes_of_the_fixtures(name):
    trace = trace_of(name)
    found = {v.path: [w.op for _, w in trace.writes(v.index)] for v in trace.variables}
    assert {path: ops for path, ops in found.items() if ops} == WRITES.get(name, {})
    assert not any(body.unknown for body in trace.all_bodies())


def test_tracing_changes_nothing():
    for name in READS:
        draft = open_draft(MODELS / name)
        before = draft.model.proto.SerializeToString(deterministic=True)
        for meta in draft.model.proto.meta_graphs:
            trace_meta_graph(draft, meta)
        assert draft.model.proto.SerializeToString(deterministic=True) == before


def test_a_shared_function_is_traced_once_per_binding():
    trace = trace_of("shared_function")
    (layer,) = {key.function for key in trace.bodies if key.function.startswith("__inference__layer")}
    bindings = sorted(key.binding for key in trace.bodies if key.function == layer)
    assert bindings == [((1, 0),), ((1, 1),), ((1, 2),)]
    two = sorted(key.binding for key in trace.bodies if "two_layers" in key.function)
    assert two == [((1, 0), (2, 1)), ((1, 1), (2, 2))]
