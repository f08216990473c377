"""Message classes without TensorFlow's runtime, and a real import afterwards."""

import importlib.util
import subprocess
import sys

import pytest

from graphfreeze.errors import InputOutputError
from graphfreeze.savedmodel import protos

WITHOUT_RUNTIME = """
import sys
from pathlib import Path
from graphfreeze import savedmodel
node = savedmodel.protos.NodeDef(name="a", op="Const")
assert "tensorflow" not in Path("/proc/self/maps").read_text()
assert not [name for name in sys.modules if name.split(".")[0] in ("tensorflow", "keras")]
"""

REAL_IMPORT = """
import tensorflow as tf
from tensorflow.core.framework import node_def_pb2
assert node_def_pb2.NodeDef is savedmodel.protos.NodeDef
graph = savedmodel.protos.GraphDef()
graph.node.add(name="a", op="NoOp")
tf.graph_util.import_graph_def(graph)
assert float(tf.reduce_sum(tf.ones([3]))) == 3.0
"""

REAL_IMPORT_FIRST = """
import tensorflow as tf
from graphfreeze.savedmodel import protos
from tensorflow.core.protobuf import saved_model_pb2
assert protos.SavedModel is saved_model_pb2.SavedModel
assert sys.modules["tensorflow"] is tf
"""


def run(code: str, **environment: str) -> None:
    import os

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_library_of_tensorflow_is_mapped():
    run(WITHOUT_RUNTIME)


@pytest.mark.tf
def test_real_import_afterwards_works_and_shares_the_classes():
    run(WITHOUT_RUNTIME + REAL_IMPORT)


@pytest.mark.tf
def test_real_import_first():
    run("import sys\n" + REAL_IMPORT_FIRST)


@pytest.mark.tf
def test_real_import_afterwards_with_protobuf_in_python():
    run(WITHOUT_RUNTIME + REAL_IMPORT, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python")


def test_every_exported_name_is_there():
    assert [name for name in protos.__all__ if not hasattr(protos, name)] == []


def test_missing_tensorflow(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputOutputError) as caught:
        protos._package_path()
    assert str(caught.value) == (
        "TensorFlow's message definitions are missing: no package 'tensorflow' with 'core/protobuf' was found on "
        "sys.path. graphfreeze reads SavedModels with them (and does not start TensorFlow); install it with "
        "'pip install tensorflow'"
    )
