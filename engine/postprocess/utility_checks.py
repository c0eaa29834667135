"""Acceptance checks of published tables.

Criteria on released numbers are free.  What was not published, such as tables of more attributes, only the true records
can tell: such a criterion is a small release of its own, which the ledger books like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._arrays import Array, Index
from engine._format import set_name
from engine._validation import positive
from engine.errors import PlanError
from engine.plans import Plan
from engine.postprocess.synthetic_records import table_of
from engine.postprocess.uncertainty import QualityRule, Uncertainty
from engine.release import Measurement, apply_group, measure

if TYPE_CHECKING:
    import pandas as pd


INSIDE = 0.95
WORDS = {
    "distance": "share of records to move until a table is the published one, at most",
    "inside": f"share of answers whose {INSIDE:.0%} interval holds the count, at least",
    "contradiction": "typical distance from the unbiased answers of a group, in standard errors, at most",
}
ALL_SHOWN = QualityRule(doubtful_cv=1e300, suppressed_cv=1e300)


@dataclass(frozen=True, kw_only=True)
class AcceptanceRule:
    """What records must hold before they are handed out.

    Attributes
    ----------
    distance : largest share of the records that would have to move until the worst of the tables is the published one.
    inside : least share of all answers whose approximate 95% interval holds the count of the records.
    contradiction : largest root mean square of (count - unbiased answer) / standard error over the answers of a group;
        about 1 is what noise alone makes.

    >>> AcceptanceRule(distance=0.0)
    Traceback (most recent call last):
    engine.errors.PlanError: The distance was 0.0. Give a number above 0 and below 1.
    """

    distance: float = 0.05
    inside: float = 0.9
    contradiction: float = 1.5

    def __post_init__(self) -> None:
        positive("distance", self.distance, below=1, error=PlanError)
        positive("inside", self.inside, below=1, error=PlanError)
        positive("contradiction", self.contradiction, error=PlanError)


def acceptance(
    found: Uncertainty, records: pd.DataFrame, rule: AcceptanceRule | None = None, *, judge: Measurement | None = None
) -> pd.DataFrame:
    """Return whether records hold what a rule asks: columns criterion, limit, found, worst (attributes), met, cost.

    Parameters
    ----------
    records : cell codes, one column an attribute, as `Published.records` returns them.  Where there are more or fewer
        of them than the tables sum to, their counts are scaled.
    judge : another release of the same records, whose rows follow, see `acceptance_by_release`.

    Guarantee: reads released numbers and the simulated records alone, so that it costs no privacy: ``cost`` is 0.

    Raises: PlanError when the records lack an attribute of ``judge``.
    """
    import pandas as pd

    asked, published = rule or AcceptanceRule(), found.published
    codes = records.reindex(columns=list(published.names), fill_value=0).to_numpy()
    scale = published.total / len(codes) if len(codes) else 0.0
    groups = published.measurement.plan.workload.groups
    figures = pd.DataFrame([_figures(found, codes, scale, number) for number in range(len(groups))])
    rows = []
    for name, words in WORDS.items():
        worst, limit = int(figures[name].argmax()), float(getattr(asked, name))
        where = set_name(groups[worst].attributes)
        value = float(figures[name][worst])
        if name == "inside":
            value, where = float(figures[name].sum()) / sum(group.count for group in groups), ""
        met = value >= limit if name == "inside" else value <= limit
        rows.append({"criterion": words, "limit": limit, "found": value, "worst": where, "met": met, "cost": 0.0})
    free = pd.DataFrame(rows)
    if judge is None:
        return free
    judged = acceptance_by_release(records, judge, total=published.total, rule=rule)
    return pd.concat([free, judged], ignore_index=True)


def acceptance_on_records(
    records: pd.DataFrame,
    plan: Plan,
    data: Any,
    *,
    total: float | None = None,
    rule: AcceptanceRule | None = None,
    **release: Any,
) -> pd.DataFrame:
    """Return whether simulated records agree with true ones on the groups of a plan, which is released for this.

    Columns as of `acceptance`, one row a group; all rows together cost what the first one says, in pcost.

    Parameters
    ----------
    records : cell codes of simulated records, one column an attribute, as `Published.records` returns them.
    plan : what the true records are asked; the plan's budget is what this costs, `Plan.pcost` tells it before.
    data, **release : the true records, with ``dataset``, ``ledger`` and whatever else `measure` takes.
    total : number of records to which the simulated ones are scaled, `Published.total`; by default they are not.

    Guarantee: that of `measure`: budget is spent before noise is drawn, one key spends once, and what is told follows
    from the released numbers.  So the same plan judges other simulated records later at no further cost.

    Raises
    ------
    PlanError : simulated records lack an attribute of the plan; nothing was spent.
    BudgetExceeded, LedgerError, DataError : as `measure` raises them.

    >>> from engine.workload import Attribute, Schema, Workload
    >>> from engine.privacy.budget import Budget
    >>> from engine.mechanisms import plan
    >>> asked = Workload(Schema([Attribute.of_size("a", 2)])).add(("a",))
    >>> import pandas as pd
    >>> true, simulated = pd.DataFrame({"a": [0] * 60 + [1] * 40}), pd.DataFrame({"a": [0] * 100})
    >>> found = acceptance_on_records(simulated, plan(asked, Budget(pcost=1.0)), true, rehearsal=True)
    >>> bool(found["met"].all()), found["cost"].tolist()
    (False, [0.0])
    """
    _check_attributes(records, plan)
    return acceptance_by_release(records, measure(plan, data, **release), total=total, rule=rule)


def acceptance_by_release(
    records: pd.DataFrame, found: Measurement, *, total: float | None = None, rule: AcceptanceRule | None = None
) -> pd.DataFrame:
    """Return whether simulated records agree with a release that was made already; see `acceptance_on_records`.

    Guarantee: reads released numbers and the simulated records alone: nothing is spent beyond what the release has
    cost, which ``cost`` says, in pcost.

    Raises: PlanError when simulated records lack an attribute of the release.
    """
    import pandas as pd

    _check_attributes(records, found.plan)
    asked, scale = rule or AcceptanceRule(), 1.0 if total is None or not len(records) else total / len(records)
    rows = []
    for number, group in enumerate(found.plan.workload.groups):
        sizes, axes = found.plan.schema.sizes(group.attributes), tuple(range(len(group.attributes)))
        table = np.asarray(scale * table_of(records[list(group.attributes)].to_numpy(), axes, sizes), float)
        value = _contradiction(apply_group(group, table, 0, group.count), found.answers(number))
        met, cost = value <= asked.contradiction, 0.0 if found.rehearsal or number else found.plan.pcost
        row = {"criterion": WORDS["contradiction"], "limit": asked.contradiction, "found": value}
        rows.append(row | {"worst": set_name(group.attributes), "met": met, "cost": cost})
    return pd.DataFrame(rows)


def _check_attributes(records: pd.DataFrame, plan: Plan) -> None:
    asked = {name for group in plan.workload.groups for name in group.attributes}
    if missing := sorted(asked - set(map(str, records.columns))):
        raise PlanError(
            f"The simulated records have no column {set_name(missing)}. They have the attributes of the published "
            "tables: ask about those."
        )


def _contradiction(counts: Array, told: pd.DataFrame) -> float:
    """Return the root mean square of what counts, shape (queries,), miss of unbiased answers, in standard errors."""
    std = told["std"].to_numpy()
    ratios = (counts - told["answer"].to_numpy())[std > 0.0] / std[std > 0.0]
    return float(np.sqrt(np.mean(ratios**2))) if ratios.size else 0.0


def _figures(found: Uncertainty, records: Index, scale: float, number: int) -> dict[str, float]:
    """Return distance and contradiction of a group, and how many of its answers are inside."""
    published = found.published
    asked, schema = published.measurement.plan.workload.groups[number], published.measurement.plan.schema
    axes = published.positions(asked.attributes)
    table = scale * table_of(records, axes, schema.sizes(published.names)).astype(float)
    counted = published.laid_out(table, asked.attributes)
    told = found.answers(number, confidence=INSIDE, rule=ALL_SHOWN)
    counts = apply_group(asked, counted, 0, asked.count)
    within = (counts >= told["published_low"].to_numpy()) & (counts <= told["published_high"].to_numpy())
    return {
        "distance": 0.5 * float(np.abs(counted - published.table(asked.attributes)).sum()) / published.total,
        "inside": float(np.sum(within)),
        "contradiction": _contradiction(counts, told),
    }
