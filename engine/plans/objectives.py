"""Objectives of plans, and the allocation of the privacy cost that minimizes them.

Objectives and query weights
----------------------------
    name    minimized, over the queries with weight w above 0         p
    sum     sum of w Var                                              1
    lp      (sum of w Var^p)^(1/p)                                    option ``power``, from 1
    max     largest Var / target variance, which is 1 by default      infinite; weights only select
                                                                      the queries

Every objective is a norm of the variances.  It is therefore the maximum of sum(u Var) over query
weights u with dual norm 1.  Any weights u give a lower bound on the objective: the minimum over all
plans of sum(u Var), divided by the dual norm of u.

`Emphasis` stores such weights u.  Every residual mechanism can minimize sum(u Var).  Some weights
give a bound that equals the minimum of the objective; a plan that minimizes the objective then also
minimizes sum(u Var).

A group consists of parts.  A part is a query family on some attributes of the group.  A query of
the group combines one query per part.  Weights are stored in one of two forms:

- one weight per query of the group.  Groups with one part have this form.  Some searches also use
  it for groups with several parts.
- one weight per query of every part.  The weight of a query of the group is the product of the
  weights of its parts, so that the Gram matrix of the group remains a Kronecker product.

Source: Weighted Fourier Factorizations, lemma 3.9 (largest variance) and remark 3.12 (the norms
in between).

Allocation of the privacy cost to residual spaces
-------------------------------------------------
Residual spaces that are equal by symmetry form a class.  Let s_j be the squared noise of the spaces
of class j at unit sensitivity, and m_j the number of these spaces.  The problem is to minimize the
product of the norm of the variances, which are linear in s, and the privacy cost sum(m_j / s_j).
For query weights u, with a_j the derivative of sum(u Var) by s_j,

    sum(u Var) sum(m_j / s_j)  >=  (sum of sqrt(m_j a_j) over classes j)^2,

so any weights give a lower bound, which certifies the gap of the allocation.

The sum of variances has a closed form.  For other finite powers, L-BFGS minimizes log(norm times
cost) as a function of log s, which is convex.  For the largest variance, a primal-dual interior
point method minimizes the cost subject to Var / target <= 1 on a few queries.  Then every class of
groups adds its most violated query, if it has one, and the problem is solved again.  This ends when
the certified gap is small, no query is added, or after `MAX_ROUNDS` rounds.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from engine._arrays import Array
from engine.errors import PlanError
from engine.plans.group_variance import GroupVariance, LinearVariances, linear_variances
from engine.plans.variance_builder import VarianceBuilder
from engine.residuals import Space, Split, digest
from engine.workload import AreaWeights, Attribute, Family, Group, Part, Workload

OBJECTIVES = ("sum", "max", "lp")
LARGEST_POWER = 100.0  # of the objective "lp"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The norm of the variances that a plan minimizes.

    Attributes
    ----------
    power : p of the norm, at least 1; infinite for the largest variance.
    targets : target variance of the queries of each group, in counts^2, shape (groups,); None if
        all are 1.
    """

    power: float
    targets: tuple[float, ...] | None = None

    @property
    def linear(self) -> bool:
        """Whether the objective is the weighted sum; its best allocation has a closed form."""
        return self.power == 1.0

    @property
    def conjugate(self) -> float:
        """Power q of the dual norm: 1 / power + 1 / q = 1, for a power above 1."""
        return 1.0 if math.isinf(self.power) else self.power / (self.power - 1.0)

    def target(self, group: int) -> float:
        """Return the target variance of the queries of a group, in counts^2; 1 without targets."""
        return 1.0 if self.targets is None else self.targets[group]

    def mean(self, total: float, queries: int) -> float:
        """Return the mean standard error of ``queries`` queries, given the norm of their variances.

        The mean is the largest standard error or the root of the power mean of the variances.  It
        is in counts, or relative to the targets.

        Parameters
        ----------
        total : p-norm of the variances; for infinite power, the largest variance.
        """
        # The p-norm divided by queries^(1/p) is the power mean of the variances.
        return math.sqrt(total) / (1.0 if math.isinf(self.power) else queries ** (0.5 / self.power))


def objective(
    name: str, power: float = 2.0, targets: Any = None, workload: Workload | None = None
) -> Objective:
    """Return the objective with this name.

    Parameters
    ----------
    name : one of `OBJECTIVES`.  With targets and a workload, the objective is "max" for any name.
    power : p of the objective "lp".
    targets : target standard errors in counts, one float for all groups or one number per group;
        None for no targets.
    workload : workload whose groups have the targets; without a workload, targets are ignored.

    Raises
    ------
    PlanError : if the number of targets differs from the number of groups.

    >>> objective("lp", power=4.0).power
    4.0
    """
    if targets is None or workload is None:
        return Objective(power={"sum": 1.0, "max": math.inf}.get(name, power))
    values = (targets,) * len(workload.groups) if isinstance(targets, float) else tuple(targets)
    if len(values) != len(workload.groups):
        raise PlanError(
            f"targets has {len(values)} numbers for {len(workload.groups)} groups. Give one number "
            "per group, or one number for all groups."
        )
    # Targets are given as standard errors, but the objective is about variances.
    return Objective(power=math.inf, targets=tuple(v * v for v in values))


def check_targets(targets: Any, name: str = "targets") -> float | tuple[float, ...]:
    """Return target standard errors as a float, or as a tuple with one float per group.

    Parameters
    ----------
    targets : one number, or a sequence with one number per group, in counts.
    name : name of the argument in the error message.

    Raises
    ------
    PlanError : if a target is not a number between 1e-50 and 1e50.
    """
    several = isinstance(targets, (Sequence, np.ndarray)) and not isinstance(targets, (str, bytes))
    values = list(targets) if several else [targets]
    real = (int, float, np.integer, np.floating)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, real) or not 1e-50 < value < 1e50:
            raise PlanError(
                f"{name} is {str(targets)[:60]}, but a standard error must be a number between"
                " 1e-50 and 1e50, in counts. Give one number, or one number per group."
            )
    return tuple(float(v) for v in values) if several else float(values[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class Symmetry:
    """Equivalence classes of groups and residual spaces under the symmetry of a workload.

    Because the problem is convex, some optimal plan has equal noise for all residual spaces of a
    class and equal query weights for all groups of a class.

    Attributes
    ----------
    class_of_group : index of the class of each group; -1 for groups outside the objective.
    examples : index of one group of each class.
    sizes : number of groups in each class, shape (classes,).
    spaces : residual space -> index of its class.
    counts : number of residual spaces in each class, shape (space classes,).
    """

    class_of_group: tuple[int, ...]
    examples: tuple[int, ...]
    sizes: Array
    spaces: Mapping[Space, int]
    counts: Array


def symmetry(
    workload: Workload,
    spaces: Sequence[Space],
    goal: Objective,
    labels: Mapping[str, Hashable],
    split: Split,
    ordered: bool = True,
) -> Symmetry:
    """Return the coarsest equitable partition of groups and residual spaces, by colour refinement.

    Groups and residual spaces are the nodes of a graph.  A group is adjacent to the residual spaces
    on subsets of its attributes.  Two groups start with the same colour if they have equal queries,
    weights, targets and complements (tuned splits of pairs).  Two spaces start with the same colour
    if they have equal complements, and attributes of equal sizes, labels and centers.  In each
    round, nodes of one colour get different colours if their neighbours have different colours.
    The refinement ends when a round splits no colour.

    Parameters
    ----------
    spaces : residual spaces of the workload.
    labels : attribute -> label; attributes with different labels are never equivalent.
    split : centers and complements; attributes with different centers are never equivalent.
    ordered : if True, residual spaces whose attributes have the same sizes, labels and centers in
        different order start with different colours; if False, with the same colour.
    """
    roles = _space_roles(workload, spaces, ordered)
    # Two pairs of attributes with equal queries can have different tuned complements (splits of
    # queries between residual spaces). Such pairs must be in different classes.
    complement_keys = {space: c.key for space, c in split.complements.items()}
    group_classes = _class_numbers(
        {
            i: (
                workload.groups[i].key,
                workload.groups[i].weight,
                goal.target(i),
                tuned_key(i, workload, complement_keys),
            )
            for i in roles
        }
    )
    signatures = {
        s: [(workload.schema[n].size, labels.get(n), digest(split.centers.get(n))) for n in s]
        for s in spaces
    }
    space_classes = _class_numbers(
        {
            s: (complement_keys.get(s), *(signature if ordered else sorted(signature, key=repr)))
            for s, signature in signatures.items()
        }
    )
    group_classes, space_classes = _refined(roles, group_classes, space_classes)
    examples: dict[int, int] = {}
    for i, group_class in group_classes.items():
        examples.setdefault(group_class, i)
    return Symmetry(
        class_of_group=tuple(group_classes.get(i, -1) for i in range(len(workload.groups))),
        examples=tuple(examples[k] for k in range(len(examples))),
        sizes=np.bincount(list(group_classes.values()), minlength=len(examples)).astype(float),
        spaces=space_classes,
        counts=np.bincount(list(space_classes.values())).astype(float),
    )


def _space_roles(
    workload: Workload, spaces: Sequence[Space], ordered: bool
) -> dict[int, list[tuple[int, Space]]]:
    """Return index of a group -> (role, residual space) pairs for the spaces of the group.

    Two spaces have equal role numbers if their attributes have the same roles in their groups (see
    `_roles`): in the same order if ``ordered`` is True, in any order if it is False.  Groups
    without weight, and groups that public tables answer completely, are left out.
    """
    space_set = set(spaces)
    role_numbers: dict[Any, int] = {}
    result: dict[int, list[tuple[int, Space]]] = {}
    for i, group in enumerate(workload.groups):
        if not group.is_weighted:
            continue
        roles = _roles(group)
        named = [(axes, group.named(axes)) for axes in group.spaces(workload.schema)]
        space_roles = [(tuple(roles[a] for a in axes), s) for axes, s in named if s in space_set]
        if not space_roles and workload.schema.invariants:
            continue  # public tables answer the group
        if not ordered:
            space_roles = [(tuple(sorted(role, key=repr)), s) for role, s in space_roles]
        result[i] = [
            (role_numbers.setdefault(role, len(role_numbers)), s) for role, s in space_roles
        ]
    return result


def _refined(
    roles: Mapping[int, Sequence[tuple[int, Space]]],
    group_classes: dict[int, int],
    space_classes: dict[Space, int],
) -> tuple[dict[int, int], dict[Space, int]]:
    """Split classes until members of a class have neighbours of the same classes (color refinement).

    The graph connects every group of queries with the residual spaces of its queries.

    Parameters
    ----------
    roles : the edges of the graph with their labels, see `_space_roles`.
    group_classes : index of a group -> class at the start.
    space_classes : residual space -> class at the start.

    Returns
    -------
    The classes of groups and of spaces at the end, as mappings of the same form.
    """
    groups_of_space: dict[Space, list[tuple[int, int]]] = {space: [] for space in space_classes}
    for i, space_roles in roles.items():
        for role, space in space_roles:
            groups_of_space[space].append((i, role))
    while True:
        split_groups = _class_numbers(
            {
                i: (
                    group_classes[i],
                    tuple(sorted((role, space_classes[s]) for role, s in roles[i])),
                )
                for i in roles
            }
        )
        split_spaces = _class_numbers(
            {
                s: (
                    space_classes[s],
                    tuple(sorted((split_groups[i], role) for i, role in groups_of_space[s])),
                )
                for s in space_classes
            }
        )
        # a round that splits no class ends the refinement
        numbers_before = [len(set(c.values())) for c in (group_classes, space_classes)]
        numbers_after = [len(set(c.values())) for c in (split_groups, split_spaces)]
        group_classes, space_classes = split_groups, split_spaces
        if numbers_after == numbers_before:
            return group_classes, space_classes


def _roles(group: Group) -> list[Hashable]:
    """Return one role per attribute of a group.

    Exchanging attributes with equal roles does not change the queries of the group.  The role is
    the key of the attribute's query family and the position of the attribute in the family.  In a
    group with query weights, the role is the position of the attribute in the group.
    """
    # With query weights, exchanging two attributes would change the weights of queries.
    roles: list[Hashable] = list(range(len(group.attributes)))
    if group.query_weights is None:
        for part in group.parts:
            for position, axis in enumerate(part.axes):
                roles[axis] = (part.key, position)
    return roles


def tuned_key(number: int, workload: Workload, tuned: Mapping[Space, bytes]) -> bytes | None:
    """Return the entry of ``tuned`` for the attributes of a group, in either order.

    Returns None if the group does not have two attributes, or ``tuned`` has no entry for them.

    Parameters
    ----------
    number : index of the group.
    tuned : pair of attributes -> key of its complement (tuned split).
    """
    names = workload.groups[number].attributes
    return tuned.get(names, tuned.get(names[::-1])) if len(names) == 2 else None


def _class_numbers(colours: Mapping[Any, Any]) -> dict[Any, int]:
    """Return key -> number of its class, 0, 1, ...; keys with equal colours form a class."""
    numbers: dict[Any, int] = {}
    return {key: numbers.setdefault(colour, len(numbers)) for key, colour in colours.items()}


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassQueries:
    """Queries of one class of equivalent groups.

    Attributes
    ----------
    variances : variances of the queries of one group of the class, as a linear function of the
        squared noises of residual spaces.
    spaces : for each of these residual spaces, the index of its equivalence class.
    groups : number of groups in the class.
    weight : weight of each group.
    target : target variance of the queries, in counts^2.
    """

    variances: LinearVariances
    spaces: tuple[int, ...]
    groups: float
    weight: float
    target: float


def queries_by_class(
    workload: Workload, builder: VarianceBuilder, classes: Symmetry, goal: Objective
) -> list[ClassQueries] | None:
    """Return the queries of every class of groups, in the order of ``classes``.

    Returns None if the strategies of ``builder`` do not measure some query with positive weight.
    """
    class_queries = []
    for example, groups in zip(classes.examples, classes.sizes, strict=True):
        group = workload.groups[example]
        query_weights = deciding_weights(group, goal)
        variances = builder.group(group)
        # `total` is computed without listing the queries.  If it is finite, all queries are
        # measured.
        if variances.unmeasured and not np.isfinite(variances.total()):
            weighted = np.ones(group.count) > 0 if query_weights is None else query_weights > 0
            if not np.isfinite(variances.values(0, group.count)[weighted]).all():
                return None
        spaces = tuple(
            classes.spaces[tuple(group.attributes[a] for a in term.axes)]
            for term in variances.terms
        )
        class_queries.append(
            ClassQueries(
                variances=linear_variances(variances, query_weights),
                spaces=spaces,
                groups=float(groups),
                weight=group.weight,
                target=goal.target(example),
            )
        )
    return class_queries


def deciding_weights(group: Group, goal: Objective) -> Array | None:
    """Return the query weights of a group in the objective, shape (queries,); None if all are 1.

    For the objective "max", weights only select queries, so positive weights become 1.
    """
    weights = group.query_weights
    if weights is None or not math.isinf(goal.power):
        return weights
    return None if (weights > 0).all() else (weights > 0).astype(float)


def variance_norm(
    queries: Sequence[LinearVariances],
    weights: Sequence[float],
    targets: Sequence[float],
    goal: Objective,
) -> float:
    """Return the value of the objective at the noise that ``queries`` store.

    If the power is infinite, this is the largest ratio of a variance to its target.  Otherwise, it
    is the weighted norm of the variances, in counts^2.

    Parameters
    ----------
    queries : variances of the queries of each group.
    weights : weight of each group; not used if the power is infinite.
    targets : target variance of each group; used only if the power is infinite.
    """
    largest = [f.largest(f.noises)[0] for f in queries]
    if math.isinf(goal.power):
        return max(v / t for v, t in zip(largest, targets, strict=True))
    # Variances are divided by the largest, so that high powers neither overflow nor underflow.
    scale = max(largest)
    total = math.fsum(
        w * f.power_sum(f.noises, goal.power, scale)[0]
        for w, f in zip(weights, queries, strict=True)
    )
    return scale * float(total ** (1.0 / goal.power))


def achieved_norm(
    workload: Workload, variance: Callable[[int], GroupVariance], goal: Objective
) -> float:
    """Return the value of the objective over all queries with positive weight, in counts^2.

    With targets, the result is a ratio of variance to target variance.

    Parameters
    ----------
    variance : function from the index of a group to the variances of its queries.
    """
    queries: list[LinearVariances] = []
    weights: list[float] = []
    targets: list[float] = []
    classes: dict[tuple[GroupVariance, bytes | None, float, float], int] = {}
    for i, group in enumerate(workload.groups):
        # Groups without terms have no noise: public tables answer them.
        if group.is_weighted and (group_variance := variance(i)).terms:
            key = (group_variance, digest(group.query_weights), group.weight, goal.target(i))
            if key not in classes:
                classes[key] = len(queries)
                queries.append(linear_variances(group_variance, deciding_weights(group, goal)))
                weights.append(0.0)
                targets.append(goal.target(i))
            weights[classes[key]] += group.weight
    return variance_norm(queries, weights, targets, goal)


@dataclass(frozen=True, eq=False)
class WeightedRows(Family):
    """Query family with the rows of ``inner``, each multiplied by the root of its weight.

    A squared error of this family is the squared error of ``inner`` times the weight of the query.

    Attributes
    ----------
    inner : the query family without weights.
    weights : weight of each query, shape (queries,).
    """

    inner: Family
    weights: Array

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @cached_property
    def _key(self) -> tuple[Any, ...]:
        return ("weighted", self.inner.key, hashlib.sha256(self.weights.tobytes()).hexdigest())

    @property
    def key(self) -> tuple[Any, ...]:
        return self._key

    def count(self, sizes: Sequence[int]) -> int:
        return self.inner.count(sizes)

    def rows(self, sizes: Sequence[int], start: int = 0, stop: int | None = None) -> Array:
        return self.inner.rows(sizes, start, stop) * np.sqrt(self.weights[start:stop, None])

    def text(self, attributes: Sequence[Attribute], index: int) -> str:
        return self.inner.text(attributes, index)

    def chunks(self, sizes: Sequence[int]) -> Iterator[tuple[int, Array]]:
        for start, rows in self.inner.chunks(sizes):
            yield start, rows * np.sqrt(self.weights[start : start + len(rows), None])

    def gram(self, sizes: Sequence[int], weights: Array | None = None) -> Array:
        return self.inner.gram(sizes, self.weights if weights is None else weights * self.weights)

    @property
    def counts_areas(self) -> bool:
        return self.inner.counts_areas

    def area_weights(self, weights: Array | None = None) -> AreaWeights:
        return self.inner.area_weights(self.weights if weights is None else weights * self.weights)

    def dot(self, sizes: Sequence[int], table: Array) -> Array:
        product = self.inner.dot(sizes, table)
        return product * np.sqrt(self.weights).reshape(-1, *[1] * (product.ndim - 1))

    def quadratic(self, sizes: Sequence[int], matrix: Array) -> Array:
        return self.inner.quadratic(sizes, matrix) * self.weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Emphasis:
    """Weights of all queries of a workload, stored as products.

    Groups with equal query weights form a class.  A query of a group is a product of one query per
    query family (`Group.parts`).  If a class has a single vector, the weight of a query is the
    weight of the class times the query's entry of this vector.  Otherwise the class has one vector
    per family, and the weight of a query is the weight of the class times one entry per vector.

    Attributes
    ----------
    class_of_group : index of the class of each group, shape (groups,); -1 for groups without
        weighted queries.
    weights : weight of each class, shape (classes,).
    single_vector : for each class, whether it has a single vector for all queries of a group.
    vector_indices : for each class, the indices in ``vectors`` of its vectors.
    vectors : weight vectors, of shape (queries of a family,) or (queries of a group,).
    """

    class_of_group: tuple[int, ...]
    weights: Array
    vector_indices: tuple[tuple[int, ...], ...]
    single_vector: tuple[bool, ...]
    vectors: tuple[Array, ...]

    @classmethod
    def of_groups(cls, workload: Workload, weights: Sequence[float]) -> Emphasis:
        """Return the query weights of ``workload`` after its group weights are replaced.

        Parameters
        ----------
        weights : new weight of each group, shape (groups,).  It is ignored for groups with weight
            0, which have no weighted queries.
        """
        classes: dict[Any, int] = {}
        index_of_key: dict[Any, int] = {}
        vector_indices, single_vector, vectors, class_of_group = [], list[bool](), list[Array](), []

        def index_of(key: Any, vector: Array) -> int:
            """Return the index in ``vectors`` of the vector with this key; append it if new."""
            if key not in index_of_key:
                index_of_key[key] = len(vectors)
                vectors.append(vector)
            return index_of_key[key]

        for group, weight in zip(workload.groups, weights, strict=True):
            key = (group.key, float(weight))
            if group.weight > 0.0 and key not in classes:
                classes[key] = len(classes)
                single_vector.append(group.query_weights is not None)
                if group.query_weights is not None:
                    indices = [index_of(group.key, group.query_weights)]
                else:
                    indices = [index_of(part.key, np.ones(part.count)) for part in group.parts]
                vector_indices.append(tuple(indices))
            class_of_group.append(classes[key] if group.weight > 0.0 else -1)
        return cls(
            class_of_group=tuple(class_of_group),
            weights=np.array([weight for _, weight in classes]),
            vector_indices=tuple(vector_indices),
            single_vector=tuple(single_vector),
            vectors=tuple(vectors),
        )

    @property
    def group_weights(self) -> Array:
        """Weight of each group, shape (groups,); 0 for groups without weighted queries."""
        return np.array([self.weights[k] if k >= 0 else 0.0 for k in self.class_of_group])

    def apply(self, workload: Workload) -> Workload:
        """Return ``workload`` with these query weights; groups without query weights are left out."""
        groups, weighted_parts = [], dict[tuple[Any, int], Part]()
        for group, group_class in zip(workload.groups, self.class_of_group, strict=True):
            if group_class < 0:
                continue
            weight, numbers = float(self.weights[group_class]), self.vector_indices[group_class]
            if self.single_vector[group_class]:
                query_weights = self.vectors[numbers[0]]
                groups.append(replace(group, weight=weight, query_weights=query_weights))
                continue
            parts = []
            for part, number in zip(group.parts, numbers, strict=True):
                vector = self.vectors[number]
                if np.all(vector == 1.0):
                    parts.append(part)
                    continue
                key = ((part.axes, part.key), number)
                if key not in weighted_parts:
                    weighted_parts[key] = replace(part, family=WeightedRows(part.family, vector))
                parts.append(weighted_parts[key])
            groups.append(replace(group, weight=weight, parts=tuple(parts), query_weights=None))
        return Workload(workload.schema, tuple(groups))

    def to_dict(self) -> dict[str, Any]:
        """Return the weights as JSON-ready data."""
        return {
            "kinds": list(self.class_of_group),
            "weights": pack(self.weights),
            "uses": [list(u) for u in self.vector_indices],
            "whole": list(self.single_vector),
            "vectors": [pack(v) for v in self.vectors],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Emphasis:
        """Return the weights that `to_dict` described.

        Raises
        ------
        KeyError : an entry is missing.
        ValueError : lists differ in length, or an index or a weight is out of range.
        """
        # The keys are older names of the attributes.  They are part of the format of plan files.
        emphasis = cls(
            class_of_group=tuple(data["kinds"]),
            weights=unpack(data["weights"]),
            vector_indices=tuple(tuple(u) for u in data["uses"]),
            single_vector=tuple(data["whole"]),
            vectors=tuple(unpack(v) for v in data["vectors"]),
        )
        count = len(emphasis.weights)
        numbers = [*emphasis.class_of_group, *(n for u in emphasis.vector_indices for n in u)]
        if (
            not len(emphasis.vector_indices) == len(emphasis.single_vector) == count
            or not all(type(n) is int for n in numbers)
            or not all(-1 <= k < count for k in emphasis.class_of_group)
            or not all(0 <= n < len(emphasis.vectors) for u in emphasis.vector_indices for n in u)
            or not all(
                np.isfinite(v).all() and (v >= 0).all()
                for v in (emphasis.weights, *emphasis.vectors)
            )
        ):
            raise ValueError(
                "the query weights of the plan (emphasis) are invalid: lists differ in length, or "
                "an index or a weight is out of range"
            )
        return emphasis

    def check(self, workload: Workload) -> Workload:
        """Return ``workload``; raise ValueError if these weights do not fit its groups."""
        for group, group_class in zip(workload.groups, self.class_of_group, strict=True):
            # With invariants, a weighted group may have no query weights, because public tables may
            # answer it.  Which groups they answer is not checked here.
            omitted = group_class < 0 and group.is_weighted and not workload.schema.invariants
            if omitted or (group_class >= 0 and group.weight == 0):
                raise ValueError(
                    "the query weights of the plan (emphasis) do not match the workload: groups of"
                    " positive weight must have query weights, and groups of weight 0 must have "
                    "none"
                )
            if group_class >= 0:
                lengths = (
                    [group.count]
                    if self.single_vector[group_class]
                    else [p.count for p in group.parts]
                )
                if [len(self.vectors[n]) for n in self.vector_indices[group_class]] != lengths:
                    raise ValueError(
                        "the query weights of the plan (emphasis) do not match the workload: a "
                        "group needs one weight per query of the group, or of each of its parts"
                    )
        return workload


def pack(vector: Array) -> str:
    """Encode a vector, shape (n,), as base64 text without loss."""
    return base64.b64encode(vector.astype("<f8").tobytes()).decode()


def unpack(text: str) -> Array:
    """Decode a vector, shape (n,), from the text that `pack` returned."""
    return np.frombuffer(base64.b64decode(text, validate=True), "<f8")


# The search for the best allocation stops when the objective, in counts^2, exceeds its lower bound
# by at most this share.
VARIANCE_GAP = 1e-7
# For the objective "max", the problem is solved with the constraints of a few queries, and violated
# ones are added in at most MAX_ROUNDS rounds.  A round takes at most MAX_STEPS interior point
# steps.
MAX_ROUNDS = 60
MAX_STEPS = 120


@dataclass(frozen=True, kw_only=True, eq=False)
class Shares:
    """Allocation of the privacy cost 1 to the residual spaces, with its objective value.

    Attributes
    ----------
    noises : squared noise of the residual spaces of each class, shape (space classes,), in
        counts^2.
    value : objective (norm of the variances) at these noises.
    bound : lower bound on the objective over all allocations for the same strategies.
    class_multipliers : influence of each class of groups on the allocation, shape (classes,); only
        ratios between classes have a meaning.  For the largest variance, a class has the sum of the
        Lagrange multipliers of its queries; for a finite power p, the weighted sum of their
        variances to the power p.
    """

    noises: Array
    value: float
    bound: float
    class_multipliers: Array


def best_shares(
    queries: Sequence[ClassQueries],
    counts: Array,
    goal: Objective,
    start: Array,
    gap: float = VARIANCE_GAP,
) -> Shares:
    """Return the allocation of the privacy cost to residual spaces that minimizes the objective.

    Parameters
    ----------
    queries : variances of the queries of every class of groups, for fixed strategies.
    counts : number of residual spaces in each class, shape (space classes,).
    start : initial squared noise of each class, shape (space classes,).
    gap : the search stops when the objective, in counts^2, is at most (1 + gap) times its bound.
    """
    # The initial noises are scaled to privacy cost 1.
    start = start * float(np.sum(counts / start))
    if math.isinf(goal.power):
        return _shares_for_max(queries, counts, start, gap)
    return _shares_for_power(queries, counts, goal.power, start, gap)


def _by_space_class(group_class: ClassQueries, gradient: Array, spaces: int) -> Array:
    """Return the derivatives of (variance of a query / target) with respect to squared noises.

    There is one derivative per class of residual spaces, whose squared noises are equal.

    Parameters
    ----------
    group_class : class of the group that has the query.
    gradient : derivative of the variance with respect to the squared noise of each residual space
        of the group.
    spaces : number of classes of residual spaces, the length of the result.
    """
    return np.bincount(group_class.spaces, gradient, minlength=spaces) / group_class.target


def _shares_for_max(
    classes: Sequence[ClassQueries], counts: Array, start: Array, gap: float
) -> Shares:
    """Return the allocation that minimizes the largest ratio of variance to target variance.

    The parameters are those of `best_shares`; ``classes`` are its ``queries``.
    """
    spaces = len(counts)
    # Each row is a constraint row @ s <= 1 on the squared noises s: the variance of one query is at
    # most its target.  ``class_of_row`` has the class of groups of the query.
    rows: list[Array] = []
    class_of_row: list[int] = []
    row_keys: set[tuple[int, bytes]] = set()

    def add_row(k: int, gradient: Array) -> None:
        """Add the constraint of a query of class k, given the derivative of its variance."""
        row = _by_space_class(classes[k], gradient, spaces)
        # If a row were repeated, the multipliers would not be unique.
        if (k, row.tobytes()) not in row_keys:
            row_keys.add((k, row.tobytes()))
            rows.append(row)
            class_of_row.append(k)

    for k, group_class in enumerate(classes):
        add_row(k, group_class.variances.largest(start[list(group_class.spaces)])[1])
    terms = np.sum(rows, axis=0) * start
    for k, group_class in enumerate(classes):
        for j, space in enumerate(group_class.spaces):
            # If a space contributes little to the variances of all queries so far, its noise could
            # grow without bound.  Another query of the group is added: the one to whose variance
            # the space contributes most.
            if terms[space] <= 1e-6 * terms.max():
                single_noise = 1e-6 * start[list(group_class.spaces)]
                single_noise[j] = start[space]
                add_row(k, group_class.variances.largest(single_noise)[1])
    best = Shares(noises=start, value=math.inf, bound=0.0, class_multipliers=np.ones(len(classes)))
    # Only a few queries attain the largest variance.  Each round solves the problem with the
    # constraints of a few queries, and then adds queries whose constraint is violated.
    for _ in range(MAX_ROUNDS):
        noises, row_multipliers = _interior(np.array(rows), counts, start, gap)
        noises = noises * float(np.sum(counts / noises))
        maxima = [
            group_class.variances.largest(noises[list(group_class.spaces)])
            for group_class in classes
        ]
        ratios = np.array(
            [v / group_class.target for (v, _), group_class in zip(maxima, classes, strict=True)]
        )
        slopes = np.maximum(np.array(rows).T @ row_multipliers, 0.0)
        # Any nonnegative weights of the queries in ``rows`` give a lower bound.  The multipliers of
        # the constraints are used, because at the optimum they give the largest lower bound.
        bound = float(np.sum(np.sqrt(counts * slopes))) ** 2 / float(row_multipliers.sum())
        multipliers = np.asarray(
            np.bincount(class_of_row, row_multipliers, minlength=len(classes)), dtype=float
        )
        value = float(ratios.max())
        if value < best.value:
            best = replace(best, noises=noises, value=value, class_multipliers=multipliers)
        best = replace(best, bound=max(bound, best.bound))
        if best.value <= best.bound * (1.0 + gap):
            break
        # Only classes whose largest ratio of variance to target exceeds the lower bound add a
        # query.
        rows_before, level = len(rows), bound * (1.0 + 0.1 * gap)
        for k in [k for k, ratio in enumerate(ratios) if ratio > level]:
            add_row(k, maxima[k][1])
        if len(rows) == rows_before:
            break
        start = noises
    return best


def _interior(rows: Array, counts: Array, start: Array, gap: float) -> tuple[Array, Array]:
    """Minimize sum(counts / s) subject to rows @ s <= 1 by a primal-dual interior point method.

    Parameters
    ----------
    rows : constraints on the squared noises s, shape (rows, space classes).
    counts : number of residual spaces in each class, shape (space classes,).
    start : approximate solution, shape (space classes,).
    gap : relative accuracy of the sum.

    Returns
    -------
    s : squared noises that satisfy all constraints strictly, shape (space classes,).
    multipliers : positive multipliers of the constraints, shape (rows,).
    """
    # The unknowns are ratios s / start, which have similar sizes because start is close to the
    # solution.
    unit_rows = rows * start
    # The first point is halfway to the nearest constraint, so that every slack is well above 0.
    noises = np.full(len(start), 0.5 / float(unit_rows.sum(axis=1).max()))
    cost = counts / start
    slack = 1.0 - unit_rows @ noises
    multipliers = np.full(len(rows), float(np.sum(cost / noises)) / len(rows)) / slack
    # By the stationarity condition, the multipliers at the optimum sum to the cost.
    multipliers *= float(np.sum(cost / noises)) / float(multipliers.sum())
    lapack = scipy.linalg.lapack
    for _ in range(MAX_STEPS):
        residual = -cost / noises**2 + unit_rows.T @ multipliers
        complementarity = float(multipliers @ slack) / len(rows)
        value = float(np.sum(cost / noises))
        # the violations of the optimality conditions are at most 2% of the required accuracy
        if (
            complementarity * len(rows) <= 0.02 * gap * value
            and float(np.max(np.abs(residual) * noises)) <= 0.02 * gap * value
        ):
            break
        # The step reduces each product of slack and multiplier to a fraction of their mean.  A step
        # towards 0 would be cut short, because it leaves the feasible region.
        target = 0.15 * complementarity
        hessian = (
            np.diag(2.0 * cost / noises**3) + (unit_rows.T * (multipliers / slack)) @ unit_rows
        )
        right = -residual - unit_rows.T @ ((target - slack * multipliers) / slack)
        # LAPACK is called directly, because the checks of scipy's cho_factor are slower than this
        # small solve.
        factor, failed = lapack.dpotrf(hessian, clean=False)
        if failed:
            break
        step = lapack.dpotrs(factor, right)[0]
        slack_step = -(unit_rows @ step)
        multiplier_step = (target - slack * multipliers - multipliers * slack_step) / slack
        if not np.isfinite(step).all() or not np.isfinite(multiplier_step).all():
            break
        # The step is shortened so that noises, slacks and multipliers remain positive.
        alpha = 1.0
        for vector, move, fraction in (
            (noises, step, 0.8),
            (slack, slack_step, 0.97),
            (multipliers, multiplier_step, 0.97),
        ):
            down = move < 0
            if down.any():
                alpha = min(alpha, fraction * float(np.min(-vector[down] / move[down])))
        noises, multipliers = noises + alpha * step, multipliers + alpha * multiplier_step
        slack = 1.0 - unit_rows @ noises
        # If rounding violates a constraint, the previous point is returned.
        if not (slack > 0).all():
            noises, multipliers = noises - alpha * step, multipliers - alpha * multiplier_step
            break
    return noises * start, multipliers


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Classes of groups whose power sums are evaluated together, as polynomials in the noises.

    The groups have equally many residual spaces, so their polynomials have equal exponents.

    Attributes
    ----------
    members : indices of the classes of groups.
    spaces : for each residual space of a group of a member, the index of the class of this space,
        shape (members, spaces).
    exponents, coefficients, units : results of `LinearVariances.expansion` for each member, shapes
        (monomials, spaces), (members, monomials) and (members, spaces).
    """

    members: list[int]
    spaces: npt.NDArray[np.int64]
    exponents: Array
    coefficients: Array
    units: Array


def _batches(classes: Sequence[ClassQueries], power: float) -> tuple[list[_Batch], list[int]]:
    """Divide classes of groups into batches, and a list of the classes that are in no batch.

    The batches have the classes whose power sums are evaluated as polynomials (see
    `LinearVariances.expands`).  The list has the indices of all other classes.
    """
    by_spaces: dict[int, list[int]] = {}
    unexpanded = []
    for k, group_class in enumerate(classes):
        if group_class.variances.expands(power):
            by_spaces.setdefault(len(group_class.spaces), []).append(k)
        else:
            unexpanded.append(k)
    batches = []
    for members in by_spaces.values():
        expanded = [classes[k].variances.expansion(int(power)) for k in members]
        batches.append(
            _Batch(
                members=members,
                spaces=np.array([classes[k].spaces for k in members]),
                # the exponents are equal for all classes with the same number of spaces
                exponents=expanded[0][0],
                coefficients=np.array([c for _, c, _ in expanded]),
                units=np.array([u for *_, u in expanded]),
            )
        )
    return batches, unexpanded


def _shares_for_power(
    classes: Sequence[ClassQueries], counts: Array, p: float, start: Array, gap: float
) -> Shares:
    """Return the allocation that minimizes the weighted p-norm of the variances.

    The parameters are those of `best_shares`; ``classes`` are its ``queries``.
    """
    import scipy.optimize

    spaces = len(counts)
    weights = np.array([group_class.groups * group_class.weight for group_class in classes])
    best = Shares(noises=start, value=math.inf, bound=0.0, class_multipliers=np.ones(len(classes)))
    batches, unexpanded = _batches(classes, p)
    # Variances are divided by the largest initial one; powers up to 100 would otherwise leave the
    # range of doubles.
    scale = max(
        group_class.variances.largest(start[list(group_class.spaces)])[0] for group_class in classes
    )

    def sums(s: Array) -> tuple[Array, Array]:
        """Return the power sums at the squared noises ``s``, shape (space classes,).

        Returns
        -------
        power_sums : sum of (Var / scale)^p over the queries of one group of each class, shape
            (classes,).
        space_slopes : derivative with respect to ``s`` of the weighted sum of all power sums,
            multiplied by scale / p, shape (space classes,).
        """
        power_sums, space_slopes = np.zeros(len(classes)), np.zeros(spaces)
        for batch in batches:
            scaled = s[batch.spaces] / scale
            # A product of powers is computed as the exponential of a sum of logarithms.
            monomials = batch.coefficients * np.exp(
                np.log(scaled * batch.units) @ batch.exponents.T
            )
            power_sums[batch.members] = monomials.sum(axis=1)
            slopes = weights[batch.members, None] * (monomials @ batch.exponents) / scaled / p
            space_slopes += np.bincount(batch.spaces.ravel(), slopes.ravel(), minlength=spaces)
        for k in unexpanded:
            power_sums[k], slopes = classes[k].variances.power_sum(
                s[list(classes[k].spaces)], p, scale
            )
            space_slopes += weights[k] * np.bincount(classes[k].spaces, slopes, minlength=spaces)
        return power_sums, space_slopes

    def evaluate(x: Array) -> tuple[float, Array]:
        """Return log(norm times cost) and its gradient at x = log s; store the best allocation."""
        nonlocal best
        # The search is over logarithms, so that the noises are positive after any step.
        s = np.exp(x)
        cost = float(np.sum(counts / s))
        s = s * cost
        power_sums, space_slopes = sums(s)
        multipliers = weights * power_sums
        total = float(multipliers.sum())
        # For any query weights u, a lower bound on the norm is the minimum of sum(u Var) over all
        # allocations, divided by the dual norm of u.  Here u = w (Var / scale)^(p - 1), whose dual
        # norm is total^(1 - 1/p).
        bound = float(np.sum(np.sqrt(counts * space_slopes))) ** 2 / total ** (1.0 - 1.0 / p)
        value = scale * total ** (1.0 / p)
        if value < best.value:
            best = replace(best, noises=s, value=value, class_multipliers=multipliers)
        best = replace(best, bound=max(bound, best.bound))
        if best.value <= best.bound * (1.0 + gap):
            raise StopIteration
        # The gradient of log(norm) plus the gradient of log(cost). The latter is -counts / s,
        # because this s is scaled to cost 1.
        return math.log(value), space_slopes * s / float(space_slopes @ s) - counts / s

    with contextlib.suppress(StopIteration):
        scipy.optimize.minimize(
            evaluate,
            np.log(start),
            jac=True,
            method="L-BFGS-B",
            options={"maxcor": 30, "maxfun": 200, "maxiter": 200, "ftol": 0.0, "gtol": 1e-12},
        )
    return best
