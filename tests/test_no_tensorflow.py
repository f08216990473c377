"""Promise G7: nothing of TensorFlow is loaded and no process is started by what only reads and writes protobufs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MODELS

ROOT = MODELS.parents[1]

# Runs in a process of its own; prints one line of JSON.
PROLOGUE = """
import json, os, sys
started = []
def hook(event, args):
    if event in ("subprocess.Popen", "os.system", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.spawn"):
        started.append(event)
sys.addaudithook(hook)

def mapped():
    lines = open("/proc/self/maps").read().splitlines()
    files = {line.split(None, 5)[5] for line in lines if len(line.split(None, 5)) == 6}
    return sorted(f for f in files if any(n in f.lower() for n in ("tensorflow", "keras", "jax", "torch")))

def children():
    return open(f"/proc/self/task/{os.getpid()}/children").read().split()

def report(**more):
    real = "tensorflow" in sys.modules
    print(json.dumps({"mapped": mapped(), "started": started, "children": children(), "real": real, **more}))
"""

COMMANDS = """
from pathlib import Path
import graphfreeze
model, folder = sys.argv[1], Path(sys.argv[2])
freeze = sys.argv[3:]
seen = len(graphfreeze.inspect(model).meta_graphs[0].variables)
graphfreeze.plan(model, freeze=freeze)
graphfreeze.rewrite(model, folder / "out", freeze=freeze)
graphfreeze.rewrite(folder / "out", folder / "again", freeze=freeze[:1], add=True, strategy="mask")
graphfreeze.finalize(folder / "out", folder / "plain")
graphfreeze.finalize(folder / "again", folder / "less", unfreeze=freeze[0].split("[")[0])
assert graphfreeze.diff(model, folder / "plain").equal
graphfreeze.diff(folder / "out", folder / "again")
weights = Path(model) / "variables" / "variables"
graphfreeze.checkpoint(weights, folder / "ckpt", into=folder / "out")
graphfreeze.checkpoint(folder / "ckpt", folder / "back", from_=folder / "out")
"""

SELECTIONS = {
    "embedding": ["emb/embeddings[:5]", "dense/kernel[[0, 1], [0, 1]]"],
    "loop": ["kernel[:1]", "bias[1:]"],
    "keras_embedding": ["**/embeddings[::2]", "**/kernel[:, :1]"],
}


def run(script: str, *arguments: object) -> dict:
    command = [sys.executable, "-c", PROLOGUE + script, *map(str, arguments)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return json.loads(ran.stdout.splitlines()[-1])


def assert_nothing_heavy(found: dict) -> None:
    assert found["mapped"] == []
    assert found["started"] == []
    assert found["children"] == []
    assert not found["real"]


@pytest.mark.parametrize("name", SELECTIONS)
def test_no_tensorflow_and_no_child_process(name, tmp_path):
    found = run(COMMANDS + "report(seen=seen)", MODELS / name, tmp_path, *SELECTIONS[name])
    assert_nothing_heavy(found)
    assert found["seen"] > 1


def test_the_checks_notice_libraries_and_processes():
    script = """
import subprocess
import numpy
subprocess.run(["true"])
report(library="numpy" in open("/proc/self/maps").read())
"""
    found = run(script)
    assert found["started"][0] == "subprocess.Popen"
    assert found["library"]


CLI = """
import contextlib, io
from graphfreeze.cli import main
def call(*arguments):
    sys.argv = ["graphfreeze", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        try:
            code = main()
        except SystemExit as stop:
            code = stop.code
    return code or 0, text.getvalue()
"""


def test_the_command_line_starts_nothing(tmp_path):
    script = """
model, folder, spec = sys.argv[1:4]
codes = [
    call("inspect", model)[0],
    call("plan", model, "--freeze", "emb/**")[0],
    call("rewrite", model, folder + "/out", "--freeze", "emb/embeddings[:5]")[0],
    call("finalize", folder + "/out", folder + "/plain")[0],
    call("diff", model, folder + "/plain")[0],
    call("diff", model, folder + "/out")[0],
    call("checkpoint", model + "/variables/variables", "--into", folder + "/out", "-o", folder + "/ckpt")[0],
    call("rewrite", model, folder + "/none", "--freeze", "nothing_of_that_name")[0],
    call("rewrite", model, folder + "/phased", "--spec", spec)[0],
    call("phases", folder + "/phased")[0],
    call("finalize", folder + "/phased", folder + "/unphased")[0],
]
report(codes=codes)
"""
    spec = tmp_path / "spec.toml"
    spec.write_text('[[phase]]\nname = "a"\nfreeze = "emb/**"\n[[phase]]\nname = "b"\ntrain = "emb/embeddings[:5]"\n')
    found = run(CLI + script, MODELS / "embedding", tmp_path, spec)
    assert_nothing_heavy(found)
    assert found["codes"] == [0, 0, 0, 0, 0, 10, 0, 3, 0, 0, 0]


def test_help_loads_nothing_heavy():
    script = """
code, text = call("--help")
heavy = [m for m in ("numpy", "tensorflow", "keras", "google.protobuf", "graphfreeze.api") if m in sys.modules]
report(code=code, lines=len(text.splitlines()), heavy=heavy)
"""
    found = run(CLI + script)
    assert_nothing_heavy(found)
    assert (found["code"], found["heavy"]) == (0, [])
    assert found["lines"] > 5


@pytest.mark.tf
def test_tensorflow_starts_afterwards_and_loads_the_result(tmp_path: Path):
    script = """
assert mapped() == []
import tensorflow as tf
loaded = tf.saved_model.load(str(folder / "out"))
names = [v.name for v in graphfreeze.trainable_variables(loaded)]
output = loaded(tf.constant([[0, 11]]))
report(names=names, shape=list(tf.nest.flatten(output)[0].shape), file=tf.__file__)
"""
    found = run(COMMANDS + script, MODELS / "embedding", tmp_path, "emb/embeddings[:5]")
    assert any("libtensorflow" in path for path in found["mapped"])
    assert any("graphfreeze/trainable" in name for name in found["names"])
    assert found["file"].endswith("tensorflow/__init__.py")
