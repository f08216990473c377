"""Pass ``variables`` in a TF1 graph: the new variables as ops of the main graph, of the same kind as the original.

A ref variable gets a VariableV2, its Assign and its read; a resource variable a VarHandleOp, AssignVariableOp and
ReadVariableOp. The first value is cut from the original's initial value, so that ``global_variables_initializer`` gives
the same model. Geometry is a constant: a variable would need an initial value that holds it all the same.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import ADDED, bool_attr, bytes_attr, shape_attr, tensor_attr, type_attr
from graphfreeze.graph.names import FreshNames
from graphfreeze.graph.refs import attr_of, is_control, producer
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.tf1 import initialisers
from graphfreeze.graph.variables import Variable
from graphfreeze.lowering.emitter import Emitter
from graphfreeze.lowering.full import take_region
from graphfreeze.lowering.merge import NewVariable
from graphfreeze.passes.state import Stored, Work
from graphfreeze.planning.views import stored_value
from graphfreeze.savedmodel import DTYPE_NUMBERS, NUMPY_DTYPES
from graphfreeze.savedmodel.protos import AttrValue, NodeDef

_INT32 = DTYPE_NUMBERS["int32"]


def add_graph_variables(work: Work) -> None:
    """Adds every new variable of the plan, and the constants that say where regions lie."""
    adder = _Adder(work)
    for index, merge in work.merges.items():
        for new in merge.variables:
            if new.value is None:
                adder.add(index, new)
        adder.add_geometry(index)
    for index, merge in list(work.merges.items()):
        work.merges[index] = replace(merge, variables=tuple(v for v in merge.variables if v.value is None))


class _Adder:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.scope = Scope(work.meta.graph_def)
        self.names = work.names()
        self.initialisers = initialisers(work.meta)
        self.followers = Followers(self.scope)
        work.setup |= work.trace.main.setup

    def add(self, index: int, new: NewVariable) -> None:
        """One variable with its value in the bundle, its initialiser and its read."""
        work, variable = self.work, self.work.trace.variables[index]
        if work.draft.model.bundle is None:
            raise UnsupportedModelError(
                f"The model at '{work.draft.model.directory}' has no checkpoint, so a frozen copy cannot be stored. "
                "Freeze whole variables with --strategy stop, or save the model with its variables."
            )
        assert new.region is not None
        name = self.names.fresh(new.name)
        value = new.region.take(stored_value(variable, work.draft.tensor))
        work.draft.put[name] = np.asarray(value, order="C")
        device = self.scope.nodes[variable.handles[0]].device
        first = len(self.scope.node_list)
        self._variable(name, new, variable)
        initial = self._initialiser(name, new, variable)
        work.stored[index, new.role] = Stored(new, -1, name, name, f"{producer(initial)}:0")
        dtype = type_attr(DTYPE_NUMBERS[new.dtype])
        if variable.is_ref:
            self._node(f"{name}/read", "Identity", [name], T=dtype, _class=_beside(name))
        else:
            self._node(f"{name}/Read/ReadVariableOp", "ReadVariableOp", [name], dtype=dtype)
        for node in list(self.scope.node_list)[first:]:
            node.device = device

    def add_geometry(self, index: int) -> None:
        """Every geometry array once, for all merges of a variable."""
        merge = self.work.merges[index]
        stem = next((a.name for a in merge.plan.atoms if a.name), f"{merge.plan.name}/graphfreeze/x").rsplit("/", 1)[0]
        held: dict[str, str] = {}
        for key, array in merge.geometry.items():
            held[key] = self.names.fresh(f"{stem}/mask")
            node = self._node(held[key], "Const", [], value=tensor_attr(array))
            node.attr["dtype"].type = node.attr["value"].tensor.dtype
        self.work.geometry[index] = held

    def _variable(self, name: str, new: NewVariable, variable: Variable) -> None:
        attrs = {
            "dtype": type_attr(DTYPE_NUMBERS[new.dtype]),
            "shape": shape_attr(new.shape),
            "container": attr_of(self.scope.nodes[variable.handles[0]], "container"),
            "shared_name": bytes_attr("" if variable.is_ref else name),
        }
        self._node(name, "VariableV2" if variable.is_ref else "VarHandleOp", [], **attrs)

    def _initialiser(self, name: str, new: NewVariable, variable: Variable) -> str:
        """Assigns the cut of the original's initial value, wherever the original is initialised; returns the cut."""
        old = next((self.initialisers[h] for h in variable.handles if h in self.initialisers), None)
        first = len(self.scope.node_list)
        emit = Emitter(self.scope, self.names, f"{name}/Initializer")
        dtype = DTYPE_NUMBERS[new.dtype]
        assert new.region is not None
        if old is None:
            # Nothing initialises the original, so it always comes from a checkpoint, and this one with it.
            attrs = {"T": type_attr(dtype), "index_type": type_attr(_INT32)}
            zero = emit.const(np.zeros((), NUMPY_DTYPES[dtype]))
            value = emit.op("Fill", [emit.ints(list(new.shape)), zero], attrs)
        else:
            value = emit.identity(take_region(emit, old.input[1], new.region, dtype), dtype)
        kind = {"T": type_attr(dtype), "validate_shape": bool_attr(True), "use_locking": bool_attr(True)}
        if variable.is_ref:
            assign = self._node(f"{name}/Assign", "Assign", [name, value], **kind, _class=_beside(name))
        else:
            assign = self._node(f"{name}/Assign", "AssignVariableOp", [name, value], dtype=type_attr(dtype))
        self.work.setup |= {n.name for n in list(self.scope.node_list)[first:]}
        if old is not None:
            self.followers.add(old.name, assign.name)
        return value

    def _node(self, name: str, op: str, inputs: list[str], **attrs: AttrValue) -> NodeDef:
        return add_node(self.scope, self.names, name, op, inputs, **attrs)


def add_node(
    scope: Scope, names: FreshNames, name: str, op: str, inputs: list[str], device: str = "", **attrs: AttrValue
) -> NodeDef:
    """A node of ours that is no part of a merge. The name is the caller's to keep free."""
    names.take(name)
    node: NodeDef = scope.node_list.add(name=name, op=op, input=inputs, device=device)
    for key, value in attrs.items():
        node.attr[key].CopyFrom(value)
    node.attr[ADDED].CopyFrom(bytes_attr("variable"))
    return node


class Followers:
    """Who waits for which node: groups that initialise or restore everything."""

    def __init__(self, scope: Scope) -> None:
        self._waiting: dict[str, list[NodeDef]] = {}
        for node in scope.node_list:
            for text in node.input:
                if is_control(text):
                    self._waiting.setdefault(text[1:], []).append(node)

    def add(self, old: str, new: str) -> None:
        """Whoever waits for one node waits for another as well."""
        for node in self._waiting.get(old, ()):
            node.input.append(f"^{new}")


def _beside(name: str) -> AttrValue:
    return AttrValue(list=AttrValue.ListValue(s=[f"loc:@{name}".encode()]))
