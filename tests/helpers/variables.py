"""Variables of a loaded SavedModel by path or name, found by walking the loaded objects, not the protos.

Paths are those of TensorFlow's object graph: the breadth-first, hence shortest, way from the root.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

Array = npt.NDArray[Any]


def walk(loaded: Any) -> Iterator[tuple[str, Any]]:
    """Every tracked object once, breadth first, with its path; the root has the path ''."""
    seen = {id(loaded)}
    queue: deque[tuple[str, Any]] = deque([("", loaded)])
    while queue:
        path, thing = queue.popleft()
        yield path, thing
        if isinstance(thing, tf.Variable) or not hasattr(thing, "_trackable_children"):
            continue
        for name, child in thing._trackable_children().items():
            if id(child) not in seen:
                seen.add(id(child))
                queue.append((f"{path}/{name}" if path else name, child))


def variables_by_path(loaded: Any) -> dict[str, tf.Variable]:
    """All variables, also those that no function uses, in object-graph order."""
    return {path: thing for path, thing in walk(loaded) if isinstance(thing, tf.Variable)}


def find_variable(loaded: Any, name_or_path: str) -> tf.Variable:
    """By path, else by name; the first in object-graph order where a name repeats (Keras 3 stores a copy last)."""
    variables = variables_by_path(loaded)
    if name_or_path in variables:
        return variables[name_or_path]
    for variable in variables.values():
        if variable_name(variable) == name_or_path:
            return variable
    raise KeyError(f"no variable '{name_or_path}' among {list(variables)}")


def variable_name(variable: tf.Variable) -> str:
    return str(variable.name).removesuffix(":0")


def used_variables(loaded: Any) -> dict[str, tf.Variable]:
    """Those that some function captures, in object-graph order."""
    used: set[int] = set()
    for _, thing in walk(loaded):
        for function in getattr(thing, "concrete_functions", None) or ():
            used.update(id(variable) for variable in function.variables)
    return {path: variable for path, variable in variables_by_path(loaded).items() if id(variable) in used}


def trainable_of(loaded: Any) -> dict[str, tf.Variable]:
    """What plain training of an original model trains: used, flagged trainable, of a type that has gradients."""
    return {
        path: v
        for path, v in used_variables(loaded).items()
        if v.trainable and (v.dtype.is_floating or v.dtype.is_complex)
    }


def values_of(loaded: Any) -> dict[str, Array]:
    """The stored value of every variable, by path."""
    return {path: np.array(variable.numpy()) for path, variable in variables_by_path(loaded).items()}
