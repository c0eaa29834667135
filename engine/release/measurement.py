"""Measurements: estimates, covariances and intervals.

Every residual space B gives an unbiased estimate y_B of its class coordinates.  The noisy table on attributes A is

    sum over B inside A of (N y_B on the attributes in B) (x) (pi on the others),

one linear map per attribute applied to one tensor that holds pi's coordinate first and the class coordinates after it.
Tables of overlapping attribute sets agree, because they are made of the same estimates: every space belongs to exactly
one block, whether that measures the space alone or together with others, so no answer has two sources.
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
from engine._validation import instance, positive, span, whole
from engine._values import Value
from engine.errors import PlanError
from engine.plans import Block, Plan, SpaceAnswers
from engine.plans.blocks import apply_factors, undo_factors
from engine.plans.reconstruction import TableAnswers
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
class Measurement(Value):
    """Noisy answers to a plan's strategy, and all that can be said from them.

    Attributes
    ----------
    plan : the plan that was measured.
    dataset, key, utc : the ledger's words for this release; empty for a rehearsal.
    rehearsal : True when nothing was spent, so that nothing of it may be published.
    answers_on_grid : released strategy answers of every block, whole numbers of grid steps.
    estimates : class coordinates, in counts: one axis per attribute of a residual space in schema order; one axis for
        a union of spaces, one space after the other; cells of the tables when explicit strategies were measured.

    Guarantee: answers are unbiased, with exactly the variances that the plan predicts; all tables are consistent.
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

        ``low`` and ``high`` bound a confidence interval, see `quantile`; counts below zero are left as they are,
        because cutting them off would bias every sum.
        """
        import pandas as pd

        asked = self._group(group)
        first, last = span(start, stop, asked.count, error=PlanError)
        values = self.values(group, first, last)
        std = np.sqrt(self.plan.variances(group, first, last))
        half = quantile(confidence, self.plan.budget.law) * std
        texts = pd.Series(query_texts(self.plan, group, first, last).to_numpy(zero_copy_only=False), dtype="str")
        return pd.DataFrame({"query": texts, "answer": values, "std": std, "low": values - half, "high": values + half})

    def values(self, group: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the answers to queries ``start:stop`` of a group, in counts. Shape (queries,)."""
        asked = self._group(group)
        return apply_group(asked, self._said.group_table(group), *span(start, stop, asked.count, error=PlanError))

    def marginal(self, attributes: str | Sequence[str]) -> Array:
        """Return the noisy table on ``attributes``, in counts, its axes in the order given. Shape (n_1, ..., n_k).

        Raises
        ------
        NotAnswerable : the plan does not measure the whole table, only some of its queries.
        """
        return self._said.table(self.plan.schema.named(attributes))

    def answer(self, attributes: Sequence[str], query_tensor: npt.ArrayLike, confidence: float = 0.95) -> Estimate:
        """Return the answer to any query on ``attributes``, asked for before or not, with its exact error.

        ``query_tensor`` has the shape of the marginal table on the attributes, in the order given.

        Raises
        ------
        NotAnswerable : the strategy says nothing about a piece of the query.
        """
        return self.combination([(attributes, query_tensor)], [1.0], confidence)

    def combination(
        self,
        queries: Sequence[tuple[Sequence[str], npt.ArrayLike]],
        coefficients: Sequence[float],
        confidence: float = 0.95,
    ) -> Estimate:
        """Return a sum or difference of answers, with the exact error that their covariance leaves.

        Queries have shape (n_1, ..., n_k).
        """
        instance(
            "queries", queries, Sequence, give="a list of pairs of attributes and a table on them", error=PlanError
        )
        try:
            weights = np.asarray(coefficients, dtype=float)
        except (TypeError, ValueError):
            given = type(coefficients).__name__
            raise PlanError(f"The coefficients were given as {given}. Give {len(queries)} numbers.") from None
        if weights.shape != (len(queries),) or not np.isfinite(weights).all():
            raise PlanError(f"{len(queries)} queries need as many finite coefficients; {weights.shape} were given.")
        std = math.sqrt(max(0.0, float(weights @ self.plan.covariance(queries) @ weights)))
        value = math.fsum(
            w * self._said.value(*self.plan.checked(query)) for w, query in zip(weights, queries, strict=True)
        )
        half = quantile(confidence, self.plan.budget.law) * std
        return Estimate(answer=value, std=std, low=value - half, high=value + half)

    def publish(self, fit: str = "shrunk", **options: Any) -> Any:
        """Return tables of numbers >= 0 that agree with each other, at no further cost; see `engine.postprocess`.

        They are biased, and these intervals are not theirs: for sums, tests and further work take the answers.
        """
        from engine.postprocess import publish  # upwards, for convenience; see the layers in pyproject.toml

        return publish(self, fit, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the measurement with its plan to a file of its own, which `load` reads wherever it is copied to.

        Guarantee: the file holds released numbers alone; that of a rehearsal stays a rehearsal.  It has its name only
        when it is whole, and nothing that is there is overwritten.

        Raises: PlanError when the plan is that of a look, which is kept with its ledger, or the file cannot be written.
        """
        save_measurement(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Measurement:
        """Return the measurement that `save` wrote; its plan is made again and checked against what it promises.

        Raises: LedgerError when the file is no measurement, is damaged, or is not there.
        """
        return cls(**saved_measurement(path))

    def headline(self) -> dict[str, str]:
        """Return of which records it is, how exact, and at what cost."""
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
        return groups[whole("number of the group", group, 0, len(groups) - 1, error=PlanError)]

    @cached_property
    def _said(self) -> SpaceAnswers | TableAnswers:
        return self.plan.answers_from(self.estimates)


def _same(one: Mapping[Space, npt.NDArray[Any]], other: Mapping[Space, npt.NDArray[Any]]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[space], other[space]) for space in one)


def estimate(block: Block, answers_on_grid: npt.NDArray[np.int64]) -> Array:
    """Return the coordinates that noisy strategy answers stand for, in counts, shaped as `Block.coordinates`.

    They are class coordinates of a residual space, or cells of the table that an explicit strategy measures.
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
    led = head.family.dot(head.sizes, remaining)
    width = math.prod(part.count for part in group.parts[1:])
    step = max(1, SLAB // width)
    out = np.empty(stop - start)
    for row in range(start // width, -(-stop // width) if stop > start else 0, step):
        slab = led[row : min(row + step, -(-stop // width))]
        for axis, part in enumerate(group.parts[1:], start=1):
            slab = np.moveaxis(part.family.dot(part.sizes, np.moveaxis(slab, axis, 0)), 0, axis)
        offset = row * width
        low, high = max(start, offset), min(stop, offset + slab.size)
        out[low - start : high - start] = slab.reshape(-1)[low - offset : high - offset]
    return out


def query_texts(plan: Plan, group: int, start: int, stop: int) -> pa.Array:
    """Return the texts of queries ``start:stop`` of a group, as `Workload.describe` words them."""
    import pyarrow.compute as pc

    asked = plan.workload.groups[group]
    if not asked.parts or stop <= start:
        return pa.array(["all records"] * (stop - start), pa.string())
    columns: list[pa.Array] = []
    index, speechless = np.arange(start, stop), False
    for part in reversed(asked.parts):
        index, row = np.divmod(index, part.count)
        attributes = tuple(plan.schema[asked.attributes[a]] for a in part.axes)
        texts, some_empty = _part_texts(part.family, attributes, part.count)
        columns.insert(0, texts.take(pa.array(row)))
        speechless |= some_empty
    if not speechless:  # one pass, which for most workloads is a third of the time of writing their answers
        return pc.binary_join_element_wise(*columns, " and ")
    joined = columns.pop()
    while columns:
        column = columns.pop()
        both = pc.binary_join_element_wise(column, joined, " and ")
        joined = pc.if_else(pc.equal(column, ""), joined, pc.if_else(pc.equal(joined, ""), column, both))
    return pc.if_else(pc.equal(joined, ""), "all records", joined)


@lru_cache(maxsize=64)
def _part_texts(family: Any, attributes: tuple[Any, ...], count: int) -> tuple[pa.Array, bool]:
    """What each query of a part asks, in words, and whether one of them asks for everything, without a word."""
    texts = [family.text(attributes, i) for i in range(count)]
    return pa.array(texts, pa.string()), "" in texts


def quantile(confidence: float, law: str = "gaussian") -> float:
    """Return how many standard errors a two-sided interval reaches to each side.

    For Laplace noise, the larger of the normal and the Laplace quantile: a single answer needs the second, a sum of
    many answers the first.

    >>> round(quantile(0.95), 4), round(quantile(0.95, "laplace"), 4)
    (1.96, 2.1183)
    """
    confidence = positive("confidence", confidence, below=1, error=PlanError)
    normal = float(scipy.special.ndtri(0.5 + confidence / 2))
    return normal if law == "gaussian" else max(normal, -math.log1p(-confidence) / math.sqrt(2.0))
