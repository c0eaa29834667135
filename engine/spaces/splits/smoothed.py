"""What a space adds to the sum that a split minimises, smooth in its strategy, its Gram and its lift alike.

With rows R in class coordinates a space of Gram G and lift M has the weighted squared error and the sensitivity

    f = tr(G (R^T R)^-1),      d = largest squared norm of a column of R M,

and sqrt(f d) is least where R is its best strategy.  A p-norm in place of the largest norm makes it smooth: it is at
most (cells)^(1/(2p)) larger, and one search may then change strategies and splits together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from engine.arrays import Array

FLOOR = 1e-4  # roots of the Gram below this share of the largest begin at it


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise:
    """sqrt(f d) and its derivatives by strategy, Gram and lift, in the shapes of those."""

    value: float
    by_strategy: Array
    by_gram: Array
    by_lift: Array


def noise(gram: Array, strategy: Array, lift: Array, power: float) -> Noise:
    """Return sqrt(f d) with the p-norm of this power in place of the largest norm.

    Shapes: Gram and strategy (r, r), lift (r, cells).  Raises LinAlgError when the strategy has no inverse.

    >>> round(noise(np.eye(2), 2.0 * np.eye(2), np.eye(2), 1e6).value, 4)  # f = 2 / 4, d = 4
    1.4142
    """
    inverse = np.linalg.inv(strategy)
    asked = inverse.T @ gram @ inverse
    rows = strategy @ lift
    norms = np.einsum("rc,rc->c", rows, rows)
    largest = float(norms.max())
    # shares of the largest: their high powers vanish where they may, and none overflows
    tail = (norms / largest) ** (power - 1.0)
    total = float(tail @ norms) / largest
    f, d = float(np.trace(asked)), largest * total ** (1.0 / power)
    value = math.sqrt(f * d)
    by_rows = rows * (tail * total ** (1.0 / power - 1.0) * value / d)
    return Noise(
        value=value,
        by_strategy=by_rows @ lift.T - (value / f) * asked @ inverse.T,
        by_gram=(0.5 * value / f) * inverse @ inverse.T,
        by_lift=strategy.T @ by_rows,
    )


def first_strategy(gram: Array) -> Array:
    """Return the fourth root of a Gram, symmetric and of full rank: the best strategy where no cell is special.

    Shape (r, r).
    """
    eigenvalues, U = np.linalg.eigh(gram)
    root = np.sqrt(np.maximum(eigenvalues, FLOOR**2 * eigenvalues[-1]))
    return np.asarray((U * np.sqrt(root / root[-1])) @ U.T)
