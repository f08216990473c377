"""What a report says of training steps that were put into a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from graphfreeze.report.layout import printable, wrapped

if TYPE_CHECKING:
    from graphfreeze.runtime.steps.result import Steps


def render_steps(done: Steps, *, width: int | None, verbose: bool = False) -> list[Text]:
    """The signatures, their inputs, and what they train, as lines of at most ``width`` columns."""
    inputs = ", ".join(f"{name}: {dtype}{_shape(shape)}" for name, (dtype, shape) in done.inputs.items())
    facts = [f"added signatures: {', '.join(done.signatures)}", f"inputs of training: {inputs}"]
    for signature, variables in done.trained.items():
        count = "1 variable" if len(variables) == 1 else f"{len(variables):,} variables"
        facts.append(f"{signature} trains {count}{':' if verbose else ''}")
        facts += [f"  {name}" for name in variables if verbose]
    facts.append(f"optimizer state: {done.state_bytes:,} bytes")
    return [line for fact in facts for line in wrapped(printable(fact), width, hanging=2)]


def _shape(shape: tuple[int | None, ...] | None) -> str:
    return "" if shape is None else f"[{','.join('?' if s is None else str(s) for s in shape)}]"
