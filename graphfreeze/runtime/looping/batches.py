"""Batches in an order that is a pure function of (seed, epoch), so that a resumed run sees what is left, and only that.

Arrays are cut by a permutation that is drawn anew for each epoch; batches that were consumed are left out. A
``tf.data.Dataset`` of the user's is asked again for what was consumed, and a checksum says whether it gave the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from graphfreeze.errors import UsageError
from graphfreeze.runtime.looping.columns import Table, Wanted, fit

Batch = dict[str, Any]


class Batches(Protocol):
    """The data of a run."""

    @property
    def identity(self) -> str:
        """Equal for equal data; part of what makes two runs the same."""

    @property
    def count(self) -> int | None:
        """Batches in an epoch; None where that is not known before its end."""

    def epoch(self, number: int, skip: int, seen: int) -> Iterator[tuple[Batch, int]]:
        """The batches of an epoch after the first ``skip``, each with the checksum of the epoch up to it.

        Args:
            number: Epoch of the whole run, counted from 0.
            skip: How many were consumed already.
            seen: The checksum of those.
        """


@dataclass(frozen=True, slots=True)
class ArrayBatches:
    """Batches of arrays in memory."""

    table: Table
    batch: int
    shuffle: bool
    seed: int
    whole: bool
    """Leave out a last batch that is smaller."""
    identity: str

    @property
    def rows(self) -> int:
        """Examples."""
        return len(next(iter(self.table.values())))

    @property
    def count(self) -> int:
        """Batches in an epoch."""
        return self.rows // self.batch if self.whole else -(-self.rows // self.batch)

    def order(self, number: int) -> Any:
        """The rows of an epoch, in their order."""
        if not self.shuffle:
            return np.arange(self.rows)
        return np.random.default_rng([self.seed, number]).permutation(self.rows)

    def epoch(self, number: int, skip: int, seen: int) -> Iterator[tuple[Batch, int]]:
        """See ``Batches``; nothing is read to be left out, so the checksum stays 0."""
        import tensorflow as tf

        order = self.order(number)[skip * self.batch : self.count * self.batch]
        tensors = {name: tf.constant(array) for name, array in self.table.items()}
        chosen = tf.data.Dataset.from_tensor_slices(order).batch(self.batch)
        cut = chosen.map(lambda rows: {name: tf.gather(tensor, rows) for name, tensor in tensors.items()})
        for batch in cut.prefetch(2):
            yield batch, 0


@dataclass(frozen=True, slots=True)
class DatasetBatches:
    """Batches of a ``tf.data.Dataset``, or of a function that gives one for each epoch."""

    dataset: Any
    wanted: Sequence[Wanted]
    identity: str = "dataset"
    _begun: list[int] = field(default_factory=list)
    """Epochs that this process has begun: a dataset that shuffles draws a new order each time."""

    @property
    def count(self) -> int | None:
        """What the dataset says of itself."""
        if not hasattr(self.dataset, "cardinality"):
            return None
        found = int(self.dataset.cardinality())
        if found == -1:
            raise UsageError("The dataset never ends, so it has no epochs. Cut it with: dataset.take(STEPS)")
        return found if found >= 0 else None

    def epoch(self, number: int, skip: int, seen: int) -> Iterator[tuple[Batch, int]]:
        """See ``Batches``.

        Raises:
            UsageError: the batches do not fit the function, or are not those that were consumed.
        """
        total = 0
        for index, element in enumerate(self._iterator(number)):
            batch = self._named(element)
            total = _checksum(batch, total)
            if index >= skip:
                yield batch, total
            elif index == skip - 1 and total != seen:
                raise UsageError(
                    f"The dataset does not give the same {skip} batches again that the interrupted run consumed in "
                    f"epoch {number + 1}, so the run cannot go on exactly. Give shuffle() a seed, or pass a function "
                    "from the number of an epoch to its dataset"
                )

    def _iterator(self, number: int) -> Any:
        if not hasattr(self.dataset, "cardinality"):
            return iter(self.dataset(number))
        # An iterator that is made draws the order of its epoch, so those of the epochs before are made, and left.
        while len(self._begun) < number:
            next(iter(self.dataset), None)
            self._begun.append(len(self._begun))
        self._begun.append(number)
        return iter(self.dataset)

    def _named(self, element: Any) -> Batch:
        found = named(element, self.wanted)
        return {one.name: fit_tensor(found[one.name], one) for one in self.wanted}


def named(element: Any, wanted: Sequence[Wanted]) -> Mapping[str, Any]:
    """An element of a dataset by input name: a mapping, or (inputs, targets) where inputs are a mapping or tensors.

    Raises:
        UsageError: it is none of these, or something is missing.
    """
    names = [one.name for one in wanted]
    found: dict[str, Any] = {}
    if isinstance(element, Mapping):
        found = dict(element)
    elif isinstance(element, tuple) and len(element) == 2 and isinstance(element[0], Mapping):
        found = {names[-1]: element[1], **element[0]}
    elif isinstance(element, tuple):
        found = dict(zip(names, element, strict=False)) if len(element) == len(names) else {}
    elif len(names) == 1:
        found = {names[0]: element}
    lacking = [name for name in names if name not in found]
    if lacking:
        raise UsageError(
            f"The dataset gives no '{lacking[0]}'. Its elements have to be mappings with the keys "
            + ", ".join(f"'{n}'" for n in names)
            + ", or tuples of as many tensors, targets last"
        )
    return found


def fit_tensor(value: Any, wanted: Wanted) -> Any:
    """A batch as a tensor of the input's dtype; see ``columns.fit``."""
    import tensorflow as tf

    return tf.constant(fit(np.asarray(value), wanted, "the dataset"))


def table_digest(table: Mapping[str, Any]) -> str:
    """SHA-256 of arrays in memory."""
    total = hashlib.sha256()
    for name, array in sorted(table.items()):
        total.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
        total.update(
            repr(array.tolist()).encode() if array.dtype.kind == "O" else np.ascontiguousarray(array).tobytes()
        )
    return total.hexdigest()


def _checksum(batch: Mapping[str, Any], total: int) -> int:
    for _, tensor in sorted(batch.items()):
        array = tensor.numpy()
        data = repr(array.tolist()).encode() if array.dtype.kind == "O" else np.ascontiguousarray(array).tobytes()
        total = crc32(data, total)
    return total
