"""The main job on real data: teach an exported digit classifier three new digits without touching what it knows.

`fixtures/models/digits` knows the digits 0 to 6. Its convolutions and the output columns of 0 to 6 are frozen, the rest
is trained on all ten digits with AdamW. Beside it, the same training with the textbook gradient mask: there the frozen
weights move, because a zero gradient does not stop weight decay. Accuracies are those on every fifth image, which
neither training has seen. Needs scikit-learn (the `dev` extra); run it with `make demo`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits

import graphfreeze

SOURCE = Path(__file__).resolve().parents[1] / "fixtures" / "models" / "digits"
KNOWN = 7
"""The source was trained on the digits below this one."""
KERNEL, BIAS = "sequential/head/kernel", "sequential/head/bias"
FREEZE = ("sequential/trunk_*/*", f"{KERNEL}[:, :{KNOWN}]", f"{BIAS}[:{KNOWN}]")
EPOCHS, BATCH, LEARNING_RATE, WEIGHT_DECAY = 40, 128, 0.01, 0.01

Array = npt.NDArray[Any]
Digits = tuple[Array, Array]
"""Images and labels."""
Value = Callable[[Any, str], Any]
"""Gives a model's value of the variable of that name."""


@dataclass(frozen=True, slots=True)
class Exam:
    """What a model is judged by."""

    digits: Digits
    masks: Mapping[str, Array]
    """By variable name, what FREEZE names: True = frozen."""
    original: Mapping[str, Array]
    """The source's values there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the result."""

    title: str
    old: float
    """Accuracy on 0 to 6."""
    new: float
    """Accuracy on 7 to 9."""
    moved: int
    """Frozen elements whose bits changed."""
    drift: float
    """The largest change of a frozen element."""


def main() -> int:
    """Prints the result; exit code 0 if the freeze held, the plain model agrees, and the textbook mask did drift."""
    console = Console()
    start = time.perf_counter()
    keras.utils.set_random_seed(0)
    lessons, held_out = read_digits()
    source = tf.saved_model.load(str(SOURCE))
    masks = frozen_masks(source)
    exam = Exam(held_out, masks, values_of(source, masks, stored_value))
    console.print(f"Freezing {', '.join(map(repr, FREEZE))} of {SOURCE.name}, then training all ten digits ...")
    untouched = judge("source model", source, exam, stored_value)
    with tempfile.TemporaryDirectory(prefix="graphfreeze-demo-") as folder:
        frozen, plain = train_frozen(Path(folder), lessons, exam)
    masked = train_masked(lessons, exam)
    console.print(result_table([untouched, frozen, plain, masked]))
    elements = sum(values.size for values in exam.original.values())
    console.print(f"{elements:,d} elements are frozen; {EPOCHS} epochs; {time.perf_counter() - start:.0f} s in all.")
    held = frozen.moved == plain.moved == 0 and (frozen.old, frozen.new) == (plain.old, plain.new)
    return 0 if held and masked.moved else 1


def train_frozen(work: Path, lessons: Digits, exam: Exam) -> tuple[Outcome, Outcome]:
    """The way of graphfreeze: rewrite, train as ever, save, finalize. Returns the trained and the plain model's row."""
    graphfreeze.rewrite(SOURCE, work / "frozen", freeze=list(FREEZE))
    model = tf.saved_model.load(str(work / "frozen"))
    train(model, graphfreeze.trainable_variables(model), lessons)
    trained = judge("graphfreeze, trained", model, exam, graphfreeze.value)
    tf.saved_model.save(model, str(work / "trained"), signatures=model.signatures)
    graphfreeze.finalize(work / "trained", work / "plain")
    plain = tf.saved_model.load(str(work / "plain"))
    return trained, judge("... finalized, plain", plain, exam, stored_value)


def train_masked(lessons: Digits, exam: Exam) -> Outcome:
    """The textbook way: all variables go to the optimizer, gradients of frozen elements are multiplied by zero."""
    model = tf.saved_model.load(str(SOURCE))
    variables = list(model.trainable_variables)
    keep = [tf.constant(~exam.masks[name_of(variable)], variable.dtype) for variable in variables]
    train(model, variables, lessons, lambda gradients: [g * k for g, k in zip(gradients, keep, strict=True)])
    return judge("textbook gradient mask", model, exam, stored_value)


def train(
    model: Any,
    variables: Sequence[tf.Variable],
    lessons: Digits,
    edit: Callable[[list[tf.Tensor]], list[tf.Tensor]] = lambda gradients: gradients,
) -> None:
    """An ordinary training loop through the model's own training endpoint (dropout on)."""
    optimizer = keras.optimizers.AdamW(LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    optimizer.build(list(variables))

    @tf.function
    def step(images: tf.Tensor, labels: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model.train(images))
            loss = tf.reduce_mean(losses)
        optimizer.apply(edit(tape.gradient(loss, variables)), variables)

    data = tf.data.Dataset.from_tensor_slices(lessons).shuffle(len(lessons[0]), seed=0)
    for images, labels in data.batch(BATCH, drop_remainder=True).repeat(EPOCHS):
        step(images, labels)


def read_digits() -> tuple[Digits, Digits]:
    """scikit-learn's bundled 1,797 images of 8 x 8 pixels: four fifths to learn from, one fifth as the exam."""
    data = load_digits()
    images, labels = (data.images[..., None] / 16.0).astype(np.float32), data.target.astype(np.int32)
    held_out = np.arange(len(labels)) % 5 == 0
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def frozen_masks(source: Any) -> dict[str, Array]:
    """What FREEZE names, written out by hand, so that nothing marks its own work."""
    masks = {name_of(variable): np.ones(variable.shape, bool) for variable in source.trainable_variables}
    masks[KERNEL][:, KNOWN:] = False
    masks[BIAS][KNOWN:] = False
    return masks


def judge(title: str, model: Any, exam: Exam, value: Value) -> Outcome:
    """Accuracy of the serving endpoint, and how the frozen elements compare with the source's, bit by bit."""
    images, labels = exam.digits
    right = np.argmax(model.serve(images), axis=-1) == labels
    now, original = values_of(model, exam.masks, value), exam.original
    moved = sum(int((now[name].view(np.uint32) != original[name].view(np.uint32)).sum()) for name in original)
    drift = max(float(np.abs(now[name] - original[name]).max()) for name in original)
    return Outcome(title, float(right[labels < KNOWN].mean()), float(right[labels >= KNOWN].mean()), moved, drift)


def values_of(model: Any, masks: Mapping[str, Array], value: Value) -> dict[str, Array]:
    """The frozen elements of every variable, flat."""
    return {name: np.asarray(value(model, name))[mask] for name, mask in masks.items()}


def stored_value(model: Any, name: str) -> Array:
    """A variable's value in a model without a freeze."""
    return next(np.asarray(variable) for variable in model.variables if name_of(variable) == name)


def name_of(variable: tf.Variable) -> str:
    """The name as selectors use it."""
    return str(variable.name).removesuffix(":0")


def result_table(outcomes: Sequence[Outcome]) -> Table:
    """Accuracies and drift, one row per model."""
    table = Table("model")
    for header in ("digits 0-6", "digits 7-9", "frozen moved", "by up to"):
        table.add_column(header, justify="right")
    for row in outcomes:
        cells = f"{row.old:.1%}", f"{row.new:.1%}", f"{row.moved:,d}", f"{row.drift:.2g}"
        table.add_row(row.title, *cells, style="red" if row.moved else None)
    return table


if __name__ == "__main__":
    sys.exit(main())
