"""Every merge, tried on random regions: the effective value, and which elements a gradient reaches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfreeze.errors import UsageError
from graphfreeze.graph.access import read_access
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.ops import READS, Access
from graphfreeze.lowering.emitter import Emitter
from graphfreeze.lowering.full import merge_full
from graphfreeze.lowering.lookup import merge_lookup
from graphfreeze.lowering.merge import MergeContext
from graphfreeze.savedmodel import DTYPE_NUMBERS
from graphfreeze.selection import Copy, Strategy, mask_region
from tests.graph.protos import RESOURCE, dtype, int_const, node, scope, shapes
from tests.lowering.evaluate import Evaluation
from tests.lowering.regions import shapes_and_masks
from tests.lowering.test_facts import merge_of

WAYS = [
    (Strategy.AUTO, Copy.SNAPSHOT),
    (Strategy.SPLIT, Copy.SNAPSHOT),
    (Strategy.MASK, Copy.SNAPSHOT),
    (Strategy.MASK, Copy.LIVE),
]
INT32, INT64, FLOAT, HALF = (DTYPE_NUMBERS[n] for n in ("int32", "int64", "float32", "float16"))
FAR = 10_000
"""Labels of a storage begin here; those of the base are below."""


class Case:
    """A merge with a scope to emit into, and what its variables hold: values, or labels that tell elements apart."""

    def __init__(self, mask, way, paths, large=False):
        self.region = mask_region(mask)
        self.merge = merge_of(self.region, paths, *way)
        self.shape = self.region.shape
        self.roles = list(self.merge.roles)
        if large:  # as if the geometry were above the limit of a Const
            self.roles = [r for r in self.roles if not r.startswith("mask:")] + [
                f"mask:{k}" for k in self.merge.geometry
            ]
        self.handles = {"base": "v", **{role: f"s{i}" for i, role in enumerate(self.roles)}}

    def scope(self, *nodes):
        return scope(*nodes, arguments=dict.fromkeys([*self.handles.values(), "ids"], RESOURCE))

    def context(self, made, anchor="read"):
        names = FreshNames([n.name for n in made.node_list])
        return MergeContext(self.merge, Emitter(made, names, anchor), self.handles)

    def variables(self, labels):
        size = int(np.prod(self.shape))
        base = np.arange(size, dtype=np.float64 if labels else np.float32).reshape(self.shape)
        found = {"v": base}
        for role, handle in self.handles.items():
            overlay = next((o for o in self.merge.overlays if o.role == role), None)
            if overlay is not None:
                found[handle] = overlay.region.take(base + FAR)
            elif role.startswith("mask:"):
                found[handle] = self.merge.geometry[role.removeprefix("mask:")]
        return found

    def wanted(self):
        """(effective labels, what a gradient reaches) of the whole variable."""
        base = np.arange(int(np.prod(self.shape)), dtype=np.float64).reshape(self.shape)
        value = base
        for overlay in self.merge.overlays:
            if overlay.role is not None:
                value = overlay.region.put(value, overlay.region.take(base + FAR))
        return value, ~self.region.to_mask()

    def check(self, made, edge, pick, **inputs):
        plain = Evaluation(made, self.variables(False) | inputs)
        label = Evaluation(made, self.variables(True) | inputs, labels=True)
        value, reached = (pick(x) for x in self.wanted())
        assert np.array_equal(plain.value(edge), value.astype(plain.value(edge).dtype))
        found = label.value(edge)
        assert np.array_equal(np.floor(found), value)
        assert np.array_equal(found == np.floor(found), reached)
        return label


def case_of(mask, way, paths, **options):
    region = mask_region(mask)
    if region.is_empty:
        return None
    try:
        return Case(mask, way, paths, **options)
    except UsageError:  # this strategy cannot hold the region
        return None


@settings(max_examples=100, deadline=None)
@given(shapes_and_masks(), st.sampled_from(WAYS), st.booleans())
def test_full_reads(mask, way, large):
    case = case_of(mask, way, frozenset({Access.FULL}), large=large)
    if case is None:
        return
    made = case.scope(node("read", "ReadVariableOp", "v", dtype=dtype(FLOAT)))
    merged = merge_full(case.context(made), "read:value:0")
    case.check(made, merged, lambda x: x)


def lookup_of(case, form, ids):
    """A lookup in one of its forms, with its merge emitted: (scope, edge)."""
    axis = int_const("axis", 0)
    gather = {"Tindices": dtype(INT32), "Tparams": dtype(FLOAT)}
    read = node("read", "ReadVariableOp", "v", dtype=dtype(FLOAT))
    nodes = {
        "ResourceGather": [node("read", "ResourceGather", "v", "ids", Tindices=dtype(INT32), dtype=dtype(FLOAT))],
        "ResourceGatherNd": [
            node("one", "ExpandDims", "ids", "last:output:0", T=dtype(INT32), _output_shapes=shapes((*ids.shape, 1))),
            int_const("last", -1),
            node("read", "ResourceGatherNd", "v", "one:output:0", Tindices=dtype(INT32), dtype=dtype(FLOAT)),
        ],
        "GatherV2": [read, axis, node("g", "GatherV2", "read:value:0", "ids", "axis:output:0", **gather)],
        "behind Cast": [
            read,
            axis,
            node("cast", "Cast", "read:value:0", SrcT=dtype(FLOAT), DstT=dtype(HALF)),
            node("g", "GatherV2", "cast:y:0", "ids", "axis:output:0", Tindices=dtype(INT32), Tparams=dtype(HALF)),
        ],
    }[form]
    made = case.scope(*nodes)
    reading = made.nodes["read"]
    (lookup,) = read_access(made, reading, READS[reading.op]).lookups
    edge = merge_lookup(case.context(made, lookup.node), made, lookup)
    return made, edge


@settings(max_examples=150, deadline=None)
@given(
    shapes_and_masks(),
    st.sampled_from(WAYS),
    st.sampled_from([frozenset({Access.GATHER}), frozenset({Access.GATHER, Access.FULL})]),
    st.sampled_from(["ResourceGather", "GatherV2", "behind Cast"]),
    st.sampled_from([(0,), (1,), (5,), (2, 3), ()]),
    st.integers(0, 2**16),
    st.booleans(),
)
def test_lookups(mask, way, paths, form, ids_shape, seed, large):
    case = case_of(mask, way, paths, large=large)
    if case is None:
        return
    ids = np.random.default_rng(seed).integers(0, case.shape[0], ids_shape, np.int32)
    made, edge = lookup_of(case, form, ids)
    done = case.check(made, edge, lambda x: x[ids], ids=ids)
    check_no_frozen_rows(case, done)


def check_no_frozen_rows(case, done):
    """A row without a trainable element is in no gather that a gradient flows through."""
    reached = (~case.region.to_mask()).reshape(case.shape[0], -1).any(axis=1)
    trainable = {case.handles[o.role]: o for o in case.merge.overlays if o.trainable}
    for source, ids in done.looked_up:
        if source in trainable:
            part = trainable[source].region
            rows = np.flatnonzero(part.to_mask().reshape(case.shape[0], -1).any(axis=1))
            assert reached[rows[ids]].all()
    if case.merge.base_trains and case.merge.live is not None:
        again = [ids for source, ids in done.looked_up if source in ("v", "read:value:0", "cast:y:0")]
        assert len(again) == 2
        assert reached[again[1]].all()


@pytest.mark.parametrize("way", [way for way in WAYS if way[0] is not Strategy.SPLIT])
def test_gather_nd_by_one_id(way):
    case = case_of(np.arange(30).reshape(6, 5) < 12, way, frozenset({Access.GATHER}))
    ids = np.array([[0, 5], [2, 1]], np.int32)
    made, _ = lookup_of(case, "ResourceGatherNd", ids)
    added = [n.op for n in made.node_list if n.name.startswith("read/graphfreeze")]
    assert "ResourceGather" in added
    assert "ResourceGatherNd" not in added


@pytest.mark.parametrize("way", [*WAYS, (Strategy.STOP, Copy.SNAPSHOT)])
def test_whole_variables(way):
    whole, ids = np.ones((4, 3), bool), np.array([1, 3], np.int32)
    full = case_of(whole, way, frozenset({Access.FULL}))
    made = full.scope(node("read", "ReadVariableOp", "v", dtype=dtype(FLOAT)))
    full.check(made, merge_full(full.context(made), "read:value:0"), lambda x: x)
    looked_up = case_of(whole, way, frozenset({Access.GATHER}))
    made, edge = lookup_of(looked_up, "GatherV2", ids)
    looked_up.check(made, edge, lambda x: x[ids], ids=ids)
