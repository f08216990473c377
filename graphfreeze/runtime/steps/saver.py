"""The names under which ``save`` stores variables: their keys in the model's own checkpoint.

TensorFlow makes a key of the shortest path of child names from the root, the first one found breadth first. ``save``
uses the same names, so that ``tf.train.load_checkpoint`` shows what is familiar, and names that no path leads to come
from the variable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any


def keys_of(root: Any) -> dict[str, Any]:
    """Key -> variable, for every variable that children lead to."""
    import tensorflow as tf

    found: dict[str, Any] = {}
    seen = {id(root)}
    pending = deque([(root, "")])
    while pending:
        holder, path = pending.popleft()
        for name, child in tf.train.TrackableView.children(holder).items():
            if id(child) in seen:
                continue
            seen.add(id(child))
            step = f"{path}{name.replace('.', '..').replace('/', '.S')}/"
            if isinstance(child, tf.Variable):
                found[f"{step}.ATTRIBUTES/VARIABLE_VALUE"] = child
            pending.append((child, step))
    return found


def stored(root: Any, functions: Sequence[Any]) -> dict[str, Any]:
    """What ``save`` stores, by name: all variables of the root, and those that only its functions hold."""
    found = keys_of(root)
    known = {id(v) for v in found.values()}
    for variable in (v for function in functions for v in function.variables):
        if id(variable) not in known:
            known.add(id(variable))
            found[variable.name.removesuffix(":0")] = variable
    return found


def save_to(path: Any, variables: dict[str, Any]) -> Any:
    """Writes a checkpoint; ``path`` is a string tensor, and what is returned."""
    import tensorflow as tf

    names, values = list(variables), [v.read_value() for v in variables.values()]
    done = tf.raw_ops.SaveV2(prefix=path, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)
    with tf.control_dependencies([done]):
        return tf.identity(path)


def restore_from(path: Any, variables: dict[str, Any]) -> Any:
    """Reads a checkpoint that ``save_to`` has written."""
    import tensorflow as tf

    names = list(variables)
    values = tf.raw_ops.RestoreV2(
        prefix=path,
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        dtypes=[v.dtype for v in variables.values()],
    )
    written = [
        variable.assign(tf.ensure_shape(value, variable.shape), read_value=False)
        for variable, value in zip(variables.values(), values, strict=True)
    ]
    with tf.control_dependencies([w for w in written if w is not None]):
        return tf.identity(path)
