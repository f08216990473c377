"""Pass ``variables``: adds the new variables everywhere a variable has to be.

A new variable is a node of the object graph under ``graphfreeze/variables``, a node of the checkpoint's object graph
under the same names, a tensor of the bundle and a VarHandleOp of the main graph. The child is appended last and holds
new variables only, so every existing checkpoint key stays what it was (keys are breadth-first paths).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import InternalError, UnsupportedModelError
from graphfreeze.graph.attrs import bytes_attr, shape_attr, shape_proto, type_attr
from graphfreeze.graph.callables import OURS
from graphfreeze.graph.variables import Variable
from graphfreeze.lowering.merge import NewVariable
from graphfreeze.passes.state import Stored, Work
from graphfreeze.savedmodel import DTYPE_NUMBERS, NodePath, add_variable_value, append_node, checkpoint_key, children
from graphfreeze.savedmodel.protos import AttrValue, Message, SavedObject, SavedVariable

CHILD = OURS
"""The child of the root that holds everything of ours."""


def add_variables(work: Work) -> None:
    """Adds every new variable of the plan."""
    needed = [(index, new) for index, merge in work.merges.items() for new in merge.variables]
    if not needed:
        return
    graph, bundle_graph = work.meta.object_graph_def, work.bundle_graph
    if bundle_graph is None or work.draft.model.bundle is None:
        raise UnsupportedModelError(
            f"The model at '{work.draft.model.directory}' has no object-based checkpoint, so a frozen copy cannot be "
            "stored. Freeze whole variables with --strategy stop, or save the model with its variables."
        )
    holder = hold_under(graph, "variables")
    holder_in_bundle = hold_under(bundle_graph, "variables")
    names = work.names()
    for index, new in needed:
        number = str(len(children(graph, holder)))
        node_id, node = append_node(graph, holder, number)
        _describe(node, new, graph.nodes[work.trace.variables[index].node_id].variable)
        key = checkpoint_key((CHILD, "variables", number))
        _, in_bundle = append_node(bundle_graph, holder_in_bundle, number)
        add_variable_value(in_bundle, key, new.name)
        handle = names.fresh(new.name)
        _add_handle(work, handle, new, work.trace.variables[index])
        work.draft.put[key] = _value(work, index, new)
        work.stored[index, new.role] = Stored(new, node_id, handle, key)


def hold_under(graph: Message, name: str) -> int:
    """The list ``graphfreeze/NAME``, made where it is missing. Works on both object graphs."""
    child = hold_child(graph)
    held = children(graph, child).get(name)
    if held is None:
        held, node = append_node(graph, child, name)
        mark_user_object(node, "trackable_list_wrapper")
    return held


def hold_child(graph: Message, path: NodePath = ()) -> int:
    """The object ``graphfreeze``, or one below it, made where it is missing. Works on both object graphs."""
    number = 0
    for name in (CHILD, *path):
        found = children(graph, number).get(name)
        if found is None:
            found, node = append_node(graph, number, name)
            mark_user_object(node, "_generic_user_object")
        number = found
    return number


def mark_user_object(node: Message, identifier: str) -> None:
    """Says what to revive a node of the saved graph as; the checkpoint's graph has no kinds."""
    if isinstance(node, SavedObject):
        node.user_object.identifier = identifier
        node.user_object.version.producer = 1
        node.user_object.version.min_consumer = 1


def _describe(node: SavedObject, new: NewVariable, origin: SavedVariable) -> None:
    """What a loader makes the variable from: as the original, but for its own shape, flag and name."""
    variable = node.variable
    variable.device = origin.device
    variable.synchronization = origin.synchronization
    variable.aggregation = origin.aggregation
    variable.dtype = DTYPE_NUMBERS[new.dtype]
    variable.shape.CopyFrom(shape_proto(new.shape))
    variable.trainable = new.trainable
    variable.name = new.name


def _add_handle(work: Work, handle: str, new: NewVariable, variable: Variable) -> None:
    device = next((n.device for n in work.meta.graph_def.node if n.name in variable.handles), "")
    node = work.meta.graph_def.node.add(name=handle, op="VarHandleOp", device=device)
    node.attr["dtype"].CopyFrom(type_attr(DTYPE_NUMBERS[new.dtype]))
    node.attr["shape"].CopyFrom(shape_attr(new.shape))
    node.attr["shared_name"].CopyFrom(bytes_attr(handle))
    node.attr["container"].CopyFrom(bytes_attr(""))
    node.attr["allowed_devices"].CopyFrom(AttrValue(list=AttrValue.ListValue()))
    node.attr["_output_shapes"].CopyFrom(AttrValue(list=AttrValue.ListValue(shape=[shape_proto(())])))


def _value(work: Work, index: int, new: NewVariable) -> NDArray[np.generic]:
    if new.value is not None:
        return np.asarray(new.value, order="C")
    variable = work.trace.variables[index]
    if variable.key is None or new.region is None:
        raise InternalError(f"no stored value for '{variable.name}'")
    return np.asarray(new.region.take(work.draft.tensor(variable.key)), order="C")
