"""Reads back what a rewrite left in a TF1 graph: the constant ``graphfreeze/info``, wherever it stands now.

The graph may have been imported into a name scope before it was exported again; then every name has that scope before
it, and the constant's own name says which.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.graph.attrs import tensor_value
from graphfreeze.graph.scope import Scope
from graphfreeze.graph.uses import Trace
from graphfreeze.lowering.facts import check_format, read_fact
from graphfreeze.passes.found import Frozen, Marks
from graphfreeze.passes.presence import info_nodes
from graphfreeze.passes.tf1_info import INFO_NODE
from graphfreeze.savedmodel.protos import MetaGraphDef

_INFO = re.compile(rf"(?P<prefix>(.*/)?){INFO_NODE}(_\d+)*")


@dataclass(frozen=True, slots=True)
class Info:
    """What one rewrite said, and the name scope in which its graph stands now."""

    prefix: str
    data: dict[str, Any]

    def name(self, noted: str) -> str:
        """The present name of a node."""
        return f"{self.prefix}{noted}"


def read_infos(meta: MetaGraphDef) -> Iterator[Info]:
    """Every rewrite that the main graph tells of; none in a TF2 model, which tells of it elsewhere.

    Raises:
        UnsupportedModelError: a newer version wrote it, or it cannot be read.
    """
    for node in info_nodes(meta):
        match = _INFO.fullmatch(node.name)
        try:
            data = json.loads(node.attr["value"].tensor.string_val[0])
        except (ValueError, IndexError):
            match = None
        if match is None:
            raise UnsupportedModelError(
                f"Node '{node.name}' should say what graphfreeze did to this model and does not. Rewrite the original "
                "model again"
            )
        check_format(data.get("format"))
        yield Info(match["prefix"], data)


def read_graph_marks(meta: MetaGraphDef, trace: Trace) -> Marks:
    """What is frozen in a TF1 graph, tied to the variables of the trace.

    Raises:
        UnsupportedModelError: as ``read_infos``, or a storage is missing.
    """
    by_handle = {h: v.index for v in trace.variables for h in v.handles}
    constants = Scope(meta.graph_def).nodes
    frozen: list[Frozen] = []
    enabled: list[int] = []
    infos = list(read_infos(meta))
    for info in infos:
        enabled += [by_handle[info.name(h)] for h in info.data["enabled"] if info.name(h) in by_handle]
        for told in info.data["variables"]:
            storages = {role: info.name(handle) for role, handle in told["storages"].items()}
            for needed in (info.name(told["handle"]), *storages.values()):
                if needed not in by_handle:
                    raise UnsupportedModelError(
                        f"Variable '{needed}', which holds a part of '{told['fact']['name']}', is missing from the "
                        "model, so its values cannot be put back together. Finalize the model before another tool "
                        "drops it"
                    )
            geometry = {key: info.name(node) for key, node in told["geometry"].items()}

            def get(key: str, held: dict[str, str] = geometry) -> NDArray[np.generic] | None:
                node = constants.get(held.get(key, ""))
                return None if node is None else tensor_value(node.attr["value"].tensor)

            tied = {role: by_handle[handle] for role, handle in storages.items()}
            frozen.append(Frozen(by_handle[info.name(told["handle"])], read_fact(told["fact"], get), tied, None))
    ours = {s for f in frozen for s in f.storages.values()}
    stems = tuple(f"{handle}/" for s in ours for handle in trace.variables[s].handles)
    # An optimizer keeps its slots under the name of the variable.
    ours |= {v.index for v in trace.variables if stems and any(h.startswith(stems) for h in v.handles)}
    phases = tuple(p for info in infos[:1] for p in info.data.get("phases", ()))
    return Marks(tuple(sorted(frozen, key=lambda f: f.variable)), frozenset(ours), (), tuple(enabled), phases)
