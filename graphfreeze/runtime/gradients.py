"""Asks TensorFlow which ops it has a gradient for; no op of a model runs."""

from __future__ import annotations

from collections.abc import Iterable


def ops_without_gradient(ops: Iterable[str]) -> tuple[str, ...]:
    """Those of the ops that have no registered gradient, in the order of their names.

    An op that is registered as not differentiable counts: a gradient ends there. Source of the registry:
    tensorflow/python/framework/ops.py.
    """
    # Importing TensorFlow as a whole registers the gradients.
    import tensorflow  # noqa: F401
    from tensorflow.python.framework import ops as registry

    found = []
    for op in sorted(set(ops)):
        try:
            known = registry.gradient_registry.lookup(op) is not None
        except LookupError:
            known = False
        if not known:
            found.append(op)
    return tuple(found)
