"""Compares two function libraries: functions are matched from where they are called, whatever they are called."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from graphfreeze.comparison.difference import Change
from graphfreeze.comparison.normal import NormalFunction, Normaliser, NormalNode, stem
from graphfreeze.savedmodel.protos import Message

_MOST_NAMED = 3


class Functions:
    """The libraries of two meta graphs. ``pair`` says that two functions stand in the same place."""

    def __init__(self, a: Message, b: Message) -> None:
        self.a, self.b = _Library(a), _Library(b)
        self.matched: dict[tuple[str, str], None] = {}
        self.pending: deque[tuple[str, str]] = deque()
        self.skipped: tuple[set[str], set[str]] = (set(), set())

    def pair(self, a: str, b: str) -> None:
        """Two functions that must be the same."""
        if (a, b) not in self.matched and a in self.a.library and b in self.b.library:
            self.matched[a, b] = None
            self.pending.append((a, b))

    def skip(self, a: str | None, b: str | None) -> None:
        """Functions that are compared elsewhere: the saver's."""
        self.skipped[0].update([a] if a else [])
        self.skipped[1].update([b] if b else [])

    def nodes(self, place: str, a: NormalNode, b: NormalNode) -> Iterator[Change]:
        """Compares two nodes of one name, and matches what they call."""
        for one, other in zip(a.callees, b.callees, strict=False):
            self.pair(one, other)
        if details := list(_node_differences(a, b)):
            yield Change("node", "changed", place, "; ".join(details))

    def differences(self) -> Iterator[Change]:
        """Compares all that was matched, all that these call, and the rest by name and content."""
        yield from self._compare_pending()
        for one, other in self._leftovers():
            self.pair(one, other)
        yield from self._compare_pending()
        known = {a for a, _ in self.matched} | self.skipped[0], {b for _, b in self.matched} | self.skipped[1]
        yield from (Change("function", "removed", n) for n in self.a.library if n not in known[0])
        yield from (Change("function", "added", n) for n in self.b.library if n not in known[1])

    def _compare_pending(self) -> Iterator[Change]:
        while self.pending:
            a, b = self.pending.popleft()
            yield from self._compare(a, b)

    def _compare(self, a: str, b: str) -> Iterator[Change]:
        one, other = self.a.normal(a), self.b.normal(b)
        name = a if a == b else f"{a} -> {b}"
        details = list(_function_differences(one, other))
        inside = list(self._compare_nodes(a, one, other))
        if inside:
            details.append(f"{len(inside)} {'node' if len(inside) == 1 else 'nodes'}")
        if details:
            yield Change("function", "changed", name, "; ".join(details))
        yield from inside

    def _compare_nodes(self, place: str, a: NormalFunction, b: NormalFunction) -> Iterator[Change]:
        for name, node in a.nodes.items():
            if name not in b.nodes:
                yield Change("node", "removed", f"{place}/{name}", node.op)
            else:
                yield from self.nodes(f"{place}/{name}", node, b.nodes[name])
        for name, node in b.nodes.items():
            if name not in a.nodes:
                yield Change("node", "added", f"{place}/{name}", node.op)

    def _leftovers(self) -> Iterator[tuple[str, str]]:
        """Functions that nothing matched calls: first those of equal content, then those of one name but its count."""
        left_a = [n for n in self.a.library if n not in {a for a, _ in self.matched} | self.skipped[0]]
        left_b = [n for n in self.b.library if n not in {b for _, b in self.matched} | self.skipped[1]]
        contents = {n: self.b.normal(n) for n in left_b}
        for name in list(left_a):
            normal = self.a.normal(name)
            same = [n for n in left_b if stem(n) == stem(name) and contents[n] == normal]
            if same:
                left_a.remove(name)
                left_b.remove(same[0])
                yield name, same[0]
        for name in left_a:
            same = [n for n in left_b if stem(n) == stem(name)]
            if same:
                left_b.remove(same[0])
                yield name, same[0]


class _Library:
    def __init__(self, graph: Message) -> None:
        self.library = {f.signature.name: f for f in graph.library.function}
        gradients = {g.registered_op_type: g.gradient_func for g in graph.library.registered_gradients}
        self.normaliser = Normaliser(self.library, gradients)
        self.known: dict[str, NormalFunction] = {}

    def normal(self, name: str) -> NormalFunction:
        if name not in self.known:
            self.known[name] = self.normaliser.function(self.library[name])
        return self.known[name]


def _function_differences(a: NormalFunction, b: NormalFunction) -> Iterator[str]:
    if a.arguments != b.arguments:
        yield f"arguments {_short([n for n, _ in a.arguments], [n for n, _ in b.arguments])}"
    if a.results != b.results:
        yield f"results {_short([r[0] for r in a.results], [r[0] for r in b.results])}"
    for key in sorted(a.rest.keys() | b.rest.keys()):
        if a.rest.get(key) != b.rest.get(key):
            yield key


def _node_differences(a: NormalNode, b: NormalNode) -> Iterator[str]:
    if a.op != b.op:
        yield f"op {a.op} -> {b.op}"
    if a.inputs != b.inputs:
        yield f"inputs {_short(a.inputs, b.inputs)}"
    if a.device != b.device:
        yield f"device '{a.device}' -> '{b.device}'"
    names = [k for k in sorted(a.attributes.keys() | b.attributes.keys()) if a.attributes.get(k) != b.attributes.get(k)]
    if names:
        yield f"attributes {', '.join(names)}"
    if len(a.callees) != len(b.callees):
        yield f"{len(a.callees)} -> {len(b.callees)} functions"


def _short(a: object, b: object) -> str:
    """Two lists where they differ."""
    first, second = list(a), list(b)  # type: ignore[call-overload]
    gone = [x for x in first if x not in second][:_MOST_NAMED]
    new = [x for x in second if x not in first][:_MOST_NAMED]
    if not gone and not new:
        return f"in another order or number ({len(first)} -> {len(second)})"
    return f"{', '.join(map(str, gone)) or '-'} -> {', '.join(map(str, new)) or '-'}"
