"""Acceptance checks of synthetic records against published tables and unbiased answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from engine._arrays import Array, Index
from engine._format import set_name
from engine._validation import check_positive
from engine.errors import PlanError
from engine.postprocess.synthetic_records import table_of
from engine.postprocess.uncertainty import Uncertainty
from engine.release import apply_group

if TYPE_CHECKING:
    import pandas as pd


INTERVAL_CONFIDENCE = 0.95
CRITERIA_TEXTS = {
    "distance": "share of records to move until a table is the published one, at most",
    "inside": (
        f"share of answers whose {INTERVAL_CONFIDENCE:.0%} interval holds the count, at least"
    ),
    "contradiction": (
        "typical distance from the unbiased answers of a group, in standard errors, at most"
    ),
}


@dataclass(frozen=True, kw_only=True)
class AcceptanceRule:
    """Thresholds at which synthetic records are acceptable in place of the published tables.

    Attributes
    ----------
    distance : largest allowed total variation distance between a table of the records and the
        published table.
    inside : smallest allowed share of published answers whose approximate 95% interval contains the
        count of the records.
    contradiction : largest allowed root mean square, over the answers of a group, of
        (count of the records - unbiased answer) / standard error of the unbiased answer.  The root
        mean square of the true counts would be about 1.

    >>> AcceptanceRule(distance=0.0)
    Traceback (most recent call last):
    engine.errors.PlanError: The distance was 0.0. Give a number above 0 and below 1.
    """

    distance: float = 0.05
    inside: float = 0.9
    contradiction: float = 1.5

    def __post_init__(self) -> None:
        check_positive("distance", self.distance, below=1, error=PlanError)
        check_positive("inside", self.inside, below=1, error=PlanError)
        check_positive("contradiction", self.contradiction, error=PlanError)


def acceptance(
    uncertainty: Uncertainty, records: pd.DataFrame, rule: AcceptanceRule | None = None
) -> pd.DataFrame:
    """Check synthetic records against the published tables and the unbiased answers.

    Parameters
    ----------
    uncertainty : errors of the published tables.
    records : cell codes, one column per attribute, as `Published.records` returns them.  Their
        counts are scaled to the total of the tables.
    rule : thresholds; by default those of `AcceptanceRule()`.

    Returns
    -------
    DataFrame with one row per criterion and the columns criterion (text), limit (threshold), found
    (observed value), worst (attributes of the group with the worst value; empty for the criterion
    "inside", which has one value for all groups), met (whether the limit is met) and cost (pcost,
    always 0).

    Guarantee: reads only released numbers and synthetic records, so that it costs no privacy.
    """
    import pandas as pd

    thresholds = rule or AcceptanceRule()
    published = uncertainty.published
    codes = records.reindex(columns=list(published.names), fill_value=0).to_numpy()
    scale = published.total / len(codes) if len(codes) else 0.0
    groups = published.measurement.plan.workload.groups
    criteria = pd.DataFrame(
        [_criteria(uncertainty, codes, scale, number) for number in range(len(groups))]
    )
    rows = []
    for name, text in CRITERIA_TEXTS.items():
        worst = int(criteria[name].argmax())
        limit = float(getattr(thresholds, name))
        where = set_name(groups[worst].attributes)
        value = float(criteria[name][worst])
        if name == "inside":
            value = float(criteria[name].sum()) / sum(group.count for group in groups)
            where = ""
        met = value >= limit if name == "inside" else value <= limit
        rows.append(
            {
                "criterion": text,
                "limit": limit,
                "found": value,
                "worst": where,
                "met": met,
                "cost": 0.0,
            }
        )
    return pd.DataFrame(rows)


def _contradiction(counts: Array, answers: pd.DataFrame) -> float:
    """Return the root mean square of (count - unbiased answer) / standard error.

    ``counts`` are those of the synthetic records for the queries of ``answers``, shape (queries,).
    Answers with standard error 0 are left out; if no others exist, the result is 0.
    """
    std = answers["std"].to_numpy()
    ratios = (counts - answers["answer"].to_numpy())[std > 0.0] / std[std > 0.0]
    return float(np.sqrt(np.mean(ratios**2))) if ratios.size else 0.0


def _criteria(errors: Uncertainty, records: Index, scale: float, number: int) -> dict[str, float]:
    """Return the observed values of the criteria of `AcceptanceRule` for one group of queries.

    The value of ``inside`` is a number of answers, not a share.

    Parameters
    ----------
    records : cell codes, shape (records, attributes).
    scale : total of the tables divided by the number of records.
    number : position of the group in the workload.
    """
    published = errors.published
    group = published.measurement.plan.workload.groups[number]
    schema = published.measurement.plan.schema
    axes = published.positions(group.attributes)
    table = scale * table_of(records, axes, schema.sizes(published.names)).astype(float)
    record_table = published.laid_out(table, group.attributes)
    answers = published.measurement.answers(number)
    numbers = errors.numbers(group, confidence=INTERVAL_CONFIDENCE)
    counts = apply_group(group, record_table, 0, group.count)
    is_inside = (counts >= numbers["published_low"]) & (counts <= numbers["published_high"])
    return {
        "distance": (
            0.5
            * float(np.abs(record_table - published.table(group.attributes)).sum())
            / published.total
        ),
        "inside": float(np.sum(is_inside)),
        "contradiction": _contradiction(counts, answers),
    }
