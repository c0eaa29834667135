"""Shrinkage of tables towards maximum-entropy references.

Entropic fit: a table near its noisy cells and near a reference, with the tables below it as margins.

    min  |T - That|^2 / 2 v + KL(T | m) / tau     subject to the sums of T being the tables on fewer attributes

has T + s log(T / m) = That - u with s = v / tau and multipliers u of the margins, so that with the omega function of
Wright T = s omega((That - u) / s + log(m / s)), always positive.  The reference m is the table of largest entropy that
has the margins: the product of shares for pairs, by iterative proportional fitting beyond.

How loose the reference holds is chosen by Stein's unbiased estimate of the risk: with a few large cells far from it, a
table follows its noisy cells.

Where some directions are known better than others (`metric`), |That - T|^2 / v is the squared distance in standard
errors, and steps along its slope take the place of That.  The reference then holds so loosely that what was measured is
missed by no more than linear shrinking would.

Source of the omega function: Lawrence, Corless and Jeffrey, ACM TOMS algorithm 917.

Shrinking: tables from the smallest up, each near a reference that the smaller ones make.

Fitted tables have no negative cells, but there may be none with all the margins that smaller tables give them.  Most
have: of hundreds of triples all but a few are brought there by proportional fitting.  So only those few, with all
smaller tables, are projected together (`joint`), and all others are scaled to what the smaller tables then are; where
that fails, a table joins the few.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array
from engine.postprocess.checkpoint import NONE, Reached, by_axes, of_axes
from engine.postprocess.contrasts import along_axes, assembled, contrast, faces, maximal
from engine.postprocess.noise_precision import Metric
from engine.postprocess.nonnegative_projection import AGREEING, lifted, nonnegative
from engine.postprocess.partial_pooling import TRIPLE_ROUNDS, Known, better_pairs, single_tables
from engine.postprocess.residual_estimates import Evidence, Seen, all_sets
from engine.progress import Listener
from engine.residuals import Axes

ENTROPY_SWEEPS = 30
STEPS, SETTLED = 200, 1e-4  # of a fit in a metric, and the squared standard errors its last step may move a direction
MISSED = 1e-4  # share of the records by which a margin may be missed: the joint projection mends the rest
LOOSER = (1.4, 4.0, 12.0)  # dispersions tried, against the estimate: few large cells dominate it
UNDERFLOW = 1e-250
LOOSEST = (1.0, 4.0, 16.0, 64.0)  # the same in a metric, until what was measured is missed by no more than its noise
SIGNAL = {2: 1.0}  # standard errors of the noise from which a table is believed to differ from its reference
SIGNAL_BEYOND = 2.0

Possible = npt.NDArray[np.bool_] | None  # all cells, or those that are true; shape (n_1, ..., n_k)


def reference(axes: Axes, margins: Mapping[Axes, Array], possible: Possible = None) -> Array:
    """Return the table of largest entropy with the given margins, one for every face of ``axes``.

    Shapes (n_1, ..., n_k), and without one axis for every face.  What is not ``possible`` is 0.

    >>> reference((0, 1), {(0,): np.array([1.0, 3.0]), (1,): np.array([2.0, 2.0]), (): np.array(4.0)}).tolist()
    [[0.5, 0.5], [1.5, 1.5]]
    """
    # the last two attributes independent given the others: it has two of the margins already
    first, second, rest = axes[:-1], (*axes[:-2], axes[-1]), axes[:-2]
    product = along_axes(margins[first], first, axes) * along_axes(margins[second], second, axes)
    table = _ratio(product, along_axes(np.asarray(margins[rest], dtype=float), rest, axes))
    if possible is not None:
        table = np.where(possible, table, 0.0)
    elif len(axes) == 2:
        return table
    total = float(margins[first].sum())
    return scaled(table, axes, margins, lambda gap: float(np.abs(gap).sum()) <= MISSED * total)


def scaled(
    table: Array, axes: Axes, margins: Mapping[Axes, Array], near: Callable[[Array], bool], sweeps: int = ENTROPY_SWEEPS
) -> Array:
    """Return a table scaled in place, face by face, until what all its margins miss is near enough.

    Shapes (n_1, ..., n_k), and without one axis for every face; ``near`` is asked of gaps of the latter.
    Proportional fitting: of all tables >= 0 with the margins, the one with the least information about the given one.
    """
    for _ in range(sweeps):
        done = True
        for face in faces(axes):
            sums = table.sum(axis=_left_out(axes, face))
            done &= near(sums - margins[face])
            table *= along_axes(_ratio(margins[face], sums), face, axes)
        if done:
            break
    return table


def fitted(
    axes: Axes, seen: Seen | None, margins: Mapping[Axes, Array], total: float, possible: Possible = None
) -> Array:
    """Return the table of a set of attributes: the reference, moved as far as what was seen differs from it.

    Where the difference is no larger than noise makes it, or nothing was seen, the reference stays as it is.
    Shape (n_1, ..., n_k); margins without one of the axes.
    """
    table = reference(axes, margins, possible)
    if seen is None or seen.rank == 0:
        return table
    gap = seen.cells - seen.lens.of(table)
    beyond, errors = seen.surplus(gap)
    if errors < SIGNAL.get(len(axes), SIGNAL_BEYOND):
        return table
    if seen.metric is not None:
        made, tau = table, beyond / float(np.sum(seen.metric.of_cells * table))
        expected = seen.rank**2 / (seen.rank + beyond)  # as linear shrinking to where it began would leave
        for looser in LOOSEST:
            made = _moved_along(table, made, seen, seen.metric, looser * tau, axes, margins)
            if seen.metric.squared(seen.lens.of(made) - seen.cells) <= expected:
                break
        return made
    beyond *= seen.variance
    best, least = table, math.inf
    for looser in LOOSER:
        s = seen.variance * total / (looser * beyond)
        made = _moved(table, table + gap, s, axes, margins)
        risk = _risk(made, table, gap, s, seen, beyond / total)
        if risk < least:
            best, least = made, risk
    return best


def _moved_along(
    table: Array, start: Array, seen: Seen, metric: Metric, tau: float, axes: Axes, margins: Mapping[Axes, Array]
) -> Array:
    """Return the minimum of the fit in a metric: steps along its slope, each of which is a fit of its own."""
    step = 1.0 / metric.steepest
    kept = point = start
    age = 1.0
    for _ in range(STEPS):
        slope = metric.of(seen.lens.of(point) - seen.cells)
        made = _moved(table, point - step * slope, step / tau, axes, margins, MISSED)
        moved = made - kept
        older = 1.0 if float(np.sum((point - made) * moved)) > 0.0 else age  # it went too far: it starts anew
        age = (1.0 + math.sqrt(1.0 + 4.0 * older * older)) / 2.0
        point, kept = made + (older - 1.0) / age * moved, made
        if metric.squared(moved) <= SETTLED * seen.rank:
            break
    return kept


def _risk(made: Array, table: Array, gap: Array, s: float, seen: Seen, tau: float) -> float:
    """Return Stein's estimate of the squared error, cells weighed by what is expected of them, but for a constant."""
    weights = 1.0 / (seen.variance + tau * table)
    slope = made / (made + s)
    moved = seen.lens.of(made - table) - gap
    return float(np.sum(weights * (moved**2 + 2.0 * seen.variance * slope * seen.rank / table.size)))


def _moved(
    table: Array, noisy: Array, s: float, axes: Axes, margins: Mapping[Axes, Array], precise: float | None = None
) -> Array:
    """Return s omega((noisy - u) / s + log(table / s)) with the multipliers u that give the margins."""
    with np.errstate(divide="ignore"):
        argument = noisy / s + np.log(table / s)
    total = float(table.sum())
    precise = precise or (MISSED if len(axes) > 2 else 1e-13)
    for sweep in range(ENTROPY_SWEEPS if len(axes) > 2 else 10 * ENTROPY_SWEEPS):
        missed = 0.0
        for face in faces(axes):
            out, wanted = _left_out(axes, face), margins[face]
            omega = scipy.special.wrightomega(argument)
            sums, slopes = s * omega.sum(axis=out), (omega / (1.0 + omega)).sum(axis=out)
            missed = max(missed, float(np.abs(sums - wanted).sum()))
            # Newton's step for the logarithm of the sum, nearly concave in u: it comes back from wherever it jumps
            live = (wanted > 0.0) & (slopes > UNDERFLOW)
            steps = np.zeros_like(sums)
            steps[live] = sums[live] * (np.log(sums[live]) - np.log(wanted[live])) / slopes[live]
            if (lost := (wanted > 0.0) & ~live).any():  # all cells far below 0: the largest is brought to the margin
                top = argument.max(axis=out)
                lost &= np.isfinite(top)
                steps[lost] = s * (top[lost] - np.log(wanted[lost] / s))
            argument -= along_axes(steps, face, axes) / s
        if sweep and missed <= precise * total:
            break
    return np.asarray(s * scipy.special.wrightomega(argument))


def _left_out(axes: Axes, face: Axes) -> tuple[int, ...]:
    return tuple(i for i, a in enumerate(axes) if a not in face)


def _ratio(above: Array, under: Array) -> Array:
    """Return a quotient that is 0 where nothing is divided by nothing."""
    shape = np.broadcast_shapes(above.shape, under.shape)
    return np.divide(above, under, out=np.zeros(shape), where=np.broadcast_to(under > 0.0, shape))


SOONER = 0.2  # of what may be mixed in: how near margins are met, so that little is left to mend
SCALING_SWEEPS, JOINING = 100, 6  # of scaling, and rounds after which all are projected together


def shrunk_total(total: float, variance: float) -> float:
    """Return a noisy number of records, drawn towards 0 as far as its noise may have made it.

    The positive part of James and Stein: it matters where the number is of the size of its own noise, and moves one of
    50 standard errors by a fiftieth of a standard error.

    >>> shrunk_total(10.0, 4.0), shrunk_total(-3.0, 4.0)
    (9.6, 0.0)
    """
    return max(0.0, total - variance / total) if total > 0.0 else 0.0


def shrunk_contrasts(found: Evidence, total: float, tell: Listener, steps: Reached = NONE) -> dict[Axes, Array]:
    """Return contrasts of tables that are shrunk towards references, one set of attributes after the other.

    ``total`` is the number of records, above 0.  Tables with the same margins agree but for what the fits left.
    Contrasts have the shapes of their tables.
    """
    by_order = {k: [axes for axes in found.sets if len(axes) == k] for k in range(len(found.sets[-1]) + 1)}
    done = steps.taken("low")
    tables = of_axes(done) if done else _taught(found, total, by_order, tell)
    steps.take("low", by_axes(tables))
    out = {axes: contrast(table) for axes, table in tables.items()}
    upper = [axes for axes in found.sets if len(axes) > 2]
    above = {face for axes in upper for face in faces(axes)}
    for number, axes in enumerate(upper):
        margins = {face: tables[face] for face in (*faces(axes), axes[:-2])}
        table = found.exact.get(axes)
        if table is None:
            done = steps.taken(name := f"fit {number}")
            table = (
                done["table"] if done else fitted(axes, found.seen.get(axes), margins, total, found.possible.get(axes))
            )
            if not done:
                steps.take(name, {"table": table})
        if axes in above:
            tables[axes] = table
        out[axes] = contrast(table)
        tell(0.1 + 0.3 * (number + 1) / len(upper), "Fitting tables")
    return out


def _taught(found: Evidence, total: float, by_order: dict[int, list[Axes]], tell: Listener) -> dict[Axes, Array]:
    """Return the tables of at most two attributes, with what triples teach them."""
    own = {a: (found.seen[a].cells, found.seen[a].variance) for a in by_order.get(2, []) if _plain(found, a)}
    tables: dict[Axes, Array] = {(): np.array(total)}
    tables |= _low(found, total, tables, by_order, own)
    triples = [axes for axes in by_order.get(3, []) if _plain(found, axes)]
    if triples:
        known = own
        for _ in range(TRIPLE_ROUNDS):
            singles = {a: tables[a] for a in by_order[1]}
            pairs = {a: tables[a] for a in by_order[2]}
            known = better_pairs(found, total, singles, pairs, triples)
            tables |= _pairs(found, total, tables, by_order[2], known)
            tell(0.1, "Reading pairs from triples")
        tables |= _low(found, total, tables, by_order, known)
    return tables


def agreeing(
    found: Evidence, contrasts: dict[Axes, Array], enough: float, tell: Listener, steps: Reached = NONE
) -> dict[Axes, Array]:
    """Return contrasts near those of fitted tables, of the same shapes, whose tables have no negative cells.

    Contrasts are changed in place.  ``enough`` is the share of even tables that may be mixed in; facts are none.

    Guarantee: every table is at least 0, but for the rounding of sums.
    """
    total, least = float(contrasts[()]), SOONER * enough
    few = [axes for axes in found.tables if len(axes) <= 2]
    others = [axes for axes in found.tables if len(axes) > 2]
    faced = {face for axes in others for face in faces(axes)}
    for number in itertools.count():
        low, share = 1.0 - 0.5**number, 0.5 ** (number + 1)  # how many rounds there will be is not known
        held = maximal([*few, *faced])
        before = {axes: contrasts[axes] for axes in all_sets(tuple(held))}
        own, held_to = {axes: c.copy() for axes, c in before.items()}, least if others else enough
        part, reach = _part(tell, low, share), steps.within(f"agree {number}")
        contrasts |= nonnegative(own, held, found.sizes, held_to, part, steps=reach)
        failed = []
        for axes in others:
            tell(low + share, AGREEING)
            table = np.maximum(assembled({**before, axes: contrasts[axes]}, axes), 0.0)
            margins = {face: assembled(contrasts, face) for face in faces(axes)}
            done = reach.taken(name := "on " + ",".join(map(str, axes)))
            if done:
                contrasts[axes] = done["contrast"]
            else:
                contrasts[axes] = contrast(
                    scaled(table, axes, margins, partial(_near, allowed=least * total), SCALING_SWEEPS)
                )
                reach.take(name, {"contrast": contrasts[axes]})
            if -float(assembled(contrasts, axes).min()) * table.size > enough * total:
                failed.append(axes)
        if not failed:
            break
        few += failed if number < JOINING else others
        others = [axes for axes in others if axes not in few]
    return lifted(contrasts, found.tables, {}, {}, ())


def _part(tell: Listener, low: float, share: float) -> Listener:
    return lambda done, words: tell(low + share * done, words)


def _near(gap: Array, allowed: float) -> bool:
    return float(np.abs(gap).max(initial=0.0)) * gap.size <= allowed


def _plain(found: Evidence, axes: Axes) -> bool:
    return axes in found.seen and found.seen[axes].lens.plain and found.seen[axes].metric is None


def _low(
    found: Evidence, total: float, tables: dict[Axes, Array], by_order: dict[int, list[Axes]], known: dict[Axes, Known]
) -> dict[Axes, Array]:
    """Return the tables of one and of two attributes."""
    singles = single_tables(found, total, known)
    return singles | _pairs(found, total, tables | singles, by_order.get(2, []), known)


def _pairs(
    found: Evidence, total: float, tables: dict[Axes, Array], pairs: list[Axes], known: dict[Axes, Known]
) -> dict[Axes, Array]:
    out = {}
    for axes in pairs:
        seen = found.seen.get(axes)
        if seen is not None and axes in known:
            seen = replace(seen, cells=known[axes][0], variance=known[axes][1])  # with what triples taught
        margins = {face: tables[face] for face in (*faces(axes), ())}
        table = found.exact.get(axes)
        out[axes] = fitted(axes, seen, margins, total, found.possible.get(axes)) if table is None else table
    return out
