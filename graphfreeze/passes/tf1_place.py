"""Where nodes of ours stand in a TF1 main graph: which handles they take there, in which frame, beside which node.

Reads and writes are taken care of by different passes, and both may stand inside a loop or branch of TF1, into which
the variable's storages and geometry are led as the variable itself is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.scope import Scope
from graphfreeze.lowering.emitter import GraphEmitter
from graphfreeze.lowering.merge import Merge, MergeContext
from graphfreeze.passes.state import Work
from graphfreeze.passes.tf1_frames import Frames, is_led


class Places:
    """The places of one main graph."""

    def __init__(self, work: Work, scope: Scope, names: FreshNames) -> None:
        self.work, self.scope, self.names = work, scope, names
        self.frames = Frames(work.meta, scope, names)
        self.refs = {h for v in work.trace.variables if v.is_ref for h in v.handles}
        self.refs |= {s.handle for (i, _), s in work.stored.items() if work.trace.variables[i].is_ref}

    def context(
        self,
        variable: int,
        merge: Merge,
        handle: str,
        anchor: str,
        *,
        controls: Sequence[str] = (),
        tie: str,
        roles: Iterable[str],
        user: tuple[str, str],
    ) -> MergeContext:
        """Handles of a variable and its storages (``roles``) where ``handle`` carries it, and an emitter there.

        ``tie`` is a node of the frame that runs before all that is emitted; ``user`` the node (name, op) that takes the
        handle, for messages.
        """
        way, root = self.frames.way(handle), self.frames.root(handle)
        if root not in self.work.trace.variables[variable].handles:
            self._refuse(merge, user, root)
        inside = is_led(way) or self.frames.is_inside(anchor)
        values: set[str] = set()
        handles = {"base": handle}
        if root in self.refs:
            values.add(handle)
        for role in roles:
            stored = self.work.stored[variable, role].handle
            handles[role] = self.frames.lead(stored, handle, by_value=False)
            if stored in self.refs:
                values.add(handles[role])
        for key, constant in self.work.geometry[variable].items():
            handles[f"mask:{key}"] = self.frames.lead(constant, handle, by_value=True)
            values.add(handles[f"mask:{key}"])
        emit = GraphEmitter(self.scope, self.names, anchor, controls, values=values, frame=tie if inside else None)
        return MergeContext(merge, emit, handles)

    def list_added(self, context: MergeContext, beside: str, name: str | None = None) -> None:
        """Tells contexts of what was emitted, and puts it on the device of the node that it stands beside.

        ``name`` is one that was there before, and is known to the contexts as it was.
        """
        emit = context.emit
        assert isinstance(emit, GraphEmitter)
        self.frames.add(beside, [n for n in emit.added if n not in (beside, name)])
        for added in self.scope.node_list[emit.first :]:
            added.device = self.scope.nodes[beside].device

    def _refuse(self, merge: Merge, user: tuple[str, str], root: str) -> None:
        raise UnsupportedModelError(
            f"Cannot freeze '{merge.plan.name}': node '{user[0]}' ({user[1]}) in the main graph takes it from "
            f"'{root}' ({self.scope.nodes[root].op}), which hands on one of several variables or rounds of a loop. "
            "Leave the variable out"
        )
