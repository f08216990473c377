"""Stored regions: what damage is noticed, and how small they are."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfreeze.errors import InputOutputError
from graphfreeze.selection.canonical import box_region, mask_region, points_region, rows_region, whole_region
from graphfreeze.selection.encoding import describe, region_from_dict, region_to_dict
from graphfreeze.selection.files import FileCache
from graphfreeze.selection.index import Site, index_region
from graphfreeze.selection.spec import Verb, make_rule
from graphfreeze.selection.variables import VariableView

FAST = settings(max_examples=60, deadline=None)


def test_forms():
    assert region_to_dict(whole_region((2, 3))) == {"kind": "whole", "shape": [2, 3]}
    assert region_to_dict(whole_region((0,))) == {"kind": "empty", "shape": [0]}
    assert region_to_dict(box_region((8,), [slice(0, 8, 3)])) == {"kind": "box", "shape": [8], "spans": [[0, 7, 3]]}
    rows = region_to_dict(rows_region((8, 2), 0, [0, 1, 3]))
    assert rows == {"kind": "rows", "shape": [8, 2], "axis": 0, "indices": [0, 1, 3]}
    assert region_to_dict(points_region((80, 2), [0, 3])) == {"kind": "points", "shape": [80, 2], "indices": [0, 3]}
    assert region_to_dict(mask_region(np.eye(3, dtype=np.bool_))) == {"kind": "dense", "shape": [3, 3], "mask": "EQE="}


def test_long_lists_are_packed():
    listed = [*range(100), 200]
    data = region_to_dict(rows_region((300,), 0, listed))
    assert data["indices"]["dtype"] == "<i4"
    assert len(data["indices"]["base64"]) == 540
    far = region_to_dict(rows_region((2**33,), 0, [*listed, 2**32]))
    assert far["indices"]["dtype"] == "<i8"
    assert region_from_dict(far).indices[-1] == 2**32


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "expected the kind of a region, its shape and its elements"),
        ({"kind": "ball", "shape": [3]}, "expected the kind of a region, its shape and its elements"),
        ({"kind": "whole", "shape": [3, -1]}, "[3, -1] is no shape"),
        ({"kind": "whole", "shape": ["3"]}, "['3'] is no shape"),
        ({"kind": "box", "shape": [3], "spans": [[0, 1]]}, "[0, 1] is no span"),
        ({"kind": "box", "shape": [3], "spans": [[0, 9, 1]]}, "box (Span(start=0, stop=9, step=1),) leaves shape (3,)"),
        (
            {"kind": "rows", "shape": [3], "axis": 0, "indices": [5]},
            "indices must be a sorted, unique, not empty list below 3",
        ),
        ({"kind": "points", "shape": [3], "indices": "AA"}, "a list of indices is neither plain nor packed"),
        (
            {"kind": "points", "shape": [3], "indices": {"dtype": "<i4", "base64": "AAA"}},
            "Incorrect padding",
        ),
        ({"kind": "dense", "shape": [9], "mask": "AA=="}, "1 bytes for a mask of shape (9,)"),
    ],
)
def test_damage(data, problem):
    with pytest.raises(InputOutputError) as caught:
        region_from_dict(data)
    assert str(caught.value) == f"A stored region is damaged: {problem}."


@FAST
@given(st.data())
def test_the_text_of_a_box_is_an_index_that_selects_it(data):
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    bounds = [data.draw(st.tuples(st.integers(0, n - 1), st.integers(1, n), st.integers(1, 4))) for n in shape]
    region = box_region(shape, [slice(*each) for each in bounds])
    if region.is_whole or region.is_empty:
        return
    variable = VariableView("x", "x", "x", "x", shape, "float32", "weight", True)
    rule = make_rule(Verb.FREEZE, f"x{describe(region)}", Path())
    assert index_region(Site(rule, variable, "x"), FileCache(), lambda key: np.zeros(shape)) == region
