"""Compares two models, meta graph by meta graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from graphfreeze.comparison.difference import Change, Difference, FrozenElements, ValueChange
from graphfreeze.comparison.frozen import frozen_elements
from graphfreeze.comparison.functions import Functions
from graphfreeze.comparison.normal import NormalNode, opened, stem
from graphfreeze.comparison.objects import concrete_differences, object_differences, stored_differences
from graphfreeze.comparison.saver import saver_calls, saver_differences, saver_function
from graphfreeze.comparison.tensors import tensor_differences
from graphfreeze.graph.variables import find_variables, is_tf2
from graphfreeze.passes.tf1_frames import open_contexts
from graphfreeze.savedmodel import Draft
from graphfreeze.savedmodel.protos import Message

_COMPARED = ("graph_def", "object_graph_def", "signature_def", "meta_info_def")
"""Fields of a meta graph that are compared in detail."""


def compare(a: Draft, b: Draft) -> Difference:
    """All differences between two models; see ``graphfreeze.diff``."""
    changes: list[Change] = []
    frozen: list[FrozenElements] = []
    warnings: list[str] = []
    names: dict[str, str] = {}
    for meta, other in _meta_graphs(a, b, changes):
        changes += _compare_meta_graphs(meta, other)
        names |= _variable_names(b, other) | _variable_names(a, meta)
        if is_tf2(meta) == is_tf2(other):
            found, why = frozen_elements(a, meta, b, other)
            frozen += [] if found is None else [found]
            warnings += why
    changes += stored_differences(a.bundle_graph, b.bundle_graph)
    values: list[ValueChange] = []
    for found_tensor in tensor_differences(a.model.bundle, b.model.bundle, names):
        if isinstance(found_tensor, Change):
            changes.append(found_tensor)
        else:
            values.append(found_tensor)
    changes += _file_differences(a, b)
    one = frozen[0] if frozen else None
    return Difference(
        str(a.model.directory), str(b.model.directory), tuple(changes), tuple(values), one, tuple(warnings)
    )


def _meta_graphs(a: Draft, b: Draft, changes: list[Change]) -> Iterator[tuple[Message, Message]]:
    """Meta graphs of the same tags, wherever they stand: loaders go by tags."""
    one, other = ({_tags(m): m for m in draft.model.proto.meta_graphs} for draft in (a, b))
    changes += [Change("meta graph", "removed", ", ".join(tags)) for tags in one if tags not in other]
    changes += [Change("meta graph", "added", ", ".join(tags)) for tags in other if tags not in one]
    for tags, meta in one.items():
        if tags in other:
            yield meta, other[tags]


def _tags(meta: Message) -> tuple[str, ...]:
    return tuple(meta.meta_info_def.tags)


def _compare_meta_graphs(a: Message, b: Message) -> Iterator[Change]:
    yield from _info_differences(a, b)
    yield from _signature_differences(a, b)
    functions = Functions(a.graph_def, b.graph_def)
    for call_a, call_b in zip(saver_calls(a), saver_calls(b), strict=True):
        functions.skip(saver_function(a, call_a), saver_function(b, call_b))
    yield from object_differences(a.object_graph_def, b.object_graph_def, functions)
    yield from _main_differences(a, b, functions)
    yield from functions.differences()
    yield from concrete_differences(a.object_graph_def, b.object_graph_def, functions)
    yield from saver_differences(a, b)


def _main_differences(a: Message, b: Message, functions: Functions) -> Iterator[Change]:
    """The nodes of the main graphs."""
    one = {n.name: n for n in a.graph_def.node}
    other = {n.name: n for n in b.graph_def.node}
    savers = set(saver_calls(a)) | set(saver_calls(b))
    for name, node in one.items():
        if name not in other:
            yield Change("node", "removed", name, node.op)
            continue
        x = functions.a.normaliser.node(opened(node))
        y = functions.b.normaliser.node(opened(other[name]))
        if name in savers:
            x, y = _without_order(x), _without_order(y)
        yield from functions.nodes(name, x, y)
    yield from (Change("node", "added", name, node.op) for name, node in other.items() if name not in one)


def _without_order(node: NormalNode) -> NormalNode:
    """A call of the saver's function, whose arguments TensorFlow orders anew; ``saver`` compares what it does."""
    attributes = {k: v for k, v in node.attributes.items() if k not in ("Tin", "f")}
    callees = node.callees if "f" not in node.attributes else ()
    return NormalNode(node.op, tuple(sorted(node.inputs)), node.device, attributes, callees)


def _info_differences(a: Message, b: Message) -> Iterator[Change]:
    one, other = (_without_functions(m.meta_info_def) for m in (a, b))
    for field in one.DESCRIPTOR.fields:
        if _field(one, field.name) != _field(other, field.name):
            values = [" ".join(str(getattr(m, field.name)).split()) for m in (one, other)]
            words = f"'{values[0]}' -> '{values[1]}'" if max(map(len, values)) < 60 else ""
            yield Change("meta graph", "changed", field.name, words)
    for field in a.DESCRIPTOR.fields:
        if field.name == "collection_def":
            if _collections(a) != _collections(b):
                yield Change("meta graph", "changed", field.name)
        elif field.name not in _COMPARED and _field(a, field.name) != _field(b, field.name):
            yield Change("meta graph", "changed", field.name)
    if _field(a.graph_def, "versions") != _field(b.graph_def, "versions"):
        yield Change("meta graph", "changed", "graph_def.versions")
    for place in ("meta_info_def", "graph_def", "object_graph_def"):
        if _unknown(getattr(a, place)) != _unknown(getattr(b, place)):
            yield Change("meta graph", "changed", place, "fields that this version of TensorFlow does not know")


def _collections(meta: Message) -> bytes:
    """The collections as bytes; control flow contexts stand in them as bytes themselves, in any order of entries."""
    copy = type(meta)()
    for name, collection in meta.collection_def.items():
        copy.collection_def[name].CopyFrom(collection)
    for context in open_contexts(copy):
        held = copy.collection_def[context.collection].bytes_list.value
        held[context.position] = context.root.SerializeToString(deterministic=True)
    return bytes(copy.SerializeToString(deterministic=True))


def _without_functions(info: Message) -> Message:
    """Names of functions are counted anew."""
    copy = type(info)()
    copy.CopyFrom(info)
    aliases = {stem(k): stem(v) for k, v in info.function_aliases.items()}
    copy.ClearField("function_aliases")
    for name, alias in aliases.items():
        copy.function_aliases[name] = alias
    return copy


def _field(message: Message, name: str) -> bytes:
    """One field as bytes, with unknown fields in it."""
    field = next((f for f, _ in message.ListFields() if f.name == name), None)
    if field is None:
        return b""
    copy = type(message)()
    value = getattr(message, name)
    if field.is_repeated or field.message_type is not None:
        getattr(copy, name).MergeFrom(value)
    else:
        setattr(copy, name, value)
    return bytes(copy.SerializeToString(deterministic=True))


def _unknown(message: Message) -> bytes:
    """The unknown fields of a message itself."""
    copy = type(message)()
    copy.CopyFrom(message)
    for field in copy.DESCRIPTOR.fields:
        copy.ClearField(field.name)
    return bytes(copy.SerializeToString())


def _signature_differences(a: Message, b: Message) -> Iterator[Change]:
    one, other = a.signature_def, b.signature_def
    for name in sorted({*one, *other}):
        if name not in other:
            yield Change("signature", "removed", name)
        elif name not in one:
            yield Change("signature", "added", name)
        elif (x := one[name].SerializeToString(deterministic=True)) != other[name].SerializeToString(
            deterministic=True
        ):
            parts = [p for p in ("inputs", "outputs") if str(getattr(one[name], p)) != str(getattr(other[name], p))]
            yield Change("signature", "changed", name, ", ".join(parts) if x else "")


def _variable_names(draft: Draft, meta: Message) -> dict[str, str]:
    """Checkpoint key -> name of the variable."""
    return {v.key: v.name for v in find_variables(draft, meta) if v.key is not None}


def _file_differences(a: Draft, b: Draft) -> Iterator[Change]:
    one, other = set(a.model.other_files()), set(b.model.other_files())
    for path in sorted(one | other):
        if path not in other:
            yield Change("file", "removed", str(path))
        elif path not in one:
            yield Change("file", "added", str(path))
        elif not _same_file(a.model.directory / path, b.model.directory / path):
            yield Change("file", "changed", str(path))


def _same_file(a: Path, b: Path) -> bool:
    if a.stat().st_size != b.stat().st_size:
        return False
    with a.open("rb") as one, b.open("rb") as other:
        while piece := one.read(1 << 20):
            if piece != other.read(1 << 20):
                return False
    return True
