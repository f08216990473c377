"""What is compared with what, and what cannot be."""

import shutil

import pytest

import graphfreeze
from graphfreeze.errors import UsageError
from graphfreeze.passes.pair import prepare_pair
from graphfreeze.savedmodel import open_draft, read_saved_model
from tests.conftest import MODELS

EMBEDDING = MODELS / "embedding"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    path = tmp_path_factory.mktemp("pair") / "out"
    graphfreeze.rewrite(EMBEDDING, path, freeze="emb/embeddings[:5]")
    return path


def pair(source, rewritten, folder):
    return prepare_pair(open_draft(source), open_draft(rewritten), folder)


def test_an_untrained_result_is_compared_with_the_source(out, tmp_path):
    found = pair(EMBEDDING, out, tmp_path)
    assert (found.plain, found.rewritten, found.trained, found.old_keras) == (EMBEDDING, out, False, False)
    assert found.warnings == ()
    (evidence,) = found.evidence
    assert evidence.problems == ()
    (holding,) = evidence.holdings
    assert (holding.name, holding.strategy, holding.frozen.count) == ("emb/embeddings", "split", 20)
    assert [(s.name, s.trainable) for s in holding.stored] == [("emb/embeddings/graphfreeze/trainable", True)]
    assert [o.name for o in evidence.others] == ["dense/kernel", "dense/bias"]
    assert len(evidence.trains) == 3
    assert [c.label for c in evidence.callables] == ["__call__[0]", "signature serving_default"]
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_carries_a_freeze_is_made_plain_first(out, tmp_path):
    graphfreeze.rewrite(out, tmp_path / "again", freeze="dense/*")
    found = pair(out, tmp_path / "again", tmp_path / "pair")
    assert found.plain == tmp_path / "pair" / "source"
    assert (found.trained, found.warnings) == (False, ())


def test_another_model_of_the_same_variables(out, tmp_path):
    shutil.copytree(EMBEDDING, tmp_path / "source")
    proto = read_saved_model(EMBEDDING).proto
    proto.meta_graphs[0].meta_info_def.tensorflow_version += "1"
    (tmp_path / "source" / "saved_model.pb").write_bytes(proto.SerializeToString())
    (warning,) = pair(tmp_path / "source", out, tmp_path / "pair").warnings
    what = "is not, byte for byte, the model that was rewritten. It has the same variables, though"
    assert warning == f"'{tmp_path / 'source'}' {what}"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("mlp", "it has no variable 'emb/embeddings', which is frozen in the result"),
        ("keras_embedding", "it has no variable 'emb/embeddings', which is frozen in the result"),
    ],
)
def test_another_model(out, tmp_path, source, words):
    with pytest.raises(UsageError) as error:
        pair(MODELS / source, out, tmp_path)
    assert str(error.value) == (
        f"'{MODELS / source}' is not the model that '{out}' was made from: {words}. Give the model that was rewritten, "
        "then the result"
    )


def test_a_result_without_a_freeze(out, tmp_path):
    for source, hint in (
        (EMBEDDING, "Give a model that graphfreeze rewrote"),
        (out, "Give the source first, then the"),
    ):
        with pytest.raises(UsageError) as error:
            pair(source, EMBEDDING, tmp_path)
        assert str(error.value).startswith(f"'{EMBEDDING}' carries no freeze, so there is nothing to verify. {hint}")
