"""Questions about a rewritten model that is loaded: what trains, and what the effective values are.

Works on what ``tf.saved_model.load`` or ``graphfreeze.freeze`` returned. Nothing here is needed to train: without
graphfreeze the same list is ``loaded.graphfreeze.info.concrete_functions[0].trainable_variables``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import NoMatchError, UsageError
from graphfreeze.lowering.facts import Fact, check_format, read_fact
from graphfreeze.runtime.exported import origin_of


def trainable_variables(loaded: Any, *, phase: str | None = None) -> list[Any]:
    """The ``tf.Variable`` objects to give to an optimizer, in the order of the source, a part in its variable's place.

    Args:
        loaded: What ``tf.saved_model.load`` returned for a rewritten model, or what ``freeze`` returned. For a Keras
            model they are its ``keras.Variable`` objects. Or a ``tf.Graph`` that a rewritten TF1 model was loaded into.
        phase: One of the model's phases; by default the first.

    Raises:
        UsageError: the model carries no freeze, or has no such phase.
    """
    if hasattr(loaded, "get_collection"):
        return _in_graph(loaded, phase)
    revived = _revived(loaded)
    holder = _info(revived) if phase is None else _phase(revived, phase).info
    found = list(holder.concrete_functions[0].trainable_variables)
    if revived is loaded:
        return found
    trained = {id(v) for v in found}
    return [v for v in loaded.variables if id(v.value) in trained]


def value(loaded: Any, name: str) -> NDArray[Any]:
    """The effective value of a variable: the frozen value at frozen elements, the trained value elsewhere.

    Args:
        loaded: What ``tf.saved_model.load`` returned for a rewritten model, or what ``freeze`` returned.
        name: The variable's name, or its path in the object graph where several have that name.

    Returns:
        An array of the variable's shape and dtype.

    Raises:
        UsageError: the model carries no freeze.
        NoMatchError: no variable, or more than one, has that name.
    """
    loaded = _revived(loaded)
    data = read_info(loaded)
    wanted = name.removesuffix(":0")
    found = [d for d in data["variables"] if wanted == d["path"]]
    found = found or [d for d in data["variables"] if wanted == d["name"]]
    if len(found) > 1:
        paths = ", ".join(f"'{d['path']}'" for d in found)
        raise NoMatchError(f"'{name}' names {len(found)} frozen variables. Give the path of one: {paths}")
    if not found:
        return _untouched(loaded, wanted)
    return effective(loaded, data["places"][found[0]["path"]], found[0])


def read_info(loaded: Any) -> dict[str, Any]:
    """The facts that a rewritten model carries about itself."""
    data: dict[str, Any] = json.loads(_info(loaded)().numpy())
    check_format(data.get("format"))
    return data


def phase_records(loaded: Any) -> tuple[dict[str, Any], ...]:
    """What a model says of its phases, in order (see ``PhaseRecord``); nothing where it has none, or no freeze."""
    if not hasattr(getattr(loaded, "graphfreeze", None), "info"):
        return ()
    return tuple(read_info(loaded).get("phases", ()))


def _revived(model: Any) -> Any:
    """What ``tf.saved_model.load`` returned; a frozen Keras model keeps it."""
    origin = origin_of(model)
    return model if origin is None else origin.loaded


def _info(loaded: Any) -> Any:
    holder = getattr(loaded, "graphfreeze", None)
    if holder is None or not hasattr(holder, "info"):
        raise UsageError(
            "This object carries no freeze: it has no 'graphfreeze.info'. Load a model that graphfreeze rewrote, with "
            "tf.saved_model.load"
        )
    return holder.info


def _in_graph(graph: Any, phase: str | None) -> list[Any]:
    if phase is None:
        return list(graph.get_collection("trainable_variables"))
    names = {tensor.name: None for tensor in graph.get_collection(f"graphfreeze/{phase}")}
    if not names:
        raise UsageError(f"The graph has no phase '{phase}': its collection 'graphfreeze/{phase}' is empty")
    by_name = {v.name: v for v in graph.get_collection("variables")}
    return [by_name[name] for name in names]


def _phase(loaded: Any, phase: str) -> Any:
    known = [p["name"] for p in phase_records(loaded)]
    if phase not in known:
        names = ", ".join(f"'{name}'" for name in known)
        has = f"It has {names}" if known else "Phases are [[phase]] tables of the spec that it is rewritten with"
        raise UsageError(f"The model has no phase '{phase}'. {has}")
    return getattr(loaded.graphfreeze.phases, phase)


def effective(loaded: Any, place: Sequence[str], data: dict[str, Any]) -> NDArray[Any]:
    """The effective value of the variable at ``place``, put together from its facts and the storage."""
    fact, new = _fact(loaded, data)
    result = np.asarray(object_at(loaded, place).numpy())
    for held in fact.held:
        if held.name is not None:
            result = held.region.put(result, np.asarray(new[held.name].numpy()))
    return result


def assign_effective(loaded: Any, place: Sequence[str], data: dict[str, Any], value: NDArray[Any]) -> None:
    """The reverse of ``effective``: every storage of the variable gets its elements."""
    fact, new = _fact(loaded, data)
    object_at(loaded, place).assign(value)
    for held in fact.held:
        if held.name is not None:
            new[held.name].assign(np.asarray(held.region.take(value)))


def _fact(loaded: Any, data: dict[str, Any]) -> tuple[Fact, dict[str, Any]]:
    """What became of a variable, and the new variables by name."""
    new = {v.name.removesuffix(":0"): v for v in getattr(loaded.graphfreeze, "variables", ())}
    masks: dict[str, str] = data["masks"]

    def geometry(key: str) -> NDArray[np.generic] | None:
        name = masks.get(f"mask:{key}")
        return None if name is None else np.asarray(new[name].numpy())

    return read_fact(data, geometry), new


def object_at(loaded: Any, place: Sequence[str]) -> Any:
    """The object that child names lead to; list entries are numbers, dictionary entries keys."""
    found = loaded
    for part in place:
        if hasattr(found, part):
            found = getattr(found, part)
        elif part.isdigit() and hasattr(found, "__getitem__"):
            found = found[int(part)]
        elif hasattr(found, "__getitem__"):
            found = found[part]
        else:
            raise NoMatchError(f"The loaded model has no object at '{'/'.join(place)}'")
    return found


def _untouched(loaded: Any, name: str) -> NDArray[Any]:
    """A variable without a freeze, by the name or path it has in the loaded model."""
    captured = {v.name.removesuffix(":0"): v for v in _info(loaded).concrete_functions[0].trainable_variables}
    if name in captured:
        return np.asarray(captured[name].numpy())
    try:
        return np.asarray(object_at(loaded, name.split("/")).numpy())
    except (NoMatchError, AttributeError, KeyError, IndexError, TypeError):
        known = ", ".join(f"'{n}'" for n in list(captured)[:5])
        raise NoMatchError(f"No variable is called '{name}'. Trainable are: {known}") from None
