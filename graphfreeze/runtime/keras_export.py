"""Saves a Keras 3 model as two functions, one per mode, with everything that training needs beside the outputs.

``keras.Model.export`` writes the outputs in inference mode and nothing else. Here both modes are traced, and each
function returns outputs, their masks, and the losses of layers and regularisers: read in the graph, a regulariser sees
effective values. Variables lie under their Keras paths, with the flags that Keras trains by, once each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphfreeze.errors import UsageError
from graphfreeze.planning.plan import Plan
from graphfreeze.runtime.exported import Exported, origin_of
from graphfreeze.runtime.keras_inputs import specs_of
from graphfreeze.runtime.loaded import object_at
from graphfreeze.runtime.objects import own_methods
from graphfreeze.runtime.saving import save_object
from graphfreeze.runtime.specs import one_line
from graphfreeze.savedmodel import NodePath, checkpoint_key, node_at
from graphfreeze.savedmodel.protos import SavedModel

_RESERVED = frozenset({"signatures", "graphfreeze"})
"""Names under the root that mean something to TensorFlow, or to us."""
_CARRIED = frozenset(
    {"call", "build", "get_config", "from_config", "get_build_config", "build_from_config", "compute_mask"}
    | {"compute_output_shape", "compute_output_spec"}
)
"""Methods that are in the graph, or that a frozen model has its own of."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What a frozen model must know of the Keras model it was made from."""

    model: Any
    specs: tuple[Any, ...]
    """TensorSpecs of each positional argument."""
    holder: str
    """The child of the root with the functions ``serve`` and, where the model knows modes, ``train``."""
    paths: Mapping[str, Any]
    """Path in the SavedModel -> the ``keras.Variable``, in the model's order."""


def export_keras(model: Any, folder: Path, inputs: Any = None) -> Exported:
    """Saves a Keras model with its values of now.

    Args:
        model: A built model on the TensorFlow backend.
        folder: Where to save.
        inputs: What to trace a subclassed model for, see ``call_specs``; other models know their inputs.

    Raises:
        UsageError: the model is not built, or ``inputs`` do not fit it.
        UnsupportedModelError: an input is optional, so its graph is not one graph; or see ``save_object``.
        InputOutputError: see ``save_object``.
    """
    origin = origin_of(model)
    if origin is not None:
        return _export_again(model, origin, folder, inputs)
    traced, root, captured = _trace(model, specs_of(model, inputs))
    save_object(root, folder, f"the model '{model.name}'")
    _describe(folder, traced)
    keys = {checkpoint_key(tuple(path.split("/"))): v for path, v in traced.paths.items()}

    def variables() -> Mapping[str, Any]:
        present = {id(v) for v in model.variables}
        return {**{key: v for key, v in keys.items() if id(v) in present}, **captured}

    def load(path: Path, plan: Plan) -> tuple[Any, Any]:
        from graphfreeze.runtime.keras_classes import load_keras

        return load_keras(path, traced, plan)

    return Exported(model, variables, load, _left_behind(model))


def _export_again(model: Any, origin: Any, folder: Path, inputs: Any) -> Exported:
    """A frozen model is frozen again from the SavedModel that it runs, with what that knows of its freeze."""
    if inputs is not None:
        raise UsageError("inputs= is for a model that is traced; this one is frozen already and keeps its inputs")
    save_object(origin.loaded, folder, f"the model '{model.name}'")
    storage = {s.key: object_at(origin.loaded, s.place) for s in origin.sources}
    return Exported(model, lambda: storage, origin.exported.load)


def _trace(model: Any, specs: tuple[Any, ...]) -> tuple[Traced, Any, Mapping[str, Any]]:
    """The object to save. What the functions capture beside Keras's variables is held with them."""
    import tensorflow as tf

    before = list(model.variables)
    functions = {"serve": _function(model, False, specs)}
    if model._call_has_training_arg:
        functions["train"] = _function(model, True, specs)
    model._clear_losses()
    if len(model.variables) != len(before):
        raise UsageError(
            f"The model '{model.name}' made variables when it was traced: it was not fully built. Call it once on a "
            "batch before freezing it"
        )
    paths = _unique_paths(before)
    root = tf.__internal__.tracking.AutoTrackable()
    for path, variable in paths.items():
        _hang(root, tuple(path.split("/")), variable.value)
    holder = "functions"
    while holder in {path.split("/")[0] for path in paths}:
        holder += "_"
    kept = tf.__internal__.tracking.AutoTrackable()
    own = {id(v.value) for v in before}
    graphs = [f.get_concrete_function().graph for f in functions.values()]
    others = {id(v): v for g in graphs for v in g.variables if id(v) not in own}
    kept.captured = list(others.values())
    resource = tf.saved_model.experimental.TrackableResource
    kept.resources = [t for t in tf.train.TrackableView(model).descendants() if isinstance(t, resource)]
    for name, function in functions.items():
        setattr(kept, name, function)
    setattr(root, holder, kept)
    captured = {checkpoint_key((holder, "captured", str(i))): v for i, v in enumerate(others.values())}
    return Traced(model, specs, holder, paths), root, captured


def _function(model: Any, training: bool, specs: tuple[Any, ...]) -> Any:
    """One mode of the model, traced."""
    import keras
    import tensorflow as tf

    mode = {"training": training} if model._call_has_training_arg else {}

    def run(*arguments: Any) -> dict[str, Any]:
        outputs = model(*arguments, **mode)
        masks = [getattr(y, "_keras_mask", None) for y in keras.tree.flatten(outputs)]
        return {
            "outputs": outputs,
            "masks": {str(i): mask for i, mask in enumerate(masks) if mask is not None},
            "losses": list(model.losses),
        }

    function = tf.function(run, input_signature=specs, autograph=False)
    try:
        function.get_concrete_function()
    except (TypeError, ValueError) as error:
        shown = ", ".join(map(str, specs))
        raise UsageError(
            f"The model '{model.name}' cannot be traced for inputs {shown}: {one_line(error)}. Pass inputs= with an "
            "example batch or tf.TensorSpecs; a tuple lists several arguments"
        ) from error
    return function


def _unique_paths(variables: list[Any]) -> dict[str, Any]:
    """Keras's paths, with a number where one is taken, or lies below a variable."""
    found: dict[str, Any] = {}
    holders: set[str] = set()
    for variable in variables:
        first, *rest = variable.path.split("/")
        base = path = "/".join([f"{first}_" if first in _RESERVED else first, *rest])
        number = 0
        while not _is_free(path, found, holders):
            number += 1
            path = f"{base}_{number}"
        found[path] = variable
        parts = path.split("/")
        holders.update("/".join(parts[:i]) for i in range(1, len(parts)))
    return found


def _is_free(path: str, found: Mapping[str, Any], holders: set[str]) -> bool:
    parts = path.split("/")
    above = ["/".join(parts[:i]) for i in range(1, len(parts))]
    return path not in found and path not in holders and not any(a in found for a in above)


def _hang(root: Any, path: NodePath, variable: Any) -> None:
    """Puts a variable under its path."""
    import tensorflow as tf

    *above, name = path
    for part in above:
        child = root.__dict__.get(part)
        if child is None:
            child = tf.__internal__.tracking.AutoTrackable()
            setattr(root, part, child)
        root = child
    setattr(root, name, variable)


def _describe(folder: Path, traced: Traced) -> None:
    """Writes Keras's names and flags into the saved model.

    Keras's flag is its own: ``layer.trainable = False`` does not reach the ``tf.Variable`` that is saved.
    """
    file = folder / "saved_model.pb"
    proto = SavedModel.FromString(file.read_bytes())
    (meta,) = proto.meta_graphs
    trainable = {id(v) for v in traced.model.trainable_variables}
    for path, variable in traced.paths.items():
        number = node_at(meta.object_graph_def, tuple(path.split("/")))
        assert number is not None, path
        saved = meta.object_graph_def.nodes[number].variable
        saved.name, saved.trainable = variable.path, id(variable) in trainable
    file.write_bytes(proto.SerializeToString())


def _left_behind(model: Any) -> tuple[str, ...]:
    plain = own_methods(model, ("keras", "tensorflow", "builtins", "abc"), _CARRIED)
    if not plain:
        return ()
    names = ", ".join(f"'{n}'" for n in plain)
    said = (
        f"Python methods of '{type(model).__name__}' are not in the frozen model: {names}. It is trained by Keras's "
        "own steps; what else they do, do outside of the model"
    )
    return (said,)
