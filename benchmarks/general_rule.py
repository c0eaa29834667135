"""General selection rule on matrices and on plans of small domains.

The app uses the nested rule; only benchmarks and tests use this one.

Source: Xiao, Wang, Zhang and Kifer 2022, section 6.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine.common_mechanism import CommonPlan
from engine.common_mechanism.common_mechanism import LinearMechanism
from engine.common_mechanism.selection_rule import Decision
from engine.errors import NotApplicable, PlanError
from engine.plans import Block
from engine.release import Measurement
from engine.workload import Group, Schema

MOST_CELLS = 2_000  # of the full domain
MOST_ENTRIES = 20_000_000  # queries times cells, for the general rule


def spread_of_mechanisms(
    *,
    look: LinearMechanism,
    queries: Sequence[Array],
    noise: Sequence[float],
    answers: npt.ArrayLike,
    draws: int,
    seed: int,
    radius: float = 2.0,
    max_records: float | None = None,
) -> Decision:
    """Choose by the remaining variation of each analysis, relative to its noise.

    For each analysis, linear programs with random objectives return `draws` nonnegative tables that
    agree with the look. Signal is the total variance of its answers over them; the analysis with
    the largest ratio to the noise is chosen, and none if all ratios are below 1.

    Parameters
    ----------
    queries, noise : of each analysis its query rows, shape (queries, cells), and total variance, in
        counts^2.
    answers : of the look, shape (rows of the look,).
    seed : seed of the random objectives, which do not depend on the records; the same seed gives
        the same decision.
    radius : how far a table may be from the look, in the sum of absolute standard errors.  Where no
        table is that close, the closest distance is used and `shares["radius"]` shows it.
    max_records : public cap on the number of records; needed if the look does not measure some
        cells.

    Raises: PlanError if there are no draws, or the look leaves the tables unbounded and there is no
    cap. Source: section 6.1, equation 2.
    """
    if draws < 2 or len(queries) < 2:
        raise PlanError(
            f"{draws} draws and {len(queries)} analyses; at least two of each are needed."
        )
    polytope = _Tables(look=look, answers=np.asarray(answers, float), max_records=max_records)
    reach = max(radius, polytope.closest() * (1 + 1e-9) + 1e-9)
    random = np.random.default_rng(seed)
    tables = np.array(
        [
            polytope.table(random.standard_normal(len(B)) @ B, reach)
            for B in queries
            for _ in range(draws)
        ]
    )
    ratios = [
        float(np.var(tables @ B.T, axis=0, ddof=1).sum()) / total
        for B, total in zip(queries, noise, strict=True)
    ]
    shares = {f"analysis {i + 1}": ratio for i, ratio in enumerate(ratios)} | {"radius": reach}
    best = int(np.argmax(ratios))
    text = (
        f"its answers can vary {ratios[best]:.3g} times as much as its noise, by {len(tables)}"
        " possible tables"
    )
    if ratios[best] < 1:
        return Decision(
            choice=None,
            certain=True,
            shares=shares,
            sentence=f"Stop: even in analysis {best + 1}, {text}.",
        )
    return Decision(
        choice=best, certain=True, shares=shares, sentence=f"Take analysis {best + 1}: {text}."
    )


def spread_of_plans(
    common: CommonPlan,
    looked: Measurement,
    *,
    draws: int = 20,
    seed: int = 0,
    radius: float = 2.0,
    max_records: float | None = None,
) -> Decision:
    """Choose by the remaining variation of each option after a look, relative to its noise.

    Signal and noise of an option are the total variances of its workload's queries; see
    `spread_of_mechanisms`.

    Raises
    ------
    NotApplicable : the domain or the workload is too large; the message has the sizes.

    Source: section 6.1, equation 2.
    """
    cells = common.look.schema.size
    if common.following is not None:
        raise NotApplicable(
            "The general rule compares analyses; in a chain of choices use the nested rule."
        )
    queries_in_all = max(p.workload.queries for p in common.options)
    if cells > MOST_CELLS or queries_in_all * cells > MOST_ENTRIES:
        raise NotApplicable(
            f"The general rule needs the full domain of {cells:,} cells with {queries_in_all:,}"
            f" queries; it is limited to {MOST_CELLS:,} cells, and {MOST_ENTRIES:,} cells times"
            " queries. Use the nested rule."
        )
    blocks = common.look.blocks
    rows = np.concatenate(
        [domain_rows(common.look.schema, s, b) / b.noise for s, b in blocks.items()]
    )
    answers = np.concatenate(
        [looked.answers_on_grid[s].ravel() * (b.grid / b.noise) for s, b in blocks.items()]
    )
    queries = [
        np.concatenate([rows_of_group(p.schema, g) for g in p.workload.groups])
        for p in common.options
    ]
    noise = [p.rmse**2 * p.workload.queries for p in common.options]
    decision = spread_of_mechanisms(
        look=LinearMechanism(rows),
        queries=queries,
        noise=noise,
        answers=answers,
        draws=draws,
        seed=seed,
        radius=radius,
        max_records=max_records,
    )
    shares = {
        common.names[i]: decision.shares[f"analysis {i + 1}"] for i in range(len(common.names))
    }
    sentence = decision.sentence
    for i in reversed(range(len(common.names))):
        sentence = sentence.replace(f"analysis {i + 1}", common.names[i])
    return replace(
        decision, shares=shares | {"radius": decision.shares["radius"]}, sentence=sentence
    )


def domain_rows(schema: Schema, space: Sequence[str], block: Block) -> Array:
    """Return the strategy rows of a block on all cells of a small domain, shape (measurements,
    cells).
    """
    positions = [schema.order[name] for name in space]
    factors = [(tuple(positions[a] for a in axes), s.rows) for axes, s in block.factors]
    rows = spread_out(schema, factors)
    return rows if block.weights is None else rows * block.weights.reshape(-1, 1)


class _Tables:
    """Nonnegative tables near a look: variables (x, t) with |S x - s| <= t after whitening."""

    def __init__(self, *, look: LinearMechanism, answers: Array, max_records: float | None) -> None:
        if answers.shape != (len(look.B),) or not np.isfinite(answers).all():
            raise PlanError(
                f"answers has shape {answers.shape}; the look has {len(look.B)} rows, all finite."
            )
        S, s, one = look.whiten(look.B), look.whiten(answers[:, None])[:, 0], np.eye(len(answers))
        self.cells, self.distance = look.cells, np.r_[np.zeros(look.cells), np.ones(len(answers))]
        self.rows, self.limits = np.block([[S, -one], [-S, -one]]), np.r_[s, -s]
        if max_records is not None:
            self.rows, self.limits = (
                np.vstack([self.rows, 1 - self.distance]),
                np.r_[self.limits, max_records],
            )

    def closest(self) -> float:
        """Return the least sum of absolute standard errors of a nonnegative table."""
        return float(self._solve(self.distance, self.rows, self.limits) @ self.distance)

    def table(self, objective: Array, reach: float) -> Array:
        """Return the table within reach that minimises the objective, shape (cells,)."""
        goal = np.r_[objective, np.zeros(len(self.distance) - self.cells)]
        solution = self._solve(
            goal, np.vstack([self.rows, self.distance]), np.r_[self.limits, reach]
        )
        return solution[: self.cells]

    def _solve(self, goal: Array, rows: Array, limits: Array) -> Array:
        import scipy.optimize

        solution = scipy.optimize.linprog(goal, A_ub=rows, b_ub=limits, method="highs")
        if solution.x is None:
            raise PlanError(
                "The look leaves some counts unbounded, or contradicts max_records; give a fitting"
                " cap."
            )
        return np.asarray(solution.x)


def rows_of_group(schema: Schema, group: Group) -> Array:
    """Return the query rows of a group on all cells of a small domain: (queries, cells)."""
    positions = [schema.order[name] for name in group.attributes]
    return spread_out(
        schema,
        [
            (tuple(positions[a] for a in part.axes), part.family.rows(part.sizes))
            for part in group.parts
        ],
    )


def spread_out(schema: Schema, factors: Sequence[tuple[tuple[int, ...], Array]]) -> Array:
    """Return the rows of a product of factors on all cells of the schema.

    Parameters
    ----------
    factors : axes and matrix of each factor; the matrix has shape (rows, cells of its axes).

    Returns
    -------
    Shape (product of the rows, cells of the schema); constant in the attributes without a factor.
    """
    sizes = schema.sizes(schema.names)
    cell, product = np.indices(sizes).reshape(len(sizes), -1), np.ones((1, math.prod(sizes)))
    for axes, rows in factors:
        factor_cells = np.ravel_multi_index(
            tuple(cell[a] for a in axes), tuple(sizes[a] for a in axes)
        )
        product = (product[:, None, :] * rows[None, :, factor_cells]).reshape(-1, product.shape[1])
    return product
