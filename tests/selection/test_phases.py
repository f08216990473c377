"""[[phase]] tables of a spec file."""

import pytest

from graphfreeze.errors import InputOutputError, UsageError
from graphfreeze.selection import Spec, make_spec, read_spec

SPEC = """
train = "head/**"
[[phase]]
name = "head"
[[phase]]
name = "top_2"
train = ["b", "c[:2]"]
freeze = "c[0]"
loss = "distance"
"""


def read(folder, text):
    path = folder / "spec.toml"
    path.write_text(text)
    return read_spec(path)


def test_phases_follow_the_common_rules(tmp_path):
    spec = read(tmp_path, SPEC)
    assert [str(r) for r in spec.rules] == ["train head/**"]
    first, second = spec.phases
    assert (first.name, first.rules, first.loss) == ("head", (), None)
    assert [str(r) for r in second.rules] == ["freeze c[0]", "train b", "train c[:2]"]
    assert second.loss == "distance"
    assert Spec.from_dict(spec.to_dict()) == spec
    assert make_spec(["x"], file=spec).phases == spec.phases
    assert "phases" not in Spec(spec.rules).to_dict()


ERRORS = {
    'phase = "head"': "'phase' must be tables: write [[phase]], with 'name' below it.",
    "[[phase]]\ntrain = 'a'": "phase 1: a phase needs a 'name' of its own, a string; found none.",
    "[[phase]]\nname = 3": "phase 1: a phase needs a 'name' of its own, a string; found an integer.",
    "[[phase]]\nname = 'a-b'": "phase 1: the name 'a-b' cannot be an attribute in Python. Use letters, digits and '_', "
    "a letter first.",
    "[[phase]]\nname = 'class'": "phase 1: the name 'class' cannot be an attribute in Python. Use letters, digits and "
    "'_', a letter first.",
    "[[phase]]\nname = '_a'": "phase 1: the name '_a' cannot be an attribute in Python. Use letters, digits and '_', "
    "a letter first.",
    "[[phase]]\nname = 'a'\n[[phase]]\nname = 'a'": "phase 2: the name 'a' is taken by an earlier phase.",
    "[[phase]]\nname = 'a'\nloss = 1": "phase 1: 'loss' must be a string, found an integer.",
    "[[phase]]\nname = 'a'\ntrian = 'b'": "phase 1: unknown key 'trian'. Did you mean 'train'? Known keys: name, "
    "freeze, train, loss.",
    "[[phase]]\nname = 'a'\ntrain = 1": "phase 1 ('a'), train: expected a selector or a list of selectors, found an "
    "integer.",
}


@pytest.mark.parametrize("text", ERRORS)
def test_errors(text, tmp_path):
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    assert str(caught.value) == f"{tmp_path}/spec.toml: {ERRORS[text]}"


def test_a_damaged_phase():
    data = {"rules": [], "strategy": "auto", "copy": "snapshot", "phases": [{"name": "a"}]}
    with pytest.raises(InputOutputError, match="expected phases with 'name', 'rules' and 'loss'"):
        Spec.from_dict(data)
