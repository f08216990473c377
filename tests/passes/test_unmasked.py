"""Norms that count frozen elements are seen in the messages alone."""

import pytest

import graphfreeze
from graphfreeze.passes.pair import prepare_pair
from graphfreeze.savedmodel import open_draft
from tests.conftest import MODELS
from tests.helpers.mutation import mutants, write_mutant


def norms(source, rewritten, folder):
    (evidence,) = prepare_pair(open_draft(source), open_draft(rewritten), folder).evidence
    return [(p.where, p.what) for p in evidence.problems if p.check == "norms"]


@pytest.mark.parametrize(
    ("name", "place", "where", "what"),
    [
        (
            "train_clipped",
            "IsFinite_4 input 0",
            "__inference_train_947",
            "takes frozen elements of the gradient of 'bias' at 'IsFinite_4'",
        ),
        (
            "train_accumulated",
            "cond/clip_by_norm_1/mul input 1",
            "cond_true_357",
            "takes frozen elements of the gradient of 'kernel' at 'cond/clip_by_norm_1/mul'",
        ),
    ],
)
def test_a_norm_that_takes_the_raw_gradient(name, place, where, what, tmp_path):
    source, out = MODELS / name, tmp_path / "out"
    graphfreeze.rewrite(source, out, freeze="**[:1]")
    assert norms(source, out, tmp_path / "pair") == []
    (mutant,) = [m for m in mutants(source, out) if m.kind == "edge" and m.place.endswith(place)]
    write_mutant(out, tmp_path / "mutant", mutant)
    assert norms(source, tmp_path / "mutant", tmp_path / "again") == [(where, what)]
