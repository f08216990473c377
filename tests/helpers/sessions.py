"""TF1 models in a Session: every tensor by its name, variables by their node, and the promises on them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import gen_resource_variable_ops, gen_state_ops

from graphfreeze.planning.plan import Plan, Storage, VariablePlan
from tests.helpers.compare import assert_bits_equal
from tests.helpers.variables import Array

tf1 = tf.compat.v1
_VARIABLES = ("VariableV2", "Variable", "VarHandleOp")
_EFFECTS = ("Assign", "Apply", "Scatter", "Save", "Restore", "Merge", "Sharded", "Print", "Write")
_RANDOM = ("Random", "Truncated")
_IDS = 6
_FED = 4
"""Size of a dimension that a placeholder leaves open."""


class Model:
    """One meta graph, loaded into a Session of its own."""

    def __init__(self, path: Path, tags: Iterable[str] = ("serve",), scope: str | None = None) -> None:
        self.graph = tf.Graph()
        self.prefix = f"{scope}/" if scope else ""
        with self.graph.as_default():
            self.session = tf1.Session()
            self.meta = tf1.saved_model.load(self.session, list(tags), str(path), import_scope=scope)

    def __enter__(self) -> Model:
        self._context = self.graph.as_default()
        self._context.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)
        self.session.close()

    def run(self, names: Any, feed: Mapping[str, Any] | None = None) -> Any:
        return self.session.run(names, dict(feed or {}))

    def values(self, nodes: Iterable[str]) -> dict[str, Array]:
        """The stored values of variables, in one run: every new op of a graph costs the next run dearly."""
        with self.graph.as_default():
            tensors = {}
            for node in nodes:
                op = self.graph.get_operation_by_name(node)
                tensors[node] = op.outputs[0]
                if op.type == "VarHandleOp":
                    tensors[node] = gen_resource_variable_ops.read_variable_op(op.outputs[0], op.get_attr("dtype"))
        return {node: np.array(value) for node, value in self.session.run(tensors).items()}

    def variable(self, node: str) -> Array:
        """The stored value of a variable."""
        return self.values([node])[node]

    def assign_all(self, values: Mapping[str, Array]) -> None:
        """Stores values, in one run."""
        with self.graph.as_default():
            writes, feed = [], {}
            for node, value in values.items():
                op = self.graph.get_operation_by_name(node)
                given = tf1.placeholder(op.get_attr("dtype"), value.shape)
                is_resource = op.type == "VarHandleOp"
                write = gen_resource_variable_ops.assign_variable_op if is_resource else gen_state_ops.assign
                writes.append(write(op.outputs[0], given))
                feed[given] = value
        self.session.run(writes, feed)

    def assign(self, node: str, value: Array) -> None:
        self.assign_all({node: value})

    def feed(self) -> dict[str, Any]:
        """Something for every input of every signature."""
        found: dict[str, Any] = {}
        for signature in self.meta.signature_def.values():
            for info in signature.inputs.values():
                generator = np.random.default_rng(zlib.crc32(info.name.encode()))
                shape = [d.size if d.size >= 0 else 5 for d in info.tensor_shape.dim]
                dtype = tf.as_dtype(info.dtype)
                if dtype.is_floating:
                    found[info.name] = generator.normal(size=shape).astype(dtype.as_numpy_dtype)
                elif dtype.is_integer:
                    found[info.name] = np.asarray(generator.integers(0, _IDS, shape), dtype.as_numpy_dtype)
                else:
                    found[info.name] = np.resize(np.array([b"a", b"bc"], object), shape)
        return found

    def fetchable(self) -> list[str]:
        """Every tensor that can be fetched by name without changing anything."""
        skipped: set[str] = set()
        for op in self.graph.get_operations():
            if any(word in op.type for word in _RANDOM) or any(t.op.name in skipped for t in op.inputs):
                skipped.add(op.name)
        fetched = (op for op in self.graph.get_operations() if op.name not in skipped and self._is_fetchable(op))
        return [t.name for op in fetched for t in op.outputs]

    def _is_fetchable(self, op: Any) -> bool:
        if op.type in _VARIABLES or any(word in op.type for word in _EFFECTS) or op.type.startswith("Ref"):
            return False
        if op.type in ("Switch", "Placeholder") or not self.graph.is_fetchable(op):
            return False
        if op._get_control_flow_context() is not None:
            return False
        if any(user.type in ("SaveV2", "RestoreV2") for t in op.outputs for user in t.consumers()):
            return False  # what the saver is told, which says of more variables now
        if re.match(r"save(_\d+)?/", op.name):
            return False  # what it saves is what is stored
        return all(t.dtype not in (tf.resource, tf.variant) for t in op.outputs)


def placeholders_behind(model: Model, names: Iterable[str], *, seed: int) -> dict[str, Any]:
    """Random numbers for every placeholder that these ops need."""
    generator = np.random.default_rng(seed)
    pending, seen = list(names), set[str]()
    found: dict[str, Any] = {}
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        op = model.graph.get_operation_by_name(name)
        pending += [t.op.name for t in op.inputs] + [c.name for c in op.control_inputs]
        if op.type == "Placeholder":
            shape = op.outputs[0].shape
            sizes = [_FED if d is None else d for d in shape] if shape.rank is not None else []
            dtype = op.outputs[0].dtype
            value = generator.normal(size=sizes) if dtype.is_floating else generator.integers(0, 2, sizes)
            found[f"{name}:0"] = np.asarray(value).astype(dtype.as_numpy_dtype)
    return found


def computable(model: Model, names: list[str]) -> list[str]:
    """Those of the tensors that can be computed from what is fed (a string may be no serialized example)."""
    feed = model.feed()
    left = [n for n in names if n not in feed]
    while left:
        try:
            model.run(left, feed)
            break
        except tf.errors.OpError as error:
            spoilt = set() if error.op is None else _dependent(model.graph, error.op.name)
            kept = [n for n in left if n.split(":")[0] not in spoilt]
            if len(kept) == len(left):
                raise
            left = kept
    return left


def _dependent(graph: Any, name: str) -> set[str]:
    found, pending = {name}, [name]
    while pending:
        op = graph.get_operation_by_name(pending.pop())
        users = [user for t in op.outputs for user in t.consumers()] + op._control_outputs
        pending += [user.name for user in users if user.name not in found]
        found |= {user.name for user in users}
    return found


def assert_same_fetches(actual: Model, expected: Model, names: list[str], prefix: str = "") -> None:
    """``prefix`` is the name scope of the first."""
    feed = expected.feed()
    plain = expected.run(names, feed)
    held = actual.run([prefix + n for n in names], {prefix + n: value for n, value in feed.items()})
    for name, found, value in zip(names, held, plain, strict=True):
        assert_bits_equal(found, value, name)


def effective(model: Model, variable: VariablePlan, prefix: str = "") -> Array:
    """The effective value, put together by numpy. ``prefix`` is the name scope that the graph was imported into."""
    value = model.variable(prefix + variable.name)
    for atom in variable.atoms:
        if atom.name:
            value = atom.region.put(value, model.variable(prefix + atom.name))
    return value


def poison(model: Model, variables: Iterable[VariablePlan], generator: np.random.Generator) -> dict[str, Array]:
    """NaN into what nothing may read, random numbers into what trains; returns the effective values by name."""
    variables = list(variables)
    stored = model.values([n for v in variables for n in (v.name, *(a.name for a in v.atoms if a.name))])
    effective = {}
    for variable in variables:
        value = stored[variable.name]
        for atom in variable.atoms:
            if atom.storage is Storage.BASE and atom.trainable:
                value = atom.region.put(value, _random(atom.region.take(value), generator))
        whole = value
        for atom in variable.atoms:
            if atom.name:
                value = atom.region.put(value, np.full(atom.region.storage_shape, np.nan, value.dtype))
                if atom.trainable:
                    stored[atom.name] = _random(stored[atom.name], generator)
                whole = atom.region.put(whole, stored[atom.name])
        stored[variable.name], effective[variable.name] = value, whole
        assert not np.isnan(whole).any()
    model.assign_all(stored)
    return effective


def _random(like: Array, generator: np.random.Generator) -> Array:
    return np.asarray(generator.normal(size=like.shape)).astype(like.dtype)


def check_fetches(original: Path, rewritten: Path, plan: Plan) -> int:
    """G1 of every meta graph: every tensor of the original by name, and again with poisoned storage."""
    held = 0
    for number, meta in enumerate(plan.meta_graphs):
        generator = np.random.default_rng(number)
        with Model(original, meta.tags) as plain:
            names = computable(plain, plain.fetchable())
            assert names
            with Model(rewritten, meta.tags) as changed:
                assert_same_fetches(changed, plain, names)
                touched = [v for v in meta.variables if v.strategy is not None and v.atoms]
                plain.assign_all(poison(changed, touched, generator))
                assert_same_fetches(changed, plain, names)
                held += len(touched)
    return held


def loss_of(meta: Any) -> tuple[dict[str, Any], str]:
    """What to feed, and the name of the loss that a signature gives out."""
    for signature in meta.signature_def.values():
        if "loss" in signature.outputs:
            names = {info.name for info in signature.inputs.values()}
            probe = Model.__new__(Model)
            probe.meta = meta
            return {k: v for k, v in sorted(probe.feed().items()) if k in names}, signature.outputs["loss"].name
    raise AssertionError("no signature gives out a loss")


def gradients_of(model: Model) -> dict[str, Any]:
    """The gradient of the loss for every trainable variable, by name; sparse ones stay sparse."""
    feed, loss = loss_of(model.meta)
    variables = tf1.trainable_variables()
    found = tf1.gradients(model.graph.get_tensor_by_name(loss), variables)
    values = model.run([g for g in found if g is not None], feed)
    names = [v.op.name for v, g in zip(variables, found, strict=True) if g is not None]
    return dict(zip(names, values, strict=True))


def is_sparse(gradient: Any) -> bool:
    return hasattr(gradient, "dense_shape")


def dense(gradient: Any) -> Array:
    """A gradient as it is added up; rows in the order in which they come."""
    if not is_sparse(gradient):
        return np.asarray(gradient)
    total = np.zeros(gradient.dense_shape, gradient.values.dtype)
    np.add.at(total, gradient.indices, gradient.values)
    return total


def minimize(model: Model, make: Callable[[], Any], *, steps: int) -> None:
    """Trains with a new optimizer as a user does, over what the collections say."""
    feed, loss = loss_of(model.meta)
    feed = {model.prefix + name: value for name, value in feed.items()}
    before = set(tf1.global_variables())
    step = make().minimize(model.graph.get_tensor_by_name(model.prefix + loss))
    model.run(tf1.variables_initializer([v for v in tf1.global_variables() if v not in before]))
    for _ in range(steps):
        model.run(step, feed)


def trained_oracle(path: Path, meta: Any, make: Any, *, steps: int) -> dict[str, Array]:
    """The original trained with frozen elements put back, and their gradient zero, in every step."""
    with Model(path, meta.tags) as model:
        feed, loss = loss_of(model.meta)
        before = set(tf1.global_variables())
        optimizer = make()
        pairs = optimizer.compute_gradients(model.graph.get_tensor_by_name(loss))
        start = {v.name: model.variable(v.name) for v in meta.variables}
        masks = {v.name: v.region.to_mask() for v in meta.variables if v.region is not None}
        masked = [(_without(g, masks.get(v.op.name)), v) for g, v in pairs if g is not None]
        step = optimizer.apply_gradients(masked)
        model.run(tf1.variables_initializer([v for v in tf1.global_variables() if v not in before]))
        for _ in range(steps):
            model.run(step, feed)
            for name, mask in masks.items():
                model.assign(name, np.where(mask, start[name], model.variable(name)))
        return {name: model.variable(name) for name in start}


def _without(gradient: Any, mask: Array | None) -> Any:
    if mask is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        held = tf.gather(tf.constant(mask), gradient.indices)
        values = tf.where(held, tf.zeros_like(gradient.values), gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.where(tf.constant(mask), tf.zeros_like(gradient), gradient)


def export(model: Model, target: Path, tags: Iterable[str]) -> None:
    """Saves the session as a user does after training."""
    signatures = {}
    for name, signature in model.meta.signature_def.items():
        signatures[name] = type(signature).FromString(signature.SerializeToString())
        for info in (*signatures[name].inputs.values(), *signatures[name].outputs.values()):
            info.name = model.prefix + info.name
    builder = tf1.saved_model.Builder(str(target))
    builder.add_meta_graph_and_variables(model.session, list(tags), signature_def_map=signatures)
    builder.save()
