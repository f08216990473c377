"""Starting TensorFlow in a command: without the lines that it writes about the machine and about what it imports."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def start_quietly() -> None:
    """Imports TensorFlow and Keras so that only errors reach stderr; what the user has set in the environment wins."""
    shown = "TF_CPP_MIN_LOG_LEVEL" in os.environ and os.environ["TF_CPP_MIN_LOG_LEVEL"] != "3"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if shown:
        import keras
        import tensorflow
    else:
        # Some libraries write before they have read what the environment says.
        with _silenced():
            import keras  # noqa: F401
            import tensorflow  # noqa: F401
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextmanager
def _silenced() -> Iterator[None]:
    """Nothing reaches the descriptor of stderr; Python's own errors come later, as exceptions."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
