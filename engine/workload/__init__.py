"""Schemas, query families and workloads."""

from engine.workload.attribute import Attribute
from engine.workload.families import (
    Circular,
    Custom,
    Family,
    Level,
    Levels,
    Marginal,
    Range,
    Suffix,
    Width,
)
from engine.workload.hierarchy import (
    AreaWeights,
    CodeList,
    Hierarchy,
    HierarchyLevel,
    only_difference,
    visible_text,
    without_details,
)
from engine.workload.schema import Schema
from engine.workload.schema_io import DEFAULT_MISSING_TEXTS
from engine.workload.schema_tables import DraftSchema
from engine.workload.workload import (
    Group,
    Part,
    Workload,
    has_queries_on,
    joint_part,
    new_groups,
    subsets,
)

__all__ = [
    "DEFAULT_MISSING_TEXTS",
    "AreaWeights",
    "Attribute",
    "Circular",
    "CodeList",
    "Custom",
    "DraftSchema",
    "Family",
    "Group",
    "Hierarchy",
    "HierarchyLevel",
    "Level",
    "Levels",
    "Marginal",
    "Part",
    "Range",
    "Schema",
    "Suffix",
    "Width",
    "Workload",
    "has_queries_on",
    "joint_part",
    "new_groups",
    "only_difference",
    "subsets",
    "visible_text",
    "without_details",
]
