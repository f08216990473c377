"""What a report says of a plan: its rows, its totals, its words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.text import Text

from graphfreeze.report.layout import Column, Row, layout, printable, wrapped
from graphfreeze.report.training import render_training

if TYPE_CHECKING:
    from graphfreeze.planning.plan import MetaGraphPlan, Plan, VariablePlan

MOST_NORMS = 4
PARAMETER_KINDS = ("weight", "statistic")
STYLES = {"stop": "blue", "split": "green", "mask": "magenta"}

SHAPE = Column("shape", drop=2)
DTYPE = Column("dtype", drop=2)
KIND = Column("kind", drop=1)
TRAINABLE = Column("trainable", "trainable: {}")
FROZEN = Column("frozen / total", "frozen: {}", right=True)
STRATEGY = Column("strategy", styled=True)
READS = Column("reads", "reads: {}", right=True, drop=1)
WRITES = Column("writes", "writes: {}", right=True, drop=1)
ADAM = Column("Adam bytes", "Adam: {}", right=True)
INSPECT_COLUMNS = (SHAPE, DTYPE, KIND, TRAINABLE, READS, WRITES)
PLAN_COLUMNS = (SHAPE, DTYPE, KIND, FROZEN, STRATEGY, READS, WRITES, ADAM)


def render_plan(plan: Plan, *, width: int | None, verbose: bool = False, quiet: bool = False) -> list[Text]:
    """The report as lines of at most ``width`` columns. ``quiet`` leaves only the totals."""
    lines: list[Text] = []
    for meta in plan.meta_graphs:
        if lines:
            lines.append(Text())
        if not quiet and (plan.command == "inspect" or len(plan.meta_graphs) > 1):
            lines += _meta_graph_header(meta, width)
        if not meta.variables:
            lines += wrapped("The model has no variables: there is nothing to freeze.", width)
            lines += render_training(meta, width, verbose=verbose) if plan.command == "inspect" and not quiet else []
            continue
        if not quiet:
            table = _variable_lines(plan.command, meta, width, verbose)
            lines += [*table, Text()] if table else []
            lines += _batch_norms(meta, width, verbose)
            lines += _untouched(meta, width) if plan.command != "inspect" and not verbose else []
        lines += _totals(meta, width)
        lines += _phases(meta, width, verbose) if meta.phases and not quiet else []
        lines += render_training(meta, width, verbose=verbose) if plan.command == "inspect" and not quiet else []
    if not plan.meta_graphs:
        lines += wrapped("The model has no meta graphs: there is nothing to freeze.", width)
    return lines


def _phases(meta: MetaGraphPlan, width: int | None, verbose: bool) -> list[Text]:
    from graphfreeze.report.phases import render_table

    return [Text(), *render_table(meta, width, verbose=verbose)]


def _meta_graph_header(meta: MetaGraphPlan, width: int | None) -> list[Text]:
    tags = printable(", ".join(meta.tags)) or "(no tags)"
    signatures = printable(", ".join(meta.signatures)) or "(none)"
    return [
        *wrapped(f"meta graph: {tags} ({meta.format})", width, hanging=4, style="bold"),
        *wrapped(f"signatures: {signatures}", width, hanging=4),
        Text(),
    ]


def _variable_lines(command: str, meta: MetaGraphPlan, width: int | None, verbose: bool) -> list[Text]:
    if command == "inspect":
        frozen = any(v.frozen for v in meta.variables)
        columns = INSPECT_COLUMNS + (FROZEN, STRATEGY) * frozen
        rows = [_inspect_row(v, _label(v, meta), frozen, verbose) for v in meta.variables]
        return layout(columns, rows, width)
    shown = meta.variables if verbose else meta.touched()
    return layout(PLAN_COLUMNS, [_plan_row(v, _label(v, meta), verbose) for v in shown], width) if shown else []


def _untouched(meta: MetaGraphPlan, width: int | None) -> list[Text]:
    """One line for all variables that the table leaves out."""
    touched = meta.touched()
    left = [v for v in meta.variables if v not in touched]
    if not left:
        return []
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in Counter(v.kind for v in left).items())
    stay = "1 variable stays as it is" if len(left) == 1 else f"{len(left):,} variables stay as they are"
    nothing = "" if touched else "Nothing is frozen: "
    return wrapped(f"{nothing}{stay} ({kinds}); -v shows more.", width, style="dim")


def _batch_norms(meta: MetaGraphPlan, width: int | None, verbose: bool) -> list[Text]:
    """What was chosen for each batch norm, and why; of many, how often."""
    lines: list[Text] = []
    for norm in meta.batch_norms if verbose or len(meta.batch_norms) <= MOST_NORMS else ():
        lines += wrapped(printable(f"batch norm '{norm.label}': {norm.choice}, {norm.reason}"), width, hanging=4)
    if not lines:
        for choice, count in Counter(norm.choice for norm in meta.batch_norms).items():
            lines += wrapped(f"batch norms: {count:,} {choice}; -v shows each", width, hanging=4)
    return lines


def _totals(meta: MetaGraphPlan, width: int | None) -> list[Text]:
    counted = [v for v in meta.variables if v.kind in PARAMETER_KINDS or v.enabled]
    total = sum(v.elements for v in counted)
    trainable = sum(v.elements - v.frozen for v in counted if v.enabled or (v.trainable and v.kind == "weight"))
    percent = 100 * trainable / total if total else 0.0
    before = sum(v.optimizer_bytes[0] for v in meta.variables)
    after = sum(v.optimizer_bytes[1] for v in meta.variables)
    share = f" ({100 * after / before:.1f} %)" if before and before != after else ""
    counts = [f"trainable params: {trainable:,} || ", f"all params: {total:,} || ", f"trainable%: {percent:.4f}"]
    return [
        *wrapped("".join(counts), width, style="bold", pieces=counts),
        *wrapped(f"optimizer bytes with Adam: {_change(before, after)}{share}", width),
    ]


def _inspect_row(v: VariablePlan, name: str, frozen: bool, verbose: bool) -> Row:
    trainable = "yes" if v.trainable else "no"
    cells: tuple[str, ...] = (_shape(v), v.dtype, v.kind, trainable, f"{len(v.reads):,}", f"{len(v.writes):,}")
    if frozen:
        cells += (_frozen(v), _strategy(v))
    return Row(name, cells, details=_details(v) if verbose else (), style=STYLES.get(str(v.strategy), ""))


def _plan_row(v: VariablePlan, name: str, verbose: bool) -> Row:
    uses = (f"{len(v.reads):,}", f"{len(v.writes):,}")
    cells = (_shape(v), v.dtype, v.kind, _frozen(v), _strategy(v), *uses, _change(*v.optimizer_bytes))
    details = _details(v) if verbose else ()
    return Row(name, cells, printable(v.reason), details=details, style=STYLES.get(str(v.strategy), ""))


def _details(v: VariablePlan) -> tuple[str, ...]:
    lines = [f"path: {v.path}"] if v.path != v.name else []
    lines.append(f"key: {v.key or '(not in the checkpoint)'}")
    lines += [f"new variable: {atom.name} ({atom.storage})" for atom in v.atoms if atom.name]
    lines += [f"read {r.access}: {r.op} {_place(r.node, r.function)}" for r in v.reads]
    for w in v.writes:
        guard = f", guard: {w.guard}" if w.guard else ""
        gradient = f", gradient: {w.gradient}" if w.gradient else ""
        lines.append(f"write: {w.op} {_place(w.node, w.function)}{guard}{gradient}")
    return tuple(printable(line) for line in lines)


def _place(node: str, function: str) -> str:
    return f"'{node}' in '{function}'" if function else f"'{node}' in the main graph"


def _label(v: VariablePlan, meta: MetaGraphPlan) -> str:
    """The name, or the path where names repeat: what a selector has to say."""
    return printable(meta.label(v) or v.name or v.path or v.key or "(no name)")


def _shape(v: VariablePlan) -> str:
    if v.shape is None:
        return "unknown"
    sizes = ["?" if size < 0 else str(size) for size in v.shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def _frozen(v: VariablePlan) -> str:
    return f"{v.frozen:,} / {v.elements:,}"


def _strategy(v: VariablePlan) -> str:
    words = [str(v.strategy)] if v.strategy else []
    words += ["live"] * (str(v.copy) == "live") + ["strict"] * v.strict + ["enabled"] * v.enabled
    return " ".join(words) or "-"


def _change(before: int, after: int) -> str:
    return human_bytes(before) if before == after else f"{human_bytes(before)} -> {human_bytes(after)}"


def human_bytes(count: int) -> str:
    """``1536`` -> ``1.5 KiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
