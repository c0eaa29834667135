"""What several linear Gaussian mechanisms share: look first at what all of them would release anyway, then choose.

The common mechanism M* of M_1, ..., M_n is a largest mechanism that is answerable from each of them; the residual M'_i
is what is left to run when the choice falls on M_i.  M* and M'_i together have exactly the law and the cost of M_i.

M* asks a basis of the queries that every M_i can answer.  If M_i answers them with covariance C_i, a Sigma of least
trace with Sigma >= C_i for all i makes M* maximal (theorem 5.3), in any basis (theorem 5.2).  Ours is the one in which
the C_i add up to the identity.  So the result depends neither on units nor on splitting a cell into cells that no
mechanism tells apart; and two covariances commute, C_2 = I - C_1, where Stott's formula (theorem 5.4) takes the larger
of two eigenvalues and keeps its relative accuracy however ill-conditioned the pair is.

Three or more that do not commute have no formula.  The dual of  min tr Sigma, Sigma >= C_i  is  max sum_i tr(Y_i C_i)
over Y_i >= 0, sum_i Y_i = I.  With Y_i = S^-1/2 A_i A_i^T S^-1/2, S = sum_i A_i A_i^T, it has no constraints, L-BFGS
needs some hundred steps, and Sigma = sum_i C_i Y_i, raised until it is feasible, has a proven gap.

Source: Xiao, Wang, Zhang and Kifer 2022, algorithms 1 and 3, section 7.5; the choice of basis and the dual are our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy

from engine.arrays import Array
from engine.choice.linear import LinearMechanism, Recreation, recreation, remainder
from engine.choice.spends import exact_split
from engine.errors import PlanError

EVALUATIONS = 400
CENSUS_AGES = {
    "Total": (0, 103),
    "Age4": (0, 18, 45, 65, 103),
    "Age9": (0, 5, 18, 25, 35, 45, 55, 65, 75, 103),
    "Age23": (0, 5, 10, 15, 18, 20, 21, 22, 25, 30, 35, 40, 45, 50, 55, 60, 62, 65, 67, 70, 75, 80, 85, 103),
}


@dataclass(frozen=True, init=False, eq=False)
class CommonMechanism:
    """The common mechanism of two or more linear mechanisms, with the residual of each.

    Attributes
    ----------
    mechanisms : the originals.
    common : M*, in standard form.
    gap : no common mechanism that answers `common` has a trace smaller by more than this share; 0 but for rounding.

    Guarantee: common <= M_i and common + residual_i = M_i, for privacy cost matrices, to 1e-9 of the cost of M_i.
    Raises: PlanError unless there are two mechanisms or more, on the same cells.  Source: definitions 3.9 and 3.10.

    >>> rows, columns = np.kron(np.eye(3), np.ones(3)), np.kron(np.ones(3), np.eye(3))
    >>> both = CommonMechanism(LinearMechanism(rows), LinearMechanism(columns))
    >>> both.common.covariance(np.ones((1, 9))).round(9), both.residuals[0].rank
    (array([[3.]]), 2)
    """

    mechanisms: tuple[LinearMechanism, ...]
    common: LinearMechanism
    gap: float

    def __init__(self, *mechanisms: LinearMechanism) -> None:
        if len(mechanisms) < 2 or not all(isinstance(M, LinearMechanism) for M in mechanisms):
            raise PlanError(f"{len(mechanisms)} arguments were given; give at least two LinearMechanism.")
        cells = sorted({M.cells for M in mechanisms})
        if len(cells) > 1:
            raise PlanError(f"The mechanisms have {cells} cells; write them all on one domain.")
        rows, gap = _common_rows(mechanisms)
        for name, value in (("mechanisms", mechanisms), ("common", LinearMechanism(rows)), ("gap", gap)):
            object.__setattr__(self, name, value)

    @cached_property
    def residuals(self) -> tuple[LinearMechanism, ...]:
        """M'_i for every i, in standard form; run only the one that is chosen."""
        return tuple(remainder(M, self.common) for M in self.mechanisms)

    @property
    def saved(self) -> float:
        """pcost of a separate look as a share of the largest pcost of a mechanism.

        The cost of M* itself, as the paper's "%PLB Saved" (section 7.2); `rivals.reserved_look` is the cheapest
        look of equal variances, which costs a little less.
        """
        # a separate look would be paid on top of the chosen mechanism, this one is a part of it
        return self.common.pcost / max(M.pcost for M in self.mechanisms)

    @cached_property
    def spends(self) -> tuple[tuple[float, float], ...]:
        """(look, residual) of every choice; as decimals they add up to its pcost exactly.  A residual may cost 0."""
        own = [len(left.B) > 0 for left in self.residuals]
        return exact_split(self.common.pcost, [M.pcost for M in self.mechanisms], own=own)

    def recreation(self, i: int) -> Recreation:
        """Matrices that rebuild the output of mechanism i from those of `common` and `residuals[i]`.

        Guarantee: the law is N(B_i x, Sigma_i - extra); extra is 0 if the rows are independent.
        """
        return recreation(self.mechanisms[i], self.common, self.residuals[i])


def _common_rows(mechanisms: Sequence[LinearMechanism]) -> tuple[Array, float]:
    """Standard rows of the common mechanism, and its gap."""
    V = _intersection(mechanisms)
    if not len(V):
        return V, 0.0
    H = [V @ M.right_inverse for M in mechanisms]
    while True:
        # sum H_i H_i^T is never formed: the QR of its root keeps small variances accurate
        Q, T = np.linalg.qr(np.hstack(H).T)
        blocks = np.split(Q, np.cumsum([h.shape[1] for h in H])[:-1])
        # in the coordinates T all C_i add up to the identity, so that they are of one size and none drowns in another
        C = [block.T @ block for block in blocks]
        # a variance below another constrains nothing, and two have a closed form
        kept = _undominated(C) if len(C) > 2 else list(range(len(C)))
        if len(kept) == len(C):
            break
        H = [H[i] for i in kept]
    sizes, P, gap = upper_bound(C)
    basis = scipy.linalg.solve_triangular(T, V, trans="T")
    return (P.T @ basis) / np.sqrt(sizes)[:, None], gap


def _intersection(mechanisms: Sequence[LinearMechanism]) -> Array:
    """Orthonormal basis of the queries that every mechanism can answer, shape (queries, cells)."""
    first, *others = sorted(mechanisms, key=lambda M: M.rank)
    V = first.row_space
    for M in others:
        # sines of principal angles; near 0 cosines lose half the digits, as do squared sines unless large ones go first
        for limit in (1e-6, first.blur(M)):
            outside = V - (V @ M.row_space.T) @ M.row_space
            if np.linalg.norm(outside) > limit:
                squares, U = np.linalg.eigh(outside @ outside.T)
                V = U[:, squares <= limit**2].T @ V
    return V


def _undominated(C: Sequence[Array]) -> list[int]:
    """Constraints that no other one implies; of equal ones the first."""
    kept = list(range(len(C)))
    # from the end, so that the first of equal ones stays
    for i in reversed(range(len(C))):
        if any(np.linalg.eigvalsh(C[j] - C[i])[0] >= -1e-13 for j in kept if j != i):
            kept.remove(i)
    return kept


def upper_bound(C: Sequence[Array]) -> tuple[Array, Array, float]:
    """A least-trace Sigma >= C_i, all shape (k, k): its eigenvalues, eigenvectors (columns) and proven relative gap.

    >>> sizes, _, gap = upper_bound([np.diag([1.0, 3.0]), np.diag([2.0, 1.0])])
    >>> sizes.tolist(), gap < 1e-12
    ([2.0, 3.0], True)
    """
    # a mix that does not repeat eigenvalues shows the common eigenvectors, if there are any
    _, P = np.linalg.eigh(np.sum([np.sqrt(i + 2.0) * c for i, c in enumerate(C)], axis=0))
    turned = [P.T @ c @ P for c in C]
    if max(np.abs(c - np.diag(np.diag(c))).max() for c in turned) <= 1e-12:
        return np.max([np.diag(c) for c in turned], axis=0), P, 0.0
    if len(C) == 2:
        Sigma, bound = C[0] + _positive(C[1] - C[0]), 0.0  # theorem 5.4, (|D| + D) / 2 being the positive part of D
    else:
        # at the optimum Sigma = sum of C_i Y_i with sum of Y_i = I, by complementary slackness
        product = np.sum([c @ y for c, y in zip(C, _dual(C), strict=True)], axis=0)
        Sigma, bound = (product + product.T) / 2, float(np.trace(product))
        for c in C:
            # the dual point is not quite optimal: what is still missing is added, so that the bound holds whatever it
            # is
            Sigma = Sigma + _positive(c - Sigma)
    sizes, P = np.linalg.eigh(Sigma)
    return sizes, P, max(0.0, 1 - bound / float(np.trace(Sigma))) if bound else 0.0


def _dual(C: Sequence[Array]) -> list[Array]:
    import scipy.optimize

    n, k = len(C), len(C[0])

    def split(point: Array) -> tuple[Array, Array, Array, Array, Array]:
        A = point.reshape(n, k, k)
        squares = A @ A.transpose(0, 2, 1)
        sizes, V = np.linalg.eigh(squares.sum(axis=0))
        r = 1 / np.sqrt(np.maximum(sizes, sizes[-1] * 1e-30))
        return A, squares, (V * r) @ V.T, V, r

    def value(point: Array) -> tuple[float, Array]:
        A, squares, root, V, r = split(point)
        pulled = [root @ c @ root for c in C]
        mixed = sum(s @ root @ c for s, c in zip(squares, C, strict=True))
        # the derivative of S^-1/2 is a divided difference in the eigenbasis of S
        turned = V.T @ (mixed + mixed.T) @ V * (-np.outer(r, r) / np.add.outer(1 / r, 1 / r))
        through = V @ turned @ V.T
        slope = np.array([2 * (p + through) @ a for p, a in zip(pulled, A, strict=True)])
        return -float(sum(np.sum(p * s) for p, s in zip(pulled, squares, strict=True))), -slope.ravel()

    # the variables are roots of Y_i, which keeps them positive without constraints
    start = np.array([_positive(c, power=0.5) for c in C]).ravel()
    found = scipy.optimize.minimize(
        value,
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxfun": EVALUATIONS, "maxcor": 20, "ftol": 0, "gtol": 1e-12},
    )
    _, squares, root, _, _ = split(found.x)
    return [root @ s @ root for s in squares]


def _positive(matrix: Array, power: float = 1.0) -> Array:
    """The positive part of a symmetric matrix, to a power."""
    sizes, V = np.linalg.eigh(matrix)
    return np.asarray((V * np.maximum(sizes, 0.0) ** power) @ V.T)
