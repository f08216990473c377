"""What ``verify`` says of peculiar, of trained and of spoiled models."""

import shutil

import numpy as np
import pytest

from graphfreeze.savedmodel import read_bundle, write_bundle
from tests.conftest import MODELS

PREFIX = ("variables", "variables")


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """All findings on a peculiar model, and its rows."""
    from graphfreeze.runtime.verifying.summary import rows
    from tests.runtime.verifying.models import Odd, save, start

    folder = tmp_path_factory.mktemp("odd")
    run = start(*save(Odd(), folder, freeze="kernel[:2]"), folder / "pair")
    return run.all().findings, rows(run.found, run.evidence)


def of(findings, check, where):
    (found,) = (f for f in findings if (f.check, f.where) == (check, where))
    return found.status, found.what


@pytest.mark.tf
def test_nothing_fails(odd):
    assert [f for f in odd[0] if f.status == "failed"] == []


@pytest.mark.tf
def test_random_ops_without_a_seed_get_one(odd):
    for check in ("poison", "forward", "gradients (eager)", "gradients (function)"):
        assert of(odd[0], check, "dropout[0]") == ("ok", "")


@pytest.mark.tf
def test_what_is_random_all_the_same_is_said(odd):
    why = "random: the plain model gives something else at every run, so it was not compared"
    assert of(odd[0], "forward", "clock[0]") == ("not run", why)
    assert of(odd[0], "gradients (eager)", "clock[0]") == ("not run", why)


@pytest.mark.tf
def test_what_cannot_be_called_is_named(odd):
    why = "nobody can make an input of type RaggedTensorSpec"
    assert of(odd[0], "poison", "ragged[0]") == ("not run", why)
    assert of(odd[0], "gradients (eager)", "ragged[0]") == ("not run", "it cannot be called")


@pytest.mark.tf
def test_no_gradient_through_integers(odd):
    assert of(odd[0], "gradients (eager)", "integers[0]") == ("-", "no float output")


@pytest.mark.tf
def test_rows(odd):
    functions = {f.name: f for f in odd[1].functions}
    assert functions["plain[0]"].gradients == ("ok", "ok")
    assert functions["integers[0]"].gradients == ("-", "-")
    kernel, alone = odd[1].variables
    assert (kernel.name, kernel.frozen, kernel.trainable, kernel.reached, kernel.moved) == ("kernel", 8, 4, True, 4)
    assert kernel.change == 0
    assert (alone.name, alone.frozen, alone.trainable, alone.reached, alone.moved) == ("alone", 0, 2, False, 0)
    assert [(t.mode, t.steps, t.frozen, t.change, t.trainable, t.moved) for t in odd[1].training] == [
        ("eager", 2, 8, 0, 6, 4),
        ("function", 2, 8, 0, 6, 4),
    ]
    assert {f.status for f in odd[1].findings} == {"not run"}


@pytest.mark.tf
@pytest.mark.parametrize("signatures", [True, False])
def test_a_trained_model_is_compared_with_what_finalize_makes_of_it(tmp_path, signatures):
    import graphfreeze
    from tests.helpers.resaved import save_again, train_a_little
    from tests.runtime.verifying.models import failures, start

    source = MODELS / "embedding"
    graphfreeze.rewrite(source, tmp_path / "out", freeze="emb/embeddings[:5]")
    save_again(tmp_path / "out", tmp_path / "trained", signatures=signatures, change=train_a_little)
    run = start(source, tmp_path / "trained", tmp_path / "pair")
    assert run.task.plain == tmp_path / "pair" / "plain"
    assert failures(run) == []
    assert all(t.change == 0 and t.moved for t in run.found.training)


@pytest.mark.tf
def test_the_whole_set_of_optimizers(tmp_path):
    import graphfreeze
    from tests.helpers.judging import quick_functions
    from tests.runtime.verifying.models import failures, start

    source = MODELS / "embedding"
    graphfreeze.rewrite(source, tmp_path / "out", freeze="emb/embeddings[:5]")
    with quick_functions():
        run = start(source, tmp_path / "out", tmp_path / "pair", optimizer="all")
        assert failures(run) == []
    names = ("momentum", "sparse momentum", "decay", "clipping", "ema")
    assert [(t.optimizer, t.mode) for t in run.found.training] == [
        (name, mode) for name in names for mode in ("eager", "function")
    ]
    assert all(t.change == 0 and t.moved for t in run.found.training)


def change_values(path, change):
    """Other values in the checkpoint of a model: ``change`` gets and gives tensors by key."""
    bundle = read_bundle(path.joinpath(*PREFIX))
    put = change({k: np.array(bundle.read_tensor(k)) for k in bundle.entries if not k.startswith("_")})
    (path / "new").mkdir()
    write_bundle(path / "new" / "variables", source=bundle, put=put)
    shutil.rmtree(path / "variables")
    (path / "new").rename(path / "variables")


@pytest.mark.tf
@pytest.mark.parametrize(
    ("options", "key"), [({}, "emb/embeddings"), ({"strategy": "mask"}, "graphfreeze/variables/0")]
)
def test_frozen_values_that_have_changed(tmp_path, options, key):
    import graphfreeze
    from tests.runtime.verifying.models import start

    source = MODELS / "embedding"
    graphfreeze.rewrite(source, tmp_path / "out", freeze="emb/embeddings[:5]", **options)
    whole = f"{key}/.ATTRIBUTES/VARIABLE_VALUE"
    if not options:
        keys = read_bundle((tmp_path / "out").joinpath(*PREFIX)).entries
        whole = next(k for k in keys if "embeddings" in k and "graphfreeze" not in k)

    def change(tensors):
        tensors[whole][0, 0] += 0.5
        return {whole: tensors[whole]}

    change_values(tmp_path / "out", change)
    failure = start(source, tmp_path / "out", tmp_path / "pair").first_failure()
    assert (failure.check, failure.where) == ("frozen values", "emb/embeddings")
    assert failure.what == "1 of 20 frozen elements are not the source's, by up to 0.5"


@pytest.mark.tf
def test_a_freeze_that_a_python_optimizer_gets_past_is_found(tmp_path):
    """``copy=live`` does not hold against decay: that is what ``plan`` warns of."""
    import graphfreeze
    from tests.runtime.verifying.models import failures, start

    source = MODELS / "embedding"
    graphfreeze.rewrite(source, tmp_path / "out", freeze="dense/kernel[:1]", strategy="mask", copy="live")
    found = failures(start(source, tmp_path / "out", tmp_path / "pair"))
    assert [(f.check, f.where) for f in found] == [
        ("training adamw (eager)", "dense/kernel"),
        ("training adamw (function)", "dense/kernel"),
    ]
    assert "frozen elements moved, by up to" in found[0].what


@pytest.mark.tf
def test_a_model_that_trains_itself(tmp_path):
    """No function of it may move a frozen element, and the rest moves as it should."""
    from tests.helpers.judging import Judge

    judge = Judge(MODELS / "train_ops", tmp_path, freeze="**[:1]")
    findings = list(judge.run().inside())
    assert {f.where for f in findings} >= {"train[0]", "train_rows[0]", "signature train"}
    assert {f.status for f in findings} == {"ok"}
