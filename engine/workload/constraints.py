"""Public constraints on the records: structural zeros and invariants.

Structural zeros are cells that no record can have. They are declared by rules such as
"age < 15 and married == 'yes'", which are predicates in the language of `predicates`.

Invariants are exact public tables, such as the population by region, which every release
reproduces.

Constraints that share attributes, directly or through a chain of other constraints, are combined:
one table on all of their attributes satisfies all of them and is positive in every cell that they
allow. The table is computed by iterative proportional fitting. If the fitting does not converge, a
linear program computes the table with the most positive cells, or proves that there is none.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine._format import cost, near_matches, quote_public, set_name
from engine.errors import SchemaError, WorkloadError
from engine.privacy import Budget
from engine.workload.attribute import Attribute, sequence
from engine.workload.predicates import evaluate, named_in
from engine.workload.schema_io import MAX_LABEL, check_text

MOST_RULES = 100  # rules of impossible cells in a schema
# Constraints with common attributes are combined in one table on all their attributes. This is the
# limit for its cells.
MOST_CELLS = 2**20


@dataclass(frozen=True, kw_only=True, eq=False)
class JointConstraint:
    """Probability distribution on the cells of some attributes that satisfies constraints.

    Attributes
    ----------
    names : names of the attributes.
    share : probability of each cell, shape (n_1, ..., n_k), with sum 1. It is 0 exactly in the
        cells that the constraints exclude.
    """

    names: tuple[str, ...]
    share: npt.NDArray[np.float64] = field(repr=False)

    def possible(self, names: Iterable[str]) -> npt.NDArray[np.float64]:
        """Return the marginal of ``share`` on the attributes ``names``, axes in the order of names.

        An entry is 0 if the constraints exclude its cell, and positive otherwise.
        """
        axes = [self.names.index(name) for name in names]
        marginal = self.share.sum(axis=tuple(a for a in range(self.share.ndim) if a not in axes))
        return np.asarray(marginal).transpose([sorted(axes).index(a) for a in axes])


def checked_rules(rules: Any) -> tuple[str, ...]:
    """Return the rules for impossible cells as a tuple of texts.

    ``rules`` is one text or a list of texts. Raises SchemaError if a rule is refused by
    `check_text`, if a rule occurs twice, or if there are more than `MOST_RULES` rules.
    """
    texts = tuple(
        sequence(
            (rules,) if isinstance(rules, str) else rules,
            "rules of impossible cells",
            "a list of texts",
        )
    )
    if len(texts) > MOST_RULES:
        raise SchemaError(
            f"there are {len(texts):,} rules of impossible cells, but at most {MOST_RULES} are"
            " allowed; combine rules with 'or'"
        )
    for rule in texts:
        check_text(rule, "rule of impossible cells", MAX_LABEL)
    if len(set(texts)) < len(texts):
        repeated = Counter(texts).most_common(1)[0][0]
        raise SchemaError(
            f"the rule of impossible cells {quote_public(repeated)} occurs twice; give each"
            " rule once"
        )
    return texts


def read_rules(
    rules: Sequence[str], attributes: Sequence[Attribute]
) -> tuple[JointConstraint, ...]:
    """Return the structural zeros of rules; rules that share attributes become one constraint.

    Raises
    ------
    SchemaError : if a rule is not a predicate on the attributes or holds for no cell, if the rules
        exclude every cell, or if the attributes of combined rules have more than `MOST_CELLS`
        cells.
    """
    components: list[tuple[set[int], list[str]]] = []
    for rule in rules:
        try:
            positions = set(named_in(rule, attributes))
        except WorkloadError as error:
            raise SchemaError(f"a rule of impossible cells is invalid. {error}") from None
        texts = [rule]
        # The rule and all components that share attributes with it become one component.
        for component in [c for c in components if not c[0].isdisjoint(positions)]:
            components.remove(component)
            component_positions, component_texts = component
            positions |= component_positions
            texts = component_texts + texts
        components.append((positions, texts))
    return tuple(
        _combine_rules(texts, [attributes[i] for i in sorted(positions)])
        for positions, texts in components
    )


def _combine_rules(rules: Sequence[str], attributes: Sequence[Attribute]) -> JointConstraint:
    """Return the uniform distribution on those cells of ``attributes`` that no rule excludes.

    Raises SchemaError if a rule is not a predicate on the attributes or holds for no cell, if the
    rules exclude every cell, or if there are more than `MOST_CELLS` cells.
    """
    names, shape = tuple(a.name for a in attributes), tuple(a.size for a in attributes)
    if math.prod(shape) > MOST_CELLS:
        raise SchemaError(
            f"the rules of impossible cells on {set_name(names)} need one table of"
            f" {math.prod(shape):,} cells, but at most {MOST_CELLS:,} are allowed. Use fewer"
            " attributes in rules that share attributes"
        )
    impossible = np.zeros(shape, dtype=bool)
    for rule in rules:
        try:
            excluded = evaluate(rule, attributes).reshape(shape) > 0.0
        except WorkloadError as error:
            raise SchemaError(f"a rule of impossible cells is invalid. {error}") from None
        if not excluded.any():
            raise SchemaError(
                f"the rule of impossible cells {quote_public(rule)} holds for no cell; correct or"
                " remove it"
            )
        impossible |= excluded
    if impossible.all():
        raise SchemaError(
            f"the rules of impossible cells exclude every cell of {set_name(names)}; correct a rule"
        )
    return JointConstraint(names=names, share=~impossible / np.count_nonzero(~impossible))


_MAX_INVARIANTS, _MAX_TOTAL = 100, 2**50
# Proportional fitting stops when the relative L1 error of every margin is at most the tolerance.
_MAX_FITTING_ROUNDS, _MARGIN_TOLERANCE = 200, 1e-13
_MAX_PROGRAM_CELLS = 20_000

_Table = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """Exact public table on ``attributes``; ``values`` are its counts in row-major order."""

    attributes: tuple[str, ...]
    values: tuple[int, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description."""
        return {"attributes": list(self.attributes), "values": list(self.values)}

    def table(self, sizes: Mapping[str, int], names: Sequence[str]) -> _Table:
        """Return the counts on the attributes ``names``, summed over all other attributes.

        The axes are in the order of names. ``sizes`` maps the name of an attribute to its number of
        cells.
        """
        table = np.array(self.values, np.int64).reshape([sizes[n] for n in self.attributes])
        ordered = [n for n in self.attributes if n in names]
        marginal = table.sum(
            axis=tuple(a for a, n in enumerate(self.attributes) if n not in names), dtype=np.int64
        )
        return np.asarray(marginal).transpose([ordered.index(n) for n in names])


def checked_invariants(tables: Any, attributes: Sequence[Attribute]) -> tuple[Invariant, ...]:
    """Return the invariants in a list of pairs (attribute names, counts).

    The attributes of each invariant, and with them the axes of its table of counts, are sorted in
    the order of the schema.

    Raises
    ------
    SchemaError : if there are too many entries, if an entry is not a table of integer counts on
        attributes of the schema, if two tables are on the same attributes, or if two tables have
        different counts on the attributes that they share.
    """
    entries = tuple(sequence(tables, "invariants", "a list of pairs of attributes and values"))
    if len(entries) > _MAX_INVARIANTS:
        raise SchemaError(
            f"there are {len(entries):,} invariants, but at most {_MAX_INVARIANTS} are allowed;"
            " remove some"
        )
    sizes = {a.name: a.size for a in attributes}
    pairs = tuple(
        entry if isinstance(entry, Invariant) else _parse_invariant(entry) for entry in entries
    )
    invariants = tuple(
        _checked_invariant(names, values, sizes)
        for names, values in map(_attributes_and_values, pairs)
    )
    if len({invariant.attributes for invariant in invariants}) < len(invariants):
        repeated = Counter(invariant.attributes for invariant in invariants).most_common(1)[0][0]
        raise SchemaError(
            f"two invariants are on the same attributes, {set_name(repeated)}; remove one of the "
            "two"
        )
    for first, second in itertools.combinations(invariants, 2):
        shared = [name for name in first.attributes if name in second.attributes]
        if not np.array_equal(first.table(sizes, shared), second.table(sizes, shared)):
            raise SchemaError(
                f"the invariants on {set_name(first.attributes)} and on "
                f"{set_name(second.attributes)} contradict each other: their totals"
                f" {f'by {set_name(shared)}' if shared else 'of all records'} differ. Correct one "
                "of them"
            )
    return invariants


def _attributes_and_values(entry: Any) -> tuple[Any, Any]:
    return (entry.attributes, entry.values) if isinstance(entry, Invariant) else entry


def _parse_invariant(entry: Any) -> tuple[Any, Any]:
    if isinstance(entry, Mapping) and entry.keys() == {"attributes", "values"}:
        return entry["attributes"], entry["values"]
    if isinstance(entry, (tuple, list)) and len(entry) == 2:
        return entry[0], entry[1]
    raise SchemaError(
        "an invariant is not a pair of attributes and exact values; give a pair such as"
        " (['region'], [310, 242])"
    )


def _checked_invariant(attributes: Any, values: Any, sizes: Mapping[str, int]) -> Invariant:
    """Return an invariant with its attributes, and the axes of its table, in the order of ``sizes``.

    ``sizes`` maps each attribute of the schema to its number of cells. Raises SchemaError if the
    names are not different attributes of the schema, if there are more than `MOST_CELLS` cells, or
    if the values are not one whole number per cell with a sum from 1 to 2^50.
    """
    listed = (attributes,) if isinstance(attributes, str) else attributes
    names = tuple(sequence(listed, "attributes of an invariant", "names"))
    unknown = [n for n in names if not isinstance(n, str) or n not in sizes]
    if unknown:
        listed = near_matches(unknown[0], sizes) or (
            f"; the attributes are {', '.join(map(quote_public, sizes))}"
            if len(sizes) <= 20
            else ""
        )
        raise SchemaError(
            f"an invariant has the attribute {quote_public(unknown[0])}, which is not in the"
            f" schema{listed}. Name attributes of the schema"
        )
    if len(set(names)) < len(names):
        raise SchemaError(
            f"the invariant on {set_name(names)} has an attribute twice; name each attribute once"
        )
    shape = tuple(sizes[n] for n in names)
    subject = set_name(names) if names else "all records"
    if math.prod(shape) > MOST_CELLS:
        raise SchemaError(
            f"the invariant on {subject} has {math.prod(shape):,} cells, but at most"
            f" {MOST_CELLS:,} are allowed; use fewer attributes"
        )
    try:
        table = np.asarray(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        raise SchemaError(
            f"the invariant on {subject} has values that are not a table of numbers; give one exact"
            " count per cell"
        ) from None
    if table.shape != shape and (table.ndim > 1 or table.size != math.prod(shape)):
        raise SchemaError(
            f"the invariant on {subject} has values of shape {table.shape}, but its cells have the"
            f" shape {shape}; give one exact count per cell"
        )
    is_count = np.isfinite(table) & (table >= 0) & (table == np.floor(table))
    if not is_count.all():
        invalid = float(table[~is_count].flat[0])
        raise SchemaError(
            f"the invariant on {subject} has the value {invalid:g}, which is not a count; give "
            "whole numbers, 0 or more"
        )
    if not 0 < table.sum() <= _MAX_TOTAL:
        raise SchemaError(
            f"the counts of the invariant on {subject} have the sum {table.sum():g}; give counts "
            "with a sum from 1 to 2^50"
        )
    ranked = tuple(n for n in sizes if n in names)
    ordered = table.reshape(shape).transpose([names.index(n) for n in ranked])
    return Invariant(attributes=ranked, values=tuple(int(v) for v in ordered.ravel().tolist()))


def joint_facts(
    zeros: Sequence[JointConstraint],
    invariants: Sequence[Invariant],
    attributes: Sequence[Attribute],
) -> tuple[JointConstraint, ...]:
    """Return the constraints of structural zeros and invariants together.

    Structural zeros and invariants that share attributes, directly or through a chain of other
    constraints, are combined in one constraint. An invariant without attributes is left out.

    Raises
    ------
    SchemaError : if no table satisfies all combined constraints, or if their attributes have more
        than `MOST_CELLS` cells together.
    """
    if not invariants:
        return tuple(zeros)
    # A component has the attributes, zeros and invariants that are connected by common attributes.
    components: list[tuple[set[str], list[JointConstraint], list[Invariant]]] = []
    single_facts: list[tuple[set[str], list[JointConstraint], list[Invariant]]] = [
        (set(zero.names), [zero], []) for zero in zeros
    ]
    single_facts += [
        (set(invariant.attributes), [], [invariant])
        for invariant in invariants
        if invariant.attributes
    ]
    for names, joined_zeros, joined_invariants in single_facts:
        # The fact and all components that share attributes with it become one component.
        for component in [c for c in components if not c[0].isdisjoint(names)]:
            components.remove(component)
            component_names, component_zeros, component_invariants = component
            names = names | component_names
            joined_zeros = component_zeros + joined_zeros
            joined_invariants = component_invariants + joined_invariants
        components.append((names, joined_zeros, joined_invariants))
    return tuple(
        _combine_facts([a for a in attributes if a.name in names], joined_zeros, joined_invariants)
        for names, joined_zeros, joined_invariants in components
    )


def _combine_facts(
    attributes: Sequence[Attribute],
    zeros: Sequence[JointConstraint],
    invariants: Sequence[Invariant],
) -> JointConstraint:
    """Return a distribution on the cells of ``attributes`` with these zeros and invariants."""
    names, shape = tuple(a.name for a in attributes), tuple(a.size for a in attributes)
    if math.prod(shape) > MOST_CELLS:
        raise SchemaError(
            f"the rules and invariants on {set_name(names)} need one table of"
            f" {math.prod(shape):,} cells, but at most {MOST_CELLS:,} are allowed. Use fewer"
            " attributes in rules and invariants that share attributes"
        )
    sizes = dict(zip(names, shape, strict=True))
    start = np.ones(shape)  # 0 in the impossible cells
    for zero in zeros:
        other_axes = [axis for axis, name in enumerate(names) if name not in zero.names]
        start = start * np.expand_dims(zero.possible(zero.names) > 0.0, other_axes)
    margins = [
        (
            tuple(axis for axis, name in enumerate(names) if name not in invariant.attributes),
            invariant.table(sizes, invariant.attributes),
        )
        for invariant in invariants
    ]
    table = _proportional_fitting(start, margins, names)
    if table is None:
        table = _maximal_support_table(start > 0.0, margins, names)
    return JointConstraint(names=names, share=table / table.sum())


def promise_with_invariants(budget: Budget, exact: str) -> str:
    """Return the privacy guarantee of a budget with invariants, as a text for data subjects.

    From the exact totals and all other records an adversary can infer that a person is present. The
    guarantee is therefore about two possible contributions of the person that agree with the exact
    totals (the replace-one relation): it bounds how often the adversary guesses the true one.

    Parameters
    ----------
    exact : text that names the invariants, such as "the exact totals on age".
    """
    replaced = budget.at(budget.replace_one_pcost)
    k = budget.rows_per_person
    rows = "one row" if k == 1 else f"up to {k:,} rows"
    return (
        f"Nothing protects {exact}: they are public, and somebody who knows all other records can"
        " infer from them that you are counted, and in which of their cells. If two contributions"
        " of yours lead to the same exact totals, somebody who sees this release guesses"
        f" right at most {replaced.guess:g}% of the time (pure chance: 50%) which of the two is"
        f" true. This covers everything you contributed, {rows}."
    )


def meaning_with_invariants(budget: Budget, exact: str, *, curve: bool = True) -> str:
    """Return the privacy definition of a budget with invariants in one line.

    ``exact`` names the invariants, such as "the exact totals on age". Source: Subspace Differential
    Privacy (Gao, Gong and Yu 2021).
    """
    epsilon = "" if budget.pure_epsilon is None else f"epsilon {cost(budget.pure_epsilon)}, "
    return (
        f"Subspace differential privacy: {exact} are published exactly and have no protection; all"
        " numbers that do not follow from them hide whether"
        f" {budget.protects}: {epsilon}{budget.numbers(curve=curve)}."
    )


# Pairs: the axes over which a table is summed, and the required sums.
_Margins = Sequence[tuple[tuple[int, ...], _Table]]


def _proportional_fitting(
    table: npt.NDArray[np.float64], margins: _Margins, names: tuple[str, ...]
) -> Any:
    """Return ``table`` rescaled by iterative proportional fitting until it has the margins.

    Returns None if the fitting does not converge within `_MAX_FITTING_ROUNDS` rounds. Raises
    SchemaError if a margin is positive where the table is 0 in every summed cell.
    """
    for _ in range(_MAX_FITTING_ROUNDS if margins else 1):
        error = 0.0
        for axes, margin in margins:
            sums = table.sum(axis=axes, keepdims=True)
            target = np.expand_dims(margin, axes)
            if ((sums == 0.0) & (target > 0)).any():
                raise _contradiction(names)
            error = max(error, float(np.abs(sums - target).sum() / target.sum()))
            # After this step the table has the required margin.
            table = table * np.divide(target, sums, out=np.zeros(sums.shape), where=sums > 0.0)
        if error <= _MARGIN_TOLERANCE:
            return table
    return None


def _maximal_support_table(
    possible: npt.NDArray[np.bool_], margins: _Margins, names: tuple[str, ...]
) -> Any:
    """Return a table with margins proportional to ``margins`` and as many positive cells as possible.

    The table x is computed by a linear program. Its other variables are a scale s and one number t
    per cell. The program maximises sum(t) subject to t <= x, 0 <= t <= 1 and s >= 1. The margins of
    x must be s times the required margins. If a cell can be positive, a large s permits t = 1 in
    this cell. Therefore the sum of t is the largest possible number of positive cells.

    Parameters
    ----------
    possible : mask of the cells that can be positive; all other cells are 0.

    Raises
    ------
    SchemaError : if no table has these margins, or if more than `_MAX_PROGRAM_CELLS` cells are
        possible.
    """
    import scipy.optimize
    import scipy.sparse

    cells = np.flatnonzero(possible)
    if cells.size > _MAX_PROGRAM_CELLS:
        raise SchemaError(
            f"the rules and invariants on {set_name(names)} leave {cells.size:,} cells possible,"
            f" but contradictions can be excluded for at most {_MAX_PROGRAM_CELLS:,} cells. Use"
            " fewer attributes in rules and invariants that share attributes"
        )
    coordinates = np.unravel_index(cells, possible.shape)
    count = cells.size
    sums, targets = list[Any](), list[Any]()
    for summed_axes, margin in margins:
        axes = [a for a in range(possible.ndim) if a not in summed_axes]
        # ``rows``: for each possible cell, the flat index of the margin entry to which it is added.
        rows = (
            np.ravel_multi_index([coordinates[a] for a in axes], margin.shape)
            if axes
            else np.zeros(count, int)
        )
        sums.append(
            scipy.sparse.csr_array(
                (np.ones(count), (rows, np.arange(count))), shape=(margin.size, count)
            )
        )
        targets.append(margin.ravel() / margin.sum() * count)
    # The variables of the linear program are x (``count`` entries), t (``count`` entries) and s.
    eye, empty = scipy.sparse.eye_array(count), scipy.sparse.csr_array((count, 1))
    right_side = np.concatenate(targets)
    blocks: list[Any] = [
        scipy.sparse.vstack(sums),
        scipy.sparse.csr_array((right_side.size, count)),
        -right_side[:, None],
    ]
    # Each margin of x minus s times its target is 0, and t - x <= 0.
    equalities: Any = scipy.sparse.hstack(blocks)
    inequalities: Any = scipy.sparse.hstack([-eye, eye, empty])
    solution = scipy.optimize.linprog(
        np.concatenate([np.zeros(count), -np.ones(count), [0.0]]),
        A_ub=inequalities,
        b_ub=np.zeros(count),
        A_eq=equalities,
        b_eq=np.zeros(right_side.size),
        bounds=[(0, None)] * count + [(0, 1)] * count + [(1, None)],
    )
    if solution.x is None:
        raise _contradiction(names)
    # t is 1 in the cells that can be positive, and 0 in all others. x / s has the target margins.
    table = np.zeros(possible.shape)
    table.flat[cells] = np.where(
        solution.x[count : 2 * count] > 0.5, solution.x[:count] / solution.x[-1], 0.0
    )
    return table


def _contradiction(names: Iterable[str]) -> SchemaError:
    return SchemaError(
        f"the rules and invariants on {set_name(names)} contradict each other: no table of counts"
        " has these exact totals and zeros in the impossible cells. Correct an invariant or a rule"
    )
