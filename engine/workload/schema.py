"""Schema of the records: attributes, person column, structural zeros and invariants.

Numbers of cells are Python integers of any length: 40 attributes with 1,000 values each have more
cells than a 64-bit integer can represent.

**Constraints.**  Structural zeros are cells that no record can have. They are declared by rules
such as "age < 15 and married == 'yes'", which are predicates in the language of `predicates`.

Invariants are exact public tables, such as the population by region, which every release
reproduces.

Constraints that share attributes, directly or through a chain of other constraints, are combined:
one table on all of their attributes satisfies all of them and is positive in every cell that they
allow. The table is computed by iterative proportional fitting. If the fitting does not converge, a
linear program computes the table with the most positive cells, or proves that there is none.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from engine._format import MAX_NAME, cost, near_matches, pluralize, quote_public, set_name
from engine._validation import check_int
from engine.errors import EngineError, SchemaError, WorkloadError
from engine.privacy import MAX_ROWS_PER_PERSON, Budget
from engine.workload.attribute import Attribute, sequence
from engine.workload.hierarchy import CodeList
from engine.workload.predicates import evaluate, named_in
from engine.workload.schema_io import (
    EXACT_KIND,
    MAX_ATTRIBUTES,
    MAX_LABEL,
    PERSON_KIND,
    RULE_KIND,
    check_text,
    read_csv,
    read_json,
    write_csv,
)

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


_FORMAT = "schema/1"
_OPTIONAL_KEYS = ("person", "rows_per_person", "impossible", "invariants")


def _person_attribute_message(name: str) -> str:
    return (
        f"the person column {quote_public(name)} is also an attribute; identifiers cannot be"
        " counted. Give another column"
    )


@dataclass(frozen=True)
class Schema:
    """Ordered attributes of the records, with public constraints on the records.

    A schema is also a mapping: ``schema["age"]`` is an attribute, and iteration yields names.

    Parameters
    ----------
    attributes : the attributes in order.
    person : name of the column that identifies the person of each row, or None. The column is not
        an attribute and is not counted.
    rows_per_person : largest number of counted rows of one person, or None if not declared. It is
        the default for budgets and counts. Without a person column the curator asserts this bound,
        and a release must protect at least this number of rows.
    impossible : rules for structural zeros, such as "age < 15 and married == 'yes'", as predicates
        of `Custom`. A row that satisfies a rule is excluded from every count, like a row outside
        the domain.
    invariants : exact public tables, as pairs (attributes, values). Releases reproduce them exactly
        and spend no budget on them; they have no privacy protection.

    >>> schema = Schema([Attribute.of_size("age", 85), Attribute.categorical("sex", ["F", "M"])])
    >>> schema.size, schema.sizes(["sex", "age"]), schema["sex"].kind, list(schema)
    (170, (2, 85), 'categorical', ['age', 'sex'])
    >>> Schema.from_json(schema.to_json()) == Schema.from_csv(schema.to_csv()) == schema
    True
    """

    attributes: tuple[Attribute, ...]
    _: KW_ONLY
    person: str | None = None
    rows_per_person: int | None = None
    impossible: tuple[str, ...] = ()
    invariants: tuple[Invariant, ...] = ()
    _by_name: dict[str, Attribute] = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        attributes: Iterable[Attribute],
        *,
        person: str | None = None,
        rows_per_person: int | None = None,
        impossible: Iterable[str] = (),
        invariants: Iterable[Any] = (),
    ) -> None:
        checked_attributes = tuple(sequence(attributes, "a schema", "a list of attributes"))
        if not 1 <= len(checked_attributes) <= MAX_ATTRIBUTES:
            raise SchemaError(
                f"the schema has {len(checked_attributes):,} attributes; give between 1 and"
                f" {MAX_ATTRIBUTES:,}"
            )
        by_name: dict[str, Attribute] = {}
        for attribute in checked_attributes:
            if not isinstance(attribute, Attribute):
                raise SchemaError(
                    f"an attribute of the schema has the type {type(attribute).__name__}; give"
                    " Attribute objects"
                )
            if attribute.name in by_name:
                raise SchemaError(
                    f"the attribute {quote_public(attribute.name)} occurs twice; rename or remove"
                    " one of them"
                )
            by_name[attribute.name] = attribute
        if person is not None:
            check_text(person, "person column", MAX_NAME)
            if person in by_name:
                raise SchemaError(_person_attribute_message(person))
        if rows_per_person is not None:
            subject = "number of rows per person in the schema"
            rows_per_person = check_int(
                subject, rows_per_person, 1, MAX_ROWS_PER_PERSON, error=SchemaError
            )
        object.__setattr__(self, "person", person)
        object.__setattr__(self, "rows_per_person", rows_per_person)
        object.__setattr__(self, "attributes", checked_attributes)
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "impossible", checked_rules(impossible))
        object.__setattr__(self, "invariants", checked_invariants(invariants, checked_attributes))
        # The property is evaluated here so that invalid or contradictory constraints raise at once.
        _ = self.facts

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the attributes, in order."""
        return tuple(self._by_name)

    @cached_property
    def order(self) -> dict[str, int]:
        """Name of each attribute -> its position in the schema."""
        return {name: i for i, name in enumerate(self.names)}

    def ranked(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return names of attributes, sorted in the order of the schema."""
        return tuple(sorted(names, key=self.order.__getitem__))

    @cached_property
    def size(self) -> int:
        """Exact number of cells of the full domain, a Python integer of any length."""
        return math.prod(attribute.size for attribute in self.attributes)

    def __len__(self) -> int:
        return len(self.attributes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._by_name

    def __getitem__(self, name: str) -> Attribute:
        attribute = self._by_name.get(name) if isinstance(name, str) else None
        if attribute is None:
            near = near_matches(name, self.names) or "; name an attribute of the schema"
            raise SchemaError(
                f"the schema has no attribute {quote_public(name)} among its"
                f" {pluralize(len(self), 'attribute')}{near}"
            )
        return attribute

    def named(
        self, names: str | Iterable[str], *, error: type[EngineError] = SchemaError
    ) -> tuple[str, ...]:
        """Return one or several names of attributes as a tuple of different names.

        Raises
        ------
        SchemaError : if a name is not the name of an attribute of the schema.
        The exception type ``error`` : if ``names`` is not a collection of names, or contains a name
            twice.

        >>> Schema([Attribute.of_size("age", 4)]).named("age")
        ('age',)
        """
        requested = (names,) if isinstance(names, str) else names
        if not isinstance(requested, Iterable) or isinstance(requested, (bytes, Mapping)):
            raise error(
                f"The attributes have the type {type(names).__name__}. Give a name, or a list of"
                " names."
            )
        checked = tuple(self[name].name for name in requested)
        if len(set(checked)) != len(checked):
            raise error(
                f"A list of attributes contains a name twice: {', '.join(checked)}. Give each name "
                "once."
            )
        return checked

    def sizes(self, names: Iterable[str]) -> tuple[int, ...]:
        """Return the number of cells of each attribute: the shape of their marginal table."""
        return tuple(self[name].size for name in names)

    def cells(self, names: Iterable[str]) -> int:
        """Return the exact number of cells of the marginal table on ``names``; 1 if empty."""
        return math.prod(self.sizes(names))

    def with_missing_values(self, texts: Iterable[str]) -> Schema:
        """Return the schema with texts added to the ``missing_values`` of all attributes.

        A text that is a label of an attribute is not added to this attribute, unless the label is
        that of its missing values.

        >>> schema = Schema([Attribute.of_size("age", 85), Attribute.categorical("answer", ["yes", "no", "NA"])])
        >>> [a.missing_values for a in schema.with_missing_values(["NA", "."]).attributes]
        [('NA', '.'), ('.',)]
        """
        added = tuple(sequence(texts, "texts for missing values", "a list of texts"))
        return replace(
            self, attributes=tuple(_with_missing(attribute, added) for attribute in self.attributes)
        )

    def with_code_list(self, name: str, code_list: CodeList) -> Schema:
        """Return the schema with the hierarchy of a code list added to the attribute ``name``.

        If the schema has no such attribute, an attribute with the codes as cells is appended.

        Raises
        ------
        SchemaError : if the attribute exists and `Attribute.with_hierarchy` refuses the list.
        """
        attributes = [
            attribute.with_hierarchy(code_list) if attribute.name == name else attribute
            for attribute in self.attributes
        ]
        if name not in self:
            attributes.append(Attribute.hierarchy(name, code_list))
        return replace(self, attributes=tuple(attributes))

    def without_hierarchy(self, name: str, hierarchy: str) -> Schema:
        """Return the schema without one hierarchy of an attribute; its cells do not change."""
        remaining = tuple(h for h in self[name].hierarchies if h.name != hierarchy)
        attributes = (
            replace(attribute, hierarchies=remaining) if attribute.name == name else attribute
            for attribute in self.attributes
        )
        return replace(self, attributes=tuple(attributes))

    def with_facts(
        self, *, impossible: Iterable[str] | None = None, invariants: Iterable[Any] | None = None
    ) -> Schema:
        """Return the schema with other rules for structural zeros, other invariants, or both.

        Parameters
        ----------
        impossible : rules that replace those of the schema; None leaves them unchanged.
        invariants : exact public tables that replace those of the schema, as pairs (attributes,
            values); None leaves them unchanged. The values are integer counts of shape
            ``sizes(attributes)``, or flattened in row-major order. An empty list of attributes
            denotes the total number of records.

        Raises
        ------
        SchemaError : if a rule is not a predicate on the attributes or holds for no cell, if the
            rules exclude every cell, if values are not counts, or if the constraints contradict
            each other.

        >>> schema = Schema([Attribute.numeric("age", [0, 15, 99]), Attribute.categorical("married", ["no", "yes"])])
        >>> schema.with_facts(impossible=["age < 15 and married == 'yes'"]).possible_share(["age", "married"]).round(2)
        array([[0.33, 0.  ],
               [0.33, 0.33]])
        >>> schema.with_facts(invariants=[(["married"], [40, 60])]).exact_table([]).item()
        100
        """
        rules = self.impossible if impossible is None else checked_rules(impossible)
        tables = (
            self.invariants
            if invariants is None
            else checked_invariants(invariants, self.attributes)
        )
        return replace(self, impossible=rules, invariants=tables)

    def is_exact(self, names: Iterable[str]) -> bool:
        """Return whether the table on these attributes is a margin of an invariant.

        Attributes with a single cell are ignored: they do not change the counts.
        """
        if not self.invariants:
            return False
        requested = {name for name in names if self[name].size > 1}
        return any(requested <= exact_names for exact_names in self._exact)

    def exact_table(self, names: Sequence[str]) -> npt.NDArray[np.int64]:
        """Return the exact counts on these attributes, shape ``sizes(names)``.

        The counts are sums of an invariant; `is_exact` must be true for the attributes.
        """
        requested = [name for name in names if self[name].size > 1]
        invariant = next(
            invariant
            for invariant, exact_names in zip(self.invariants, self._exact, strict=True)
            if exact_names.issuperset(requested)
        )
        return invariant.table(
            {name: self[name].size for name in invariant.attributes}, requested
        ).reshape(self.sizes(names))

    @cached_property
    def exact_spaces(self) -> tuple[tuple[str, ...], ...]:
        """Sets of attributes whose table is a margin of an invariant, smaller sets first.

        The sets do not contain attributes with a single cell.
        """
        wide = [
            [name for name in invariant.attributes if self[name].size > 1]
            for invariant in self.invariants
        ]
        spaces = {
            space
            for names in wide
            for k in range(len(names) + 1)
            for space in itertools.combinations(names, k)
        }
        return tuple(sorted(spaces, key=lambda space: (len(space), space)))

    @cached_property
    def exact_places(self) -> tuple[list[int], ...]:
        """Positions in the schema of the attributes of each invariant, one list per invariant."""
        return tuple(
            [self.order[name] for name in invariant.attributes] for invariant in self.invariants
        )

    @cached_property
    def _exact(self) -> tuple[frozenset[str], ...]:
        return tuple(frozenset(invariant.attributes) for invariant in self.invariants)

    @property
    def exact_text(self) -> str:
        """Text that names the tables of the invariants; empty if there are none.

        >>> Schema([Attribute.of_size("age", 2)], invariants=[("age", [3, 4])]).exact_text
        'the exact totals on age'
        """
        tables = [
            set_name(invariant.attributes) if invariant.attributes else "all records"
            for invariant in self.invariants
        ]
        return f"the exact totals on {', '.join(tables)}" if tables else ""

    def promise(self, budget: Budget) -> str:
        """Return the privacy guarantee of a budget for one person in the records, as text."""
        return (
            promise_with_invariants(budget, self.exact_text) if self.invariants else budget.promise
        )

    def meaning(self, budget: Budget, *, curve: bool = True) -> str:
        """Return the privacy definition of a budget and its parameters in one line.

        If the schema has invariants, the definition is subspace differential privacy.

        >>> exact = Schema([Attribute.of_size("age", 2)], invariants=[("age", [3, 4])])
        >>> exact.meaning(Budget(pcost=1.0)).partition(":")[0]
        'Subspace differential privacy'
        """
        if self.invariants:
            return meaning_with_invariants(budget, self.exact_text, curve=curve)
        return budget.describe(curve=curve)

    @cached_property
    def structural_zeros(self) -> tuple[JointConstraint, ...]:
        """Structural zeros of the rules; rules that share attributes are combined in one entry."""
        return read_rules(self.impossible, self.attributes) if self.impossible else ()

    @cached_property
    def facts(self) -> tuple[JointConstraint, ...]:
        """Constraints by the rules for structural zeros and by the invariants.

        Rules and invariants that share attributes are combined in one entry.
        """
        return joint_facts(self.structural_zeros, self.invariants, self.attributes)

    def possible_share(self, names: Iterable[str]) -> npt.NDArray[np.float64]:
        """Return the marginal on ``names`` of the uniform distribution on all possible cells.

        Possible cells are the cells of the full domain that no rule excludes. The marginal has the
        shape ``sizes(names)`` and sum 1, and is exactly 0 in the cells that the rules exclude.
        """
        return self._share(tuple(names), self.structural_zeros)

    def even_share(self, names: Iterable[str]) -> npt.NDArray[np.float64]:
        """Return the marginal on ``names`` of a distribution that satisfies rules and invariants.

        Without invariants the distribution is that of `possible_share`. The marginal has the shape
        ``sizes(names)`` and sum 1, and is exactly 0 in the cells that rules or invariants exclude.
        """
        return self._share(tuple(names), self.facts)

    def _share(
        self, names: tuple[str, ...], facts: Sequence[JointConstraint]
    ) -> npt.NDArray[np.float64]:
        constrained = {name for fact in facts for name in fact.names}
        share = np.full(
            (1,) * len(names), 1.0 / self.cells(n for n in names if n not in constrained)
        )
        for fact in facts:
            shared = [name for name in names if name in fact.names]
            share = share * fact.possible(shared).reshape(
                [self[n].size if n in shared else 1 for n in names]
            )
        return np.broadcast_to(share, self.sizes(names))

    @cached_property
    def ruled(self) -> frozenset[str]:
        """Names of the attributes that occur in rules for structural zeros or in invariants."""
        return frozenset(name for fact in self.facts for name in fact.names)

    def person_column(self, column: str | None = None) -> str | None:
        """Return ``column`` or, if it is None, the person column that the schema declares.

        Raises
        ------
        SchemaError : if ``column`` differs from the declared column, or is an attribute.
        """
        if column is not None and self.person is not None and column != self.person:
            raise SchemaError(
                f"the person column is {quote_public(column)}, but the schema declares"
                f" {quote_public(self.person)}; give no person column here, or correct the schema"
            )
        if column is not None and column in self:
            raise SchemaError(_person_attribute_message(column))
        return self.person if column is None else column

    def rows_per_person_conflict(self, rows: int) -> str:
        """Return a warning if the schema declares another number of rows per person than ``rows``.

        ``rows`` is the number that a budget protects. The text is empty if the schema declares the
        same number or none.

        >>> schema = Schema([Attribute.of_size("age", 4)], person="pid", rows_per_person=3)
        >>> schema.rows_per_person_conflict(1)  # doctest: +NORMALIZE_WHITESPACE
        'The schema declares 3 rows per person, but the budget protects 1: at most 1 of each
        person will be counted.'
        """
        declared = self.rows_per_person
        if declared is None or declared == rows:
            return ""
        difference = (
            f"The schema declares {declared:,} rows per person, but the budget protects {rows:,}: "
        )
        if rows > declared:
            return (
                f"{difference}every error is {rows / declared:.3g} times the error for"
                f" {declared:,} rows."
            )
        if self.person is not None:
            return f"{difference}at most {rows:,} of each person will be counted."
        return (
            f"{difference}without a person column this bound cannot be enforced, so nothing is"
            f" released. Protect {declared:,} rows, or give the person column."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready description with its format version; unset options are left out."""
        attributes = [attribute.to_dict() for attribute in self.attributes]
        optional: dict[str, Any] = {
            "person": self.person,
            "rows_per_person": self.rows_per_person,
            "impossible": list(self.impossible),
        }
        optional |= {"invariants": [invariant.to_dict() for invariant in self.invariants]}
        declared = {key: value for key, value in optional.items() if value not in (None, [])}
        return {"format": _FORMAT, "attributes": attributes} | declared

    @classmethod
    def from_dict(cls, document: Any) -> Schema:
        """Rebuild a schema from `to_dict`, or from a mapping from attribute name to size.

        In the second case the attributes are numeric, with the codes 0 .. size - 1.
        """
        if not isinstance(document, dict):
            raise SchemaError(
                f"the schema has the type {type(document).__name__}; give an object with attributes"
            )
        if document and all(type(value) is int for value in document.values()):
            return cls([Attribute.of_size(name, size) for name, size in document.items()])
        if document.get("format") != _FORMAT or document.keys() - set(_OPTIONAL_KEYS) != {
            "format",
            "attributes",
        }:
            raise SchemaError(
                f"the object is not a schema in the format {_FORMAT!r}; give this text as 'format',"
                " a list as 'attributes', and optionally 'person', 'rows_per_person', 'impossible'"
                " and 'invariants'"
            )
        attributes = document["attributes"]
        if not isinstance(attributes, list) or len(attributes) > MAX_ATTRIBUTES:
            raise SchemaError(
                f"'attributes' is not a list, or has more than {MAX_ATTRIBUTES:,} entries; give a"
                " list with one object per attribute"
            )
        optional = {key: document[key] for key in _OPTIONAL_KEYS if key in document}
        return cls([Attribute.from_dict(attribute) for attribute in attributes], **optional)

    def to_json(self) -> str:
        """Return the schema as JSON text with format and version; the inverse of `from_json`."""
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Schema:
        """Read a schema from JSON text or bytes; raise SchemaError for other contents."""
        return cls.from_dict(read_json(text))

    def to_csv(self) -> str:
        r"""Return the schema as CSV text with one row per attribute.

        The columns are name, kind, size, labels, edges, other, missing and clip. The columns
        integer, missing_values, decimal, thousands, start, stop, unit, date_format and hierarchies
        follow if an attribute uses them. Hierarchies are JSON text.

        Labels and edges are joined by |. A backslash is written before | and \ inside a text. It is
        also written before = + - @ at the start of a text, so that spreadsheets do not interpret a
        label as a formula.

        Other declarations of the schema are further rows. A row of the kind person has the person
        column as name and the rows per person as size. A row of the kind impossible has a rule as
        name. A row of the kind exact has the attributes of an invariant as labels and its counts as
        edges.
        """
        rows = [attribute.to_dict() for attribute in self.attributes]
        if self.person is not None or self.rows_per_person is not None:
            rows.append({"name": self.person, "kind": PERSON_KIND, "size": self.rows_per_person})
        rows += [{"name": rule, "kind": RULE_KIND} for rule in self.impossible]
        for invariant in self.invariants:
            row: dict[str, Any] = {
                "name": f"totals on {set_name(invariant.attributes)}",
                "kind": EXACT_KIND,
                "labels": list(invariant.attributes),
                "edges": list(map(str, invariant.values)),
            }
            rows.append(row)
        return write_csv(rows)

    @classmethod
    def from_csv(cls, text: str | bytes) -> Schema:
        """Read a schema from CSV text or bytes in the format of `to_csv`.

        The columns name and kind are required. Other columns can be left out if they are empty.

        Raises
        ------
        SchemaError : if the text is not a schema.
        """
        attributes: list[Attribute] = []
        person_fields: dict[str, Any] = {}
        rules: list[str] = []
        invariants: list[tuple[Any, Any]] = []
        for line, document in read_csv(text):
            try:
                if document.get("kind") == RULE_KIND:
                    if document.keys() != {"name", "kind"}:
                        raise SchemaError(
                            f"a row of the kind {RULE_KIND!r} has no name, or another value; write"
                            " the rule in the column 'name', and leave all other columns empty"
                        )
                    rules.append(document["name"])
                elif document.get("kind") == EXACT_KIND:
                    invariants.append((document.get("labels", []), document.get("edges")))
                elif document.get("kind") == PERSON_KIND:
                    if person_fields:
                        raise SchemaError(
                            f"there are two rows of the kind {PERSON_KIND!r}; remove one of them"
                        )
                    if not {"kind"} < document.keys() <= {"name", "kind", "size"}:
                        raise SchemaError(
                            f"a row of the kind {PERSON_KIND!r} has neither a name nor a size, or"
                            " another value; write the person column as 'name', the rows per person"
                            " as 'size', or both, and leave all other columns empty"
                        )
                    person_fields = {
                        "person": document.get("name"),
                        "rows_per_person": document.get("size"),
                    }
                else:
                    attributes.append(Attribute.from_dict(document))
            except SchemaError as error:
                raise SchemaError(f"line {line}: {error}") from None
        return cls(attributes, **person_fields, impossible=rules, invariants=invariants)


def _with_missing(attribute: Attribute, texts: Sequence[str]) -> Attribute:
    labels = set(attribute.labels or ()) - {attribute.missing}
    added = [text for text in texts if text not in labels]
    return replace(
        attribute, missing_values=tuple(dict.fromkeys([*attribute.missing_values, *added]))
    )
