"""Surrounds every write of a frozen variable, so that frozen elements are after it what they were before.

A write of a variable that is frozen whole does not run at all, and neither do the writes of its optimizer's slots:
nothing asks for its gradient any more, so that part of the backward pass is not computed. Any other write keeps its
place in the order of effects: the op that puts frozen elements back takes over its name, so that whoever waited for the
write waits for both.

Covered scopes: one function body at a time (branches and loop bodies too), on behalf of pass ``functions``. The main
graph of TF1 is ``tf1_guards``'s, which shares what is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphfreeze.graph.attrs import GUARDED, OP, SILENCED, bytes_attr
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.refs import is_control, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.slots import slot_writes
from graphfreeze.graph.uses import Body, Write
from graphfreeze.lowering.emitter import Emitter, control_inputs
from graphfreeze.lowering.guard import WriteGuard
from graphfreeze.lowering.merge import Merge, MergeContext
from graphfreeze.passes.reads import replace_uses
from graphfreeze.passes.state import StorageKey, Work
from graphfreeze.planning.guards import Guard, guard_against
from graphfreeze.savedmodel.protos import NodeDef


def guard_writes(work: Work, scope: Scope, names: FreshNames, body: Body, storages: Mapping[StorageKey, str]) -> None:
    """Guards every write of one body; ``storages`` are the handles of new variables there."""
    surrounded, silent = sorted_writes(work, scope, body)
    for write, guard in surrounded:
        merge = work.merges[write.variable]
        handles = {role: storages[write.variable, role] for role in merge.geometry_roles}
        _surround(scope, names, merge, write, guard, handles)
    for write in silent:
        node = scope.nodes[write.node]
        silence(work, scope, node, "NoOp", [text for text in node.input if is_control(text)])


def sorted_writes(work: Work, scope: Scope, body: Body) -> tuple[list[tuple[Write, Guard]], list[Write]]:
    """The writes of one body that are surrounded, each with its guard, and those that do not run any more."""
    surrounded: list[tuple[Write, Guard]] = []
    silent: list[Write] = []
    for write in body.writes:
        merge = work.merges.get(write.variable)
        if merge is None:
            continue
        guard = _planned(merge, body, write)
        if guard is Guard.NOTHING:
            silent.append(write)
        else:
            surrounded.append((write, guard))
    silent += slot_writes(scope, body, work.trace.variables, silent)
    still = {write.node for write in silent}
    return [(w, g) for w, g in surrounded if w.node not in still], silent


def set_inside(scope: Scope, names: FreshNames, node: NodeDef, old: Sequence[str]) -> str:
    """Frees the name of a write for its guard, and lets it wait for what reads ``old``; returns the name."""
    name = str(node.name)
    node.name = names.fresh(f"{name}/graphfreeze/inner")
    node.attr[GUARDED].CopyFrom(bytes_attr(name))
    node.input.extend(dict.fromkeys(f"^{producer(ref)}" for ref in old))
    return name


def silence(work: Work, scope: Scope, node: NodeDef, op: str, inputs: Sequence[str]) -> None:
    """Puts an op that changes nothing in the place of a write."""
    was = scope.remembered(node)
    definition = next((o for o in work.meta.meta_info_def.stripped_op_list.op if o.name == node.op), None)
    node.op = op
    del node.input[:]
    node.input.extend(inputs)
    node.attr.clear()
    node.attr[SILENCED].CopyFrom(bytes_attr(was))
    if definition is not None:
        node.attr[OP].CopyFrom(bytes_attr(definition.SerializeToString(deterministic=True)))


def _planned(merge: Merge, body: Body, write: Write) -> Guard:
    """The guard that the plan names; a plan that was made for another list of writes names none."""
    place = (body.key.function, write.node)
    found = next((w.guard for w in merge.plan.writes if (w.function, w.node) == place and w.guard), None)
    return Guard(found) if found else guard_against(merge.held.region, write)


def _surround(
    scope: Scope, names: FreshNames, merge: Merge, write: Write, guard: Guard, storages: Mapping[str, str]
) -> None:
    node = scope.nodes[write.node]
    name, handle = node.name, scope.data_inputs(node)[write.index]
    # What is put back is read as late as can be: after all that the write itself waits for.
    awaited = [f"^{p}" for t in scope.data_inputs(node) if t != handle and (p := producer(t)) in scope.nodes]
    emit = Emitter(scope, names, name, list(dict.fromkeys([*awaited, *control_inputs(node)])))
    restore = WriteGuard(MergeContext(merge, emit, {"base": handle, **storages}), merge.held, handle, guard)
    old = restore.before()
    outputs = {ref: scope.uses(ref) for ref in scope.refs_of(name)}
    set_inside(scope, names, node, [old])
    for ref, uses in outputs.items():
        replace_uses(scope, uses, ref, f"{node.name}{ref.removeprefix(name)}")
    emit.node_of(restore.after(f"^{node.name}", old)).name = name
