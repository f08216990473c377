# ruff: noqa: E501, ISC004
"""Data files and arrays against what a function takes: what fits, and the words for what does not."""

import numpy as np
import pytest

from graphfreeze.errors import InputOutputError, UsageError
from graphfreeze.runtime.looping.batches import ArrayBatches, named
from graphfreeze.runtime.looping.columns import Wanted, check_columns, fit, fitted
from graphfreeze.runtime.looping.files import read_data

X = Wanted("x", (None, 2), np.dtype(np.float32))
T = Wanted("targets", (None,), np.dtype(np.int64))
TEXT = Wanted("text", (None,), np.dtype(object))


def words(call, kind, *arguments):
    with pytest.raises(kind) as error:
        call(*arguments)
    return str(error.value)


@pytest.fixture
def csv(tmp_path):
    def write(text):
        (tmp_path / "d.csv").write_text(text)
        return tmp_path / "d.csv"

    return write


def test_npz_becomes_what_is_wanted(tmp_path):
    np.savez(tmp_path / "d.npz", x=np.arange(6.0).reshape(3, 2), labels=np.arange(3, dtype=np.int32), more=[1])
    table, unused = read_data(tmp_path / "d.npz", [X, T], {"targets": ["labels"]})
    assert (table["x"].dtype, table["targets"].dtype, unused) == (np.float32, np.int64, ["more"])
    np.testing.assert_array_equal(table["x"], [[0, 1], [2, 3], [4, 5]])


def test_csv_by_header(csv):
    table, unused = read_data(csv("x_0,id,x_1,targets\n1,a,2.5,0\n3,b,4,1\n"), [X, T], {})
    np.testing.assert_array_equal(table["x"], np.array([[1, 2.5], [3, 4]], np.float32))
    np.testing.assert_array_equal(table["targets"], [0, 1])
    assert unused == ["id"]
    table, _ = read_data(csv("a,b,text\n1,2,yes\n"), [X, TEXT], {"x": ["b", "a"]})
    assert table["x"].tolist() == [[2, 1]]
    assert table["text"].tolist() == [b"yes"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "x_0,targets\n1,0\n",
            "{} holds no column 'x_1' for the input 'x', which takes float32 (?, 2). Did you mean 'x_0'? Name another "
            "with --column x=NAME",
        ),
        (
            "x_0,x_1,targets\n1,two,0\n",
            "Row 2 of {} holds 'two' in column 'x_1', which is no float32 for the input 'x'. Correct it",
        ),
        ("x_0,x_1,targets\n1,2\n", "Row 2 of {} has 2 fields, and the header 3. Correct it"),
        ("x_0,x_0\n1,2\n", "{} names the column 'x_0' twice. Give each a name of its own"),
        ("x_0,x_1,targets\n", "{} holds no rows. Give at least one example"),
        (
            "x,targets\n1,0\n",
            "The input 'x' has 1 column in {}, and one example is (2,). Name as many as it takes: --column "
            "x=NAME,NAME,...",
        ),
    ],
)
def test_csv_that_does_not_fit(csv, text, expected):
    path = csv(text)
    assert words(read_data, UsageError, path, [X, T], {}) == expected.format(f"'{path}'")


def test_files_that_are_none(tmp_path):
    assert words(read_data, UsageError, tmp_path / "d.txt", [X], {}) == (
        f"'{tmp_path / 'd.txt'}' is no data file that is known by its name. Give a .npz, .csv or .tfrecord file"
    )
    assert words(read_data, InputOutputError, tmp_path / "d.csv", [X], {}) == (
        f"Cannot read '{tmp_path / 'd.csv'}': No such file"
    )
    (tmp_path / "d.csv").write_text("")
    assert words(read_data, InputOutputError, tmp_path / "d.csv", [X], {}) == (
        f"'{tmp_path / 'd.csv'}' is empty. Its first line has to name the columns"
    )


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            {"X": np.ones((1, 2)), "targets": [0]},
            "D holds no array 'x' for the input 'x', which takes float32 (?, 2). It holds: 'X', 'targets'. Name another "
            "with --column x=NAME",
        ),
        (
            {"x": np.ones((1, 3)), "targets": [0]},
            "'x' in D has shape (1, 3), and the function takes (?, 2). The first axis is that of the examples",
        ),
        (
            {"x": [["a", "b"]], "targets": [0]},
            "'x' in D is of dtype str32, and the function takes float32 (?, 2). Convert it first",
        ),
        (
            {"x": np.ones((1, 2)), "targets": [0.5]},
            "'targets' in D is of dtype float64, and the function takes int64 (?,). Convert it first",
        ),
        (
            {"x": np.ones((1, 2)), "targets": [0, 1]},
            "D holds rows for 1 examples of 'x' and 2 of 'targets'. Give as many",
        ),
        ({"x": np.ones((0, 2)), "targets": np.ones(0, int)}, "D holds no rows. Give at least one example"),
    ],
)
def test_arrays_that_do_not_fit(table, expected):
    assert words(fitted, UsageError, table, [X, T], {}, "D") == expected


def test_numbers_without_a_place_in_the_dtype():
    small = Wanted("n", (None,), np.dtype(np.int8))
    assert words(fit, UsageError, np.array([300]), small, "D") == (
        "'n' in D is of dtype int64 with numbers beyond that, and the function takes int8 (?,). Convert it first"
    )
    assert fit(np.array([3]), Wanted("n", (None, 1), np.dtype(np.float32)), "D").shape == (1, 1)


def test_a_column_for_no_input():
    assert words(check_columns, UsageError, {"y": ["a"]}, [X, T]) == (
        "'y' of the columns is no input of the function. The inputs are: 'x', 'targets'."
    )


def test_each_epoch_has_an_order_of_its_own_that_only_the_seed_decides():
    batches = ArrayBatches({"x": np.arange(10)}, 4, True, 7, False, "")
    assert batches.count == 3
    orders = [batches.order(n).tolist() for n in range(3)]
    assert orders == [np.random.default_rng([7, n]).permutation(10).tolist() for n in range(3)]
    assert orders[0] != orders[1]
    assert ArrayBatches({"x": np.arange(10)}, 4, False, 7, True, "").order(1).tolist() == list(range(10))


def test_elements_of_a_dataset():
    assert named({"x": 1, "targets": 2}, [X, T]) == {"x": 1, "targets": 2}
    assert named(({"x": 1}, 2), [X, T]) == {"x": 1, "targets": 2}
    assert named((1, 2), [X, T]) == {"x": 1, "targets": 2}
    assert named(1, [X]) == {"x": 1}
    assert words(named, UsageError, {"x": 1}, [X, T]) == (
        "The dataset gives no 'targets'. Its elements have to be mappings with the keys 'x', 'targets', or tuples of as "
        "many tensors, targets last"
    )


@pytest.mark.tf
def test_tfrecord(tmp_path):
    import tensorflow as tf

    def feature(**values):
        kinds = {float: "float_list", int: "int64_list", bytes: "bytes_list"}
        made = {}
        for name, value in values.items():
            one = tf.train.Feature()
            getattr(one, kinds[type(value[0])]).value.extend(value)
            made[name] = one
        return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()

    path = tmp_path / "d.tfrecord"

    def write(*records):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)

    write(feature(x=[1.0, 2.0], targets=[1], text=[b"a"]), feature(x=[3.0, 4.0], targets=[0], text=[b"b"]))
    table, unused = read_data(path, [X, T, TEXT], {})
    assert (table["x"].tolist(), table["targets"].tolist(), unused) == ([[1, 2], [3, 4]], [1, 0], [])
    assert table["text"].tolist() == [b"a", b"b"]
    write(feature(x=[1.0, 2.0]), feature(x=[3.0]))
    assert words(read_data, UsageError, path, [X], {}) == (
        f"The feature 'x' of '{path}' has between 1 and 2 values. Give all examples one shape"
    )
    write(feature(x=[1.0, 2.0, 3.0]))
    assert words(read_data, UsageError, path, [X], {}) == (
        f"The input 'x' has 3 values in '{path}', and one example is (2,). Name as many as it takes: --column "
        "x=NAME,NAME,..."
    )
    path.write_bytes(path.read_bytes()[:-3])
    assert words(read_data, InputOutputError, path, [X], {}) == (
        f"'{path}' is damaged, in record 0. Write it with: tf.io.TFRecordWriter"
    )
