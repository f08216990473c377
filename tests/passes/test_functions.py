"""How calls, loops, branches and data functions are changed: cases by hand that no fixture holds."""

import pytest

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.ops import Access
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.lowering.merge import build_merge
from graphfreeze.passes.functions import rewrite_functions
from graphfreeze.passes.state import Work
from graphfreeze.passes.variables import add_variables
from graphfreeze.planning import Options
from graphfreeze.planning.decide import Source, plan_meta_graph
from graphfreeze.selection import make_spec
from tests.graph.protos import (
    BOOL,
    FLOAT,
    INT32,
    RESOURCE,
    VARIANT,
    Model,
    calls,
    dtype,
    dtypes,
    function,
    node,
    reader,
    shapes,
)
from tests.passes.invariants import Rewritten, _arguments, _calls, _own_rules
from tests.passes.rewriting import rewritten


def freeze(model, *freeze, **options):
    """Runs the passes ``variables`` and ``functions`` on a model by hand; returns its functions by their old names."""
    draft = model.draft()
    model.meta = draft.model.proto.meta_graphs[0]
    model.graph = model.meta.object_graph_def
    trace = trace_meta_graph(draft, model.meta)
    stored = frozenset(v.name for v in trace.variables)
    source = Source(("serve",), (), trace, stored, lambda key: None, {})
    plan, _ = plan_meta_graph(source, make_spec(freeze).rules, Options(allow_empty=True, **options))
    merges = {}
    for index, planned in enumerate(plan.variables):
        if planned.strategy:
            paths = frozenset(r.access.path for _, r in trace.reads(index)) or frozenset({Access.FULL})
            merges[index] = build_merge(planned, paths)
    work = Work(draft, model.meta, trace, plan, merges, "digest")
    add_variables(work)
    rewrite_functions(work)
    done = Rewritten(draft, draft, plan)
    assert [*_own_rules(done), *_calls(done), *_arguments(done)] == []
    # A changed function stands behind the one that it came from.
    return {f.signature.name.split("_graphfreeze_")[0]: f for f in model.meta.graph_def.library.function}


def loop_model(*, shape=(4, 4), body_nodes=(), root_nodes=()):
    """A loop whose body reads its variable."""
    model = Model()
    variable = model.variable("a", shape=shape or (4, 4))
    if shape is None:
        model.graph.nodes[variable].variable.shape.Clear()
        model.graph.nodes[variable].variable.shape.unknown_rank = True
    cond = function("cond", {"i": INT32, "v": RESOURCE}, [node("go", "Less", "i", "i")], {"go": (BOOL, "go:z:0")})
    body = function(
        "body",
        {"i": INT32, "v": RESOURCE},
        [
            node("read", "ReadVariableOp", "v", dtype=dtype(FLOAT)),
            node("use", "Neg", "read:value:0", T=dtype(FLOAT)),
            *body_nodes,
        ],
        {"i_out": (INT32, "i"), "v_out": (RESOURCE, "v")},
    )
    loop = node(
        "loop",
        "While",
        *("i", "v"),
        cond=calls("cond"),
        body=calls("body"),
        T=dtypes(INT32, RESOURCE),
        output_shapes=shapes((), ()),
        _num_original_outputs=2,
        _read_only_resource_inputs=ints(1),
    )
    root = function("root", {"i": INT32, "v": RESOURCE}, [loop, *root_nodes], {"y": (INT32, "loop:output:0")})
    model.library(cond, body)
    model.concrete(root, variable)
    return model


def ints(*values):
    made = node("n", "n").attr["x"]
    made.list.i.extend(values)
    return made


def test_a_value_takes_the_place_of_the_handle_in_a_loop():
    found = freeze(loop_model(), "a")
    (loop,) = (n for n in found["root"].node_def if n.op == "While")
    assert list(loop.attr["T"].list.type) == [INT32, FLOAT]
    assert list(loop.input) == ["i", "loop/graphfreeze/StopGradient:output:0"]
    assert list(loop.attr["_read_only_resource_inputs"].list.i) == []
    assert [d.size for d in loop.attr["output_shapes"].list.shape[1].dim] == [4, 4]
    body = found["body"]
    assert body.node_def[0].op == "Identity"
    assert body.node_def[0].input == ["v"]
    assert body.node_def[1].input == ["read:output:0"]
    assert body.signature.output_arg[1].type == FLOAT


def test_a_value_of_unknown_shape_says_so():
    found = freeze(loop_model(shape=None), "a")
    (loop,) = (n for n in found["root"].node_def if n.op == "While")
    assert loop.attr["output_shapes"].list.shape[1].unknown_rank
    assert found["body"].arg_attr[1].attr["_output_shapes"].list.shape[0].unknown_rank


def test_a_lookup_beside_a_full_read_in_a_loop_keeps_the_handle():
    lookup = node("g", "ResourceGather", "v", "i", dtype=dtype(FLOAT), Tindices=dtype(INT32))
    found = freeze(loop_model(body_nodes=[lookup]), "a")
    (loop,) = (n for n in found["root"].node_def if n.op == "While")
    assert list(loop.attr["T"].list.type) == [INT32, RESOURCE, FLOAT]
    assert loop.attr["_num_original_outputs"].i == 3
    assert len(loop.attr["output_shapes"].list.shape) == 3
    assert list(loop.attr["_read_only_resource_inputs"].list.i) == [1]
    body = found["body"]
    assert [a.name for a in body.signature.input_arg] == ["i", "v", "graphfreeze_value_1"]
    assert body.ret["graphfreeze_value_1_out"] == "graphfreeze_value_1"
    assert body.node_def[0].input == ["graphfreeze_value_1"]
    assert [n.op for n in body.node_def].count("StopGradient") == 1


def test_a_handle_that_is_used_after_the_loop_stays_one():
    after = node("after", "ReadVariableOp", "loop:output:1", dtype=dtype(FLOAT))
    use = node("use", "Neg", "after:value:0", T=dtype(FLOAT))
    found = freeze(loop_model(root_nodes=[after, use]), "a")
    (loop,) = (n for n in found["root"].node_def if n.op == "While")
    assert list(loop.attr["T"].list.type) == [INT32, RESOURCE, FLOAT]


def test_branches_share_one_signature():
    model = Model()
    variable = model.variable("a")
    plain = function("plain", {"v": RESOURCE}, [node("c", "Const", dtype=dtype(FLOAT))], {"y": (FLOAT, "c:output:0")})
    branch = node(
        "if",
        "If",
        *("p", "v"),
        then_branch=calls("inner"),
        else_branch=calls("plain"),
        Tin=dtypes(RESOURCE),
        Tout=dtypes(FLOAT),
        _read_only_resource_inputs=ints(1),
    )
    root = function("root", {"p": BOOL, "v": RESOURCE}, [branch], {"y": (FLOAT, "if:output:0")})
    model.library(reader("inner"), plain)
    model.concrete(root, variable)
    found = freeze(model, "a")
    (changed,) = (n for n in found["root"].node_def if n.op == "If")
    assert changed.attr["then_branch"].func.name != "inner"
    # Nothing is handed over for a stopped variable, so the other branch stays what it was.
    assert changed.attr["else_branch"].func.name == "plain"
    assert list(changed.input) == ["p", "v"]


def test_a_data_function_that_needs_the_handle_too_is_refused():
    model = Model()
    variable = model.variable("a")
    mapped = function(
        "mapped",
        {"row": FLOAT, "v": RESOURCE},
        [
            node("read", "ReadVariableOp", "v", dtype=dtype(FLOAT)),
            node("use", "Neg", "read:value:0", T=dtype(FLOAT)),
            node("ready", "VarIsInitializedOp", "v"),
        ],
        {"y": (FLOAT, "use:y:0")},
    )
    root = function(
        "root",
        {"data": VARIANT, "v": RESOURCE},
        [node("map", "MapDataset", *("data", "v"), f=calls("mapped"), Targuments=dtypes(RESOURCE))],
        {"y": (VARIANT, "map:handle:0")},
    )
    model.library(mapped)
    model.concrete(root, variable)
    with pytest.raises(UnsupportedModelError) as error:
        freeze(model, "a")
    assert str(error.value) == (
        "Node 'map' (MapDataset) in function 'root' hands a variable to a data function that both reads it and uses "
        "its handle, so it cannot be passed by value. Freeze another variable, or read this one outside the data "
        "function."
    )


def test_captured_tensors_follow_the_merge_of_the_function_that_is_bound():
    model = loop_model()
    captured = model.graph.nodes.add().captured_tensor
    captured.name, captured.concrete_function = "read:0", "inner"
    inner = function(
        "inner",
        {"v": RESOURCE},
        [node("read", "ReadVariableOp", "v", dtype=dtype(FLOAT)), node("use", "Neg", "read:value:0", T=dtype(FLOAT))],
        {"y": (FLOAT, "use:y:0")},
    )
    model.concrete(inner, 1)
    freeze(model, "a")
    (tensor,) = (n.captured_tensor for n in model.graph.nodes if n.HasField("captured_tensor"))
    assert tensor.name == "read/graphfreeze/StopGradient:0"
    assert tensor.concrete_function.startswith("inner_graphfreeze_")


def test_gradient_functions_of_a_custom_gradient_follow():
    done = rewritten("custom_gradient", "kernel[:2]", "bias")
    library = {f.signature.name for f in done.new.graph_def.library.function}
    for gradient in done.new.graph_def.library.registered_gradients:
        assert gradient.gradient_func in library
    nodes = {f.signature.name: {n.name for n in f.node_def} for f in done.new.graph_def.library.function}
    for graph_node in done.new.object_graph_def.nodes:
        if graph_node.WhichOneof("kind") == "captured_tensor":
            tensor = graph_node.captured_tensor
            assert tensor.concrete_function in library
            arguments = next(
                f.signature.input_arg
                for f in done.new.graph_def.library.function
                if f.signature.name == tensor.concrete_function
            )
            name = tensor.name.split(":")[0]
            assert name in nodes[tensor.concrete_function] | {a.name for a in arguments}
