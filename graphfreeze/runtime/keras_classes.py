"""The classes of a frozen Keras model. They derive from Keras's own, so this module is imported late, as a whole.

A Functional or Sequential model becomes a Functional one with the same inputs and names around a ``FrozenLayer``, so
that Keras goes on checking, casting and naming inputs as before. A subclassed model becomes a ``FrozenModel``.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

import keras
import tensorflow as tf

from graphfreeze.errors import UsageError
from graphfreeze.planning.plan import Plan
from graphfreeze.runtime.keras_export import Traced
from graphfreeze.runtime.keras_inputs import symbolic_inputs
from graphfreeze.runtime.loaded import trainable_variables


@dataclass(frozen=True, slots=True)
class CallSpecs:
    """TensorSpecs of each positional argument."""

    arguments: tuple[Any, ...]


class FrozenLayer(keras.layers.Layer):  # type: ignore[misc]
    """Runs the functions of a rewritten SavedModel, one per mode, and owns its variables."""

    def __init__(self, name: str, loaded: Any, traced: Traced, dtype: Any) -> None:
        # Inputs are cast to what was traced, which is not what Keras's policy would cast them to.
        super().__init__(name=name, dtype=dtype, autocast=False)
        # XLA takes fewer ops than a graph may hold, and Keras would use it unasked.
        self.supports_jit = False
        self.loaded = loaded
        # In an object of ours, because Keras puts its own containers in the place of those on attributes.
        self._call_specs = CallSpecs(traced.specs)
        functions = getattr(loaded, traced.holder)
        self._serve = functions.serve
        self._train = getattr(functions, "train", functions.serve)
        self.held = _keras_variables(loaded, traced)
        self.built = True

    @property
    def argument_count(self) -> int:
        """How many positional arguments were traced."""
        return len(self._call_specs.arguments)

    def call(self, *inputs: Any, training: Any = None) -> Any:
        """Outputs with their masks; losses of layers and regularisers are added as they would be by the layers."""
        function = self._train if training else self._serve
        found = function(*_fitted(self.name, inputs, self._call_specs.arguments))
        for loss in found["losses"]:
            self.add_loss(loss)
        outputs = found["outputs"]
        for number, tensor in enumerate(keras.tree.flatten(outputs)):
            if str(number) in found["masks"]:
                tensor._keras_mask = found["masks"][str(number)]
        return outputs

    def save_own_variables(self, store: Any) -> None:
        """By path and not by number, so that a file of another freeze is refused instead of misread."""
        for name, variable in self._stored().items():
            store[name] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """What ``save_own_variables`` wrote.

        Raises:
            UsageError: the file holds other variables.
        """
        expected, found = self._stored(), set(store.keys())
        if set(expected) != found:
            missing = sorted(set(expected) - found)[:3]
            raise UsageError(
                f"The weights are not those of this frozen model: it has {len(expected)} variables, the file "
                f"{len(found)}" + (f", without {_listed(missing)}" if missing else "") + ". Load a file "
                "that save_weights of a model with the same freeze wrote; to start from other weights, load them into "
                "the source model and freeze that"
            )
        for name, variable in expected.items():
            variable.assign(store[name])

    def _stored(self) -> dict[str, Any]:
        return {f"{i:04}|{v.path.replace('/', '|')}": v for i, v in enumerate(self.held)}

    def get_config(self) -> Never:
        """A frozen model has no config.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            "A frozen Keras model runs a graph and has no config, so it cannot be saved as .keras or cloned. Keep its "
            "values with save_weights, write a SavedModel with export, or bring the values back into the source model "
            "with graphfreeze.finalize_into"
        )


class FrozenModel(keras.Model):  # type: ignore[misc]
    """A frozen model of a subclassed one, called as that was: each gets a class with its ``call`` signature."""

    def __init__(self, layer: FrozenLayer, names: Sequence[str], name: str) -> None:
        super().__init__(name=name, dtype=layer.dtype_policy, autocast=False)
        self.supports_jit = False
        self.frozen_layer = layer
        self._names = tuple(names)
        self.built = True

    def call(self, *inputs: Any, **named: Any) -> Any:
        """Runs the layer; replaced by one with the source's signature."""
        bound = self._call_signature.bind(*inputs, **named).arguments
        training = {"training": bound.pop("training")} if "training" in bound else {}
        given: list[Any] = []
        for name in [n for n in self._names if n in bound]:
            several = self._call_signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
            given.extend(bound[name] if several else [bound[name]])
        more = [n for n, v in bound.items() if n not in self._names and v is not None]
        if more or len(given) != self.frozen_layer.argument_count:
            raise UsageError(
                f"The frozen model '{self.name}' takes the arguments that it was traced for, {_listed(self._names)}, "
                f"found {_listed(bound)}. Freeze again and pass inputs= with an example of each argument"
            )
        return self.frozen_layer(*given, **training)

    def get_config(self) -> Never:
        """A frozen model has no config; see ``FrozenLayer.get_config``."""
        self.frozen_layer.get_config()


def load_keras(folder: Path, traced: Traced, plan: Plan) -> tuple[keras.Model, Any]:
    """The frozen Keras model from the rewritten SavedModel, and what ``tf.saved_model.load`` returned for it."""
    loaded = tf.saved_model.load(str(folder))
    source = traced.model
    symbolic = symbolic_inputs(source)
    layer = FrozenLayer(f"{source.name}_frozen", loaded, traced, source.dtype_policy)
    _keep_constraints(layer, traced, plan)
    if symbolic is None:
        return _subclassed(source, layer, traced.specs), loaded
    inputs = keras.tree.map_structure(
        lambda x: keras.Input(batch_shape=x.shape, dtype=x.dtype, name=x.name, sparse=x.sparse), symbolic
    )
    model = keras.Model(inputs, layer(inputs), name=source.name)
    model.dtype_policy = source.dtype_policy
    model.supports_jit = False
    if getattr(source, "output_names", None):
        model.output_names = list(source.output_names)
    return model, loaded


def _subclassed(source: Any, layer: FrozenLayer, specs: tuple[Any, ...]) -> FrozenModel:
    signature = inspect.signature(source.call)
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)

    def call(self: FrozenModel, *inputs: Any, **named: Any) -> Any:
        return FrozenModel.call(self, *inputs, **named)

    call.__signature__ = signature.replace(parameters=[receiver, *signature.parameters.values()])  # type: ignore[attr-defined]
    made: type[FrozenModel] = type(f"Frozen{type(source).__name__}", (FrozenModel,), {"call": call})
    return made(layer, list(signature.bind(*specs).arguments), source.name)


def _keras_variables(loaded: Any, traced: Traced) -> list[keras.Variable]:
    """The loaded variables as Keras's: what trains first and in the source's order, then everything else."""
    trained = sorted(trainable_variables(loaded), key=_rank(traced))
    used: dict[int, Any] = {id(v): v for v in trained}
    functions = getattr(loaded, traced.holder)
    for function in (functions.serve, getattr(functions, "train", functions.serve)):
        for concrete in function.concrete_functions:
            used |= {id(v): v for v in concrete.variables}
    new = {id(v): v for v in getattr(loaded.graphfreeze, "variables", ())}
    foreign = {id(v) for v in getattr(functions, "captured", ())}
    return [
        _keras_variable(v, trainable=i < len(trained) and id(v) not in foreign)
        for i, v in enumerate((used | new).values())
    ]


def _rank(traced: Traced) -> Callable[[Any], int]:
    """The place in the source of a variable, or of the one that it is a part of."""
    places: dict[str, int] = {}
    for place, (path, variable) in enumerate(traced.paths.items()):
        places.setdefault(path, place)
        places.setdefault(variable.path, place)

    def rank(variable: Any) -> int:
        name: str = variable.name.removesuffix(":0")
        return places.get(name.split("/graphfreeze/")[0], len(places))

    return rank


def _keras_variable(variable: Any, *, trainable: bool) -> keras.Variable:
    path = variable.name.removesuffix(":0")
    found = keras.Variable(variable, dtype=variable.dtype, trainable=trainable, name=path.rpartition("/")[2])
    # Keras names optimizer slots by the path; a name scope would give the same, and reject some names that models have.
    found._path = path
    return found


def _keep_constraints(layer: FrozenLayer, traced: Traced, plan: Plan) -> None:
    """Constraints are applied by Keras's optimizers: they stay with variables that train as a whole."""
    (meta,) = plan.meta_graphs
    planned = {v.path: v for v in meta.variables}
    held = {v.value.name.removesuffix(":0"): v for v in layer.held}
    for path, variable in traced.paths.items():
        if variable.constraint is None or path not in planned:
            continue
        if planned[path].strategy is None and variable.path in held:
            held[variable.path].constraint = variable.constraint
        elif planned[path].frozen < planned[path].elements:
            warnings.warn(
                f"The constraint {type(variable.constraint).__name__} of '{variable.path}' is not in the frozen model: "
                "Keras applies it to a whole variable, and part of this one is frozen. Apply it in training to what "
                "graphfreeze.value gives, or freeze all of it",
                UserWarning,
                stacklevel=6,
            )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{n}'" for n in names)


def _fitted(name: str, inputs: tuple[Any, ...], specs: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs as tensors of the traced dtypes."""
    if len(inputs) != len(specs):
        raise UsageError(f"The frozen model '{name}' takes {len(specs)} input arguments, found {len(inputs)}")
    return tuple(
        keras.tree.map_structure_up_to(spec, lambda s, x: _fit(name, x, s), spec, given)
        for spec, given in zip(specs, inputs, strict=True)
    )


def _fit(name: str, value: Any, spec: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec):
        return value
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype != spec.dtype and (
        (tensor.dtype.is_integer and spec.dtype.is_integer) or (tensor.dtype.is_floating and spec.dtype.is_floating)
    ):
        tensor = tf.cast(tensor, spec.dtype)
    if not spec.is_compatible_with(tensor):
        raise UsageError(
            f"The frozen model '{name}' was traced for an input of shape {spec.shape} and dtype {spec.dtype.name}, "
            f"found shape {tensor.shape} and dtype {tensor.dtype.name}. Freeze again and pass inputs= with an example "
            "batch, or with tf.TensorSpecs that leave axes open"
        )
    return tensor
