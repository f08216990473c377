"""The one door to TensorFlow's generated protobuf messages, without starting TensorFlow.

``import tensorflow`` takes seconds and maps hundreds of megabytes; the generated message modules need none of it.
They are imported while a bare module object that has only the package's ``__path__`` stands in ``sys.modules`` under
the name ``tensorflow``. Everything that this leaves behind in ``sys.modules`` is taken out again, so that a later real
``import tensorflow`` starts clean; it gets the *same* message classes, because protobuf keeps one class per descriptor.

The swap is not visible to other modules unless another thread imports TensorFlow during these 50 milliseconds.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import google.protobuf

from graphfreeze.errors import InputOutputError

Message: TypeAlias = Any
"""Any protobuf message. The generated classes carry no types; the alias says what the ``Any`` stands for."""

_PACKAGE = "tensorflow"


def _package_path() -> list[str]:
    """Where the installed TensorFlow lies, found without running any of its code."""
    try:
        spec = importlib.util.find_spec(_PACKAGE)
    except (ValueError, ImportError):
        spec = None
    for location in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(location) / "core" / "protobuf").is_dir():
            return [location]
    raise InputOutputError(
        "TensorFlow's message definitions are missing: no package 'tensorflow' with 'core/protobuf' was found on "
        "sys.path. graphfreeze reads SavedModels with them (and does not start TensorFlow); install it with "
        "'pip install tensorflow'"
    )


@contextmanager
def _bare_tensorflow() -> Iterator[None]:
    """While open, ``tensorflow.core...`` can be imported without running ``tensorflow/__init__.py``."""
    if _PACKAGE in sys.modules:
        # Really imported, or being imported right now: its own modules are the right ones.
        yield
        return
    bare = types.ModuleType(_PACKAGE)
    bare.__path__ = _package_path()
    sys.modules[_PACKAGE] = bare
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name == _PACKAGE or name.startswith(_PACKAGE + ".")]:
            del sys.modules[name]


def _generated(name: str) -> Any:
    try:
        return importlib.import_module(f"{_PACKAGE}.core.{name}_pb2")
    except Exception as error:  # protobuf refuses generated code of another version with errors of several kinds
        raise InputOutputError(
            f"TensorFlow's message definitions cannot be loaded with protobuf {google.protobuf.__version__}: {error}. "
            "Install the protobuf version that the installed TensorFlow asks for"
        ) from error


if TYPE_CHECKING:
    # Untyped, so each name is ``Any`` to a checker and may still be written in annotations.
    from tensorflow.core.framework.attr_value_pb2 import AttrValue, NameAttrList
    from tensorflow.core.framework.function_pb2 import FunctionDef, FunctionDefLibrary, GradientDef
    from tensorflow.core.framework.graph_pb2 import GraphDef
    from tensorflow.core.framework.node_def_pb2 import NodeDef
    from tensorflow.core.framework.op_def_pb2 import OpDef
    from tensorflow.core.framework.tensor_pb2 import TensorProto
    from tensorflow.core.framework.tensor_shape_pb2 import TensorShapeProto
    from tensorflow.core.framework.tensor_slice_pb2 import TensorSliceProto
    from tensorflow.core.framework.variable_pb2 import SaveSliceInfoDef, VariableDef
    from tensorflow.core.framework.versions_pb2 import VersionDef
    from tensorflow.core.protobuf.control_flow_pb2 import CondContextDef, WhileContextDef
    from tensorflow.core.protobuf.meta_graph_pb2 import (
        AssetFileDef,
        CollectionDef,
        MetaGraphDef,
        SignatureDef,
        TensorInfo,
    )
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel
    from tensorflow.core.protobuf.saved_object_graph_pb2 import (
        FunctionSpec,
        SavedBareConcreteFunction,
        SavedConcreteFunction,
        SavedFunction,
        SavedObject,
        SavedObjectGraph,
        SavedUserObject,
        SavedVariable,
    )
    from tensorflow.core.protobuf.saver_pb2 import SaverDef
    from tensorflow.core.protobuf.struct_pb2 import StructuredValue
    from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

    types_pb2: Any
else:
    _MESSAGES = {
        "framework.attr_value": ("AttrValue", "NameAttrList"),
        "framework.function": ("FunctionDef", "FunctionDefLibrary", "GradientDef"),
        "framework.graph": ("GraphDef",),
        "framework.node_def": ("NodeDef",),
        "framework.op_def": ("OpDef",),
        "framework.tensor": ("TensorProto",),
        "framework.tensor_shape": ("TensorShapeProto",),
        "framework.tensor_slice": ("TensorSliceProto",),
        "framework.variable": ("SaveSliceInfoDef", "VariableDef"),
        "framework.versions": ("VersionDef",),
        "protobuf.control_flow": ("CondContextDef", "WhileContextDef"),
        "protobuf.meta_graph": ("AssetFileDef", "CollectionDef", "MetaGraphDef", "SignatureDef", "TensorInfo"),
        "protobuf.saved_model": ("SavedModel",),
        "protobuf.saved_object_graph": (
            "FunctionSpec",
            "SavedBareConcreteFunction",
            "SavedConcreteFunction",
            "SavedFunction",
            "SavedObject",
            "SavedObjectGraph",
            "SavedUserObject",
            "SavedVariable",
        ),
        "protobuf.saver": ("SaverDef",),
        "protobuf.struct": ("StructuredValue",),
        "protobuf.tensor_bundle": ("BundleEntryProto", "BundleHeaderProto"),
        "protobuf.trackable_object_graph": ("TrackableObjectGraph",),
    }
    with _bare_tensorflow():
        for _module, _names in _MESSAGES.items():
            _loaded = _generated(_module)
            globals().update({_name: getattr(_loaded, _name) for _name in _names})
        types_pb2 = _generated("framework.types")

__all__ = [
    "AssetFileDef",
    "AttrValue",
    "BundleEntryProto",
    "BundleHeaderProto",
    "CollectionDef",
    "CondContextDef",
    "FunctionDef",
    "FunctionDefLibrary",
    "FunctionSpec",
    "GradientDef",
    "GraphDef",
    "Message",
    "MetaGraphDef",
    "NameAttrList",
    "NodeDef",
    "OpDef",
    "SaveSliceInfoDef",
    "SavedBareConcreteFunction",
    "SavedConcreteFunction",
    "SavedFunction",
    "SavedModel",
    "SavedObject",
    "SavedObjectGraph",
    "SavedUserObject",
    "SavedVariable",
    "SaverDef",
    "SignatureDef",
    "StructuredValue",
    "TensorInfo",
    "TensorProto",
    "TensorShapeProto",
    "TensorSliceProto",
    "TrackableObjectGraph",
    "VariableDef",
    "VersionDef",
    "WhileContextDef",
    "types_pb2",
]
