"""Unions: several residual spaces measured jointly by one strategy.

The strategy of a union is on the table of all attributes of its spaces.  This strategy may consist
of one strategy per space, so the optimal strategy of a union is at least as accurate as separate
strategies, whatever centers the separate strategies use.  Every space belongs to one block.  So
blocks are linearly independent, answers are unbiased, privacy costs add up and all tables agree.  A
union of all spaces of two attributes answers the queries on these attributes without splitting
them.  A union of all spaces of the workload is the best of all matrix mechanisms.  A union measures
only the span of its queries.  Queries outside this span are refused, although separate strategies
might answer them.

Unions are limited by computing time: the Gram of a union is neither small nor a Kronecker product.
A union therefore has as many spaces as one dense search can solve within the limits.

The Gram of a union is R^T R for rows R with the coefficients of queries on its spaces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from engine._arrays import Array
from engine.residuals.basis import (
    Axes,
    Complement,
    Space,
    Split,
    coordinate_positions,
    residual_coefficients,
)
from engine.residuals.decomposition import (
    Decomposition,
    Factor,
    Subworkload,
    Term,
    attributes_in,
    part_rows,
    reduce_rows,
    rows_bytes,
    wide_window_gram,
)
from engine.residuals.search_costs import PRODUCT_FLOPS, dense_bytes
from engine.residuals.tuning.complements import cyclic
from engine.workload import Group, Part, Workload, joint_part

# Largest number of multiplications of one step of the searches for all unions (joint strategies) of
# a workload together.
MAX_STEP_MULTIPLICATIONS = 6e7
# Largest number of multiplications per step for a union (joint strategy) of all spaces. This limit
# is higher than MAX_STEP_MULTIPLICATIONS, because such a union is optimal among all matrix
# mechanisms. With a Gram of full rank, it allows 2,046 cells.
MAX_FULL_DOMAIN_MULTIPLICATIONS = 6e10
# Largest number of cells of a union (joint strategy) of all spaces that needs more than
# MAX_STEP_MULTIPLICATIONS. On 70 x 60 to 120 x 90 cells, such unions lowered the RMSE by 4 to 22%
# within the time limit.
MAX_LOW_RANK_CELLS = 16_384
# A union (joint strategy) of all spaces whose expected time in seconds is at most this is chosen
# even if separate spaces with tuning take less time. This limit allows 690 cells.
MAX_FULL_DOMAIN_S = 1.4
# A workload on a single attribute gets no union (joint strategy) if computing the variances of its
# queries would take longer than this number of seconds.
MAX_SINGLE_ATTRIBUTE_S = 0.3
# largest number of cells of the table of a union (jointly measured spaces), because every cell has
# a count and a dual weight
MAX_CELLS = 100_000
# largest number of entries of the query rows of all groups with an attribute of a union (jointly
# measured spaces)
MAX_ROW_ENTRIES = 2e8
# Largest number of cells of a group's table for which `_has_closed_form_variances` is used: the
# variances of a product group are computed from the query rows of its product factors. On larger
# tables they are computed query by query.
MAX_PRODUCT_CELLS = 4_096
# measured number of steps of the search for the strategy of a union (jointly measured spaces), for
# Grams of full rank and for Grams of low rank
FULL_RANK_STEPS, LOW_RANK_STEPS = 12, 60
# A joint strategy for all spaces (a union) is searched if the time limit allows this share of the
# expected steps. On 60 x 60 and 100 x 40 cells, 500 random queries were within 2e-4 of the optimum
# after this share, and the best plan without a union was 7% above it.
MIN_STEP_SHARE = 0.5
# shortest time of the search for the strategy of a union (residual spaces that are measured
# jointly), in seconds
MIN_SEARCH_S = 0.01
# time to compute one entry of a query row and split it between residual spaces, in seconds
SECONDS_PER_ENTRY = 3e-8
# number of multiplications that take SECONDS_PER_ENTRY
MULTIPLICATIONS_PER_ENTRY = 600
# computing one variance of a product group from the query rows of its product factors takes as long
# as computing this number of entries of query rows
ENTRIES_PER_VARIANCE = 10
# with more residual spaces than this, only a union (joint strategy) of all spaces is considered,
# because unions of some spaces gain little
MAX_SPACES = 60
# Grams count as equal if their entries differ by at most this share of the largest entry
GRAM_TOLERANCE = 1e-12
# largest ratio of query weights in a union (jointly measured spaces); with a larger ratio, rounding
# errors of the Gram may be as large as the contribution of the queries with the smallest weight
MAX_WEIGHT_RATIO = 1e9


def unite(
    decomposition: Decomposition, workload: Workload, split: Split, memory_limit: float = math.inf
) -> Decomposition:
    """Replace the jointly measured spaces of every union of the split by one subworkload.

    The new subworkload is on the table of all attributes of the union.  Its Gram includes the
    products of a query's components in different residual spaces.

    Raises
    ------
    ValueError : a union exceeds the limits of size and memory, or does not fit the decomposition.
        This cannot happen with the unions that `choose_unions` returns.
    """
    if not split.unions:
        return decomposition
    factors, subworkloads = list(decomposition.factors), list(decomposition.subworkloads)
    spaces = _spaces_outside(decomposition, split)
    # subworkloads of the unions (jointly measured spaces) so far, as pairs (residual Gram, index of
    # the subworkload)
    by_signature: dict[Hashable, list[tuple[Factor, int]]] = {}
    for attributes, union in split.unions.items():
        _check_union(workload, attributes, union, spaces, memory_limit)
        sizes = workload.schema.sizes(attributes)
        space_axes = tuple(tuple(attributes.index(name) for name in space) for space in union)
        factor = union_gram(workload, attributes, space_axes, split)
        axes = tuple(range(len(sizes)))
        centers, complements = (
            tuple(split.centers_of(attributes)),
            split.complements_inside(attributes),
        )
        unions_of_signature = by_signature.setdefault(
            (sizes, space_axes, _split_signature(centers, complements)), []
        )
        # unions (jointly measured spaces) whose Grams are equal up to rounding errors share one
        # subworkload
        matches = [number for other, number in unions_of_signature if _equal_grams(other, factor)]
        if matches:
            spaces[attributes] = matches[0], 1.0
            continue
        unions_of_signature.append((factor, len(subworkloads)))
        factors.append(factor)
        subworkloads.append(
            Subworkload(
                sizes=sizes,
                terms=(Term(coefficient=1.0, factors=((axes, len(factors) - 1),)),),
                centers=centers,
                labels=(None,) * len(sizes),
                complements=complements,
                spaces=space_axes,
            )
        )
        spaces[attributes] = (len(subworkloads) - 1, 1.0)
    used = sorted({number for number, _ in spaces.values()})
    return replace(
        decomposition,
        factors=tuple(factors),
        subworkloads=tuple(subworkloads[k] for k in used),
        spaces={space: (used.index(number), scale) for space, (number, scale) in spaces.items()},
    )


def _equal_grams(first: Factor, second: Factor) -> bool:
    """Return whether two residual Grams are equal up to rounding errors."""
    tolerance = GRAM_TOLERANCE * np.abs(second.dense()).max()
    return np.allclose(first.dense(), second.dense(), rtol=0.0, atol=tolerance)


def _spaces_outside(decomposition: Decomposition, split: Split) -> dict[Space, tuple[int, float]]:
    """Return the residual spaces that are in no union (joint strategy) of the split.

    Raises ``ValueError`` if a space of a union has no entry or is in two unions.
    """
    spaces = dict(decomposition.spaces)
    for attributes, union in split.unions.items():
        for space in union:
            if spaces.pop(space, None) is None:
                raise ValueError(
                    f"The union on {', '.join(attributes)} contains the residual space on"
                    f" {', '.join(space) or 'no attribute'}, which has no weighted queries or is in"
                    " another union. Use the unions that `choose_unions` returns for this workload."
                )
    return spaces


def _check_union(
    workload: Workload,
    attributes: Space,
    union: Sequence[Space],
    spaces: Collection[Space],
    memory_limit: float,
) -> None:
    """Raise ``ValueError`` if a union (jointly measured spaces) does not fit the schema or a limit.

    ``spaces`` are the residual spaces and unions that are measured separately.
    """
    if workload.schema.ranked(set(attributes)) != attributes or attributes in spaces or not union:
        if not union:
            fault = "has no residual space"
        elif attributes in spaces:
            fault = "does not contain the residual space on all its attributes"
        else:
            fault = "does not list its attributes in the order of the schema"
        raise ValueError(
            f"The union on {', '.join(attributes)} {fault}. Use the unions that `choose_unions`"
            " returns for this workload."
        )
    if not math.isfinite(step_multiplications(workload, attributes, union, memory_limit)):
        raise ValueError(
            f"The union on {', '.join(attributes)} has too many cells or query rows, or needs"
            " more than the memory limit. Use the unions that `choose_unions` returns for this"
            " workload."
        )


def _split_signature(
    centers: Sequence[Array | None], complements: Mapping[Axes, Complement]
) -> Hashable:
    """Return a hashable value, equal for equal centers and complements (splits of pairs)."""
    center_bytes = tuple(None if center is None else center.tobytes() for center in centers)
    return center_bytes, frozenset(
        (axes, complement.key) for axes, complement in complements.items()
    )


def union_gram(
    workload: Workload, attributes: Space, spaces: Sequence[Axes], split: Split
) -> Factor:
    """Return the Gram of the workload's queries on jointly measured residual spaces (a union).

    ``attributes`` are those of the union.  ``spaces`` holds for every residual space the positions
    of its attributes in ``attributes``.  The Gram has the residual coordinates of the first space,
    then those of the second space, and so on.
    """
    sizes = workload.schema.sizes(attributes)
    coordinates = coordinate_positions(sizes, spaces)
    stacks: dict[Axes, list[Array]] = {}
    for group in workload.groups:
        if group.weight > 0.0:
            axes_inside, rows = group_rows(workload, group, attributes, split)
            stacks.setdefault(axes_inside, []).append(math.sqrt(group.weight) * rows)
    row_blocks = []
    for axes_inside, stack in stacks.items():
        rows = reduce_rows(np.concatenate(stack))
        table = np.zeros((len(rows), *sizes))
        # Along the axis of an attribute, index 0 belongs to residual spaces without the attribute.
        index = tuple(slice(None) if axis in axes_inside else 0 for axis in range(len(sizes)))
        table[(slice(None), *index)] = rows.reshape(
            len(rows), *(sizes[axis] for axis in axes_inside)
        )
        row_blocks.append(table.reshape(len(rows), -1)[:, coordinates])
    all_rows = np.concatenate(row_blocks)
    if len(all_rows) < len(coordinates):
        return Factor(sizes=sizes, matrix=all_rows, low_rank=True)
    return Factor(sizes=sizes, matrix=all_rows.T @ all_rows)


def group_rows(
    workload: Workload, group: Group, attributes: Space, split: Split
) -> tuple[Axes, Array]:
    """Return rows with the Gram of a group's queries on all residual spaces inside ``attributes``.

    Returns
    -------
    inside : positions in ``attributes`` of the attributes that the group has.
    rows : shape (rows, cells of the attributes ``inside``), at most as many rows as cells.  A row
        is a flattened table of coefficients, as in the result of `residual_coefficients`.
    """
    ranked = workload.schema.ranked
    # The coefficients of a group are products of the coefficients of its parts (product factors).
    # Exceptions are groups with a weight per query, and groups in which a pair of attributes has a
    # complement (tuned split of its queries).
    is_product = group.query_weights is None and not (
        len(group.parts) > 1 and split.complements_inside(ranked(group.attributes))
    )
    parts: Sequence[Part] = group.parts if is_product else (joint_part(group),)
    product, product_names = np.ones((1, 1)), list[str]()
    for part in parts:
        attributes_of_part = group.named(part.axes)
        names = ranked(attributes_of_part)
        rows = part_rows(part, group.query_weights).reshape(-1, *part.sizes)
        rows = rows.transpose(0, *(1 + attributes_of_part.index(name) for name in names))
        flat_coefficients = residual_coefficients(
            rows.reshape(len(rows), -1),
            rows.shape[1:],
            split.centers_of(names),
            split.complements_inside(names),
        )
        # Along the axis of an attribute, index 0 belongs to residual spaces without the attribute.
        inside_index = tuple(slice(None) if name in attributes else 0 for name in names)
        coefficients = flat_coefficients.reshape(rows.shape)[(slice(None), *inside_index)]
        part_rows_inside = reduce_rows(coefficients.reshape(len(rows), -1))
        product = np.asarray(np.kron(product, part_rows_inside), dtype=float)
        product_names += [name for name in names if name in attributes]
    inside = ranked(product_names)
    table = product.reshape(len(product), *workload.schema.sizes(product_names))
    table = table.transpose(0, *(1 + product_names.index(name) for name in inside))
    return tuple(attributes.index(name) for name in inside), table.reshape(len(product), -1)


def choose_unions(
    workload: Workload,
    spaces: Collection[Space],
    memory_limit: float,
    separate_seconds: Callable[[], float] = lambda: 0.0,
    seconds_left: float = math.inf,
) -> dict[Space, tuple[Space, ...]]:
    """Choose which residual spaces of the workload are measured jointly.

    If computing time and memory allow it, there is one union of all spaces.  Otherwise attribute
    sets that overlap are merged into clusters, large sets first.  A residual space joins the union
    on the largest cluster that contains its attributes.  Without such a cluster it is in no union.

    With more than `MAX_SPACES` spaces only a union of all spaces is considered.  On a single
    attribute there is no union if the variances of its queries would take too long, or if all
    queries are windows of one width.  A union answers only the span of its queries.  So there is no
    union if a group of positive weight has queries of weight 0, or if the weights of queries differ
    by more than the factor `MAX_WEIGHT_RATIO`.

    Parameters
    ----------
    workload : queries with their weights.
    spaces : residual spaces of the decomposition.
    memory_limit : largest memory of one search, in bytes.
    separate_seconds : function that returns the expected time of tuning without unions.  A union of
        all spaces is the best of all matrix mechanisms and needs no tuning.  So it may take this
        time or `MAX_FULL_DOMAIN_S`, whichever is longer.
    seconds_left : time until the time limit, in seconds.  A union of all spaces with more than
        `MAX_STEP_MULTIPLICATIONS` is chosen only if this time suffices for the share
        `MIN_STEP_SHARE` of the expected steps of the search.

    Returns
    -------
    A mapping from the attributes of every union to its residual spaces.
    """
    everything = attributes_in(spaces, workload.schema)
    if not everything or (
        len(spaces) > MAX_SPACES and workload.schema.cells(everything) > MAX_CELLS
    ):
        return {}
    if not _has_similar_weights(workload):
        return {}
    # On one attribute, a single strategy for the total and the residual space together is no more
    # accurate than separate strategies with the optimal center, and takes longer.
    if len(everything) == 1 and (
        variance_seconds(workload, everything, spaces) > MAX_SINGLE_ATTRIBUTE_S
        or _has_only_windows(workload)
    ):
        return {}
    needed = _multiplications_inside(workload, spaces, everything, memory_limit)
    if needed <= MAX_STEP_MULTIPLICATIONS:
        return {everything: tuple(spaces)}
    if (
        needed <= MAX_FULL_DOMAIN_MULTIPLICATIONS
        and workload.schema.cells(everything) <= MAX_LOW_RANK_CELLS
        and not cyclic(workload)
    ):
        search_seconds = strategy_seconds(workload, everything, spaces)
        seconds_after_search = variance_seconds(workload, everything, spaces)
        seconds = search_seconds + seconds_after_search
        if MIN_STEP_SHARE * search_seconds + seconds_after_search <= seconds_left and (
            seconds <= MAX_FULL_DOMAIN_S or seconds <= separate_seconds()
        ):
            return {everything: tuple(spaces)}
    if len(spaces) > MAX_SPACES:
        return {}
    if math.fsum(map(_variance_entries, workload.groups)) > MAX_ROW_ENTRIES:
        # The total is left out of the unions (jointly measured spaces). Every query has a component
        # in the total, and complements (tuned splits of pairs), which are computed later, may
        # couple this component to all queries.
        spaces = [space for space in spaces if space]
    return _assign_spaces(_clusters(workload, spaces, memory_limit), spaces)


def _has_similar_weights(workload: Workload) -> bool:
    """Return whether the weights of queries differ by at most the factor `MAX_WEIGHT_RATIO`.

    Only groups of positive weight are compared.  A query of weight 0 in such a group gives False.
    """
    weights = np.concatenate(
        [
            np.ravel(g.weight if g.query_weights is None else g.weight * g.query_weights)
            for g in workload.groups
            if g.weight > 0.0
        ]
    )
    return bool(weights.max() <= MAX_WEIGHT_RATIO * weights.min())


def _multiplications_inside(
    workload: Workload, spaces: Collection[Space], attributes: Space, memory_limit: float
) -> float:
    """Return `step_multiplications` of one strategy for all residual spaces inside ``attributes``.

    The result is infinite if the table, the query rows or the memory exceed a limit.
    """
    if workload.schema.cells(attributes) > MAX_CELLS:
        return math.inf
    spaces_inside = _inside(spaces, attributes)
    dimension = union_dimension(workload, spaces_inside)
    closed_form = _has_closed_form_variances(workload, attributes, spaces_inside)
    entries = [
        _variance_entries(g, dimension, closed_form) for g in _groups_touching(workload, attributes)
    ]
    if (
        sum(entries) > MAX_ROW_ENTRIES
        or union_row_bytes(workload, attributes, spaces_inside) > memory_limit
    ):
        return math.inf
    return step_multiplications(workload, attributes, spaces_inside, memory_limit)


def _clusters(workload: Workload, spaces: Collection[Space], memory_limit: float) -> list[Space]:
    """Return merged attribute sets (clusters), each of which can get a joint strategy (union).

    Overlapping sets are merged greedily, large sets first.  A search step for the unions on all
    clusters together needs at most `MAX_STEP_MULTIPLICATIONS` multiplications.
    """
    clusters: dict[Space, float] = {}
    for space in sorted(spaces, key=len, reverse=True):
        if len(space) < 2 or any(set(space) <= set(cluster) for cluster in clusters):
            continue
        # The space is added to the cluster with which it shares most attributes.  If the extended
        # cluster would exceed the limit of multiplications, the next cluster is tried.  A new
        # cluster is tried last.  If the new cluster exceeds the limit, the space is left out.
        for cluster in (*sorted(clusters, key=lambda c: -len(set(c) & set(space))), ()):
            if cluster and not set(cluster) & set(space):
                continue
            extended = workload.schema.ranked({*cluster, *space})
            needed = _multiplications_inside(workload, spaces, extended, memory_limit)
            other_clusters = sum(clusters.values()) - clusters.get(cluster, 0.0)
            if other_clusters + needed <= MAX_STEP_MULTIPLICATIONS:
                clusters.pop(cluster, None)
                clusters[extended] = needed
                break
    return list(clusters)


def _has_only_windows(workload: Workload) -> bool:
    """Return whether all weighted queries are windows of one width, solved without a matrix."""
    parts = [(p, g.query_weights) for g in workload.groups if g.weight > 0.0 for p in g.parts]
    return len({part.key for part, _ in parts}) == 1 and all(
        wide_window_gram(part, weights) is not None for part, weights in parts
    )


def _inside(spaces: Collection[Space], attributes: Space) -> list[Space]:
    """Return the spaces whose attributes are all among ``attributes``."""
    return [space for space in spaces if set(space) <= set(attributes)]


def _variance_entries(
    group: Group,
    min_row_length: int = 0,
    closed_form: bool = False,
    parts: Sequence[Part] | None = None,
) -> float:
    """Return the time to compute the variances of a group's queries, in entries of query rows.

    One unit is the time per entry if variances are computed query by query.

    Parameters
    ----------
    group : the queries; with weight 0 they have no entries.
    min_row_length : number of entries that are counted for a shorter row.
    closed_form : whether variances of product groups are computed from the query rows of their
        families.
    parts : query families of the group that are counted; None for all families.
    """
    parts = group.parts if parts is None else parts
    cells, counts = math.prod(part.cells for part in parts), [part.count for part in parts]
    entries = float(math.prod(counts) * max(cells, min_row_length)) if group.weight > 0.0 else 0.0
    is_product = len(counts) > 1 and group.query_weights is None
    if closed_form and is_product and cells <= MAX_PRODUCT_CELLS:
        equivalent = (
            ENTRIES_PER_VARIANCE * math.prod(counts)
            + min(counts) * cells**2 // MULTIPLICATIONS_PER_ENTRY
        )
        return min(entries, float(equivalent))
    return entries


def _has_closed_form_variances(
    workload: Workload, attributes: Space, spaces: Collection[Space]
) -> bool:
    """Return whether variances of product groups are computed from the rows of their families.

    This is possible if the union (jointly measured spaces) has the attributes of all groups with
    positive weight, and if it measures all residual coordinates of its spaces.
    """
    has_all_names = all(
        set(g.attributes) <= set(attributes) for g in workload.groups if g.weight > 0.0
    )
    return has_all_names and union_rank(workload, attributes, spaces) == union_dimension(
        workload, spaces
    )


def _groups_touching(workload: Workload, attributes: Space) -> list[Group]:
    """Return the groups of positive weight that have at least one of these attributes."""
    return [g for g in workload.groups if g.weight > 0.0 and set(g.attributes) & set(attributes)]


def _cells_inside(group: Group, part: Part, inside: Collection[str]) -> int:
    """Return the number of cells of the table on the attributes of a family that are ``inside``."""
    return math.prod(
        n for axis, n in zip(part.axes, part.sizes, strict=True) if group.attributes[axis] in inside
    )


def _assign_spaces(
    clusters: Sequence[Space], spaces: Collection[Space]
) -> dict[Space, tuple[Space, ...]]:
    """Assign every residual space to the largest cluster that contains its attributes.

    A cluster is a set of attributes.  The result maps every cluster with at least two spaces to its
    spaces.
    """
    unassigned, assignment = dict.fromkeys(spaces), {}
    for cluster in sorted(clusters, key=len, reverse=True):
        members = _inside(unassigned, cluster)
        if len(members) > 1:
            assignment[cluster] = tuple(members)
            for space in members:
                del unassigned[space]
    return assignment


def step_multiplications(
    workload: Workload, attributes: Space, spaces: Collection[Space], memory_limit: float
) -> float:
    """Return the number of multiplications per step of the search for a joint strategy (union).

    The result is infinite if the union has too many cells, if one of its groups has too many
    entries of query rows, or if the search needs too much memory.

    Parameters
    ----------
    attributes, spaces : attributes of the union and its residual spaces.
    memory_limit : largest memory of the search, in bytes.
    """
    cells = workload.schema.cells(attributes)
    if cells > MAX_CELLS:
        return math.inf
    dimension = union_dimension(workload, spaces)
    closed_form = _has_closed_form_variances(workload, attributes, spaces)
    if any(
        _variance_entries(g, dimension, closed_form) > MAX_ROW_ENTRIES
        for g in _groups_touching(workload, attributes)
    ):
        return math.inf
    rank = union_rank(workload, attributes, spaces)
    if dense_bytes(rank, dimension, cells) > memory_limit:
        return math.inf
    return rank * rank * (cells + 6.0 * rank)


def union_rank(workload: Workload, attributes: Space, spaces: Collection[Space]) -> int:
    """Return an upper bound on the number of rows of a joint strategy (union)."""
    rows = 0
    for group in workload.groups:
        measured_names = [name for name in group.attributes if name in attributes]
        if measured_names:
            rows += math.prod(
                min(p.count, _cells_inside(group, p, measured_names)) for p in group.parts
            )
    return min(rows + 1, sum(_rank_in(workload, space) for space in spaces))


def _rank_in(workload: Workload, space: Space) -> int:
    """Return an upper bound on the rank of the queries' coefficients on a residual space."""
    dimension, rows = math.prod(n - 1 for n in workload.schema.sizes(space)), 0
    for group in workload.groups:
        if rows < dimension and group.weight > 0.0 and set(space) <= set(group.attributes):
            sizes_inside = [
                [
                    n - 1
                    for a, n in zip(p.axes, p.sizes, strict=True)
                    if group.attributes[a] in space
                ]
                for p in group.parts
            ]
            rows += math.prod(
                min(p.count, math.prod(sizes))
                for p, sizes in zip(group.parts, sizes_inside, strict=True)
            )
    return min(rows, dimension)


def union_dimension(workload: Workload, spaces: Collection[Space]) -> int:
    """Return the number of residual coordinates of several residual spaces together."""
    return sum(math.prod(n - 1 for n in workload.schema.sizes(space)) for space in spaces)


def union_row_bytes(workload: Workload, attributes: Space, spaces: Collection[Space]) -> int:
    """Return an upper bound on the memory to compute the Gram of a joint strategy, in bytes."""
    cells, dimension = workload.schema.cells(attributes), union_dimension(workload, spaces)
    largest, stacked = 0, 0
    for group in _groups_touching(workload, attributes):
        # For some groups, `group_rows` computes the rows of `joint_part` instead of the rows of
        # every part (product factor) of the group. The bound includes both.
        parts = (*group.parts, joint_part(group)) if len(group.parts) > 1 else group.parts
        largest = max(
            largest, sum(map(rows_bytes, parts)) + 8 * sum(p.count * p.cells for p in group.parts)
        )
        stacked += min(cells, math.prod(min(p.count, p.cells) for p in group.parts))
    return largest + 8 * (4 * stacked * cells + min(stacked, dimension) * (cells + 2 * dimension))


def union_bytes(workload: Workload, attributes: Space, spaces: Collection[Space]) -> float:
    """Return the expected memory of the search for a joint strategy (union), in bytes."""
    cells, rank = workload.schema.cells(attributes), union_rank(workload, attributes, spaces)
    # In measurements, about half of this upper bound was in use at the same time.
    row_bytes = 0.5 * union_row_bytes(workload, attributes, spaces)
    return max(dense_bytes(rank, union_dimension(workload, spaces), cells), row_bytes)


def strategy_seconds(workload: Workload, attributes: Space, spaces: Collection[Space]) -> float:
    """Return the expected time of the search for a joint strategy (union), in core seconds."""
    is_full_rank = union_rank(workload, attributes, spaces) == workload.schema.cells(attributes)
    steps = FULL_RANK_STEPS if is_full_rank else LOW_RANK_STEPS
    return (
        MIN_SEARCH_S
        + steps * step_multiplications(workload, attributes, spaces, math.inf) / PRODUCT_FLOPS
    )


def variance_seconds(workload: Workload, attributes: Space, spaces: Collection[Space]) -> float:
    """Return the expected time for the variances of the queries on a union, in core seconds.

    If `_has_closed_form_variances` is True, the variances of a product group are computed from the
    query rows of its families.  A union is a set of jointly measured spaces.  All other variances
    are computed query by query.  A family without an attribute in these spaces takes no time,
    because it multiplies all variances by one number.  Groups with equal families on the same
    spaces are counted once.
    """
    multiplications_per_query = union_dimension(workload, spaces) * union_rank(
        workload, attributes, spaces
    )
    closed_form = _has_closed_form_variances(workload, attributes, spaces)
    # Pairs of attributes on which a group has a part (product factor). Only these pairs can have a
    # complement (module `complements`). A complement is a vector on both attributes, so the
    # parts on either attribute are counted.
    pairs = {
        frozenset(g.named(p.axes)) for g in workload.groups for p in g.parts if len(p.axes) == 2
    }
    # Maps a key to the pair (result of `_variance_entries`, cells per query row).  The key consists
    # of the residual spaces and of the keys of the parts (product factors).  Groups with equal keys
    # share an entry.
    entries: dict[Any, tuple[float, int]] = {}
    for group in workload.groups:
        names = set(group.attributes)
        spaces_inside = [space for space in spaces if set(space) <= names]
        coupled_pairs = [
            pair for pair in pairs if pair <= names and any(set(s) < pair for s in spaces_inside)
        ]
        measured_names = set().union(*spaces_inside, *coupled_pairs)
        parts = [part for part in group.parts if measured_names & set(group.named(part.axes))]
        if spaces_inside and group.weight > 0.0:
            entries[(*spaces_inside, *(part.key for part in parts))] = (
                _variance_entries(group, closed_form=closed_form, parts=parts),
                math.prod(part.cells for part in parts),
            )
    return math.fsum(
        entry_count
        * (SECONDS_PER_ENTRY + 2.0 * multiplications_per_query / (cells * PRODUCT_FLOPS))
        for entry_count, cells in entries.values()
    )
