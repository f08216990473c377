"""The cost of a training step of a rewritten model beside the unfrozen model and the textbook recipe.

All variants of a case are SavedModels, loaded with `tf.saved_model.load` and trained in one process by the same traced
step: forward, gradient, Adam. Rounds are interleaved, and a ratio is the median over the rounds of this variant's time
by its peer's in the same round, so that a busy machine slows both sides.

    python benchmarks/train_step.py [--json FILE] [--case NAME ...] [--quick]

* `embedding`: a table of which the last 100 rows train, against the textbook recipe `m*xp + (1-m)*x`
* `dense`: one large layer with 90 % of its columns frozen
* `shares`: `stop` and `split` with 0 to 100 % frozen; a step must cost less the more is frozen
* `fixtures`: the same on the small models of the test suite, where a step is mostly overhead
* `phases`: eight dense layers, of which a phase trains the head
* `masks`: `mask` for points, for scattered elements under 1 %, and for half of all elements
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import tensorflow as tf

import graphfreeze
from benchmarks.common import Rounds, interleave, print_table, ratio, spread, write_json
from benchmarks.models import Conv, Dense, Embedding, save
from benchmarks.steps import Step

UNFROZEN, TEXTBOOK = "unfrozen", "textbook"
ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ("mlp", "embedding", "tied", "layer_norm_transformer", "keras_conv", "keras_gru", "loop", "digits")
SHARES = (25, 50, 75, 100)


@dataclass(frozen=True, slots=True)
class Size:
    """How large the models are and how long is measured."""

    rows: int = 50_000
    columns: int = 256
    trainable_rows: int = 100
    ids: int = 1024
    dense: int = 2048
    batch: int = 64
    mlp: tuple[int, ...] = (784, 1024, 1024, 1024, 10)
    deep: tuple[int, ...] = (1024,) * 9
    image: int = 32
    channels: tuple[int, ...] = (3, 64, 128, 128)
    images: int = 32
    fixtures: tuple[str, ...] = FIXTURES
    rounds: int = 15
    slice_seconds: float = 0.25
    """About how long each variant runs per round."""


QUICK = Size(
    rows=60, columns=4, trainable_rows=10, ids=16, dense=40, batch=4, mlp=(12, 8, 8, 4), deep=(8,) * 4, image=8,
    channels=(1, 4, 4), images=2, fixtures=("mlp",), rounds=2, slice_seconds=0.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """Variants of one model that are timed together."""

    name: str
    models: dict[str, Path]
    """SavedModel by variant; the first is what the others are compared with."""
    loss: Callable[[Any], tf.Tensor]
    """The loss of a loaded model on a fixed batch."""
    peers: tuple[str, ...] = (UNFROZEN,)
    limits: dict[str, float] = field(default_factory=dict)
    """By variant, the largest ratio to the first peer that is aimed at."""
    phases: dict[str, str] = field(default_factory=dict)
    """By variant, the phase that is trained."""


def on_batch(*batch: Any) -> Callable[[Any], tf.Tensor]:
    """Mean square of what `call` returns for the batch."""
    inputs = [tf.constant(x) for x in batch]
    return lambda loaded: tf.reduce_mean(tf.square(loaded.call(*inputs)))


class Bench:
    """Makes the cases under a scratch folder."""

    def __init__(self, scratch: Path, size: Size) -> None:
        self.scratch, self.size = scratch, size
        self._generator = np.random.default_rng(3)
        self._made = 0

    def embedding(self) -> Iterable[Case]:
        """Rows of a table."""
        size = self.size
        frozen = size.rows - size.trainable_rows
        held = np.arange(size.rows)[:, None] < frozen
        source = self.saved(Embedding(size.rows, size.columns))
        selector = f"embeddings[:{frozen}]"
        models = {
            UNFROZEN: source,
            TEXTBOOK: self.saved(Embedding(size.rows, size.columns, {"embeddings": held})),
            "split": self.frozen(source, selector, strategy="split"),
            "mask": self.frozen(source, selector, strategy="mask"),
        }
        ids = self._ids()
        ids[: len(ids) // 8] = self._generator.integers(frozen, size.rows, len(ids) // 8)
        name = f"embedding {size.rows} x {size.columns}, {size.trainable_rows} rows train"
        yield Case(name, models, on_batch(ids), (TEXTBOOK, UNFROZEN), {"split": 1 / 30})

    def dense(self) -> Iterable[Case]:
        """Columns of one layer."""
        width = self.size.dense
        frozen = round(0.9 * width)
        held = np.arange(width)[None, :] < frozen
        source = self.saved(Dense([width, width]))
        selectors = (f"kernel_0[:, :{frozen}]", f"bias_0[:{frozen}]")
        models = {
            UNFROZEN: source,
            TEXTBOOK: self.saved(Dense([width, width], {"kernel_0": held, "bias_0": held[0]})),
            "split": self.frozen(source, *selectors, strategy="split"),
            "mask": self.frozen(source, *selectors, strategy="mask"),
        }
        name = f"dense {width} x {width}, 90 % of the columns frozen"
        yield Case(name, models, on_batch(self._floats(self.size.batch, width)), (UNFROZEN, TEXTBOOK), {"split": 1.0})

    def phases(self) -> Iterable[Case]:
        """The head of a deep model, then all of it."""
        source, target = self.saved(Dense(self.size.deep)), self._folder()
        last = len(self.size.deep) - 2
        spec = self._folder().with_suffix(".toml")
        spec.write_text(
            f'[[phase]]\nname = "head"\nfreeze = "**"\ntrain = ["kernel_{last}", "bias_{last}"]\n'
            '[[phase]]\nname = "all"\n'
        )
        graphfreeze.rewrite(source, target, spec=spec)
        batch = self._floats(self.size.batch, self.size.deep[0])
        models = {UNFROZEN: source, "phase head": target, "phase all": target}
        named = {"phase head": "head", "phase all": "all"}
        limits = {"phase head": 0.35, "phase all": 1.0}
        yield Case(
            f"{last + 1} dense layers of {self.size.deep[0]}", models, on_batch(batch), (UNFROZEN,), limits, named
        )

    def shares(self) -> Iterable[Case]:
        """More and more frozen, on models whose steps are real work."""
        size = self.size
        mlp, conv = self.saved(Dense(size.mlp)), self.saved(Conv(size.image, size.channels))
        table = self.saved(Embedding(size.rows, size.columns))
        inputs = {
            "mlp": (mlp, self._floats(size.batch, size.mlp[0])),
            "conv": (conv, self._floats(size.images, size.image, size.image, size.channels[0])),
            "embedding": (table, self._ids()),
        }
        for name, (source, batch) in inputs.items():
            yield from self._shares(name, source, on_batch(batch))

    def fixtures(self) -> Iterable[Case]:
        """More and more frozen, on the models of the tests."""
        from tests.helpers import models as known

        for name in self.size.fixtures:
            training = known.FIXTURES[name].training()
            batch = training.batch(0)
            source = ROOT / "fixtures" / "models" / name
            yield from self._shares(f"fixture {name}", source, lambda m, t=training, b=batch: t.loss(m, b))

    def masks(self) -> Iterable[Case]:
        """Scattered elements."""
        size = self.size
        wide, table = self.saved(Dense([size.dense] * 2)), self.saved(Embedding(size.rows, size.columns))
        conv = self.saved(Conv(size.image, size.channels))
        last = len(size.channels) - 2
        for name, source, variable, batch in (
            ("dense", wide, "kernel_0", self._floats(size.batch, size.dense)),
            ("embedding", table, "embeddings", self._ids()),
            ("conv", conv, f"conv_{last}", self._floats(size.images, size.image, size.image, size.channels[0])),
        ):
            models = {UNFROZEN: source}
            for label, share in (("points 0.5 %", 0.005), ("scattered 0.9 %", 0.009), ("scattered 50 %", 0.5)):
                models[label] = self.frozen(source, self._mask(source, variable, share), strategy="mask")
            models["points 0.5 %, live"] = self.frozen(
                source, self._mask(source, variable, 0.005), strategy="mask", copy="live"
            )
            limits = {"points 0.5 %": 1.05, "points 0.5 %, live": 1.05, "scattered 0.9 %": 1.05}
            yield Case(f"mask, {name} '{variable}'", models, on_batch(batch), limits=limits)

    def _shares(self, name: str, source: Path, loss: Callable[[Any], tf.Tensor]) -> Iterable[Case]:
        for strategy in ("stop", "split"):
            models = {UNFROZEN: source}
            for share in SHARES:
                selectors = whole(source, share) if strategy == "stop" or share == 100 else slices(source, share)
                if selectors:
                    target = self._folder()
                    chosen = "auto" if share == 100 else strategy
                    plan = graphfreeze.rewrite(source, target, freeze=selectors, strategy=chosen, allow_empty=True)
                    # As frozen in fact: whole variables and whole columns seldom hit a share exactly.
                    models[f"{frozen_share(plan):.0%}"] = target
            if len(models) > 1:
                yield Case(f"{strategy}, {name}", models, loss, limits=dict.fromkeys(list(models)[1:], 1.0))

    def saved(self, model: Any) -> Path:
        """Writes a model."""
        return save(model, self._folder())

    def frozen(self, source: Path, *selectors: str, **options: Any) -> Path:
        """Rewrites a model."""
        target = self._folder()
        graphfreeze.rewrite(source, target, freeze=selectors, allow_empty=True, **options)
        return target

    def _folder(self) -> Path:
        self._made += 1
        return self.scratch / str(self._made)

    def _mask(self, source: Path, variable: str, share: float) -> str:
        shape = next(v.shape for v in graphfreeze.inspect(source).meta_graphs[0].variables if v.name == variable)
        assert shape is not None
        path = self._folder().with_suffix(".npy")
        flags = self._generator.random(shape) < share
        flags.flat[0] = True
        np.save(path, flags)
        return f"{variable}[@{path}]"

    def _ids(self) -> Any:
        return self._generator.integers(0, self.size.rows, self.size.ids).astype(np.int32)

    def _floats(self, *shape: int) -> Any:
        return self._generator.standard_normal(shape).astype(np.float32)


def weights(source: Path) -> list[Any]:
    """The trainable variables of a model that some function reads."""
    variables = graphfreeze.inspect(source).meta_graphs[0].variables
    return [v for v in variables if v.kind == "weight" and v.trainable and v.shape is not None and v.reads]


def whole(source: Path, share: int) -> list[str]:
    """The first variables that together come nearest to this share of the elements."""
    chosen = weights(source)
    if share == 100:
        return [v.path for v in chosen]
    total = sum(v.elements for v in chosen)
    sums = np.cumsum([v.elements for v in chosen])[:-1]
    if not len(sums):
        return []
    count = int(np.argmin(np.abs(sums / total - share / 100))) + 1
    return [v.path for v in chosen[:count]]


def frozen_share(plan: Any) -> float:
    """The frozen part of all elements of trainable weights."""
    chosen = [v for v in plan.meta_graphs[0].variables if v.kind == "weight" and v.trainable and v.reads]
    return float(sum(v.frozen for v in chosen) / sum(v.elements for v in chosen))


def slices(source: Path, share: int) -> list[str]:
    """This share of every variable: rows of what is looked up, else the last axis (output channels)."""
    found = []
    for v in weights(source):
        rows = any(read.access == "gather" for read in v.reads)
        length = v.shape[0 if rows else -1] if v.shape else 0
        count = round(length * share / 100)
        if 0 < count < length:
            found.append(f"{v.path}[:{count}]" if rows else f"{v.path}[..., :{count}]")
    return found


def run_case(case: Case, size: Size) -> dict[str, Any]:
    """Times one case and prints its table."""
    steps = {n: Step(path, case.loss, size.slice_seconds, case.phases.get(n)) for n, path in case.models.items()}
    seconds: Rounds = interleave(dict(steps), size.rounds)
    figures: dict[str, Any] = {}
    for name in steps:
        low, high = spread(seconds, name, case.peers[0])
        figures[name] = {
            "ms": 1000 * statistics.median(seconds[name]),
            **{f"ratio_to_{peer}": ratio(seconds, name, peer) for peer in case.peers},
            "quartiles": [low, high],
            "limit": case.limits.get(name),
            "slots": steps[name].slots(),
        }
    header = [
        "",
        "ms/step",
        *(f"/ {peer}" for peer in case.peers),
        f"quartiles / {case.peers[0]}",
        "aim",
        "slot elements",
    ]
    rows = [
        [
            name,
            f"{f['ms']:.3g}",
            *(f"{f[f'ratio_to_{peer}']:.3f}" for peer in case.peers),
            f"{f['quartiles'][0]:.3f}-{f['quartiles'][1]:.3f}",
            "" if f["limit"] is None else f"{f['limit']:.3f}",
            f"{sum(int(np.prod(shape)) for shape in f['slots']):,}",
        ]
        for name, f in figures.items()
    ]
    print_table(case.name, header, rows)
    return {"case": case.name, "peers": list(case.peers), "variants": figures}


CASES = ("embedding", "dense", "phases", "shares", "fixtures", "masks")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("--case", action="append", choices=CASES, help="only these; may be repeated")
    parser.add_argument("--rounds", type=int, help="rounds per case (default 15)")
    parser.add_argument("--quick", action="store_true", help="tiny models, two rounds: shows only that it works")
    options = parser.parse_args(arguments)
    size = QUICK if options.quick else Size()
    if options.rounds:
        size = replace(size, rounds=options.rounds)
    results = []
    with tempfile.TemporaryDirectory(prefix="graphfreeze-bench-") as scratch:
        bench = Bench(Path(scratch), size)
        for name in options.case or CASES:
            for case in getattr(bench, name)():
                results.append(run_case(case, size))
                if name == "embedding":
                    slots = {k: v["slots"] for k, v in results[-1]["variants"].items()}
                    print("slots of Adam:", ", ".join(f"{k} {v}" for k, v in slots.items()))
    if options.json:
        write_json(options.json, {"schema": 1, "benchmark": "train_step", "cases": results})


if __name__ == "__main__":
    main()
