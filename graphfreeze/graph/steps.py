"""How a model says that training steps were added: the names that ``train-step`` gives, ``finalize`` looks for."""

from __future__ import annotations

CHILD = "graphfreeze"
STEPS = "train_step"
"""Child of ``CHILD`` in a TF2 model, which holds ``FUNCTIONS`` by signature name and the optimizers' ``STATE``."""
FUNCTIONS, STATE = "functions", "state"
INFO_NODE = f"{CHILD}/{STEPS}/info"
"""String constant of a TF1 graph that says what was added."""
ROLE = b"steps"
"""Mark on that constant."""
