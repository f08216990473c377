"""The decision table of ``auto``, and what each strategy says of the regions that it cannot hold."""

import numpy as np
import pytest

from graphfreeze.errors import UsageError
from graphfreeze.planning import Storage
from graphfreeze.planning.strategy import Request, decide
from graphfreeze.selection import (
    Copy,
    Strategy,
    box_region,
    complement,
    mask_region,
    points_region,
    rows_region,
    whole_region,
)

SHAPE = (8, 6)
WHOLE = whole_region(SHAPE)
TOP = box_region(SHAPE, [slice(0, 5)])
COLUMNS = box_region(SHAPE, [slice(None), slice(0, 3)])
STEPPED = box_region(SHAPE, [slice(None, None, 2)])
CORNER = box_region(SHAPE, [slice(0, 3), slice(0, 3)])
REST_IS_A_CORNER = complement(CORNER)
LISTED = rows_region(SHAPE, 0, [0, 3, 4, 6])
POINT = points_region(SHAPE, [7])
NOISE = mask_region(np.arange(48).reshape(SHAPE) % 5 == 0)


def decision(region, wanted=Strategy.AUTO, copy=Copy.SNAPSHOT, strict=False, label="w"):
    return decide(Request(label, region, copy, strict), wanted)


@pytest.mark.parametrize(
    ("region", "strategy", "reason"),
    [
        (WHOLE, Strategy.STOP, "whole variable"),
        (TOP, Strategy.SPLIT, "the trainable part is a box: [5:]"),
        (COLUMNS, Strategy.SPLIT, "the trainable part is a box: [:, 3:]"),
        (STEPPED, Strategy.SPLIT, "the trainable part is a box: [1::2]"),
        (LISTED, Strategy.SPLIT, "the trainable part is rows: 4 rows of axis 0"),
        (REST_IS_A_CORNER, Strategy.SPLIT, "the trainable part is a box: [:3, :3]"),
        (CORNER, Strategy.MASK, "the frozen part is a box: [:3, :3]"),
        (POINT, Strategy.MASK, "the frozen part is a box: [1, 1]"),
        (NOISE, Strategy.MASK, "the frozen part is scattered elements: mask (20.8 %)"),
    ],
    ids=["whole", "rows", "columns", "stepped", "listed rows", "rest is a corner", "corner", "point", "noise"],
)
def test_auto(region, strategy, reason):
    found = decision(region)
    assert found.strategy is strategy
    assert found.reason == reason


def atoms(found):
    return [(a.storage, a.trainable, a.name, a.region) for a in found.atoms]


def test_atoms_cover_the_variable_once():
    for region in (WHOLE, TOP, LISTED, NOISE, POINT, CORNER):
        for wanted in Strategy:
            for copy in Copy:
                try:
                    found = decision(region, wanted, copy)
                except UsageError:
                    continue
                assert sum(a.region.count for a in found.atoms) == region.size
                assert [a.region for a in found.atoms if not a.trainable] == [region]


def test_atoms_of_each_strategy():
    rest = complement(TOP)
    assert atoms(decision(WHOLE)) == [(Storage.BASE, False, None, WHOLE)]
    assert atoms(decision(WHOLE, strict=True)) == [(Storage.COPY, False, "w/graphfreeze/frozen", WHOLE)]
    assert atoms(decision(TOP)) == [
        (Storage.BASE, False, None, TOP),
        (Storage.PART, True, "w/graphfreeze/trainable", rest),
    ]
    assert atoms(decision(TOP, Strategy.MASK)) == [
        (Storage.BASE, True, None, rest),
        (Storage.COPY, False, "w/graphfreeze/frozen", TOP),
    ]
    assert atoms(decision(TOP, Strategy.MASK, Copy.LIVE)) == [
        (Storage.BASE, True, None, rest),
        (Storage.BASE, False, None, TOP),
    ]


@pytest.mark.parametrize(
    ("wanted", "copy", "strict", "strategy", "is_strict", "reason"),
    [
        (Strategy.STOP, Copy.SNAPSHOT, False, Strategy.STOP, False, "whole variable"),
        (Strategy.STOP, Copy.SNAPSHOT, True, Strategy.STOP, True, "whole variable, read from a copy (strict)"),
        (Strategy.SPLIT, Copy.SNAPSHOT, False, Strategy.STOP, False, "whole variable"),
        (Strategy.SPLIT, Copy.SNAPSHOT, True, Strategy.STOP, True, "whole variable, read from a copy (strict)"),
        (Strategy.MASK, Copy.SNAPSHOT, False, Strategy.STOP, True, "whole variable, read from a copy (strict)"),
        (Strategy.MASK, Copy.LIVE, False, Strategy.STOP, False, "whole variable"),
        (Strategy.MASK, Copy.LIVE, True, Strategy.STOP, True, "whole variable, read from a copy (strict)"),
    ],
)
def test_a_whole_variable_under_every_wish(wanted, copy, strict, strategy, is_strict, reason):
    found = decision(WHOLE, wanted, copy, strict)
    assert (found.strategy, found.strict, found.reason) == (strategy, is_strict, reason)


def test_strict_is_for_whole_variables():
    assert not decision(TOP, strict=True).strict


def test_live_says_so():
    found = decision(TOP, Strategy.MASK, Copy.LIVE)
    assert found.copy is Copy.LIVE
    assert found.reason == "the frozen part is a box: [:5], read from the variable itself"
    assert decision(TOP, copy=Copy.LIVE).strategy is Strategy.SPLIT


def test_stop_holds_whole_variables_only():
    with pytest.raises(UsageError) as error:
        decision(TOP, Strategy.STOP, label="dense/kernel")
    assert str(error.value) == (
        "Strategy 'stop' cannot hold [:5] of 'dense/kernel': it holds whole variables only. Leave --strategy out "
        "and graphfreeze picks one that can"
    )


def test_split_needs_a_trainable_part_of_some_shape():
    with pytest.raises(UsageError) as error:
        decision(NOISE, Strategy.SPLIT)
    assert str(error.value) == (
        "Strategy 'split' cannot hold mask (20.8 %) of 'w': the trainable part, mask (79.2 %), is neither a box nor "
        "rows of one axis. Leave --strategy out and graphfreeze picks one that can"
    )


def test_the_names_of_new_variables_are_legal_and_messages_keep_the_users():
    found = decision(TOP, label="_layers/0/my kernel")
    assert found.atoms[1].name == "layers/0/my_kernel/graphfreeze/trainable"
    with pytest.raises(UsageError, match="of '_layers/0/my kernel'"):
        decision(TOP, Strategy.STOP, label="_layers/0/my kernel")
