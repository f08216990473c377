"""Fixtures of all tests: where the small models are, and a quiet TensorFlow."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "fixtures" / "models"
OBJECT_MODELS = sorted(path.name for path in MODELS.iterdir() if not path.name.startswith("tf1_"))
"""Fixtures with an object graph, which TensorFlow 2 wrote; those without are named for TF1."""


@pytest.fixture(autouse=True)
def no_litter() -> Iterator[None]:
    """Fails a test that leaves files in the project, as a TF1 saver does that is given no name ('model.index')."""
    before = _lying_about()
    yield
    assert _lying_about() == before, "a test may only write below tmp_path"


def _lying_about() -> set[str]:
    """What lies in the project's own folder, but caches of tools."""
    return {path.name for path in ROOT.iterdir() if not path.name.startswith((".", "__"))}


@pytest.fixture
def fixture_model() -> Callable[[str], Path]:
    """The folder of a fixture in the repository; not to be written to."""

    def find(name: str) -> Path:
        path = MODELS / name
        assert (path / "saved_model.pb").is_file(), f"no fixture '{name}' in {MODELS}"
        return path

    return find


@pytest.fixture
def fixture_copy(fixture_model: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A fixture's copy under tmp_path, to be changed at will."""

    def copy(name: str) -> Path:
        target = tmp_path / "copies" / name
        shutil.copytree(fixture_model(name), target)
        return target

    return copy
