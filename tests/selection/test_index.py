"""What an index selects, against numpy itself, and every message about one that does not fit."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfreeze.errors import InputOutputError, UsageError
from graphfreeze.selection.files import FileCache
from graphfreeze.selection.index import Site, index_region, predicate_mask
from graphfreeze.selection.parser import parse_selector
from graphfreeze.selection.spec import Verb, make_rule
from graphfreeze.selection.syntax import Subscript
from graphfreeze.selection.variables import VariableView

FAST = settings(max_examples=150, deadline=None)


def select(index, shape, *, values=None, dtype="float32", key="k", folder=Path()):
    variable = VariableView("id", "w", "w", key, shape, dtype, "weight", True)
    rule = make_rule(Verb.FREEZE, f"w{index}", folder)
    return index_region(Site(rule, variable, "w"), FileCache(), lambda _: values)


@st.composite
def subscripts(draw):
    """A shape, and an index as text that is valid for it."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    used = draw(st.integers(0, len(shape)))
    dots = draw(st.none() | st.integers(0, used)) if used < len(shape) or draw(st.booleans()) else None
    head = used if dots is None else dots
    axes = [*range(head), *range(len(shape) - (used - head), len(shape))]
    length = draw(st.integers(1, 3))
    items = [draw(_items(shape[axis], length)) for axis in axes]
    if dots is not None:
        items.insert(dots, "...")
    return shape, f"[{', '.join(items)}]" if items else "[...]"


def _items(size, length):
    places = st.integers(-size, size - 1)
    bounds = st.none() | st.integers(-size, size)
    text = {None: ""}
    lists = st.lists(places, min_size=length, max_size=length) | st.lists(places, min_size=1, max_size=1)
    return (
        places.map(str)
        | st.tuples(bounds, bounds).map(lambda b: ":".join(text.get(x, str(x)) for x in b))
        | st.tuples(bounds, bounds, st.integers(1, 3)).map(lambda b: ":".join(text.get(x, str(x)) for x in b))
        | lists.map(str)
    )


@FAST
@given(subscripts())
def test_subscripts_mean_what_they_mean_in_numpy(case):
    shape, index = case
    expected = np.zeros(shape, np.bool_)
    expected[eval(f"np.s_{index}", {"np": np})] = True
    assert np.array_equal(select(index, shape).to_mask(), expected)
    assert isinstance(parse_selector(f"w{index}").index, Subscript)


def test_points():
    assert select("[[0, 1], [1, 0]]", (2, 2)).to_mask().tolist() == [[False, True], [True, False]]
    assert select("[[0, 1], :, [1, 0]]", (2, 3, 2)).to_mask()[:, 0].tolist() == [[False, True], [True, False]]


def test_large_axes_need_no_mask():
    assert select("[:50000000]", (10**9, 10**6)).storage_shape == (50_000_000, 10**6)
    assert select("[[3, 1, 7]]", (10**9, 10**6)).storage_shape == (3, 10**6)


@pytest.mark.parametrize(
    ("index", "shape", "problem"),
    [
        ("[65]", (64, 128), "index 65 lies beyond axis 0, which has 64 elements"),
        ("[-65]", (64, 128), "index -65 lies beyond axis 0, which has 64 elements"),
        ("[:, [0, 128]]", (64, 128), "index 128 lies beyond axis 1, which has 128 elements"),
        ("[:, :129]", (64, 128), "stop 129 lies beyond axis 1, which has 128 elements"),
        ("[-65:]", (64, 128), "start -65 lies beyond axis 0, which has 64 elements"),
        ("[..., 2:]", (3, 1), "start 2 lies beyond axis 1, which has 1 element"),
        ("[0, 0, 0]", (64, 128), "the index has 3 entries, the variable 2 axes"),
        ("[0, 0]", (64,), "the index has 2 entries, the variable 1 axis"),
        ("[[0, 1], [0, 1, 2]]", (64, 128), "lists of 2 and 3 indices do not go together"),
        ("[0]", (), "a scalar takes no index but '[...]'"),
        ("[:]", (), "a scalar takes no index but '[...]'"),
        ("[== 0]", (), "a scalar takes no index but '[...]'"),
        ("[0]", (0, 3), "index 0 lies beyond axis 0, which has 0 elements"),
    ],
)
def test_misfits(index, shape, problem):
    with pytest.raises(UsageError) as caught:
        select(index, shape)
    assert str(caught.value) == f"'w{index}' does not fit variable 'w' of shape {shape}: {problem}."


@pytest.mark.parametrize(("index", "count"), [("", 1), ("[...]", 1)])
def test_scalars_and_unknown_shapes_as_a_whole(index, count):
    assert select(index, ()).count == count
    assert select(index, None).is_whole


def test_unknown_shape_takes_no_index():
    with pytest.raises(UsageError) as caught:
        select("[0]", None)
    assert str(caught.value) == (
        "'w[0]' does not fit variable 'w' of shape unknown: "
        "only the whole of a variable of unknown shape can be selected."
    )


@pytest.fixture
def folder(tmp_path):
    mask = np.array([[True, False], [True, True]])
    np.save(tmp_path / "mask.npy", mask)
    np.save(tmp_path / "float.npy", mask.astype(np.float32))
    np.save(tmp_path / "pickle.npy", np.array([object()], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "masks.npz", kernel=mask, bias=mask[0])
    np.savez(tmp_path / "none.npz")
    (tmp_path / "rows.txt").write_text("# frozen rows\n3\n\n1  # one\n3\n")
    (tmp_path / "far.txt").write_text("1\n# no\n9\n")
    (tmp_path / "minus.txt").write_text("-1\n")
    (tmp_path / "word.txt").write_text("1\ntwo\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\n")
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty.npy").write_text("")
    return tmp_path


def test_files(folder):
    mask = [[True, False], [True, True]]
    assert select("[@mask.npy]", (2, 2), folder=folder).to_mask().tolist() == mask
    assert select("[@masks.npz:kernel]", (2, 2), folder=folder).to_mask().tolist() == mask
    assert select(f"[@{folder}/mask.npy]", (2, 2)).to_mask().tolist() == mask
    assert select("[@rows.txt]", (4, 9), folder=folder).to_mask()[:, 0].tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ("[@float.npy]", "mask '@float.npy' has dtype float32, expected bool"),
        ("[@masks.npz:bias]", "mask '@masks.npz:bias' has shape (2,)"),
        ("[@far.txt]", "row 9 in line 3 of '@far.txt' lies beyond axis 0, which has 2 elements"),
        ("[@minus.txt]", "row -1 in line 1 of '@minus.txt' lies beyond axis 0, which has 2 elements"),
        ("[@word.txt]", "line 2 of '@word.txt' is not a row number"),
    ],
)
def test_files_that_do_not_fit(folder, index, problem):
    with pytest.raises(UsageError) as caught:
        select(index, (2, 2), folder=folder)
    assert str(caught.value) == f"'w{index}' does not fit variable 'w' of shape (2, 2): {problem}."


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("[@no.npy]", "Cannot read mask '{}/no.npy': No such file or directory."),
        ("[@no.npz:a]", "Cannot read masks '{}/no.npz': No such file or directory."),
        ("[@no.txt]", "Cannot read rows '{}/no.txt': No such file or directory."),
        ("[@masks.npz:karnel]", "'{}/masks.npz' has no array 'karnel'. Arrays in it: 'kernel', 'bias'."),
        ("[@none.npz:a]", "'{}/none.npz' has no array 'a'. Arrays in it: none."),
        ("[@empty.npy]", "Cannot read mask '{}/empty.npy': No data left in file."),
    ],
)
def test_files_that_cannot_be_read(folder, index, message):
    with pytest.raises(InputOutputError) as caught:
        select(index, (2, 2), folder=folder)
    assert str(caught.value) == message.format(folder)


@pytest.mark.parametrize("name", ["pickle.npy", "text.npy", "bytes.txt"])
def test_damaged_files(folder, name):
    with pytest.raises(InputOutputError, match=rf"Cannot read (mask|rows) '{folder}/{name}': "):
        select(f"[@{name}]", (2, 2), folder=folder)


def test_archives_and_arrays_under_each_others_name(folder):
    (folder / "masks.npz").rename(folder / "a.npy")
    (folder / "mask.npy").rename(folder / "b.npz")
    with pytest.raises(InputOutputError) as caught:
        select("[@a.npy]", (2, 2), folder=folder)
    assert str(caught.value) == f"Cannot read mask '{folder}/a.npy': it is an .npz archive, not a single array."
    with pytest.raises(InputOutputError) as caught:
        select("[@b.npz:a]", (2, 2), folder=folder)
    assert str(caught.value) == f"Cannot read masks '{folder}/b.npz': it is a single array, not an .npz archive."


VALUES = [0.0, -0.0, 0.1, -0.1, 2.0, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("[== 0]", "11000000"),
        ("[!= 0]", "00111110"),
        ("[== 0.1]", "00100000"),
        ("[abs <= 0.1]", "11110000"),
        ("[abs < 0.1]", "11000000"),
        ("[< 0]", "00010010"),
        ("[> 0.1]", "00001100"),
        ("[>= inf]", "00000100"),
        ("[abs == inf]", "00000110"),
        ("[< inf]", "11111010"),
        ("[<= 1e300]", "11111010"),
        ("[!= inf]", "11111010"),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_predicates(index, expected, dtype):
    region = select(index, (8,), values=np.array(VALUES, dtype))
    assert "".join(str(int(flag)) for flag in region.to_mask()) == expected


def test_predicates_on_other_numbers():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    assert select("[abs <= 0.1]", (8,), values=np.array(VALUES, bfloat16), dtype="bfloat16").count == 4
    complex_values = np.array([3 + 4j, 0, complex("nan")], np.complex64)
    assert select("[abs > 4]", (3,), values=complex_values).to_mask().tolist() == [True, False, False]
    assert select("[!= 0]", (3,), values=complex_values).to_mask().tolist() == [True, False, False]
    integers = np.array([-128, 127, 0], np.int8)
    assert select("[abs > 127.5]", (3,), values=integers).to_mask().tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("index", "extra", "problem"),
    [
        ("[== 0]", {"dtype": "string"}, "its dtype is string, and '== 0' compares numbers"),
        ("[< 1]", {"key": None}, "'< 1' compares stored values, and the checkpoint holds none of it"),
        (
            "[< 1]",
            {"values": np.zeros(2, np.complex64)},
            "complex numbers have no order; compare their magnitude, 'abs < 1'",
        ),
    ],
)
def test_predicates_that_make_no_sense(index, extra, problem):
    with pytest.raises(UsageError) as caught:
        select(index, (2,), **extra)
    assert str(caught.value) == f"'w{index}' does not fit variable 'w' of shape (2,): {problem}."


@given(st.floats(), st.floats(width=32))
def test_predicate_on_any_number(number, value):
    if np.isnan(number):
        return
    index = parse_selector(f"w[<= {number!r}]").index
    found = predicate_mask(index, np.array([value], np.float32))[0]
    with np.errstate(over="ignore"):
        rounded = np.float32(number) if np.isfinite(np.float32(number)) or np.isinf(number) else number
    assert found == (value <= float(rounded))
