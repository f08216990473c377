"""What a Keras model is called with, as TensorSpecs: a Functional model knows it, a subclassed one may be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from graphfreeze.errors import UnsupportedModelError, UsageError
from graphfreeze.runtime.specs import call_specs


def specs_of(model: Any, inputs: Any) -> tuple[Any, ...]:
    """TensorSpecs of the arguments: of the input tensors, of ``inputs``, or of the shapes that the model was built for.

    Raises:
        UsageError: the model does not know its inputs, or knows them itself and is told.
        UnsupportedModelError: an input is optional, so its graph is not one graph.
    """
    import keras
    import tensorflow as tf

    symbolic = symbolic_inputs(model)
    if symbolic is not None:
        if inputs is not None:
            raise UsageError(f"inputs= is for subclassed models; the model '{model.name}' says its inputs itself")
        return (keras.tree.map_structure(_symbolic_spec, symbolic),)
    if inputs is not None:
        return call_specs(inputs)
    config = (model.get_build_config() or {}) if model.built else {}
    shapes = [config["input_shape"]] if "input_shape" in config else list(config.get("shapes_dict", {}).values())
    if not shapes:
        raise UsageError(
            f"The model '{model.name}' was never called, so its inputs are unknown. Call it once on a batch, and pass "
            "inputs= with that batch (or tf.TensorSpecs) where its inputs are not plain float tensors"
        )

    def spec(shape: Any) -> Any:
        return tf.TensorSpec([None, *tuple(shape)[1:]], model.input_dtype)

    return tuple(keras.tree.map_shape_structure(spec, _plain(s)) for s in shapes)


def _plain(structure: Any) -> Any:
    """Keras's tracked containers as plain ones."""
    if isinstance(structure, Mapping):
        return {k: _plain(v) for k, v in structure.items()}
    if isinstance(structure, (list, tuple)):
        return (
            type(structure)(map(_plain, structure))
            if type(structure) in (list, tuple)
            else list(map(_plain, structure))
        )
    return structure


def symbolic_inputs(model: Any) -> Any:
    """The structure of input tensors of a Functional or Sequential model; None for a subclassed one."""
    import keras

    if isinstance(model, keras.Sequential):
        return model.inputs[0] if model.built and model.inputs else None
    return getattr(model, "_inputs_struct", None)


def _symbolic_spec(tensor: Any) -> Any:
    import tensorflow as tf

    if getattr(tensor._keras_history.operation, "optional", False):
        raise UnsupportedModelError(
            f"The input '{tensor.name}' is optional: with and without it the model is another graph. Freeze a model "
            "that always takes it"
        )
    # A Keras model takes any batch, whatever size it was built with.
    shape = [None, *tensor.shape[1:]] if len(tensor.shape) else []
    return (tf.SparseTensorSpec if tensor.sparse else tf.TensorSpec)(shape, tensor.dtype)
