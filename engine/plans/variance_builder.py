"""Closed-form variances of the queries of a plan.

A group is a product of query families (`Group.parts`; a `Part` is one family on some attributes of
the group).  A query of the group is the product of one query q per family.  Its variance is a sum
over the residual spaces on subsets of the attributes of the group.  The term of a residual space is
the squared noise of its block times one number per family:

    family on none of the space's attributes      (q . pi)^2,  pi the center of its attributes
    family on some of the space's attributes      q N C N^T q^T,  N the basis of residual
                                                  coordinates and C their covariance at noise 1

If one strategy measures attributes of several families, these families have one common number,
which depends on all their queries.  `VarianceBuilder` computes the numbers of all queries as
arrays; `engine.plans.group_variance` computes sums, maxima and ranges of variances from the arrays.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from engine._arrays import Array, Index, unique_rows
from engine._threads import threads_for
from engine.plans.blocks import Block, LazyBlocks
from engine.plans.group_variance import (
    FamilyIndices,
    GroupVariance,
    VarianceTerm,
    broadcast_along,
    connected_components,
    joint_term,
    prefers_quadratic_forms,
    quadratic_forms,
    squared_norms_of_products,
    summed_squared_distances,
)
from engine.residuals import (
    Axes,
    Complement,
    Space,
    Split,
    Strategy,
    center,
    digest,
    group_axes,
    residual_rows,
)
from engine.residuals.basis import coordinate_positions, residual_coefficients
from engine.residuals.decomposition import reduce_rows
from engine.residuals.strategy import MAX_UNMEASURED_SHARE
from engine.workload import Group, Part, Schema, Workload, joint_part, subsets
from engine.workload.workload import groups_outside

if TYPE_CHECKING:
    import pandas as pd


# The component of a query in a residual space counts as zero if its norm is at most this share of
# the norm of the query.
ROUNDING = 1e-9
# A residual space, as positions of its attributes in a group, and the block that measures it; None
# if no block measures it.
SpaceWithBlock = tuple[Axes, Block | None]
# Positions of a factor's attributes in a group, and the strategy that measures them.
Factor = tuple[Axes, Strategy]


@dataclass(frozen=True, kw_only=True, eq=False)
class _GroupSpaces:
    """Residual spaces on the attributes of a group, except those that public tables contain.

    Attributes
    ----------
    key : key for caches.  The variances of groups with equal keys differ only in the noise.  It
        contains neither attribute names nor noise.
    complements : tuned complements (splits of the queries on a pair of attributes), by the
        positions of the two attributes among those of the group in schema order.
    separable : residual spaces in which the component of every query of the group is a Kronecker
        product of components of the queries of its families.
    coupled : all other residual spaces.  One strategy measures them jointly, or a tuned complement
        changes the components of queries in them.
    """

    key: Any
    complements: Mapping[Axes, Complement]
    separable: list[SpaceWithBlock]
    coupled: list[SpaceWithBlock]


@dataclass(frozen=True, kw_only=True, eq=False)
class _CoupledQueries:
    """Products of one query from each of some query families, for coupled residual spaces.

    Attributes
    ----------
    group : group of the query families.
    parts : the query families.
    axes : positions in the group of the attributes of the families, in schema order.
    sizes : domain sizes of these attributes.
    centers : centers of these attributes.
    complements : complements (tuned splits of pairs), by the positions of the two attributes in
    ``axes``.
    columns : positions of the coefficients on the coupled residual spaces among the coefficients of
        a product on all residual spaces, in the order of `residual_coefficients`.
    """

    group: Group
    parts: tuple[Part, ...]
    axes: Axes
    sizes: tuple[int, ...]
    centers: Sequence[Array | None]
    complements: Mapping[Axes, Complement]
    columns: Index


def _variances_of_listed_queries(
    queries: _CoupledQueries,
    reconstruction: Array,
    columns_in_block: Index,
    strategy: Strategy | None,
    *,
    complete: bool,
) -> tuple[Array, Array]:
    """Return the variances of all products of queries at noise 1, and marks of unmeasured products.

    Parameters
    ----------
    reconstruction : matrix from strategy answers to the coordinates in the coupled residual spaces,
        shape (coordinates, measurements).
    columns_in_block : positions of these coordinates among those that the strategy measures.
    strategy : strategy that measures the residual spaces; None if there is none.
    complete : True if all queries are known to be measured.

    Returns
    -------
    variances : shape (queries,).
    unmeasured : 1 for queries with an unmeasured component and 0 for all others, shape (queries,).
    """
    variances, marks = list[Array](), list[Array]()
    joint = joint_part(replace(queries.group, parts=queries.parts))
    for _, chunk in joint.family.chunks(joint.sizes):
        tensor = chunk.reshape(len(chunk), *joint.sizes).transpose(
            0, *(1 + joint.axes.index(a) for a in queries.axes)
        )
        coefficients = residual_coefficients(
            tensor.reshape(len(chunk), -1), queries.sizes, queries.centers, queries.complements
        )[:, queries.columns]
        variances.append(np.sum((coefficients @ reconstruction) ** 2, axis=1))
        if complete:
            marks.append(np.zeros(len(chunk)))
            continue
        is_unmeasured = np.linalg.norm(coefficients, axis=1) > ROUNDING * np.linalg.norm(
            chunk, axis=1
        )
        if strategy is not None:
            rows_on_block = np.zeros((len(coefficients), strategy.dimension))
            rows_on_block[:, columns_in_block] = coefficients
            is_unmeasured &= strategy.leaves_span(rows_on_block)
        marks.append(is_unmeasured.astype(float))
    return np.concatenate(variances), np.concatenate(marks)


@dataclass(kw_only=True, eq=False)
class VarianceBuilder:
    """Computes the variances of the groups of one plan, and caches arrays that groups share."""

    blocks: Mapping[Space, Block]
    split: Split
    schema: Schema
    _arrays: dict[Any, Array] = field(default_factory=dict)
    _compressed: dict[Any, tuple[Array, float]] = field(default_factory=dict)
    # The next two caches have `_GroupSpaces.key` as keys.
    _is_measured: dict[Any, bool] = field(default_factory=dict)
    _variances_by_key: dict[Any, GroupVariance] = field(default_factory=dict)
    # The keys are pairs (`_GroupSpaces.key`, noise of the blocks).
    _variances_by_noise: dict[Any, GroupVariance] = field(default_factory=dict)
    # Equal `_GroupSpaces.key` are one object, because these keys use most of the memory of a plan.
    _shared_keys: dict[Any, Any] = field(default_factory=dict)

    def share_caches(self, other: VarianceBuilder) -> None:
        """Use the caches of another builder; its blocks must be equal except for their noise."""
        self._arrays, self._compressed = other._arrays, other._compressed
        self._is_measured, self._variances_by_key = other._is_measured, other._variances_by_key
        self._shared_keys = other._shared_keys

    @cached_property
    def _block_of_space(self) -> Mapping[Space, Block]:
        """Residual space -> block that measures it."""
        plain = isinstance(self.blocks, LazyBlocks) and self.blocks.plain
        return (
            self.blocks
            if plain
            else {space: block for block in self.blocks.values() for space in block.spaces}
        )

    def group(self, group: Group) -> GroupVariance:
        """Return the variances of the queries of one group.

        Groups whose variances differ only in the noise share the arrays.
        """
        spaces = self._spaces_of(group)
        # ``noise`` has one entry per term: a block that measures several coupled spaces has one
        # term.
        separable_blocks = [block for _, block in spaces.separable]
        coupled_blocks = dict.fromkeys(block for _, block in spaces.coupled)
        noise = [b.noise for b in (*separable_blocks, *coupled_blocks) if b is not None]
        key_with_noise = spaces.key, tuple(noise)
        if key_with_noise in self._variances_by_noise:
            return self._variances_by_noise[key_with_noise]
        if spaces.key in self._variances_by_key:
            variances = self._variances_by_key[spaces.key].at_noise(noise)
        else:
            variances = self._computed_variances(group, spaces)
            # `at_noise` replaces coefficients by squared noise.  This is wrong for a coupled term
            # of a group without attributes, whose coefficient is the squared noise times a
            # constant.
            if group.parts or not spaces.coupled:
                self._variances_by_key[spaces.key] = variances
        self._variances_by_noise[key_with_noise] = variances
        return variances

    def _computed_variances(self, group: Group, spaces: _GroupSpaces) -> GroupVariance:
        """Compute the variances of a group as the sum of one term per measured space or block."""
        # The matrix products are small, so several threads would be slower than one.
        with threads_for(1):
            terms = self._separable_terms(group, spaces.separable)
            unmeasured = (
                []
                if self._is_measured.get(spaces.key)
                else self._unmeasured_separable_terms(group, spaces.separable)
            )
        if spaces.coupled:
            coupled_terms, coupled_unmeasured = self._coupled_terms(
                group, spaces.complements, spaces.coupled
            )
            terms, unmeasured = [*terms, *coupled_terms], [*unmeasured, *coupled_unmeasured]
        return GroupVariance(
            counts=tuple(part.count for part in group.parts),
            terms=tuple(terms),
            unmeasured=tuple(unmeasured),
        )

    def partial_groups(self, workload: Workload) -> Index:
        """Return the sorted indices of the groups that can have unmeasured queries.

        These groups have a residual space that no block measures completely.
        """
        # A prototype has the strategy of a block; only strategies are read here.
        measured = (
            self.blocks.prototypes_by_space()
            if isinstance(self.blocks, LazyBlocks)
            else self._block_of_space.items()
        )
        strategies = [(space, block.factors) for space, block in measured]
        complete = {
            factors: all(s.complete for _, s in factors)
            for factors in {factors for _, factors in strategies}
        }
        rank = self.schema.order.__getitem__
        return groups_outside(
            workload.group_classes,
            [tuple(map(rank, space)) for space, factors in strategies if complete[factors]],
        )

    def measures_all(self, group: Group) -> bool:
        """Return True if a test proves that the plan measures all queries of a group.

        The result is False for every group with coupled residual spaces, even if all its queries
        are measured.  The variances of such a group decide: they are infinite for unmeasured
        queries.
        """
        spaces = self._spaces_of(group)
        if spaces.key not in self._is_measured:
            self._is_measured[spaces.key] = not (
                spaces.coupled or self._unmeasured_separable_terms(group, spaces.separable)
            )
        return self._is_measured[spaces.key]

    def _spaces_of(self, group: Group) -> _GroupSpaces:
        """Return the residual spaces of a group that no public table contains."""
        schema, ranks = self.schema, group.ranks(self.schema)
        named_spaces = [(axes, group.named(axes)) for axes in group.spaces(schema)]
        spaces = [
            (axes, self._block_of_space.get(space))
            for axes, space in named_spaces
            if not schema.is_exact(space)
        ]
        centers = tuple(map(digest, self.split.centers_of(group.attributes)))
        complements = self.split.complements_inside(group.named(ranks))
        space_keys, union_ids = [], dict[Block, int]()
        for axes, block in spaces:
            position_in_union = (
                (block.spaces.index(group.named(axes)), union_ids.setdefault(block, len(union_ids)))
                if block and block.union
                else ()
            )
            # Strategies are compared by identity.  The key refers to the strategies, which are
            # therefore not deleted, so no new strategy can have the same identity.
            space_keys.append(
                (
                    axes,
                    None
                    if block is None
                    else (position_in_union, digest(block.weights), block.factors),
                )
            )
        complement_keys = tuple((p, c.key) for p, c in complements.items())
        key = (
            tuple((p.axes, p.key) for p in group.parts),
            centers,
            tuple(space_keys),
            complement_keys,
        )
        # In a space of a union (joint strategy), variances do not factor over attributes. The
        # complement of a pair of attributes (tuned split of its queries) changes the components of
        # queries in the residual spaces of the total and of each of the two attributes.
        affected = (
            {(), *((ranks[a],) for pair in complements for a in pair)} if complements else set()
        )
        coupled = [
            (axes, block)
            for axes, block in spaces
            if axes in affected or (block is not None and block.union)
        ]
        return _GroupSpaces(
            key=self._shared_keys.setdefault(key, key),
            complements=complements,
            separable=[(axes, block) for axes, block in spaces if (axes, block) not in coupled],
            coupled=coupled,
        )

    def _separable_terms(
        self, group: Group, spaces: Sequence[SpaceWithBlock]
    ) -> list[VarianceTerm]:
        """Return the term of every measured space among ``spaces``, which are separable."""
        terms = []
        for axes, block in spaces:
            if block is not None:
                arrays: list[tuple[FamilyIndices, Array]] = [
                    ((p,), self._squared_center_answers(group, p))
                    for p in families_outside(group, axes)
                ]
                arrays += [
                    self._squared_norms(group, factors, weights=block.weights)
                    for factors in self._connected_factors(group, axes, block)
                ]
                terms.append(
                    VarianceTerm(coefficient=block.noise**2, arrays=tuple(arrays), axes=axes)
                )
        return terms

    def _unmeasured_separable_terms(
        self, group: Group, spaces: Sequence[SpaceWithBlock]
    ) -> list[VarianceTerm]:
        """Return terms for `GroupVariance.unmeasured`, for ``spaces`` that are separable.

        For every query with an unmeasured component in one of the spaces, some term is positive.
        """
        unmeasured = []
        for axes, block in spaces:
            products_of_marks = self._unmeasured_marks(group, axes, block)
            if products_of_marks:
                outside_marks = [
                    ((p,), self._component_marks(group, p, ()))
                    for p in families_outside(group, axes)
                ]
                unmeasured += [
                    VarianceTerm(coefficient=1.0, arrays=(*outside_marks, *marks))
                    for marks in products_of_marks
                ]
        return [term for term in unmeasured if all(array.any() for _, array in term.arrays)]

    def _coupled_terms(
        self,
        group: Group,
        complements: Mapping[Axes, Complement],
        spaces: Sequence[SpaceWithBlock],
    ) -> tuple[list[VarianceTerm], list[VarianceTerm]]:
        """Return terms of `GroupVariance.terms` and of `GroupVariance.unmeasured`.

        ``spaces`` are coupled, and ``complements`` are as in `_GroupSpaces`.  There is one term for
        all spaces that one block measures, and one term for each unmeasured space.  A term has one
        joint array for the families whose queries cannot be treated separately in its spaces, and
        one array for each of the other families.
        """
        axes_in_order = group.ranks(self.schema)
        spaces_of_block = dict[Any, tuple[Block | None, list[Axes]]]()
        for axes, block in spaces:
            key = axes if block is None else block
            spaces_of_block.setdefault(key, (block, []))[1].append(axes)
        pairs = [{axes_in_order[a] for a in pair} for pair in complements]
        terms, unmeasured = [], []
        for block, block_spaces in spaces_of_block.values():
            space_axes = {a for axes in block_spaces for a in axes}
            ordered_axes = tuple(a for a in axes_in_order if a in space_axes)
            # The complement of a pair of attributes (tuned split of its queries) makes the
            # components in the residual spaces of the total and of each attribute depend on the
            # queries on both attributes.
            needed_axes = space_axes.union(
                *(pair for pair in pairs if any(set(axes) < pair for axes in block_spaces))
            )
            joint_families = tuple(
                p for p, part in enumerate(group.parts) if needed_axes & set(part.axes)
            )
            other_families = [p for p in range(len(group.parts)) if p not in joint_families]
            variances, marks = self._coupled_arrays(group, joint_families, block, block_spaces)
            if block is not None:
                other_arrays = [
                    ((p,), self._squared_center_answers(group, p)) for p in other_families
                ]
                terms.append(
                    joint_term(
                        block.noise**2, joint_families, variances, other_arrays, ordered_axes
                    )
                )
            if marks.any():
                other_marks = [((p,), self._component_marks(group, p, ())) for p in other_families]
                if all(array.any() for _, array in other_marks):
                    unmeasured.append(
                        joint_term(1.0, joint_families, marks, other_marks, ordered_axes)
                    )
        return terms, unmeasured

    def _coupled_arrays(
        self,
        group: Group,
        families: FamilyIndices,
        block: Block | None,
        spaces: Sequence[Axes],
    ) -> Array:
        """Return variances and marks of unmeasured queries for coupled residual spaces.

        Parameters
        ----------
        families : indices of query families of the group.
        block : block that measures ``spaces``; None if no block does.
        spaces : coupled residual spaces, as positions of attributes in the group.

        Returns
        -------
        array of shape (2, queries of the first family, queries of the second family, ...).
        Entry 0 on the first axis has, for each product of queries, the variance of its component
        in ``spaces`` at noise 1 of the block.  Without a block, this variance has no meaning.
        Entry 1 on the first axis is 1 if this component is not measured, and 0 if it is measured.
        """
        parts = tuple(group.parts[p] for p in families)
        axes_of_parts = {a for part in parts for a in part.axes}
        axes_in_order = tuple(a for a in group.ranks(self.schema) if a in axes_of_parts)
        names = group.named(axes_in_order)
        sizes = tuple(group.sizes[a] for a in axes_in_order)
        queries = _CoupledQueries(
            group=group,
            parts=parts,
            axes=axes_in_order,
            sizes=sizes,
            centers=self.split.centers_of(names),
            complements=self.split.complements_inside(names),
            columns=coordinate_positions(
                sizes, [tuple(map(axes_in_order.index, axes)) for axes in spaces]
            ),
        )
        columns_in_block = np.concatenate(
            self._positions_in_block(block, [group.named(axes) for axes in spaces])
            or [np.arange(len(queries.columns))]
        )
        strategy = block.factors[0][1] if block is not None and block.factors else None
        weights = None if block is None else block.weights
        key = (
            tuple((tuple(map(axes_in_order.index, part.axes)), part.key) for part in parts),
            (
                tuple(map(digest, queries.centers)),
                tuple((pair, c.key) for pair, c in queries.complements.items()),
            ),
            (
                queries.columns.tobytes(),
                columns_in_block.tobytes(),
                block is None,
                strategy,
                digest(weights),
            ),
        )
        if key in self._arrays:
            return self._arrays[key]
        reconstruction = (
            np.eye(len(queries.columns)) if strategy is None else strategy.pinv[columns_in_block]
        )
        reconstruction = reconstruction if weights is None else reconstruction / weights
        shape = tuple(part.count for part in parts)
        complete = block is not None and (strategy is None or strategy.complete)
        if (
            parts
            and complete
            and not queries.complements
            and prefers_quadratic_forms(
                [(part.count, part.cells) for part in parts], reconstruction.shape[1]
            )
        ):
            variances = self._variances_by_forms(queries, reconstruction)
            unmeasured = np.zeros(shape)
        else:
            variances, unmeasured = _variances_of_listed_queries(
                queries, reconstruction, columns_in_block, strategy, complete=complete
            )
        self._arrays[key] = np.stack([variances.reshape(shape), unmeasured.reshape(shape)])
        return self._arrays[key]

    def _variances_by_forms(self, queries: _CoupledQueries, reconstruction: Array) -> Array:
        """Return the variances at noise 1 of all products of queries, shape (queries,).

        The products are not listed.  There must be no complements (tuned splits of pairs).
        ``reconstruction`` is as in `_variances_of_listed_queries`.
        """
        group, parts, sizes = queries.group, queries.parts, queries.sizes
        # The coefficients of a query are a Kronecker product only if all residual spaces are
        # included. For the spaces outside ``queries.columns``, the reconstruction is filled up with
        # 0.
        padded = np.zeros((reconstruction.shape[1], math.prod(sizes)))
        padded[:, queries.columns] = reconstruction.T
        axes_of_parts = [tuple(map(queries.axes.index, part.axes)) for part in parts]
        padded = group_axes(padded.reshape(-1, *sizes), axes_of_parts, 1).reshape(len(padded), -1)
        coefficients_of_parts = []
        for part in parts:
            centers = self.split.centers_of(group.named(part.axes))
            chunks = part.family.chunks(part.sizes)
            coefficients_of_parts.append(
                np.concatenate(
                    [residual_coefficients(chunk, part.sizes, centers, {}) for _, chunk in chunks]
                )
            )
        # Rounding can make a small variance negative.
        return np.maximum(quadratic_forms(coefficients_of_parts, padded.T @ padded), 0.0)

    @staticmethod
    def _positions_in_block(block: Block | None, spaces: Sequence[Space]) -> list[Index]:
        """Return the positions of each of ``spaces`` among all coefficients that a block measures.

        The result has one array of positions per space.  The result is empty if there is no block,
        or if the block measures a single residual space.
        """
        if block is None or not block.union:
            return []
        size = dict(zip(block.attributes, block.sizes, strict=True))
        ends = np.cumsum(
            [0, *(math.prod(size[name] - 1 for name in space) for space in block.union)]
        )
        return [np.arange(ends[k], ends[k + 1]) for k in map(block.union.index, spaces)]

    def _component_marks(self, group: Group, p: int, inside: Axes) -> Array:
        """Return 1 for each query of family p with a nonzero component in a residual space, else 0.

        The result has shape (queries of the family,).  The residual space is given by ``inside``:
        the positions of its attributes among the attributes of the family.
        """
        part = group.parts[p]
        centers = self.split.centers_of(group.named(part.axes))
        key = ("present", part.key, inside, tuple(digest(pi) for pi in centers))
        if key not in self._arrays:
            marks = []
            for _, chunk in part.family.chunks(part.sizes):
                if len(part.sizes) == len(inside) == 1:
                    # For a query on one attribute, the query minus its mean has the same norm as
                    # its coefficients in the cosine basis, which are slow to compute if the
                    # attribute has many cells.
                    components = chunk - chunk.mean(axis=1, keepdims=True)
                else:
                    components = residual_rows(chunk, part.sizes, inside, centers)
                norms = np.linalg.norm(components, axis=1)
                marks.append(norms > ROUNDING * np.linalg.norm(chunk, axis=1))
            self._arrays[key] = np.concatenate(marks).astype(float)
        return self._arrays[key]

    def _squared_center_answers(self, group: Group, p: int) -> Array:
        """Return (q . pi)^2 for all queries q of family p, shape (queries of the family,).

        pi is the Kronecker product of the centers of the attributes of the family.
        """
        part = group.parts[p]
        centers = self.split.centers_of(group.named(part.axes))
        key = ("outside", part.key, tuple(digest(pi) for pi in centers))
        if key not in self._arrays:
            center_product: Array = np.ones(1)
            for n, pi in zip(part.sizes, centers, strict=True):
                center_product = np.kron(center_product, center(n, pi)).astype(float)
            self._arrays[key] = part.family.dot(part.sizes, center_product) ** 2
        return self._arrays[key]

    @staticmethod
    def _connected_factors(group: Group, axes: Axes, block: Block) -> list[list[Factor]]:
        """Return the factors of a block, divided into lists of connected factors.

        Two factors are connected if a query family of the group has attributes of both.  If the
        block has weights, all its factors are connected.

        Parameters
        ----------
        axes : positions in the group of the attributes of the block.
        """
        factors = [(tuple(axes[a] for a in factor_axes), s) for factor_axes, s in block.factors]
        if block.weights is not None:
            connected = [tuple(range(len(factors)))]
        else:
            connected = [
                tuple(
                    k
                    for k, (factor_axes, _) in enumerate(factors)
                    if set(factor_axes) & set(part.axes)
                )
                for part in group.parts
            ]
        return [
            [factors[k] for k in component]
            for component in connected_components(len(factors), [x for x in connected if x])
        ]

    def _squared_norms(
        self,
        group: Group,
        factors: Sequence[Factor],
        matrix: str | int = "pinv",
        weights: Array | None = None,
    ) -> tuple[FamilyIndices, Array]:
        """Return |q M / weights|^2 for all products of queries of some families.

        The families are those with attributes of the factors.  q is the component of a product in
        the residual space on all attributes of the factors, and M is a Kronecker product of one
        matrix per factor.

        Parameters
        ----------
        matrix : which matrices are the factors of M.  "pinv": the pseudoinverses of the strategies,
            for variances at noise 1.  "identity": identities.  A number k: `Strategy.unmeasured`
            for factor k and identities for all other factors.
        weights : `Block.weights`, which divide the entries of q M; None if all are 1.

        Returns
        -------
        families : indices of the families.
        squared_norms : array with one axis per family, over its queries.
        """
        axes_of_factors = {a for factor_axes, _ in factors for a in factor_axes}
        families = tuple(
            p for p, part in enumerate(group.parts) if set(part.axes) & axes_of_factors
        )
        parts_inside = [
            (part, tuple(i for i, a in enumerate(part.axes) if a in axes_of_factors))
            for part in (group.parts[p] for p in families)
        ]
        names = [group.named(part.axes) for part, _ in parts_inside]
        centers = tuple(
            digest(pi) for part_names in names for pi in self.split.centers_of(part_names)
        )
        # The order of the attributes in a product of the families' queries.
        order = tuple(part.axes[i] for part, inside in parts_inside for i in inside)
        key = (
            tuple((part.key, inside) for part, inside in parts_inside),
            tuple((tuple(order.index(a) for a in factor_axes), s) for factor_axes, s in factors),
            centers,
            matrix,
            digest(weights),
        )
        if key not in self._arrays:
            one_attribute = len(parts_inside) == 1 and len(parts_inside[0][0].sizes) == 1
            if (
                weights is None
                and matrix == "pinv"
                and one_attribute
                and parts_inside[0][0].sizes == factors[0][1].sizes
            ):
                # Many families on one attribute have a closed form, which lists no queries.
                part, strategy = parts_inside[0][0], factors[0][1]
                self._arrays[key] = strategy.query_variances(part)
            else:
                self._arrays[key] = self._squared_norms_from_rows(
                    parts_inside, names, factors, order, matrix, weights
                )
        return families, self._arrays[key]

    def _squared_norms_from_rows(
        self,
        parts_inside: Sequence[tuple[Part, Axes]],
        names: Sequence[tuple[str, ...]],
        factors: Sequence[Factor],
        order: Axes,
        matrix: str | int,
        weights: Array | None,
    ) -> Array:
        """Return |q M / weights|^2 for all products of queries of families, from listed queries.

        See `_squared_norms`.  The result has one axis per family.

        Parameters
        ----------
        parts_inside : pairs (query family, positions).  The positions are those of the attributes
            of the factors in the list of the family's attributes.
        names : names of the attributes of each family.
        order : positions in the group of the attributes of the factors, in the order of the
            Kronecker product of the families' queries.
        factors, matrix, weights : as in `_squared_norms`: M is the Kronecker product of one matrix
            per factor, which ``matrix`` names, and ``weights`` divide the entries of q M.
        """
        rows = []
        for (part, inside), part_names in zip(parts_inside, names, strict=True):
            centers = self.split.centers_of(part_names)
            components = [
                residual_rows(chunk, part.sizes, inside, centers)
                for _, chunk in part.family.chunks(part.sizes)
            ]
            rows.append(np.concatenate(components))
        shape = [part.sizes[i] - 1 for part, inside in parts_inside for i in inside]
        sets = [tuple(order.index(a) for a in axes) for axes, _ in factors]
        if matrix == "pinv":
            matrices: list[Array | None] = [s.pinv for _, s in factors]
        else:
            matrices = [s.unmeasured if matrix == k else None for k, (_, s) in enumerate(factors)]
        return squared_norms_of_products(rows, shape, sets, matrices, weights)

    def _is_surely_measured(self, group: Group, factors: Sequence[Factor]) -> bool:
        """Return True if a quick test proves that ``factors`` measure all queries of a group.

        False proves nothing.  The test compares the squared norms of the unmeasured components,
        summed over all queries, with the tolerance for a single query.  It is quick because this
        sum does not change if the queries of a family are replaced by fewer rows with the same Gram
        matrix.
        """
        part_on_axes = {part.axes: part for part in group.parts}
        unproven = {
            axes
            for axes, strategy in factors
            if not strategy.complete
            and not (axes in part_on_axes and strategy.covers(part_on_axes[axes]))
        }
        if not unproven:
            return True
        covered = {a for factor_axes, _ in factors for a in factor_axes}
        order = [a for part in group.parts for a in part.axes if a in covered]
        # one pair per part (product factor): (rows, smallest squared norm of a nonzero component of
        # a query)
        compressed = [
            self._compressed_rows(part, inside, group.named(part.axes))
            for part in group.parts
            if (inside := tuple(i for i, a in enumerate(part.axes) if a in covered))
        ]
        smallest_square = math.prod(square for _, square in compressed)
        spans = [
            (strategy.span, tuple(order.index(a) for a in axes))
            for axes, strategy in factors
            if axes in unproven
        ]
        unmeasured_sums = summed_squared_distances(
            [rows for rows, _ in compressed], [group.sizes[a] - 1 for a in order], spans
        )
        return max(unmeasured_sums, default=0.0) <= MAX_UNMEASURED_SHARE**2 * smallest_square

    def _compressed_rows(
        self, part: Part, inside: Axes, names: tuple[str, ...]
    ) -> tuple[Array, float]:
        """Return few rows with the same Gram matrix as the residual components of all queries.

        Parameters
        ----------
        part : query family of the queries.
        inside : positions of the residual space's attributes in the list of the family's
            attributes.
        names : names of the family's attributes.

        Returns
        -------
        rows : at most as many rows as residual coordinates, shape (rows, residual coordinates).
        smallest : smallest squared norm of a component that is not 0; infinite if all are 0.
        """
        centers = self.split.centers_of(names)
        key = (part.key, inside, tuple(map(digest, centers)))
        if key not in self._compressed:
            compressed, smallest = list[Array](), math.inf
            for _, chunk in part.family.chunks(part.sizes):
                components = residual_rows(chunk, part.sizes, inside, centers)
                squares = np.sum(components**2, axis=1)
                nonzero = squares > ROUNDING**2 * np.sum(chunk**2, axis=1)
                smallest = min(smallest, float(squares[nonzero].min(initial=math.inf)))
                compressed = [reduce_rows(np.concatenate([*compressed, components]))]
            self._compressed[key] = compressed[0], smallest
        return self._compressed[key]

    def _unmeasured_marks(
        self, group: Group, axes: Axes, block: Block | None
    ) -> list[list[tuple[FamilyIndices, Array]]]:
        """Return which queries have an unmeasured component in one residual space.

        Parameters
        ----------
        axes : positions in the group of the attributes of the residual space.
        block : block that measures the residual space; None if no block does.

        Returns
        -------
        list of products.  A product is a list of pairs (families, marks).  ``families`` are indices
        of query families.  ``marks`` is an array of 0 and 1 with one axis per family, over its
        queries.  A query of the group is the product of one query per family.  Its component is
        unmeasured if, in one of the products, all marks at these queries are 1.
        """
        if block is not None and all(s.complete for _, s in block.factors):
            return []
        factor_lists = [] if block is None else self._connected_factors(group, axes, block)
        unproven = [
            factors for factors in factor_lists if not self._is_surely_measured(group, factors)
        ]
        if block is not None and not unproven:
            return []
        component_marks = {
            p: self._component_marks(
                group, p, tuple(i for i, a in enumerate(part.axes) if a in axes)
            )
            for p, part in enumerate(group.parts)
            if set(part.axes) & set(axes)
        }
        if block is None:
            return [[((p,), marks) for p, marks in component_marks.items()]]
        products: list[list[tuple[FamilyIndices, Array]]] = []
        for factors in unproven:
            families, squares = self._squared_norms(group, factors, "identity")
            for k in (k for k, (_, s) in enumerate(factors) if not s.complete):
                _, unmeasured_squares = self._squared_norms(group, factors, k)
                marks = (unmeasured_squares > MAX_UNMEASURED_SHARE**2 * squares).astype(float)
                # A component that is 0 up to rounding needs no measurement.
                for i, p in enumerate(families):
                    marks = marks * broadcast_along(component_marks[p], i, len(families))
                other_marks = [
                    ((p,), array) for p, array in component_marks.items() if p not in families
                ]
                products.append([(families, marks), *other_marks])
        return products


def families_outside(group: Group, axes: Axes) -> list[int]:
    """Return the indices of the query families of a group that are on none of the ``axes``."""
    return [p for p, part in enumerate(group.parts) if not set(part.axes) & set(axes)]


def variances_by_class(
    blocks: Mapping[Space, Block],
    split: Split,
    workload: Workload,
    variances_of: Callable[[int], GroupVariance],
) -> list[GroupVariance]:
    """Return the variances of each group, computed once per class of equivalent groups.

    Two groups are equivalent if they have equal query families, equal centers, and blocks of equal
    classes on all sets of their attributes.  The names of the attributes can differ.  Classes are
    formed only if ``blocks`` are `LazyBlocks`, and if there are no jointly measured spaces,
    complements of pairs or public tables.  Otherwise, each group is computed separately.

    Parameters
    ----------
    variances_of : function from the index of a group to its variances.
    """
    schema = workload.schema
    if (
        not isinstance(blocks, LazyBlocks)
        or not blocks.plain
        or split.complements
        or schema.invariants
    ):
        return list(map(variances_of, range(len(workload.groups))))
    center_ids: dict[Any, int] = {}
    centers = np.array(
        [
            center_ids.setdefault(digest(pi), len(center_ids))
            for pi in split.centers_of(schema.names)
        ]
    )
    variances: dict[int, GroupVariance] = {}
    for group_class in workload.group_classes:
        columns = [
            [schema.names[place] for place in places] for places in group_class.places.T.tolist()
        ]
        # Block classes of the residual spaces of all groups, one array per subset of their
        # attributes.  0 stands for a residual space that no block measures.
        block_classes = []
        for chosen in subsets(columns):
            spaces = zip(*chosen, strict=True) if chosen else [()] * len(group_class.numbers)
            classes = map(blocks.class_of_key.get, spaces, itertools.repeat(-1))
            block_classes.append(np.fromiter(classes, np.int64, len(group_class.numbers)) + 1)
        examples, class_of = unique_rows(
            np.column_stack([centers[group_class.places], *block_classes])
        )
        computed = list(map(variances_of, group_class.numbers[examples].tolist()))
        for group_number, k in zip(group_class.numbers.tolist(), class_of.tolist(), strict=True):
            variances[group_number] = computed[k]
    return [variances[i] for i in range(len(workload.groups))]


def table_of_groups(
    groups: Sequence[Group], rmses: Sequence[float], largest: Sequence[float]
) -> pd.DataFrame:
    """Return a data frame with one row per group.

    The columns are: attributes, family, queries (the number of queries), rmse and max_std (the
    largest standard error of a query).  rmse and max_std are in counts.

    Parameters
    ----------
    rmses : root of the mean variance of each group, in counts.
    largest : largest variance of each group, in counts^2.
    """
    import pandas as pd

    rows = [(g.attributes, g.family_text, g.count) for g in groups]
    table = pd.DataFrame(rows, columns=["attributes", "family", "queries"])
    return table.assign(rmse=rmses, max_std=np.sqrt(largest))
