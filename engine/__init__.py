"""Differentially private query answering: plan, measure and publish counting queries.

    Schema --> Workload --> plan() --> Plan --> measure() --> Measurement --> answers
    public     queries,     strategy   no       reads         estimates with
    domains    weights      search     data     records,      standard errors
                                                adds noise    and intervals

Packages, high-level first; a package imports only packages below it (see ARCHITECTURE.md):

    cli               command line
    lessons           worked examples of the lessons
    publish           exports, release package, verification
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

from typing import TYPE_CHECKING, Any

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
from engine.ledger import Ledger
from engine.mechanisms import MECHANISMS, forecast, load_plan, plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.records import Counts, SheetFile, TextFile, count_marginals
from engine.records.subprocess_readers import draft_schema
from engine.release import Measurement, load_measurement, measure
from engine.workload import Attribute, Custom, Schema, Suffix, Width, Workload
from engine.workload.families import FAMILIES, Random

if TYPE_CHECKING:
    from engine.figures.release import plot

    __version__: str

__all__ = [
    "FAMILIES",
    "MECHANISMS",
    "Attribute",
    "Budget",
    "CommonMechanism",
    "CommonPlan",
    "Counts",
    "Custom",
    "Ledger",
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
    "share_within",
    "stepwise",
    "tolerance_for",
]


def __getattr__(name: str) -> Any:
    """Import the figures and the version on first access, because both are slow and rarely used."""
    if name == "__version__":
        return _version()
    if name == "plot":
        from engine.figures.release import plot

        return plot
    raise AttributeError(f"module 'engine' has no attribute {name!r}")


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
