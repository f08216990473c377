"""Small graphs made by hand, for cases that TensorFlow does not write every day."""

from pathlib import Path

from graphfreeze.graph.attrs import shape_attr, shape_proto
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.graph.uses import Trace
from graphfreeze.savedmodel import DTYPE_NUMBERS, Draft, SavedModel, protos
from graphfreeze.savedmodel.protos import AttrValue, FunctionDef, MetaGraphDef, NodeDef

FLOAT, INT32, BOOL, VARIANT = (DTYPE_NUMBERS[n] for n in ("float32", "int32", "bool", "variant"))
RESOURCE = DTYPE_NUMBERS["resource"]


def dtype(number: int) -> AttrValue:
    return AttrValue(type=number)


def dtypes(*numbers: int) -> AttrValue:
    return AttrValue(list=AttrValue.ListValue(type=numbers))


def calls(*names: str) -> AttrValue:
    """One function, or a list of them."""
    functions = [protos.NameAttrList(name=name) for name in names]
    return AttrValue(func=functions[0]) if len(names) == 1 else AttrValue(list=AttrValue.ListValue(func=functions))


def shapes(*several: tuple[int, ...]) -> AttrValue:
    return AttrValue(list=AttrValue.ListValue(shape=[shape_proto(shape) for shape in several]))


def node(name: str, op: str, *inputs: str, **attrs: object) -> NodeDef:
    """A node; attributes are numbers, flags, strings or AttrValues."""
    made = NodeDef(name=name, op=op, input=inputs)
    for key, value in attrs.items():
        made.attr[key].CopyFrom(_attr(value))
    return made


def _attr(value: object) -> AttrValue:
    match value:
        case bool():
            return AttrValue(b=value)
        case int():
            return AttrValue(i=value)
        case str():
            return AttrValue(s=value.encode())
    return value


def int_const(name: str, value: int) -> NodeDef:
    tensor = protos.TensorProto(dtype=INT32, tensor_shape=shape_proto(()), int_val=[value])
    return node(name, "Const", dtype=dtype(INT32), value=AttrValue(tensor=tensor))


def function(name: str, arguments: dict[str, int], nodes: list[NodeDef], results: dict[str, tuple[int, str]]):
    """A FunctionDef; results are (dtype, edge)."""
    made = FunctionDef(node_def=nodes)
    made.signature.name = name
    for argument, number in arguments.items():
        made.signature.input_arg.add(name=argument, type=number)
    for result, (number, edge) in results.items():
        made.signature.output_arg.add(name=result, type=number)
        made.ret[result] = edge
    return made


def scope(*nodes: NodeDef, arguments: dict[str, int] | None = None, results: dict[str, tuple[int, str]] | None = None):
    """The scope of a function called ``f``; by default its only argument is the variable ``v``."""
    return Scope(function("f", {"v": RESOURCE} if arguments is None else arguments, list(nodes), results or {}))


class Model:
    """A TF2 meta graph: a root with variables, a main graph with their handles, functions bound to them."""

    def __init__(self) -> None:
        self.meta = MetaGraphDef()
        self.meta.meta_info_def.tags.append("serve")
        self.graph = self.meta.object_graph_def
        self.graph.nodes.add().user_object.identifier = "_generic_user_object"

    def variable(self, name: str, path: str | None = None, shape: tuple[int, ...] = (4, 4), **flags: bool) -> int:
        """Adds a trainable float variable under the root, with a handle in the main graph; returns its node id."""
        number = len(self.graph.nodes)
        added = self.graph.nodes.add().variable
        added.name, added.dtype, added.trainable = name, FLOAT, flags.get("trainable", True)
        added.shape.CopyFrom(shape_proto(shape))
        self.graph.nodes[0].children.add(node_id=number, local_name=path or name)
        self.main(node(name, "VarHandleOp", dtype=dtype(FLOAT), shape=shape_attr(shape), shared_name=name))
        return number

    def main(self, *nodes: NodeDef) -> None:
        self.meta.graph_def.node.extend(nodes)

    def library(self, *functions: FunctionDef) -> None:
        self.meta.graph_def.library.function.extend(functions)

    def concrete(self, made: FunctionDef, *bound: int) -> None:
        """Adds a function and binds its last arguments to variables."""
        self.library(made)
        self.graph.concrete_functions[made.signature.name].bound_inputs.extend(bound)

    def draft(self) -> Draft:
        proto = protos.SavedModel(meta_graphs=[self.meta])
        return Draft(SavedModel(Path("model"), proto, None, Path("model", "saved_model.pb")), None)

    def trace(self) -> Trace:
        return trace_meta_graph(self.draft(), self.meta)


def reader(name: str, op: str = "ReadVariableOp") -> FunctionDef:
    """A function of one variable that gives its value."""
    return function(name, {"v": RESOURCE}, [node("read", op, "v", dtype=dtype(FLOAT))], {"y": (FLOAT, "read:value:0")})
