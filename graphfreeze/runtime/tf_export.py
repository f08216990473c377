"""Saves what ``tf.saved_model.load`` returned, or a ``tf.Module``: all that was traced; what was not is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphfreeze.errors import UsageError
from graphfreeze.planning.plan import Plan
from graphfreeze.runtime.exported import Exported
from graphfreeze.runtime.objects import own_methods
from graphfreeze.runtime.saving import save_object
from graphfreeze.runtime.specs import call_specs, one_line
from graphfreeze.savedmodel import VARIABLE_VALUE, checkpoint_path, object_paths, open_draft

_SUFFIX = f"/.ATTRIBUTES/{VARIABLE_VALUE}"
_FRAMEWORK = ("tensorflow", "keras", "wrapt", "builtins", "abc")


def export_object(model: Any, folder: Path, inputs: Any = None) -> Exported:
    """Saves a TensorFlow object with its values of now, its traces and its signatures.

    Args:
        model: What ``tf.saved_model.load`` returned, or a ``tf.Module``.
        folder: Where to save.
        inputs: What to trace ``__call__`` for, see ``call_specs``.

    Raises:
        UsageError: nothing of it was ever traced, or ``inputs`` do not fit its ``__call__``.
        UnsupportedModelError, InputOutputError: see ``save_object``.
    """
    signatures = dict(getattr(model, "signatures", None) or {})
    with _traced(model, inputs):
        save_object(model, folder, f"this '{type(model).__name__}'", signatures)
    traced, untraced, keys = _contents(folder)
    if not traced and not signatures:
        raise UsageError(
            f"Nothing of this '{type(model).__name__}' was ever traced, so there is no graph to freeze"
            f"{_listed(untraced)}. Call a tf.function of it once, give it an input_signature, or pass inputs= with "
            "example inputs or tf.TensorSpecs of its __call__"
        )

    def variables() -> Mapping[str, Any]:
        found = {key: _at_key(model, key) for key in keys}
        return {key: variable for key, variable in found.items() if variable is not None}

    return Exported(model, variables, _load, _left_behind(model, traced, untraced))


def _load(folder: Path, plan: Plan) -> tuple[Any, Any]:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))
    return loaded, loaded


@contextmanager
def _traced(model: Any, inputs: Any) -> Iterator[None]:
    """Traces ``__call__`` for the given inputs; a plain method is a tf.function for as long as the object is saved."""
    import tensorflow as tf

    if inputs is None:
        yield
        return
    specs = call_specs(inputs)
    if not callable(model) or not isinstance(model, tf.Module):
        raise UsageError(
            "inputs= is for a tf.Module or a Keras model with a __call__; this object has nothing to trace"
        )
    call = model.__call__
    function = call if isinstance(call, tf.types.experimental.GenericFunction) else tf.function(call)
    try:
        function.get_concrete_function(*specs)
    except (TypeError, ValueError) as error:
        raise UsageError(f"inputs= do not fit the __call__ of '{type(model).__name__}': {one_line(error)}") from error
    if function is call:
        yield
        return
    model.__call__ = function
    try:
        yield
    finally:
        del model.__call__


def _contents(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Paths of functions with and without a trace, and the checkpoint keys of all variables."""
    draft = open_draft(folder)
    (meta,) = draft.model.proto.meta_graphs
    graph = meta.object_graph_def
    functions: dict[bool, list[str]] = {True: [], False: []}
    for number, path in object_paths(graph).items():
        if graph.nodes[number].WhichOneof("kind") == "function" and not path.startswith("graphfreeze/"):
            functions[bool(graph.nodes[number].function.concrete_functions)].append(path)
    return functions[True], functions[False], [k for k in draft.keys() if k.endswith(_SUFFIX)]  # noqa: SIM118


def _at_key(model: Any, key: str) -> Any:
    """The object that a checkpoint key leads to; None where the way is gone."""
    import tensorflow as tf

    found = model
    for part in key.removesuffix(_SUFFIX).split("/"):
        children = tf.train.TrackableView.children(found)
        found = next((child for name, child in children.items() if checkpoint_path((name,)) == part), None)
        if found is None:
            return None
    return found


def _left_behind(model: Any, traced: list[str], untraced: list[str]) -> tuple[str, ...]:
    found = []
    if untraced:
        found.append(
            f"Functions that were never traced are not in the frozen object{_listed(untraced)}. Call each once before "
            "freezing, or give it an input_signature"
        )
    plain = own_methods(model, _FRAMEWORK, frozenset(traced))
    if plain:
        found.append(
            f"Plain Python methods of '{type(model).__name__}' are not in the frozen object{_listed(plain)}. Decorate "
            "those that you need with tf.function and call them once before freezing"
        )
    return tuple(found)


def _listed(names: list[str]) -> str:
    return ": " + ", ".join(f"'{n}'" for n in names) if names else ""
