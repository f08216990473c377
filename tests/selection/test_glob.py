"""What globs match."""

import pytest

from graphfreeze.selection.glob import compile_glob
from graphfreeze.selection.syntax import Glob, Pattern


@pytest.mark.parametrize(
    ("glob", "matches", "not_matches"),
    [
        ("a/b", ["a/b"], ["a/bc", "xa/b", "a"]),
        ("*", ["a", ""], ["a/b"]),
        ("a*c", ["ac", "abc"], ["a/c", "abcd"]),
        ("a/*", ["a/b", "a/"], ["a/b/c", "a"]),
        ("**", ["a", "a/b/c"], []),
        ("**/kernel", ["kernel", "a/kernel", "a/b/kernel"], ["xkernel", "a/xkernel"]),
        ("a/**/k", ["a/k", "a/b/k", "a/b/c/k"], ["ak", "a/xk", "a"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "ab/c"]),
        ("a**c", ["ac", "a/b/c"], ["b/ac"]),
        ("a**/c", ["a/c", "ab/x/c"], ["ac"]),
        ("***", ["a/b"], []),
        ("a?", ["ab"], ["a", "a/", "abc"]),
        ("{a,b}/x", ["a/x", "b/x"], ["c/x", "a,b/x"]),
        ("a{,_1}", ["a", "a_1"], ["a_2"]),
        ("{a*,{b,c}_?}/x", ["abc/x", "b_1/x", "c_2/x"], ["b/x"]),
        ("conv_{0..5}", ["conv_0", "conv_5"], ["conv_6", "conv_05", "conv_"]),
        ("conv_{5..3}", ["conv_3", "conv_4", "conv_5"], ["conv_2"]),
        ("l{08..11}", ["l08", "l11"], ["l8", "l12"]),
        ("{a,{0..2}}", ["a", "1"], ["3"]),
        ("a.b+(c)", ["a.b+(c)"], ["axb+(c)"]),
        ("a,b", ["a,b"], ["a"]),
    ],
)
def test_glob(glob, matches, not_matches):
    pattern = compile_glob(glob)
    assert [name for name in matches if not pattern.fullmatch(name)] == []
    assert [name for name in not_matches if pattern.fullmatch(name)] == []


def test_suffix_of_variable_names_is_dropped():
    assert Glob("a/b:0").matches("a/b")
    assert Glob("a/b").matches("a/b")


def test_pattern_matches_the_whole_name():
    assert Pattern("a|b").matches("b")
    assert not Pattern("a|b").matches("bc")


def test_exactness():
    assert Glob("a/b[0]").is_exact
    assert not Glob("a/*").is_exact
    assert not Glob("{a,b}").is_exact
    assert not Pattern("a").is_exact
