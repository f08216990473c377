"""What the layer gives to the layers above, its doctests, and what it may import."""

import ast
import doctest
import importlib
import pkgutil
import sys
from pathlib import Path

import pytest

from graphfreeze import selection

MODULES = [module.name for module in pkgutil.iter_modules(selection.__path__, "graphfreeze.selection.")]


def test_public_names():
    assert selection.__all__ == sorted(selection.__all__)
    assert [name for name in selection.__all__ if not hasattr(selection, name)] == []


@pytest.mark.parametrize("name", MODULES)
def test_doctests(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_imports_only_numpy_the_standard_library_and_this_layer(name):
    tree = ast.parse(Path(importlib.import_module(name).__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports}
    ours = {module for module in modules if module.startswith("graphfreeze")}
    assert all(module == "graphfreeze.errors" or module.startswith("graphfreeze.selection.") for module in ours)
    assert {module.split(".")[0] for module in modules - ours} <= {*sys.stdlib_module_names, "numpy"}
