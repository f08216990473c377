"""What counts as a difference: of outputs, of gradients, of values. On arrays, without TensorFlow."""

import numpy as np
import pytest

from graphfreeze.lowering.holding import Callable, Evidence, Holding, Other, StoredRegion
from graphfreeze.runtime.verifying.forward import Failure, first_difference
from graphfreeze.runtime.verifying.gradients import Gradient, gradient_difference, reached
from graphfreeze.runtime.verifying.training import smallest_cover
from graphfreeze.selection import complement, rows_region

FROZEN = rows_region((4, 2), 0, np.arange(2))
FULL = np.arange(1, 9, dtype=np.float32).reshape(4, 2)


def evidence(strategy):
    part = StoredRegion("w/graphfreeze/trainable", (), (), complement(FROZEN), True)
    copy = StoredRegion("w/graphfreeze/frozen", (), (), FROZEN, False)
    stored = (part,) if strategy == "split" else (copy,)
    holding = Holding("w", "w", strategy, FROZEN, strategy == "mask", (), (), (), (), stored)
    other = Other("b", "b", 2, (), ())
    return Evidence((), (holding,), (other,), (), True, (), (), False, (), ())


def compare(strategy, base, stored, *, other=None, wanted=None, uses=1):
    plain = [wanted or Gradient(FULL, None), Gradient(np.ones(2, np.float32), None)]
    held = [base, stored, other or Gradient(np.ones(2, np.float32), None)]
    taken = Callable("f", (), 0, (), False, (), {"w": uses, "b": uses}, ())
    return gradient_difference([held], [plain], taken, evidence(strategy))


def dense(values):
    return Gradient(np.asarray(values, np.float32), None)


def test_split_gradients_that_are_right():
    assert compare("split", None, dense(FULL[2:])) == ""
    assert compare("split", dense(np.zeros((4, 2))), dense(FULL[2:])) == ""


def test_mask_gradients_that_are_right():
    base = np.where(FROZEN.to_mask(), 0, FULL)
    assert compare("mask", dense(base), None) == ""
    assert compare("mask", dense(base), dense(np.zeros((2, 2)))) == ""


@pytest.mark.parametrize(
    ("strategy", "base", "stored", "words"),
    [
        ("split", dense(FULL), dense(FULL[2:]), "a gradient reaches frozen elements"),
        ("split", None, None, "no gradient reaches what should train"),
        ("split", None, dense(FULL[:2]), "the gradient at trainable elements is another: 4 of 4"),
        ("mask", dense(FULL), None, "a gradient reaches frozen elements"),
        ("mask", dense(np.full((4, 2), np.nan)), None, "a gradient reaches frozen elements"),
        ("mask", dense(FULL * 0), None, "the gradient at trainable elements is another"),
        ("mask", dense(np.where(FROZEN.to_mask(), 0, FULL)), dense(FULL[:2]), "a gradient reaches the frozen copy"),
    ],
)
def test_gradients_that_are_wrong(strategy, base, stored, words):
    assert compare(strategy, base, stored).startswith(f"'w': {words}")


def test_rounding_is_allowed_where_a_variable_is_read_several_times():
    off = dense(FULL[2:] * np.float32(1 + 3e-7))
    assert "is another" in compare("split", None, off)
    assert compare("split", None, off, uses=2) == ""
    assert "is another" in compare("split", None, dense(FULL[2:] * np.float32(1 + 1e-5)), uses=2)


def test_sparse_gradients_stay_sparse_with_the_right_rows():
    wanted = Gradient(np.where(np.isin(np.arange(4), [1, 3])[:, None], FULL, 0), np.array([1, 3]))
    part = np.where([[False], [True]], FULL[2:], 0).astype(np.float32)
    assert compare("split", None, Gradient(part, np.array([1])), wanted=wanted) == ""
    assert "turned dense" in compare("split", None, dense(part), wanted=wanted)
    assert "rows of other ids" in compare("split", None, Gradient(part, np.array([0, 1])), wanted=wanted)
    base = np.where(np.arange(4)[:, None] == 3, FULL, 0).astype(np.float32)
    assert compare("mask", Gradient(base, np.array([3])), None, wanted=wanted) == ""
    assert "rows of other ids" in compare("mask", Gradient(base, np.array([1, 3])), None, wanted=wanted)


def test_a_variable_that_the_freeze_leaves_alone():
    right = dense(FULL[2:])
    assert "'b'" in compare("split", None, right, other=dense([1, 2]))
    assert "turned sparse" in compare("split", None, right, other=Gradient(np.ones(2, np.float32), np.array([0])))


def test_calls_that_raise():
    taken = Callable("f", (), 0, (), False, (), {}, ())
    assert gradient_difference([Failure("no")], [[None]], taken, evidence("split")) == "the rewritten model raises no"
    assert gradient_difference([[None]], [Failure("no")], taken, evidence("split")) == ""
    array = {"0": np.zeros(2)}
    assert first_difference([Failure("no")], [array]) == "the rewritten model raises no"
    assert first_difference([array], [Failure("no")]) == ""


def test_outputs_are_compared_by_their_bits():
    one = {"0": np.array([0.0, 1.0, np.nan])}
    assert first_difference([one], [{"0": np.array([0.0, 1.0, -np.nan])}]) == ""
    assert first_difference([one], [{"0": np.array([-0.0, 1.0, np.nan])}]) == (
        "output 0: 1 of 3 elements differ, first at [0]: 0.0 instead of -0.0"
    )
    assert "instead of float64 [3]" in first_difference([{"0": np.zeros(3, np.float32)}], [one])
    assert first_difference([{}], [one]) == "0 outputs instead of 1"


def test_what_a_gradient_reaches():
    assert reached([[None, dense(FULL[2:]), None]], evidence("split")) == [True, False]
    assert reached([Failure("no")], evidence("split")) == [False, False]


def test_as_few_functions_as_reach_everything():
    flags = {"a": [True, False, False], "b": [True, True, False], "c": [False, False, True], "d": [False] * 3}
    assert smallest_cover(flags) == ["b", "c"]
    assert smallest_cover({"d": [False]}) == []
