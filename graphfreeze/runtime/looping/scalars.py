"""TensorBoard: the loss of every step, and the means of every epoch, over the steps of the whole run.

Written as ``tf.summary.scalar`` would, which itself needs TensorBoard where the run takes place.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

from graphfreeze.errors import InputOutputError
from graphfreeze.runtime.looping.result import Epoch
from graphfreeze.runtime.specs import one_line

_SCALAR = 1
"""``DATA_CLASS_SCALAR`` of summary.proto."""


class Scalars:
    """Writes to a folder for TensorBoard, or (``logdir`` None) nowhere."""

    def __init__(self, logdir: str | PathLike[str] | None) -> None:
        self._writer: Any = None
        if logdir is None:
            return
        import tensorflow as tf

        try:
            self._writer = tf.summary.create_file_writer(str(logdir))
            self._writer.init()
            self._writer.flush()
        except (OSError, tf.errors.OpError) as error:
            raise InputOutputError(f"Cannot write to '{logdir}': {one_line(error)}. Check the permissions") from error

    def step(self, step: int, loss: float) -> None:
        """The loss of one step."""
        self._write({"loss": loss}, step)

    def epoch(self, step: int, epoch: Epoch) -> None:
        """The means of an epoch, at its last step."""
        prefix = "epoch" if epoch.phase is None else f"epoch/{epoch.phase}"
        self._write({f"{prefix}/{name}": v for name, v in {"loss": epoch.loss, **epoch.metrics}.items()}, step)

    def flush(self) -> None:
        """Makes what was written visible."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Ends the file."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, values: dict[str, float], step: int) -> None:
        if self._writer is None:
            return
        import tensorflow as tf

        metadata = tf.compat.v1.SummaryMetadata(
            plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars"), data_class=_SCALAR
        )
        with self._writer.as_default():
            for name, value in values.items():
                tf.summary.write(name, tf.constant(value, tf.float32), step=step, metadata=metadata)
