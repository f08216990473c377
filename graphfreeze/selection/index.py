"""Turns the index of a selector into a region of one variable.

A subscript selects what it selects in numpy, with one difference: a bound beyond its axis is an error, not clipped.
In a spec a bound that does not exist is a mistake about the model, and clipping would freeze something else in silence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphfreeze.errors import UsageError
from graphfreeze.selection.axis import AxisSet, BoolArray, Indices, Span, axis_from_sorted
from graphfreeze.selection.canonical import (
    mask_region,
    points_region,
    product_region,
    rows_region,
    whole_region,
)
from graphfreeze.selection.files import FileCache
from graphfreeze.selection.region import AnyArray, Region, Shape
from graphfreeze.selection.spec import Rule
from graphfreeze.selection.syntax import (
    At,
    Comparison,
    Dots,
    Index,
    IndexList,
    Item,
    MaskFile,
    Predicate,
    RowsFile,
    Slice,
    Subscript,
)
from graphfreeze.selection.variables import VariableView

NOT_NUMERIC = ("bool", "string", "resource", "variant")

COMPARE: dict[Comparison, Callable[[AnyArray, float], AnyArray]] = {
    Comparison.EQUAL: lambda values, number: np.asarray(values == number),
    Comparison.UNEQUAL: lambda values, number: np.asarray(values != number),
    Comparison.LESS: lambda values, number: np.asarray(values < number),
    Comparison.LESS_EQUAL: lambda values, number: np.asarray(values <= number),
    Comparison.GREATER: lambda values, number: np.asarray(values > number),
    Comparison.GREATER_EQUAL: lambda values, number: np.asarray(values >= number),
}


@dataclass(frozen=True, slots=True)
class Site:
    """A rule meeting a variable: what an error message must name."""

    rule: Rule
    variable: VariableView
    label: str

    def misfit(self, problem: str) -> UsageError:
        """The error that the rule's index does not fit the variable."""
        fits = f"'{self.rule.text}' does not fit variable '{self.label}' of shape {self.variable.shape_text}"
        return UsageError(self.rule.describe(f"{fits}: {problem}."))


def index_region(site: Site, files: FileCache, read_values: Callable[[str], AnyArray]) -> Region:
    """The elements of the site's variable that the site's rule names.

    Raises:
        UsageError: the index does not fit the variable.
        InputOutputError: a file that the index names cannot be read.
    """
    index, shape = site.rule.selector.index, site.variable.shape
    if shape is None:
        if index is None or _is_dots(index):
            return whole_region(())
        raise site.misfit("only the whole of a variable of unknown shape can be selected")
    if index is None or _is_dots(index):
        return whole_region(shape)
    if not shape:
        raise site.misfit("a scalar takes no index but '[...]'")
    match index:
        case Subscript():
            return subscript_region(site, index, shape)
        case MaskFile():
            return _mask_file_region(site, index, shape, files)
        case RowsFile():
            return _rows_file_region(site, index, shape, files)
        case Predicate():
            return _predicate_region(site, index, read_values)


def subscript_region(site: Site, subscript: Subscript, shape: Shape) -> Region:
    """The elements that numpy's ``array[subscript]`` selects.

    Raises:
        UsageError: too many axes, a bound or an index beyond its axis, or lists of different lengths.
    """
    items = _one_item_per_axis(site, subscript, shape)
    named = [_list_of(site, item, at, shape) for at, item in enumerate(items)]
    listed = [at for at, item in enumerate(items) if isinstance(item, IndexList)]
    if len(listed) < 2:
        return product_region(shape, [_axis_set(indices) for indices in named])
    lists = [np.asarray(indices, dtype=np.int64) for indices in named]
    length = max(len(lists[at]) for at in listed)
    if any(len(lists[at]) not in (1, length) for at in listed):
        lengths = " and ".join(str(len(lists[at])) for at in listed)
        raise site.misfit(f"lists of {lengths} indices do not go together")
    return points_region(shape, _joint_positions(lists, listed, length, shape))


def _axis_set(indices: range | list[int]) -> AxisSet | None:
    if isinstance(indices, range):
        return Span.of(indices) if indices else None
    return axis_from_sorted(np.unique(np.asarray(indices, dtype=np.int64)))


def _joint_positions(lists: list[Indices], listed: list[int], length: int, shape: Shape) -> Indices:
    """Flat positions where the listed axes advance together and the others run over all of theirs."""
    positions = np.zeros(length, dtype=np.int64)
    for at in listed:
        positions += lists[at] * math.prod(shape[at + 1 :])
    for at in range(len(shape)):
        if at not in listed:
            steps = lists[at] * math.prod(shape[at + 1 :])
            positions = (positions[:, np.newaxis] + steps).reshape(-1)
    return positions


def _one_item_per_axis(site: Site, subscript: Subscript, shape: Shape) -> list[Item]:
    items = list(subscript.items)
    given = sum(not isinstance(item, Dots) for item in items)
    if given > len(shape):
        axes = "1 axis" if len(shape) == 1 else f"{len(shape)} axes"
        raise site.misfit(f"the index has {given} entries, the variable {axes}")
    missing: list[Item] = [Slice()] * (len(shape) - given)
    at = items.index(Dots()) if Dots() in items else len(items)
    return [*items[:at], *missing, *items[at + 1 :]]


def _list_of(site: Site, item: Item, at: int, shape: Shape) -> range | list[int]:
    """The indices that an item names on its axis, in its order."""
    size = shape[at]
    match item:
        case At(value):
            return [_in_axis(site, value, at, size)]
        case IndexList(values):
            return [_in_axis(site, value, at, size) for value in values]
        case Slice(start, stop, step):
            for name, bound in (("start", start), ("stop", stop)):
                if bound is not None and not -size <= bound <= size:
                    raise site.misfit(f"{name} {bound} lies beyond axis {at}, which has {_elements(size)}")
            return range(*slice(start, stop, step).indices(size))
        case Dots():
            raise AssertionError("dots were replaced by full slices")


def _in_axis(site: Site, value: int, at: int, size: int) -> int:
    if not -size <= value < size:
        raise site.misfit(f"index {value} lies beyond axis {at}, which has {_elements(size)}")
    return value % size


def _mask_file_region(site: Site, index: MaskFile, shape: Shape, files: FileCache) -> Region:
    mask = files.mask(site.rule.base_dir / index.path, index.entry)
    if mask.dtype != np.bool_:
        raise site.misfit(f"mask '{index}' has dtype {mask.dtype}, expected bool")
    if mask.shape != shape:
        raise site.misfit(f"mask '{index}' has shape {mask.shape}")
    return mask_region(mask)


def _rows_file_region(site: Site, index: RowsFile, shape: Shape, files: FileCache) -> Region:
    rows = files.rows(site.rule.base_dir / index.path)
    for line, row in rows:
        if row is None:
            raise site.misfit(f"line {line} of '{index}' is not a row number")
        if not 0 <= row < shape[0]:
            where = f"row {row} in line {line} of '{index}'"
            raise site.misfit(f"{where} lies beyond axis 0, which has {_elements(shape[0])}")
    return rows_region(shape, 0, [row for _, row in rows if row is not None])


def _predicate_region(site: Site, predicate: Predicate, read_values: Callable[[str], AnyArray]) -> Region:
    variable = site.variable
    if variable.dtype in NOT_NUMERIC:
        raise site.misfit(f"its dtype is {variable.dtype}, and '{predicate}' compares numbers")
    if variable.key is None:
        raise site.misfit(f"'{predicate}' compares stored values, and the checkpoint holds none of it")
    values = read_values(variable.key)
    ordered = predicate.comparison not in (Comparison.EQUAL, Comparison.UNEQUAL)
    if ordered and not predicate.absolute and np.iscomplexobj(values):
        raise site.misfit(f"complex numbers have no order; compare their magnitude, 'abs {predicate}'")
    return mask_region(predicate_mask(predicate, values))


def predicate_mask(predicate: Predicate, values: AnyArray) -> BoolArray:
    """Where the values compare so; NaN never does.

    The number is rounded to the dtype of the values first, so that '== 0.1' finds what a float32 holds for 0.1.
    """
    values = values.astype(np.float64) if values.dtype.kind in "iu" else values
    magnitudes = np.asarray(np.abs(values)) if predicate.absolute else values
    with np.errstate(over="ignore"):
        number = magnitudes.dtype.type(predicate.number)
    if not np.isfinite(number) and math.isfinite(predicate.number):
        magnitudes, number = magnitudes.astype(np.float64), predicate.number
    with np.errstate(invalid="ignore"):
        holds = COMPARE[predicate.comparison](magnitudes, number)
    return np.asarray(holds & ~np.isnan(values), dtype=np.bool_)


def _is_dots(index: Index) -> bool:
    return isinstance(index, Subscript) and index.items == (Dots(),)


def _elements(size: int) -> str:
    return "1 element" if size == 1 else f"{size} elements"
