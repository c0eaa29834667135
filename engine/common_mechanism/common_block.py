"""Common part and residuals of the blocks of several plans.

A block says of the class coordinates c what its precision K = M^T M / noise^2 says, M being its strategy rows in class
coordinates.  Blocks of different spaces concern independent functionals, so a common part of plans is a common part of
each space, and the largest is the largest.  For one space, with K_i of plan i:

    one K below all others     is the common part itself: the usual case, in closed form, of any size
    two that are products      have T_1 (x) ... (x) T_k in common that makes both diagonal; the smaller entry of each
                               coordinate is their common part
    else                       the dense common mechanism, up to `DENSE` class coordinates; past that a share t K_m
                               that lies below all others, which is valid and not the largest

What is left of plan i is K_i minus the look's precision.  It too is diagonal in coordinates T_1 (x) ... (x) T_k found
factor by factor, so that no matrix on the whole space is made.

Source: Xiao, Wang, Zhang and Kifer 2022, definitions 3.9 and 3.10, algorithms 1, 3 and 4, on residual spaces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine._arrays import Array, thin_svd
from engine._format import set_name
from engine._threads import threads_for
from engine.common_mechanism.common_mechanism import SHARE, CommonMechanism, LinearMechanism
from engine.errors import LimitExceeded
from engine.plans import Block
from engine.plans.blocks import noise_grid
from engine.residuals import Axes, Complement, Lift, SplitLift, Strategy, class_rows, contract, grouped
from engine.residuals.basis import ungrouped

DENSE = {2: 2_000, 3: 300}  # most class coordinates of a dense common mechanism of two, and of more, blocks
RANK = 1e-10  # singular values of strategy rows below this share of the largest are dependence
EQUAL = 1e-11  # relative differences of precision that are rounding
OUTSIDE = 1e-8  # share of a row that may leave another row space through rounding
GRID_BITS = 33  # finer than a plan's own grid, so that two steps together round less than one alone


@dataclass(frozen=True, kw_only=True, eq=False)
class Turn:
    """Coordinates T c of some axes: rows T, shape (r, class coordinates), and their right inverse."""

    axes: Axes
    rows: Array
    back: Array


@dataclass(frozen=True, kw_only=True, eq=False)
class Rest:
    """What is left of a block after a look at the same space, in coordinates where both are diagonal.

    Attributes
    ----------
    turns : the coordinates, factor by factor.
    known, wanted : precision by the look and by the plan, 1/counts^2; one axis per turn, or shape () when all agree.
    block : what must still be measured, in these coordinates; None if the look says it all.
    """

    turns: tuple[Turn, ...]
    known: Array
    wanted: Array
    block: Block | None

    def combine(self, looked: Array, answers: Array | None) -> Array:
        """Return precision-weighted class coordinates from those of the look and the answers of `block`, in counts.

        ``looked`` and the result have shape (n_1 - 1, ..., n_k - 1).
        ``looked`` has one axis per attribute, ``answers`` one per turn.  Source: algorithm 4.
        """
        sets = [t.axes for t in self.turns]
        turned = contract(grouped(looked, sets), [t.rows.T for t in self.turns])
        # two independent unbiased estimates, so that precisions are the weights of least variance
        total, out = self.known, self.known * turned
        if self.block is not None and answers is not None:
            weights = 1.0 if self.block.weights is None else self.block.weights
            total = total + (weights / self.block.noise) ** 2
            out = out + weights * answers / self.block.noise**2
        # a coordinate that neither measures stays 0, and no query that follows from the plan asks for it
        mean = np.divide(out, total, out=np.zeros_like(out), where=np.broadcast_to(total, out.shape) > 0)
        return ungrouped(contract(mean, [t.back.T for t in self.turns]), sets, looked.shape)


def common_block(
    blocks: Sequence[Block], centers: Sequence[Array | None], complement: Complement | None
) -> tuple[Block | None, str]:
    """Return the common part of blocks on one space, with its noise not yet on a grid, and how it was found.

    Centers have shape (n_i,).
    """
    # a common part lies below all blocks, so that a block that does is the largest there is
    smallest = _dominated(blocks)
    if smallest is not None:
        return smallest, "closed form"
    dimension = math.prod(n - 1 for n in blocks[0].sizes)
    with threads_for(min(dimension, max(DENSE.values()))):
        if len(blocks) == 2 and (found := _two_products(*blocks)) is not None:
            return found, "closed form"
        if dimension <= DENSE[min(len(blocks), 3)]:
            return _dense_common(blocks, centers, complement), "dense"
        return _scaled(blocks)


def rest(look: Block, whole: Block, max_records: int, stretch: float = 1.0) -> Rest:
    """Return what is left of a plan's block, its noise times ``stretch``, after the look's block.

    Raises
    ------
    LimitExceeded : the blocks are no products of the same sets of axes, and too large to be compared densely.
    """
    # in the coordinates of its own rows a block knows every direction alike
    precision = 1.0 / (whole.noise * stretch) ** 2
    products = whole.weights is None and _aligned(look, whole)
    if look.weights is None and products:
        if all(_same(s, t) for (_, s), (_, t) in zip(look.factors, whole.factors, strict=True)):
            turns = tuple(Turn(axes=a, rows=_class_rows(s), back=s.pinv) for a, s in whole.factors)
            return _rest(max_records, whole, turns, None, np.asarray(1.0 / look.noise**2), np.asarray(precision))
        turned = [_relative(s, t) for (_, s), (_, t) in zip(look.factors, whole.factors, strict=True)]
        turns = tuple(Turn(axes=a, rows=t, back=b) for (a, _), (_, t, b, _) in zip(whole.factors, turned, strict=True))
        known = _outer([g for *_, g in turned]) / look.noise**2
        return _rest(max_records, whole, turns, [p for p, *_ in turned], known, np.full(known.shape, precision))
    if look.weights is not None and products:
        # the look's own coordinates make every block that it was made of diagonal
        backs = [s.pinv for _, s in look.factors]
        squares = [_class_rows(s) @ b for (_, s), b in zip(whole.factors, backs, strict=True)]
        grams = [m.T @ m for m in squares]
        if all(np.abs(g - np.diag(np.diag(g))).max() <= 1e-9 * np.diag(g).max() for g in grams):
            turns = tuple(
                Turn(axes=a, rows=_class_rows(s), back=b) for (a, s), b in zip(look.factors, backs, strict=True)
            )
            wanted = _outer([np.diag(g) for g in grams]) * precision
            return _rest(max_records, look, turns, None, (look.weights / look.noise) ** 2, wanted)
    one, other = whole_rows(look), whole_rows(whole)
    P, T, back, known = _relative_rows(one, other)
    axes = tuple(range(len(whole.attributes)))
    rows = P.T @ _written_out(whole, [s.rows for _, s in whole.factors], whole.sizes)
    merged = Strategy(sizes=whole.sizes, rows=rows, pinv=back, complete=len(rows) == T.shape[1])
    known = known / look.noise**2
    return _rest(
        max_records,
        replace(whole, factors=((axes, merged),), weights=None),
        (Turn(axes=axes, rows=T, back=back),),
        None,
        known,
        np.full(known.shape, precision),
    )


def on_grid(block: Block, noise: float, max_records: int) -> Block:
    """Return the block with its noise rounded up to a whole number of fine grid steps."""
    grid = noise_grid(noise, max_records * block.column_norm, GRID_BITS)
    return replace(block, noise=math.ceil(noise / grid) * grid, grid=grid)


def whole_rows(block: Block) -> Array:
    """Return M of a block on all class coordinates, shape (measurements, class coordinates); small blocks only."""
    dimension = math.prod(n - 1 for n in block.sizes)
    if max(dimension, block.measurements) > 2 * DENSE[2]:
        raise LimitExceeded(
            f"On {set_name(block.attributes)} the plans measure different products of attributes, and the "
            f"{dimension:,} coordinates are too many to compare them as a whole; {2 * DENSE[2]:,} are possible. Ask "
            "the same families of these attributes in every plan, or leave these attributes out of one."
        )
    return _written_out(block, [_class_rows(s) for _, s in block.factors], [n - 1 for n in block.sizes])


def _rest(
    max_records: int,
    basis_block: Block,
    turns: tuple[Turn, ...],
    P: Sequence[Array] | None,
    known: Array,
    wanted: Array,
) -> Rest:
    # what the look says up to rounding is not measured again: noise of infinite deviation would be asked for
    own = np.where(wanted - known > SHARE * wanted, wanted - known, 0.0)
    if not own.any():
        return Rest(turns=turns, known=known, wanted=wanted, block=None)
    noise = 1.0 / math.sqrt(float(own.max()))
    if own.shape == ():
        return Rest(
            turns=turns,
            known=known,
            wanted=wanted,
            block=on_grid(replace(basis_block, noise=noise), noise, max_records),
        )
    factors = []
    for k, ((axes, s), turn) in enumerate(zip(basis_block.factors, turns, strict=True)):
        rows = s.rows if P is None else P[k].T @ s.rows
        factors.append((axes, Strategy(sizes=s.sizes, rows=rows, pinv=turn.back, complete=s.complete)))
    made = replace(basis_block, factors=tuple(factors), weights=np.sqrt(own) * noise)
    return Rest(turns=turns, known=known, wanted=wanted, block=on_grid(made, noise, max_records))


def _dominated(blocks: Sequence[Block]) -> Block | None:
    """Return a block whose precision is below that of all others, if there is one; of equal ones the first."""
    # the noisiest first: if one is below all others, it is usually that
    for block in sorted(blocks, key=lambda b: -b.noise / b.column_norm):
        if all(b is block or _largest(block, b) <= 1.0 + EQUAL for b in blocks):
            return block
    return None


def _largest(part: Block, whole: Block) -> float:
    """Return the least t with K_part <= t K_whole; infinite if there is none, or it is not found by factors."""
    if part.weights is not None or whole.weights is not None or not _aligned(part, whole):
        return math.inf
    size = (whole.noise / part.noise) ** 2
    for (_, s), (_, t) in zip(part.factors, whole.factors, strict=True):
        if not _same(s, t):
            # K_s <= t K_t means that everything s measures lies in the span of t, and the largest relative precision is
            # t
            *_, known = _relative(s, t)
            if not _inside(s, t):
                return math.inf
            # the largest eigenvalue of a Kronecker product is the product of the largest ones
            size *= float(known.max(initial=0.0))
    return size


def _two_products(one: Block, other: Block) -> Block | None:
    """Return the coordinate-wise smaller precision of two products on the same sets of axes, or None."""
    if not _aligned(one, other) or one.weights is not None or other.weights is not None:
        return None
    factors, known = [], []
    for (axes, s), (_, t) in zip(one.factors, other.factors, strict=True):
        if not (_inside(s, t) and _inside(t, s)):
            return None
        P, _, back, g = _relative(s, t)
        factors.append((axes, Strategy(sizes=t.sizes, rows=P.T @ t.rows, pinv=back, complete=t.complete)))
        known.append(g)
    # where both are diagonal, A <= B and A <= C hold entry by entry (definition 3.9)
    precision = np.minimum(_outer(known) / one.noise**2, 1.0 / other.noise**2)
    noise = 1.0 / math.sqrt(float(precision.max()))
    weights = np.sqrt(precision) * noise
    if len(factors) == 1:
        ((axes, s),) = factors
        plain = Strategy(sizes=s.sizes, rows=weights[:, None] * s.rows, pinv=s.pinv / weights, complete=s.complete)
        return replace(other, factors=((axes, plain),), noise=noise)
    return replace(other, factors=tuple(factors), noise=noise, weights=weights)


def _dense_common(
    blocks: Sequence[Block], centers: Sequence[Array | None], complement: Complement | None
) -> Block | None:
    both = CommonMechanism(*(LinearMechanism(whole_rows(b) / b.noise) for b in blocks))
    if not both.common.rank:
        return None
    sizes, S = blocks[0].sizes, both.common.standard_rows
    lift = Lift(sizes, centers)
    if complement is not None:
        lift = SplitLift(sizes, centers, ((0, 1),), {(0, 1): complement})
    rows, axes = lift.rows(S), tuple(range(len(sizes)))
    # the common mechanism comes with noise 1; blocks have column norm 1 and say the rest by their noise
    norm = math.sqrt(float((rows**2).sum(axis=0).max()))
    pinv = both.common.right_inverse * norm
    made = Strategy(sizes=sizes, rows=rows / norm, pinv=pinv, complete=len(S) == S.shape[1])
    return replace(blocks[0], factors=((axes, made),), noise=1.0 / norm, weights=None)


def _scaled(blocks: Sequence[Block]) -> tuple[Block | None, str]:
    best, share = None, 0.0
    for block in blocks:
        # 1e-12 on top keeps the share below the others in spite of rounding
        found = 1.0 / max(_largest(block, b) * (1.0 + 1e-12) for b in blocks)
        precision = found * math.prod(float(np.sum(s.rows**2)) for _, s in block.factors) / block.noise**2
        if precision > share:
            best, share = replace(block, noise=block.noise / math.sqrt(min(1.0, found))), precision
    return (
        best,
        "valid, but not the largest: too many coordinates for that" if best else "nothing: too large to compare",
    )


def _aligned(one: Block, other: Block) -> bool:
    return [a for a, _ in one.factors] == [a for a, _ in other.factors]


def _same(one: Strategy, other: Strategy) -> bool:
    return one is other or np.array_equal(one.rows, other.rows)


def _inside(part: Strategy, whole: Strategy) -> bool:
    """Return whether everything that one strategy measures is in the span of the other."""
    if whole.complete:
        return True
    rows = _class_rows(part)
    left = rows - (rows @ whole.span) @ whole.span.T
    return float(np.linalg.norm(left)) <= OUTSIDE * float(np.linalg.norm(rows))


def _relative(part: Strategy, whole: Strategy) -> tuple[Array, Array, Array, Array]:
    return _relative_rows(_class_rows(part), _class_rows(whole))


def _relative_rows(part: Array, whole: Array) -> tuple[Array, Array, Array, Array]:
    """Return P, T = P^T M, a right inverse of T, and g: in coordinates T c the part has precision diag(g), M 1."""
    # in the singular coordinates of the whole its precision is the identity, and one symmetric eigenproblem makes the
    # part diagonal, too
    U, sizes, Vt = thin_svd(whole)
    kept = sizes > RANK * sizes[0]
    U, sizes, Vt = U[:, kept], sizes[kept], Vt[kept]
    G = (part @ Vt.T) / sizes
    g, Q = np.linalg.eigh(G.T @ G)
    P = U @ Q
    return P, P.T @ whole, (Vt.T / sizes) @ Q, np.maximum(g, 0.0)


def _class_rows(strategy: Strategy) -> Array:
    """Return M, shape (measurements, class coordinates): rows times N, for any centers and complements."""
    return class_rows(strategy.rows, strategy.sizes)


def _written_out(block: Block, matrices: Sequence[Array], sizes: Sequence[int]) -> Array:
    """Return the product of one matrix a factor, times the weights, its columns in the order of the attributes."""
    out = np.ones((1, 1))
    for matrix in matrices:
        out = np.asarray(np.kron(out, matrix), dtype=float)
    grown = [math.prod(sizes[a] for a in axes) for axes in block.sets]
    flat = ungrouped(out.reshape(len(out), *grown), block.sets, sizes, 1).reshape(out.shape)
    return flat if block.weights is None else flat * block.weights.reshape(-1, 1)


def _outer(vectors: Sequence[Array]) -> Array:
    out = np.ones(())
    for v in vectors:
        out = np.multiply.outer(out, v)
    return np.asarray(out)
