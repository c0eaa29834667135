"""Schemas, query families and workloads."""

from engine.workload.attribute import Attribute
from engine.workload.families import Circular, Custom, Family, Marginal, Range, Suffix, Width
from engine.workload.schema import Schema
from engine.workload.schema_draft import DraftSchema
from engine.workload.schema_io import USUAL_MISSING
from engine.workload.workload import Group, Part, Workload, subsets, whole_group

__all__ = [
    "USUAL_MISSING",
    "Attribute",
    "Circular",
    "Custom",
    "DraftSchema",
    "Family",
    "Group",
    "Marginal",
    "Part",
    "Range",
    "Schema",
    "Suffix",
    "Width",
    "Workload",
    "subsets",
    "whole_group",
]
