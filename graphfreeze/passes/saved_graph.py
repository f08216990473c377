"""The object graph that a model's own save function writes: a constant of the main graph.

It is the checkpoint's object graph, but full names in it are those of the VarHandleOps, and some TensorFlow versions
leave out children that the checkpoint's graph has. So it is not replaced by that graph: only the nodes that a pass
changed are taken over.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.refs import attr_of, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.savedmodel import DT_STRING, OBJECT_GRAPH_KEY
from graphfreeze.savedmodel.protos import MetaGraphDef, TensorProto, TrackableObjectGraph


def update_saved_graph(
    meta: MetaGraphDef,
    before: TrackableObjectGraph | None,
    after: TrackableObjectGraph | None,
    renamed: Mapping[str, str] | None = None,
) -> None:
    """Takes over what changed between two states of the checkpoint's object graph.

    Args:
        meta: The meta graph, changed in place.
        before: The checkpoint's object graph before the change.
        after: The same after it.
        renamed: Checkpoint keys that changed, old -> new.

    Raises:
        UnsupportedModelError: the save function has no such constant.
    """
    main = Scope(meta.graph_def)
    call = main.nodes.get(producer(meta.saver_def.save_tensor_name))
    if call is None or before is None or after is None or before == after:
        return
    tensor = next((t for text in call.input if (t := _graph_tensor(main, text)) is not None), None)
    if tensor is None:
        raise UnsupportedModelError(
            f"The save function of the model writes no object graph ('{OBJECT_GRAPH_KEY}'): it was written by a "
            "TensorFlow that graphfreeze does not know. Save the model again with tf.saved_model.save."
        )
    old = TrackableObjectGraph.FromString(tensor.string_val[0])
    tensor.string_val[0] = _merged(old, before, after, renamed or {}).SerializeToString(deterministic=True)


def _graph_tensor(main: Scope, text: str) -> TensorProto | None:
    node = main.nodes.get(producer(text))
    if node is None or node.op != "Const" or attr_of(node, "dtype").type != DT_STRING:
        return None
    tensor = node.attr["value"].tensor
    return tensor if len(tensor.string_val) == 1 and len(tensor.string_val[0]) > 0 else None


def _merged(
    old: TrackableObjectGraph,
    before: TrackableObjectGraph,
    after: TrackableObjectGraph,
    renamed: Mapping[str, str],
) -> TrackableObjectGraph:
    names = {renamed.get(a.checkpoint_key, a.checkpoint_key): a.full_name for n in old.nodes for a in n.attributes}
    merged = TrackableObjectGraph()
    for i, node in enumerate(after.nodes):
        if i < min(len(before.nodes), len(old.nodes)) and before.nodes[i] == node:
            merged.nodes.add().CopyFrom(old.nodes[i])
            continue
        taken = merged.nodes.add()
        taken.CopyFrom(node)
        for attribute in taken.attributes:
            attribute.full_name = names.get(attribute.checkpoint_key, attribute.full_name)
    return merged
