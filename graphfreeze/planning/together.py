"""Several meta graphs over the same weights: rules are shared out, and a weight is stored in one way for all.

A TF1 model often holds one meta graph to train and one to serve. A rule has to match somewhere, not everywhere, and a
variable that changes its storage must change it in every meta graph that reads it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

from graphfreeze.errors import UnsupportedModelError
from graphfreeze.planning.decide import Source
from graphfreeze.planning.plan import MetaGraphPlan, Storage, VariablePlan
from graphfreeze.selection import Region, Rule, Verb, whole_region
from graphfreeze.selection.variables import names_variable


def shared_out(sources: Sequence[Source], rules: Sequence[Rule]) -> Iterator[tuple[Source, tuple[Rule, ...]]]:
    """Every meta graph with the rules that it has variables for; the first has those as well that match nowhere."""
    for source in sources:
        fitting = tuple(r for r in rules if _names(source, r) or not any(_names(s, r) for s in sources))
        if fitting != tuple(rules) and not source.held and all(r.verb is Verb.TRAIN for r in rules):
            # Rules that all say ``train`` freeze the rest, in a meta graph that has only the rest too.
            source = all_held(source)
        yield source, fitting


def all_held(source: Source) -> Source:
    """The meta graph with everything frozen that rules can train."""
    rest: dict[Hashable, Region] = {
        v.id: whole_region(() if v.shape is None else v.shape) for v in source.views.all if v.kind != "state"
    }
    return replace(source, held=rest)


def with_writes(sources: Sequence[Source]) -> list[Source]:
    """Every meta graph with what the others write: a weight that one of them trains is stored for that."""
    written: dict[str, str] = {}
    for source in sources:
        for variable in source.trace.variables:
            for function, write in source.trace.writes(variable.index):
                where = f"function '{function}'" if function else "the main graph"
                text = (
                    f"{where} of meta graph {list(source.tags)} writes the variable (node '{write.node}', {write.op})"
                )
                written.setdefault(variable.key or "", text)
    return [replace(source, written_elsewhere=written) for source in sources] if len(sources) > 1 else list(sources)


def _names(source: Source, rule: Rule) -> bool:
    return any(names_variable(rule.selector.target, view) for view in source.views.all)


def refuse_different(planned: Sequence[MetaGraphPlan]) -> None:
    """Refuses plans that store one weight in two ways.

    Raises:
        UnsupportedModelError: two meta graphs that read a variable would find its value in different places.
    """
    first: dict[tuple[str | None, str], tuple[MetaGraphPlan, VariablePlan]] = {}
    for meta in planned:
        for variable in meta.variables:
            if variable.key is None or not (variable.reads or _moved(variable)):
                continue
            other_meta, other = first.setdefault((variable.key, variable.name), (meta, variable))
            if other.atoms != variable.atoms and (_moved(other) or _moved(variable)):
                raise UnsupportedModelError(
                    f"Meta graphs {list(other_meta.tags)} and {list(meta.tags)} share '{meta.label(variable)}', and "
                    f"hold it differently: in the first it is {_held(other)}, in the second {_held(variable)}. Name "
                    "the variable exactly, or give one strategy for it"
                )


def _moved(variable: VariablePlan) -> bool:
    return any(atom.storage is not Storage.BASE for atom in variable.atoms)


def _held(variable: VariablePlan) -> str:
    return "left alone" if variable.strategy is None else f"'{variable.strategy}' ({variable.reason})"
