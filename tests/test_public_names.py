"""The public surface: ``__all__`` is all there is, every name has one home, and importing costs nothing."""

import importlib
import inspect
import subprocess
import sys
import typing

import pytest

import graphfreeze
from graphfreeze import checkpoints, errors


def test_all_is_sorted_and_complete():
    assert graphfreeze.__all__ == sorted(graphfreeze.__all__)
    assert set(graphfreeze._HOME_OF) == set(graphfreeze.__all__)
    assert set(graphfreeze.__all__) <= set(dir(graphfreeze))


@pytest.mark.parametrize("name", graphfreeze.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name):
    found = getattr(graphfreeze, name)
    assert found is getattr(importlib.import_module(graphfreeze._HOME_OF[name]), name)
    assert found.__module__.startswith("graphfreeze.")
    assert inspect.getdoc(found)


def test_every_error_is_public():
    classes = {n for n, c in vars(errors).items() if inspect.isclass(c) and issubclass(c, Exception)}
    assert classes <= set(graphfreeze.__all__)


COMMANDS = ("inspect", "plan", "rewrite", "phases", "finalize", "freeze", "diff", "checkpoint", "verify", "train_step")
POSITIONAL = {"diff": ["a", "b"], "checkpoint": ["prefix", "out"], "verify": ["source", "rewritten"]}


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_keyword_only_and_everything_is_annotated(name):
    signature = inspect.signature(getattr(graphfreeze, name))
    positional = [p for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == POSITIONAL.get(name, ["model", "out"][: len(positional)])
    # Their home imports them for type checkers only.
    late = {"Direction": checkpoints.Direction, "Frozen": checkpoints.Frozen}
    late |= {
        kind: getattr(graphfreeze, kind) for kind in ("Converted", "Difference", "Finalized", "Phases", "Verified")
    }
    hints = typing.get_type_hints(getattr(graphfreeze, name), localns=late, include_extras=True)
    assert set(hints) >= {*signature.parameters, "return"}


def test_an_unknown_name():
    with pytest.raises(AttributeError, match=r"^module 'graphfreeze' has no attribute 'freez'$"):
        graphfreeze.freez  # noqa: B018


def test_no_subpackage_takes_the_name_of_a_public_function():
    for name in graphfreeze.__all__:
        if inspect.isfunction(getattr(graphfreeze, name)):
            assert importlib.util.find_spec(f"graphfreeze.{name}") is None


def test_importing_the_package_imports_nothing_else():
    code = "import sys; before = set(sys.modules); import graphfreeze; print(*sorted(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in result.stdout.split()}
    assert not loaded & {"numpy", "tensorflow", "google", "typer", "rich", "keras"}
