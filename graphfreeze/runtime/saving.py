"""Saving an object of the user's process, with TensorFlow's complaints in words that name the object."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphfreeze.errors import InputOutputError, UnsupportedModelError
from graphfreeze.runtime.specs import one_line


def save_object(root: Any, folder: Path, what: str, signatures: Mapping[str, Any] | None = None) -> None:
    """``tf.saved_model.save`` with custom gradients.

    Args:
        root: The object to save.
        folder: Where to save.
        what: What the user calls it, for messages.
        signatures: Its signatures, if it has any.

    Raises:
        UnsupportedModelError: a function uses something that the object does not hold, or cannot be saved.
        InputOutputError: the temporary folder cannot be written.
    """
    import tensorflow as tf

    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    try:
        tf.saved_model.save(root, str(folder), signatures=signatures or None, options=options)
    except (OSError, tf.errors.OpError) as error:
        raise InputOutputError(
            f"Cannot write '{folder}': {one_line(error)}. Set TMPDIR to a folder with room for the weights twice"
        ) from error
    except (AssertionError, TypeError, ValueError) as error:
        raise UnsupportedModelError(
            f"TensorFlow cannot save {what}: {one_line(error)}. Hold everything that its functions use in its "
            "attributes"
        ) from error
