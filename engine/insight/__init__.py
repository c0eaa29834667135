"""Reading plans before a release: fitness for use, errors, two plans, what would help, mechanisms compared.

To touch: a question about plans is one module of pure functions that return tables, numbers or sentences.
"""

from engine.insight.ask import (
    Query,
    box_query,
    certificate_text,
    condition_query,
    counted_cells,
    find_groups,
    further_answers,
    gap_text,
    half_width,
    page_of,
    run_query,
    with_truth,
    workload_table,
    written_query,
)
from engine.insight.breakdown import breakdown, breakdown_text, group_table, worst_error, worst_group, worst_query
from engine.insight.compare import Comparison, compare, comparison, expected, label_of, variants
from engine.insight.coverage import Coverage, coverage_check
from engine.insight.fitness import (
    MechanismBound,
    bound_text,
    budget_for,
    budget_for_error,
    budget_for_query,
    claim_text,
    error_for,
    mechanism_bound,
    share_within,
    tolerance_for,
    two_digits,
    within_text,
)
from engine.insight.pair import SAMPLED, check_same_queries, losses, ratios, single_groups_text
from engine.insight.plan_diff import plan_diff, summary
from engine.insight.published import ROWS, beside
from engine.insight.remedies import REMEDIES, dear_groups, forecast_added
from engine.insight.scale import NoiseScale, budget_for_quality, quality_by_group, quality_text, with_quality
from engine.insight.spread import spread
from engine.insight.totals import at_least, releases_within
from engine.insight.what_if import CHANGES, Change, Changed, Request, asked_text, can_be_coarser, effect

__all__ = [
    "CHANGES",
    "REMEDIES",
    "ROWS",
    "SAMPLED",
    "Change",
    "Changed",
    "Comparison",
    "Coverage",
    "MechanismBound",
    "NoiseScale",
    "Query",
    "Request",
    "asked_text",
    "at_least",
    "beside",
    "bound_text",
    "box_query",
    "breakdown",
    "breakdown_text",
    "budget_for",
    "budget_for_error",
    "budget_for_quality",
    "budget_for_query",
    "can_be_coarser",
    "certificate_text",
    "check_same_queries",
    "claim_text",
    "compare",
    "comparison",
    "condition_query",
    "counted_cells",
    "coverage_check",
    "dear_groups",
    "effect",
    "error_for",
    "expected",
    "find_groups",
    "forecast_added",
    "further_answers",
    "gap_text",
    "group_table",
    "half_width",
    "label_of",
    "losses",
    "mechanism_bound",
    "page_of",
    "plan_diff",
    "quality_by_group",
    "quality_text",
    "ratios",
    "releases_within",
    "run_query",
    "share_within",
    "single_groups_text",
    "spread",
    "summary",
    "tolerance_for",
    "two_digits",
    "variants",
    "with_quality",
    "with_truth",
    "within_text",
    "workload_table",
    "worst_error",
    "worst_group",
    "worst_query",
    "written_query",
]
