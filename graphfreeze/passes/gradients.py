"""Masks gradients at their source, so that norms, checks and averages see frozen elements as constants.

Only the way to the variable's writes and to the norms takes the masked tensor (``graph/gradients.py`` says which edges
those are); what else is computed from the gradient, such as the gradients of the layers below, takes the raw one.

Covered scopes: one function body at a time (branches and loop bodies too), on behalf of pass ``functions``, and the
main graph of TF1 on behalf of ``tf1_guards``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphfreeze.graph.attrs import REPLACES, SILENCED, bytes_attr
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Body, Source
from graphfreeze.lowering.emitter import Emitter
from graphfreeze.lowering.gradient import mask_gradient
from graphfreeze.lowering.merge import Merge, MergeContext
from graphfreeze.passes.state import StorageKey, Work


def mask_gradients(work: Work, scope: Scope, names: FreshNames, body: Body, storages: Mapping[StorageKey, str]) -> None:
    """Masks every source of one body; writes that do not run any more need none. Runs after ``guard_writes``."""

    def context_of(source: Source, merge: Merge) -> MergeContext:
        handles = {role: storages[source.variable, role] for role in merge.geometry_roles}
        return MergeContext(merge, Emitter(scope, names, producer(source.tensor)), handles)

    for source in body.sources:
        mask_source(work, scope, source, context_of)


def mask_source(
    work: Work, scope: Scope, source: Source, context_of: Callable[[Source, Merge], MergeContext]
) -> MergeContext | None:
    """Masks one source; returns where that was done, or None if nothing of it is frozen or it is used no more."""
    merge = work.merges.get(source.variable)
    uses = [use for use in source.uses if use.result is not None or SILENCED not in scope.nodes[use.node].attr]
    if merge is None or not uses:
        return None
    context = context_of(source, merge)
    masked = mask_gradient(context, merge.held, source)
    context.emit.node_of(masked).attr[REPLACES].CopyFrom(bytes_attr(scope.lasting(source.tensor)))
    for use in uses:
        if use.result is not None:
            scope.proto.ret[use.result] = masked
        else:
            scope.nodes[use.node].input[use.index] = masked
    return context
