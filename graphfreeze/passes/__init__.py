"""The compiler: PIPELINE is its order, one pass a file, and the whole meta graph is checked after each."""

from __future__ import annotations

from collections.abc import Callable

from graphfreeze.errors import InternalError
from graphfreeze.passes.check import Invariants
from graphfreeze.passes.flags import set_flags
from graphfreeze.passes.functions import rewrite_functions
from graphfreeze.passes.info import add_info
from graphfreeze.passes.keras_metadata import set_keras_metadata_aside
from graphfreeze.passes.prune import prune_functions
from graphfreeze.passes.saver import extend_saver
from graphfreeze.passes.state import Work
from graphfreeze.passes.variables import add_variables

Pass = Callable[[Work], None]

PIPELINE: tuple[tuple[str, Pass], ...] = (
    ("variables", add_variables),  # parts, copies and masks, wherever a variable has to be
    ("functions", rewrite_functions),  # merges between reads and consumers, calls, concrete functions
    ("flags", set_flags),  # trainable flags and the root's lists
    ("saver", extend_saver),  # restore and save for loaders without objects
    ("info", add_info),  # what was done, and the list of what trains
    ("prune", prune_functions),  # replaced functions that nothing calls
    ("keras_metadata", set_keras_metadata_aside),  # tf_keras must not ignore the freeze
)


def run_pipeline(work: Work) -> None:
    """Runs every pass.

    Raises:
        InternalError: a pass broke an invariant that the source kept; names it, the place and the passes before it.
    """
    invariants = Invariants(work.meta)
    done: list[str] = []
    for name, run in PIPELINE:
        # What a pass leaves as it was is looked into once, and all of it again at the end.
        invariants.remember()
        run(work)
        broken = invariants.first_broken(whole=name == PIPELINE[-1][0])
        if broken is not None:
            rule, place = broken
            raise InternalError(
                f"Pass '{name}' broke the rule '{rule}': {place}. Passes run before: "
                f"{', '.join(done) or 'none'}. This is a bug in graphfreeze; please report it with the output of "
                "graphfreeze plan --json"
            )
        done.append(name)
