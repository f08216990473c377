"""Run as a script in a process of its own, where importing graphfreeze fails: train, save, compare, TF1 loader.

    python -m tests.end_to_end.elsewhere train|compare|session JOBS.json ANSWERS.json

Each job is answered by a dictionary, or by its error.
"""

import json
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np

Job = dict[str, Any]


class Blocked(MetaPathFinder):
    """Nobody here has graphfreeze."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.partition(".")[0] == "graphfreeze":
            raise ModuleNotFoundError(f"No module named '{name}'")


def train(job: Job) -> Job:
    """Loads, trains and saves with nothing but TensorFlow."""
    import tensorflow as tf

    from tests.helpers.models import FIXTURES
    from tests.helpers.optimizers import OPTIMIZERS
    from tests.helpers.training import train as run

    loaded = tf.saved_model.load(job["model"])
    variables = loaded.graphfreeze.info.concrete_functions[0].trainable_variables
    before = [v.numpy() for v in variables]
    training = FIXTURES[job["fixture"]].training()
    run(training, loaded, variables, OPTIMIZERS[job["optimizer"]](), steps=5, mode=job["mode"])
    tf.saved_model.save(loaded, job["out"], signatures=dict(loaded.signatures) if job["signatures"] else None)
    return {
        "moved": [bool((v.numpy() != b).any()) for v, b in zip(variables, before, strict=True)],
        "variables": [v.name for v in variables],
    }


def compare(job: Job) -> Job:
    """Every function and signature of two models, bit for bit."""
    import tensorflow as tf

    from tests.helpers.compare import assert_all_bits_equal
    from tests.helpers.functions import outputs_of

    one, other = (outputs_of(tf.saved_model.load(job[key])) for key in ("model", "plain"))
    shared = [name for name in other if name in one]
    for name in shared:
        if isinstance(other[name], dict):
            assert_all_bits_equal(one[name], other[name], f"{name} ")
        else:
            assert one[name] == other[name], (name, one[name], other[name])
    return {"shared": shared, "only": sorted(set(one) ^ set(other))}


def session(job: Job) -> Job:
    """Every signature of the models through the TF1 loader, all in one graph; outputs go to files."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    answer: Job = {}
    with tf.Graph().as_default() as graph, tf1.Session() as running:
        for part, model in job["models"].items():
            meta = tf1.saved_model.load(running, ["serve"], model, import_scope=part)
            scope = f"{part}/"
            outputs = {}
            for name, signature in meta.signature_def.items():
                if name == "__saved_model_init_op" or not signature.outputs:
                    continue
                feeds = {graph.get_tensor_by_name(scope + info.name): given(info) for info in signature.inputs.values()}
                fetches = {key: scope + info.name for key, info in sorted(signature.outputs.items())}
                for key, value in running.run(fetches, feeds).items():
                    outputs[f"{name}/{key}"] = value
            np.savez(Path(job["folder"]) / part, **outputs)
        handles = [op for op in graph.get_operations() if op.type == "VarHandleOp"]
        ready = running.run([tf.raw_ops.VarIsInitializedOp(resource=op.outputs[0]) for op in handles])
        answer["uninitialized"] = [op.name for op, there in zip(handles, ready, strict=True) if not there]
        answer["new"] = [op.name for op in handles if "/graphfreeze/" in op.name]
    return answer


def given(info: Any) -> Any:
    """The value fed for an input of a signature: the same for the same dtype and shape."""
    import tensorflow as tf

    sizes = [2 if d.size < 0 else d.size for d in info.tensor_shape.dim]
    dtype = tf.as_dtype(info.dtype)
    generator = np.random.default_rng(3)
    if dtype == tf.string:
        return generator.choice(np.array([b"the", b"cat", b"zebra"], dtype=object), sizes)
    if dtype.is_integer:
        return generator.integers(0, 3, sizes).astype(dtype.as_numpy_dtype)
    return generator.standard_normal(sizes).astype(dtype.as_numpy_dtype)


WORK: dict[str, Callable[[Job], Job]] = {"train": train, "compare": compare, "session": session}


def main(what: str, jobs: str, answers: str) -> None:
    sys.meta_path.insert(0, Blocked())
    done = []
    for job in json.loads(Path(jobs).read_text()):
        try:
            done.append(WORK[what](job))
        except Exception as error:
            done.append({"error": f"{type(error).__name__}: {error}"})
    assert "graphfreeze" not in sys.modules
    Path(answers).write_text(json.dumps(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
