"""What may be asked: the public schema, query families, groups of queries with weights, SQL, and all of it in words.

To touch: a new family is one class in `families` (or `runs`, for intervals) and one name in its tuple ``FAMILIES``.
Only public descriptions are known here; no records, no noise, no budget.
"""

from typing import TYPE_CHECKING, Any

from engine.workload.alike import AlikeGroups, outside, subsets
from engine.workload.attribute import Attribute, attribute_from_texts
from engine.workload.calendar import MAX_YEAR, UNITS, cell_label, cell_number, first_day, read_period
from engine.workload.conditions import box_workload
from engine.workload.dictionary import (
    HOLD,
    columns_of_json_records,
    columns_of_records,
    draft_from_dictionary,
    is_dictionary,
)
from engine.workload.draft import DraftSchema, decimal_bins, no_attribute, schema_template, spanned
from engine.workload.families import FAMILIES, Abs, Affine, Custom, Random, family, usual_family
from engine.workload.family import Family
from engine.workload.groups import SMALLEST_WEIGHT, Group, Part, Workload, make_group
from engine.workload.matrix_file import read_matrix
from engine.workload.predicates import named_in
from engine.workload.runs import Circular, Intervals, Marginal, Prefix, Range, Suffix, Total, Width
from engine.workload.schema import Schema
from engine.workload.schema_text import ALL_KEYS, KEYS, MAX_FILE, TRUE_OR_FALSE, USUAL_MISSING, decoded_text
from engine.workload.whole_group import whole_group

if TYPE_CHECKING:
    from engine.workload.sql import example, sql_readings, workload_from_sql

__all__ = [
    "ALL_KEYS",
    "FAMILIES",
    "HOLD",
    "KEYS",
    "MAX_FILE",
    "MAX_YEAR",
    "SMALLEST_WEIGHT",
    "TRUE_OR_FALSE",
    "UNITS",
    "USUAL_MISSING",
    "Abs",
    "Affine",
    "AlikeGroups",
    "Attribute",
    "Circular",
    "Custom",
    "DraftSchema",
    "Family",
    "Group",
    "Intervals",
    "Marginal",
    "Part",
    "Prefix",
    "Random",
    "Range",
    "Schema",
    "Suffix",
    "Total",
    "Width",
    "Workload",
    "attribute_from_texts",
    "box_workload",
    "cell_label",
    "cell_number",
    "columns_of_json_records",
    "columns_of_records",
    "decimal_bins",
    "decoded_text",
    "draft_from_dictionary",
    "example",
    "family",
    "first_day",
    "is_dictionary",
    "make_group",
    "named_in",
    "no_attribute",
    "outside",
    "read_matrix",
    "read_period",
    "schema_template",
    "spanned",
    "sql_readings",
    "subsets",
    "usual_family",
    "whole_group",
    "workload_from_sql",
]


def __getattr__(name: str) -> Any:
    """Fetch what reads SQL when it is asked for: its parser takes a quarter of a second to import."""
    if name in ("example", "sql_readings", "workload_from_sql"):
        from engine.workload import sql

        return getattr(sql, name)
    raise AttributeError(f"module 'engine.workload' has no attribute {name!r}")
