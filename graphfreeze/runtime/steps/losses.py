"""Losses by name, on one output of a function; in plain ops, so that they serve TF1 graphs and LiteRT too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from graphfreeze.errors import UsageError
from graphfreeze.runtime.optimizers import parse_call, refuse_unknown, suggestion

MSE, DENSE, SPARSE = "mse", "cross-entropy", "sparse-cross-entropy"
KNOWN = (MSE, DENSE, SPARSE)
_EPSILON = 1e-7
"""Below it a probability counts as this, as Keras has it."""
_PROBABILITIES = frozenset({"Softmax", "Sigmoid"})


@dataclass(frozen=True, slots=True)
class Loss:
    """What is made small: a named loss of one output, or (``kind`` None) an output itself."""

    kind: str | None
    output: str | None = None
    """The output's name; None is the only one."""
    from_logits: bool | None = None
    """Whether the output is no probability; None asks the op that makes it."""

    @property
    def needs_targets(self) -> bool:
        """Whether there is something to compare the output with."""
        return self.kind is not None


def parse_loss(text: str) -> Loss:
    """``mse``, ``cross-entropy(from_logits=true)``, ``mse(output=scores)``, or the name of an output.

    Raises:
        UsageError: an argument is unknown, or its value makes no sense.
    """
    call = parse_call(text, "loss")
    if call.name.lower() not in KNOWN:
        refuse_unknown(call, [], "loss")
        return Loss(None, call.name)
    refuse_unknown(call, ["output"] if call.name.lower() == MSE else ["output", "from_logits"], "loss")
    output, logits = call.arguments.get("output"), call.arguments.get("from_logits")
    if logits is not None and not isinstance(logits, bool):
        raise UsageError(f"'from_logits' of the loss '{text}' is true or false, found '{logits}'")
    return Loss(call.name.lower(), None if output is None else str(output), logits)


def choose_output(loss: Loss, outputs: Mapping[str, Any], where: str) -> str:
    """The name of the output that a loss works on.

    Raises:
        UsageError: there is none of that name, or several and none is named.
    """
    floats = [name for name, tensor in outputs.items() if tensor.dtype.is_floating]
    if loss.output is None and len(floats) == 1:
        return floats[0]
    shown = ", ".join(f"'{name}'" for name in floats)
    if loss.output is None:
        how = f"Name one: --loss '{loss.kind}(output={floats[0]})'" if floats else "Give another function"
        raise UsageError(f"{where} gives out {len(floats)} float tensors ({shown}), and a loss takes one. {how}")
    if loss.output not in floats:
        named = "" if loss.kind else " A loss by name is one of " + ", ".join(f"'{k}'" for k in KNOWN) + "."
        hint = suggestion(loss.output, [*floats, *(() if loss.kind else KNOWN)], "It gives out")
        raise UsageError(f"{where} gives out no float tensor '{loss.output}'.{named} {hint}")
    return loss.output


def is_probability(ops: Iterable[str]) -> bool:
    """Whether an output that these ops make, the last one first, is a probability."""
    return next((op in _PROBABILITIES for op in ops if op not in ("Identity", "Cast", "Reshape", "IdentityN")), False)


def targets_like(loss: Loss, output: Any) -> tuple[list[int | None] | None, Any]:
    """Shape and dtype of the targets of an output: its own, or class numbers in place of its last axis."""
    import tensorflow as tf

    shape = None if output.shape.rank is None else output.shape.as_list()
    if loss.kind == SPARSE:
        return (None if shape is None else shape[:-1]), tf.int64
    return shape, output.dtype


def compute(loss: Loss, output: Any, targets: Any) -> tuple[Any, dict[str, Any]]:
    """The loss as a scalar of the output's dtype, and metrics by name.

    ``mse`` is the mean of squared differences; ``cross-entropy`` the mean of ``-sum(targets * log p)`` over the last
    axis, for an output with one column of the two-class form; ``sparse-cross-entropy`` takes class numbers.

    Raises:
        UsageError: the output has one column and the targets are class numbers.
    """
    import tensorflow as tf

    if loss.kind is None:
        return tf.reduce_mean(output), {}
    if loss.kind == MSE:
        gap = output - tf.cast(targets, output.dtype)
        return tf.reduce_mean(tf.square(gap)), {"mean_absolute_error": tf.reduce_mean(tf.abs(gap))}
    columns = output.shape[-1] if output.shape.rank else None
    if loss.kind == SPARSE:
        if columns == 1:
            raise UsageError(
                "The output of one column cannot have class numbers as targets. Use --loss cross-entropy with 0 and 1"
            )
        wanted, classes = tf.cast(targets, tf.int64), None
    else:
        classes = tf.cast(targets, output.dtype)
        wanted = classes > 0.5 if columns == 1 else tf.argmax(classes, axis=-1)
    each = _entropy(loss, output, wanted, classes, columns)
    guess = output > (0.0 if loss.from_logits else 0.5) if columns == 1 else tf.argmax(output, axis=-1)
    return tf.reduce_mean(each), {"accuracy": tf.reduce_mean(tf.cast(tf.equal(guess, wanted), output.dtype))}


def _entropy(loss: Loss, output: Any, numbers: Any, classes: Any, columns: int | None) -> Any:
    import tensorflow as tf

    if columns == 1:
        if loss.from_logits:
            return tf.nn.sigmoid_cross_entropy_with_logits(labels=classes, logits=output)
        yes = tf.clip_by_value(output, _EPSILON, 1 - _EPSILON)
        return -(classes * tf.math.log(yes) + (1 - classes) * tf.math.log(1 - yes))
    if classes is None:
        classes = tf.one_hot(numbers, tf.shape(output)[-1] if columns is None else columns, dtype=output.dtype)
    logs = tf.nn.log_softmax(output) if loss.from_logits else tf.math.log(tf.clip_by_value(output, _EPSILON, 1.0))
    return -tf.reduce_sum(classes * logs, axis=-1)
