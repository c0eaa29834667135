"""Reference tables of pairs, predicted through third attributes.

A mediator k of the pair (i, j) is an attribute given which i and j are nearly independent, so that
the published tables of (i, k) and (k, j) predict the table of (i, j):

    T_ik diag(1 / T_k) T_kj.

Candidates for the reference of a pair are independence, the prediction through every third
attribute, and the prediction along the tree of largest mutual information of all pairs (Chow and
Liu).  The reference is their mean, weighted by the likelihood of the noisy residual.
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
    """Predictions of two-way tables through third attributes.

    Parameters
    ----------
    tables : mapping from attribute sets to fitted tables in counts, from which other two-way tables
        are predicted.  Only one-way and two-way tables are used, of shapes (n_i,) and (n_i, n_j).
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
        """Return all predictions of the table on attributes i and j, each of shape (n_i, n_j)."""
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
        # both lists end at the root: remove shared ancestors except the first one
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
    """Return the mean of candidate tables, weighted by the likelihood of a noisy residual.

    The likelihood is that of ``estimate`` if a candidate is the true table.  Candidates and result
    are in counts and have the shape (n_i, n_j) of the measured table.

    >>> from engine.postprocess.residual_estimates import MeasuredProjection
    >>> projection = MeasuredProjection(centers=(np.full(2, 0.5), np.full(2, 0.5)))
    >>> cells = np.array([[2.0, -2.0], [-2.0, 2.0]])
    >>> estimate = ResidualEstimate(cells=cells, variance=0.01, rank=1, projection=projection)
    >>> likelihood_mean([np.full((2, 2), 2.0), np.diag([4.0, 4.0])], estimate).tolist()
    [[4.0, 0.0], [0.0, 4.0]]
    """
    half_distances = np.array(
        [
            0.5 * estimate.surplus(estimate.projection.of(table) - estimate.cells)[0]
            for table in candidates
        ]
    )
    weights = np.exp(half_distances.min() - half_distances)
    weights /= weights.sum()
    return np.asarray(sum(w * table for w, table in zip(weights, candidates, strict=True)))
