"""All checks on one rewritten model, and which of them a mutant fails."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import graphfreeze
from graphfreeze.planning.plan import Plan, Storage
from graphfreeze.savedmodel import Bundle, read_bundle, read_saved_model, read_trackable_graph, write_bundle
from tests.helpers.compare import assert_all_bits_equal, assert_bits_equal
from tests.helpers.models import FIXTURES
from tests.helpers.mutation import Mutant, write_mutant
from tests.helpers.promises import Original, check_forward, check_gradients
from tests.helpers.real_models import signature_outputs
from tests.helpers.variables import Array, variable_name, walk

PREFIX = Path("variables", "variables")
_SAVER_FIRST = ("restore", "save", "RestoreV2", "SaveV2", "saver's call")
_LISTS = ("trainable_variables", "variables", "non_trainable_variables")


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Weights on disk with NaN where nothing may read, and the signatures of the original at the effective value."""

    weights: Path
    outputs: dict[str, dict[str, Any]]


class Case:
    """A rewritten fixture with all that its mutants are compared to."""

    def __init__(self, source: Path, folder: Path, *, exact: bool, **options: Any) -> None:
        self.source, self.folder, self.exact = source, folder, exact
        self.out = folder / "out"
        self.plan: Plan = graphfreeze.rewrite(source, self.out, allow_empty=True, **options)
        self.original = Original(source, FIXTURES[source.name].training(), FIXTURES[source.name].skip)
        self.lists = _lists(self.original.loaded)
        self.poisoned = _poison(source, self.out, folder / "poisoned", self.plan)

    def noticed_by(self, mutant: Mutant | None) -> str | None:
        """The first check that fails on the mutant (on the model itself where it is None)."""
        path = self.folder / "mutant"
        shutil.rmtree(path, ignore_errors=True)
        if mutant is None:
            shutil.copytree(self.out, path, copy_function=os.link)
        else:
            write_mutant(self.out, path, mutant)
        checks: list[tuple[str, Callable[[Path], object]]] = [
            ("flags", self.check_flags),
            ("forward", lambda p: check_forward(self.original, p, self.plan)),
            ("eager gradients", lambda p: check_gradients(self.original, p, self.plan, "eager", exact=self.exact)),
            ("gradients", lambda p: check_gradients(self.original, p, self.plan, "function", exact=self.exact)),
            ("TF1 loader", self.check_tf1),
        ]
        if mutant is not None and mutant.kind in _SAVER_FIRST:
            checks.reverse()
        for name, check in checks:
            try:
                check(path)
            except Exception:  # whatever a mutant does, it shows
                if mutant is None:
                    raise
                return name
        return None

    def check_flags(self, path: Path) -> None:
        """Flags, the list of what trains, and the root's lists, as the plan alone says."""
        loaded = tf.saved_model.load(str(path))
        flags, trains = self._expected()
        for place, variable in walk(loaded):
            if isinstance(variable, tf.Variable):
                name = variable_name(variable)
                assert variable.trainable == flags[name], place
        assert [variable_name(v) for v in graphfreeze.trainable_variables(loaded)] == trains
        found = _lists(loaded)
        new = [variable_name(v) for v in getattr(loaded.graphfreeze, "variables", ())]
        listed = set(self.lists.get("variables", ()))
        joined = {n for n in new if n.split("/graphfreeze/")[0] in listed}
        for title, names in self.lists.items():
            if title == "trainable_variables":
                assert found[title] == [t for n in names for t in trains if t.split("/graphfreeze/")[0] == n], title
            elif title == "variables":
                assert set(found[title]) == listed | joined, title
            else:
                off = {n for n in self.lists["trainable_variables"] if not flags[n]}
                assert set(found[title]) == set(names) | off | {n for n in joined if not flags[n]}, title

    def _expected(self) -> tuple[dict[str, bool], list[str]]:
        flags: dict[str, bool] = {}
        trains: list[str] = []
        for variable in self.plan.meta_graphs[0].variables:
            if variable.strategy is None or not variable.atoms:
                flags[variable.name] = variable.trainable and variable.strategy is None
                trains += [variable.name] if flags[variable.name] and variable.kind == "weight" else []
                continue
            base = any(a.storage is Storage.BASE and a.trainable for a in variable.atoms)
            flags[variable.name] = base
            trains += [variable.name] if base else []
            for atom in variable.atoms:
                if atom.name is not None:
                    flags[atom.name] = atom.trainable
                    trains += [atom.name] if atom.trainable else []
        return _Default(flags), trains

    def check_tf1(self, path: Path) -> None:
        """The TF1 loader restores poisoned weights, gives the original's outputs, and saves all weights again."""
        held = self.folder / "held"
        shutil.rmtree(held, ignore_errors=True)
        shutil.copytree(self.poisoned.weights, held / "variables", copy_function=os.link)
        os.link(path / "saved_model.pb", held / "saved_model.pb")
        if (path / "assets").is_dir():
            shutil.copytree(path / "assets", held / "assets")
        assert_all_bits_equal(
            signature_outputs(held, skip=FIXTURES[self.source.name].steps), self.poisoned.outputs, "TF1 loader: "
        )
        saved = self.folder / "saved"
        shutil.rmtree(saved, ignore_errors=True)
        saved.mkdir()
        meta = read_saved_model(held).proto.meta_graphs[0]
        with tf.compat.v1.Session(graph=tf.Graph()) as session:
            tf.compat.v1.saved_model.load(session, list(meta.meta_info_def.tags), str(held))
            saver = meta.saver_def
            session.run(saver.save_tensor_name, {saver.filename_tensor_name: str(saved / "variables")})
        expected, actual = _tensors(read_bundle(held / PREFIX)), _tensors(_saved_bundle(saved))
        assert set(actual) == set(expected)
        for key, value in expected.items():
            assert_bits_equal(actual[key], value, key)


class _Default(dict[str, bool]):
    """Variables that the plan does not name hold geometry: they never train."""

    def __missing__(self, name: str) -> bool:
        assert "/graphfreeze/" in name, name
        return False


def _saved_bundle(folder: Path) -> Bundle:
    (index,) = folder.rglob("*.index")
    return read_bundle(index.with_suffix(""))


def _tensors(bundle: Bundle) -> dict[str, Array]:
    graph = "_CHECKPOINTABLE_OBJECT_GRAPH"
    return {k: np.asarray(bundle.read_tensor(k)) for k in bundle.entries if k != graph}


def _lists(loaded: Any) -> dict[str, list[str]]:
    """The root's lists of variables, as names."""
    found = {}
    for title in _LISTS:
        held = getattr(loaded, title, None)
        if isinstance(held, list | tuple) or type(held).__name__ == "ListWrapper":
            found[title] = [variable_name(v) for v in held]
    return found


def _poison(source: Path, out: Path, target: Path, plan: Plan) -> Poisoned:
    """As promises.poison, in files: the TF1 loader has no variables to assign to."""
    generator = np.random.default_rng(11)
    plain, held = read_bundle(source / PREFIX), read_bundle(out / PREFIX)
    graph = read_trackable_graph(held)
    # Several of one name where Keras 3 wrote a variable twice.
    keys: dict[str, list[str]] = defaultdict(list)
    for attribute in (a for n in graph.nodes for a in n.attributes):
        keys[attribute.full_name].append(attribute.checkpoint_key)
    original: dict[str, Array] = {}
    rewritten: dict[str, Array] = {}
    for variable in plan.meta_graphs[0].variables:
        if variable.strategy is None or variable.key is None:
            continue
        base = np.array(plain.read_tensor(variable.key))
        effective = base.copy()
        for atom in variable.atoms:
            shape = atom.region.storage_shape
            fresh = generator.normal(size=shape).astype(base.dtype) if atom.trainable else atom.region.take(effective)
            effective = atom.region.put(effective, fresh)
            if atom.name is None:
                base = atom.region.put(base, fresh)
            else:
                base = atom.region.put(base, np.full(shape, np.nan, base.dtype))
                rewritten[keys[atom.name][0]] = np.asarray(fresh, order="C")
        copies = keys[variable.name] if variable.name in keys and variable.key in keys[variable.name] else []
        for key in {variable.key, *copies}:
            rewritten[key], original[key] = np.asarray(base, order="C"), np.asarray(effective, order="C")
    at_value = target / "original"
    shutil.copytree(source, at_value)
    shutil.rmtree(at_value / "variables")
    for folder, bundle, put in ((at_value / "variables", plain, original), (target / "weights", held, rewritten)):
        folder.mkdir(parents=True)
        write_bundle(folder / "variables", source=bundle, put=put)
    return Poisoned(target / "weights", signature_outputs(at_value, skip=FIXTURES[source.name].steps))
