"""Strings that a model's own tables and text files hold: samples of strings are drawn from them."""

from __future__ import annotations

from pathlib import Path

from graphfreeze.savedmodel import DT_STRING
from graphfreeze.savedmodel.protos import MetaGraphDef

_MOST_WORDS = 1000
_LARGEST_TEXT = 1 << 20


def words_of(meta: MetaGraphDef, assets: Path) -> tuple[str, ...]:
    """Strings that lookup tables may know: lines of text files, and constants that hold several strings."""
    found: dict[str, None] = {}
    for path in sorted(assets.glob("*")) if assets.is_dir() else ():
        if path.is_file() and path.stat().st_size < _LARGEST_TEXT:
            found |= dict.fromkeys(path.read_text(encoding="utf-8", errors="replace").splitlines()[:_MOST_WORDS])
    scopes = [meta.graph_def.node, *(f.node_def for f in meta.graph_def.library.function)]
    for node in (n for scope in scopes for n in scope if n.op == "Const" and n.attr["dtype"].type == DT_STRING):
        values = node.attr["value"].tensor.string_val
        if len(values) > 1 and not any(b"/.ATTRIBUTES/" in v or not v for v in values):
            found |= {v.decode("utf-8", "replace"): None for v in values[:_MOST_WORDS]}
    return tuple(found)[:_MOST_WORDS]
