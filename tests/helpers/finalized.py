"""Whether a finalized model is the model that it was made from."""

from pathlib import Path
from typing import Any

from graphfreeze.graph.scope import Scope
from graphfreeze.savedmodel import OBJECT_GRAPH_KEY, SavedModel, read_saved_model
from graphfreeze.savedmodel.protos import CondContextDef, Message, TrackableObjectGraph, WhileContextDef
from tests.helpers.compare import proto_diff

_STRING = 7


def finalized_differences(plain: Path, source: Path) -> list[str]:
    """Promise G5 of an untrained result: messages, tensors and files; serialised graphs compare as messages."""
    a, e = read_saved_model(plain), read_saved_model(source)
    found = proto_diff(_opened(a), _opened(e))
    graphs = [_bundle_graph(m) for m in (a, e)]
    if None not in graphs:
        found += [f"checkpoint's object graph: {line}" for line in proto_diff(*graphs)]
    tensors = [_tensors(m) for m in (a, e)]
    found += [f"tensor '{k}'" for k in tensors[0].keys() | tensors[1].keys() if tensors[0].get(k) != tensors[1].get(k)]
    files = [{f: (m.directory / f).read_bytes() for f in m.other_files()} for m in (a, e)]
    return found + [f"file '{k}'" for k in files[0].keys() | files[1].keys() if files[0].get(k) != files[1].get(k)]


def _opened(model: SavedModel) -> Message:
    """The proto, with the messages that stand in it as bytes in one fixed order of bytes."""
    for meta in model.proto.meta_graphs:
        for collection, kind in (("cond_context", CondContextDef), ("while_context", WhileContextDef)):
            if collection in meta.collection_def:
                held = meta.collection_def[collection].bytes_list.value
                held[:] = [kind.FromString(data).SerializeToString(deterministic=True) for data in held]
        main = Scope(meta.graph_def)
        save = main.nodes.get(meta.saver_def.save_tensor_name.split(":")[0])
        for text in save.input if save is not None else ():
            node = main.nodes.get(text)
            if node is not None and node.op == "Const" and node.attr["dtype"].type == _STRING:
                values = node.attr["value"].tensor.string_val
                values[:] = [_one_order(v) if len(values) == 1 else v for v in values]
    return model.proto


def _one_order(data: bytes) -> bytes:
    return TrackableObjectGraph.FromString(data).SerializeToString(deterministic=True)


def _bundle_graph(model: SavedModel) -> Message | None:
    if model.bundle is None or OBJECT_GRAPH_KEY not in model.bundle.entries:
        return None
    return TrackableObjectGraph.FromString(model.bundle.read_tensor(OBJECT_GRAPH_KEY).item())


def _tensors(model: SavedModel) -> dict[str, tuple[Any, ...]]:
    if model.bundle is None:
        return {}
    entries = model.bundle.entries
    return {
        key: (entry.dtype, str(entry.shape), model.bundle.read_bytes(key))
        for key, entry in entries.items()
        if key != OBJECT_GRAPH_KEY
    }
