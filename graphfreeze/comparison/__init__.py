"""What two SavedModels have in common and where they differ, functions matched up to renaming. Knows no strategy.

TensorFlow numbers functions, captures and the nodes of its saver anew at every save and keeps no order of nodes; that
is no difference here. Everything else is one, down to the bit. Nothing of TensorFlow runs.
"""

from graphfreeze.comparison.compare import compare
from graphfreeze.comparison.difference import Change, Difference, FrozenElements, ValueChange

__all__ = ["Change", "Difference", "FrozenElements", "ValueChange", "compare"]
