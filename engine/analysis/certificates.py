"""Certificates of plans: texts, bounds, and the published results of the QuerySmasher paper.

**Published results.**  The results of tables 2 to 4 of the paper are RMSEs in counts at privacy
cost 1.  They come from solvers that stopped before convergence, so they are at least the optimum of
the strategy class, up to rounding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine._format import format_number, percent_rounded_up
from engine.bounds.lower_bounds import best_bound
from engine.errors import LimitExceeded
from engine.plans import Plan
from engine.privacy import REPLACE_ONE
from engine.workload import Attribute, Schema, Workload

if TYPE_CHECKING:
    import pandas as pd

SCHEMAS = {  # sizes of the categorical attributes, and of the numeric attributes
    "Adult": ((42, 16, 15, 9, 7, 6, 5, 2, 2), (100, 100, 100, 99, 85)),
    "CPS": ((7, 4, 2), (50, 100)),
    "Loans": ((51, 36, 15, 8, 6, 5, 4, 3), (101, 101, 101, 101)),
}
WAYS = {"1-way": (1,), "2-way": (2,), "3-way": (3,), "<=3-way": (1, 2, 3)}
SIZES = (10, 20, 30, 40, 50)
JOINT_FAMILIES = ("affine", "abs")


@dataclass(frozen=True, kw_only=True)
class PublishedRow:
    """RMSE of QuerySmasher on one workload, as published and as certified optimum.

    Attributes
    ----------
    table : number of the table in the paper.
    schema, queries : names of the schema and of the queries, as for `standard_workload`.
    printed : RMSE in the QuerySmasher column of the paper, in counts.
    optimum : certified smallest RMSE of the strategy class, in counts.

    >>> row = ROWS[3]
    >>> str(row), row.printed, row.workload().queries
    ('Adult <=3-way', 47.853, 21043261)
    """

    table: int
    schema: str
    queries: str
    printed: float
    optimum: float

    def __str__(self) -> str:
        return f"{self.schema} {self.queries}"

    def workload(self) -> Workload:
        """Return the workload of this row."""
        return standard_workload(self.schema, self.queries)


def standard_workload(schema: str, queries: str) -> Workload:
    """Return a workload of the QuerySmasher paper.

    Parameters
    ----------
    schema : key of ``SCHEMAS``, or "[n]^40" for 40 attributes of size n.
    queries : name of the queries.  For a key of ``SCHEMAS``: a key of ``WAYS`` (the numbers of
        attributes per group), or "affine" or "abs" (the workloads of table 3).  For "[n]^40": a
        query family on all single attributes and all pairs; "affine" and "abs" are on the pairs
        only, and the single attributes have prefixes.

    >>> standard_workload("[10]^40", "affine").queries
    15220
    """
    if schema in SCHEMAS and queries in JOINT_FAMILIES:
        return _pair_comparisons(schema, queries)
    if schema in SCHEMAS:
        kinds = zip(("categorical", "numeric"), SCHEMAS[schema], strict=True)
        sizes = [(kind, n) for kind, group in kinds for n in group]
        public = Schema([Attribute.of_size(f"x{i}", n, kind) for i, (kind, n) in enumerate(sizes)])
        return Workload.all_ways(public, WAYS[queries])
    n = int(schema.removeprefix("[").removesuffix("]^40"))
    public = Schema([Attribute.of_size(f"x{i}", n) for i in range(40)])
    if queries not in JOINT_FAMILIES:
        return Workload.all_ways(public, (1, 2), queries)
    groups = (
        Workload.all_ways(public, (1,), "prefix").groups
        + Workload.all_ways(public, (2,), queries).groups
    )
    return Workload(public, groups)


def _pair_comparisons(schema: str, family: str) -> Workload:
    """Return a workload of table 3: queries on single attributes, and ``family`` on pairs.

    The paper does not state two details, which follow from its numbers.  The pairs of numeric
    attributes of Adult and Loans have products of prefixes in place of ``family``; the numeric pair
    of CPS does not.  The single categorical attributes have marginals.  With this workload,
    ResidualPlanner+ has the printed RMSE in all six rows.
    """
    kinds = zip(("marginal", "prefix"), SCHEMAS[schema], strict=True)
    singles = [(single, n) for single, sizes in kinds for n in sizes]
    # All attributes are declared numeric, because the families on pairs need ordered cells.
    public = Schema([Attribute.of_size(f"x{i}", n) for i, (_, n) in enumerate(singles)])
    workload = Workload(public)
    for name, (single, _) in zip(public.names, singles, strict=True):
        workload = workload.add((name,), single)
    numeric = set(public.names[len(SCHEMAS[schema][0]) :])
    for pair in itertools.combinations(public.names, 2):
        is_product = schema != "CPS" and numeric.issuperset(pair)
        workload = workload.add(pair, "prefix" if is_product else family)
    return workload


def _table_2() -> list[PublishedRow]:
    printed = {
        "Adult": (5.047, 17.632, 47.055, 47.853),
        "CPS": (3.135, 6.194, 7.903, 8.140),
        "Loans": (4.670, 14.822, 36.095, 36.410),
    }
    optimum = {
        "Adult": (5.0468, 17.190, 45.552, 45.465),
        "CPS": (3.1350, 6.1918, 7.8860, 8.1400),
        "Loans": (4.6698, 14.575, 34.991, 34.927),
    }
    return _rows_by_schema(2, WAYS, printed, optimum)


def _table_3() -> list[PublishedRow]:
    printed = {"CPS": (5.935, 5.900), "Adult": (16.435, 16.254), "Loans": (14.305, 14.330)}
    optimum = {"CPS": (4.8371, 4.8778), "Adult": (14.922, 14.843), "Loans": (12.717, 12.621)}
    return _rows_by_schema(3, JOINT_FAMILIES, printed, optimum)


def _rows_by_schema(
    table: int,
    queries: Iterable[str],
    printed: Mapping[str, Sequence[float]],
    optimum: Mapping[str, Sequence[float]],
) -> list[PublishedRow]:
    """Return the rows of a table of the paper.

    ``printed`` and ``optimum`` map a schema to one RMSE per element of ``queries``.
    """
    return [
        PublishedRow(table=table, schema=schema, queries=name, printed=value, optimum=best)
        for schema in printed
        for name, value, best in zip(queries, printed[schema], optimum[schema], strict=True)
    ]


def _table_4() -> list[PublishedRow]:
    """Return the rows of table 4: 40 attributes of n cells, for every n in `SIZES`."""
    printed = {
        "marginal": (23.48, 25.70, 26.46, 26.84, 27.07),
        "prefix": (33.70, 49.51, 60.81, 68.78, 75.26),
        "range": (41.08, 63.32, 78.79, 90.91, 100.97),
        "circular": (39.77, 63.01, 79.14, 91.72, 102.13),
        "affine": (28.25, 35.71, 44.36, 69.62, 79.33),
        "abs": (35.85, 39.49, 48.14, 49.83, 52.80),
    }
    optimum = {
        "marginal": (23.4766, 25.6986, 26.4601, 26.8437, 27.0742),
        "prefix": (33.693, 49.382, 59.662, 67.460, 73.801),
        "range": (41.076, 63.307, 78.784, 90.903, 100.962),
        "circular": (39.772, 63.010, 79.141, 91.723, 102.131),
        "affine": (28.010, 35.164, 39.169, 41.946, 44.071),
        "abs": (30.103, 37.170, 41.110, 43.843, 45.940),
    }
    return [
        PublishedRow(
            table=4,
            schema=f"[{n}]^40",
            queries=query_name,
            printed=printed[query_name][i],
            optimum=optimum[query_name][i],
        )
        for query_name, (i, n) in itertools.product(printed, enumerate(SIZES))
    ]


ROWS = (*_table_2(), *_table_3(), *_table_4())


def published_rmse(schema: str, queries: str) -> float:
    """Return the published RMSE of QuerySmasher on a workload, in counts.

    >>> published_rmse("[10]^40", "affine")
    28.25
    """
    return next(row.printed for row in ROWS if (row.schema, row.queries) == (schema, queries))


def results_table(ours: dict[str, float]) -> pd.DataFrame:
    """Return a table that compares published, optimal and recomputed RMSEs, one row per workload.

    ``ours`` maps the text of a `PublishedRow`, such as "CPS 1-way", to its recomputed RMSE in
    counts.  The columns "ours" and "ours / paper" are NaN for workloads that are not in ``ours``.

    >>> table = results_table({"CPS 1-way": 3.135})
    >>> table.loc[table["ours"].notna(), "ours / paper"].tolist()
    [1.0]
    """
    import pandas as pd

    table = pd.DataFrame(
        [
            (row.table, str(row), row.printed, row.optimum, ours.get(str(row), float("nan")))
            for row in ROWS
        ],
        columns=["table", "workload", "paper", "certified optimum", "ours"],
    )
    ratios = {
        f"{name} / paper": table[name] / table["paper"] for name in ("certified optimum", "ours")
    }
    return table.assign(**ratios)


# Maps an objective of a plan to the error that it minimizes.
MEASURES = {
    "sum": "weighted RMSE",
    "max": "largest standard error",
    "lp": "power mean of variances",
}
BIAS_NOTE = "Biased methods can be more accurate where counts are smaller than the noise."


@dataclass(frozen=True, kw_only=True)
class MechanismBound:
    """Lower bound on the error of every matrix mechanism.

    Attributes
    ----------
    square : bound on the weighted sum of squared errors at privacy cost 1, in counts^2.
    how : method that computed the bound, as text.
    """

    square: float
    how: str

    def rmse(self, plan: Plan) -> float:
        """Return the lower bound on the weighted RMSE at the budget of a plan, in counts.

        It is 0 for replace-one neighbours and for schemas with public tables (invariants), because
        the bound does not apply there.
        """
        # With replace-one neighbours or invariants, some queries can be answered without noise.
        if plan.budget.neighbours == REPLACE_ONE or plan.schema.invariants:
            return 0.0
        return math.sqrt(self.square / plan.budget.row_pcost / plan.workload.queries)


def mechanism_bound(workload: Workload, law: str = "gaussian") -> MechanismBound:
    """Return a lower bound on the error of every matrix mechanism for a workload.

    ``law`` is the distribution of the noise: "gaussian" or "laplace".

    Raises
    ------
    LimitExceeded : an attribute has too many cells to compute a bound quickly.
    """
    square, how = best_bound(workload, law)
    return MechanismBound(square=square, how=how)


def claim_text(plan: Plan) -> str:
    """Return sentences with the gaps of a plan to two lower bounds.

    The first bound is on the weighted RMSE of all matrix mechanisms.  The second bound is that of
    the plan's certificate.  If the first bound cannot be computed, the text ends with the reason.
    """
    class_text = certificate_text(plan)
    try:
        return f"{bound_text(plan, mechanism_bound(plan.workload, plan.budget.law))} {class_text}"
    except LimitExceeded as error:
        return f"{class_text} {error}"


def certificate_text(plan: Plan) -> str:
    """Return sentences with the lower bound of a plan's certificate, and the gap of the plan."""
    certificate = plan.certificate
    return (
        f"{certificate.statement} The bound is {format_number(certificate.lower_bound)} counts, "
        f"this plan has {format_number(plan.achieved)}: {gap_text(plan)} more."
    )


def short_certificate_text(plan: Plan) -> str:
    """Return one sentence with the bound of a plan's certificate, and the gap of the plan.

    Without a bound above 0, the result is that of `certificate_text`.
    """
    certificate, objective = plan.certificate, str(plan.options.get("objective", "sum"))
    if not 0.0 < certificate.lower_bound < math.inf:
        return certificate_text(plan)
    measure = MEASURES[objective]
    if objective == "max" and plan.options.get("targets") is not None:
        measure = "largest ratio of standard error to target"
    return (
        f"Lower bound on the {measure} of plans of this kind:"
        f" {format_number(certificate.lower_bound)}; this plan: {format_number(plan.achieved)},"
        f" {gap_text(plan)} more."
    )


def gap_text(plan: Plan) -> str:
    """Return the gap of a plan in percent, rounded up; "less than 0.01%" for smaller gaps."""
    gap = plan.certificate.gap
    return percent_rounded_up(gap, 2) if gap >= 1e-4 else "less than 0.01%"


def above_best(plan: Plan, bound: MechanismBound) -> str:
    """Return by how many percent, at most, a plan exceeds the best matrix mechanism, as text.

    The percentage refers to the weighted RMSE and is rounded up.  The text is empty if the lower
    bound is 0.
    """
    bound_rmse = bound.rmse(plan)
    if bound_rmse <= 0.0:
        return ""
    return percent_rounded_up(plan.weighted_rmse / bound_rmse - 1.0)


def bound_text(plan: Plan, bound: MechanismBound) -> str:
    """Return the text of `short_bound_text`, followed by a sentence on biased methods.

    If the lower bound is 0, the sentence on biased methods is left out.
    """
    text = short_bound_text(plan, bound)
    return f"{text} {BIAS_NOTE}" if above_best(plan, bound) else text


def short_bound_text(plan: Plan, bound: MechanismBound) -> str:
    """Return a sentence with the result of `above_best` and the lower bound on the weighted RMSE.

    If the lower bound is 0, the sentence states this instead.
    """
    bound_rmse, above = bound.rmse(plan), above_best(plan, bound)
    if not above:
        return "No lower bound above 0 was found for all matrix mechanisms."
    return (
        f"This plan is at most {above} above the theoretical limit for any matrix mechanism, a"
        f" weighted RMSE of {format_number(bound_rmse)} counts."
    )
