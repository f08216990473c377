"""The promises as checks on a rewritten model: same forward, poison, same gradient.

Each check loads both models afresh, because TensorFlow gives a reloaded loop its gradient in one mode only (design.md,
fact 6). The storage of a rewritten model is set through its plan: dead elements become NaN, trainable ones random.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from graphfreeze.planning.plan import Atom, Plan, Storage, VariablePlan
from tests.helpers.compare import assert_bits_equal, assert_within_eps
from tests.helpers.functions import outputs_of, variables_kept
from tests.helpers.training import Mode, Training, make_gradients
from tests.helpers.variables import Array, trainable_of, used_variables, variables_by_path


@dataclass(frozen=True, slots=True)
class Parts:
    """One frozen variable of a loaded rewritten model: the original object and its new ones by atom."""

    plan: VariablePlan
    base: Any
    new: tuple[tuple[Atom, Any], ...]


def parts_of(loaded: Any, plan: Plan) -> Iterator[Parts]:
    """Every variable with atoms. A list that lost a variable may have been its path, so info says where it is now."""
    info = json.loads(loaded.graphfreeze.info().numpy())
    by_path = variables_by_path(loaded)
    by_name = {v.name.removesuffix(":0"): v for v in getattr(loaded.graphfreeze, "variables", ())}
    for variable in plan.meta_graphs[0].variables:
        if variable.strategy is None or not variable.atoms:
            continue
        base = by_path["/".join(info["places"][variable.path])]
        yield Parts(variable, base, tuple((a, by_name[a.name]) for a in variable.atoms if a.name))


def effective(parts: Parts) -> Array:
    """The effective value, put together by numpy."""
    value = parts.base.numpy()
    for atom, variable in parts.new:
        value = atom.region.put(value, variable.numpy())
    return value


def poison(parts: Parts, generator: np.random.Generator) -> None:
    """NaN into every element that nothing may read, fresh random numbers into what trains."""
    dtype = parts.base.dtype.as_numpy_dtype
    value = parts.base.numpy()
    for atom in parts.plan.atoms:
        if atom.storage is Storage.BASE and atom.trainable:
            value = atom.region.put(value, _random(atom.region.take(value).shape, dtype, generator))
    for atom, variable in parts.new:
        value = atom.region.put(value, np.full(atom.region.storage_shape, np.nan, dtype))
        if atom.trainable:
            variable.assign(_random(variable.shape.as_list(), dtype, generator))
    parts.base.assign(value)


def _random(shape: Any, dtype: Any, generator: np.random.Generator) -> Array:
    values = generator.normal(size=tuple(shape))
    if np.dtype(dtype).kind == "c":
        values = values + 1j * generator.normal(size=tuple(shape))
    return values.astype(dtype)


class Original:
    """An original model with what the checks compare to, worked out once."""

    def __init__(self, path: Path, training: Training, skip: frozenset[str] = frozenset()) -> None:
        self.path = path
        self.training = training
        self.skip = skip
        self.loaded = tf.saved_model.load(str(path))
        self.outputs = outputs_of(self.loaded, skip=skip)
        self._gradients: dict[Mode, dict[str, Any]] = {}

    def gradients(self, mode: Mode) -> dict[str, Any]:
        """By path, for all that trains, from a fresh load; the batch of step 0."""
        if mode not in self._gradients:
            loaded = tf.saved_model.load(str(self.path))
            variables = trainable_of(loaded)
            found = make_gradients(self.training, loaded, list(variables.values()), mode)(0)
            self._gradients[mode] = dict(zip(variables, found, strict=True))
        return self._gradients[mode]


def check_forward(original: Original, rewritten: Path, plan: Plan, seed: int = 7) -> None:
    """G1, every function and signature bit for bit; then again with poisoned storage, at the effective value."""
    plain, held = original.loaded, tf.saved_model.load(str(rewritten))
    assert_same_outputs(outputs_of(held, skip=original.skip), original.outputs)
    generator = np.random.default_rng(seed)
    by_path = variables_by_path(plain)
    with variables_kept(plain):
        for parts in parts_of(held, plan):
            poison(parts, generator)
            assert not np.isnan(effective(parts).astype(np.complex128)).any()
            by_path[parts.plan.path].assign(effective(parts))
        assert_same_outputs(outputs_of(held, skip=original.skip), outputs_of(plain, skip=original.skip))


def assert_same_outputs(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(actual) == set(expected), (sorted(actual), sorted(expected))
    for name, outputs in expected.items():
        if not isinstance(outputs, dict):
            assert actual[name] == outputs, (name, actual[name], outputs)
            continue
        assert isinstance(actual[name], dict), (name, actual[name])
        for key, value in outputs.items():
            assert_bits_equal(actual[name][key], value, f"{name}{key}")


def check_gradients(original: Original, rewritten: Path, plan: Plan, mode: Mode, *, exact: bool = True) -> int:
    """G2: nothing at frozen elements, the original's bits elsewhere, sparse where it was sparse.

    ``exact`` is False only where a variable is read several times: TensorFlow then adds gradients in another order.

    Returns how many frozen elements have a non-zero gradient in the original (a check with none proves nothing).
    """
    held = tf.saved_model.load(str(rewritten))
    same = assert_bits_equal if exact else assert_within_eps
    expected = original.gradients(mode)
    touched = list(parts_of(held, plan))
    others = _others(original.loaded, held, {p.plan.path for p in touched})
    wanted = [v for p in touched for v in (p.base, *(v for _, v in p.new))]
    found = iter(make_gradients(original.training, held, [*wanted, *others.values()], mode)(0))
    moved = 0
    for parts in touched:
        base = next(found)
        new = [(atom, next(found)) for atom, _ in parts.new]
        moved += _check_one(parts, expected[parts.plan.path], base, new, same)
    for path, variable in others.items():
        _check_untouched(variable, next(found), expected[path], same)
    return moved


def _others(plain: Any, held: Any, touched: set[str]) -> dict[str, Any]:
    """The trainable variables that the plan leaves alone, by their path in the original: there, or by name."""
    names: dict[str, Any] = {v.name: v for v in used_variables(held).values()}
    paths = variables_by_path(held)
    found = {}
    for path, variable in trainable_of(plain).items():
        if path not in touched:
            there = paths.get(path)
            found[path] = there if there is not None and there.name == variable.name else names[variable.name]
            assert found[path].trainable, path
    return found


def _check_untouched(variable: Any, actual: Any, expected: Any, same: Callable[[Any, Any, str], None]) -> None:
    shape = variable.numpy().shape
    assert isinstance(actual, tf.IndexedSlices) == isinstance(expected, tf.IndexedSlices), variable.name
    same(_dense(actual, shape, variable), _dense(expected, shape, variable), f"{variable.name}, left alone")


def _check_one(
    parts: Parts, gradient: Any, base: Any, new: list[tuple[Atom, Any]], same: Callable[[Any, Any, str], None]
) -> int:
    label = parts.plan.name
    shape = list(parts.base.numpy().shape)
    dense = _dense(gradient, shape, parts.base)
    moved = 0
    for atom in parts.plan.atoms:
        expected = atom.region.take(dense)
        if not atom.trainable:
            moved += int(np.count_nonzero(expected))
        if atom.storage is Storage.BASE:
            actual = atom.region.take(_dense(base, shape, parts.base))
            same(actual, expected if atom.trainable else np.zeros_like(expected), f"{label} base")
            if isinstance(gradient, tf.IndexedSlices) and atom.trainable:
                _check_sparse(atom, gradient, base, label)
            continue
        found = next(g for a, g in new if a is atom)
        if not atom.trainable:
            # A loop that captures the copy's handle gives zeros for it, as TensorFlow does for every capture.
            assert found is None or not np.any(_dense(found, list(atom.region.storage_shape), parts.base)), label
            continue
        same(_dense(found, list(atom.region.storage_shape), parts.base), expected, f"{label} part")
        if isinstance(gradient, tf.IndexedSlices):
            _check_sparse(atom, gradient, found, label)
    return moved


def _check_sparse(atom: Atom, gradient: Any, found: Any, label: str) -> None:
    """Rows for trainable ids that were looked up, and no others; in a part, by their place there."""
    assert isinstance(found, tf.IndexedSlices), f"{label}: a sparse gradient turned dense"
    live = np.flatnonzero(atom.region.to_mask().reshape(atom.region.shape[0], -1).any(axis=1))
    wanted = np.intersect1d(gradient.indices.numpy(), live)
    if atom.storage is Storage.PART:
        wanted = np.searchsorted(live, wanted)
    assert sorted(set(found.indices.numpy().tolist())) == wanted.tolist(), f"{label}: rows in the sparse gradient"


def _dense(gradient: Any, shape: list[int], like: Any) -> Array:
    if gradient is None:
        return np.zeros(shape, like.dtype.as_numpy_dtype)
    if isinstance(gradient, tf.IndexedSlices):
        # In order of occurrence, as TensorFlow adds them.
        total = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])
        return np.asarray(total.numpy()).reshape(shape)
    return np.asarray(gradient.numpy())
