"""A stand-in for ``graphfreeze.api``, and what it gives."""

import types
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from graphfreeze.checkpoints import Converted
from graphfreeze.cli.program import program
from graphfreeze.comparison import Change, Difference, FrozenElements, ValueChange
from graphfreeze.planning.plan import MetaGraphPlan, Plan, ReadRecord, Strategy, VariablePlan

ROOT = Path(__file__).resolve().parents[2]
WARNING = "'keras_metadata.pb' is left out: load_model would ignore the freeze"
KERNEL = VariablePlan(
    name="dense/kernel",
    path="layers/0/kernel",
    key="layers/0/kernel/.ATTRIBUTES/VARIABLE_VALUE",
    dtype="float32",
    shape=(4, 8),
    kind="weight",
    trainable=True,
    elements=32,
    bytes=128,
    frozen=32,
    strategy=Strategy.STOP,
    reason="the whole variable is frozen",
    reads=(ReadRecord("__inference_f_1", "MatMul/ReadVariableOp", "ReadVariableOp", "full"),),
    optimizer_bytes=(256, 0),
)


def plan_value(command):
    meta = MetaGraphPlan(("serve",), ("serving_default",), (KERNEL,))
    warnings = () if command == "inspect" else (WARNING,)
    return Plan(command, "M", "0" * 64, (meta,), {"rules": []}, warnings)


EQUAL = Difference("A", "A", (), (), FrozenElements(32, 0))
DIFFERENT = Difference(
    "A",
    "B",
    (
        Change("node", "added", "__inference_f_1/dense/MatMul", "MatMul"),
        Change("flag", "changed", "dense/bias", "x -> y"),
    ),
    (ValueChange("dense/kernel", "k", 32, 8, 0.0125),),
    FrozenElements(24, 1, (ValueChange("dense/bias", "", 8, 1, 0.5),)),
    (WARNING,),
)
CONVERTED = Converted(
    checkpoint="C",
    out="N",
    direction="into",
    model="R",
    variables=("dense/kernel", "dense/bias"),
    slots=2,
    dropped=("dense/bias",),
    added=(),
    unchanged=9,
    differing=(("dense/kernel", 4),),
    warnings=(WARNING,),
)


@dataclass(frozen=True)
class Finalized:
    warnings: tuple
    variables: tuple
    out: object


class FakeApi(types.ModuleType):
    """Records the calls; raises ``error`` where it is set."""

    def __init__(self):
        super().__init__("graphfreeze.api")
        self.calls = []
        self.error = None

    def _called(self, name, arguments, options):
        self.calls.append((name, arguments, options))
        if self.error is not None:
            raise self.error

    def inspect(self, *arguments, **options):
        self._called("inspect", arguments, options)
        return plan_value("inspect")

    def plan(self, *arguments, **options):
        self._called("plan", arguments, options)
        return plan_value("plan")

    def rewrite(self, *arguments, **options):
        self._called("rewrite", arguments, options)
        return plan_value("rewrite")

    def finalize(self, model, out, **options):
        self._called("finalize", (model, out), options)
        return Finalized((WARNING,), ("dense/kernel", "dense/bias"), out)

    def diff(self, *arguments, **options):
        self._called("diff", arguments, options)
        return EQUAL if arguments[0] == arguments[1] else DIFFERENT

    def checkpoint(self, *arguments, **options):
        self._called("checkpoint", arguments, options)
        return CONVERTED


def run(*arguments, columns="80"):
    return CliRunner().invoke(program(), arguments, prog_name="graphfreeze", env={"COLUMNS": columns, "NO_COLOR": "1"})


TABLE = """\
variable
  shape   dtype    kind    frozen / total  strategy  reads  writes    Adam bytes
  ------  -------  ------  --------------  --------  -----  ------  ------------
dense/kernel
  (4, 8)  float32  weight         32 / 32  stop          1       0  256 B -> 0 B
  the whole variable is frozen

trainable params: 0 || all params: 32 || trainable%: 0.0000
optimizer bytes with Adam: 256 B -> 0 B (0.0 %)
"""
TOTALS = """\
trainable params: 0 || all params: 32 || trainable%: 0.0000
optimizer bytes with Adam: 256 B -> 0 B (0.0 %)
"""
NO_SELECTION = {
    "freeze": (),
    "train": (),
    "spec": None,
    "strategy": None,
    "copy": None,
    "batch_norm": None,
    "strict": False,
    "enable": False,
    "state": False,
    "add": False,
    "allow_empty": False,
    "lite": False,
    "tags": None,
}
