"""Every change that a rewrite makes, undone one at a time, is a difference."""

import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.end_to_end.cases import FULL
from tests.helpers.mutation import mutants, write_mutant

CASES = {"loop": ["kernel[:1]"], "keras_embedding": ["**/embeddings[::2]"], "shared_function": ["**[1:]"]}


@pytest.mark.parametrize("name", CASES)
def test_every_mutant_differs(name, tmp_path):
    out = tmp_path / "out"
    graphfreeze.rewrite(MODELS / name, out, freeze=CASES[name], strategy="mask")
    found = mutants(MODELS / name, out)
    assert len(found) > 20
    chosen = found if FULL else found[:: max(1, len(found) // 15)]
    missed = []
    for number, mutant in enumerate(chosen):
        write_mutant(out, tmp_path / str(number), mutant)
        if graphfreeze.diff(out, tmp_path / str(number)).equal:
            missed.append(str(mutant))
    assert not missed
