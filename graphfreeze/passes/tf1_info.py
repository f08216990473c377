"""Pass ``info`` in a TF1 graph: a string constant ``graphfreeze/info`` that says what was done.

Nothing takes it. It lives through loading into a Session, training and exporting again, because TensorFlow exports the
whole graph; so do the marks on the nodes that were added.
"""

from __future__ import annotations

import json
from typing import Any

from graphfreeze.graph.attrs import ADDED, bytes_attr, string_tensor, type_attr
from graphfreeze.lowering.facts import FORMAT, fact
from graphfreeze.passes.state import Work
from graphfreeze.savedmodel import DT_STRING
from graphfreeze.savedmodel.protos import AttrValue

INFO_NODE = "graphfreeze/info"


def add_graph_info(work: Work) -> None:
    """Adds the constant."""
    node = work.meta.graph_def.node.add(name=work.names().fresh(INFO_NODE), op="Const")
    node.attr["dtype"].CopyFrom(type_attr(DT_STRING))
    node.attr["value"].CopyFrom(AttrValue(tensor=string_tensor([_content(work)], ())))
    node.attr[ADDED].CopyFrom(bytes_attr("info"))


def _content(work: Work) -> bytes:
    variables = []
    for index, merge in work.merges.items():
        storages = {role: stored.handle for (i, role), stored in work.stored.items() if i == index}
        variables.append(
            {
                "handle": work.trace.variables[index].handles[0],
                "fact": json.loads(fact(merge)),
                "storages": storages,
                "geometry": work.geometry[index],
            }
        )
    turned_on = [i for i, v in enumerate(work.plan.variables) if v.enabled and i not in work.merges]
    data: dict[str, Any] = {
        "format": FORMAT,
        "source": work.source,
        "spec": work.spec,
        "variables": variables,
        "enabled": [work.trace.variables[i].handles[0] for i in turned_on],
        "collections": work.collections,
    }
    if work.plan.phases:
        data["phases"] = [phase.to_dict() for phase in work.plan.phases]
    return json.dumps(data, sort_keys=True).encode()
