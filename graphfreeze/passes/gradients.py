"""Masks gradients at their source, so that norms, checks and averages see frozen elements as constants.

Only the way to the variable's writes and to the norms takes the masked tensor (``graph/gradients.py`` says which edges
those are); what else is computed from the gradient, such as the gradients of the layers below, takes the raw one.

Covered scopes: one function body at a time (branches and loop bodies too), on behalf of pass ``functions``.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphfreeze.graph.attrs import REPLACES, bytes_attr
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.refs import producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Body
from graphfreeze.lowering.emitter import Emitter
from graphfreeze.lowering.gradient import mask_gradient
from graphfreeze.lowering.merge import MergeContext
from graphfreeze.passes.state import StorageKey, Work


def mask_gradients(work: Work, scope: Scope, names: FreshNames, body: Body, storages: Mapping[StorageKey, str]) -> None:
    """Masks every source of one body; writes that do not run any more need none. Runs after ``guard_writes``."""
    for source in body.sources:
        merge = work.merges.get(source.variable)
        uses = [use for use in source.uses if use.result is not None or use.index < len(scope.nodes[use.node].input)]
        if merge is None or not uses:
            continue
        handles = {role: storages[source.variable, role] for role in merge.geometry_roles}
        emit = Emitter(scope, names, producer(source.tensor))
        masked = mask_gradient(MergeContext(merge, emit, handles), merge.held, source)
        emit.node_of(masked).attr[REPLACES].CopyFrom(bytes_attr(scope.lasting(source.tensor)))
        for use in uses:
            if use.result is not None:
                scope.proto.ret[use.result] = masked
            else:
                scope.nodes[use.node].input[use.index] = masked
