"""Predictions of two-way tables from other two-way tables, as targets of shrinkage.

If attributes i and j are nearly independent given a third attribute k (a mediator), the fitted
tables of (i, k) and (k, j) predict the table of (i, j):

    T_ik diag(1 / T_k) T_kj.

The table towards which a pair is shrunk, its reference, is a weighted mean of several candidates:
independence, the prediction through each third attribute, and the prediction along the tree of
largest mutual information (Chow and Liu).  The weight of a candidate is the likelihood of the
measured residual if the candidate were the true table.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from engine._arrays import Array
from engine.postprocess.residual_estimates import ResidualEstimate
from engine.postprocess.synthetic_records import mutual_information_tree
from engine.residuals import Axes


class PairPredictions:
    """Predictions of two-way tables from other one-way and two-way tables.

    Parameters
    ----------
    tables : mapping from attribute sets to fitted tables in counts, of shapes (n_i,) and
        (n_i, n_j).  Tables on three or more attributes are ignored.
    """

    def __init__(self, tables: Mapping[Axes, Array]) -> None:
        self.singles = {a[0]: table for a, table in tables.items() if len(a) == 1}
        self.pairs: dict[tuple[int, int], Array] = {}
        for axes, table in tables.items():
            if len(axes) == 2:
                self.pairs[axes[0], axes[1]] = table
                self.pairs[axes[1], axes[0]] = table.T
        self.inverse = {
            a: np.divide(1.0, table, out=np.zeros_like(table), where=table > 0.0)
            for a, table in self.singles.items()
        }
        tree = mutual_information_tree({(i, j): t for (i, j), t in self.pairs.items() if i < j})
        self.parents = {child: parent for child, (_, parent) in tree.items()}

    def candidates(self, i: int, j: int) -> list[Array]:
        """Return all predictions of the table on attributes i and j, each of shape (n_i, n_j).

        There is one prediction per third attribute k for which tables on (i, k) and (k, j) are
        known.  There is one more if the path from i to j in the tree of mutual information has two
        or more attributes between them: the prediction along this path.
        """
        paths = [
            [i, k, j]
            for k in self.singles
            if k not in (i, j) and (i, k) in self.pairs and (k, j) in self.pairs
        ]
        if len(path := self._tree_path(i, j)) > 3:
            paths.append(path)
        return [self._predict(path) for path in paths]

    def _tree_path(self, i: int, j: int) -> list[int]:
        """Return the path from i to j in the tree of mutual information; empty if there is none."""
        ancestors, other_ancestors = self._to_root(i), self._to_root(j)
        if ancestors[-1] != other_ancestors[-1]:
            return []
        # Both lists end at the root.  Of their common ancestors, only the one nearest to i and j is
        # on the path.
        while (
            len(ancestors) > 1 and len(other_ancestors) > 1 and ancestors[-2] == other_ancestors[-2]
        ):
            ancestors.pop()
            other_ancestors.pop()
        return ancestors + other_ancestors[-2::-1]

    def _to_root(self, attribute: int) -> list[int]:
        path = [attribute]
        while path[-1] in self.parents:
            path.append(self.parents[path[-1]])
        return path

    def _predict(self, path: list[int]) -> Array:
        """Return the table on the first and last attribute of a path, taken as a Markov chain."""
        table = self.pairs[path[0], path[1]]
        for k, successor in itertools.pairwise(path[1:]):
            table = (table * self.inverse[k]) @ self.pairs[k, successor]
        return np.asarray(table)


def likelihood_mean(candidates: list[Array], estimate: ResidualEstimate) -> Array:
    """Return the mean of candidate tables, weighted by their likelihoods.

    The likelihood of a candidate is the probability density of the noisy residual ``estimate`` if
    the candidate is the true table.  Candidates and result are in counts, shape (n_i, n_j).

    >>> from engine.postprocess.residual_estimates import MeasuredProjection
    >>> projection = MeasuredProjection(centers=(np.full(2, 0.5), np.full(2, 0.5)))
    >>> cells = np.array([[2.0, -2.0], [-2.0, 2.0]])
    >>> estimate = ResidualEstimate(cells=cells, variance=0.01, rank=1, projection=projection)
    >>> likelihood_mean([np.full((2, 2), 2.0), np.diag([4.0, 4.0])], estimate).tolist()
    [[4.0, 0.0], [0.0, 4.0]]
    """
    # `noise_excess` is the squared distance of a candidate from the estimate, in units of the noise
    # variance, minus a constant.  Half of it is the negative logarithm of the likelihood, up to a
    # constant.
    negative_logs = np.array(
        [
            0.5 * estimate.noise_excess(estimate.projection.of(table) - estimate.cells)[0]
            for table in candidates
        ]
    )
    weights = np.exp(negative_logs.min() - negative_logs)
    weights /= weights.sum()
    return np.asarray(sum(w * table for w, table in zip(weights, candidates, strict=True)))
