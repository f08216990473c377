"""What verify is told of phases: the functions of each, and what trains in it."""

import graphfreeze
from graphfreeze.passes.pair import prepare_pair
from graphfreeze.savedmodel import open_draft
from tests.conftest import MODELS

SPEC = """
freeze = "emb/embeddings"
[[phase]]
name = "a"
train = "emb/embeddings[:5]"
[[phase]]
name = "b"
train = "emb/embeddings[3:9]"
freeze = "dense/kernel"
"""


def test_evidence_of_every_phase(tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    graphfreeze.rewrite(MODELS / "embedding", tmp_path / "out", spec=tmp_path / "spec.toml")
    pair = prepare_pair(open_draft(MODELS / "embedding"), open_draft(tmp_path / "out"), tmp_path / "pair")
    assert [e.phase for e in pair.evidence] == ["", "a", "b"]
    assert [e.problems for e in pair.evidence] == [(), (), ()]
    outside, first, second = pair.evidence
    assert (outside.trains, outside.holdings) == (first.trains, first.holdings)
    assert [c.label for c in second.callables] == ["b: __call__[0]", "b: signature serving_default"]
    assert second.callables[0].place == ("graphfreeze", "phases", "b", "__call__")
    assert {h.name: h.frozen.count for h in second.holdings} == {"emb/embeddings": 24, "dense/kernel": 12}
    assert {h.name: h.unmoved.count for h in second.holdings} == {"emb/embeddings": 12, "dense/kernel": 0}
    assert [o.name for o in first.others] == ["dense/kernel", "dense/bias"]
