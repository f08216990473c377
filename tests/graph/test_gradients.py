"""Where the gradient of a variable goes into a norm, in graphs made by hand and in TF1's main graphs."""

import pytest

from graphfreeze.graph.attrs import shape_attr
from graphfreeze.graph.scope import Use
from tests.graph.protos import FLOAT, INT32, RESOURCE, Model, calls, dtype, dtypes, function, node, shapes
from tests.graph.test_tf1 import trace as tf1_trace

SHAPE = (4, 4)


def op(name, kind, *inputs, shape=SHAPE, **attrs):
    return node(name, kind, *inputs, T=dtype(FLOAT), _output_shapes=shapes(shape), **attrs)


def variable(name, shape=SHAPE):
    return node(name, "VariableV2", dtype=dtype(FLOAT), shape=shape_attr(shape), _output_shapes=shapes(shape))


def clipped(gradient, *inputs, n=""):
    """``factor`` from the norm of all inputs."""
    norms = [op(f"norm{n}_{i}", "L2Loss", x, shape=()) for i, x in enumerate(inputs)]
    return [
        *norms,
        op(f"stack{n}", "Pack", *(m.name for m in norms), shape=(len(norms),)),
        op(f"total{n}", "Sum", f"stack{n}", "axis", shape=()),
        op(f"factor{n}", "Rsqrt", f"total{n}", shape=()),
        op(f"clipped{n}", "Mul", gradient, f"factor{n}"),
    ]


def sources(body):
    return {(s.variable, s.tensor): set(s.uses) for s in body.sources}


def test_in_the_main_graph_of_a_tf1_model():
    nodes = [
        *(variable(v) for v in ("w", "w/Momentum")),
        op("w/read", "Identity", "w"),
        op("gradient", "MatMul", "x", "w/read"),
        *clipped("gradient", "gradient"),
        op("train", "ApplyMomentum", "w", "w/Momentum", "rate", "clipped", "momentum"),
    ]
    traced = tf1_trace(*nodes)
    assert sources(traced.main) == {(0, "gradient"): {Use("norm_0", 0), Use("clipped", 0)}}
    assert list(traced.gradients(0)) == ["masked at 'gradient'"]


def test_sparse_in_the_main_graph_of_a_tf1_model():
    nodes = [
        variable("w"),
        op("rows", "Reshape", "x", "size", shape=(-1, 4)),
        op("summed", "UnsortedSegmentSum", "rows", "unique:1", "count", shape=(-1, 4), Tindices=dtype(INT32)),
        node("unique", "Unique", "ids", T=dtype(INT32), out_idx=dtype(INT32), _output_shapes=shapes((-1,), (-1,))),
        *clipped("summed", "rows"),
        op("scaled", "Mul", "summed", "factor", shape=(-1, 4)),
        op("train", "ScatterSub", "w", "unique", "scaled", Tindices=dtype(INT32)),
    ]
    traced = tf1_trace(*nodes)
    assert sources(traced.main) == {(0, "rows"): {Use("norm_0", 0), Use("summed", 0)}}
    assert traced.main.sources[0].ids == ("ids", INT32)


def test_one_tensor_is_the_gradient_of_two_variables():
    nodes = [
        *(variable(v) for v in ("a", "b")),
        op("gradient", "MatMul", "x", "y"),
        *clipped("gradient", "gradient", "gradient"),
        op("clipped_b", "Mul", "gradient", "factor"),
        op("train_a", "AssignSub", "a", "clipped"),
        op("train_b", "AssignSub", "b", "clipped_b"),
    ]
    assert sources(tf1_trace(*nodes, trainable=("a", "b")).main) == {
        (0, "gradient"): {Use("norm_0", 0), Use("clipped", 0)},
        (1, "gradient"): {Use("norm_1", 0), Use("clipped_b", 0)},
    }


def test_a_norm_that_cannot_be_shared_out():
    nodes = [
        *(variable(v) for v in ("a", "b")),
        op("gradient", "MatMul", "x", "y"),
        *clipped("gradient", "gradient"),
        op("clipped_b", "Mul", "gradient", "factor"),
        op("train_a", "AssignSub", "a", "clipped"),
        op("train_b", "AssignSub", "b", "clipped_b"),
    ]
    traced = tf1_trace(*nodes, trainable=("a", "b"))
    assert sources(traced.main) == {}
    assert [*traced.gradients(0), *traced.gradients(1)] == ["source not found"] * 2


@pytest.mark.parametrize("scale", ["rate", "total"])
def test_without_a_norm_of_the_gradient_nothing_is_masked(scale):
    """The rate may come from a reduction of something else, such as the loss."""
    nodes = [
        variable("w"),
        op("gradient", "MatMul", "x", "y"),
        op("total", "Sum", "losses", "axis", shape=()),
        op("scaled", "Mul", "gradient", scale),
        op("train", "AssignSub", "w", "scaled"),
        node("rate", "Const", dtype=dtype(FLOAT), _output_shapes=shapes(())),
        op("losses", "Softplus", "z", shape=(-1,)),
    ]
    traced = tf1_trace(*nodes)
    assert sources(traced.main) == {}
    assert list(traced.gradients(0)) == [None]


def test_what_is_computed_from_the_variable_and_data_alone_is_no_gradient():
    nodes = [
        variable("w"),
        op("w/read", "Identity", "w"),
        node("target", "Placeholder", dtype=dtype(FLOAT), _output_shapes=shapes(SHAPE)),
        op("rest", "Sub", "w/read", "target"),
        *clipped("rest", "rest"),
        op("train", "AssignSub", "w", "clipped"),
    ]
    assert sources(tf1_trace(*nodes).main) == {}


def test_through_the_arguments_of_a_branch():
    """The check lies outside of the branch that applies the gradient: the mask is there, too."""
    scaled = node("scaled", "Mul", "g", "half:output:0", T=dtype(FLOAT), _output_shapes=shapes(SHAPE))
    half = node("half", "Const", dtype=dtype(FLOAT), _output_shapes=shapes(()))
    write = node("write", "AssignSubVariableOp", "v", "scaled:z:0", dtype=dtype(FLOAT))
    taken = {"g": FLOAT, "v": RESOURCE}
    gradient = node("gradient", "MatMul", "x", "x", T=dtype(FLOAT), _output_shapes=shapes(SHAPE))
    finite = node("finite", "IsFinite", "gradient:product:0", T=dtype(FLOAT), _output_shapes=shapes(SHAPE))
    every = node("every", "All", "finite:y:0", "axis:output:0", _output_shapes=shapes(()))
    branch = node(
        "if",
        "If",
        "every:output:0",
        "gradient:product:0",
        "v",
        Tin=dtypes(FLOAT, RESOURCE),
        Tout=dtypes(),
        then_branch=calls("apply"),
        else_branch=calls("skip"),
    )
    model = Model()
    model.library(function("apply", taken, [half, scaled, write], {}), function("skip", taken, [], {}))
    v = model.variable("v")
    model.concrete(function("f", {"x": FLOAT, "v": RESOURCE}, [gradient, finite, every, branch], {}), v)
    traced = model.trace()
    found = {body.key.function: sources(body) for body in traced.bodies.values() if body.sources}
    assert found == {"f": {(0, "gradient:product:0"): {Use("finite", 0), Use("if", 1)}}}
    assert list(traced.gradients(0)) == ["masked at 'gradient' in 'f'"]
    (source,) = next(b for b in traced.bodies.values() if b.sources).sources
    assert source.dtype == FLOAT
