"""Name-based checkpoints of TF1's Saver, with the slots of TF1's optimizers."""

import numpy as np
import pytest

import graphfreeze
from graphfreeze.errors import UnsupportedModelError
from graphfreeze.savedmodel import read_bundle
from tests.checkpoints.elements import FROZEN_KERNEL, FROZEN_TABLE
from tests.end_to_end.cases import FULL

pytestmark = pytest.mark.tf

OPTIONS = {"AdamOptimizer": (0.01,), "MomentumOptimizer": (0.05, 0.9), "AdagradOptimizer": (0.05,)}


class Run:
    """A model in a graph and session of TF1, with its optimizer and Saver."""

    def __init__(self, path, name):
        import tensorflow as tf

        v1 = tf.compat.v1
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.model = tf.saved_model.load(str(path))
            self.ids = v1.placeholder(tf.int32, [None, 3])
            loss = tf.reduce_sum((self.model(self.ids) - 0.3) ** 2.0)
            if hasattr(self.model, "graphfreeze"):
                variables = self.model.graphfreeze.info.concrete_functions[0].trainable_variables
            else:
                variables = [self.model.table, self.model.kernel, self.model.bias, self.model.scale]
            self.step = getattr(v1.train, name)(*OPTIONS[name]).minimize(loss, var_list=list(variables))
            self.saver = v1.train.Saver()
            variables = {v.op.name: v for v in v1.global_variables()}
            self.reads = {name: v.read_value() for name, v in variables.items()}
            self.given = {name: v1.placeholder(v.dtype, v.shape) for name, v in variables.items()}
            self.writes = {name: v1.assign(v, self.given[name]) for name, v in variables.items()}
            self.session = v1.Session(graph=self.graph)
            self.session.run(v1.global_variables_initializer())

    def train(self, steps, held=()):
        """``held`` are (name, mask, value) to put back after each step."""
        for step in steps:
            ids = np.random.default_rng([7, step]).integers(0, 8, (6, 3)).astype(np.int32)
            self.session.run(self.step, {self.ids: ids})
            for name, mask, value in held:
                value = np.where(mask, value, self.values()[name])
                self.session.run(self.writes[name], {self.given[name]: value})

    def values(self):
        return self.session.run(self.reads)

    def save(self, prefix):
        with self.graph.as_default():
            self.saver.save(self.session, str(prefix), write_meta_graph=False, write_state=False)

    def restore(self, prefix):
        with self.graph.as_default():
            self.saver.restore(self.session, str(prefix))


def effective(values):
    """Put together by hand: the table is split at row 5, three elements of the kernel have a copy."""
    found = {name: values[name].copy() for name in ("table", "layer/kernel", "layer/bias", "scale", "held")}
    found["table"][5:] = values["table/graphfreeze/trainable"]
    found["layer/kernel"][[0, 2, 3], [1, 1, 2]] = values["layer/kernel/graphfreeze/frozen"]
    return found


@pytest.mark.parametrize("name", OPTIONS if FULL else ("AdamOptimizer", "MomentumOptimizer"))
def test_the_same_trajectory_by_name(name, tmp_path):
    from tests.checkpoints.small import RULES, save_model
    from tests.helpers.compare import assert_bits_equal, assert_within_eps

    source, rewritten = save_model(tmp_path / "source"), tmp_path / "rewritten"
    graphfreeze.rewrite(source, rewritten, **RULES["mixed"])
    frozen = {"table": FROZEN_TABLE, "layer/kernel": FROZEN_KERNEL, "layer/bias": np.ones(3, bool)}

    run = Run(source, name)
    run.train(range(4))
    run.save(tmp_path / "old")
    reached = run.values()
    run.train(range(4, 8), [(n, mask, reached[n]) for n, mask in frozen.items()])
    expected = run.values()

    graphfreeze.checkpoint(tmp_path / "old", tmp_path / "new", into=rewritten)
    second = Run(rewritten, name)
    assert set(second.reads) == set(read_bundle(tmp_path / "new").entries)
    second.restore(tmp_path / "new")
    for key, value in effective(second.values()).items():
        assert_bits_equal(value, reached[key], key)
    second.train(range(4, 8))
    found = effective(second.values())
    for key, value in found.items():
        mask = frozen.get(key, np.zeros(value.shape, bool))
        assert_bits_equal(value[mask], reached[key][mask], key)
        assert_within_eps(value, expected[key], key)

    second.save(tmp_path / "trained")
    done = graphfreeze.checkpoint(tmp_path / "trained", tmp_path / "back", from_=rewritten)
    assert done.added == ("layer/bias",)
    third = Run(source, name)
    third.restore(tmp_path / "back")
    back, trained = third.values(), second.values()
    assert set(back) == set(read_bundle(tmp_path / "back").entries)
    for key, value in found.items():
        assert_bits_equal(back[key], value, key)
    fresh = np.float32(0.1 if name == "AdagradOptimizer" else 0.0)
    slots = [key.removeprefix("scale/") for key in back if key.startswith("scale/")]
    assert len(slots) == (2 if name == "AdamOptimizer" else 1)
    for slot in slots:
        part = trained[f"table/graphfreeze/trainable/{slot}"]
        assert np.array_equal(back[f"table/{slot}"], np.concatenate([np.full((5, 4), fresh), part]))
        whole = trained[f"layer/kernel/{slot}"]
        assert np.array_equal(back[f"layer/kernel/{slot}"], np.where(FROZEN_KERNEL, fresh, whole))
        assert np.array_equal(back[f"layer/bias/{slot}"], np.full(3, fresh))
        assert np.array_equal(back[f"scale/{slot}"], trained[f"scale/{slot}"])


def test_names_that_repeat_are_refused(tmp_path):
    import tensorflow as tf

    from tests.conftest import MODELS

    graphfreeze.rewrite(MODELS / "unnamed", tmp_path / "out", freeze=["first[:1]"])
    v = tf.Variable(tf.zeros([2]), name="Variable")
    old = tf.compat.v1.train.Saver({"Variable": v}).save(None, str(tmp_path / "old"))
    with pytest.raises(UnsupportedModelError) as error:
        graphfreeze.checkpoint(old, tmp_path / "new", into=tmp_path / "out")
    assert "variables of the model are called 'Variable', so a checkpoint by name does not say" in str(error.value)
