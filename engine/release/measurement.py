"""Measurements: noisy answers with covariances and confidence intervals.

Every residual space B has an unbiased estimate y_B of its class coordinates.  The noisy table on
attributes A is

    sum over B subset of A of (N y_B on the attributes in B) (x) (pi on the others),

computed as one linear map per attribute, applied to a tensor with pi's coordinate first and the
class coordinates after it.  Every space belongs to exactly one block, which may measure several
spaces, so each answer has one source and tables of overlapping attribute sets are consistent.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy

from engine._arrays import Array
from engine._threads import threads_for
from engine._validation import check_int, check_positive, check_slice, check_type
from engine._values import FrozenValue
from engine.errors import PlanError
from engine.plans import Block, Plan
from engine.plans.blocks import apply_factors, undo_factors
from engine.plans.reconstruction import Answers
from engine.plans.variance import SLAB
from engine.release.result_file import save_measurement, saved_measurement
from engine.residuals import Space
from engine.workload import Group

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One answer: its value, standard error and confidence interval, all in counts."""

    answer: float
    std: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Measurement(FrozenValue):
    """Noisy answers to a plan's strategy, and the estimates, intervals and tables that follow.

    Attributes
    ----------
    plan : the plan that was measured.
    dataset, key, utc : identity of this release on the ledger; empty for a rehearsal.
    rehearsal : True if nothing was spent, so that the result must not be published.
    answers_on_grid : released strategy answers of every block, in integer grid steps.
    estimates : class coordinates, in counts: one axis per attribute of a residual space in schema
        order; one axis for a union of spaces, in sequence; or cells of the tables that explicit
        strategies measure.

    Guarantee: answers are unbiased, with exactly the variances that the plan predicts; all tables
    are consistent.
    """

    plan: Plan
    dataset: str
    key: str
    utc: str
    rehearsal: bool
    answers_on_grid: Mapping[Space, npt.NDArray[np.int64]]
    estimates: Mapping[Space, Array]

    def answers(self, group: int, start: int = 0, stop: int | None = None, confidence: float = 0.95) -> pd.DataFrame:
        """Return queries ``start:stop`` of a group: columns query, answer, std, low, high (counts).

        ``low`` and ``high`` bound a confidence interval, see `quantile`.  Negative counts are not
        set to zero, because that would bias every sum.
        """
        import pandas as pd

        query_group = self._group(group)
        first, last = check_slice(start, stop, query_group.count, error=PlanError)
        values = self.values(group, first, last)
        std = np.sqrt(self.plan.variances(group, first, last))
        half_width = quantile(confidence, self.plan.budget.law) * std
        texts = pd.Series(query_texts(self.plan, group, first, last).to_numpy(zero_copy_only=False), dtype="str")
        return pd.DataFrame(
            {"query": texts, "answer": values, "std": std, "low": values - half_width, "high": values + half_width}
        )

    def values(self, group: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the answers to queries ``start:stop`` of a group, in counts. Shape (queries,)."""
        query_group = self._group(group)
        return apply_group(
            query_group,
            self._space_answers.group_table(group),
            *check_slice(start, stop, query_group.count, error=PlanError),
        )

    def marginal(self, attributes: str | Sequence[str]) -> Array:
        """Return the noisy table on ``attributes``, in counts, with axes in their order.

        Shape (n_1, ..., n_k).

        Raises
        ------
        NotAnswerable
            The plan measures only some queries of the table.
        """
        return self._space_answers.table(self.plan.schema.named(attributes))

    def answer(self, attributes: Sequence[str], query_tensor: npt.ArrayLike, confidence: float = 0.95) -> Estimate:
        """Return the answer to any query on ``attributes``, in the workload or not, with its error.

        ``query_tensor`` has the shape of the table on ``attributes``, with axes in their order.

        Raises
        ------
        NotAnswerable
            The strategy does not measure a component of the query.
        """
        return self.combination([(attributes, query_tensor)], [1.0], confidence)

    def combination(
        self,
        queries: Sequence[tuple[Sequence[str], npt.ArrayLike]],
        coefficients: Sequence[float],
        confidence: float = 0.95,
    ) -> Estimate:
        """Return a linear combination of answers, with the exact error from their covariance.

        Each query is a pair of attributes and a tensor of shape (n_1, ..., n_k).
        """
        check_type(
            "queries", queries, Sequence, give="a list of pairs of attributes and a table on them", error=PlanError
        )
        try:
            weights = np.asarray(coefficients, dtype=float)
        except (TypeError, ValueError):
            type_name = type(coefficients).__name__
            raise PlanError(f"The coefficients have type {type_name}. Give {len(queries)} numbers.") from None
        if weights.shape != (len(queries),) or not np.isfinite(weights).all():
            raise PlanError(f"{len(queries)} queries need as many finite coefficients, not {weights.shape}.")
        std = math.sqrt(max(0.0, float(weights @ self.plan.covariance(queries) @ weights)))
        value = math.fsum(
            w * self._space_answers.value(*self.plan.checked(query)) for w, query in zip(weights, queries, strict=True)
        )
        half_width = quantile(confidence, self.plan.budget.law) * std
        return Estimate(answer=value, std=std, low=value - half_width, high=value + half_width)

    def publish(self, fit: str = "shrunk", **options: Any) -> Any:
        """Return consistent tables of nonnegative numbers, without cost; see `engine.postprocess`.

        They are biased, and the intervals of the measurement do not apply to them.  For sums, tests
        and further analysis use the answers.
        """
        # an upward import, for convenience; see the layers in pyproject.toml
        from engine.postprocess import publish

        return publish(self, fit, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the measurement and its plan to a file that `load` reads without the ledger.

        Guarantee: the file contains released numbers only; a rehearsal remains marked as one.  The
        file appears under its name when it is complete, and no existing file is overwritten.

        Raises
        ------
        PlanError
            The plan is that of a look, which is saved with its ledger, or the file cannot be
            written.
        """
        save_measurement(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Measurement:
        """Return the measurement that `save` wrote; its plan is checked against its guarantees.

        Raises
        ------
        LedgerError
            The file is missing, damaged, or not a measurement.
        """
        return cls(**saved_measurement(path))

    def headline(self) -> dict[str, str]:
        """Return the records measured, the accuracy and the cost, as texts by name."""
        plan = self.plan.headline()
        if self.rehearsal:
            return {"REHEARSAL": "not for publication"} | plan
        return {"dataset": repr(self.dataset), "released": self.utc} | plan

    def __eq__(self, other: object) -> bool:
        def names(of: Measurement) -> tuple[Any, ...]:
            return (of.dataset, of.key, of.utc, of.rehearsal)

        return self is other or (
            isinstance(other, Measurement)
            and names(self) == names(other)
            and _same(self.answers_on_grid, other.answers_on_grid)
            and _same(self.estimates, other.estimates)
            and self.plan == other.plan
        )

    def __hash__(self) -> int:
        return hash((self.dataset, self.key, self.plan))

    def _group(self, group: int) -> Group:
        groups = self.plan.workload.groups
        return groups[check_int("number of the group", group, 0, len(groups) - 1, error=PlanError)]

    @cached_property
    def _space_answers(self) -> Answers:
        return self.plan.answers_from(self.estimates)


def _same(one: Mapping[Space, npt.NDArray[Any]], other: Mapping[Space, npt.NDArray[Any]]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[space], other[space]) for space in one)


def estimate(block: Block, answers_on_grid: npt.NDArray[np.int64]) -> Array:
    """Return the coordinates estimated from noisy strategy answers, in counts.

    They are class coordinates of a residual space, or cells of the table of an explicit strategy,
    with the shape `Block.coordinates`.
    """
    answers = answers_on_grid.reshape([len(s.rows) for _, s in block.factors]) * block.grid
    with threads_for(max((len(s.rows) for _, s in block.factors), default=1)):
        return undo_factors(block, np.asarray(answers))


def strategy_answers(block: Block, table: npt.NDArray[np.int64]) -> Array:
    """Return the exact strategy answers B x of a marginal table, in counts, one axis per factor.

    Shape (rows_1, ..., rows_k).
    """
    exact: Array = apply_factors(block, table.astype(float), lambda s: s.rows)
    return exact if block.weights is None else exact * block.weights


def apply_group(group: Group, table: Array, start: int, stop: int) -> Array:
    """Return queries ``start:stop`` of a group on a table whose axes are the group's attributes.

    Shape (stop - start,).
    """
    if not group.parts:
        return np.full(stop - start, float(table))
    order = [a for part in group.parts for a in part.axes]
    remaining = table.transpose(order).reshape([math.prod(part.sizes) for part in group.parts])
    head = group.parts[0]
    leading = head.family.dot(head.sizes, remaining)
    width = math.prod(part.count for part in group.parts[1:])
    step = max(1, SLAB // width)
    answers = np.empty(stop - start)
    for row in range(start // width, -(-stop // width) if stop > start else 0, step):
        slab = leading[row : min(row + step, -(-stop // width))]
        for axis, part in enumerate(group.parts[1:], start=1):
            slab = np.moveaxis(part.family.dot(part.sizes, np.moveaxis(slab, axis, 0)), 0, axis)
        offset = row * width
        low, high = max(start, offset), min(stop, offset + slab.size)
        answers[low - start : high - start] = slab.reshape(-1)[low - offset : high - offset]
    return answers


def query_texts(plan: Plan, group: int, start: int, stop: int) -> pa.Array:
    """Return the texts of queries ``start:stop`` of a group, as in `Workload.describe`."""
    import pyarrow.compute as pc

    query_group = plan.workload.groups[group]
    if not query_group.parts or stop <= start:
        return pa.array(["all records"] * (stop - start), pa.string())
    columns: list[pa.Array] = []
    index, has_empty_text = np.arange(start, stop), False
    for part in reversed(query_group.parts):
        index, row = np.divmod(index, part.count)
        attributes = tuple(plan.schema[query_group.attributes[a]] for a in part.axes)
        texts, some_empty = _part_texts(part.family, attributes, part.count)
        columns.insert(0, texts.take(pa.array(row)))
        has_empty_text |= some_empty
    # for most workloads one pass takes a third of the time of writing the answers
    if not has_empty_text:
        return pc.binary_join_element_wise(*columns, " and ")
    joined = columns.pop()
    while columns:
        column = columns.pop()
        combined = pc.binary_join_element_wise(column, joined, " and ")
        joined = pc.if_else(pc.equal(column, ""), joined, pc.if_else(pc.equal(joined, ""), column, combined))
    return pc.if_else(pc.equal(joined, ""), "all records", joined)


@lru_cache(maxsize=64)
def _part_texts(family: Any, attributes: tuple[Any, ...], count: int) -> tuple[pa.Array, bool]:
    """Return the text of each query of a part, and whether one is empty: that of all records."""
    texts = [family.text(attributes, i) for i in range(count)]
    return pa.array(texts, pa.string()), "" in texts


def quantile(confidence: float, law: str = "gaussian") -> float:
    """Return the half width of a two-sided confidence interval, in standard errors.

    For Laplace noise it is the larger of the normal and the Laplace quantile: a single answer needs
    the Laplace quantile, a sum of many answers the normal one.

    >>> round(quantile(0.95), 4), round(quantile(0.95, "laplace"), 4)
    (1.96, 2.1183)
    """
    confidence = check_positive("confidence", confidence, below=1, error=PlanError)
    normal = float(scipy.special.ndtri(0.5 + confidence / 2))
    return normal if law == "gaussian" else max(normal, -math.log1p(-confidence) / math.sqrt(2.0))
