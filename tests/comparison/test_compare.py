"""Every kind of difference is found and told; what TensorFlow numbers anew is none. No TensorFlow runs."""

import shutil

import numpy as np
import pytest

import graphfreeze
from graphfreeze.comparison import Change
from graphfreeze.comparison.tensors import value_change
from graphfreeze.errors import InputOutputError
from graphfreeze.savedmodel import DT_RESOURCE, open_draft, read_saved_model
from graphfreeze.selection import rows_region
from tests.conftest import MODELS, OBJECT_MODELS
from tests.end_to_end.cases import FULL

FIXTURES = OBJECT_MODELS
SOME = ("case", "cond_in_loop", "custom_gradient", "datasets", "keras_gru", "scan", "strings", "train_loop", "slots")


def changed(source, target, change):
    """A copy of a model after ``change`` of its first meta graph."""
    shutil.copytree(source, target)
    proto = read_saved_model(source).proto
    change(proto.meta_graphs[0])
    (target / "saved_model.pb").write_bytes(proto.SerializeToString(deterministic=True))
    return target


def renamed_everywhere(meta):
    """Functions get other numbers and another order, nodes another order, captured arguments other names."""
    library = meta.graph_def.library
    names = {f.signature.name: f"{f.signature.name}_77{i}" for i, f in enumerate(library.function)}
    for nodes in [meta.graph_def.node, *(f.node_def for f in library.function)]:
        for node in nodes:
            for value in node.attr.values():
                rename_functions(value, names)
        turn_around(nodes)
    for i, function in enumerate(library.function):
        function.signature.name = names[function.signature.name]
        for argument in function.signature.input_arg:
            if argument.type == DT_RESOURCE:
                rename_argument(function, argument, f"unknown_{i}{len(argument.name)}{argument.name}")
    for gradient in library.registered_gradients:
        gradient.gradient_func = names.get(gradient.gradient_func, gradient.gradient_func)
    turn_around(library.function)
    rename_in_objects(meta.object_graph_def, names)


def rename_functions(value, names):
    if value.WhichOneof("value") == "func":
        value.func.name = names.get(value.func.name, value.func.name)
    for function in value.list.func if value.WhichOneof("value") == "list" else ():
        function.name = names.get(function.name, function.name)
    if value.s.decode("latin1") in names:
        value.s = names[value.s.decode()].encode()


def turn_around(field):
    messages = [type(m).FromString(m.SerializeToString()) for m in reversed(field)]
    del field[:]
    field.extend(messages)


def rename_in_objects(objects, names):
    concrete = {names[k]: v.SerializeToString() for k, v in objects.concrete_functions.items()}
    objects.concrete_functions.clear()
    for name, data in concrete.items():
        objects.concrete_functions[name].ParseFromString(data)
    for node in objects.nodes:
        if node.WhichOneof("kind") == "function":
            node.function.concrete_functions[:] = [names[n] for n in node.function.concrete_functions]
        elif node.WhichOneof("kind") == "bare_concrete_function":
            name = node.bare_concrete_function.concrete_function_name
            node.bare_concrete_function.concrete_function_name = names[name]
        elif node.WhichOneof("kind") == "captured_tensor":
            node.captured_tensor.concrete_function = names[node.captured_tensor.concrete_function]


def rename_argument(function, argument, new):
    old, argument.name = argument.name, new
    for node in function.node_def:
        node.input[:] = [new if text == old else text for text in node.input]
    for key, text in function.ret.items():
        if text == old:
            function.ret[key] = new


@pytest.mark.parametrize("name", FIXTURES if FULL else SOME)
def test_a_model_is_itself_whatever_its_functions_are_called(name, tmp_path):
    assert graphfreeze.diff(MODELS / name, MODELS / name).equal
    other = changed(MODELS / name, tmp_path / "other", renamed_everywhere)
    found = graphfreeze.diff(MODELS / name, other)
    assert found.equal, found.changes[:3]
    assert found.frozen is None


def function(meta, part):
    return next(f for f in meta.graph_def.library.function if part in f.signature.name)


def node(place, op):
    return next(n for n in place.node_def if n.op == op)


def other_attribute(meta):
    node(function(meta, "inference___call__"), "MatMul").attr["transpose_b"].b = True


def other_op(meta):
    node(function(meta, "inference___call__"), "AddV2").op = "Sub"


def other_inputs(meta):
    matmul = node(function(meta, "inference___call__"), "MatMul")
    matmul.input[:] = [matmul.input[1], matmul.input[0]]


def more_nodes(meta):
    function(meta, "inference___call__").node_def.add(name="extra", op="NoOp")


def fewer_nodes(meta):
    place = function(meta, "inference___call__")
    last = place.node_def[-1].name
    del place.node_def[-1]
    assert last


def other_result(meta):
    place = function(meta, "inference___call__")
    (key,) = place.ret
    place.ret[key] = next(f"{n.name}:product:0" for n in place.node_def if n.op == "MatMul")


def unknown_attribute(meta):
    node(function(meta, "inference___call__"), "MatMul").attr["_note"].s = b"x"


def flag(meta):
    next(n for n in meta.object_graph_def.nodes if n.variable.name == "out/kernel").variable.trainable = False


def variable_name(meta):
    next(n for n in meta.object_graph_def.nodes if n.variable.name == "out/kernel").variable.name = "out/weights"


def variable_shape(meta):
    next(n for n in meta.object_graph_def.nodes if n.variable.name == "out/kernel").variable.shape.dim[0].size += 1


def child(meta):
    meta.object_graph_def.nodes[0].children[0].local_name = "other"


def captures(meta):
    concrete = next(c for c in meta.object_graph_def.concrete_functions.values() if len(c.bound_inputs) > 1)
    bound = list(concrete.bound_inputs)
    concrete.bound_inputs[:] = [bound[1], bound[0], *bound[2:]]


def signature(meta):
    del meta.signature_def["serving_default"]


def signature_output(meta):
    next(iter(meta.signature_def["serving_default"].outputs.values())).dtype = 2


def main_node(meta):
    next(n for n in meta.graph_def.node if n.op == "VarHandleOp").attr["shared_name"].s = b"other"


def saved_key(meta):
    save = next(f for f in meta.graph_def.library.function if "traced_save" in f.signature.name)
    const = next(
        n
        for n in save.node_def
        if n.op == "Const" and any(b"VARIABLE_VALUE" in v for v in n.attr["value"].tensor.string_val)
    )
    const.attr["value"].tensor.string_val[0] = b"other/.ATTRIBUTES/VARIABLE_VALUE"


def restored_order(meta):
    restore = next(f for f in meta.graph_def.library.function if "traced_restore" in f.signature.name)
    const = next(
        n
        for n in restore.node_def
        if n.op == "Const" and any(b"VARIABLE_VALUE" in v for v in n.attr["value"].tensor.string_val)
    )
    values = const.attr["value"].tensor.string_val
    values[:] = [values[1], values[0], *values[2:]]


def version(meta):
    meta.meta_info_def.tensorflow_version = "1.0"


def unknown_field(meta):
    meta.meta_info_def.MergeFromString(b"\xfa\x3f\x01x")


@pytest.mark.parametrize(
    ("change", "subject", "what", "words"),
    [
        (other_attribute, "node", "changed", "attributes transpose_b"),
        (other_op, "node", "changed", "op AddV2 -> Sub"),
        (other_inputs, "node", "changed", "inputs"),
        (more_nodes, "node", "added", "NoOp"),
        (fewer_nodes, "node", "removed", ""),
        (other_result, "function", "changed", "results"),
        (unknown_attribute, "node", "changed", "attributes _note"),
        (flag, "flag", "changed", "trainable -> not trainable"),
        (variable_name, "variable", "changed", "name 'out/kernel' -> 'out/weights'"),
        (variable_shape, "variable", "changed", "shape"),
        (child, "object", "changed", "children"),
        (captures, "function", "changed", "captures"),
        (signature, "signature", "removed", ""),
        (signature_output, "signature", "changed", "outputs"),
        (main_node, "node", "changed", "attributes shared_name"),
        (saved_key, "function", "changed", "'other/.ATTRIBUTES/VARIABLE_VALUE'"),
        (restored_order, "function", "changed", "keys"),
        (version, "meta graph", "changed", "'1.0'"),
        (unknown_field, "meta graph", "changed", ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_every_kind_of_change_is_told(change, subject, what, words, tmp_path):
    other = changed(MODELS / "mlp", tmp_path / "other", change)
    found = graphfreeze.diff(MODELS / "mlp", other)
    assert not found.equal
    assert any(c.subject == subject and c.what == what and words in c.detail for c in found.changes), found.changes
    back = graphfreeze.diff(other, MODELS / "mlp")
    opposite = {"added": "removed", "removed": "added", "changed": "changed"}[what]
    assert any(c.subject == subject and c.what == opposite for c in back.changes)


def test_a_function_that_is_gone(tmp_path):
    def change(meta):
        library = meta.graph_def.library.function
        library.add().CopyFrom(library[0])
        library[-1].signature.name = "__inference_new_1"

    other = changed(MODELS / "mlp", tmp_path / "other", change)
    assert graphfreeze.diff(MODELS / "mlp", other).changes == (Change("function", "added", "__inference_new_1"),)
    assert graphfreeze.diff(other, MODELS / "mlp").changes == (Change("function", "removed", "__inference_new_1"),)


def test_meta_graphs_are_matched_by_tags(tmp_path):
    proto = read_saved_model(MODELS / "mlp").proto
    more = proto.meta_graphs.add()
    more.CopyFrom(proto.meta_graphs[0])
    more.meta_info_def.tags[:] = ["train", "gpu"]
    for name in "ab":
        shutil.copytree(MODELS / "mlp", tmp_path / name)
        (tmp_path / name / "saved_model.pb").write_bytes(proto.SerializeToString())
        turn_around(proto.meta_graphs)
    assert graphfreeze.diff(tmp_path / "a", tmp_path / "b").equal
    found = graphfreeze.diff(MODELS / "mlp", tmp_path / "a")
    assert found.changes == (Change("meta graph", "added", "train, gpu"),)


def test_tensors(tmp_path):
    draft = open_draft(MODELS / "mlp")
    key = "dense_0/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    value = draft.tensor(key).copy()
    value[0, 0] += 0.5
    value[1, 1] = -2.0
    draft.put[key] = value
    draft.put["more"] = np.zeros(3, np.float32)
    draft.put["out/bias/.ATTRIBUTES/VARIABLE_VALUE"] = np.zeros(9, np.float32)
    draft.write(tmp_path / "other")
    found = graphfreeze.diff(MODELS / "mlp", tmp_path / "other")
    (moved,) = found.values
    assert (moved.name, moved.key, moved.elements, moved.changed) == ("dense_0/kernel", key, value.size, 2)
    assert moved.largest == abs(float(open_draft(MODELS / "mlp").tensor(key)[1, 1]) + 2.0)
    assert [(c.what, c.name) for c in found.changes] == [
        ("changed", "out/bias/.ATTRIBUTES/VARIABLE_VALUE"),
        ("added", "more"),
    ]


@pytest.mark.parametrize(
    ("a", "b", "changed", "largest"),
    [
        ([1.0, 2.0], [1.0, 2.0], None, None),
        ([0.0], [-0.0], 1, 0.0),
        ([np.nan], [np.nan], None, None),
        ([1.0, 2.0], [np.nan, 5.0], 2, np.nan),
        ([np.inf, 2.0], [1.0, 5.0], 2, np.inf),
    ],
)
def test_values_to_the_bit(a, b, changed, largest):
    found = value_change("v", "k", np.array(a, np.float32), np.array(b, np.float32))
    if changed is None:
        assert found is None
        return
    assert found.changed == changed
    assert np.array_equal(found.largest, largest, equal_nan=True)
    assert isinstance(found.to_dict()["largest"], float if np.isfinite(largest) else str)


def test_largest_change_beyond_one_piece(monkeypatch):
    monkeypatch.setattr("graphfreeze.savedmodel.bits._PIECE", 4)
    a = np.arange(10, dtype=np.int64)
    b = a.copy()
    b[[1, 9]] += [3, 7]
    found = value_change("v", "k", a, b)
    assert (found.elements, found.changed, found.largest) == (10, 2, 7.0)
    found = value_change("v", "k", a, b, rows_region((10,), 0, np.arange(5)))
    assert (found.elements, found.changed, found.largest) == (5, 1, 3.0)
    assert value_change("v", "k", a, b, rows_region((10,), 0, np.arange(2, 5))) is None


def test_strings_have_no_distance():
    a, b = (np.array([b"x", last], object) for last in (b"y", b"z"))
    found = value_change("v", "k", a, b)
    assert (found.changed, found.largest) == (1, None)


def test_files(tmp_path):
    shutil.copytree(MODELS / "strings", tmp_path / "other")
    (tmp_path / "other" / "assets.extra").mkdir()
    (tmp_path / "other" / "assets.extra" / "note").write_text("x")
    found = graphfreeze.diff(MODELS / "strings", tmp_path / "other")
    assert found.changes == (Change("file", "added", "assets.extra/note"),)
    shutil.copytree(tmp_path / "other", tmp_path / "third")
    (tmp_path / "third" / "assets.extra" / "note").write_text("y")
    assert graphfreeze.diff(tmp_path / "other", tmp_path / "third").changes == (
        Change("file", "changed", "assets.extra/note"),
    )


def test_no_model(tmp_path):
    with pytest.raises(InputOutputError):
        graphfreeze.diff(MODELS / "mlp", tmp_path / "nothing")
