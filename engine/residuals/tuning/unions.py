"""Unions: residual spaces measured by one strategy.

Two spaces may be measured by one strategy on the table of all their attributes.  The two separate strategies at their
best shares of the budget are one such strategy, so a union is never less accurate, whatever the centers; and as every
space still belongs to one block only, blocks stay linearly independent: answers are unbiased, costs add up and all
tables agree.  A pair that is asked alone keeps its queries whole this way; when the union holds every space that is
asked, the plan is the best of all matrix mechanisms.  A union measures the span of what is asked and no more: a query
outside that span is refused even where separate spaces would measure each of its pieces.

What limits unions is work: the Gram of a union is no longer small or a Kronecker product.  So a union takes as many
spaces as one dense solve can afford.

Notation: rows R with R^T R the Gram of a group in the coordinates of `pieces`, cut to the spaces of the union.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine._arrays import Array
from engine.residuals.basis import pieces, positions
from engine.residuals.decomposition import Decomposition, Factor, Subworkload, Term
from engine.residuals.kronecker_sums import fewer, part_rows, rows_bytes
from engine.residuals.split import Axes, Complement, Space, Split
from engine.residuals.strategy_search import PRODUCTS, dense_bytes
from engine.residuals.tuning.complements import cyclic
from engine.workload import Group, Part, Workload, whole_group

WORK = 6e7  # most multiplications in one step of the search for the strategy of a union
WHOLE = 6e10  # the same for a union of all spaces, which is the best of all mechanisms: 2,048 cells, asked in full
DOMAIN = 4_096  # cells of a union of all spaces beyond `WORK`: searches on few rows of many cells hardly end
WAIT = 1.4  # seconds that the best of all mechanisms may take where tuning spaces apart takes less: 690 cells
ONE = 0.3  # seconds up to which all queries on a single attribute are gone through
MAX_CELLS = 100_000  # of the table of a union: it is counted, and carries one dual weight a cell
ENTRIES = 2e8  # most entries of all query rows of the groups inside a union
FORMS = 4_096  # cells of a product group up to which a union of all that is asked needs no row for every query
STEPS, FEW = 12, 60  # steps of the search for a union's strategy as measured: of whole tables, and of others
LEAST_SECONDS = 0.01  # of such a search, however small
LISTED = 3e-8  # seconds in which one entry of a query row is made and split into pieces
ROW = 600  # multiplications that take as long as one such entry
KEPT = 10  # entries for which the variance of one query that needs no row stands
MAX_SPACES = 60  # with more spaces than this, what single unions gain is small
ALIKE = 1e-12  # of its largest entry, by which rounding may move the Gram of a union
SPREAD = 1e9  # unions of weights further apart would lose what the light ones ask in rounding


def unite(parts: Decomposition, workload: Workload, split: Split, memory_limit: float = math.inf) -> Decomposition:
    """Return the decomposition with one subworkload, on the table of all its attributes, in place of each union.

    Centers have shape (n_i,).

    Guarantee: the Gram of a union holds the products of all its pieces, those of different spaces included.

    Raises
    ------
    ValueError : the unions are none of this decomposition, or too large; those of `choose_unions` are neither.
    """
    if not split.unions:
        return parts
    factors, subworkloads, spaces = list(parts.factors), list(parts.subworkloads), dict(parts.spaces)
    alike: dict[Hashable, list[tuple[Array, int]]] = {}
    for together in split.unions.values():
        for space in together:
            if spaces.pop(space, None) is None:
                raise ValueError("a union holds a space that is not asked, or that another union holds")
    for attributes, together in split.unions.items():
        sizes = workload.schema.sizes(attributes)
        if workload.schema.ranked(set(attributes)) != attributes or attributes in spaces or not together:
            raise ValueError("the attributes of a union are out of order, or measured apart as well")
        if not math.isfinite(work_of(workload, attributes, together, memory_limit)):
            raise ValueError("a union is too large")
        at = tuple(tuple(attributes.index(name) for name in space) for space in together)
        factor, axes = union_factor(workload, attributes, at, split), tuple(range(len(sizes)))
        centers, complements = tuple(split.given(attributes)), split.inside(attributes)
        same = alike.setdefault((sizes, at, _signs(centers, complements)), [])
        gram = factor.matrix.T @ factor.matrix if factor.low_rank else factor.matrix
        # many pairs are asked the same, if in another order of rows: their unions are searched once
        near = [number for other, number in same if np.allclose(other, gram, rtol=0.0, atol=ALIKE * np.abs(gram).max())]
        if near:
            spaces[attributes] = near[0], 1.0
            continue
        same.append((gram, len(subworkloads)))
        factors.append(factor)
        subworkloads.append(
            Subworkload(
                sizes=sizes,
                terms=(Term(coefficient=1.0, factors=((axes, len(factors) - 1),)),),
                centers=centers,
                labels=(None,) * len(sizes),
                complements=complements,
                spaces=at,
            )
        )
        spaces[attributes] = (len(subworkloads) - 1, 1.0)
    used = sorted({number for number, _ in spaces.values()})
    return replace(
        parts,
        factors=tuple(factors),
        subworkloads=tuple(subworkloads[k] for k in used),
        spaces={space: (used.index(number), scale) for space, (number, scale) in spaces.items()},
    )


def _signs(centers: Sequence[Array | None], complements: Mapping[Axes, Complement]) -> Hashable:
    """Return what tells splits apart."""
    told = tuple(None if center is None else center.tobytes() for center in centers)
    return told, frozenset((axes, complement.key) for axes, complement in complements.items())


def union_factor(workload: Workload, attributes: Space, spaces: Sequence[Axes], split: Split) -> Factor:
    """Return the Gram of some spaces on one table, in their class coordinates one space after the other."""
    sizes = workload.schema.sizes(attributes)
    kept = positions(sizes, spaces)
    stacks: dict[Axes, list[Array]] = {}
    for group in workload.groups:
        if group.weight > 0.0:
            inside, rows = group_rows(workload, group, attributes, split)
            stacks.setdefault(inside, []).append(math.sqrt(group.weight) * rows)
    out = []
    for inside, stack in stacks.items():
        rows = fewer(np.concatenate(stack))
        table = np.zeros((len(rows), *sizes))
        # an attribute that the groups do not have is in none of their spaces
        own = tuple(slice(None) if axis in inside else 0 for axis in range(len(sizes)))
        table[(slice(None), *own)] = rows.reshape(len(rows), *(sizes[axis] for axis in inside))
        out.append(table.reshape(len(rows), -1)[:, kept])
    joined = np.concatenate(out)
    # fewer rows than coordinates are kept as rows: their Gram would be larger, and of no higher rank
    low = len(joined) < len(kept)
    return Factor(sizes=sizes, matrix=joined if low else joined.T @ joined, low_rank=low)


def group_rows(workload: Workload, group: Group, attributes: Space, split: Split) -> tuple[Axes, Array]:
    """Return the axes of ``attributes`` of a group, and rows, shape (rows, cells), with the Gram of its pieces."""
    parts: Sequence[Part] = group.parts
    ranked = workload.schema.ranked
    # neither weights of single queries nor a complement that couples attributes is a product over the parts
    if group.query_weights is not None or (len(parts) > 1 and split.inside(ranked(group.attributes))):
        parts = (whole_group(group),)
    out, placed = np.ones((1, 1)), list[str]()
    for part in parts:
        own = group.named(part.axes)
        names = ranked(own)
        rows = part_rows(part, group.query_weights).reshape(-1, *part.sizes)
        rows = rows.transpose(0, *(1 + own.index(name) for name in names))
        tuned = split.inside(names)
        made = pieces(rows.reshape(len(rows), -1), rows.shape[1:], split.given(names), tuned)
        held = tuple(slice(None) if name in attributes else 0 for name in names)
        made = fewer(made.reshape(rows.shape)[(slice(None), *held)].reshape(len(rows), -1))
        out = np.asarray(np.kron(out, made), dtype=float)
        placed += [name for name in names if name in attributes]
    inside = ranked(placed)
    table = out.reshape(len(out), *workload.schema.sizes(placed))
    table = table.transpose(0, *(1 + placed.index(name) for name in inside))
    return tuple(attributes.index(name) for name in inside), table.reshape(len(out), -1)


def choose_unions(
    workload: Workload,
    spaces: Collection[Space],
    memory_limit: float,
    apart: Callable[[], float] = lambda: 0.0,
    left: float = math.inf,
) -> dict[Space, tuple[Space, ...]]:
    """Return the unions that can be afforded, out of the residual spaces that are asked: one of all where possible.

    ``apart`` forecasts, in seconds, what tuning would take without unions: one of all spaces, which is the best of all
    mechanisms and needs no tuning, may take as long, and `WAIT` in any case, if so many seconds are ``left``.

    Otherwise the largest spaces are collected into clusters of overlapping attributes as long as the work allows, and
    every space belongs to the first cluster that holds its attributes.  A union answers what its groups span, so
    workloads where single queries weigh nothing keep their spaces apart.
    """
    everything = workload.schema.ranked(set().union(*spaces))
    # so many spaces are no union of all, and what single unions gain among them is small
    if not everything or (len(spaces) > MAX_SPACES and workload.schema.cells(everything) > MAX_CELLS):
        return {}
    weights = [np.ravel(g.weight if g.query_weights is None else g.weight * g.query_weights) for g in workload.groups]
    asked = np.concatenate([w for w, g in zip(weights, workload.groups, strict=True) if g.weight > 0.0])
    # what hardly weighs anything would be answered too badly by one strategy, and must be answered all the same
    if asked.max() > SPREAD * asked.min():
        return {}

    def work(attributes: Space) -> float:
        if workload.schema.cells(attributes) > MAX_CELLS:
            return math.inf
        own = _inside(spaces, attributes)
        dimension = dimension_of(workload, own)
        # the variances of a union may need every query of the groups inside
        formed = _needs_no_rows(workload, attributes, own)
        wide = [_entries(g, dimension, formed) for g in _touching(workload, attributes)]
        affordable = sum(wide) <= ENTRIES and rows_of_union(workload, attributes, own) <= memory_limit
        return work_of(workload, attributes, own, memory_limit) if affordable else math.inf

    # any strategy on one attribute is the total and, with the right center, one for the rest: the quicker way is taken
    if len(everything) == 1 and union_seconds(workload, everything, spaces) > ONE:
        return {}
    needed = work(everything)
    if needed <= WORK:
        return {everything: tuple(spaces)}
    if needed <= WHOLE and workload.schema.cells(everything) <= DOMAIN and not cyclic(workload):
        seconds = strategy_seconds(workload, everything, spaces) + union_seconds(workload, everything, spaces)
        if seconds <= left and (seconds <= WAIT or seconds <= apart()):
            return {everything: tuple(spaces)}
    if len(spaces) > MAX_SPACES:
        return {}
    if math.fsum(map(_entries, workload.groups)) > ENTRIES:
        # every query has a piece in the total, and complements, which are found later, may couple it to all of them
        spaces = [space for space in spaces if space]
    clusters: dict[Space, float] = {}
    for space in sorted(spaces, key=len, reverse=True):
        if len(space) < 2 or any(set(space) <= set(cluster) for cluster in clusters):
            continue
        # the cluster that shares most attributes first; one of its own when none can take the space
        for near in (*sorted(clusters, key=lambda c: -len(set(c) & set(space))), ()):
            if near and not set(near) & set(space):
                continue
            grown = workload.schema.ranked({*near, *space})
            needed = work(grown)
            if sum(clusters.values()) - clusters.get(near, 0.0) + needed <= WORK:
                clusters.pop(near, None)
                clusters[grown] = needed
                break
    return _assigned(list(clusters), spaces)


def _inside(spaces: Collection[Space], attributes: Space) -> list[Space]:
    return [space for space in spaces if set(space) <= set(attributes)]


def _entries(group: Group, least: int = 0, formed: bool = False, parts: Sequence[Part] | None = None) -> float:
    """Return the entries of the query rows of a group, each at least so long, or what takes as long to go through.

    ``formed`` says that products need no row a query, see `_needs_no_rows`; ``parts`` are those that are looked at.
    """
    parts = group.parts if parts is None else parts
    cells, counts = math.prod(part.cells for part in parts), [part.count for part in parts]
    listed = float(math.prod(counts) * max(cells, least)) if group.weight > 0.0 else 0.0
    if formed and len(counts) > 1 and cells <= FORMS and group.query_weights is None:
        return min(listed, float(KEPT * math.prod(counts) + min(counts) * cells**2 // ROW))
    return listed


def _needs_no_rows(workload: Workload, attributes: Space, spaces: Collection[Space]) -> bool:
    """Return whether a union holds all that is asked and measures all of it, so that products need no row a query."""
    inside = all(set(g.attributes) <= set(attributes) for g in workload.groups if g.weight > 0.0)
    return inside and rank_of(workload, attributes, spaces) == dimension_of(workload, spaces)


def _touching(workload: Workload, attributes: Space) -> list[Group]:
    return [g for g in workload.groups if g.weight > 0.0 and set(g.attributes) & set(attributes)]


def _held(group: Group, part: Part, inside: Collection[str]) -> int:
    return math.prod(n for axis, n in zip(part.axes, part.sizes, strict=True) if group.attributes[axis] in inside)


def _assigned(clusters: Sequence[Space], spaces: Collection[Space]) -> dict[Space, tuple[Space, ...]]:
    """Return the spaces of every cluster, each space in one cluster only; clusters of one space are left out."""
    free, out = dict.fromkeys(spaces), {}
    for cluster in sorted(clusters, key=len, reverse=True):
        own = _inside(free, cluster)
        if len(own) > 1:
            out[cluster] = tuple(own)
            for space in own:
                del free[space]
    return out


def work_of(workload: Workload, attributes: Space, spaces: Collection[Space], memory_limit: float) -> float:
    """Return the multiplications in one step of the search for a union's strategy; infinite beyond other limits."""
    cells = workload.schema.cells(attributes)
    if cells > MAX_CELLS:
        return math.inf
    dimension, formed = dimension_of(workload, spaces), _needs_no_rows(workload, attributes, spaces)
    if any(_entries(g, dimension, formed) > ENTRIES for g in _touching(workload, attributes)):
        return math.inf
    rank = rank_of(workload, attributes, spaces)
    return rank * rank * (cells + 6.0 * rank) if dense_bytes(rank, dimension, cells) <= memory_limit else math.inf


def rank_of(workload: Workload, attributes: Space, spaces: Collection[Space]) -> int:
    """Return an upper bound on the number of rows of a union's strategy."""
    asked = 0
    for group in workload.groups:
        inside = [name for name in group.attributes if name in attributes]
        asked += math.prod(min(p.count, _held(group, p, inside)) for p in group.parts) if inside else 0
    return min(asked + 1, sum(_rank_in(workload, space) for space in spaces))


def _rank_in(workload: Workload, space: Space) -> int:
    """Return an upper bound on the number of class rows that queries have in a residual space."""
    whole, asked = math.prod(n - 1 for n in workload.schema.sizes(space)), 0
    for group in workload.groups:
        if asked < whole and group.weight > 0.0 and set(space) <= set(group.attributes):
            own = [
                [n - 1 for a, n in zip(p.axes, p.sizes, strict=True) if group.attributes[a] in space]
                for p in group.parts
            ]
            asked += math.prod(min(p.count, math.prod(sizes)) for p, sizes in zip(group.parts, own, strict=True))
    return min(asked, whole)


def dimension_of(workload: Workload, spaces: Collection[Space]) -> int:
    """Return the number of class coordinates of some spaces."""
    return sum(math.prod(n - 1 for n in workload.schema.sizes(space)) for space in spaces)


def rows_of_union(workload: Workload, attributes: Space, spaces: Collection[Space]) -> int:
    """Return an upper bound on the memory of the query rows of a union until they are one Gram, in bytes."""
    cells, dimension = workload.schema.cells(attributes), dimension_of(workload, spaces)
    largest, stacked = 0, 0
    for group in _touching(workload, attributes):
        # with a complement a product is taken as a whole, as it is with weights of single queries
        parts = (*group.parts, whole_group(group)) if len(group.parts) > 1 else group.parts
        largest = max(largest, sum(map(rows_bytes, parts)) + 8 * sum(p.count * p.cells for p in group.parts))
        stacked += min(cells, math.prod(min(p.count, p.cells) for p in group.parts))
    return largest + 8 * (4 * stacked * cells + min(stacked, dimension) * (cells + 2 * dimension))


def union_bytes(workload: Workload, attributes: Space, spaces: Collection[Space]) -> float:
    """Return the memory that a union's strategy is found in, in bytes, for forecasts."""
    cells, rank = workload.schema.cells(attributes), rank_of(workload, attributes, spaces)
    rows = 0.5 * rows_of_union(workload, attributes, spaces)  # about half of that bound is ever in use at once
    return max(dense_bytes(rank, dimension_of(workload, spaces), cells), rows)


def strategy_seconds(workload: Workload, attributes: Space, spaces: Collection[Space]) -> float:
    """Return what the search for a union's strategy takes, in seconds on one idle core, for forecasts."""
    whole = rank_of(workload, attributes, spaces) == workload.schema.cells(attributes)
    return LEAST_SECONDS + (STEPS if whole else FEW) * work_of(workload, attributes, spaces, math.inf) / PRODUCTS


def union_seconds(workload: Workload, attributes: Space, spaces: Collection[Space]) -> float:
    """Return in what time all queries of the groups inside a union are gone through, on one idle core.

    Its plan needs that to be made: what follows from a strategy that couples spaces is seen query by query, unless it
    holds all spaces and the queries are products.  What parts that share nothing with its spaces ask is a factor, and
    parts alike are gone through once.
    """
    through = dimension_of(workload, spaces) * rank_of(workload, attributes, spaces)
    formed = _needs_no_rows(workload, attributes, spaces)
    # complements, which are for pairs that are asked together, pass down what is no product
    pairs = {frozenset(g.named(p.axes)) for g in workload.groups for p in g.parts if len(p.axes) == 2}
    entries: dict[Any, tuple[float, int]] = {}
    for group in workload.groups:
        own, names = [space for space in spaces if set(space) <= set(group.attributes)], set(group.attributes)
        touched = set().union(*own, *(pair for pair in pairs if pair <= names and any(set(s) < pair for s in own)))
        parts = [part for part in group.parts if touched & set(group.named(part.axes))]
        if own and group.weight > 0.0:
            cells = math.prod(part.cells for part in parts)
            entries[(*own, *(part.key for part in parts))] = _entries(group, formed=formed, parts=parts), cells
    return math.fsum(found * (LISTED + 2.0 * through / (cells * PRODUCTS)) for found, cells in entries.values())
