"""Opens a SavedModel directory: its proto, its checkpoint and what else lies there (``container_write`` writes)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from graphfreeze.errors import InputOutputError, UnsupportedModelError
from graphfreeze.savedmodel.bundle import Bundle, index_path, read_bundle
from graphfreeze.savedmodel.files import reported
from graphfreeze.savedmodel.protos import GraphDef, Message
from graphfreeze.savedmodel.protos import SavedModel as SavedModelProto

PROTO_FILE = "saved_model.pb"
TEXT_FILE = "saved_model.pbtxt"
SPLIT_FILE = "saved_model.cpb"
FINGERPRINT_FILE = "fingerprint.pb"
VARIABLES_PREFIX = Path("variables", "variables")
# Written anew, or stale as soon as the proto changes.
_OWN_FILES = ((PROTO_FILE,), (TEXT_FILE,), (SPLIT_FILE,), (FINGERPRINT_FILE,))

_OTHER_FORMATS = {
    ".keras": "a Keras 3 file",
    ".h5": "an HDF5 file of Keras weights or a Keras model",
    ".hdf5": "an HDF5 file of Keras weights or a Keras model",
    ".tflite": "a LiteRT (TensorFlow Lite) model, which cannot be trained",
    ".onnx": "an ONNX model",
    ".index": "the index of a checkpoint, which holds values but no graph",
    ".ckpt": "a checkpoint, which holds values but no graph",
    ".meta": "the graph of a TF1 checkpoint",
    ".zip": "an archive",
    ".gz": "an archive",
    ".tar": "an archive",
}
_NEXT_STEP = {
    ".keras": "Export it: keras.models.load_model(FILE).export(DIRECTORY)",
    ".h5": "Load it with the code that made it, then export: model.export(DIRECTORY)",
    ".hdf5": "Load it with the code that made it, then export: model.export(DIRECTORY)",
    ".zip": "Unpack it and give the directory that holds 'saved_model.pb'",
    ".gz": "Unpack it and give the directory that holds 'saved_model.pb'",
    ".tar": "Unpack it and give the directory that holds 'saved_model.pb'",
}
_ANY_STEP = "Give a SavedModel directory, as tf.saved_model.save and model.export write it"


@dataclass(slots=True)
class SavedModel:
    """A SavedModel in memory. ``proto`` may be changed in place; tensors and files are only read."""

    directory: Path
    proto: Message
    """The SavedModel message."""
    bundle: Bundle | None
    """The checkpoint; None for a model without variables."""
    proto_path: Path
    """The file that ``proto`` was read from: ``saved_model.pb`` or ``saved_model.pbtxt``."""

    def other_files(self) -> list[Path]:
        """Files that are neither proto, checkpoint nor fingerprint, relative to the directory, sorted."""
        found = [path.relative_to(self.directory) for path, empty in _walk(self.directory) if not empty]
        return [path for path in found if not self._is_own(path)]

    def empty_folders(self) -> list[Path]:
        """Folders without any file, relative to the directory, sorted."""
        return [path.relative_to(self.directory) for path, empty in _walk(self.directory) if empty]

    def _is_own(self, path: Path) -> bool:
        if path.parent == VARIABLES_PREFIX.parent and self.bundle is not None:
            # Shards of another count than the index says are left over, and might take the name of a new one.
            return path.name == "variables.index" or path.name.startswith("variables.data-")
        return path.parts in _OWN_FILES


def read_saved_model(path: Path) -> SavedModel:
    """Reads the SavedModel in directory ``path``; tensors stay on disk until asked for."""
    with reported("read", path):
        if not path.exists():
            raise InputOutputError(f"'{path}' does not exist")
        if not path.is_dir():
            raise _not_a_directory(path)
        proto_path = _find_proto(path)
        proto = _read_proto(proto_path)
        return SavedModel(path, proto, _open_bundle(path), proto_path)


def digest(model: SavedModel) -> str:
    """Says whether two reads saw the same model: SHA-256 over proto file, index and the shards' names and sizes."""
    total = hashlib.sha256()
    paths = [model.proto_path]
    if model.bundle is not None:
        paths.append(index_path(model.bundle.prefix))
    for path in paths:
        with reported("read", path), path.open("rb") as file:
            total.update(f"{path.name}\0".encode())
            total.update(hashlib.file_digest(file, "sha256").digest())
    if model.bundle is not None:
        for shard, size in model.bundle.shard_sizes().items():
            total.update(f"{model.bundle.shard_path(shard).name}\0{size}\0".encode())
    return total.hexdigest()


def _find_proto(path: Path) -> Path:
    # The order in which TensorFlow looks.
    for name in (PROTO_FILE, TEXT_FILE):
        if (path / name).is_file():
            return path / name
    if (path / SPLIT_FILE).exists():
        raise UnsupportedModelError(
            f"'{path / SPLIT_FILE}' is a SavedModel in split-proto format (.cpb), which graphfreeze does not read. "
            "Save the model again without the option 'experimental_image_format'"
        )
    inner = sorted(p.parent for name in (PROTO_FILE, TEXT_FILE) for p in path.glob(f"*/{name}"))
    hint = f"Did you mean '{inner[0]}'?" if inner else _ANY_STEP
    raise InputOutputError(f"'{path}' is not a SavedModel: it holds neither '{PROTO_FILE}' nor '{TEXT_FILE}'. {hint}")


def _not_a_directory(path: Path) -> InputOutputError:
    if path.name in (PROTO_FILE, TEXT_FILE):
        return InputOutputError(f"'{path}' is a file of a SavedModel. Give its directory: '{path.parent}'")
    kind = _OTHER_FORMATS.get(path.suffix.lower())
    if kind is None and path.suffix in (".pb", ".pbtxt"):
        kind = "a frozen graph (a bare GraphDef), whose variables have become constants"
        if path.suffix == ".pb" and not _is_graph_def(path.read_bytes()):
            kind = "a single protobuf file"
    if kind is None:
        return InputOutputError(f"'{path}' is a file, not a SavedModel directory. {_ANY_STEP}")
    step = _NEXT_STEP.get(path.suffix.lower(), _ANY_STEP)
    return InputOutputError(f"'{path}' is {kind}, not a SavedModel directory. {step}")


def _is_graph_def(data: bytes) -> bool:
    try:
        return bool(GraphDef.FromString(data).node)
    except DecodeError:
        return False


def _read_proto(path: Path) -> Message:
    data = path.read_bytes()
    proto = SavedModelProto()
    try:
        if path.suffix == ".pbtxt":
            text_format.Parse(data.decode("utf-8"), proto)
        else:
            proto.ParseFromString(data)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        if path.suffix == ".pb" and _is_graph_def(data):
            raise _frozen_graph(path) from error
        raise InputOutputError(
            f"'{path}' cannot be parsed ({len(data)} bytes): {error}. Copy the model again from where it came from"
        ) from error
    if not proto.meta_graphs:
        if path.suffix == ".pb" and _is_graph_def(data):
            raise _frozen_graph(path)
        raise InputOutputError(f"'{path}' holds no meta graph ({len(data)} bytes), so there is no model in it")
    return proto


def _frozen_graph(path: Path) -> InputOutputError:
    return InputOutputError(
        f"'{path}' is a frozen graph (a bare GraphDef), whose variables have become constants, not a SavedModel. "
        f"{_ANY_STEP}"
    )


def _open_bundle(path: Path) -> Bundle | None:
    prefix = path / VARIABLES_PREFIX
    if index_path(prefix).is_file():
        return read_bundle(prefix)
    if prefix.is_file():
        raise UnsupportedModelError(
            f"'{prefix}' is a checkpoint in the V1 format of TensorFlow before 1.0, which graphfreeze does not read. "
            "Load the model with TensorFlow and save it again"
        )
    # TensorFlow 1 makes an empty folder for a model without variables.
    if prefix.parent.is_dir() and any(prefix.parent.iterdir()):
        raise InputOutputError(f"'{index_path(prefix)}' is missing, but its folder is not empty. Copy the whole folder")
    return None


def _walk(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[tuple[Path, bool]]:
    """Files and empty folders under ``folder``, through symbolic links, in order; True for a folder."""
    real = Path(os.path.realpath(folder))
    if real in above:
        raise InputOutputError(f"'{folder}' is a symbolic link to a folder around itself. Remove it first")
    inner = sorted(folder.iterdir())
    if not inner:
        yield folder, True
    for path in inner:
        if path.is_dir():
            yield from _walk(path, (*above, real))
        else:
            yield path, False
