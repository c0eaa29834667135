"""Differentially private query answering: plan, measure and publish counting queries.

    Schema --> Workload --> plan() --> Plan --> measure() --> Measurement --> answers
    public     queries,     strategy   no       reads         estimates with
    domains    weights      search     data     records,      standard errors
                                                adds noise    and intervals

Packages, high-level first; a package imports only packages below it (see ARCHITECTURE.md):

    cli               command line
    lessons           worked examples of the lessons
    publish           export files, release package, verification
    figures           Plotly figures
    postprocess       non-negative consistent tables, uncertainty, synthetic records
    common_mechanism  coarse or fine: common part of plans, two-stage release
    analysis          comparisons, error targets, what-if
    release           count, spend, draw noise, save; estimates and intervals
    records           readers, encoding, contribution bounding, counting
    ledger            budget ledger, noise journal, stored results
    mechanisms        from workload and budget to a plan
    plans             blocks, privacy cost, variances, objectives
    bounds            lower bounds over all matrix mechanisms
    residuals         residual spaces, strategy search, tuned splits
    workload          schema, query families, predicates, SQL
    privacy           budgets and privacy curves
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.analysis import (
        budget_for,
        compare,
        comparison,
        parse_query,
        share_within,
        tolerance_for,
    )
    from engine.common_mechanism import (
        CommonMechanism,
        CommonPlan,
        LinearMechanism,
        NestedPlanRule,
        coarse_or_fine,
        nested_choices,
        stepwise,
    )
    from engine.figures.release import plot
    from engine.ledger import Ledger
    from engine.mechanisms import MECHANISMS, forecast, load_plan, plan
    from engine.plans import Plan
    from engine.postprocess.publication_weights import publication_weights
    from engine.privacy import Budget
    from engine.records import Counts, SheetFile, TextFile, count_marginals
    from engine.records.subprocess_readers import draft_schema
    from engine.release import Measurement, load_measurement, measure
    from engine.workload import (
        Attribute,
        CodeList,
        Custom,
        Hierarchy,
        HierarchyLevel,
        Level,
        Levels,
        Schema,
        Suffix,
        Width,
        Workload,
    )
    from engine.workload.families import FAMILIES, Random

    __version__: str

__all__ = [
    "FAMILIES",
    "MECHANISMS",
    "Attribute",
    "Budget",
    "CodeList",
    "CommonMechanism",
    "CommonPlan",
    "Counts",
    "Custom",
    "Hierarchy",
    "HierarchyLevel",
    "Ledger",
    "Level",
    "Levels",
    "LinearMechanism",
    "Measurement",
    "NestedPlanRule",
    "Plan",
    "Random",
    "Schema",
    "SheetFile",
    "Suffix",
    "TextFile",
    "Width",
    "Workload",
    "budget_for",
    "coarse_or_fine",
    "compare",
    "comparison",
    "count_marginals",
    "draft_schema",
    "forecast",
    "load_measurement",
    "load_plan",
    "measure",
    "nested_choices",
    "parse_query",
    "plan",
    "plot",
    "publication_weights",
    "share_within",
    "stepwise",
    "tolerance_for",
]

# maps each public name to the module from which `__getattr__` imports it; type checkers read the
# imports above instead
_MODULES = {
    "Attribute": "engine.workload",
    "Budget": "engine.privacy",
    "CodeList": "engine.workload",
    "CommonMechanism": "engine.common_mechanism",
    "CommonPlan": "engine.common_mechanism",
    "Counts": "engine.records",
    "Custom": "engine.workload",
    "FAMILIES": "engine.workload.families",
    "Hierarchy": "engine.workload",
    "HierarchyLevel": "engine.workload",
    "Ledger": "engine.ledger",
    "Level": "engine.workload",
    "Levels": "engine.workload",
    "LinearMechanism": "engine.common_mechanism",
    "MECHANISMS": "engine.mechanisms",
    "Measurement": "engine.release",
    "NestedPlanRule": "engine.common_mechanism",
    "Plan": "engine.plans",
    "Random": "engine.workload.families",
    "Schema": "engine.workload",
    "SheetFile": "engine.records",
    "Suffix": "engine.workload",
    "TextFile": "engine.records",
    "Width": "engine.workload",
    "Workload": "engine.workload",
    "budget_for": "engine.analysis",
    "coarse_or_fine": "engine.common_mechanism",
    "compare": "engine.analysis",
    "comparison": "engine.analysis",
    "count_marginals": "engine.records",
    "draft_schema": "engine.records.subprocess_readers",
    "forecast": "engine.mechanisms",
    "load_measurement": "engine.release",
    "load_plan": "engine.mechanisms",
    "measure": "engine.release",
    "nested_choices": "engine.common_mechanism",
    "parse_query": "engine.analysis",
    "plan": "engine.mechanisms",
    "plot": "engine.figures.release",
    "publication_weights": "engine.postprocess.publication_weights",
    "share_within": "engine.analysis",
    "stepwise": "engine.common_mechanism",
    "tolerance_for": "engine.analysis",
}


def __getattr__(name: str) -> Any:
    """Return a public object; its module is imported only now, so that ``import engine`` is fast."""
    if name == "__version__":
        return _version()
    if name not in _MODULES:
        raise AttributeError(f"module 'engine' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _version() -> str:
    """Return the installed version, or in a checkout the version in pyproject.toml."""
    import tomllib
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    try:
        return version("dp-query-workbench")
    except PackageNotFoundError:
        text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
        return str(tomllib.loads(text)["project"]["version"])
