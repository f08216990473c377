"""Optimizers by name: ``adamw``, or ``adamw(learning_rate=1e-3, weight_decay=0.01)``.

The text is parsed here and is never evaluated: values are numbers, booleans, ``none`` and words. A name or an argument
that does not exist is answered with those that are near.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from graphfreeze.errors import UsageError

Make = Callable[[], Any]
Value = float | int | bool | str | None

_CALL = re.compile(r"\s*([^\s()=,]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*('[^']*'|\"[^\"]*\"|[^\s,()='\"]+)\s*")
_WORDS: Mapping[str, Value] = {"true": True, "false": False, "none": None}
_TF1_NAMES: Mapping[str, str] = {
    "sgd": "GradientDescentOptimizer",
    "gradientdescent": "GradientDescentOptimizer",
    "momentum": "MomentumOptimizer",
    "adam": "AdamOptimizer",
    "adagrad": "AdagradOptimizer",
    "adadelta": "AdadeltaOptimizer",
    "rmsprop": "RMSPropOptimizer",
    "ftrl": "FtrlOptimizer",
    "proximalgradientdescent": "ProximalGradientDescentOptimizer",
    "proximaladagrad": "ProximalAdagradOptimizer",
}
_TF1_RATE = 0.001
"""As Keras has it, for those optimizers of TF1 that name no rate of their own."""


@dataclass(frozen=True, slots=True)
class Call:
    """A name with arguments, as it was written."""

    name: str
    arguments: Mapping[str, Value] = field(default_factory=dict)


def parse_call(text: str, what: str) -> Call:
    """``NAME`` or ``NAME(KEY=VALUE, ...)``; ``what`` says what it is, in messages.

    >>> parse_call("adamw(learning_rate=1e-3, amsgrad=true)", "optimizer")
    Call(name='adamw', arguments={'learning_rate': 0.001, 'amsgrad': True})

    Raises:
        UsageError: it is none of these.
    """
    match = _CALL.fullmatch(text)
    if match is None:
        raise _not_a_call(text, what, "")
    arguments: dict[str, Value] = {}
    rest = (match[2] or "").strip()
    while rest:
        found = _ARGUMENT.match(rest)
        if found is None or (rest[found.end() :] and rest[found.end()] != ","):
            raise _not_a_call(text, what, f", found '{rest}'")
        if found[1] in arguments:
            raise UsageError(f"The {what} '{text}' gives '{found[1]}' twice. Give each argument once")
        arguments[found[1]] = _value(found[2])
        rest = rest[found.end() + 1 :].strip()
    return Call(match[1], arguments)


def refuse_unknown(call: Call, known: Iterable[str], what: str) -> None:
    """Refuses an argument that is not ``known``.

    Raises:
        UsageError: there is one.
    """
    allowed = list(known)
    for key in call.arguments:
        if key not in allowed:
            hint = suggestion(key, allowed, "It takes")
            raise UsageError(f"The {what} '{call.name}' has no argument '{key}'. {hint}")


def suggestion(word: str, known: Iterable[str], otherwise: str, more: Iterable[str] = ()) -> str:
    """Which of the known words, or ``more``, was meant; or all known ones after ``otherwise``."""
    names = list(known)
    near = get_close_matches(word.lower(), [*more, *names], 3)
    return f"Did you mean {' or '.join(map(repr, near))}?" if near else f"{otherwise}: {', '.join(names) or 'none'}"


def keras_optimizer(text: str, more: Iterable[str] = ()) -> tuple[str, Make]:
    """Name in lower case and factory of an optimizer of Keras; ``more`` are further names to suggest.

    Raises:
        UsageError: Keras has no such optimizer, or it has no such argument, or refuses a value.
    """
    import keras

    kinds = _kinds(keras.optimizers)
    call = parse_call(text, "optimizer")
    name = call.name.lower()
    if name not in kinds:
        hint = suggestion(name, kinds, "Keras has", more)
        raise UsageError(f"Keras has no optimizer '{call.name}'. {hint}")
    return name, _factory(kinds[name], call)


def training_optimizer(text: str) -> Make:
    """The maker of an optimizer that a training step in TensorFlow can use.

    Raises:
        UsageError: Keras has no such optimizer or argument, or runs on something else than TensorFlow.
    """
    import keras

    if keras.backend.backend() != "tensorflow":
        raise UsageError(
            f"Keras runs on '{keras.backend.backend()}' here, and a training step is made of TensorFlow. Set "
            "KERAS_BACKEND=tensorflow"
        )
    return keras_optimizer(text)[1]


def tf1_optimizer(text: str) -> Callable[[str], Any]:
    """Factory of an optimizer of ``tf.compat.v1.train``, given the name of its slots.

    Raises:
        UsageError: as for ``keras_optimizer``.
    """
    import tensorflow as tf

    call = parse_call(text, "optimizer")
    kinds = {name: getattr(tf.compat.v1.train, title) for name, title in _TF1_NAMES.items()}
    plain = re.sub(r"optimizer$", "", call.name.lower().replace("_", ""))
    if plain not in kinds:
        hint = suggestion(plain, kinds, "TF1 has")
        raise UsageError(f"tf.compat.v1.train has no optimizer '{call.name}', which a TF1 graph needs. {hint}")
    kind = kinds[plain]
    known = inspect.signature(kind.__init__).parameters
    given = dict(call.arguments)
    if "learning_rate" in known and known["learning_rate"].default is inspect.Parameter.empty:
        given.setdefault("learning_rate", _TF1_RATE)
    if plain == "momentum":
        given.setdefault("momentum", 0.9)
    make = _factory(kind, Call(call.name, given))
    return lambda slots: make(name=slots)


def _factory(kind: Any, call: Call) -> Callable[..., Any]:
    known = [p for p in inspect.signature(kind.__init__).parameters if p not in ("self", "kwargs", "name")]
    refuse_unknown(call, known, "optimizer")

    def make(**more: Any) -> Any:
        try:
            return kind(**call.arguments, **more)
        except (TypeError, ValueError) as error:
            raise UsageError(f"The optimizer '{call.name}' cannot be made: {error}") from error

    make()
    return make


def _kinds(module: Any) -> dict[str, Any]:
    found = {
        title.lower(): kind
        for title, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, module.Optimizer) and kind is not module.Optimizer
    }
    found.pop("lossscaleoptimizer", None)  # takes another optimizer
    return dict(sorted(found.items()))


def _not_a_call(text: str, what: str, found: str) -> UsageError:
    example = "adamw(learning_rate=1e-3)" if what == "optimizer" else "mse(output=scores)"
    return UsageError(f"The {what} '{text}' is not NAME or NAME(KEY=VALUE, ...){found}. Write for example '{example}'")


def _value(text: str) -> Value:
    if text[0] in "'\"":
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
