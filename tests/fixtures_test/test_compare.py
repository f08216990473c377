"""The comparisons notice what they are for: one bit, one field, one unknown field."""

import numpy as np
import pytest
from google.protobuf import struct_pb2

from tests.helpers.compare import assert_bits_equal, assert_within_eps, bits_equal, proto_diff


def struct(**fields):
    message = struct_pb2.Struct()
    message.update(fields)
    return message


def test_bits():
    nan = np.array([np.nan, 0.0])
    assert bits_equal(nan, nan.copy())
    assert not bits_equal(np.array([0.0]), np.array([-0.0]))
    assert not bits_equal(np.float32([1]), np.float64([1]))
    assert not bits_equal(np.zeros((1, 2)), np.zeros((2, 1)))
    assert bits_equal(np.array([b"a", b"b"], object), np.array([b"a", b"b"], object))
    assert bits_equal(np.zeros((0, 3)), np.zeros((0, 3)))
    assert bits_equal(np.float32(1.5), np.float32(1.5))


def test_bits_message_counts_and_locates():
    with pytest.raises(AssertionError, match=r"kernel: 1 of 4 elements differ, first at \[1, 0\]"):
        assert_bits_equal(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.0], [5.0, 4.0]]), "kernel")


def test_within_eps():
    base = np.array([1.0, 100.0], np.float32)
    assert_within_eps(base + np.float32(1e-4), base)
    with pytest.raises(AssertionError, match="off by"):
        assert_within_eps(base + np.float32(1e-3), base)
    with pytest.raises(AssertionError, match="off by nan"):
        assert_within_eps(np.array([np.nan]), np.array([1.0]))


def test_proto_diff_lists_every_field():
    one = struct(same=1, number=1.0, inner={"text": "a"}, only=True)
    two = struct(same=1, number=2.0, inner={"text": "b"}, items=[1])
    assert sorted(proto_diff(one, two)) == [
        "fields['inner'].struct_value.fields['text'].string_value: 'a' != 'b'",
        "fields['items']: only in the second",
        "fields['number'].number_value: 1.0 != 2.0",
        "fields['only']: only in the first",
    ]
    assert proto_diff(one, one) == []
    assert proto_diff(one, two, ignore=frozenset({"fields"})) == []


def test_proto_diff_sees_presence_and_unknown_fields():
    one, two = struct_pb2.Value(), struct_pb2.Value(number_value=0.0)
    assert proto_diff(one, two) == ["number_value: absent != '0.0'"]
    more = struct_pb2.Struct.FromString(one.SerializeToString() + b"\xc8\x3e\x07")
    assert proto_diff(more, struct_pb2.Struct()) == [": unknown fields ['(1001, 0, 7)'] != []"]
