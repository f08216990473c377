import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphfreeze.graph.names import FreshNames, changed_function_name, legal_name, original_function_name


def test_fresh_names_are_not_taken_and_always_the_same():
    names = FreshNames(["a", "a_1"])
    assert [names.fresh(n) for n in ("a", "a", "b", "b")] == ["a_2", "a_3", "b", "b_1"]


@pytest.mark.parametrize("name", ["__inference_call_12", "__inference_a_1_2", "f", "__forward_x_3", "_7", "a_b"])
def test_the_name_of_a_changed_function_can_be_undone(name):
    changed = changed_function_name(name, b"content")
    assert changed != name
    assert original_function_name(changed) == name
    assert changed_function_name(name, b"other") != changed


def test_a_changed_function_keeps_its_number_last():
    assert re.fullmatch(
        r"__inference_call_graphfreeze_[0-9a-f]{8}_12", changed_function_name("__inference_call_12", b"")
    )


@pytest.mark.parametrize(
    ("name", "legal"),
    [
        ("dense/kernel", "dense/kernel"),
        ("blocks/0/w.x-1", "blocks/0/w.x-1"),
        ("_kernel", "kernel"),
        ("_layers/0/_w", "layers/0/_w"),
        ("my kernel:x", "my_kernel_x"),
        ("größe", "gr__e"),
        ("__", "variable"),
        ("", "variable"),
    ],
)
def test_legal_names(name, legal):
    assert legal_name(name) == legal


@given(st.text())
def test_every_text_gives_a_name_that_tensorflow_takes(text):
    # framework/ops.py, _VALID_OP_NAME_REGEX
    assert re.fullmatch(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*", legal_name(text))
