"""Undo each change of the rewriter, one at a time: ``verify`` notices each, and finds no fault with the original.

The original then goes all its way: it is trained, saved, finalized and compared.
"""

import os
import random
import re
from collections import defaultdict

import pytest

from tests.conftest import MODELS, OBJECT_MODELS

FULL = os.environ.get("GRAPHFREEZE_FULL") == "1"
SAMPLE = 20

ROWS_OF_ALL = {"freeze": "**[:1]"}
CASES = {
    **dict.fromkeys(OBJECT_MODELS, ROWS_OF_ALL),
    "embedding": {"freeze": "emb/embeddings[:5]"},
    "tied": {"freeze": "table[::3]", "strategy": "mask"},
    "loop": {"freeze": "kernel[:2]"},
    "scan": {"freeze": ["table[:4]", "kernel[:, :2]"], "strategy": "mask"},
    "keras_embedding": {"freeze": ["**/embeddings[:5]", "**/dense/kernel"]},
    "mlp": {"freeze": ["dense_0/kernel[:, ::2]", "dense_1/kernel[[0, 1], [1, 0]]", "out/*"]},
    "shared_function": {"freeze": ["a[:1]", "b"], "strict": True},
    "scalars": {"freeze": "scale", "strict": True},
    "statistics": {"freeze": "kernel[:1]"},
    "norm_steps": {"freeze": ["kernel[:1]", "gamma[:1]", "beta[1:]", "mean", "variance", "head[:, 0]"]},
}
MORE = {
    "scan split": {"freeze": ["table[:4]", "kernel[:, :2]"]},
    "mlp rows": ROWS_OF_ALL,
    "shared_function rows": ROWS_OF_ALL,
}
# By case, what of a rewrite could be otherwise with the same results: (kind, place) -> why.
DENSE = "other reads make the gradient dense, where rows of zeros change nothing"
REDUNDANT = "the number is not used, or no id can tell the difference"
NO_GRADIENT = "TensorFlow has no gradient through dataset functions, rewritten or not"
ITS_OWN_GRADIENT = "a frozen row's value in the gradient of that same row, which is put back"
MASKED_AGAIN = "a finite number for a zero: only whether it is finite is asked, and the branch masks it again"
BY_GUARD = "decay and averages take each element by itself; guards keep the frozen value in the base, and put it back"
IN_AN_UPDATE = "the value goes into an update only, which has no gradient"
_MULS = ("Mul", "Mul_2", "Mul_4", "Mul_6")
EQUIVALENT = {
    "train_clipped": {
        ("geometry", f"__inference_train gradient_tape/{node} [0]"): MASKED_AGAIN
        for node in (
            "Gather/Reshape/graphfreeze/Const",
            "MatMul/MatMul_1/graphfreeze/Const",
            "MatMul/MatMul_1/graphfreeze/Const_5",
            "while/Identity_4/graphfreeze/Const",
            "add_2/Reshape/graphfreeze/Const",
        )
    },
    "train_keras": {
        **{
            ("edge", f"__inference_train adam_w/{place}"): BY_GUARD
            for place in ("mul_3 input 0", "mul_5 input 0", "Mul_17 input 1", "Mul_20 input 1")
        },
        **{
            ("stop", f"__inference_train adam_w/{read}/graphfreeze/StopGradient"): IN_AN_UPDATE
            for read in ("ReadVariableOp", "ReadVariableOp_1", "Mul_17/ReadVariableOp", "Mul_20/ReadVariableOp")
        },
    },
    "train_ops": {("edge", f"__inference_train_rows gradient_tape/{op} input 0"): ITS_OWN_GRADIENT for op in _MULS},
    "train_ops_more": {
        ("edge", f"__inference_train_rows gradient_tape/{op} input 0"): ITS_OWN_GRADIENT for op in _MULS[:3]
    },
    "statistics": {
        (
            "stop",
            "__inference_train ReadVariableOp_2/graphfreeze/StopGradient",
        ): "the value goes into an average only, which has no gradient",
    },
    "datasets": {
        ("stop", "__inference_mapped MapDefun/graphfreeze/StopGradient"): NO_GRADIENT,
        ("stop", "__inference_reduced MapDataset/graphfreeze/StopGradient"): NO_GRADIENT,
        ("stop", "__inference_reduced ReduceDataset/graphfreeze/StopGradient"): NO_GRADIENT,
    },
    "mlp": {
        ("geometry", "__inference_hidden MatMul_1/ReadVariableOp/graphfreeze/powers [7]"): REDUNDANT,
        ("geometry", "__inference_hidden MatMul_1/ReadVariableOp/graphfreeze/Const_1 [0]"): REDUNDANT,
        (
            "geometry",
            "__inference_hidden MatMul_1/ReadVariableOp/graphfreeze/Const_10 [0]",
        ): "what stands outside the frozen points, before the select takes the base there",
    },
    "tied": {
        ("stop", "__inference___call__ Gather/graphfreeze/StopGradient"): DENSE,
        ("geometry", "__inference___call__ Gather/graphfreeze/live/map [0]"): DENSE,
        ("geometry", "__inference___call__ Gather/graphfreeze/live/map [11]"): REDUNDANT,
    },
    "scan": {
        ("stop", "scan_while_body scan/while/Gather/graphfreeze/StopGradient"): DENSE,
        ("geometry", "scan_while_body scan/while/Gather/graphfreeze/Const_1 [0]"): DENSE,
        ("geometry", "scan_while_body scan/while/Gather/graphfreeze/Const [0]"): REDUNDANT,
        ("geometry", "scan_while_body scan/while/Gather/graphfreeze/Const_3 [0]"): REDUNDANT,
        (
            "outputs of a loop",
            "__inference___call__ scan/while",
        ): "only the handle of a frozen copy is appended, which takes no gradient",
    },
    "scan split": {("geometry", "scan_while_body scan/while/Gather/graphfreeze/Const [0]"): REDUNDANT},
    "custom_gradient": {
        (
            "stop",
            "__inference___call__ add/ReadVariableOp/graphfreeze/StopGradient",
        ): "the custom gradient stands in the way already",
        (
            "geometry",
            "__inference___call__ IdentityN_1/ReadVariableOp/graphfreeze/Const [0]",
        ): "nothing takes this value",
    },
}

DEAD = {"keras_gru": "__inference___call__ sequential_1/gru_1/gru_cell_1/"}
"""Where Keras left a trial call of a cell whose value reaches no result."""


def sample(name, found):
    """A few of every model, kinds in turn, beginning at another kind in each model."""
    if FULL:
        return found
    kinds = defaultdict(list)
    for mutant in found:
        kinds[mutant.kind].append(mutant)
    generator = random.Random(name)
    order = sorted(kinds)
    generator.shuffle(order)
    for mutants in kinds.values():
        generator.shuffle(mutants)
    chosen = []
    while len(chosen) < min(SAMPLE, len(found)):
        for kind in order:
            if kinds[kind] and len(chosen) < SAMPLE:
                chosen.append(kinds[kind].pop())
    return chosen


def stable(place):
    """Without the hash and the number of a changed function."""
    return re.sub(r"_graphfreeze_[0-9a-f]+_\d+", "", place)


@pytest.mark.tf
@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *(MORE if FULL else ())])
def test_every_mutant_is_noticed(name, tmp_path):
    from tests.helpers.chain import chain_differences
    from tests.helpers.judging import Judge, quick_functions
    from tests.helpers.mutation import mutants

    with quick_functions():
        judge = Judge(MODELS / name.split()[0], tmp_path, **{**CASES, **MORE}[name])
        run = judge.run()
        assert_no_fault(run.all())
        assert chain_differences(run, judge.plan, judge.source, judge.out, tmp_path) == []
        known = EQUIVALENT.get(name, {})
        everything = mutants(judge.source, judge.out)
        assert known.keys() <= {(m.kind, stable(m.place)) for m in everything}
        found = [m for m in everything if (m.kind, stable(m.place)) not in known]
        found = [m for m in found if not stable(m.place).startswith(DEAD.get(name, "\0"))]
        assert [str(mutant) for mutant in sample(name, found) if judge.noticed_by(mutant) is None] == []


def assert_no_fault(found):
    assert [f for f in found.findings if f.status == "failed"] == []
    ran = {f.check for f in found.findings if f.status == "ok"}
    assert ran >= {"forward", "poison", "gradients (eager)", "gradients (function)", "TF1 loader"}
