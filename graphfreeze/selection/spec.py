"""A spec: what to freeze and what to train, as an ordered list of rules, from a file and from the command line.

A spec file is TOML. Either two lists, where all of ``freeze`` comes before all of ``train``:

    freeze = ["encoder/**", "emb/embeddings[:50000]"]
    train = "encoder/norm/*"
    strategy = "auto"        # or stop, split, mask
    copy = "snapshot"        # or live
    batch_norm = "freeze-stats"  # or update, inference

or rules in an order of their own, each with one verb:

    [[rule]]
    freeze = "**"
    [[rule]]
    train = ["head/**", "adapter/**"]

The last rule that covers an element decides, so order matters; it is file order, then the command line's, all its
``--freeze`` before all its ``--train``.

Phases are stages of training, each with rules that follow the common ones. Where those all say ``train``, they freeze
the rest in every phase:

    train = "head/**"
    [[phase]]
    name = "head"
    [[phase]]
    name = "top"
    train = ["block_2/**"]
    loss = "distance"        # a tensor of a TF1 graph, where the phase has a loss of its own
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from graphfreeze.errors import InputOutputError, SelectorSyntaxError, UsageError
from graphfreeze.selection.parser import parse_selector
from graphfreeze.selection.syntax import Selector

RULES_KEY = "rule"
PHASES_KEY = "phase"
_OPTIONS = ("strategy", "copy", "batch_norm")


class Verb(StrEnum):
    """What a rule does with the elements it covers."""

    FREEZE = "freeze"
    TRAIN = "train"


class Strategy(StrEnum):
    """How frozen and trainable elements are stored; `AUTO` leaves the choice to the plan."""

    AUTO = "auto"
    STOP = "stop"
    SPLIT = "split"
    MASK = "mask"


class Copy(StrEnum):
    """Where `mask` takes frozen values from: a copy of their own, or the live variable."""

    SNAPSHOT = "snapshot"
    LIVE = "live"


class BatchNorm(StrEnum):
    """What becomes of the moving statistics of a batch norm whose gamma and beta are frozen whole."""

    FREEZE_STATS = "freeze-stats"
    """They are frozen too."""
    UPDATE = "update"
    """They go on being updated."""
    INFERENCE = "inference"
    """They are frozen, and take the place of the batch's statistics in training mode."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A verb and what it applies to."""

    verb: Verb
    selector: Selector
    base_dir: Path = field(default_factory=Path)
    """Folder that a mask file's path starts from; dropped where the selector reads no file."""
    text: str = ""
    """The selector as the user wrote it."""
    origin: str = field(default="", compare=False)
    """Where the rule stands, for messages; empty for the command line. Not stored with a spec."""

    def __post_init__(self) -> None:
        if not self.selector.reads_file:
            object.__setattr__(self, "base_dir", Path())
        if not self.text:
            object.__setattr__(self, "text", str(self.selector))

    def describe(self, problem: str) -> str:
        """The message, led by the place of the rule if it stands in a file."""
        return f"{self.origin}: {problem}" if self.origin else problem

    def __str__(self) -> str:
        return f"{self.verb} {self.selector}"


@dataclass(frozen=True, slots=True)
class Phase:
    """One stage of training: its rules follow those that all phases have in common."""

    name: str
    """An identifier of Python: functions of the phase are found by it."""
    rules: tuple[Rule, ...] = ()
    loss: str | None = None
    """What the phase minimises, where that is its own."""

    def to_dict(self) -> dict[str, object]:
        """As plain JSON values."""
        return {"name": self.name, "rules": [_rule_to_dict(rule) for rule in self.rules], "loss": self.loss}


@dataclass(frozen=True, slots=True)
class Spec:
    """Rules in the order in which they apply, and the options that go with them."""

    rules: tuple[Rule, ...] = ()
    strategy: Strategy = Strategy.AUTO
    copy: Copy = Copy.SNAPSHOT
    batch_norm: BatchNorm = BatchNorm.FREEZE_STATS
    phases: tuple[Phase, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """The spec as plain JSON values; `from_dict` reads it back to an equal spec."""
        data: dict[str, object] = {
            "rules": [_rule_to_dict(rule) for rule in self.rules],
            "strategy": str(self.strategy),
            "copy": str(self.copy),
            "batch_norm": str(self.batch_norm),
        }
        return data | ({"phases": [phase.to_dict() for phase in self.phases]} if self.phases else {})

    @classmethod
    def from_dict(cls, data: object) -> Spec:
        """Read what `to_dict` wrote.

        Raises:
            InputOutputError: it was damaged since.
        """
        match data:
            case {"rules": list(rules), "strategy": str(strategy), "copy": str(copy), **rest}:
                try:
                    phases = rest.get("phases", [])
                    return cls(
                        tuple(map(_rule_from_dict, rules)),
                        Strategy(strategy),
                        Copy(copy),
                        BatchNorm(str(rest.get("batch_norm", BatchNorm.FREEZE_STATS))),
                        tuple(map(_phase_from_dict, phases if isinstance(phases, list) else [None])),
                    )
                except (ValueError, UsageError) as error:
                    raise InputOutputError(f"A stored spec is damaged: {error}") from None
        raise InputOutputError("A stored spec is damaged: expected 'rules', 'strategy' and 'copy'.")


def read_spec(path: Path) -> Spec:
    """Read a spec file.

    Raises:
        InputOutputError: the file cannot be read.
        UsageError: it is no TOML, or holds a key or a value that means nothing.
        SelectorSyntaxError: a selector in it cannot be parsed.
    """
    data = _read_toml(path)
    _check_keys(data, ("freeze", "train", RULES_KEY, *_OPTIONS, PHASES_KEY), str(path))
    return Spec(
        tuple(_file_rules(data, path)),
        _choice(Strategy, data, "strategy", Strategy.AUTO, path),
        _choice(Copy, data, "copy", Copy.SNAPSHOT, path),
        _choice(BatchNorm, data, "batch_norm", BatchNorm.FREEZE_STATS, path),
        tuple(_file_phases(data, path)),
    )


def make_spec(
    freeze: Sequence[str] = (),
    train: Sequence[str] = (),
    *,
    file: Spec | None = None,
    strategy: Strategy | None = None,
    copy: Copy | None = None,
    batch_norm: BatchNorm | None = None,
    base_dir: Path | None = None,
) -> Spec:
    """The spec of a call: the rules of a spec file, then all of ``freeze``, then all of ``train``.

    >>> [str(rule) for rule in make_spec(["**"], ["head/*"]).rules]
    ['freeze **', 'train head/*']

    Args:
        freeze: Selectors to freeze.
        train: Selectors to leave trainable, or to carve out of what is frozen.
        file: What `read_spec` gave; its options hold unless given here.
        strategy: Takes the place of the file's.
        copy: Takes the place of the file's.
        batch_norm: Takes the place of the file's.
        base_dir: Folder that paths of mask files start from, the working directory by default.

    Raises:
        SelectorSyntaxError: a selector cannot be parsed.
    """
    before = file if file is not None else Spec()
    folder = base_dir if base_dir is not None else Path()
    rules = [make_rule(Verb.FREEZE, text, folder) for text in freeze]
    rules += [make_rule(Verb.TRAIN, text, folder) for text in train]
    return Spec(
        (*before.rules, *rules),
        strategy or before.strategy,
        copy or before.copy,
        batch_norm or before.batch_norm,
        before.phases,
    )


def make_rule(verb: Verb, text: str, base_dir: Path, origin: str = "") -> Rule:
    """Parse a selector into a rule.

    Raises:
        SelectorSyntaxError: the selector cannot be parsed; the message begins with ``origin``.
    """
    try:
        return Rule(verb, parse_selector(text), base_dir, text, origin)
    except SelectorSyntaxError as error:
        if not origin:
            raise
        raise SelectorSyntaxError(error.text, error.column, f"{origin}: {error.problem}") from None


def _read_toml(path: Path) -> dict[str, object]:
    import tomllib

    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except OSError as error:
        raise InputOutputError(f"Cannot read spec file '{path}': {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: the file is not UTF-8 text.") from None
    except tomllib.TOMLDecodeError as error:
        last_line = f"at line {len(text.splitlines()) or 1}, the end of the file"
        problem = str(error).replace("at end of document", last_line)
        raise UsageError(f"{path}: not valid TOML: {problem}") from None


def _file_rules(data: Mapping[str, object], path: Path) -> Iterable[Rule]:
    if RULES_KEY not in data:
        for verb in Verb:
            yield from _verb_rules(verb, data.get(verb, []), path, f"{path}: {verb}")
        return
    mixed = next((verb for verb in Verb if verb in data), None)
    if mixed is not None:
        raise UsageError(
            f"{path}: '{mixed}' and [[rule]] in one file leave the order open. "
            f"Write '{mixed}' as a [[rule]] of its own."
        )
    tables = data[RULES_KEY]
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{path}: 'rule' must be tables: write [[rule]], with 'freeze' or 'train' below it.")
    for number, table in enumerate(tables, start=1):
        yield from _table_rules(table, path, f"{path}: rule {number}")


def _table_rules(table: Mapping[str, object], path: Path, where: str) -> Iterable[Rule]:
    misplaced = next((key for key in _OPTIONS if key in table), None)
    if misplaced is not None:
        raise UsageError(f"{where}: '{misplaced}' holds for the whole file: write it above the first [[rule]].")
    _check_keys(table, tuple(Verb), where)
    if len(table) != 1:
        raise UsageError(f"{where}: expected one of 'freeze' and 'train', found {'both' if table else 'neither'}.")
    verb = Verb(next(iter(table)))
    yield from _verb_rules(verb, table[verb], path, f"{where}, {verb}")


def _file_phases(data: Mapping[str, object], path: Path) -> Iterable[Phase]:
    tables = data.get(PHASES_KEY, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{path}: 'phase' must be tables: write [[phase]], with 'name' below it.")
    seen: set[str] = set()
    for number, table in enumerate(tables, start=1):
        phase = _table_phase(table, path, f"{path}: phase {number}")
        if phase.name in seen:
            raise UsageError(f"{path}: phase {number}: the name '{phase.name}' is taken by an earlier phase.")
        seen.add(phase.name)
        yield phase


def _table_phase(table: Mapping[str, object], path: Path, where: str) -> Phase:
    _check_keys(table, ("name", *Verb, "loss"), where)
    name, loss = table.get("name"), table.get("loss")
    if not isinstance(name, str):
        found = _toml_type(name) if "name" in table else "none"
        raise UsageError(f"{where}: a phase needs a 'name' of its own, a string; found {found}.")
    if not is_phase_name(name):
        raise UsageError(
            f"{where}: the name '{name}' cannot be an attribute in Python. Use letters, digits and '_', a letter first."
        )
    if loss is not None and not isinstance(loss, str):
        raise UsageError(f"{where}: 'loss' must be a string, found {_toml_type(loss)}.")
    rules = [r for verb in Verb for r in _verb_rules(verb, table.get(verb, []), path, f"{where} ('{name}'), {verb}")]
    return Phase(name, tuple(rules), loss)


def is_phase_name(name: str) -> bool:
    """Whether functions can be found under a name: ``loaded.graphfreeze.phases.NAME``."""
    plain = name.isascii() and name.isidentifier() and not name.startswith("_")
    return plain and not keyword.iskeyword(name)


def _verb_rules(verb: Verb, value: object, path: Path, where: str) -> Iterable[Rule]:
    if isinstance(value, str):
        yield make_rule(verb, value, path.parent, where)
        return
    if not isinstance(value, list):
        raise UsageError(f"{where}: expected a selector or a list of selectors, found {_toml_type(value)}.")
    for number, text in enumerate(value, start=1):
        if not isinstance(text, str):
            raise UsageError(f"{where}, entry {number}: expected a selector, found {_toml_type(text)}.")
        yield make_rule(verb, text, path.parent, f"{where}, entry {number}")


def _check_keys(table: Mapping[str, object], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known:
            import difflib

            near = difflib.get_close_matches(key, known, n=1)
            advice = f" Did you mean '{near[0]}'?" if near else ""
            raise UsageError(f"{where}: unknown key '{key}'.{advice} Known keys: {', '.join(known)}.")


_Choice = TypeVar("_Choice", Strategy, Copy, BatchNorm)


def _choice(kind: type[_Choice], data: Mapping[str, object], key: str, default: _Choice, path: Path) -> _Choice:
    value = data.get(key, default)
    known = [str(member) for member in kind]
    if isinstance(value, str) and value in known:
        return kind(value)
    found = f"'{value}'" if isinstance(value, str) else _toml_type(value)
    raise UsageError(f"{path}: '{key}' must be one of {', '.join(known)}, found {found}.")


def _toml_type(value: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a float", str: "a string", list: "a list", dict: "a table"}
    return names.get(type(value), "a date or time")


def _rule_to_dict(rule: Rule) -> dict[str, str]:
    data = {"verb": str(rule.verb), "selector": rule.text}
    if rule.selector.reads_file:
        data["base_dir"] = rule.base_dir.as_posix()
    return data


def _rule_from_dict(data: object) -> Rule:
    match data:
        case {"verb": str(verb), "selector": str(text), **rest}:
            folder = rest.get("base_dir", ".")
            if isinstance(folder, str):
                return Rule(Verb(verb), parse_selector(text), Path(folder), text)
    raise ValueError("expected rules with 'verb' and 'selector'")


def _phase_from_dict(data: object) -> Phase:
    match data:
        case {"name": str(name), "rules": list(rules), "loss": None | str() as loss}:
            return Phase(name, tuple(map(_rule_from_dict, rules)), loss)
    raise ValueError("expected phases with 'name', 'rules' and 'loss'")
