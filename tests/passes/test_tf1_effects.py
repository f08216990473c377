"""What still runs in the place of a write that does not: ops with effects that only its gradient led to."""

from graphfreeze.graph.scope import Scope
from graphfreeze.passes.tf1_effects import Effects
from graphfreeze.savedmodel import protos
from tests.graph.protos import node


def behind(*nodes, stateful=()):
    meta = protos.MetaGraphDef()
    meta.graph_def.node.extend(nodes)
    for name in stateful:
        meta.meta_info_def.stripped_op_list.op.add(name=name, is_stateful=True)
    return set(Effects(meta, Scope(meta.graph_def)).behind(["gradient"]))


def test_the_nearest_effects_are_found_through_control_edges():
    found = behind(
        node("gradient", "Mul", "loss", "^update"),
        node("loss", "Sum", "x", "^check"),
        node("check", "Assert", "x"),
        node("update", "AssignSub", "mean", "delta"),
        node("delta", "Mul", "x", "^before"),
        node("before", "AssignAdd", "count", "one"),
        stateful=["Assert"],
    )
    assert found == {"^update", "^check"}  # and 'before' through 'update'


def test_reading_and_drawing_random_numbers_are_no_effects():
    found = behind(
        node("gradient", "Mul", "read", "noise"),
        node("read", "ReadVariableOp", "w"),
        node("w", "VarHandleOp"),
        node("noise", "RandomUniform", "shape"),
        stateful=["ReadVariableOp", "VarHandleOp", "RandomUniform"],
    )
    assert found == set()


def test_effects_in_loops_and_branches_are_waited_for_at_the_way_out():
    """A node outside cannot wait for one inside, and what waits for a branch that is not taken never runs."""
    inside = node("inside", "AssignAdd", "count", "one")
    found = behind(
        node("gradient", "AddN", "exit", "merge", "quiet"),
        node("exit", "Exit", "switch"),
        node("switch", "Switch", "step", "more"),
        node("step", "Identity", "x", "^inside"),
        inside,
        node("merge", "Merge", "left", "right"),
        node("left", "Identity", "x", "^inside"),
        node("quiet", "Merge", "right", "x"),
    )
    assert found == {"^exit", "^merge"}
