"""Training graphs of TF1, built by hand: every optimizer with a dense and a sparse update, in one graph.

The same Python builds the model that is rewritten and the oracle, in which frozen elements of every gradient are zero
before anything else is computed from it (``hold``).
"""

from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from tests.helpers.sessions import Model, export

tf1 = tf.compat.v1

OPTIMIZERS = {
    "descent": lambda t, _: t.GradientDescentOptimizer(0.1),
    "momentum": lambda t, _: t.MomentumOptimizer(0.05, 0.9),
    "nesterov": lambda t, _: t.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    "adagrad": lambda t, _: t.AdagradOptimizer(0.1),
    "adagrad_da": lambda t, step: t.AdagradDAOptimizer(0.1, step, l2_regularization_strength=0.01),
    "adadelta": lambda t, _: t.AdadeltaOptimizer(1.0),
    "adam": lambda t, _: t.AdamOptimizer(0.01),
    "ftrl": lambda t, _: t.FtrlOptimizer(0.1, l2_regularization_strength=0.01),
    "rmsprop": lambda t, _: t.RMSPropOptimizer(0.01, momentum=0.5),
    "centered": lambda t, _: t.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    "proximal": lambda t, _: t.ProximalGradientDescentOptimizer(0.1, 0.01, 0.01),
    "proximal_adagrad": lambda t, _: t.ProximalAdagradOptimizer(0.1, 0.1, 0.001, 0.001),
}
KERNEL, TABLE = (8, 16), (10, 4)


def held(gradient, mask):
    """The gradient as it is where the elements of the mask are constants."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.where(tf.gather(mask, gradient.indices), tf.zeros_like(gradient.values), gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.where(mask, tf.zeros_like(gradient), gradient)


def variable(name, shape, resource, **options):
    value = np.random.default_rng(sum(map(ord, name))).normal(size=shape).astype(np.float32)
    return tf1.get_variable(name, initializer=tf.constant(value), use_resource=resource, **options)


def build_optimizers(resource, hold=None, chosen=tuple(OPTIMIZERS)):
    """A train op ``NAME/train`` for each of the optimizers, over a kernel and a table of its own."""
    hold = hold or {}
    x = tf1.placeholder(tf.float32, [None, KERNEL[0]], name="x")
    ids = tf1.placeholder(tf.int32, [None], name="ids")
    for name in chosen:
        make = OPTIMIZERS[name]
        kernel = variable(f"{name}/kernel", KERNEL, resource)
        table = variable(f"{name}/table", TABLE, resource)
        loss = tf.reduce_mean(tf.square(tf.matmul(x, kernel) - 1.0))
        loss += tf.reduce_mean(tf.square(tf.gather(table, ids) - 0.5))
        step = tf1.get_variable(f"{name}/step", initializer=np.int64(0), trainable=False, use_resource=resource)
        optimizer = make(tf1.train, step)
        pairs = [(held(g, hold[v.op.name]) if v.op.name in hold else g, v) for g, v in gradients(optimizer, loss, name)]
        optimizer.apply_gradients(pairs, global_step=step, name=f"{name}/train")


def gradients(optimizer, loss, scope):
    chosen = [v for v in tf1.trainable_variables() if v.op.name.startswith(f"{scope}/")]
    return optimizer.compute_gradients(loss, var_list=chosen)


def feed_of(step):
    generator = np.random.default_rng(step)
    x = generator.normal(size=(5, KERNEL[0])).astype(np.float32)
    return {"x:0": x, "ids:0": np.array([step % 10, (step + 3) % 10, step % 10], np.int32)}


@contextmanager
def control_flow(functions=False):
    """Branches and loops as TF1 has them, or as functions; as it was afterwards."""
    was = tf1.control_flow_v2_enabled()
    (tf1.enable_control_flow_v2 if functions else tf1.disable_control_flow_v2)()
    try:
        yield
    finally:
        (tf1.enable_control_flow_v2 if was else tf1.disable_control_flow_v2)()


def save(path, build, *, functions=False):
    """Builds in a graph of its own, initialises it, and exports the session."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        with control_flow(functions):
            build()
        session.run(tf1.global_variables_initializer())
        _export(graph, session, path)
    return path


def _export(graph, session, path):
    model = Model.__new__(Model)
    model.graph, model.session, model.prefix, model.meta = graph, session, "", tf1.MetaGraphDef()
    export(model, path, ["train"])


def save_trained(path, build, train, feed, *, steps=5, resource, functions=False):
    """Builds, warms the slots up, and saves with the graph's own saver and as a SavedModel."""
    with tf.Graph().as_default() as graph, tf1.Session() as session:
        with control_flow(functions):
            build(resource)
        session.run(tf1.global_variables_initializer())
        for step in range(steps):
            session.run(train, feed(step))
        tf1.train.Saver().save(session, str(path / "warm"))
        _export(graph, session, path / "model")
    return path / "model"


class Oracle:
    """The hand-built graph from the warm checkpoint; frozen elements are put back by hand after every step."""

    def __init__(self, path, build, masks, *, resource, functions=False):
        self.graph, self.masks = tf.Graph(), masks
        with self.graph.as_default():
            self.session = tf1.Session()
            with control_flow(functions):
                build(resource, {n: tf.constant(m) for n, m in masks.items()})
            variables = {v.op.name: v for v in tf1.global_variables()}
            tf1.train.Saver().restore(self.session, str(path / "warm"))
            self.variables = {n: variables[n] for n in masks}
            self.given = {n: tf1.placeholder(v.dtype.base_dtype, v.shape) for n, v in self.variables.items()}
            self.back = [v.assign(self.given[n]) for n, v in self.variables.items()]
        self.start = self.values()

    def values(self):
        return {n: np.array(v) for n, v in self.session.run(self.variables).items()}

    def step(self, train, feed):
        self.session.run(train, feed)
        now = self.values()
        back = {self.given[n]: np.where(m, self.start[n], now[n]) for n, m in self.masks.items()}
        self.session.run([b.op for b in self.back], back)


def variables_of(model):
    """The variable ops of a graph."""
    return [op.name for op in model.graph.get_operations() if op.type in ("VariableV2", "VarHandleOp")]


def stored(model, folder, names):
    """What the graph's own saver writes, read back."""
    saver = model.meta.saver_def
    model.run(saver.save_tensor_name, {saver.filename_tensor_name: str(folder / "own")})
    written = tf.train.load_checkpoint(str(folder / "own"))
    return {name: written.get_tensor(name) for name in names}


def fetched(model, names):
    """Each variable as a user fetches it: the variable itself, and the value that the model computes with."""
    own, reads = {}, {}
    for name in names:
        op = model.graph.get_operation_by_name(name)
        own[name] = f"{name}/Read/ReadVariableOp:0" if op.type == "VarHandleOp" else f"{name}:0"
        reads[name] = f"{name}/Read/ReadVariableOp:0" if op.type == "VarHandleOp" else f"{name}/read:0"
    return model.values(names), model.run(own), model.run(reads)


def _loss(a, b, x):
    return tf.reduce_mean(tf.square(tf.matmul(x, a) - 1.0)) + tf.reduce_mean(tf.square(tf.gather(b, [1, 2, 1]) - 0.5))


def _pairs(optimizer, loss, names, hold, **options):
    found = [v for v in tf1.trainable_variables() if v.op.name in names]
    pairs = optimizer.compute_gradients(loss, var_list=found, **options)
    return [(held(g, hold[v.op.name]) if v.op.name in hold else g, v) for g, v in pairs]


def _clipped(prefix, resource, x, hold, clip):
    """Momentum behind a clipping of dense and sparse gradients."""
    kernel, table = variable(f"{prefix}/kernel", (8, 6), resource), variable(f"{prefix}/table", (10, 4), resource)
    optimizer = tf1.train.MomentumOptimizer(0.5, 0.9)
    pairs = _pairs(optimizer, _loss(kernel, table, x), [kernel.op.name, table.op.name], hold)
    optimizer.apply_gradients(clip(pairs), name=f"{prefix}/train")


def _by_global_norm(pairs):
    clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.2)
    return [(g, v) for g, (_, v) in zip(clipped, pairs, strict=True)]


def _by_norm(pairs):
    return [(tf.clip_by_norm(g, 0.1), v) for g, v in pairs]


def _shared(resource, x, hold):
    """One tensor is the gradient of two variables, each clipped by its own norm of it."""
    a, b = variable("shared/a", (8, 6), resource), variable("shared/b", (8, 6), resource)
    optimizer = tf1.train.GradientDescentOptimizer(0.5)
    loss = tf.reduce_mean(tf.square(tf.matmul(x, a + b) - 1.0))
    optimizer.apply_gradients(_by_norm(_pairs(optimizer, loss, ["shared/a", "shared/b"], hold)), name="shared/train")


def _accumulated(resource, x, hold):
    """Gradients are added up; what has come together is clipped by its norm and applied."""
    w = variable("sums/kernel", (8, 6), resource)
    total = tf1.get_variable("sums/total", initializer=tf.zeros([8, 6]), trainable=False, use_resource=resource)
    optimizer = tf1.train.AdamOptimizer(0.05)
    loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 1.0))
    ((gradient, _),) = _pairs(optimizer, loss, ["sums/kernel"], hold)
    added = total.assign_add(gradient)
    with tf1.control_dependencies([added.op if resource else added]):
        mean = (total.read_value() if resource else tf.identity(total._ref())) / 2.0
        apply = optimizer.apply_gradients([(tf.clip_by_norm(mean, 0.3), w)])
    with tf1.control_dependencies([apply]):
        cleared = total.assign(tf.zeros([8, 6]))
    tf1.group(cleared, name="sums/train")


def _scaled(resource, x, hold):
    """The step is taken in a branch, if all gradients are finite once the scale is taken out, dense and sparse."""
    w, table = variable("scaled/kernel", (8, 6), resource), variable("scaled/table", (10, 4), resource)
    optimizer = tf1.train.MomentumOptimizer(0.2, 0.9)
    # Frozen elements have a huge gradient: it would stop every step, were it not masked before it is looked at.
    loss = _loss(w, table, x) + tf.reduce_sum(tf.square(w[:1, :1]) * 1e30)
    pairs = _pairs(optimizer, loss * 1024.0, ["scaled/kernel", "scaled/table"], hold)
    pairs = [(tf.math.scalar_mul(1 / 1024.0, g), v) for g, v in pairs]
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g, _ in pairs]
    finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(g)) for g in values])
    norm = tf.linalg.global_norm(values)
    rate = 1.0 / tf.maximum(1.0, norm)
    step = tf1.cond(
        finite & (norm < 1e6),
        lambda: tf.group(optimizer.apply_gradients([(tf.math.scalar_mul(rate, g), v) for g, v in pairs])),
        tf.no_op,
    )
    tf1.group(step, name="scaled/train")


def build_norms(resource, hold=None):
    """Train ops in which what is frozen would count for the rest, were it not masked at the source."""
    hold = hold or {}
    x = tf1.placeholder(tf.float32, [None, 8], name="x")
    _clipped("globally", resource, x, hold, _by_global_norm)
    _clipped("each", resource, x, hold, _by_norm)
    _shared(resource, x, hold)
    _accumulated(resource, x, hold)
    _scaled(resource, x, hold)
    # A collection cannot hold the ops of a branch that is a function, in any model.
    tf1.get_default_graph().clear_collection(tf1.GraphKeys.TRAIN_OP)


NORMS = ("globally", "each", "shared", "sums", "scaled")
NORMED = {
    **{f"{p}/{n}": s for p in ("globally", "each", "scaled") for n, s in (("kernel", (8, 6)), ("table", (10, 4)))},
    **dict.fromkeys(("shared/a", "shared/b", "sums/kernel"), (8, 6)),
}
