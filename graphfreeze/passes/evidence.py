"""Reads off a rewritten model what must hold of it, by its source and by what it says was done.

``info`` counts more than the facts on merges here: a merge whose geometry was changed must not pass for another freeze.
What can be seen in the messages (flags, lists, keys) is compared at once; the rest is for whoever runs the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from graphfreeze.errors import UnsupportedModelError, VerificationError
from graphfreeze.graph.entries import Entry, entries, reached_bodies, uses_by_variable, written_variables
from graphfreeze.graph.examples import Examples, Features
from graphfreeze.graph.ranges import integer_bounds
from graphfreeze.graph.trace import trace_meta_graph
from graphfreeze.graph.uses import Trace
from graphfreeze.graph.variables import Variable, is_float
from graphfreeze.lowering.facts import Fact
from graphfreeze.lowering.holding import SLOT, Callable, Evidence, Holding, Other, Problem, StoredRegion
from graphfreeze.passes.batch_norm import functions_with_stored
from graphfreeze.passes.found import Frozen, Marks
from graphfreeze.passes.info import INFO
from graphfreeze.passes.inside import still_slots
from graphfreeze.passes.marks import as_told, read_marks
from graphfreeze.passes.phases import PHASES
from graphfreeze.passes.undo_phases import phase_names
from graphfreeze.passes.unmasked import Traced, unmasked_gradients
from graphfreeze.passes.variables import CHILD
from graphfreeze.passes.words import words_of
from graphfreeze.savedmodel import Draft, NodePath, children, node_paths, slot_variables, variable_keys
from graphfreeze.savedmodel.protos import Message, MetaGraphDef
from graphfreeze.selection import Strategy

_LISTS = ("trainable_variables", "variables", "non_trainable_variables")
UNKNOWN = "variables"
"""The check that finds every frozen variable in the source."""
INFERENCE = "not compared: with --batch-norm inference it uses the stored statistics, the source those of the batch"


def gather_evidence(
    rewritten: Draft, meta: MetaGraphDef, plain: Draft, plain_meta: MetaGraphDef, phase: str = ""
) -> Evidence:
    """What must hold of ``meta``, which ``rewritten`` holds, beside the plain meta graph that it is compared with.

    With ``phase``, of the functions of that phase.

    Raises:
        UnsupportedModelError: it is a TF1 graph, or the marks of the freeze are damaged or those of a newer version.
        VerificationError: a variable that holds a part of another has the wrong shape.
    """
    trace = trace_meta_graph(rewritten, meta)
    if not trace.is_tf2:
        raise UnsupportedModelError(
            f"The meta graph with tags {list(meta.meta_info_def.tags)} is a TF1 graph, which trains in a Session; "
            "verify trains through functions. Compare its frozen elements with the source's: graphfreeze diff SOURCE "
            "REWRITTEN"
        )
    held = _Side(rewritten, meta, trace)
    source = _Side(plain, plain_meta, trace_meta_graph(plain, plain_meta))
    return _Gatherer(held, source, read_marks(rewritten, meta, trace), phase).gather()


class _Side:
    """One of the two models, and where its variables are."""

    def __init__(self, draft: Draft, meta: MetaGraphDef, trace: Trace) -> None:
        self.draft, self.meta, self.trace = draft, meta, trace
        self.places = _places(meta.object_graph_def)
        graph = draft.bundle_graph
        self.key_of = {} if graph is None else variable_keys(meta.object_graph_def, graph)
        self.by_path = {v.path: v for v in trace.variables}
        counts = Counter(v.name for v in trace.variables)
        self.by_name = {v.name: v for v in trace.variables if counts[v.name] == 1}

    def like(self, variable: Variable) -> Variable | None:
        """The variable that another model calls so: by path, where the name agrees, else by name."""
        found = self.by_path.get(variable.path)
        return found if found is not None and found.name == variable.name else self.by_name.get(variable.name)

    def place(self, variable: Variable) -> tuple[str, ...]:
        return self.places.get(variable.node_id or 0, ())

    def keys(self, variable: Variable) -> tuple[str, ...]:
        nodes = (variable.node_id, *variable.copies)
        return tuple(dict.fromkeys(self.key_of[n] for n in nodes if n in self.key_of))


@dataclass(frozen=True, slots=True)
class _Told:
    """One frozen variable as the rewritten model tells of it."""

    frozen: Frozen
    fact: Fact
    source: Variable


class _Gatherer:
    def __init__(self, held: _Side, source: _Side, marks: Marks, phase: str) -> None:
        self.held, self.source, self.marks, self.phase = held, source, marks, phase
        self.trained_in: str | None = phase or next(iter(phase_names(marks)), None)
        """By the choice of which phase functions train; those outside of phases go by the first."""
        self.told: dict[int, _Told] = {}
        """By the variable's number in the plain model."""
        self.problems: list[Problem] = []
        self.stored = functions_with_stored(held.meta)
        for frozen in marks.frozen:
            variable = held.trace.variables[frozen.variable]
            like = source.like(variable)
            if like is None:
                self.problems.append(Problem(UNKNOWN, variable.name, "is frozen, but the source has none like it"))
                continue
            fact = as_told(held.draft, held.trace, frozen)
            if fact.held != frozen.fact.held or fact.strategy != frozen.fact.strategy:
                self.problems.append(
                    Problem("geometry", variable.name, "a merge freezes other elements than the model's 'info' says")
                )
            self.told[like.index] = _Told(frozen, fact, like)
        enabled = (source.like(held.trace.variables[v]) for v in marks.enabled)
        self.enabled = {v.index for v in enabled if v is not None}
        self.enabled |= {v for v, t in self.told.items() if t.fact.enabled}

    def gather(self) -> Evidence:
        trains = self._trains(self.trained_in)
        if self.phase:
            self._check_phase(trains)
        else:
            ever = self._trains(None)
            self._check_flags(ever)
            self._check_info(trains)
            self._check_lists(ever)
            self._check_keys()
            self._check_norms()
        return Evidence(
            tags=tuple(self.held.meta.meta_info_def.tags),
            holdings=tuple(self._holding(t) for t in self.told.values() if not self._is_free(t)),
            others=tuple(self._others()),
            trains=tuple(self.held.place(v) for v in trains),
            listed=len(self.marks.holders) == 1,
            callables=tuple(self._callables()),
            problems=tuple(self.problems),
            saved_again=self.marks.saved_again,
            sources=tuple(str(h.info["source"]) for h in self.marks.holders),
            examples=dict(self._fed()),
            phase=self.phase,
            words=words_of(self.source.meta, self.source.draft.model.directory / "assets"),
        )

    def _holding(self, told: _Told) -> Holding:
        base, fact = self.held.trace.variables[told.frozen.variable], told.fact
        self._check_shape(told, base, fact.shape)
        return Holding(
            name=base.name,
            path=told.source.path,
            strategy=fact.strategy or "",
            frozen=fact.frozen(self.trained_in),
            base_trains=fact.strategy == Strategy.MASK,
            place=self.held.place(base),
            keys=self.held.keys(base),
            source_place=self.source.place(told.source),
            source_keys=self.source.keys(told.source),
            stored=tuple(self._stored(told)),
            always=fact.frozen() if fact.varies else None,
            by_guards=self.source.trace.kind(told.source) != "weight" and not fact.enabled,
        )

    def _stored(self, told: _Told) -> Iterator[StoredRegion]:
        for held in told.fact.held:
            if held.role is not None:
                variable = self.held.trace.variables[told.frozen.storages[held.role]]
                self._check_shape(told, variable, held.region.storage_shape)
                keys, place = self.held.keys(variable), self.held.place(variable)
                trains = told.fact.trains(held, self.trained_in)
                yield StoredRegion(variable.name, place, keys, held.region, trains)

    def _check_shape(self, told: _Told, variable: Variable, wanted: tuple[int, ...]) -> None:
        if variable.shape is not None and variable.shape != wanted:
            raise VerificationError(
                f"Variable '{variable.name}' should hold a part of '{told.source.name}' and have shape {list(wanted)}, "
                f"found {list(variable.shape)}. The result was changed since the rewrite"
            )

    def _is_free(self, told: _Told) -> bool:
        """Whether the phase trains the whole of a variable that others hold."""
        return self.trained_in is not None and self.trained_in in told.fact.phases

    def _trains(self, phase: str | None) -> list[Variable]:
        """What trains, as the source and the facts say: in the source's order, a part in its variable's place.

        Without a phase, what any of them trains.
        """
        found: list[Variable] = []
        for variable in self.source.trace.variables:
            told = self.told.get(variable.index)
            whole = told is not None and bool(told.fact.phases) and (phase is None or phase in told.fact.phases)
            if told is not None and told.fact.strategy != Strategy.MASK and not whole:
                held = (h for h in told.fact.held if h.trainable and (phase is None or told.fact.trains(h, phase)))
                roles = [h.role for h in held if h.role is not None]
                found += [self.held.trace.variables[told.frozen.storages[r]] for r in roles]
            elif variable.index in self.enabled or self.source.trace.kind(variable) == "weight":
                like = self.held.like(variable)
                if like is not None:
                    found.append(like)
        return found

    def _others(self) -> Iterator[Other]:
        for variable in self.source.trace.variables:
            told = self.told.get(variable.index)
            if (told is not None and not self._is_free(told)) or not is_float(variable.dtype):
                continue
            like = self.held.like(variable)
            if like is not None and (variable.trainable or variable.index in self.enabled):
                places = self.held.place(like), self.source.place(variable)
                yield Other(variable.name, variable.path, variable.elements, *places)

    def _callables(self) -> Iterator[Callable]:
        bounds = integer_bounds(self.source.meta, self.source.trace)
        examples = Examples(self.source.meta)
        held = self._entries()
        frozen = {v: t.fact.frozen(self.trained_in) for v, t in self.told.items()}
        seen: set[tuple[str, str]] = set()
        for entry in entries(self.source.meta):
            if entry.label not in held:
                if self.phase:
                    continue
                self.problems.append(
                    Problem("functions", entry.label, "the source has it, the rewritten model does not")
                )
                continue
            other = held[entry.label]
            if (entry.function, other.function) in seen:
                continue
            seen.add((entry.function, other.function))
            uses = uses_by_variable(self.source.trace, entry.function)
            written = [self.source.trace.variables[v] for v in written_variables(self.source.trace, entry.function)]
            pairs = ((v, self.held.like(v)) for v in written)
            still = still_slots(self.source.meta, self.source.trace, entry.function, frozen) if written else set()
            yield Callable(
                label=f"{self.phase}: {entry.label}" if self.phase else entry.label,
                place=other.place,
                number=entry.number,
                source_place=entry.place,
                is_signature=entry.is_signature,
                bounds=bounds.get(entry.function, ()),
                examples=examples.of_function(entry.function, len(bounds.get(entry.function, ()))),
                uses={self.source.trace.variables[v].path: n for v, n in uses.items()},
                writes=tuple((self.source.place(v), p) for v, w in pairs if w is not None for p in self._places(v, w)),
                still=frozenset(self.source.place(self.source.trace.variables[v]) for v in still),
                apart=INFERENCE if self._infers(other.function) else "",
            )

    def _entries(self) -> dict[str, Entry]:
        """What can be called of the rewritten model, by what it is called in the source."""
        if not self.phase:
            return {e.label: e for e in entries(self.held.meta, {CHILD})}
        found: dict[str, Entry] = {}
        above, end = (CHILD, PHASES, self.phase), f"@{self.phase}"
        for entry in entries(self.held.meta):
            if entry.is_signature and entry.label.endswith(end):
                found[entry.label.removesuffix(end)] = entry
            elif entry.place[: len(above)] == above and entry.place[len(above) :] != (INFO,):
                found[entry.label.removeprefix("/".join(above) + "/")] = entry
        return found

    def _infers(self, function: str) -> bool:
        """Whether a function of the rewritten model reaches a batch norm with stored statistics."""
        return any(body.key.function in self.stored for body in reached_bodies(self.held.trace, function))

    def _fed(self) -> Iterator[tuple[str, Features]]:
        examples = Examples(self.source.meta)
        for signature in self.source.meta.signature_def.values():
            for info in signature.inputs.values():
                features = examples.of_tensor(info.name)
                if features is not None:
                    yield info.name, features

    def _places(self, variable: Variable, like: Variable) -> Iterator[tuple[str, ...]]:
        """Where a variable of the source lies now, with the storages of its parts."""
        if not self.held.place(like) or not self.source.place(variable):
            return
        yield self.held.place(like)
        if variable.index in self.told:
            yield from (s.place for s in self._stored(self.told[variable.index]))

    # What the messages say

    def _check_flags(self, trains: list[Variable]) -> None:
        graph = self.held.meta.object_graph_def
        wanted = {v.index: False for v in self.held.trace.variables if v.index in self.marks.ours}
        for variable in self.source.trace.variables:
            like = self.held.like(variable)
            told = self.told.get(variable.index)
            if told is not None:
                wanted[told.frozen.variable] = told.fact.strategy == Strategy.MASK or bool(told.fact.phases)
            elif like is not None and like.index not in self.marks.ours:
                wanted[like.index] = variable.trainable or variable.index in self.enabled
        wanted |= {v.index: True for v in trains}
        for variable in self.held.trace.variables:
            for node in (variable.node_id, *variable.copies):
                if node is None or variable.index not in wanted:
                    continue
                if graph.nodes[node].variable.trainable != wanted[variable.index]:
                    words = ("is marked trainable and must not be", "must be marked trainable and is not")
                    self.problems.append(Problem("flags", variable.name, words[wanted[variable.index]]))

    def _check_info(self, trains: list[Variable]) -> None:
        """The list that an optimizer gets."""
        concrete = self.held.meta.object_graph_def.concrete_functions
        for holder in self.marks.holders if len(self.marks.holders) == 1 else ():
            self._check_captures(holder.function, list(concrete[holder.function].bound_inputs), trains)

    def _check_phase(self, trains: list[Variable]) -> None:
        """The list that an optimizer gets for a phase."""
        graph = self.held.meta.object_graph_def
        for holder in self.marks.holders if len(self.marks.holders) == 1 else ():
            number: int | None = holder.node
            for name in (PHASES, self.phase, INFO):
                number = None if number is None else children(graph, number).get(name)
            names = [] if number is None else list(graph.nodes[number].function.concrete_functions)
            found = list(graph.concrete_functions[names[0]].bound_inputs) if names else []
            self._check_captures(f"{PHASES}/{self.phase}/{INFO}", found, trains)

    def _check_captures(self, where: str, found: list[int], trains: list[Variable]) -> None:
        if found != [v.node_id for v in trains]:
            names = ", ".join(f"'{self._name(n)}'" for n in found)
            wanted = ", ".join(f"'{v.name}'" for v in trains)
            self.problems.append(Problem("info", where, f"lists [{names}], and [{wanted}] train"))

    def _check_lists(self, trains: list[Variable]) -> None:
        """The root's lists of variables, by which hub.KerasLayer goes."""
        before = {title: self._listed(self.source, title) for title in _LISTS}
        after = {title: self._listed(self.held, title) for title in _LISTS}
        training = [v.name for v in trains]
        stored = {i: [s.name for s in self._stored(t)] for i, t in self.told.items()}
        masks = {
            i: [self.held.trace.variables[v].name for v in t.frozen.storages.values()] for i, t in self.told.items()
        }
        known = [v for v in self.source.trace.variables if v.name in (before["variables"] or ())]
        joined = {n for v in known for n in (*stored.get(v.index, ()), *masks.get(v.index, ()))}
        on = {n for v in known if v.index in self.enabled for n in (v.name, *stored.get(v.index, ())) if n in training}
        bases = {self.source.trace.variables[i].name for i in self.told} - set(training)
        first = before["trainable_variables"] or []
        owners = {n: self.source.trace.variables[i].name for i, names in stored.items() for n in names}
        wanted = {
            "trainable_variables": {t for t in training if owners.get(t, t) in first} | on,
            "variables": set(before["variables"] or ()) | joined,
            "non_trainable_variables": (set(before["non_trainable_variables"] or ()) - on)
            | (bases & set(first))
            | (joined - set(training)),
        }
        for title in _LISTS:
            found = after[title]
            if before[title] is not None and (found is None or set(found) != wanted[title]):
                names = sorted(set(found or ()) ^ wanted[title])
                self.problems.append(Problem("lists", title, f"is wrong about {', '.join(map(repr, names))}"))

    def _listed(self, side: _Side, title: str) -> list[str] | None:
        graph = side.meta.object_graph_def
        found = children(graph, 0).get(title)
        if found is None or graph.nodes[found].WhichOneof("kind") != "user_object":
            return None
        nodes = [c.node_id for c in graph.nodes[found].children]
        if not all(graph.nodes[n].WhichOneof("kind") == "variable" for n in nodes):
            return None
        return [graph.nodes[n].variable.name.removesuffix(":0") for n in nodes]

    def _check_keys(self) -> None:
        """Saving again counts keys anew; until then all of the source's are kept."""
        if not self.marks.saved_again:
            for key in sorted(self.source.draft.keys() - self.held.draft.keys()):
                self.problems.append(
                    Problem("keys", key, "the source's checkpoint has this key, the rewritten one not")
                )

    def _check_norms(self) -> None:
        """Norms of gradients, where functions train."""
        held = {e.label: e.function for e in entries(self.held.meta, {CHILD})}
        pairs = {(e.function, held[e.label]) for e in entries(self.source.meta) if e.label in held}
        source, after = (Traced(side.meta, side.trace) for side in (self.source, self.held))
        told = {index: t for index, t in self.told.items() if not self._is_free(t)}
        self.problems += unmasked_gradients(source, after, told, sorted(pairs))

    def _name(self, node: int) -> str:
        nodes = self.held.meta.object_graph_def.nodes
        return str(nodes[node].variable.name).removesuffix(":0") if node < len(nodes) else f"#{node}"


def _places(graph: Message) -> dict[int, NodePath]:
    """Where every object lies: child names from the root; a slot that has no parent lies where its key says."""
    found = node_paths(graph)
    slots = (s for s in slot_variables(graph) if s.slot not in found)
    return found | {
        s.slot: (*found[s.optimizer], SLOT, s.slot_name, *found[s.variable])
        for s in slots
        if s.optimizer in found and s.variable in found
    }
