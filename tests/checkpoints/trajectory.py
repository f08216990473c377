"""Training that is interrupted by a conversion, against training that never was.

The oracle trains the original, holds the frozen elements as constants from step ``BEFORE`` on, and keeps its optimizer.
tf_keras changes the process that imports it: its cases run as ``python -m tests.checkpoints.trajectory RULE...``.
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import graphfreeze
from tests.checkpoints.small import NAMES, RULES, apply_with, effective, masks, save_model, train, values
from tests.helpers.compare import assert_all_bits_equal, assert_bits_equal, assert_within_eps

BEFORE, AFTER = 4, 4


def keras_optimizers() -> dict[str, Callable[[], Any]]:
    import keras

    k = keras.optimizers
    v1 = tf.compat.v1.train
    return {
        "keras adam": lambda: k.Adam(0.01),
        "keras adamw": lambda: k.AdamW(0.01, weight_decay=0.1),
        "keras momentum": lambda: k.SGD(0.05, momentum=0.9),
        "keras ema": lambda: k.Adam(0.01, use_ema=True, ema_momentum=0.9),
        "keras rmsprop": lambda: k.RMSprop(0.01, momentum=0.9),
        "keras amsgrad": lambda: k.Adam(0.01, amsgrad=True),
        "keras ftrl": lambda: k.Ftrl(0.05),
        "keras sgd": lambda: k.SGD(0.05),
        "keras nadam": lambda: k.Nadam(0.01),
        "keras loss scale": lambda: k.LossScaleOptimizer(k.Adam(0.01), initial_scale=1.0),
        "tf1 adam": lambda: v1.AdamOptimizer(0.01),
        "tf1 momentum": lambda: v1.MomentumOptimizer(0.05, 0.9),
        "tf1 adagrad": lambda: v1.AdagradOptimizer(0.05),
    }


def tf_keras_optimizers() -> dict[str, Callable[[], Any]]:
    import tf_keras

    k, legacy = tf_keras.optimizers, tf_keras.optimizers.legacy
    return {
        "tf_keras adam": lambda: k.Adam(0.01),
        "tf_keras momentum": lambda: k.SGD(0.05, momentum=0.9),
        "tf_keras adagrad": lambda: k.Adagrad(0.05),
        "legacy adam": lambda: legacy.Adam(0.01),
        "legacy momentum": lambda: legacy.SGD(0.05, momentum=0.9),
    }


class Course:
    """One original, one freeze, one optimizer."""

    def __init__(self, folder: Path, rule: str, make: Callable[[], Any]) -> None:
        self.folder, self.rule, self.make = folder, RULES[rule], make
        self.source, self.rewritten = folder / "source", folder / "rewritten"
        if not self.source.exists():
            save_model(self.source)
        graphfreeze.rewrite(self.source, self.rewritten, **self.rule)
        self.frozen = masks(self.rule)

    def original(self) -> tuple[Any, list[tf.Variable], Any]:
        model = tf.saved_model.load(str(self.source))
        return model, [model.table, model.kernel, model.bias, model.scale], self.make()

    def trained(self) -> tuple[Any, list[tf.Variable], Any]:
        model = tf.saved_model.load(str(self.rewritten))
        return model, graphfreeze.trainable_variables(model), self.make()

    def check(self) -> None:
        """There and back again."""
        model, variables, optimizer = self.original()
        train(model, variables, apply_with(optimizer), range(BEFORE))
        prefix = tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(self.folder / "old"))
        reached = values(model)
        held = [(getattr(model, name), self.frozen[name], reached[name]) for name in NAMES if name != "held"]
        train(model, variables, apply_with(optimizer), range(BEFORE, BEFORE + AFTER), held)
        expected = values(model)
        back = self.go_on(prefix, reached, expected)
        self.come_back(*back)

    def go_on(self, prefix: str, reached: dict[str, Any], expected: dict[str, Any]) -> tuple[str, dict[str, Any], Any]:
        graphfreeze.checkpoint(prefix, self.folder / "new", into=self.rewritten)
        model, variables, optimizer = self.trained()
        status = restored(self.folder / "new", model, optimizer, variables)
        assert_all_bits_equal(effective(model), reached)
        train(model, variables, apply_with(optimizer), range(BEFORE, BEFORE + AFTER))
        status.assert_consumed()
        found = effective(model)
        for name in NAMES:
            assert_bits_equal(found[name][self.frozen[name]], reached[name][self.frozen[name]], f"frozen in {name}")
            if "enable" not in self.rule:
                assert_within_eps(found[name], expected[name], name)
        return tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(self.folder / "trained")), found, model

    def come_back(self, prefix: str, found: dict[str, Any], _: Any) -> None:
        graphfreeze.checkpoint(prefix, self.folder / "back", from_=self.rewritten)
        model, variables, optimizer = self.original()
        status = restored(self.folder / "back", model, optimizer, variables)
        assert_all_bits_equal(values(model), found)
        train(model, variables, apply_with(optimizer), range(BEFORE + AFTER, BEFORE + AFTER + 2))
        status.assert_consumed()
        for name, value in values(model).items():
            assert np.isfinite(value).all(), name


def restored(prefix: Path, model: Any, optimizer: Any, variables: list[tf.Variable]) -> Any:
    """Restores; optimizers of Keras are built before, TF1's make their slots at the first step."""
    if hasattr(optimizer, "build"):
        optimizer.build(variables)
    return tf.train.Checkpoint(model=model, optimizer=optimizer).restore(str(prefix))


def main(rules: list[str]) -> None:
    for name, make in tf_keras_optimizers().items():
        for rule in rules:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    Course(Path(folder), rule, make).check()
                    result = "ok"
                except Exception as error:
                    result = f"{type(error).__name__}: {error}"[:2000]
            sys.stdout.write(json.dumps({"rule": rule, "optimizer": name, "result": result}) + "\n")


if __name__ == "__main__":
    import tf_keras  # noqa: F401 (its optimizers must be known before the first model is loaded)

    main(sys.argv[1:])
