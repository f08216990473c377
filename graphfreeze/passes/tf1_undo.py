"""Takes a freeze off a TF1 graph: names go back to the nodes that had them, and what was added goes.

What a later training added stays, unless it computes with what goes: the update of a part, and what needs that, cannot
be turned into the update of the variable. Such nodes go too, and the caller is told.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterator, Mapping

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import ADDED, EDITED, GUARDED, INPUT, RAW, REPLACES, SILENCED, attr_bytes
from graphfreeze.graph.refs import is_control, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.tf1 import fetched_nodes, is_variable_collection
from graphfreeze.passes.tf1_collections import phase_collection
from graphfreeze.passes.tf1_frames import open_contexts
from graphfreeze.passes.tf1_marks import Info, read_infos
from graphfreeze.passes.tf1_undo_saver import drop_restored, drop_saved
from graphfreeze.savedmodel.protos import MetaGraphDef, NodeDef, VariableDef

_SAVER = re.compile(r"(^|/)save(_\d+)?/(Assign|AssignVariableOp|Identity)(_\d+)*$")
_MOVED_NAME = re.compile(r"/graphfreeze/(raw|inner)(_\d+)*$")


def undo_graph(meta: MetaGraphDef, handles: Collection[str]) -> tuple[str, ...]:
    """Takes everything of ours out of the main graph; ``handles`` are the variable ops that go.

    Returns:
        Names of nodes that someone else added and that went too, because they computed with what went.

    Raises:
        UnsupportedModelError: a signature gives out what would go.
    """
    infos = list(read_infos(meta))
    scope = Scope(meta.graph_def)
    renamed = {n.name: _MOVED_NAME.sub("", n.name) for n in scope.node_list if RAW in n.attr or GUARDED in n.attr}
    _let_write(scope, infos)
    _redirect(scope, infos)
    added = {n.name for n in scope.node_list if ADDED in n.attr}
    reborn = set(renamed.values())
    gone = (added | set(handles)) - reborn
    # Gradients of our nodes and slots of our variables: their constants hang on nothing that goes.
    gone |= {n.name for n in scope.node_list if "/graphfreeze/" in n.name and n.name not in renamed}
    more = dependent(scope, gone, reborn)
    lost = fetched_nodes(meta) & (gone | more)
    if lost:
        raise UnsupportedModelError(
            f"A signature gives out '{sorted(lost)[0]}', which computes with variables that graphfreeze added and has "
            "to take out. Save the model without that signature, then finalize it"
        )
    everything = gone | more
    everything |= drop_restored(scope, everything)
    drop_saved(scope, everything)
    kept = [n for n in scope.node_list if n.name not in everything and not (n.name in reborn and n.name in added)]
    _keep(scope, kept, everything, renamed)
    _restore_collections(meta, infos, everything, renamed)
    return tuple(sorted(n for n in more if not _SAVER.search(n)))


def _let_write(scope: Scope, infos: list[Info]) -> None:
    """Writes that were silenced run again, as they were, and ops that were edited are what they were."""
    prefix = infos[0].prefix if infos else ""
    for node in scope.node_list:
        mark = next((m for m in (SILENCED, EDITED) if m in node.attr), None)
        if mark is None:
            continue
        was = scope.recalled(node.attr[mark].s)
        was.name, was.device = node.name, node.device
        was.input[:] = [f"^{prefix}{t[1:]}" if is_control(t) else f"{prefix}{t}" for t in was.input]
        if prefix and "_class" in was.attr:
            groups = was.attr["_class"].list
            groups.s[:] = [b"loc:@" + prefix.encode() + g.removeprefix(b"loc:@") for g in groups.s]
        node.CopyFrom(was)


def _redirect(scope: Scope, infos: list[Info]) -> None:
    """Lets nodes take again what they took: ops that take a ref, and lookups."""
    prefix = infos[0].prefix if infos else ""
    direct = {
        n.name: prefix + attr_bytes(n, REPLACES).decode()
        for n in scope.node_list
        if REPLACES in n.attr and attr_bytes(n, ADDED) != b"value"
    }
    for node in scope.node_list:
        if INPUT in node.attr:
            node.input[0] = prefix + attr_bytes(node, INPUT).decode()
            del node.attr[INPUT]
        for i, text in enumerate(node.input):
            if not is_control(text) and text in direct and ADDED not in node.attr:
                node.input[i] = direct[text]


def dependent(scope: Scope, gone: set[str], reborn: set[str]) -> set[str]:
    """Everything that takes a tensor of what goes. A saver only loses an entry."""
    users: dict[str, list[NodeDef]] = {}
    for node in scope.node_list:
        for text in scope.data_inputs(node):
            users.setdefault(producer(text), []).append(node)
    found: set[str] = set()
    pending = list(gone)
    while pending:
        for node in users.get(pending.pop(), ()):
            name = node.name
            if name not in gone and name not in found and name not in reborn and node.op != "SaveV2":
                found.add(name)
                pending.append(name)
    return found


def _keep(scope: Scope, kept: list[NodeDef], gone: set[str], renamed: Mapping[str, str]) -> None:
    data = []
    for node in kept:
        inputs = [t for t in node.input if not (is_control(t) and producer(t) in gone)]
        if len(inputs) != len(node.input):
            del node.input[:]
            node.input.extend(inputs)
        for i, text in enumerate(node.input):
            if producer(text) in renamed:
                node.input[i] = text.replace(producer(text), renamed[producer(text)], 1)
        if node.name in renamed:
            node.name = renamed[node.name]
            for mark in (RAW, GUARDED):
                node.attr.pop(mark, None)
        _colocate(node, gone, renamed)
        data.append(node.SerializeToString())
    del scope.node_list[:]
    scope.node_list.extend(NodeDef.FromString(d) for d in data)


def _colocate(node: NodeDef, gone: Collection[str], renamed: Mapping[str, str]) -> None:
    """A node cannot stand beside one that went."""
    groups = list(node.attr["_class"].list.s) if "_class" in node.attr else []
    names = [g.decode().removeprefix("loc:@") for g in groups]
    kept = [f"loc:@{renamed.get(name, name)}".encode() for name in names if name not in gone]
    if groups and not kept:
        del node.attr["_class"]
    elif kept != groups:
        node.attr["_class"].list.s[:] = kept


def _restore_collections(
    meta: MetaGraphDef, infos: list[Info], gone: Collection[str], renamed: Mapping[str, str]
) -> None:
    for info in infos:
        for phase in info.data.get("phases", ()):
            meta.collection_def.pop(phase_collection(phase["name"]), None)
    for name, collection in list(meta.collection_def.items()):
        if is_variable_collection(name):
            notes = [(info, note) for info in infos for note in info.data["collections"].get(name, ())]
            values = list(_restored(list(collection.bytes_list.value), notes, gone))
            collection.bytes_list.value[:] = values
            if not values and any("created" in note for _, note in notes):
                del meta.collection_def[name]
        elif collection.WhichOneof("kind") == "node_list":
            nodes = collection.node_list.value
            nodes[:] = [n for n in nodes if producer(n) not in gone]
    _restore_contexts(meta, gone, renamed)


def _restored(
    values: list[bytes], notes: list[tuple[Info, dict[str, object]]], gone: Collection[str]
) -> Iterator[bytes]:
    """The entries of a collection without ours; changed ones word for word as they were."""
    before: dict[str, bytes] = {}
    removed: list[tuple[int, bytes]] = []
    added: set[str] = set()
    for info, note in notes:
        if "entry" in note:
            entry = _prefixed(info, base64.b64decode(str(note["entry"])))
            if note["kept"]:
                before[_name(entry)] = entry
            else:
                removed.append((int(str(note["position"])), entry))
        elif "name" in note:
            added.add(info.name(str(note["name"])))
    kept = [before.get(_name(v), v) for v in values if _name(v) not in gone and _name(v) not in added]
    for position, entry in sorted(removed):
        kept.insert(min(position, len(kept)), entry)
    yield from kept


def _name(entry: bytes) -> str:
    return producer(VariableDef.FromString(entry).variable_name)


def _prefixed(info: Info, entry: bytes) -> bytes:
    if not info.prefix:
        return entry
    described = VariableDef.FromString(entry)
    for field in ("variable_name", "initializer_name", "snapshot_name", "initial_value_name"):
        if getattr(described, field):
            setattr(described, field, info.name(getattr(described, field)))
    return bytes(described.SerializeToString())


def _restore_contexts(meta: MetaGraphDef, gone: Collection[str], renamed: Mapping[str, str]) -> None:
    for context in open_contexts(meta):
        values = context.proto.values_def
        kept = [v for v in values.values if producer(v) not in gone and producer(v) not in renamed]
        lost = [k for k, v in values.external_values.items() if producer(k) in gone or producer(v) in gone]
        if len(kept) != len(values.values) or lost:
            values.values[:] = kept
            for key in lost:
                del values.external_values[key]
            held = meta.collection_def[context.collection].bytes_list.value
            held[context.position] = context.root.SerializeToString(deterministic=True)
