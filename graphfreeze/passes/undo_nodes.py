"""Takes added nodes out of one scope and turns changed ones back, from their marks alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import ADDED, CHANGED, EDITED, GUARDED, REPLACES, SILENCED
from graphfreeze.graph.ops import CALLS, FORWARDS
from graphfreeze.graph.refs import is_control, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.savedmodel.protos import AttrValue, NodeDef


def handed_on(scope: Scope, ours: Collection[str]) -> frozenset[str]:
    """Arguments in ``ours``, and the nodes that do nothing but hand them on."""
    found = set(ours)
    pending = True
    while pending:
        more = {
            n.name
            for n in scope.node_list
            if n.op in FORWARDS
            and CHANGED not in n.attr
            and n.name not in found
            and n.input
            and producer(n.input[0]) in found
        }
        found |= more
        pending = bool(more)
    return frozenset(found)


def restore_changed(scope: Scope, ours: Collection[str]) -> None:
    """Turns nodes that take a value into the reading nodes that they were; consumers follow the output's name.

    A value that came in as one of ``ours`` gives way to the handle that stayed beside it.
    """
    for node in scope.node_list:
        if CHANGED not in node.attr:
            continue
        was = scope.recalled(node.attr[CHANGED].s)
        raw, restored = scope.ref(node.name, node.op), scope.ref(node.name, was.op)
        data = scope.data_inputs(node)[: len(scope.data_inputs(was))]
        if producer(data[0]) in ours:
            data[0] = was.input[0]
        controls = [text for text in node.input if is_control(text)]
        shapes = node.attr["_output_shapes"].SerializeToString() if "_output_shapes" in node.attr else None
        node.op = was.op
        del node.input[:]
        node.input.extend([*data, *controls])
        node.attr.clear()
        for key, value in was.attr.items():
            node.attr[key].CopyFrom(value)
        if shapes is not None:
            node.attr["_output_shapes"].CopyFrom(AttrValue.FromString(shapes))
        if raw != restored:
            _repoint(scope, {scope.canonical(raw): restored})


def restore_writes(scope: Scope, *, saved_again: bool) -> None:
    """Takes guards off: a write that was surrounded gets its name back, one that was silenced runs again.

    An op that was edited in place becomes what it was, too.

    Where TensorFlow has saved the model again it has dropped the devices of ops that take a variable.
    """
    inner = {n.name: n.attr[GUARDED].s.decode() for n in scope.node_list if GUARDED in n.attr}
    added = {n.name for n in scope.node_list if ADDED in n.attr}
    _keep(scope, [n for n in scope.node_list if n.name not in added & set(inner.values())])
    for node in scope.node_list:
        if SILENCED in node.attr or EDITED in node.attr:
            controls, device = [text for text in node.input if is_control(text)], node.device
            mark = SILENCED if SILENCED in node.attr else EDITED
            node.CopyFrom(scope.recalled(node.attr[mark].s))
            node.input[:] = [*scope.data_inputs(node), *controls]
            node.device = "" if saved_again else device
        elif GUARDED in node.attr:
            node.name = inner[node.name]
            del node.attr[GUARDED]
            ours = added - set(inner.values())
            node.input[:] = [t for t in node.input if not (is_control(t) and producer(t) in ours)]
        node.input[:] = [_renamed(text, inner) for text in node.input]
    for result, text in list(scope.proto.ret.items()) if scope.in_function else ():
        scope.proto.ret[result] = _renamed(text, inner)


def _renamed(text: str, names: Mapping[str, str]) -> str:
    was = producer(text)
    return text if was not in names or is_control(text) else f"{names[was]}{text.removeprefix(was)}"


def remove_added(scope: Scope, ours: Collection[str]) -> None:
    """Takes out every node that was added, and those that hand ``ours`` on; merges give way to the raw tensors.

    Raises:
        UnsupportedModelError: a node that stays uses one that goes.
    """
    gone = {n.name for n in scope.node_list if ADDED in n.attr} | {n.name for n in scope.node_list if n.name in ours}
    raw = {
        scope.ref(n.name, n.op): scope.named(n.attr[REPLACES].s.decode()) for n in scope.node_list if REPLACES in n.attr
    }
    _repoint(scope, {scope.canonical(k): v for k, v in raw.items()})
    kept = [n for n in scope.node_list if n.name not in gone]
    for node in kept:
        # Writes wait for our reads as for the one that was there before.
        node.input[:] = [t for t in node.input if not (is_control(t) and producer(t) in gone - set(ours))]
        for text in node.input:
            if producer(text) in gone or (producer(text) in ours and not is_control(text)):
                raise _still_used(scope, f"Node '{node.name}' ({node.op})", text)
    for result, text in scope.proto.ret.items():
        if producer(text) in gone - set(ours):
            raise _still_used(scope, f"Result '{result}'", text)
    _keep(scope, kept)
    drop_control_outputs(scope, gone)


def drop_control_outputs(scope: Scope, gone: Collection[str]) -> None:
    """Takes nodes off the list of those that a function runs for their effects."""
    for name in [k for k, v in scope.proto.control_ret.items() if v in gone]:
        del scope.proto.control_ret[name]
        scope.proto.signature.control_output.remove(name)


def _still_used(scope: Scope, user: str, text: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{user} in function '{scope.name}' uses '{text}', which graphfreeze added and has to take out. It was saved "
        "with the model, for example as part of a training step: leave that function out when saving, or let it use "
        "the variables through the model's own functions"
    )


def remove_handles(main: Scope, handles: Collection[str]) -> None:
    """Removes VarHandleOps of the main graph, and what reads, initialises or asks about them.

    Keras leaves a further handle for each variable, which is initialised from it and otherwise unused; it goes too.
    Calls take such handles no more when this runs.
    """
    gone = set(handles)
    count = -1
    while len(gone) > count:
        count = len(gone)
        for node in main.node_list:
            if node.name in gone or node.op in CALLS or not any(producer(t) in gone for t in main.data_inputs(node)):
                continue
            gone.add(node.name)
            if node.op == "AssignVariableOp":
                gone.add(producer(node.input[0]))
    _keep(main, [n for n in main.node_list if n.name not in gone])


def _keep(scope: Scope, kept: Collection[NodeDef]) -> None:
    """Keeps some of the nodes; messages are copied, because the field owns them."""
    if len(kept) != len(scope.node_list):
        data = [n.SerializeToString() for n in kept]
        del scope.node_list[:]
        scope.node_list.extend(NodeDef.FromString(d) for d in data)


def _repoint(scope: Scope, targets: Mapping[str, str]) -> None:
    for node in scope.node_list:
        for i, text in enumerate(node.input):
            if not is_control(text) and scope.canonical(text) in targets:
                node.input[i] = targets[scope.canonical(text)]
    if scope.in_function:
        for result, text in list(scope.proto.ret.items()):
            if scope.canonical(text) in targets:
                scope.proto.ret[result] = targets[scope.canonical(text)]
