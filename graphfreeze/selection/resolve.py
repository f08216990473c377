"""Applies rules to the variables of a model: which elements of each end up frozen.

Rules run in order, and the last one that covers an element decides. At the start nothing is frozen; if all rules are
``train``, everything is, so that ``--train 'head/**'`` alone means what it says. Three limits keep a wide glob from
doing harm: globs never reach state (a frozen dropout seed would repeat one mask for ever), `train` never turns on what
the source holds untrainable, and a rule that covers nothing is an error, never a no-op.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

from graphfreeze.errors import NoMatchError, UsageError
from graphfreeze.selection.algebra import difference, union
from graphfreeze.selection.canonical import empty_region, whole_region
from graphfreeze.selection.files import FileCache
from graphfreeze.selection.index import Site, index_region
from graphfreeze.selection.region import AnyArray, Region
from graphfreeze.selection.spec import Rule, Verb
from graphfreeze.selection.variables import VariableView, labels, names_variable, nearest_names

TRAINABLE_DTYPES = ("float", "bfloat", "complex")
MOST_LISTED = 5


@dataclass(frozen=True, slots=True)
class ResolvedVariable:
    """What the rules make of one variable that they touch."""

    variable: VariableView
    frozen: Region
    """Its frozen elements; of the shape ``()`` if the variable's shape is unknown, so either all or nothing."""
    enabled: bool
    """Whether a rule turns on a variable that the source holds untrainable."""
    rules: tuple[int, ...]
    """Positions of the rules that cover some of it; empty where only the base does."""


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """What one rule covered."""

    rule: Rule
    variables: tuple[Hashable, ...]
    """Ids of the variables, in the model's order."""
    elements: int
    """Elements covered, whatever later rules made of them; a variable of unknown shape counts as one."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """The outcome of a spec on a model, before any strategy is chosen."""

    variables: tuple[ResolvedVariable, ...]
    """Every variable that a rule or the base touches, in the model's order."""
    matches: tuple[RuleMatch, ...]
    """One per rule, in order."""
    notes: tuple[str, ...] = ()
    """What the user should know although it is no error."""

    def frozen(self, variable: VariableView) -> Region:
        """The frozen elements of a variable of the model, touched or not."""
        found = (touched.frozen for touched in self.variables if touched.variable.id == variable.id)
        return next(found, empty_region(_shape(variable)))


@dataclass(slots=True)
class _State:
    """Resolution in progress; dictionaries are keyed by variable id."""

    variables: Sequence[VariableView]
    labels: dict[Hashable, str]
    enable: bool
    state: bool
    read_values: Callable[[str], AnyArray]
    files: FileCache = field(default_factory=FileCache)
    frozen: dict[Hashable, Region] = field(default_factory=dict)
    touched: dict[Hashable, list[int]] = field(default_factory=dict)
    enabled: set[Hashable] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def resolve(
    rules: Sequence[Rule],
    variables: Sequence[VariableView],
    *,
    enable: bool,
    state: bool,
    read_values: Callable[[str], AnyArray],
    held: Mapping[Hashable, Region] | None = None,
) -> Resolution:
    """Find the frozen elements of every variable.

    Args:
        rules: In the order in which they apply.
        variables: All of the model, without the unused copies that a Keras export holds.
        enable: Let `train` turn on what the source holds untrainable.
        state: Let an exact name freeze state.
        read_values: Gives the stored value of a checkpoint key; called for predicates only.
        held: What is frozen already, by variable id; the rules extend it, and it takes the place of the base.

    Raises:
        NoMatchError: a rule names no variable, or no element.
        UsageError: a rule does not fit a variable, or needs ``enable`` or ``state``.
        InputOutputError: a file that a rule names cannot be read.
    """
    run = _State(variables, labels(variables), enable, state, read_values)
    if held:
        run.frozen = dict(held)
    elif rules and all(rule.verb is Verb.TRAIN for rule in rules):
        run.frozen = {it.id: whole_region(_shape(it)) for it in variables if it.kind != "state"}
    matches = tuple(_apply(run, number, rule) for number, rule in enumerate(rules))
    touched = tuple(_outcome(run, variable) for variable in variables if variable.id in run.frozen)
    return Resolution(touched, matches, tuple(run.notes))


def _outcome(run: _State, variable: VariableView) -> ResolvedVariable:
    rules = tuple(run.touched.get(variable.id, ()))
    return ResolvedVariable(variable, run.frozen[variable.id], variable.id in run.enabled, rules)


def _apply(run: _State, number: int, rule: Rule) -> RuleMatch:
    covered: list[Hashable] = []
    elements = 0
    chosen = _choose(run, rule)
    for variable in chosen:
        site = Site(rule, variable, run.labels[variable.id])
        region = index_region(site, run.files, run.read_values)
        if region.is_empty and rule.selector.index is not None:
            continue
        _paint(run, rule, variable, region)
        covered.append(variable.id)
        run.touched.setdefault(variable.id, []).append(number)
        elements += region.count
    if chosen and not covered:
        names = _listed([run.labels[variable.id] for variable in chosen])
        raise NoMatchError(rule.describe(f"'{rule.text}' covers no element of {names}."))
    return RuleMatch(rule, tuple(covered), elements)


def _paint(run: _State, rule: Rule, variable: VariableView, region: Region) -> None:
    """Let the rule decide the elements of a region."""
    turned_on = rule.verb is Verb.TRAIN and _is_off(variable) and variable.id not in run.enabled
    if turned_on:
        run.enabled.add(variable.id)
    if turned_on or variable.id not in run.frozen:
        # What the source holds untrainable stays so outside the enabled elements.
        start = whole_region if turned_on else empty_region
        run.frozen[variable.id] = start(_shape(variable))
    combine = union if rule.verb is Verb.FREEZE else difference
    run.frozen[variable.id] = combine(run.frozen[variable.id], region)


def _choose(run: _State, rule: Rule) -> list[VariableView]:
    """The variables that a rule applies to.

    Raises:
        NoMatchError: the selector names none, or only state by a glob.
        UsageError: an exact name needs ``enable`` or ``state``.
    """
    target = rule.selector.target
    named = [variable for variable in run.variables if names_variable(target, variable)]
    if not named:
        raise NoMatchError(rule.describe(_no_match(run, rule)))
    covered = [variable for variable in named if variable.kind != "state"]
    if not target.is_exact and not covered:
        names = _listed([run.labels[variable.id] for variable in named])
        raise NoMatchError(
            rule.describe(
                f"'{rule.text}' matches only state ({names}), which globs never cover. "
                "Name one exactly, with --state to freeze it or --enable to train it."
            )
        )
    if target.is_exact:
        covered = named if run.state and rule.verb is Verb.FREEZE else covered or named
        _note_shared_name(run, rule, covered)
    return _allowed(run, rule, covered, exact=target.is_exact)


def _allowed(run: _State, rule: Rule, variables: list[VariableView], *, exact: bool) -> list[VariableView]:
    """The variables that the rule may change; an exact name that it may not change is an error."""
    if rule.verb is Verb.FREEZE:
        for variable in variables:
            if variable.kind == "state" and not run.state:
                raise UsageError(rule.describe(_needs_state(run, variable)))
        return variables
    off = [variable for variable in variables if _is_off(variable)]
    if exact and off and not run.enable:
        name = run.labels[off[0].id]
        problem = f"Cannot train '{name}': the source holds it untrainable. Pass --enable to turn it on."
        raise UsageError(rule.describe(problem))
    for variable in off if run.enable else ():
        if not variable.dtype.startswith(TRAINABLE_DTYPES):
            problem = f"Cannot train '{run.labels[variable.id]}': no gradient reaches dtype {variable.dtype}."
            raise UsageError(rule.describe(problem))
    if off and not run.enable:
        names = _listed([run.labels[variable.id] for variable in off])
        held = "which the source holds untrainable; pass --enable to turn it on"
        run.notes.append(rule.describe(f"'{rule.text}' leaves out {names}, {held}."))
        return [variable for variable in variables if not _is_off(variable)]
    return variables


def _is_off(variable: VariableView) -> bool:
    """Whether training it would need turning it on; a statistic has no such switch, its updates are in the graph."""
    return not variable.trainable and variable.kind != "statistic"


def _needs_state(run: _State, variable: VariableView) -> str:
    return (
        f"'{run.labels[variable.id]}' is state ({variable.dtype}), not a weight or a statistic. "
        "Pass --state to freeze it all the same."
    )


def _note_shared_name(run: _State, rule: Rule, named: list[VariableView]) -> None:
    if len(named) > 1:
        paths = _listed([variable.path or variable.short_name for variable in named])
        names = f"'{rule.selector.target}' names {len(named)} variables, all selected"
        run.notes.append(rule.describe(f"{names}: {paths}."))


def _no_match(run: _State, rule: Rule) -> str:
    near = [f"'{name}'" for name in nearest_names(rule.selector, run.variables)]
    advice = f" Did you mean {' or '.join(filter(None, [', '.join(near[:-1]), near[-1]]))}?" if near else ""
    count = "1 variable" if len(run.variables) == 1 else f"{len(run.variables)} variables"
    return f"No variable matches '{rule.text}'.{advice} The model has {count}: graphfreeze inspect MODEL"


def _listed(names: list[str]) -> str:
    """Up to five names in quotes."""
    quoted = ", ".join(f"'{name}'" for name in names[:MOST_LISTED])
    more = len(names) - MOST_LISTED
    return f"{quoted} and {more} more" if more > 0 else quoted


def _shape(variable: VariableView) -> tuple[int, ...]:
    return variable.shape if variable.shape is not None else ()
