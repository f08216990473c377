"""Frozen elements of the rule ``mixed``, written out."""

import numpy as np

FROZEN_TABLE = np.zeros((8, 4), bool)
FROZEN_TABLE[:5] = True
FROZEN_KERNEL = np.zeros((4, 3), bool)
FROZEN_KERNEL[[0, 2, 3], [1, 1, 2]] = True
