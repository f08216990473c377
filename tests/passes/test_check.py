"""The invariants that are checked after every pass, and what is said when one is broken."""

import pytest

from graphfreeze import passes
from graphfreeze.errors import InternalError
from graphfreeze.graph.attrs import type_attr
from graphfreeze.passes.check import RULES, broken_rules
from graphfreeze.savedmodel import open_draft
from tests.conftest import MODELS
from tests.graph.protos import FLOAT, RESOURCE, Model, calls, dtypes, function, node, reader
from tests.passes.rewriting import rewritten


@pytest.mark.parametrize("name", sorted(path.name for path in MODELS.iterdir()))
def test_no_rule_is_broken_in_any_fixture(name):
    for meta in open_draft(MODELS / name).model.proto.meta_graphs:
        assert list(broken_rules(meta)) == []


def model():
    made = Model()
    variable = made.variable("a")
    made.library(reader("inner"))
    outer = function(
        "outer",
        {"v": RESOURCE},
        [node("call", "PartitionedCall", "v", f=calls("inner"), Tin=dtypes(RESOURCE))],
        {"y": (FLOAT, "call:output:0")},
    )
    made.concrete(outer, variable)
    made.main(node("main_call", "PartitionedCall", "a", f=calls("outer"), Tin=dtypes(RESOURCE)))
    return made.meta


def function_of(meta, name):
    return next(f for f in meta.graph_def.library.function if f.signature.name == name)


def rename_call(meta, name):
    function_of(meta, "outer").node_def[0].attr["f"].func.name = name


BREAKS = {
    "an input of a function": (
        lambda m: function_of(m, "inner").node_def[0].input.append("gone:output:0"),
        ("every input exists", "function 'inner', node 'read', input 'gone:output:0'"),
    ),
    "a control input": (
        lambda m: function_of(m, "inner").node_def[0].input.append("^v"),
        ("every input exists", "function 'inner', node 'read', input '^v'"),
    ),
    "an input of the main graph": (
        lambda m: m.graph_def.node[1].input.append("gone"),
        ("every input exists", "the main graph, node 'main_call', input 'gone'"),
    ),
    "a result": (
        lambda m: function_of(m, "inner").ret.update({"y": "gone:value:0"}),
        ("every input exists", "function 'inner', result 'y', input 'gone:value:0'"),
    ),
    "two nodes of one name": (
        lambda m: function_of(m, "inner").node_def.add(name="read", op="NoOp"),
        ("names are unique", "function 'inner'"),
    ),
    "two functions of one name": (
        lambda m: m.graph_def.library.function.add().CopyFrom(function_of(m, "inner")),
        ("names are unique", "the function library"),
    ),
    "a call of nothing": (
        lambda m: rename_call(m, "gone"),
        ("calls fit", "function 'outer', node 'call' calls 'gone', which does not exist"),
    ),
    "a call with too many arguments": (
        lambda m: function_of(m, "outer").node_def[0].attr["Tin"].list.type.append(FLOAT),
        ("calls fit", f"function 'outer', node 'call' hands {[RESOURCE, FLOAT]} to 'inner', which takes {[RESOURCE]}"),
    ),
    "a call with arguments of another type": (
        lambda m: function_of(m, "inner").signature.input_arg[0].__setattr__("type", FLOAT),
        ("calls fit", f"function 'outer', node 'call' hands {[RESOURCE]} to 'inner', which takes {[FLOAT]}"),
    ),
    "a concrete function of nothing": (
        lambda m: m.object_graph_def.concrete_functions["gone"].bound_inputs.append(0),
        ("concrete functions fit", "concrete function 'gone' is not in the library"),
    ),
    "a concrete function with too many captures": (
        lambda m: m.object_graph_def.concrete_functions["outer"].bound_inputs.append(0),
        ("concrete functions fit", "concrete function 'outer' has more bound inputs than arguments"),
    ),
    "a capture of nothing": (
        lambda m: m.object_graph_def.concrete_functions["outer"].bound_inputs.__setitem__(0, 7),
        ("concrete functions fit", "concrete function 'outer' is bound to a node that does not exist"),
    ),
    "an object of no function": (
        lambda m: m.object_graph_def.nodes.add().function.concrete_functions.append("gone"),
        ("concrete functions fit", "object 2 names concrete function 'gone', which does not exist"),
    ),
    "a bare object of no function": (
        lambda m: m.object_graph_def.nodes.add().bare_concrete_function.__setattr__("concrete_function_name", "gone"),
        ("concrete functions fit", "object 2 names concrete function 'gone', which does not exist"),
    ),
}


def test_the_model_by_hand_is_whole():
    assert list(broken_rules(model())) == []


@pytest.mark.parametrize("what", BREAKS)
def test_what_each_rule_finds(what):
    break_it, wanted = BREAKS[what]
    meta = model()
    break_it(meta)
    assert wanted in list(broken_rules(meta))


def test_every_rule_has_a_case():
    assert {rule for _, (rule, _) in BREAKS.values()} == set(RULES)


def test_a_pass_that_breaks_a_rule_is_named(monkeypatch):
    def spoil(work):
        work.meta.graph_def.library.function[0].node_def.add(name="bad", op="Neg", input=["gone:y:0"])

    pipeline = (*passes.PIPELINE[:2], passes.Row("spoil", spoil, None), *passes.PIPELINE[2:])
    monkeypatch.setattr(passes, "PIPELINE", pipeline)
    with pytest.raises(InternalError) as error:
        rewritten("embedding", "dense/bias")
    spoilt = rewritten_name()
    assert str(error.value) == (
        f"Pass 'spoil' broke the rule 'every input exists': function '{spoilt}', node 'bad', input 'gone:y:0'. Passes "
        "run before: variables, functions. This is a bug in graphfreeze; please report it with the output of "
        "graphfreeze plan --json"
    )


def rewritten_name():
    return open_draft(MODELS / "embedding").model.proto.meta_graphs[0].graph_def.library.function[0].signature.name


def test_what_the_source_breaks_itself_is_no_fault_of_a_pass():
    def change(draft):
        functions = draft.model.proto.meta_graphs[0].graph_def.library.function
        saver = next(f for f in functions if "traced_save" in f.signature.name)
        saver.node_def.add(name="odd", op="Neg", input=["gone:y:0"]).attr["T"].CopyFrom(type_attr(FLOAT))

    assert rewritten("embedding", "dense/bias", change=change).new.graph_def.library.function
