import pytest

from graphfreeze.graph.refs import Ref, attr_of, is_control, make_ref, parse_ref, producer
from tests.graph.protos import node


@pytest.mark.parametrize(
    ("text", "in_function", "ref", "canonical"),
    [
        ("x", False, Ref("x", None, 0), "x"),
        ("x:0", False, Ref("x", None, 0), "x"),
        ("a/b:2", False, Ref("a/b", None, 2), "a/b:2"),
        ("x", True, Ref("x", "", 0), "x"),
        ("while:output:3", True, Ref("while", "output", 3), "while:output:3"),
        ("a/read:value:0", True, Ref("a/read", "value", 0), "a/read:value:0"),
        ("a/read:value", True, Ref("a/read", "value", 0), "a/read:value:0"),
    ],
)
def test_both_dialects_round_trip(text, in_function, ref, canonical):
    assert parse_ref(text, in_function=in_function) == ref
    assert ref.text == canonical
    assert parse_ref(canonical, in_function=in_function) == ref


def test_an_argument_is_told_from_a_node():
    assert parse_ref("x", in_function=True).is_argument
    assert not parse_ref("x", in_function=False).is_argument
    assert not parse_ref("x:output:0", in_function=True).is_argument


@pytest.mark.parametrize(
    ("op", "index", "in_function", "text"),
    [
        ("ReadVariableOp", 0, True, "n:value:0"),
        ("ReadVariableOp", 0, False, "n"),
        ("Split", 2, True, "n:output:2"),
        ("Split", 2, False, "n:2"),
        ("Where", 0, True, "n:index:0"),
        ("Cast", 0, True, "n:y:0"),
        ("AddV2", 0, True, "n:z:0"),
        ("StridedSlice", 0, True, "n:output:0"),
    ],
)
def test_edges_are_made_by_the_name_of_the_output(op, index, in_function, text):
    assert make_ref("n", op, index, in_function=in_function) == text


def test_control_edges_and_producers():
    assert [is_control(t) for t in ("^n", "n", "n:1")] == [True, False, False]
    assert [producer(t) for t in ("^a/n", "a/n", "a/n:1", "a/n:value:0")] == ["a/n"] * 4


def test_asking_for_a_missing_attribute_leaves_the_node_as_it_was():
    plain = node("n", "NoOp")
    assert attr_of(plain, "T").type == 0
    assert plain == node("n", "NoOp")
