"""Training checkpoints of an original model turned into ones of the rewritten model, and back.

A checkpoint that ``tf.train.Checkpoint`` or ``tf.compat.v1.train.Saver`` wrote holds values by object path or by name,
and optimizer slots of the shape of what trains. After a rewrite other variables train, so parts and slots have to be
cut, or put together; all other tensors stay byte for byte. Nothing of TensorFlow runs.
"""

from graphfreeze.checkpoints.convert import Converted, convert
from graphfreeze.checkpoints.task import Direction, Frozen

__all__ = ["Converted", "Direction", "Frozen", "convert"]
