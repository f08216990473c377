"""The plan as a value: JSON and back, and what it refuses to be read from."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfreeze.errors import UsageError
from graphfreeze.planning import Atom, MetaGraphPlan, Plan, ReadRecord, Storage, VariablePlan, WriteRecord
from graphfreeze.selection import Copy, Strategy, complement, mask_region, whole_region
from tests.lowering.regions import shapes_and_masks


@st.composite
def variables(draw):
    region = mask_region(draw(shapes_and_masks()))
    strategy = draw(st.none() | st.sampled_from(list(Strategy)))
    atoms = (
        Atom(region, draw(st.sampled_from(list(Storage))), False, draw(st.none() | st.just("w/graphfreeze/frozen"))),
        Atom(complement(region), Storage.BASE, True),
    )
    return VariablePlan(
        name=draw(st.text(max_size=5)),
        path="p",
        key=draw(st.none() | st.text(max_size=5)),
        dtype="float32",
        shape=draw(st.sampled_from([region.shape, (), None])),
        kind="weight",
        trainable=draw(st.booleans()),
        elements=region.size,
        bytes=region.size * 4,
        frozen=region.count,
        strategy=strategy,
        copy=draw(st.none() | st.sampled_from(list(Copy))),
        strict=draw(st.booleans()),
        enabled=draw(st.booleans()),
        reason="because",
        reads=(ReadRecord("f", "n", "ReadVariableOp", "full"),),
        writes=(WriteRecord("f", "n", "Assign", draw(st.none() | st.just("g")), draw(st.none() | st.just("m"))),),
        optimizer_bytes=(8, 4),
        atoms=atoms if strategy else (),
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(variables(), max_size=3))
def test_json_round_trip(several):
    meta_graph = MetaGraphPlan(("serve", "gpu"), ("serving_default",), tuple(several))
    plan = Plan("plan", "model", "digest", (meta_graph,), {"rules": []}, ("a warning",))
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_keys_are_those_that_every_command_writes():
    plain = VariablePlan("w", "p", "k", "float32", (2,), "weight", True, 2, 8)
    data = Plan("inspect", "m", "d", (MetaGraphPlan(("serve",), (), (plain,)),), {}).to_dict()
    assert list(data) == ["schema", "command", "model", "digest", "meta_graphs", "warnings", "spec"]
    (meta_graph,) = data["meta_graphs"]
    assert list(meta_graph) == [
        *("tags", "format", "signatures", "training", "freeze", "phases", "variables", "batch_norms")
    ]
    (variable,) = meta_graph["variables"]
    assert set(variable) >= {
        *("name", "path", "key", "dtype", "shape", "kind", "trainable", "elements", "bytes", "frozen", "strategy"),
        *("reason", "reads", "writes", "optimizer_bytes"),
    }
    assert variable["optimizer_bytes"] == {"before": 0, "after": 0}


def test_the_frozen_region_of_a_variable():
    region = whole_region((2,))
    held = VariablePlan(
        "w", "p", "k", "float32", (2,), "weight", True, 2, 8, atoms=(Atom(region, Storage.BASE, False),)
    )
    assert held.region == region
    assert VariablePlan("w", "p", "k", "float32", (2,), "weight", True, 2, 8).region is None


@pytest.mark.parametrize(
    ("data", "found"), [({"schema": 2}, "2"), ({}, "None"), ([], "list"), ({"schema": "1"}, "1"), (None, "NoneType")]
)
def test_what_is_no_plan(data, found):
    with pytest.raises(UsageError) as error:
        Plan.from_dict(data)
    assert str(error.value) == (
        f"This is not a plan that graphfreeze can execute: expected schema 1, found {found}. Make one with: "
        "graphfreeze plan MODEL ... --json"
    )


VARIABLE = ("w", "p", "k", "float32", (2,), "weight", True, 2, 8)


def stored_plan():
    held = VariablePlan(*VARIABLE, atoms=(Atom(whole_region((2,)), Storage.BASE, False),))
    return Plan("plan", "m", "d", (MetaGraphPlan(("serve",), (), (held,)),), {}).to_dict()


def variable_of(data):
    return data["meta_graphs"][0]["variables"][0]


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (lambda d: d.pop("digest"), "'digest' is missing"),
        (lambda d: variable_of(d).pop("atoms"), "'atoms' is missing"),
        (lambda d: variable_of(d).update(strategy="x"), "'x' is not a valid Strategy"),
        (lambda d: d.update(meta_graphs=3), "'int' object is not iterable"),
        (lambda d: d.update(meta_graphs=["x"]), "string indices must be integers, not 'str'"),
        (lambda d: variable_of(d)["atoms"][0].update(region={"kind": "box"}), "A stored region is damaged: "),
    ],
)
def test_a_damaged_plan(break_it, problem):
    data = stored_plan()
    break_it(data)
    with pytest.raises(UsageError) as error:
        Plan.from_dict(data)
    assert str(error.value).startswith(f"The plan is damaged: {problem}")
    assert str(error.value).endswith(". Make it anew with: graphfreeze plan MODEL ... --json")
    assert ".." not in str(error.value).replace("...", "")
