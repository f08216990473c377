"""Promise G3 where hand-made recipes fail: history, decay, averages, absent rows, NaN, flags set by others."""

import numpy as np
import pytest

import graphfreeze
from tests.conftest import MODELS
from tests.end_to_end import cases

pytestmark = pytest.mark.tf

FROZEN = ["dense_0/kernel[:3]", "dense_1/bias", "out/kernel[..., ::2]"]


def options(strategy):
    return cases.options("rows", strategy)


def float_variables(held):
    from tests.helpers.variables import variables_by_path

    return [v for v in variables_by_path(held).values() if v.dtype.is_floating]


def frozen_storage(held, plan):
    """What no optimizer may be given: the base of split, the copy of mask and strict. ``stop`` has none."""
    from graphfreeze.selection import Strategy
    from tests.helpers.promises import parts_of

    found = set()
    for parts in parts_of(held, plan):
        found |= {id(variable) for atom, variable in parts.new if not atom.trainable}
        if parts.plan.strategy is Strategy.SPLIT:
            found.add(id(parts.base))
    return found


@pytest.mark.parametrize("selector", ["[:9]", "[[0, 2, 3]]", "[::2]"])
@pytest.mark.parametrize("strategy", ["split", "mask", "live"])
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_sparse_momentum_leaves_rows_alone_that_no_batch_holds(selector, strategy, mode, tmp_path):
    """A frozen id that contributed a dummy row would drag that row along by its history."""
    from tests.end_to_end.runs import check_training, load
    from tests.helpers.models import FIXTURES

    original, out = MODELS / "embedding", tmp_path / "out"
    plan = graphfreeze.rewrite(original, out, freeze=f"embeddings{selector}", **options(strategy))
    training = FIXTURES["embedding"].training(lack={9, 11})
    held = check_training(original, out, plan, training, "sparse_momentum", mode=mode)
    before, after = load(original).embeddings.numpy(), graphfreeze.value(held, "embeddings")
    trainable = set(range(12)) - {*np.arange(12)[eval(f"np.s_{selector}")].ravel()}
    moved = set(np.flatnonzero((after != before).any(axis=1)))
    assert moved == trainable - {9, 11}


@pytest.mark.parametrize("strategy", ["auto", "mask"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_momentum_of_the_time_before_the_freeze_is_carried_over(optimizer, strategy, tmp_path):
    """Five steps of everything, then the freeze, then ten steps with the same slots, cut where the variable was."""
    import tensorflow as tf

    from tests.end_to_end.runs import assert_follows, assert_nothing_moved, load, rules_for_oracle
    from tests.helpers.models import FIXTURES
    from tests.helpers.optimizers import OPTIMIZERS
    from tests.helpers.oracle import Oracle
    from tests.helpers.promises import parts_of
    from tests.helpers.training import train
    from tests.helpers.variables import trainable_of

    training, warm, out = FIXTURES["mlp"].training(), load(MODELS / "mlp"), tmp_path / "out"
    variables, first = trainable_of(warm), OPTIMIZERS[optimizer]()
    train(training, warm, list(variables.values()), first, steps=5)
    tf.saved_model.save(warm, str(tmp_path / "warm"))
    plan = graphfreeze.rewrite(tmp_path / "warm", out, freeze=FROZEN, **options(strategy))

    def carried_over(targets):
        """An optimizer for these variables, by path, with the slots of the first."""
        second = OPTIMIZERS[optimizer]()
        second.build(list(targets.values()))
        second.iterations.assign(first.iterations)
        for slots in ("momentums", "_momentums", "_velocities"):
            for path, slot in zip(targets, getattr(second, slots, ()), strict=True) if hasattr(second, slots) else ():
                old = getattr(first, slots)[list(variables).index(path)].numpy()
                slot.assign(take_part(path, old, slot.shape))
        return second

    def take_part(path, old, shape):
        if old.shape == tuple(shape):
            return old
        atoms = next(v for v in plan.meta_graphs[0].variables if v.path == path).atoms
        return next(atom.region.take(old) for atom in atoms if atom.trainable).reshape(shape)

    held = load(out)
    oracle = Oracle(load(tmp_path / "warm"), rules_for_oracle(plan), training)
    targets = dict(zip(oracle.trainable, graphfreeze.trainable_variables(held), strict=True))
    train(training, held, list(targets.values()), carried_over(targets), steps=10)
    oracle.train(carried_over(oracle.trainable), 10)
    assert_nothing_moved(tmp_path / "warm", held, plan)
    assert_follows(oracle, held)
    if strategy == "mask":
        base = next(p for p in parts_of(held, plan) if p.plan.path == "dense_0/kernel").base.numpy()
        assert (base[:3] != variables["dense_0/kernel"].numpy()[:3]).all(), "the history moved nothing: a vacuous test"


@pytest.mark.parametrize("strategy", ["split", "mask", "strict"])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "adam_ema", "ftrl"])
def test_all_variables_given_to_any_optimizer(optimizer, strategy, tmp_path):
    """Every flag set, every variable but the frozen storage in the list, zeros where there is no gradient."""
    import tensorflow as tf

    from tests.end_to_end.runs import assert_nothing_moved, load
    from tests.helpers.models import FIXTURES
    from tests.helpers.optimizers import OPTIMIZERS
    from tests.helpers.training import make_gradients

    original, out = MODELS / "mlp", tmp_path / "out"
    selector = [s.partition("[")[0] for s in FROZEN] if strategy == "strict" else [FROZEN[0], FROZEN[2]]
    plan = graphfreeze.rewrite(
        original,
        out,
        freeze=selector,
        strict=strategy == "strict",
        strategy="auto" if strategy == "strict" else strategy,
    )
    held = load(out)
    storage = frozen_storage(held, plan)
    assert len(storage) == len(selector)
    variables = [v for v in float_variables(held) if id(v) not in storage]
    for variable in float_variables(held):
        variable._trainable = True
    before = [v.numpy() for v in variables]
    gradients, made = make_gradients(FIXTURES["mlp"].training(), held, variables, "eager"), OPTIMIZERS[optimizer]()
    for step in range(10):
        made.apply(
            [tf.zeros_like(v) if g is None else g for g, v in zip(gradients(step), variables, strict=True)], variables
        )
    made.finalize_variable_values(variables)
    assert_nothing_moved(original, held, plan)
    if optimizer == "adamw":
        assert all((v.numpy() != b).any() for v, b in zip(variables, before, strict=True)), "all storage given moved"


@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "ftrl"])
def test_stop_holds_where_the_optimizer_skips_what_has_no_gradient(optimizer, tmp_path, recwarn):
    import tensorflow as tf

    from tests.end_to_end.runs import assert_nothing_moved, load
    from tests.helpers.models import FIXTURES
    from tests.helpers.optimizers import OPTIMIZERS
    from tests.helpers.training import make_gradients

    original, out = MODELS / "mlp", tmp_path / "out"
    plan = graphfreeze.rewrite(original, out, freeze="dense_0/*")
    held = load(out)
    variables = float_variables(held)
    for variable in variables:
        variable._trainable = True
    gradients, made = make_gradients(FIXTURES["mlp"].training(), held, variables, "eager"), OPTIMIZERS[optimizer]()
    for step in range(5):
        found = gradients(step)
        assert [g is None for g in found] == [v.name.startswith("dense_0") for v in variables]
        made.apply(found, variables)
    assert_nothing_moved(original, held, plan)
    # What --strict is for: zeros in place of None hand the variable to decay.
    adamw = OPTIMIZERS["adamw"]()
    adamw.apply([tf.zeros_like(v) for v in variables], variables)
    with pytest.raises(AssertionError, match="frozen elements"):
        assert_nothing_moved(original, held, plan)


@pytest.mark.parametrize("optimizer", ["adamw", "adam_ema"])
def test_live_holds_against_no_python_decay_and_plan_says_so(optimizer, tmp_path):
    from tests.end_to_end.runs import assert_nothing_moved, train_held
    from tests.helpers.models import FIXTURES
    from tests.helpers.optimizers import OPTIMIZERS

    original, out = MODELS / "mlp", tmp_path / "out"
    plan = graphfreeze.rewrite(original, out, freeze="dense_0/kernel[:3]", strategy="mask", copy="live")
    assert any("copy 'live' holds against writes in the graph, not against weight decay" in w for w in plan.warnings)
    held = train_held(out, FIXTURES["mlp"].training(), OPTIMIZERS[optimizer]())
    with pytest.raises(AssertionError, match="frozen elements"):
        assert_nothing_moved(original, held, plan)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["split", "mask"])
def test_a_thousand_steps_of_averages(strategy, tmp_path):
    """0.9 x + 0.1 x is not x after enough steps. The oracle follows in the full product only."""
    import tensorflow as tf

    from tests.end_to_end.runs import assert_nothing_moved, check_training, load
    from tests.helpers.models import FIXTURES
    from tests.helpers.optimizers import OPTIMIZERS

    original, out, training = MODELS / "slots", tmp_path / "out", FIXTURES["slots"].training()
    plan = graphfreeze.rewrite(original, out, freeze="dense/kernel[:, 1:]", strategy=strategy)
    if cases.FULL:
        check_training(original, out, plan, training, "adam_ema", steps=1000)
        return
    held, optimizer, batch = load(out), OPTIMIZERS["adam_ema"](), training.batch(0)
    variables = graphfreeze.trainable_variables(held)
    before = [v.numpy() for v in variables]
    optimizer.build(variables)

    @tf.function
    def steps():
        for _ in tf.range(1000):
            with tf.GradientTape() as tape:
                loss = training.loss(held, batch)
            optimizer.apply(tape.gradient(loss, variables), variables)

    steps()
    optimizer.finalize_variable_values(variables)
    assert int(optimizer.iterations) == 1000
    assert all((v.numpy() != b).any() for v, b in zip(variables, before, strict=True))
    assert_nothing_moved(original, held, plan)


@pytest.mark.parametrize("mode", ["eager", "function"])
def test_scattered_elements_have_a_gradient_in_every_training_call(mode, tmp_path):
    """The spread copy lies behind StopGradient: SparseToDense has no gradient for indices of rank 1."""
    from tests.helpers.models import FIXTURES
    from tests.helpers.promises import Original, check_gradients

    for name, selector in {
        "keras_conv": "variables/6[[0, 1], [0, 1]]",
        "mlp": "dense_0/kernel[[0, 3], [1, 2]]",
    }.items():
        source, out = Original(MODELS / name, FIXTURES[name].training(), FIXTURES[name].skip), tmp_path / name
        plan = graphfreeze.rewrite(source.path, out, freeze=selector)
        assert check_gradients(source, out, plan, mode) == 2


@pytest.mark.parametrize("strategy", ["auto", "mask", "live"])
def test_global_clipping_sees_trainable_elements_only(strategy, tmp_path):
    """Plain descent cut to a small norm: a frozen gradient that counted would shorten every step."""
    import keras

    from tests.end_to_end.runs import check_training
    from tests.helpers.models import FIXTURES

    original, out = MODELS / "mlp", tmp_path / "out"
    plan = graphfreeze.rewrite(original, out, freeze=[*FROZEN, "out/bias[:2]"], **options(strategy))

    def clipped():
        return keras.optimizers.SGD(0.5, global_clipnorm=0.01)

    check_training(original, out, plan, FIXTURES["mlp"].training(), clipped)


@pytest.mark.parametrize("strategy", ["split", "mask", "live"])
@pytest.mark.parametrize("mode", ["eager", "function"])
def test_nan_in_the_gradient_of_a_frozen_element_does_not_leak(strategy, mode, tmp_path):
    import tensorflow as tf

    from tests.end_to_end.runs import check_training
    from tests.end_to_end.small_models import pole
    from tests.helpers.models import loss_of
    from tests.helpers.promises import Original, check_gradients
    from tests.helpers.training import Training

    original, out = pole(tmp_path / "pole"), tmp_path / "out"
    training = Training(
        lambda step: ((tf.constant(np.random.default_rng(step).standard_normal((5, 4)), tf.float32),),),
        lambda loaded, inputs: loss_of(loaded.predict(*inputs[0])),
    )
    source = Original(original, training)
    raw = source.gradients(mode)["kernel"].numpy()
    assert np.isnan(raw[:, 0]).all()
    assert not np.isfinite(raw[:, 1]).any()
    assert np.isfinite(raw[:, 2:]).all()
    plan = graphfreeze.rewrite(original, out, freeze="kernel[:, :2]", **options(strategy))
    assert check_gradients(source, out, plan, mode) == 8
    held = check_training(original, out, plan, training, "adam" if strategy == "live" else "adamw", mode=mode)
    assert np.isfinite(graphfreeze.value(held, "kernel")).all()


SPECIAL = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-45, -1e-40, 1e38, -3.4e38], np.float32)


@pytest.mark.parametrize("selector", ["kernel[:3]", "kernel[:3, ::2]", "kernel[[0, 1, 2, 4], [0, 1, 2, 2]]", "kernel"])
@pytest.mark.parametrize("strategy", ["auto", "mask", "live"])
def test_special_values_stay_as_they_are(selector, strategy, tmp_path):
    from tests.end_to_end.runs import load
    from tests.end_to_end.small_models import numbers, product
    from tests.helpers.compare import assert_bits_equal
    from tests.helpers.functions import outputs_of
    from tests.helpers.promises import assert_same_outputs

    kernel = numbers(5, 3)
    kernel[:3] = SPECIAL.reshape(3, 3)
    kernel[4, 2] = SPECIAL[2]
    original, out = product(tmp_path / "model", kernel), tmp_path / "out"
    graphfreeze.rewrite(original, out, freeze=selector, **options(strategy))
    held = load(out)
    assert_bits_equal(held.itself()["kernel"].numpy(), kernel)
    assert_bits_equal(graphfreeze.value(held, "kernel"), kernel)
    assert_bits_equal(held.look_up(np.arange(5, dtype=np.int32))["rows"].numpy(), kernel)
    assert_same_outputs(outputs_of(held), outputs_of(load(original)))


def test_pruned_weights_stay_pruned(tmp_path):
    """`[== 0]`: both zeros match, by the stored value; the rest moves."""
    import tensorflow as tf

    from tests.end_to_end.runs import check_training
    from tests.end_to_end.small_models import numbers, product
    from tests.helpers.models import loss_of
    from tests.helpers.training import Training

    kernel = numbers(6, 5)
    kernel[np.abs(kernel) < 0.4] = 0.0
    kernel[0, :2] = -0.0, 0.0
    original, out = product(tmp_path / "model", kernel), tmp_path / "out"
    plan = graphfreeze.rewrite(original, out, freeze="kernel[== 0]")
    (frozen,) = (v for v in plan.meta_graphs[0].variables if v.frozen)
    assert frozen.frozen == int((kernel == 0).sum()) > 10
    training = Training(
        lambda step: ((tf.constant(np.random.default_rng(step).standard_normal((5, 6)), tf.float32),),),
        lambda loaded, inputs: loss_of(loaded.predict(*inputs[0])),
    )
    held = check_training(original, out, plan, training, "adamw")
    after = graphfreeze.value(held, "kernel")
    assert ((after == 0) == (kernel == 0)).all()
    assert (after != kernel)[kernel != 0].all()


def test_dropout_goes_on_drawing_masks_under_a_freeze_of_everything(tmp_path):
    """A frozen seed would repeat one mask for ever: globs do not cover state."""
    from tests.end_to_end.runs import load

    plan = graphfreeze.rewrite(MODELS / "digits", tmp_path / "out", freeze="**", allow_empty=True)
    assert {v.kind for v in plan.meta_graphs[0].variables if v.strategy is None} == {"state"}
    held, plain = load(tmp_path / "out"), load(MODELS / "digits")
    images = np.random.default_rng(0).uniform(0, 1, (4, 8, 8, 1)).astype(np.float32)
    outputs = [held.train(images).numpy() for _ in range(3)]
    expected = [plain.train(images).numpy() for _ in range(3)]
    assert (outputs[0] != outputs[1]).any()
    assert (outputs[1] != outputs[2]).any()
    assert np.array_equal(outputs, expected)
