"""The function that is trained through: which it is, its inputs by name, its outputs by name, and what makes those."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphfreeze.errors import UsageError
from graphfreeze.runtime.loaded import phase_records
from graphfreeze.runtime.optimizers import suggestion

DEFAULT = "serving_default"
_NUMBERED = re.compile(r"(.+)\[(\d+)\]")
_TARGETS = re.compile(r"([^:\[\]]+):\[?([^:\[\]]*)\]?:(\w+)")
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})


@dataclass(frozen=True, slots=True)
class Targets:
    """What the caller says of the input that holds targets."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Function:
    """One function with one set of inputs."""

    name: str
    inputs: Mapping[str, Any]
    """Input name -> ``tf.TensorSpec``."""
    outputs: Mapping[str, Any]
    """Output name -> ``tf.TensorSpec``."""
    call: Callable[[Mapping[str, Any]], Mapping[str, Any]]
    """Inputs by name to outputs by name."""
    makers: Callable[[str], Iterator[str]]
    """The ops that make an output, the last one first."""
    trainable: tuple[Any, ...]
    """The trainable variables that it uses."""


def parse_targets(text: str) -> Targets:
    """``NAME:SHAPE:DTYPE``, where the shape is numbers with commas, ``?`` where a size is not known.

    >>> parse_targets("labels:?,10:float32")
    Targets(name='labels', shape=(None, 10), dtype='float32')

    Raises:
        UsageError: it is not that, or there is no such dtype.
    """
    import tensorflow as tf

    match = _TARGETS.fullmatch(text.replace(" ", ""))
    sizes = [] if match is None else [s for s in match[2].split(",") if s]
    if match is None or not all(s.isdecimal() or s in ("?", "None", "-1") for s in sizes):
        raise UsageError(
            f"'{text}' does not describe targets. Write NAME:SHAPE:DTYPE, for example 'labels:?,10:float32', or "
            "'labels:?:int64'"
        )
    try:
        dtype = tf.as_dtype(match[3]).name
    except TypeError:
        raise UsageError(
            f"TensorFlow has no dtype '{match[3]}', which '{text}' names. Write for example int64"
        ) from None
    return Targets(match[1], tuple(int(s) if s.isdecimal() else None for s in sizes), dtype)


def find_function(loaded: Any, name: str | None, phase: str | None = None) -> Function:
    """The signature or function of this name; by default ``serving_default``, the only signature, or ``__call__``.

    ``NAME[N]`` is the N-th way in which a function was traced. In a phase it is that phase's variant of it.

    Raises:
        UsageError: there is none of that name, or several could be meant.
    """
    signatures, functions = _in_phase(loaded, phase)
    wanted = name or _default(signatures, functions)
    if wanted in signatures:
        return _signature(wanted, signatures[wanted])
    match = _NUMBERED.fullmatch(wanted)
    stem, number = (match[1], int(match[2])) if match else (wanted, None)
    if stem not in functions:
        hint = suggestion(stem, [*signatures, *functions], "It has")
        raise UsageError(f"The model has no signature or function '{stem}'. {hint}")
    return _traced(stem, number, functions[stem])


def _in_phase(loaded: Any, phase: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Signatures and functions by the names that they have outside phases."""
    signatures, functions = dict(getattr(loaded, "signatures", {})), _functions(loaded)
    if phase is None:
        return signatures, functions
    ends = tuple(f"@{record['name']}" for record in phase_records(loaded))
    own = {name: signatures.get(f"{name}@{phase}", s) for name, s in signatures.items() if not name.endswith(ends)}
    variants = _functions(getattr(loaded.graphfreeze.phases, phase))
    return own, functions | {name: f for name, f in variants.items() if name != "info"}


def _default(signatures: Mapping[str, Any], functions: Mapping[str, Any]) -> str:
    for name in (DEFAULT, *(signatures if len(signatures) == 1 else ()), "__call__"):
        if name in signatures or name in functions:
            return str(name)
    names = [*signatures, *functions]
    if len(names) == 1:
        return str(names[0])
    shown = ", ".join(f"'{n}'" for n in names) or "none"
    raise UsageError(f"Nothing says which function to train through. Name one with --function; the model has: {shown}")


def _functions(loaded: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ["__call__", *sorted(vars(loaded))]:
        if (name == "__call__" or not name.startswith("_")) and callable(getattr(type(loaded), name, None)):
            found[name] = loaded
        held = getattr(loaded, name, None)
        if hasattr(held, "concrete_functions"):
            found[name] = held
    return {name: f for name, f in found.items() if getattr(f, "concrete_functions", None)}


def _signature(name: str, concrete: Any) -> Function:
    inputs = dict(concrete.structured_input_signature[1])
    outputs = dict(concrete.structured_outputs)
    places = {output: i for i, output in enumerate(sorted(outputs))}
    return Function(
        name,
        inputs,
        outputs,
        lambda given: concrete(**given),
        lambda output: _makers(concrete, places[output]),
        tuple(concrete.trainable_variables),
    )


def _traced(name: str, number: int | None, function: Any) -> Function:
    import tensorflow as tf

    traces = list(function.concrete_functions)
    if number is None and len(traces) > 1:
        shown = "\n".join(f"  '{name}[{i}]' {_shown(t)}" for i, t in enumerate(traces))
        raise UsageError(f"Function '{name}' was traced in {len(traces)} ways. Name one with --function:\n{shown}")
    if number is not None and number >= len(traces):
        raise UsageError(f"Function '{name}' was traced in {len(traces)} ways, counted from 0; there is no [{number}]")
    concrete = traces[number or 0]
    structure = concrete.structured_input_signature
    leaves = tf.nest.flatten(structure)
    names: list[str | None] = []
    for leaf in leaves:
        stem = (leaf.name or "input").split(":")[0] if isinstance(leaf, tf.TensorSpec) else None
        used = sum(n == stem or (n or "").startswith(f"{stem}_") for n in names)
        names.append(stem if stem is None or not used else f"{stem}_{used}")
    inputs = {n: leaf for n, leaf in zip(names, leaves, strict=True) if n is not None}
    outputs = _named(concrete.structured_outputs)

    def call(given: Mapping[str, Any]) -> Mapping[str, Any]:
        flat = [leaf if n is None else given[n] for n, leaf in zip(names, leaves, strict=True)]
        positional, keywords = tf.nest.pack_sequence_as(structure, flat)
        return _named(function(*positional, **keywords))

    places = {output: i for i, output in enumerate(outputs)}
    makers = lambda output: _makers(concrete, places[output])  # noqa: E731
    return Function(name, inputs, outputs, call, makers, tuple(concrete.trainable_variables))


def _shown(concrete: Any) -> str:
    positional, keywords = concrete.structured_input_signature
    texts = [*map(_leaf, positional), *(f"{k}={_leaf(v)}" for k, v in keywords.items())]
    return f"({', '.join(texts)})"


def _leaf(value: Any) -> str:
    return f"{value.name}: {value.dtype.name}{value.shape}" if hasattr(value, "dtype") else repr(value)


def _named(outputs: Any) -> dict[str, Any]:
    """Outputs by their keys; ``output_N`` where there are none, as TensorFlow names those of a signature."""
    import tensorflow as tf

    if isinstance(outputs, Mapping) and not any(tf.nest.is_nested(v) for v in outputs.values()):
        return {key: outputs[key] for key in sorted(outputs)}
    return {f"output_{i}": tensor for i, tensor in enumerate(tf.nest.flatten(outputs))}


def _makers(concrete: Any, place: int) -> Iterator[str]:
    graph = concrete.graph.as_graph_def()
    library = {f.signature.name: f for f in graph.library.function}
    nodes = {n.name: n for n in graph.node}
    tensor = concrete.outputs[place]
    name, number, returned = tensor.op.name, tensor.value_index, None
    while name in nodes:
        node = nodes[name]
        if node.op in _CALLS and node.attr["f"].func.name in library:
            inner = library[node.attr["f"].func.name]
            returned = inner.ret[inner.signature.output_arg[number].name]
            nodes = {n.name: n for n in inner.node_def}
        else:
            yield node.op
            data = [text for text in node.input if not text.startswith("^")]
            if not data:
                return
            returned = data[number] if node.op == "IdentityN" else data[0]
        parts = returned.split(":")
        name, number = parts[0], int(parts[-1]) if len(parts) > 1 else 0
