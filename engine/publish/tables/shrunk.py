"""Shrinking: tables from the smallest up, each near a reference that the smaller ones make.

Fitted tables have no negative cells, but there may be none with all the margins that smaller tables give them.  Most
have: of hundreds of triples all but a few are brought there by proportional fitting.  So only those few, with all
smaller tables, are projected together (`joint`), and all others are scaled to what the smaller tables then are; where
that fails, a table joins the few.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import numpy as np

from engine.arrays import Array
from engine.progress import Listener
from engine.publish.tables.borrow import TRIPLE_ROUNDS, Known, better_pairs, single_tables
from engine.publish.tables.contrasts import assembled, contrast, faces, maximal
from engine.publish.tables.entropic import fitted, scaled
from engine.publish.tables.evidence import Evidence, all_sets
from engine.publish.tables.joint import AGREEING, lifted, nonnegative
from engine.publish.tables.resume import NONE, Reached, by_axes, of_axes
from engine.spaces import Axes

SOONER = 0.2  # of what may be mixed in: how near margins are met, so that little is left to mend
SWEEPS, JOINING = 100, 6  # of scaling, and rounds after which all are projected together


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
                contrasts[axes] = contrast(scaled(table, axes, margins, partial(_near, allowed=least * total), SWEEPS))
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
