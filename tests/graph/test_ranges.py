"""The integers that functions take, as the fixtures' tables and branches bound them."""

import pytest

from graphfreeze.graph.entries import entries, uses_by_variable, written_variables
from graphfreeze.graph.ranges import integer_bounds
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.savedmodel import open_draft
from tests.conftest import MODELS


def traced(name):
    draft = open_draft(MODELS / name)
    meta = draft.model.proto.meta_graphs[0]
    return meta, trace_meta_graph(draft, meta)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("embedding", {"__call__[0]": (12,), "signature serving_default": (12,)}),
        ("tied", {"__call__[0]": (12,)}),
        ("scan", {"__call__[0]": (10,)}),
        ("keras_embedding", {"serve[0]": (12,)}),
        ("gathers", {"__call__[0]": (6,), "nd[0]": (6,), "sparse[0]": (None, 6)}),
        ("case", {"__call__[0]": (None, 3), "signature serving_default": (3, None)}),
        ("mlp", {"__call__[0]": (None,)}),
    ],
)
def test_bounds(name, expected):
    meta, trace = traced(name)
    bounds = integer_bounds(meta, trace)
    found = {e.label: bounds[e.function] for e in entries(meta)}
    assert {label: found[label] for label in expected} == expected


def test_entries_leave_out_what_a_resource_does_by_itself():
    meta, _ = traced("strings")
    assert [e.label for e in entries(meta)] == ["__call__[0]", "signature serving_default"]
    assert [e.is_signature for e in entries(meta)] == [False, True]
    assert entries(meta, {"signatures"}) == entries(meta)[:1]


def test_uses_and_writes_of_a_function():
    meta, trace = traced("statistics")
    by_label = {e.label: e.function for e in entries(meta)}
    names = {v.index: v.name for v in trace.variables}
    written = {names[v] for v in written_variables(trace, by_label["train[0]"])}
    assert written >= {"moving_mean", "steps"}
    assert not written_variables(trace, by_label["averaged[0]"])
    meta, trace = traced("loop")
    (function,) = {e.function for e in entries(meta) if e.label == "__call__[0]"}
    uses = uses_by_variable(trace, function)
    kernel = next(v.index for v in trace.variables if v.name == "kernel")
    assert uses[kernel] > 1
