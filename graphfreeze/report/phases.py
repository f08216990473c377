"""What a report says of phases: one row each, and with ``-v`` what each trains and calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from graphfreeze.report.layout import Column, Row, layout, printable, wrapped
from graphfreeze.report.plans import human_bytes

if TYPE_CHECKING:
    from graphfreeze.passes.phase_view import Phases
    from graphfreeze.planning.plan import MetaGraphPlan

TRAINABLE = Column("trainable params", "trainable params: {}", right=True)
VARIABLES = Column("variables", "variables: {}", right=True, drop=1)
ADAM = Column("Adam bytes", "Adam: {}", right=True)
LOSS = Column("loss", "loss: {}", drop=2)
_MOST = 4
"""Functions that are listed without ``-v``."""


def render_phases(found: Phases, *, width: int | None, verbose: bool = False, quiet: bool = False) -> list[Text]:
    """The phases of a model as lines of at most ``width`` columns; ``quiet`` leaves only their names."""
    lines: list[Text] = []
    for meta in found.meta_graphs:
        if quiet:
            lines += [Text(printable(phase.name)) for phase in meta.phases]
            continue
        if len(found.meta_graphs) > 1:
            lines += [Text()] if lines else []
            lines += wrapped(f"meta graph: {printable(', '.join(meta.tags))} ({meta.format})", width, style="bold")
        lines += render_table(meta, width, verbose=verbose)
    return lines


def render_table(meta: MetaGraphPlan, width: int | None, *, verbose: bool = False) -> list[Text]:
    """The table of one meta graph."""
    rows = []
    with_loss = any(phase.loss is not None for phase in meta.phases)
    columns = (TRAINABLE, VARIABLES, ADAM, *[LOSS] * with_loss)
    for phase in meta.phases:
        cells: tuple[str, ...] = (
            f"{phase.trainable:,}",
            f"{len(phase.variables):,}",
            human_bytes(phase.optimizer_bytes),
        )
        cells += (printable(phase.loss or "-"),) if with_loss else ()
        details = [f"trains {name}" for name in phase.variables] + [f"has {name}" for name in phase.functions]
        shown = tuple(printable(d) for d in details) if verbose else ()
        rows.append(Row(phase.name, tuple(cells), printable(_functions(phase.functions, verbose)), details=shown))
    return layout(columns, rows, width, name="phase", note="functions")


def _functions(names: tuple[str, ...], verbose: bool) -> str:
    rest = len(names) - _MOST
    shown = names if rest <= 0 or verbose else names[:_MOST]
    return ", ".join(shown) + (f" and {rest:,} more" if rest > 0 and not verbose else "")
