"""TF1 models: a train op per phase in the graph, made as ``minimize(loss, var_list)`` makes it.

The graph is imported, grown and exported; what was there stays as it was (see ``grown``). Operations that a graph lists
under UPDATE_OPS, as the averages of batch normalisation, run with each step, as ``tf_slim`` lets them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfreeze.errors import GraphfreezeError, NothingToTrainError, UnsupportedModelError, UsageError
from graphfreeze.graph.attrs import ADDED, attr_bytes
from graphfreeze.runtime.loaded import trainable_variables
from graphfreeze.runtime.optimizers import suggestion, tf1_optimizer
from graphfreeze.runtime.steps.grown import Grown, assemble
from graphfreeze.runtime.steps.inputs import DEFAULT, Targets
from graphfreeze.runtime.steps.losses import (
    KNOWN,
    Loss,
    choose_output,
    compute,
    is_probability,
    parse_loss,
    targets_like,
)
from graphfreeze.runtime.steps.names import EVALUATE, PATH, RESTORE, SAVE, SCOPE, only_phase, train_signature
from graphfreeze.savedmodel import Draft
from graphfreeze.savedmodel.protos import MetaGraphDef, SignatureDef

_METHOD = "tensorflow/serving/predict"
_PLACEHOLDERS = frozenset({"Placeholder", "PlaceholderV2", "PlaceholderWithDefault"})


@dataclass(frozen=True, slots=True)
class Goal:
    """The loss in the graph."""

    loss: Any
    metrics: Mapping[str, Any]
    inputs: Mapping[str, Any]
    """Input name -> tensor; targets last."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What one train op trains, and what it makes small."""

    name: str | None
    variables: tuple[Any, ...]
    goal: Goal


Made = tuple[
    Mapping[str, tuple[str, ...]],
    tuple[str, ...],
    Mapping[str, tuple[str, tuple[int | None, ...] | None]],
    int,
]
"""What ``Steps`` says of it: trained, signatures, inputs, bytes of state."""


def grow(
    draft: Draft, *, loss: str, optimizer: str, function: str | None, targets: Targets | None, shared: bool
) -> Made:
    """Puts the steps into the meta graph that can be trained.

    Raises:
        UsageError: an option makes no sense for this model, or several meta graphs could be meant.
        NothingToTrainError: no variable is trainable, or the loss depends on none that is.
        UnsupportedModelError: TensorFlow has no gradient there, or the model's saver cannot take new variables.
    """
    import tensorflow as tf

    make = tf1_optimizer(optimizer)
    wanted = parse_loss(loss)
    meta = _trainable_meta(draft, wanted, function)
    graph = tf.Graph()
    with graph.as_default():
        old_saver = _imported(meta)
        before = list(tf.compat.v1.global_variables())
        records = _records(meta)
        _refuse_taken(meta, [*(train_signature(name) for name, _ in records), EVALUATE, SAVE, RESTORE])
        goal = _goal(graph, meta, wanted, function, targets)
        phases = [
            Phase(name, _variables(graph, name), goal if own is None else _goal(graph, meta, own, function, None))
            for name, own in records
        ]
        steps = _train_ops(phases, make, shared)
        added = [v for v in tf.compat.v1.global_variables() if not any(v is b for b in before)]
        saver, signatures = _signatures(goal, phases, steps)
        exported = tf.compat.v1.train.export_meta_graph(graph=graph, saver_def=saver)
        values = _first_values(draft, graph, old_saver, added)
    _refuse_unsaved(draft, saver, graph)
    assemble(meta, Grown(MetaGraphDef.FromString(exported.SerializeToString()), _protos(signatures), values))
    draft.put |= values
    inputs = {name: (t.dtype.name, _sizes(t)) for name, t in goal.inputs.items()}
    trained = {train_signature(p.name): tuple(v.op.name for v in p.variables) for p in phases}
    return trained, tuple(signatures), inputs, sum(int(v.nbytes) for v in values.values())


def _trainable_meta(draft: Draft, loss: Loss, function: str | None) -> MetaGraphDef:
    metas = list(draft.model.proto.meta_graphs)
    if len(metas) == 1:
        return metas[0]
    fitting: list[MetaGraphDef] = []
    problems: list[str] = []
    for meta in metas:
        tags = ",".join(meta.meta_info_def.tags)
        if not meta.collection_def["trainable_variables"].bytes_list.value:
            problems.append(f"'{tags}' has no trainable variables")
            continue
        try:
            _named_output(meta, loss, function)
            fitting.append(meta)
        except GraphfreezeError as error:
            problems.append(f"'{tags}': {error}")
    train = [m for m in fitting if "train" in m.meta_info_def.tags]
    if len(train or fitting) == 1:
        return (train or fitting)[0]
    if not fitting:
        raise UsageError("No meta graph of the model can be trained so:\n" + "\n".join(f"  {p}" for p in problems))
    shown = ", ".join(f"'{','.join(m.meta_info_def.tags)}'" for m in fitting)
    raise UsageError(f"Several meta graphs could be trained: {shown}. Name a loss or function that one of them has")


def _imported(meta: MetaGraphDef) -> Any:
    import tensorflow as tf

    copy = tf.compat.v1.MetaGraphDef.FromString(meta.SerializeToString())
    return tf.compat.v1.train.import_meta_graph(copy)


def _records(meta: MetaGraphDef) -> list[tuple[str | None, Loss | None]]:
    """Name of each phase and the loss of its own; a nameless one where the graph has none."""
    told = [
        json.loads(node.attr["value"].tensor.string_val[0])
        for node in meta.graph_def.node
        if attr_bytes(node, ADDED) == b"info"
    ]
    found = [(r["name"], r["loss"]) for data in told[:1] for r in data.get("phases", ())]
    if not found:
        return [(only_phase(meta.signature_def), None)]
    return [(name, None if loss is None else parse_loss(loss)) for name, loss in found]


def _variables(graph: Any, phase: str | None) -> tuple[Any, ...]:
    named = phase is not None and f"graphfreeze/{phase}" in graph.get_all_collection_keys()
    variables = tuple(trainable_variables(graph, phase=phase if named else None))
    if not variables:
        raise NothingToTrainError(
            "The graph's collection of trainable variables is empty. Look at what it holds with: graphfreeze inspect "
            "MODEL"
        )
    return variables


def _signature(meta: MetaGraphDef, function: str | None) -> str:
    names = sorted(meta.signature_def)
    if function is not None:
        if function not in names:
            raise UsageError(f"The graph has no signature '{function}'. {suggestion(function, names, 'It has')}")
        return function
    if DEFAULT in names or len(names) == 1:
        return DEFAULT if DEFAULT in names else str(names[0])
    shown = ", ".join(f"'{n}'" for n in names) or "none"
    raise UsageError(f"Nothing says which function to train through. Name one with --function; the model has: {shown}")


def _named_output(meta: MetaGraphDef, loss: Loss, function: str | None) -> str:
    """The tensor that is the loss, or that a named loss works on."""
    if loss.kind is not None:
        name = _signature(meta, function)
        outputs = {key: _Info(info) for key, info in sorted(meta.signature_def[name].outputs.items())}
        return str(outputs[choose_output(loss, outputs, f"Signature '{name}'")].name)
    assert loss.output is not None
    signatures = [function] if function is not None else sorted(meta.signature_def)
    for key in signatures:
        if loss.output in meta.signature_def[_signature(meta, key)].outputs:
            return str(meta.signature_def[key].outputs[loss.output].name)
    wanted = loss.output if ":" in loss.output else f"{loss.output}:0"
    if not any(node.name == wanted.rsplit(":", 1)[0] for node in meta.graph_def.node):
        given = [o for s in meta.signature_def.values() for o in s.outputs]
        hint = suggestion(loss.output, dict.fromkeys([*given, *KNOWN]), "Signatures give out")
        raise UsageError(f"The graph has no output or tensor '{loss.output}' to take as the loss. {hint}")
    return wanted


class _Info:
    """A TensorInfo with the dtype that ``choose_output`` asks for."""

    def __init__(self, info: Any) -> None:
        import tensorflow as tf

        self.name, self.dtype = info.name, tf.as_dtype(info.dtype)


def _goal(graph: Any, meta: MetaGraphDef, loss: Loss, function: str | None, targets: Targets | None) -> Goal:
    import tensorflow as tf

    name = _named_output(meta, loss, function)
    try:
        output = graph.get_tensor_by_name(name)
    except (KeyError, ValueError) as error:
        raise UsageError(f"The graph has no tensor '{name}' to take as the loss: {error}") from error
    if not output.dtype.is_floating:
        raise UsageError(f"Tensor '{name}' is {output.dtype.name}, and a loss is a float")
    updates = tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.UPDATE_OPS)
    inputs = _inputs(meta, [output.op, *(getattr(u, "op", u) for u in updates)])
    if not loss.needs_targets:
        if targets is not None:
            raise UsageError(f"The loss '{loss.output}' is a tensor of the graph and compares nothing with targets")
        with tf.name_scope(SCOPE):
            value, metrics = compute(loss, output, None)
        return Goal(value, metrics, inputs)
    shape, dtype = targets_like(loss, output)
    key = "targets"
    if targets is not None:
        key, shape, dtype = targets.name, list(targets.shape), tf.as_dtype(targets.dtype)
    if key in inputs:
        raise UsageError(
            f"The graph has an input '{key}' of its own. Give the targets another name: --targets NAME:SHAPE:DTYPE"
        )
    logits = loss.from_logits if loss.from_logits is not None else not is_probability(_makers(output.op))
    with tf.name_scope(SCOPE):
        given = tf.compat.v1.placeholder(dtype, shape, name="targets")
        value, metrics = compute(Loss(loss.kind, name, logits), output, given)
    return Goal(value, metrics, {**inputs, key: given})


def _makers(op: Any) -> Any:
    while True:
        yield op.type
        if not op.inputs:
            return
        op = op.inputs[0].op


def _inputs(meta: MetaGraphDef, ops: Sequence[Any]) -> dict[str, Any]:
    """The placeholders that have to be fed, by the names that signatures give them, else by their own."""
    named = {info.name: key for s in meta.signature_def.values() for key, info in s.inputs.items()}
    found: dict[str, Any] = {}
    seen: set[str] = set()
    pending = list(ops)
    while pending:
        op = pending.pop()
        if op.name in seen:
            continue
        seen.add(op.name)
        fed = f"{op.name}:0" in named
        if op.type in _PLACEHOLDERS and (fed or op.type != "PlaceholderWithDefault"):
            found[named.get(f"{op.name}:0", op.name)] = op.outputs[0]
        else:
            pending += [*(t.op for t in op.inputs), *op.control_inputs]
    return dict(sorted(found.items()))


def _train_ops(phases: Sequence[Phase], make: Any, shared: bool) -> dict[str, Any]:
    """Signature -> the train op of its phase."""
    import tensorflow as tf

    tf1 = tf.compat.v1
    updates = tf1.get_collection(tf1.GraphKeys.UPDATE_OPS)
    slots = SCOPE.rstrip("/")
    one = make(slots) if shared else None
    steps: dict[str, Any] = {}
    for phase in phases:
        goal = phase.goal
        scope = SCOPE if phase.name is None else f"{SCOPE}{phase.name}/"
        own = one or make(slots if phase.name is None else f"{slots}/{phase.name}")
        with tf.name_scope(scope):
            try:
                pairs = own.compute_gradients(goal.loss, list(phase.variables))
            except LookupError as error:
                raise UnsupportedModelError(f"TensorFlow has no gradient of the loss: {error}") from error
            if not any(g is not None for g, _ in pairs):
                raise NothingToTrainError(
                    f"The loss '{goal.loss.name}' depends on no trainable variable of the graph. Name another loss"
                )
            # A ref variable is read where it lies: what is given out has to be computed before it changes.
            with tf.control_dependencies([goal.loss, *goal.metrics.values(), *updates]):
                steps[train_signature(phase.name)] = own.apply_gradients(pairs, name="train")
    return steps


def _signatures(
    goal: Goal, phases: Sequence[Phase], steps: Mapping[str, Any]
) -> tuple[Any, dict[str, tuple[dict[str, Any], dict[str, Any]]]]:
    """The saver of everything, and for each signature its inputs and outputs."""
    import tensorflow as tf

    found: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
    with tf.name_scope(SCOPE):
        for phase, (name, step) in zip(phases, steps.items(), strict=True):
            results = {"loss": phase.goal.loss, **phase.goal.metrics}
            with tf.control_dependencies([step]):
                outputs = {
                    key: tf.identity(tensor, name=f"{step.name.split('/')[-1]}/{key}")
                    for key, tensor in results.items()
                }
            found[name] = (dict(phase.goal.inputs), outputs)
        found[EVALUATE] = (dict(goal.inputs), {"loss": goal.loss, **goal.metrics})
        saver = tf.compat.v1.train.Saver(name=f"{SCOPE}save").as_saver_def()
        graph = tf.compat.v1.get_default_graph()
        path = graph.get_tensor_by_name(saver.filename_tensor_name)
        found[SAVE] = ({PATH: path}, {PATH: graph.get_tensor_by_name(saver.save_tensor_name)})
        with tf.control_dependencies([graph.get_operation_by_name(saver.restore_op_name)]):
            found[RESTORE] = ({PATH: path}, {PATH: tf.identity(path, name="restored")})
    return saver, found


def _protos(signatures: Mapping[str, tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, SignatureDef]:
    found: dict[str, SignatureDef] = {}
    for name, (inputs, outputs) in signatures.items():
        found[name] = SignatureDef(method_name=_METHOD)
        for infos, tensors in ((found[name].inputs, inputs), (found[name].outputs, outputs)):
            for key, tensor in tensors.items():
                infos[key].name, infos[key].dtype = tensor.name, tensor.dtype.base_dtype.as_datatype_enum
                infos[key].tensor_shape.ParseFromString(tensor.shape.as_proto().SerializeToString())
    return found


def _first_values(draft: Draft, graph: Any, old_saver: Any, added: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Checkpoint key -> first value of each new variable; parts of a partitioned one are put together."""
    import tensorflow as tf

    initialise = tf.compat.v1.variables_initializer(list(added))
    with tf.compat.v1.Session(graph=graph) as session:
        if old_saver is not None and draft.model.bundle is not None:
            old_saver.restore(session, str(draft.model.bundle.prefix))
        session.run(initialise)
        values = session.run({v.op.name: v for v in added}) if added else {}
    found: dict[str, NDArray[Any]] = {}
    for variable in added:
        value, part = np.asarray(values[variable.op.name]), variable._get_save_slice_info()
        if part is None:
            found[variable.op.name] = value
            continue
        whole = found.setdefault(part.full_name, np.zeros(part.full_shape, value.dtype))
        whole[tuple(slice(o, o + n) for o, n in zip(part.var_offset, part.var_shape, strict=True))] = value
    return found


def _refuse_unsaved(draft: Draft, saver: Any, graph: Any) -> None:
    """Refuses a model whose own saver restores something that the graph's collections do not list."""
    stored = draft.keys()
    names: set[str] = set()
    for op in graph.get_operations():
        if op.type == "SaveV2" and op.name.startswith(SCOPE):
            value = op.inputs[1].op.get_attr("value")
            names |= {text.decode() for text in value.string_val}
    missing = sorted(stored - names)
    if missing:
        raise UnsupportedModelError(
            f"The checkpoint holds '{missing[0]}', which is in none of the graph's collections of variables, so the "
            "new saver would not restore it. Save the model again from a graph that lists its variables"
        )


def _refuse_taken(meta: MetaGraphDef, names: Collection[str]) -> None:
    if any(node.name.startswith(SCOPE) for node in meta.graph_def.node):
        raise UsageError(
            "The model carries training steps already. Take them off with graphfreeze finalize, or start from the "
            "model that they were added to"
        )
    own = [n for n in meta.signature_def if n in names]
    if own:
        raise UsageError(
            f"The model has a signature '{own[0]}' of its own, and its training steps would take that name. Save it "
            "again without that signature first"
        )


def _sizes(tensor: Any) -> tuple[int | None, ...] | None:
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())
