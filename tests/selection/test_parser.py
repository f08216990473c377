"""Selector text: what it means, that its own spelling parses back, and where errors point."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfreeze.errors import SelectorSyntaxError
from graphfreeze.selection.parser import parse_selector
from graphfreeze.selection.syntax import (
    At,
    Comparison,
    Dots,
    Glob,
    IndexList,
    MaskFile,
    Pattern,
    Predicate,
    RowsFile,
    Selector,
    Slice,
    Subscript,
)

FAST = settings(max_examples=100, deadline=None)
FULL = Slice()


def subscript(*items):
    return Subscript(items)


@pytest.mark.parametrize(
    ("text", "target", "index"),
    [
        ("**", Glob("**"), None),
        ("dense/kernel:0", Glob("dense/kernel:0"), None),
        ("  dense/kernel ", Glob("dense/kernel"), None),
        ("emb/embeddings[:50000]", Glob("emb/embeddings"), subscript(Slice(None, 50000))),
        ("dense/kernel[:, 64:128]", Glob("dense/kernel"), subscript(FULL, Slice(64, 128))),
        ("conv/kernel[..., ::2]", Glob("conv/kernel"), subscript(Dots(), Slice(None, None, 2))),
        ("x[...]", Glob("x"), subscript(Dots())),
        ("x[[0, 1], [1, 0]]", Glob("x"), subscript(IndexList((0, 1)), IndexList((1, 0)))),
        ("x[[0,1,]]", Glob("x"), subscript(IndexList((0, 1)))),
        ("x[-1]", Glob("x"), subscript(At(-1))),
        ("x[+1,]", Glob("x"), subscript(At(1))),
        ("x[-4:-1]", Glob("x"), subscript(Slice(-4, -1))),
        ("x[::]", Glob("x"), subscript(FULL)),
        ("x [ 0 : 4 : 2 , ... , [ 1 , 2 ] ] ", Glob("x"), subscript(Slice(0, 4, 2), Dots(), IndexList((1, 2)))),
        ("x[[1,4,7], :]", Glob("x"), subscript(IndexList((1, 4, 7)), FULL)),
        ("x[:, [3,5]]", Glob("x"), subscript(FULL, IndexList((3, 5)))),
        ("kernel[@mask.npy]", Glob("kernel"), MaskFile("mask.npy")),
        ("kernel[@ ../a b/mask.npy ]", Glob("kernel"), MaskFile("../a b/mask.npy")),
        ("kernel[@masks.npz:dense/kernel:0]", Glob("kernel"), MaskFile("masks.npz", "dense/kernel:0")),
        ("emb[@rows.txt]", Glob("emb"), RowsFile("rows.txt")),
        ("kernel[== 0]", Glob("kernel"), Predicate(Comparison.EQUAL, 0.0)),
        ("kernel[!=0]", Glob("kernel"), Predicate(Comparison.UNEQUAL, 0.0)),
        ("kernel[abs < 1e-3]", Glob("kernel"), Predicate(Comparison.LESS, 1e-3, absolute=True)),
        ("kernel[abs>=.5]", Glob("kernel"), Predicate(Comparison.GREATER_EQUAL, 0.5, absolute=True)),
        ("kernel[<= -inf]", Glob("kernel"), Predicate(Comparison.LESS_EQUAL, float("-inf"))),
        ("kernel[> +2.]", Glob("kernel"), Predicate(Comparison.GREATER, 2.0)),
        ("re:.*[ab]", Pattern(".*[ab]"), None),
        ("re:x[0]", Pattern("x[0]"), None),
        ("re:.*/kernel@@[0]", Pattern(".*/kernel"), subscript(At(0))),
        ("re:a@@[0]b@@[[1, 2]]", Pattern("a@@[0]b"), subscript(IndexList((1, 2)))),
        ("a[0]/b", Glob("a[0]/b"), None),
        ("a[0]/b[1]", Glob("a[0]/b"), subscript(At(1))),
        ("conv_{0..5}/{kernel,bias}", Glob("conv_{0..5}/{kernel,bias}"), None),
    ],
)
def test_meaning(text, target, index):
    selector = parse_selector(text)
    assert selector == Selector(target, index)
    assert parse_selector(str(selector)) == selector


NAMES = st.from_regex(r"[a-z*?_0-9][a-z/*?_:.0-9-]{0,8}", fullmatch=True).filter(
    lambda text: not text.startswith("re:")
)
INTS = st.integers(-(10**17), 10**17)
STEPS = st.none() | st.integers(1, 99)
ITEMS = (
    st.builds(At, INTS)
    | st.builds(Slice, st.none() | INTS, st.none() | INTS, STEPS)
    | st.builds(IndexList, st.lists(INTS, min_size=1, max_size=4).map(tuple))
)
SUBSCRIPTS = st.tuples(st.lists(ITEMS, max_size=3), st.lists(st.just(Dots()), max_size=1), st.lists(ITEMS, max_size=2))
INDICES = (
    SUBSCRIPTS.map(lambda parts: Subscript((*parts[0], *parts[1], *parts[2]))).filter(lambda index: bool(index.items))
    | st.builds(Predicate, st.sampled_from(Comparison), st.floats(allow_nan=False), st.booleans())
    | st.builds(MaskFile, NAMES.map(lambda name: f"{name}.npy"))
    | st.builds(MaskFile, NAMES.map(lambda name: f"{name}.npz"), NAMES)
    | st.builds(RowsFile, NAMES.map(lambda name: f"{name}.txt"))
)
TARGETS = st.builds(Glob, NAMES) | st.builds(Pattern, st.sampled_from([".*", "[ab]+/x", "a|b", "(a@@)?"]))


@FAST
@given(st.builds(Selector, TARGETS, st.none() | INDICES))
def test_text_round_trip(selector):
    assert parse_selector(str(selector)) == selector


@FAST
@given(st.text(alphabet="ab/*?{},.:[]@= <>0123-", max_size=14))
def test_any_text_parses_back_or_is_refused(text):
    try:
        selector = parse_selector(text)
    except SelectorSyntaxError as error:
        in_text = 0 <= error.column <= len(text)
    else:
        in_text = parse_selector(str(selector)) == selector
    assert in_text


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("", 0, "a selector is empty; '**' selects every variable"),
        ("   ", 0, "a selector is empty; '**' selects every variable"),
        ("[0]", 0, "a selector begins with a name; '**' selects every variable"),
        ("dense/kernel[:, :64", 19, "expected ']': the bracket opened at column 13 is not closed"),
        ("x[[1, 2], [1", 12, "expected ']': the bracket opened at column 11 is not closed"),
        ("x]", 1, "']' closes no '['"),
        ("x[0][1]", 4, "a selector takes one index; write all axes in one bracket, '[0, 1]'"),
        ("x[]", 2, "an index is empty; leave the brackets out to mean the whole variable"),
        ("x[  ]", 4, "an index is empty; leave the brackets out to mean the whole variable"),
        ("x[1.5]", 3, "expected ',' or ']' in the index opened at column 2"),
        ("x[ 1 2]", 5, "expected ',' or ']' in the index opened at column 2"),
        ("x[1:2:3:4]", 7, "expected ',' or ']' in the index opened at column 2"),
        ("x[None]", 2, "expected an integer, a slice, a list of integers or '...'"),
        ("x[1,,2]", 4, "expected an integer, a slice, a list of integers or '...'"),
        ("x[..., 1, ...]", 10, "an index can hold '...' only once"),
        ("x[::-1]", 4, "a set of elements has no order; write the slice with a positive step"),
        ("x[::0]", 4, "the step of a slice cannot be zero"),
        ("x[[]]", 3, "a list of indices cannot be empty"),
        ("x[[1, [2]]]", 6, "expected an integer"),
        ("x[ [1 2]]", 6, "expected ',' or ']' in the list opened at column 4"),
        ("x[1234567890123456789]", 2, "the integer is too large"),
        ("x[= 0]", 2, "expected one of == != < <= > >="),
        ("x[abs 3]", 6, "expected one of == != < <= > >="),
        ("x[< nan]", 4, "expected a number"),
        ("x[< 1 2]", 6, "expected ']' after the number"),
        ("x[< 1e999]", 4, "the number is too large; write inf to mean infinity"),
        ("x[@masks.npz]", 12, "an .npz file holds several arrays; name one: '@masks.npz:NAME'"),
        ("x[@masks.npz:]", 13, "an .npz file holds several arrays; name one: '@masks.npz:NAME'"),
        (
            "x[@mask.bin]",
            3,
            "expected a mask, '@mask.npy' or '@masks.npz:NAME', or a list of rows, '@rows.txt'",
        ),
        ("x[@.txt]", 3, "expected a mask, '@mask.npy' or '@masks.npz:NAME', or a list of rows, '@rows.txt'"),
        ("re:", 3, "'re:' needs a regular expression"),
        ("re:@@[0]", 3, "'re:' needs a regular expression"),
        ("re:ab(", 5, "not a regular expression: missing ), unterminated subpattern"),
        ("re:a{99999999999}", 3, "the regular expression is too large"),
        ("{" * 30, 20, "braces are nested more than 20 deep"),
        (" a{b", 2, "'{' is not closed"),
        ("a}", 1, "'}' closes no '{'"),
        ("a{b}", 1, "braces hold choices, '{a,b}', or a range, '{0..5}'"),
        ("a{0..999999}", 1, "a range holds at most 100,000 numbers"),
    ],
)
def test_errors_point_at_the_column(text, column, problem):
    with pytest.raises(SelectorSyntaxError) as caught:
        parse_selector(text)
    assert (caught.value.text, caught.value.column, caught.value.problem) == (text, column, problem)


def test_caret():
    with pytest.raises(SelectorSyntaxError) as caught:
        parse_selector("x[::-1]")
    assert str(caught.value) == (
        "a set of elements has no order; write the slice with a positive step, at column 5\n  x[::-1]\n      ^"
    )
