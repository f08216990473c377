"""Which objects ``freeze`` takes, and what is said about the others."""

from __future__ import annotations

import sys
from os import PathLike, fsdecode
from pathlib import Path
from typing import Any

from graphfreeze.errors import UsageError
from graphfreeze.runtime.exported import Exported

_ACCEPTED = "what tf.saved_model.load returned, a tf.Module, or a Keras 3 model"


def export(model: Any, folder: Path, inputs: Any = None) -> Exported:
    """Saves an object with its values of now to ``folder``.

    Raises:
        UsageError: it is none of the objects that can be frozen, or was never traced.
        UnsupportedModelError: it takes inputs that cannot be traced.
    """
    _refuse(model)
    if _is_keras(model):
        from graphfreeze.runtime.keras_export import export_keras

        return export_keras(model, folder, inputs)
    from graphfreeze.runtime.tf_export import export_object

    return export_object(model, folder, inputs)


def _refuse(model: Any) -> None:
    if isinstance(model, (str, bytes, PathLike)):
        raise UsageError(
            f"freeze takes an object, but '{fsdecode(model)}' is a path. For a SavedModel on disk use "
            "graphfreeze.rewrite(model, out, ...), or give what tf.saved_model.load returns for it"
        )
    if _inherits(model, "tf_keras"):
        raise UsageError(
            f"freeze takes {_ACCEPTED}, found a model of tf_keras (Keras 2), {_kind(model)}. Save it with "
            "tf.saved_model.save and give what tf.saved_model.load returns for it"
        )
    if _is_keras(model):
        _refuse_keras(model)
        return
    tensorflow = sys.modules.get("tensorflow")
    tracked = None if tensorflow is None else tensorflow.__internal__.tracking.AutoTrackable
    if isinstance(model, type) or tracked is None or not isinstance(model, tracked):
        raise UsageError(f"freeze takes {_ACCEPTED}, found {_kind(model)}")


def _refuse_keras(model: Any) -> None:
    keras = sys.modules["keras"]
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise UsageError(
            f"Keras runs on backend '{backend}' here, and a graph can be frozen on 'tensorflow' only. Set "
            "KERAS_BACKEND=tensorflow before Keras is imported, and load the model there"
        )
    if not isinstance(model, keras.Model):
        raise UsageError(
            f"freeze takes {_ACCEPTED}, found a Keras layer, {_kind(model)}. Make a model of it, for instance with "
            "keras.Sequential([keras.Input(...), layer])"
        )


def _is_keras(model: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and not isinstance(model, type) and isinstance(model, keras.layers.Layer)


def _inherits(model: Any, package: str) -> bool:
    classes = (model if isinstance(model, type) else type(model)).__mro__
    return any(c.__module__.split(".")[0] == package for c in classes)


def _kind(model: Any) -> str:
    if isinstance(model, type):
        return f"the class '{model.__qualname__}'"
    return f"an object of class '{type(model).__module__}.{type(model).__qualname__}'"


def own_methods(model: Any, framework: tuple[str, ...], known: frozenset[str]) -> list[str]:
    """Public plain methods (and ``__call__``) that the object's own classes define, in the order of definition.

    Args:
        model: The object.
        framework: Top packages whose classes are not the user's.
        known: Names that do not count.
    """
    found: dict[str, None] = {}
    for cls in reversed(type(model).__mro__):
        if cls is object or cls.__module__.split(".")[0] in framework:
            continue
        for name, value in vars(cls).items():
            if name == "__call__" or not name.startswith("_"):
                function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
                if name not in known and callable(function) and hasattr(function, "__code__"):
                    found[name] = None
    return list(found)
