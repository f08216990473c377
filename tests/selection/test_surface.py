"""What the layer gives to the layers above, its doctests, and what it must not start."""

import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

from graphfreeze import selection

MODULES = [module.name for module in pkgutil.iter_modules(selection.__path__, "graphfreeze.selection.")]


def test_public_names():
    assert selection.__all__ == sorted(selection.__all__)
    assert [name for name in selection.__all__ if not hasattr(selection, name)] == []


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_starts_neither_tensorflow_nor_protobuf():
    names = "[name for name in sys.modules if name.startswith(('tensorflow', 'google.protobuf'))]"
    check = f"import sys, graphfreeze.selection; print({names})"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
