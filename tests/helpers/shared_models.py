"""The 40 SavedModels that others made, kept beside the repository in ../shared/models.

A user's `make test` skips what needs them, with a reason; where CI is set their absence is a failure.
"""

import os
from pathlib import Path

import pytest

SHARED_MODELS = Path(__file__).resolve().parents[2].parent / "shared" / "models"
EXPECTED_COUNT = 40


def shared_model_names() -> list[str]:
    """Folders that hold a SavedModel, sorted; empty where the folder is missing (usable at collection)."""
    return [path.name for path in sorted(SHARED_MODELS.iterdir()) if path.is_dir()] if SHARED_MODELS.is_dir() else []


def require_shared_models() -> Path:
    """The folder; skips the test where it is missing, fails it where CI is set."""
    if SHARED_MODELS.is_dir():
        return SHARED_MODELS
    reason = f"needs the models of {SHARED_MODELS}, which is not there"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def shared_model(name: str) -> Path:
    """The SavedModel folder of that name (the one that holds saved_model.pb or .pbtxt)."""
    root = require_shared_models() / name
    found = sorted(file.parent for pattern in ("saved_model.pb", "saved_model.pbtxt") for file in root.rglob(pattern))
    if not found:
        pytest.fail(f"no SavedModel in {root}")
    return found[0]
