"""Inputs made from what a function says it takes, or read from a file."""

import numpy as np
import pytest

from graphfreeze.errors import InputOutputError, UsageError
from graphfreeze.lowering.holding import Callable, Holding
from graphfreeze.runtime.verifying.inputs import GUESSES, Guess, Inputs, NoInputsError, read_samples
from graphfreeze.selection import rows_region


def callable_(bounds=(), label="f[0]"):
    return Callable(label, ("f",), 0, ("f",), label.startswith("signature"), tuple(bounds), {}, ())


def concrete(**specs):
    import tensorflow as tf

    @tf.function(autograph=False)
    def function(**given):
        return next(iter(given.values()))

    return function.get_concrete_function(**specs)


def spec(shape, dtype):
    import tensorflow as tf

    return tf.TensorSpec(shape, dtype)


@pytest.mark.tf
def test_ids_stay_within_their_table_and_name_every_row():
    function, taken = concrete(ids=spec([None, 4], "int32")), callable_([10])
    inputs = Inputs(3)
    values = [inputs.make(function, taken, n)[1]["ids"].numpy() for n in range(inputs.rounds(function, taken))]
    assert {v.shape for v in values} == {(3, 4)}
    assert set(np.concatenate(values).ravel()) == set(range(10))


@pytest.mark.tf
def test_ids_of_a_large_table_are_frozen_and_trainable_in_turn():
    frozen = rows_region((1000, 2), 0, np.arange(990))
    holding = Holding("t", "t", "split", frozen, False, (), (), (), (), ())
    function, taken = concrete(ids=spec([8], "int64")), callable_([1000])
    ids = Inputs(holdings=[holding]).make(function, taken, 0)[1]["ids"].numpy()
    assert ((ids >= 990) == [True, False] * 4).all()


@pytest.mark.tf
def test_branches_are_all_taken():
    function, taken = concrete(branch=spec([], "int32")), callable_([5])
    inputs = Inputs()
    assert inputs.rounds(function, taken) == 5
    assert {int(inputs.make(function, taken, n)[1]["branch"]) for n in range(5)} == set(range(5))


@pytest.mark.tf
def test_floats_have_both_signs_and_unknown_dimensions_a_size():
    function, taken = concrete(x=spec([None, None, 3], "float32")), callable_([None])
    first, positive, negative = (Inputs().make(function, taken, n)[1]["x"].numpy() for n in range(3))
    assert first.shape == (2, 2, 3)
    assert (positive > 0).all()
    assert (negative < 0).all()
    assert Inputs().make(function, taken, 0, Guess(8))[1]["x"].shape == (8, 8, 3)


@pytest.mark.tf
def test_strings_are_words_of_the_model_and_others():
    function, taken = concrete(x=spec([4], "string")), callable_([None])
    words = set(Inputs(words=["cat", "dog"]).make(function, taken, 0)[1]["x"].numpy())
    assert words == {b"cat", b"dog", b"no word of the model", b""}
    assert GUESSES[3] == Guess(words=False)
    assert set(Inputs().make(function, taken, 0, GUESSES[3])[1]["x"].numpy()) == {b""}


@pytest.mark.tf
def test_the_same_seed_gives_the_same_inputs():
    function, taken = concrete(x=spec([3], "float32")), callable_([None])
    one, other, another = (Inputs(seed).make(function, taken, 0)[1]["x"].numpy() for seed in (1, 1, 2))
    assert (one == other).all()
    assert (one != another).all()


@pytest.mark.tf
def test_an_input_that_nobody_can_make():
    import tensorflow as tf

    function = concrete(x=tf.RaggedTensorSpec([None, None], tf.float32))
    with pytest.raises(NoInputsError, match="nobody can make an input of type RaggedTensorSpec"):
        Inputs().make(function, callable_([None, None]), 0)


@pytest.mark.tf
def test_given_inputs_by_name_and_by_signature():
    function = concrete(x=spec([None, 2], "float32"), y=spec([None], "int32"))
    taken = callable_([None, None], "signature serve")
    given = {"x": np.zeros((5, 2)), "x@serve": np.ones((7, 2)), "x@other": np.ones((9, 2))}
    made = Inputs(given=given).make(function, taken, 0)[1]
    assert (made["x"].numpy() == np.ones((7, 2))).all()
    assert made["y"].shape == (7,)
    assert Inputs(given={"x": np.ones((1, 2)), "y": np.ones(1, int)}).rounds(function, taken) == 1
    assert Inputs(given={"x": np.ones((1, 2))}).rounds(function, taken) == 3


@pytest.mark.tf
@pytest.mark.parametrize(
    ("given", "dtype", "words"),
    [
        (np.zeros((2, 3)), "float32", "Input 'x' of 'serve' takes shape (None, 2), the file has [2, 3]"),
        (np.array([["a", "b"]]), "float32", "Input 'x' of 'serve' takes float32, the file has <U1"),
        (np.zeros((1, 2)), "int32", "Input 'x' of 'serve' takes int32, the file has float64"),
        (
            np.full((1, 2), 300),
            "int8",
            "Input 'x' of 'serve' takes int8, and values of int64 in the file do not fit it",
        ),
    ],
)
def test_given_inputs_that_do_not_fit(given, dtype, words):
    function, taken = concrete(x=spec([None, 2], dtype)), callable_([None], "signature serve")
    with pytest.raises(UsageError) as error:
        Inputs(given={"x": given}).make(function, taken, 0)
    assert str(error.value) == words


@pytest.mark.tf
def test_given_strings():
    function, taken = concrete(x=spec([None], "string")), callable_([None])
    for array in (np.array(["ä", "b"]), np.array(["ä".encode(), b"b"])):
        assert Inputs(given={"x": array}).make(function, taken, 0)[1]["x"].numpy().tolist() == ["ä".encode(), b"b"]


@pytest.mark.tf
def test_a_given_input_that_nothing_takes():
    function, taken = concrete(pixels=spec([2], "float32")), callable_([None], "signature serve")
    Inputs(given={"pixels@serve": np.zeros(2)}).check_names([(function, taken)])
    with pytest.raises(UsageError) as error:
        Inputs(given={"pixel": np.zeros(2)}).check_names([(function, taken)])
    assert str(error.value) == (
        "The inputs hold 'pixel', but no function of the model takes it. Keys are names of inputs, or NAME@SIGNATURE: "
        "'pixels'"
    )


def test_samples_from_a_file(tmp_path):
    np.savez(tmp_path / "s.npz", x=np.arange(3))
    assert read_samples(tmp_path / "s.npz")["x"].tolist() == [0, 1, 2]
    assert read_samples({"x": [1]})["x"].tolist() == [1]
    assert read_samples(None) == {}


def test_samples_that_cannot_be_read(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros(1))
    np.savez(tmp_path / "objects.npz", x=np.array([None]))
    (tmp_path / "text.npz").write_text("text")
    found = []
    for name, kind in (("none.npz", InputOutputError), ("one.npy", UsageError), ("objects.npz", InputOutputError)):
        with pytest.raises(kind) as error:
            read_samples(tmp_path / name)
        found.append(str(error.value).replace(str(tmp_path), ""))
    with pytest.raises(InputOutputError, match="is no file of arrays"):
        read_samples(tmp_path / "text.npz")
    assert found == [
        "Cannot read the inputs '/none.npz': No such file or directory",
        "'/one.npy' holds one array without a name. Write it with: numpy.savez(FILE, NAME=array)",
        (
            "'/objects.npz' is no file of arrays (Object arrays cannot be loaded when allow_pickle=False). Write it "
            "with: numpy.savez(FILE, NAME=array)"
        ),
    ]
