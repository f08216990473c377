"""Pass ``info``: leaves a function in the model that says what was done, and lists what trains.

``loaded.graphfreeze.info()`` returns the facts as JSON. The function captures, and does not use, exactly the trainable
variables, so ``loaded.graphfreeze.info.concrete_functions[0].trainable_variables`` is the list to give to an optimizer,
without graphfreeze. A list of variables under the root would do that too, but would rename checkpoint keys.
"""

from __future__ import annotations

import json
from typing import Any

from graphfreeze.graph.attrs import shape_proto, string_tensor, type_attr
from graphfreeze.graph.names import FreshNames
from graphfreeze.lowering.facts import FORMAT, fact
from graphfreeze.passes.flags import trainable_nodes
from graphfreeze.passes.state import Work
from graphfreeze.passes.variables import hold_child
from graphfreeze.savedmodel import DT_RESOURCE, append_node, node_paths
from graphfreeze.savedmodel.protos import AttrValue, FunctionDef, StructuredValue
from graphfreeze.version import __version__

INFO = "info"
INFO_FUNCTION = "__inference_info_graphfreeze_0"
"""Its name as it is written. Saving with TensorFlow counts it anew, from a number above zero."""
_STRING = 7


def add_info(work: Work) -> None:
    """Adds the function, its object, and its concrete function; with phases it lists what the first one trains."""
    child = hold_child(work.meta.object_graph_def)
    add_info_function(work.in_phase(work.first_phase), child, INFO_FUNCTION, _content(work))


def add_info_function(work: Work, parent: int, name: str, content: bytes) -> None:
    """A function ``info`` below an object, which says ``content`` and captures what trains in the phase at work."""
    graph = work.meta.object_graph_def
    names = FreshNames(f.signature.name for f in work.meta.graph_def.library.function)
    name = names.fresh(name)
    captured = trainable_nodes(work)
    work.meta.graph_def.library.function.add().CopyFrom(_function(name, content, len(captured)))
    _, node = append_node(graph, parent, INFO)
    node.function.concrete_functions.append(name)
    node.function.function_spec.fullargspec.CopyFrom(_no_arguments())
    node.function.function_spec.input_signature.tuple_value.SetInParent()
    concrete = graph.concrete_functions[name]
    concrete.bound_inputs.extend(captured)
    call = concrete.canonicalized_input_signature.tuple_value
    call.values.add().tuple_value.SetInParent()
    call.values.add().dict_value.SetInParent()
    spec = concrete.output_signature.tensor_spec_value
    spec.name, spec.dtype = "unknown", _STRING
    spec.shape.SetInParent()


def _content(work: Work) -> bytes:
    data: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "source": work.source,
        "spec": work.spec,
        "variables": [json.loads(fact(m, beside_constants=False)) for m in work.merges.values()],
        "enabled": [v.path for i, v in enumerate(work.plan.variables) if v.enabled and i not in work.merges],
        "lists": work.lists,
        "places": _places(work),
    }
    if work.plan.phases:
        data["phases"] = [phase.to_dict() for phase in work.plan.phases]
    return json.dumps(data, sort_keys=True).encode()


def _places(work: Work) -> dict[str, list[str]]:
    """Path in the source -> child names that lead to the variable now: a list that lost it may have been its path."""
    paths = node_paths(work.meta.object_graph_def)
    touched = {*work.merges, *(i for i, v in enumerate(work.plan.variables) if v.enabled)}
    return {v.path: list(paths[v.node_id]) for v in work.trace.variables if v.index in touched and v.node_id in paths}


def _function(name: str, content: bytes, captured: int) -> FunctionDef:
    function = FunctionDef()
    function.signature.name = name
    shapes = function.attr["_input_shapes"]
    shapes.CopyFrom(AttrValue(list=AttrValue.ListValue()))
    for i in range(captured):
        function.signature.input_arg.add(name=f"graphfreeze_{i}", type=DT_RESOURCE)
        function.arg_attr[i].attr["_user_specified_name"].s = f"graphfreeze_{i}".encode()
        shapes.list.shape.add()
    function.signature.output_arg.add(name="identity", type=_STRING)
    const = function.node_def.add(name="Const", op="Const")
    const.attr["dtype"].CopyFrom(type_attr(_STRING))
    const.attr["value"].tensor.CopyFrom(string_tensor([content], ()))
    identity = function.node_def.add(name="Identity", op="Identity", input=["Const:output:0"])
    identity.attr["T"].CopyFrom(type_attr(_STRING))
    for node in (const, identity):
        node.attr["_output_shapes"].list.shape.add().CopyFrom(shape_proto(()))
    function.ret["identity"] = "Identity:output:0"
    return function


def _no_arguments() -> StructuredValue:
    spec = StructuredValue()
    named = spec.named_tuple_value
    named.name = "FullArgSpec"
    kinds = {
        "args": "list_value",
        "varargs": "none_value",
        "varkw": "none_value",
        "defaults": "none_value",
        "kwonlyargs": "list_value",
        "kwonlydefaults": "none_value",
        "annotations": "dict_value",
    }
    for key, kind in kinds.items():
        pair = named.values.add(key=key)
        getattr(pair.value, kind).SetInParent()
    return spec
