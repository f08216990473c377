"""Small models that show one thing each, and runs of ``verify`` in this process."""

from pathlib import Path

import numpy as np
import tensorflow as tf

import graphfreeze
from graphfreeze.passes.pair import prepare_pair
from graphfreeze.runtime.verifying.run import Run
from graphfreeze.runtime.verifying.task import Task
from graphfreeze.savedmodel import open_draft

ROWS = tf.TensorSpec([None, 3], tf.float32)


class Odd(tf.Module):
    """A kernel that is read by plain, by random and by peculiar functions, and a variable that nothing reaches."""

    def __init__(self):
        super().__init__()
        self.kernel = tf.Variable(np.arange(1, 13, dtype=np.float32).reshape(3, 4), name="kernel")
        self.alone = tf.Variable(np.ones(2, np.float32), name="alone")

    @tf.function(input_signature=[ROWS])
    def plain(self, x):
        return x @ self.kernel, tf.cast(tf.shape(self.alone), tf.float32)

    @tf.function(input_signature=[ROWS])
    def dropout(self, x):
        return tf.nn.dropout(x, 0.5) @ self.kernel

    @tf.function(input_signature=[ROWS])
    def clock(self, x):
        return (x @ self.kernel) * tf.cast(tf.math.floormod(tf.timestamp() * 1e6, 1000.0), tf.float32)

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.float32)])
    def ragged(self, x):
        return tf.reduce_sum(x) * self.kernel

    @tf.function(input_signature=[ROWS])
    def integers(self, x):
        return tf.cast(tf.round(x @ self.kernel), tf.int32)


def save(model: tf.Module, folder: Path, **options):
    """The model saved, and rewritten with these options."""
    tf.saved_model.save(model, str(folder / "source"))
    graphfreeze.rewrite(folder / "source", folder / "out", allow_empty=True, **options)
    return folder / "source", folder / "out"


def start(source: Path, rewritten: Path, folder: Path, **options) -> Run:
    """What ``graphfreeze.verify`` does, up to the fresh process; pair and evidence go by ``folder``."""
    pair = prepare_pair(open_draft(source), open_draft(rewritten), folder)
    (evidence,) = pair.evidence
    return Run(Task(pair.plain, pair.rewritten, evidence, **{"steps": 2, **options}))


def failures(run: Run):
    return [f for f in run.all().findings if f.status == "failed"]
