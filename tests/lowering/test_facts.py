"""Facts travel as JSON; a long region is read back from the geometry that the graph holds."""

import json
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.ops import Access
from graphfreeze.lowering import facts
from graphfreeze.lowering.facts import fact, read_fact
from graphfreeze.lowering.merge import build_merge
from graphfreeze.planning import VariablePlan
from graphfreeze.planning.strategy import Request, decide
from graphfreeze.selection import Box, Copy, Strategy, box_region, mask_region, points_region, rows_region, whole_region
from tests.lowering.regions import shapes_and_masks

PATHS = [frozenset({Access.FULL}), frozenset({Access.GATHER}), frozenset({Access.FULL, Access.GATHER})]


def merge_of(region, paths=PATHS[2], strategy=Strategy.MASK, copy=Copy.SNAPSHOT, **changes):
    decision = decide(Request("w", region, copy, False), strategy)
    plan = VariablePlan(
        name="w",
        path="p/w",
        key="p/w/.ATTRIBUTES/VARIABLE_VALUE",
        dtype="float32",
        shape=region.shape,
        kind="weight",
        trainable=True,
        elements=region.size,
        bytes=4 * region.size,
        frozen=region.count,
        strategy=decision.strategy,
        copy=decision.copy,
        strict=decision.strict,
        atoms=decision.atoms,
        **changes,
    )
    return build_merge(plan, paths)


def written(merge, limit, **options):
    with patch.object(facts, "_INLINE", limit):
        return fact(merge, **options)


def read_back(merge, limit=2048):
    return read_fact(written(merge, limit), merge.geometry.get)


@settings(max_examples=80, deadline=None)
@given(shapes_and_masks(), st.sampled_from(PATHS), st.sampled_from([0, 1 << 20]), st.sampled_from(list(Copy)))
def test_a_region_comes_back_inline_or_from_the_geometry(mask, paths, limit, copy):
    region = mask_region(mask)
    if region.is_whole or region.is_empty:
        return
    merge = merge_of(region, paths, copy=copy)
    if isinstance(region, Box):
        limit = 1 << 20  # its text is never long
    found = read_back(merge, limit)
    assert [h.region for h in found.held] == [region]
    assert [h.role for h in found.held] == [None if copy is Copy.LIVE else "copy:1"]


def test_rows_without_a_row_map_are_found_again():
    mask = np.zeros((20, 3), bool)
    mask[5:11] = np.arange(18).reshape(6, 3) % 2 == 0
    mask[5, 0] = True
    merge = merge_of(mask_region(mask), frozenset({Access.GATHER}))
    assert set(merge.geometry) == {"copy1/row_bits", "copy1/starts"}
    assert (read_back(merge, 0).held[0].region.to_mask() == mask).all()


def test_the_golden_text_of_a_fact():
    merge = merge_of(rows_region((6, 2), 0, [0, 1, 5]), frozenset({Access.GATHER}), Strategy.SPLIT)
    assert json.loads(fact(merge)) == {
        "format": 1,
        "name": "w",
        "path": "p/w",
        "key": "p/w/.ATTRIBUTES/VARIABLE_VALUE",
        "dtype": "float32",
        "shape": [6, 2],
        "trainable": True,
        "strategy": "split",
        "copy": None,
        "strict": False,
        "enabled": False,
        "held": [
            {
                "region": {"kind": "box", "shape": [6, 2], "spans": [[2, 5, 1], [0, 2, 1]]},
                "role": "part:1",
                "trainable": True,
                "name": "w/graphfreeze/trainable",
            }
        ],
        "masks": {},
    }


def test_a_fact_of_every_strategy_is_read_back():
    region = box_region((6, 2), [slice(0, 3)])
    split = read_back(merge_of(region, strategy=Strategy.SPLIT))
    assert [(h.role, h.trainable, h.name) for h in split.held] == [("part:1", True, "w/graphfreeze/trainable")]
    assert (split.name, split.path, split.shape, split.dtype) == ("w", "p/w", (6, 2), "float32")
    stop = read_back(merge_of(whole_region((6, 2)), strategy=Strategy.STOP))
    assert (stop.strategy, stop.held, stop.masks) == ("stop", (), {})


def test_masks_are_named():
    rows = rows_region((40_000, 2), 0, np.flatnonzero(np.arange(40_000) % 3))
    merge = merge_of(rows)
    assert read_back(merge).masks == {
        "mask:copy1/indices": "w/graphfreeze/mask",
        "mask:copy1/map": "w/graphfreeze/mask_1",
    }


def test_a_fact_of_a_newer_version_is_refused():
    text = json.dumps(json.loads(fact(merge_of(points_region((6, 2), [0])))) | {"format": 2})
    with pytest.raises(UnsupportedModelError) as error:
        read_fact(text, {}.get)
    assert str(error.value) == (
        "The model was rewritten by a newer graphfreeze: its format is 2, this version reads up to 1. Upgrade with: "
        "pip install --upgrade graphfreeze"
    )


def test_geometry_that_is_gone_is_named():
    merge = merge_of(mask_region(np.arange(12).reshape(6, 2) % 3 == 0))
    with pytest.raises(UnsupportedModelError) as error:
        read_fact(written(merge, 0), {}.get)
    assert str(error.value) == (
        "The frozen elements of 'w' cannot be told any more: the model does not hold 'copy1'. Finalize the model "
        "before it is exported by another tool."
    )


def test_away_from_its_constants_a_region_is_written_out():
    merge = merge_of(mask_region(np.arange(12).reshape(6, 2) % 3 == 0))
    assert json.loads(written(merge, 0, beside_constants=False))["held"][0]["region"]["kind"] == "dense"
    assert json.loads(written(merge, 0))["held"][0]["region"]["geometry"] == "copy1"


def test_row_bits_without_their_rows_are_refused():
    mask = np.zeros((9, 3), bool)
    mask[[0, 1, 5], [0, 1, 2]] = True
    merge = merge_of(mask_region(mask), frozenset({Access.GATHER}))
    assert {"copy1/map", "copy1/row_bits"} <= set(merge.geometry)
    alone = {key: array for key, array in merge.geometry.items() if key != "copy1/map"}
    with pytest.raises(UnsupportedModelError, match="cannot be told any more"):
        read_fact(written(merge, 0), alone.get)
