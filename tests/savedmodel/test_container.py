"""Opening SavedModel directories, and what is said about everything that is not one."""

import shutil

import numpy as np
import pytest

from graphfreeze.errors import InputOutputError, UnsupportedModelError
from graphfreeze.savedmodel import digest, protos, read_saved_model

ANY_STEP = "Give a SavedModel directory, as tf.saved_model.save and model.export write it"


def message(path, kind=InputOutputError):
    with pytest.raises(kind) as caught:
        read_saved_model(path)
    return str(caught.value)


def test_real_model_opens(real_model):
    model = read_saved_model(real_model)
    assert len(model.proto.meta_graphs) >= 1
    assert (model.bundle is None) == (not (real_model / "variables").exists())
    files = model.other_files()
    assert all((real_model / path).is_file() for path in files)
    everything = {path.relative_to(real_model) for path in real_model.rglob("*") if path.is_file()}
    own = {"saved_model.pb", "saved_model.pbtxt", "fingerprint.pb"}
    assert set(files) == {p for p in everything if p.parts[0] != "variables" and str(p) not in own}


def test_parts(make_model):
    root = make_model()
    model = read_saved_model(root)
    assert model.directory == root
    assert model.proto_path == root / "saved_model.pb"
    assert [str(path) for path in model.other_files()] == ["assets/words.txt", "keras_metadata.pb"]
    assert [str(path) for path in model.empty_folders()] == ["assets.extra"]
    assert model.bundle is not None
    assert model.bundle.read_tensor("x").tolist() == [0, 1, 2, 3]


def test_text_proto(make_model):
    from google.protobuf import text_format

    root = make_model()
    expected = read_saved_model(root).proto
    (root / "saved_model.pb").unlink()
    (root / "saved_model.pbtxt").write_text(text_format.MessageToString(expected))
    model = read_saved_model(root)
    assert model.proto == expected
    assert model.proto_path.name == "saved_model.pbtxt"


@pytest.mark.parametrize("leave_folder", [True, False])
def test_no_variables(make_model, leave_folder):
    root = make_model()
    shutil.rmtree(root / "variables")
    if leave_folder:
        (root / "variables").mkdir()
    assert read_saved_model(root).bundle is None


def test_digest_changes_with_each_part_and_with_nothing_else(make_model):
    root = make_model(x=np.arange(4.0))
    first = digest(read_saved_model(root))
    assert first == digest(read_saved_model(root))
    (root / "assets" / "words.txt").write_text("three")
    copy = shutil.copytree(root, root.with_name("copy"))
    assert digest(read_saved_model(copy)) == first
    with (copy / "variables" / "variables.data-00000-of-00001").open("ab") as shard:
        shard.write(b"1")
    assert digest(read_saved_model(copy)) != first
    shutil.rmtree(copy / "variables")
    assert digest(read_saved_model(copy)) != first
    other = make_model("other", x=np.arange(5.0))
    assert digest(read_saved_model(other)) != first
    model = read_saved_model(root)
    model.proto.meta_graphs[0].meta_info_def.tags.append("train")
    (root / "saved_model.pb").write_bytes(model.proto.SerializeToString())
    assert digest(read_saved_model(root)) != first


def test_missing(tmp_path):
    assert message(tmp_path / "none") == f"'{tmp_path}/none' does not exist"


def test_not_a_saved_model(tmp_path):
    assert message(tmp_path) == (
        f"'{tmp_path}' is not a SavedModel: it holds neither 'saved_model.pb' nor 'saved_model.pbtxt'. {ANY_STEP}"
    )


def test_a_folder_of_versions(make_model):
    root = make_model("1")
    assert message(root.parent) == (
        f"'{root.parent}' is not a SavedModel: it holds neither 'saved_model.pb' nor 'saved_model.pbtxt'. "
        f"Did you mean '{root}'?"
    )


def test_the_proto_file_instead_of_its_folder(make_model):
    path = make_model() / "saved_model.pb"
    assert message(path) == f"'{path}' is a file of a SavedModel. Give its directory: '{path.parent}'"


@pytest.mark.parametrize(
    ("name", "kind", "step"),
    [
        ("m.keras", "a Keras 3 file", "Export it: keras.models.load_model(FILE).export(DIRECTORY)"),
        (
            "m.h5",
            "an HDF5 file of Keras weights or a Keras model",
            "Load it with the code that made it, then export: model.export(DIRECTORY)",
        ),
        ("m.tflite", "a LiteRT (TensorFlow Lite) model, which cannot be trained", ANY_STEP),
        ("m.onnx", "an ONNX model", ANY_STEP),
        ("m.zip", "an archive", "Unpack it and give the directory that holds 'saved_model.pb'"),
        ("m.index", "the index of a checkpoint, which holds values but no graph", ANY_STEP),
        ("m.pb", "a single protobuf file", ANY_STEP),
        ("m.pbtxt", "a frozen graph (a bare GraphDef), whose variables have become constants", ANY_STEP),
    ],
)
def test_files_of_other_formats(tmp_path, name, kind, step):
    (tmp_path / name).write_bytes(b"\xff\xff")
    assert message(tmp_path / name) == f"'{tmp_path}/{name}' is {kind}, not a SavedModel directory. {step}"


def test_a_frozen_graph(tmp_path):
    graph = protos.GraphDef()
    graph.node.add(name="a", op="Const")
    (tmp_path / "frozen.pb").write_bytes(graph.SerializeToString())
    assert message(tmp_path / "frozen.pb") == (
        f"'{tmp_path}/frozen.pb' is a frozen graph (a bare GraphDef), whose variables have become constants, "
        f"not a SavedModel directory. {ANY_STEP}"
    )
    (tmp_path / "saved_model.pb").write_bytes(graph.SerializeToString())
    assert message(tmp_path) == (
        f"'{tmp_path}/saved_model.pb' is a frozen graph (a bare GraphDef), whose variables have become constants, "
        f"not a SavedModel. {ANY_STEP}"
    )


def test_some_file(tmp_path):
    (tmp_path / "notes").write_text("hello")
    assert message(tmp_path / "notes") == f"'{tmp_path}/notes' is a file, not a SavedModel directory. {ANY_STEP}"


def test_a_proto_that_cannot_be_parsed(make_model):
    root = make_model()
    (root / "saved_model.pb").write_bytes(b"\xff\xff\xff")
    text = message(root)
    assert text.startswith(f"'{root}/saved_model.pb' cannot be parsed (3 bytes): ")
    assert text.endswith(". Copy the model again from where it came from")


@pytest.mark.parametrize("content", [b"nonsense {", b"\xff\xfe", b"meta_graphs { unknown_field: 1 }"])
def test_a_text_proto_that_cannot_be_parsed(make_model, content):
    root = make_model()
    (root / "saved_model.pb").unlink()
    (root / "saved_model.pbtxt").write_bytes(content)
    assert message(root).startswith(f"'{root}/saved_model.pbtxt' cannot be parsed ({len(content)} bytes): ")


def test_a_text_proto_nested_too_deeply(make_model):
    root = make_model()
    (root / "saved_model.pb").unlink()
    head = "meta_graphs { object_graph_def { nodes { function { function_spec { fullargspec { "
    deep = head + "list_value { values { " * 20_000
    (root / "saved_model.pbtxt").write_text(deep)
    assert "saved_model.pbtxt' cannot be parsed" in message(root)


def test_an_empty_proto(make_model):
    root = make_model()
    (root / "saved_model.pb").write_bytes(b"")
    assert message(root) == (f"'{root}/saved_model.pb' holds no meta graph (0 bytes), so there is no model in it")


def test_split_proto(make_model):
    root = make_model()
    (root / "saved_model.pb").rename(root / "saved_model.cpb")
    assert message(root, UnsupportedModelError) == (
        f"'{root}/saved_model.cpb' is a SavedModel in split-proto format (.cpb), which graphfreeze does not read. "
        "Save the model again without the option 'experimental_image_format'"
    )


def test_missing_index(make_model):
    root = make_model()
    (root / "variables" / "variables.index").unlink()
    assert message(root) == (
        f"'{root}/variables/variables.index' is missing, but its folder is not empty. Copy the whole folder"
    )


def test_checkpoint_of_the_first_format(make_model):
    root = make_model()
    (root / "variables" / "variables.index").rename(root / "variables" / "variables")
    assert message(root, UnsupportedModelError) == (
        f"'{root}/variables/variables' is a checkpoint in the V1 format of TensorFlow before 1.0, which graphfreeze "
        "does not read. Load the model with TensorFlow and save it again"
    )


def test_links_that_lead_around(make_model):
    root = make_model()
    (root / "a").mkdir()
    (root / "b").mkdir()
    (root / "a" / "to_b").symlink_to(root / "b")
    (root / "b" / "to_a").symlink_to(root / "a")
    with pytest.raises(InputOutputError, match="is a symbolic link to a folder around itself"):
        read_saved_model(root).other_files()


def test_no_permission(make_model, monkeypatch):
    from pathlib import Path

    root = make_model()

    def refuse(self):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert message(root) == f"cannot read '{root}/saved_model.pb': Permission denied. Check the permissions"
