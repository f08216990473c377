"""Which strategy a variable gets, and the sentence that says why: the decision table of ``auto``.

| frozen            | ``auto`` takes | because                                                     |
|-------------------|----------------|-------------------------------------------------------------|
| whole variable    | ``stop``       | no storage, no gradient, out of the list that trains        |
| rest is box, rows | ``split``      | training costs as much as what trains; slots shrink with it |
|                   |                | (not where the graph itself writes the variable)            |
| anything else     | ``mask``       | the trainable part has no shape of its own                  |

One row is one function in ``STRATEGIES``: it says whether it can hold the region and cuts the variable into atoms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphfreeze.errors import UsageError
from graphfreeze.graph.names import legal_name
from graphfreeze.planning.plan import Atom, Storage
from graphfreeze.selection import Box, Copy, Region, Rows, Strategy, complement, describe


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be held, and what the user asked for."""

    label: str
    """What the variable is called in messages and in the names of new variables."""
    frozen: Region
    copy: Copy
    strict: bool
    written: str = ""
    """What in the graph writes the variable, in words; empty where nothing does."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A strategy with its atoms. ``why_not`` says why a strategy cannot hold the region."""

    strategy: Strategy
    reason: str = ""
    atoms: tuple[Atom, ...] = ()
    copy: Copy | None = None
    strict: bool = False
    why_not: str = ""


def _new(request: Request, storage: Storage) -> str:
    return f"{legal_name(request.label)}/graphfreeze/{storage.value}"


def hold_whole(request: Request, *, strict: bool | None = None) -> Decision:
    """The whole variable: ``StopGradient``, or with ``--strict`` a copy that no optimizer is ever given."""
    strict = request.strict if strict is None else strict
    whole = request.frozen
    if not whole.is_whole:
        return Decision(Strategy.STOP, why_not="it holds whole variables only")
    if strict:
        reason = "whole variable, read from a copy (strict)"
        return Decision(
            Strategy.STOP, reason, (Atom(whole, Storage.COPY, False, _new(request, Storage.COPY)),), strict=True
        )
    return Decision(Strategy.STOP, "whole variable", (Atom(whole, Storage.BASE, False),))


def hold_split(request: Request) -> Decision:
    """The trainable region becomes a smaller variable of its own."""
    if request.frozen.is_whole:
        return hold_whole(request)
    if request.written:
        return Decision(Strategy.SPLIT, why_not=f"{request.written}, and a part of its own would not follow")
    trainable = complement(request.frozen)
    if not isinstance(trainable, Box | Rows):
        return Decision(
            Strategy.SPLIT, why_not=f"the trainable part, {describe(trainable)}, is neither a box nor rows of one axis"
        )
    atoms = (
        Atom(request.frozen, Storage.BASE, False),
        Atom(trainable, Storage.PART, True, _new(request, Storage.PART)),
    )
    return Decision(Strategy.SPLIT, f"the trainable part is {_shape_of(trainable)}", atoms)


def hold_mask(request: Request) -> Decision:
    """The variable trains; the frozen region is laid over it at every read."""
    if request.frozen.is_whole:
        # Nothing of it trains, so there is nothing to mask; a copy keeps what mask promises for any optimizer.
        return hold_whole(request, strict=request.strict or request.copy is Copy.SNAPSHOT)
    trainable = complement(request.frozen)
    live = request.copy is Copy.LIVE
    held = (
        Atom(request.frozen, Storage.BASE, False)
        if live
        else Atom(request.frozen, Storage.COPY, False, _new(request, Storage.COPY))
    )
    reason = f"the frozen part is {_shape_of(request.frozen)}" + (", read from the variable itself" if live else "")
    reason += f"; {request.written}" if request.written else ""
    return Decision(Strategy.MASK, reason, (Atom(trainable, Storage.BASE, True), held), request.copy)


def hold_by_guards(frozen: Region) -> Decision:
    """A statistic: nothing but writes in the graph moves it, so guards are enough."""
    if frozen.is_whole:
        return Decision(
            Strategy.STOP, "statistic, held by guards on what writes it", (Atom(frozen, Storage.BASE, False),)
        )
    atoms = (Atom(complement(frozen), Storage.BASE, True), Atom(frozen, Storage.BASE, False))
    reason = f"statistic, held by guards on what writes it: {describe(frozen)}"
    return Decision(Strategy.MASK, reason, atoms, Copy.LIVE)


def _shape_of(region: Region) -> str:
    kind = {Box: "a box", Rows: "rows"}.get(type(region), "scattered elements")
    return f"{kind}: {describe(region)}"


STRATEGIES: dict[Strategy, Callable[[Request], Decision]] = {
    Strategy.STOP: hold_whole,
    Strategy.SPLIT: hold_split,
    Strategy.MASK: hold_mask,
}
"""In the order in which ``auto`` tries them."""


def decide(request: Request, wanted: Strategy) -> Decision:
    """The decision for one variable.

    Raises:
        UsageError: the strategy that the user demands cannot hold the region.
    """
    if wanted is not Strategy.AUTO:
        decision = STRATEGIES[wanted](request)
        if decision.why_not:
            raise UsageError(
                f"Strategy '{wanted}' cannot hold {describe(request.frozen)} of '{request.label}': {decision.why_not}. "
                "Leave --strategy out and graphfreeze picks one that can"
            )
        return decision
    decisions = (hold(request) for hold in STRATEGIES.values())
    return next(d for d in decisions if not d.why_not)
