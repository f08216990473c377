"""Which elements of which variables: the selector language, spec files, regions, and the rules that join them."""

from graphfreeze.selection.algebra import complement, covers, cut, difference, intersection, union
from graphfreeze.selection.axis import Span
from graphfreeze.selection.canonical import (
    box_region,
    empty_region,
    mask_region,
    points_region,
    product_region,
    rows_region,
    simplify,
    whole_region,
)
from graphfreeze.selection.encoding import describe, region_from_dict, region_to_dict
from graphfreeze.selection.parser import parse_selector
from graphfreeze.selection.region import Box, Dense, Empty, Points, Region, Rows, Shape, Whole
from graphfreeze.selection.resolve import Resolution, ResolvedVariable, RuleMatch, resolve
from graphfreeze.selection.spec import (
    BatchNorm,
    Copy,
    Phase,
    Rule,
    Spec,
    Strategy,
    Verb,
    make_rule,
    make_spec,
    read_spec,
)
from graphfreeze.selection.syntax import Selector
from graphfreeze.selection.variables import Kind, VariableView

__all__ = [
    "BatchNorm",
    "Box",
    "Copy",
    "Dense",
    "Empty",
    "Kind",
    "Phase",
    "Points",
    "Region",
    "Resolution",
    "ResolvedVariable",
    "Rows",
    "Rule",
    "RuleMatch",
    "Selector",
    "Shape",
    "Span",
    "Spec",
    "Strategy",
    "VariableView",
    "Verb",
    "Whole",
    "box_region",
    "complement",
    "covers",
    "cut",
    "describe",
    "difference",
    "empty_region",
    "intersection",
    "make_rule",
    "make_spec",
    "mask_region",
    "parse_selector",
    "points_region",
    "product_region",
    "read_spec",
    "region_from_dict",
    "region_to_dict",
    "resolve",
    "rows_region",
    "simplify",
    "union",
    "whole_region",
]
