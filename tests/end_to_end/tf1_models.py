"""The TF1 fixtures, what of them is held, and the ways in which it is."""

import os

import pytest

import graphfreeze
from tests.conftest import MODELS

KINDS = ("ref", "resource")
FULL = os.environ.get("GRAPHFREEZE_FULL") == "1"
ANTIDIAGONAL = "x[[0, 1], [1, 0]]"
HELD = {
    "two_by_two": [ANTIDIAGONAL],
    "layers": ["fc1/weights[:, :2]", "fc1/biases", "fc2/weights[[0, 3], [1, 2]]", "fc2/biases[1:]"],
    "partitioned": ["table[2:6]", "table[8, 1:3]"],
    "control": ["kernel[1:3]", "shift[0]"],
}
OPTIONS = {"auto": {}, "mask": {"strategy": "mask"}, "live": {"strategy": "mask", "copy": "live"}}


def combined(ways):
    """Every fixture in both kinds, each in one of the ways; in all of them with GRAPHFREEZE_FULL=1."""
    ways = list(ways)
    places = [(n, k) for n in range(len(HELD)) for k in range(len(KINDS))]
    chosen = [(n, k, w) for n, k in places for w in range(len(ways)) if FULL or w == (n + k) % len(ways)]
    return pytest.mark.parametrize(("name", "kind", "how"), [(list(HELD)[n], KINDS[k], ways[w]) for n, k, w in chosen])


def rewritten(name, kind, folder, freeze=None, **options):
    original = MODELS / f"tf1_{name}_{kind}"
    plan = graphfreeze.rewrite(original, folder / "out", freeze=freeze or HELD[name], allow_empty=True, **options)
    return original, folder / "out", plan
