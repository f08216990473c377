"""The compiler: PIPELINE is its order, one pass a file, and the whole meta graph is checked after each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphfreeze.errors import InternalError
from graphfreeze.passes.batch_norm import use_stored_in_graph
from graphfreeze.passes.check import Invariants
from graphfreeze.passes.flags import set_flags
from graphfreeze.passes.functions import rewrite_functions
from graphfreeze.passes.info import add_info
from graphfreeze.passes.keras_metadata import set_keras_metadata_aside
from graphfreeze.passes.prune import prune_functions
from graphfreeze.passes.saver import extend_saver
from graphfreeze.passes.state import Work
from graphfreeze.passes.tf1_collections import set_collections
from graphfreeze.passes.tf1_guards import guard_graph
from graphfreeze.passes.tf1_info import add_graph_info
from graphfreeze.passes.tf1_reads import rewrite_graph
from graphfreeze.passes.tf1_saver import extend_graph_saver
from graphfreeze.passes.tf1_variables import add_graph_variables
from graphfreeze.passes.variables import add_variables

Pass = Callable[[Work], None]


@dataclass(frozen=True, slots=True)
class Row:
    """A pass in its place. TF1 writes variables down elsewhere, so it may have another pass there, or none."""

    name: str
    objects: Pass | None
    """For a meta graph with an object graph (TF2)."""
    graph: Pass | None
    """For a TF1 graph."""


PIPELINE: tuple[Row, ...] = (
    # parts, copies and masks, wherever a variable has to be
    Row("variables", add_variables, add_graph_variables),
    # merges between reads and consumers, calls, concrete functions
    Row("functions", rewrite_functions, rewrite_graph),
    # batch norms of the main graph with their stored statistics; in functions they come with the merges
    Row("batch_norm", None, use_stored_in_graph),
    # guards around writes of the main graph and masks on its gradients; in functions they come with the merges
    Row("guards", None, guard_graph),
    # trainable flags, the root's lists, collections
    Row("flags", set_flags, set_collections),
    # restore and save for loaders without objects
    Row("saver", extend_saver, extend_graph_saver),
    # what was done, and the list of what trains
    Row("info", add_info, add_graph_info),
    # replaced functions that nothing calls
    Row("prune", prune_functions, prune_functions),
    # tf_keras must not ignore the freeze
    Row("keras_metadata", set_keras_metadata_aside, None),
)


def run_pipeline(work: Work) -> None:
    """Runs every pass.

    Raises:
        InternalError: a pass broke an invariant that the source kept; names it, the place and the passes before it.
    """
    invariants = Invariants(work.meta)
    done: list[str] = []
    chosen = [(row.name, row.objects if work.trace.is_tf2 else row.graph) for row in PIPELINE]
    passes = [(name, run) for name, run in chosen if run is not None]
    for name, run in passes:
        # What a pass leaves as it was is looked into once; whether all calls fit, again at the end.
        invariants.remember()
        run(work)
        broken = invariants.first_broken(last=name == passes[-1][0])
        if broken is not None:
            rule, place = broken
            raise InternalError(
                f"Pass '{name}' broke the rule '{rule}': {place}. Passes run before: "
                f"{', '.join(done) or 'none'}. This is a bug in graphfreeze; please report it with the output of "
                "graphfreeze plan --json"
            )
        done.append(name)
