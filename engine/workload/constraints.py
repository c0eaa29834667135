"""Public constraints on the records: structural zeros and invariants.

Structural zeros: cells that no record can have, told by rules such as "age < 15 and married == 'yes'".

A rule is a predicate in the language of `predicates`.  Rules that share attributes are read together, on all of their
attributes, so that what follows from several of them is known exactly.

Invariants: exact tables that are public already, such as the population by region, which every release keeps.

Facts that share attributes, rules for impossible cells among them, are read together.  What they leave possible is told
by one table for all of them: by iterative proportional fitting where that arrives, else by a linear program that finds
a table with as many cells above 0 as any has, or proves that there is none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine._format import cost, set_name, shown
from engine.errors import SchemaError, WorkloadError
from engine.privacy import Budget
from engine.workload.attribute import Attribute, sequence
from engine.workload.predicates import evaluate, named_in
from engine.workload.schema_io import MAX_LABEL, check_text

MOST_RULES = 100
MOST_CELLS = 2**20  # of the attributes of rules that are read together


@dataclass(frozen=True, kw_only=True, eq=False)
class Impossible:
    """What facts that share attributes say: the share of the records in every cell, of shape (n_1, ..., n_k).

    The shares sum to 1 and are even as far as the facts allow; 0 is a cell that none may have.
    """

    names: tuple[str, ...]
    share: npt.NDArray[np.float64] = field(repr=False)

    def possible(self, names: Iterable[str]) -> npt.NDArray[np.float64]:
        """Return the share of the records in every cell of some of the attributes, in the order of ``names``.

        Shape as the sizes of those; 0 exactly where a cell is impossible.
        """
        own = [self.names.index(name) for name in names]
        kept = self.share.sum(axis=tuple(a for a in range(self.share.ndim) if a not in own))
        return np.asarray(kept).transpose([sorted(own).index(a) for a in own])


def checked_rules(rules: Any) -> tuple[str, ...]:
    """Return rules as distinct texts.  Raises: SchemaError."""
    found = tuple(
        sequence((rules,) if isinstance(rules, str) else rules, "rules of impossible cells", "a list of texts")
    )
    if len(found) > MOST_RULES:
        raise SchemaError(f"{len(found):,} rules of impossible cells; at most {MOST_RULES} are read")
    for rule in found:
        check_text(rule, "rule of impossible cells", MAX_LABEL)
    if len(set(found)) < len(found):
        raise SchemaError("a rule of impossible cells is there twice; give each once")
    return found


def read_rules(rules: Sequence[str], attributes: Sequence[Attribute]) -> tuple[Impossible, ...]:
    """Return what rules say, those that share attributes together.

    Raises: SchemaError for a rule that cannot be read, or holds nowhere; for rules that leave no cell possible, and for
    rules that together are about too many cells.
    """
    together: list[tuple[set[int], list[str]]] = []
    for rule in rules:
        try:
            own = set(named_in(rule, attributes))
        except WorkloadError as error:
            raise SchemaError(f"a rule of impossible cells: {error}") from None
        members = [rule]
        for other in [found for found in together if found[0] & own]:
            together.remove(other)
            own, members = own | other[0], other[1] + members
        together.append((own, members))
    return tuple(_combine_rules(members, [attributes[i] for i in sorted(own)]) for own, members in together)


def _combine_rules(rules: Sequence[str], attributes: Sequence[Attribute]) -> Impossible:
    names, shape = tuple(a.name for a in attributes), tuple(a.size for a in attributes)
    if math.prod(shape) > MOST_CELLS:
        raise SchemaError(
            f"the rules of impossible cells on {set_name(names)} are about {math.prod(shape):,} cells together; at "
            f"most {MOST_CELLS:,} are read. Use fewer attributes in rules that share one"
        )
    cells = np.zeros(shape, dtype=bool)
    for rule in rules:
        try:
            held = evaluate(rule, attributes).reshape(shape) > 0.0
        except WorkloadError as error:
            raise SchemaError(f"a rule of impossible cells: {error}") from None
        if not held.any():
            raise SchemaError(
                f"the rule of impossible cells {shown(rule)} holds for no cell; correct it, or leave it out"
            )
        cells |= held
    if cells.all():
        raise SchemaError(f"the rules of impossible cells leave nothing possible on {set_name(names)}; correct one")
    return Impossible(names=names, share=~cells / np.count_nonzero(~cells))


MOST_INVARIANTS, LARGEST_TOTAL = 100, 2**50
ROUNDS, ARRIVED = 200, 1e-13  # of proportional fitting, and the share of the total that margins then miss
MOST_SEARCHED = 20_000  # cells of the linear program

_Table = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Invariant:
    """An exact table that is public: ``values`` are its cells in counts, row by row, on ``attributes``."""

    attributes: tuple[str, ...]
    values: tuple[int, ...] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready description."""
        return {"attributes": list(self.attributes), "values": list(self.values)}

    def table(self, sizes: Mapping[str, int], names: Sequence[str]) -> _Table:
        """The table on some of the attributes, in the order given, as the sizes of all attributes shape it."""
        whole = np.array(self.values, np.int64).reshape([sizes[n] for n in self.attributes])
        kept = [n for n in self.attributes if n in names]
        summed = whole.sum(axis=tuple(a for a, n in enumerate(self.attributes) if n not in names), dtype=np.int64)
        return np.asarray(summed).transpose([kept.index(n) for n in names])


def checked_invariants(given: Any, attributes: Sequence[Attribute]) -> tuple[Invariant, ...]:
    """Return exact tables, given as (attributes, values), with their attributes in the order of the schema.

    Raises: SchemaError for what is no table of whole counts on attributes of the schema, and for tables that disagree.
    """
    told = tuple(sequence(given, "invariants", "a list of pairs of attributes and values"))
    if len(told) > MOST_INVARIANTS:
        raise SchemaError(f"{len(told):,} invariants; at most {MOST_INVARIANTS} are read")
    sizes = {a.name: a.size for a in attributes}
    found = tuple(one if isinstance(one, Invariant) else _parse_table(one) for one in told)
    out = tuple(_fitting(names, values, sizes) for names, values in map(_pair, found))
    if len({one.attributes for one in out}) < len(out):
        raise SchemaError("an invariant is there twice on the same attributes; give each once")
    for one, other in itertools.combinations(out, 2):
        shared = [n for n in one.attributes if n in other.attributes]
        if not np.array_equal(one.table(sizes, shared), other.table(sizes, shared)):
            raise SchemaError(
                f"the invariants on {set_name(one.attributes)} and on {set_name(other.attributes)} contradict each "
                f"other: their totals on {set_name(shared) if shared else 'all records'} differ. Correct one of them"
            )
    return out


def _pair(found: Any) -> tuple[Any, Any]:
    return (found.attributes, found.values) if isinstance(found, Invariant) else found


def _parse_table(one: Any) -> tuple[Any, Any]:
    if isinstance(one, Mapping) and one.keys() == {"attributes", "values"}:
        return one["attributes"], one["values"]
    if isinstance(one, (tuple, list)) and len(one) == 2:
        return one[0], one[1]
    raise SchemaError(
        f"an invariant is given as {type(one).__name__}; give a pair of attributes and exact values, such as "
        "(['region'], [310, 242])"
    )


def _fitting(given: Any, values: Any, sizes: Mapping[str, int]) -> Invariant:
    """Return the invariant of some attributes and values, the attributes ranked.  Raises: SchemaError."""
    names = (given,) if isinstance(given, str) else tuple(sequence(given, "attributes of an invariant", "names"))
    unknown = [n for n in names if n not in sizes]
    if unknown or len(set(names)) < len(names):
        raise SchemaError(
            f"an invariant is on {set_name(map(str, names))}; name attributes of this schema, each once. It has "
            f"{set_name(sizes) if len(sizes) <= 20 else f'{len(sizes):,} of them'}"
        )
    shape = tuple(sizes[n] for n in names)
    where = set_name(names) if names else "all records"
    if math.prod(shape) > MOST_CELLS:
        raise SchemaError(f"the invariant on {where} has {math.prod(shape):,} cells; at most {MOST_CELLS:,} are read")
    try:
        table = np.asarray(values, dtype=float)
    except (TypeError, ValueError, OverflowError):
        table = np.full(1, np.nan)
    if table.shape != shape and (table.ndim > 1 or table.size != math.prod(shape)):
        raise SchemaError(
            f"the invariant on {where} has values of shape {table.shape}, and the schema's is {shape}: give one exact "
            "count for every cell"
        )
    if not (np.isfinite(table) & (table >= 0) & (table == np.floor(table))).all():
        raise SchemaError(f"the invariant on {where} has values that are no counts; give whole numbers from 0")
    if not 0 < table.sum() <= LARGEST_TOTAL:
        raise SchemaError(f"the values of the invariant on {where} must sum to between 1 and 2^50")
    ranked = tuple(n for n in sizes if n in names)
    ordered = table.reshape(shape).transpose([names.index(n) for n in ranked])
    return Invariant(attributes=ranked, values=tuple(int(v) for v in ordered.ravel().tolist()))


def joint_facts(
    zeros: Sequence[Impossible], invariants: Sequence[Invariant], attributes: Sequence[Attribute]
) -> tuple[Impossible, ...]:
    """Return what rules and invariants say together, those that share attributes in one table.

    Raises: SchemaError when no table keeps them all, or they are about too many cells to tell.
    """
    if not invariants:
        return tuple(zeros)
    together: list[tuple[set[str], list[Impossible], list[Invariant]]] = []
    alone: list[tuple[set[str], list[Impossible], list[Invariant]]] = [(set(z.names), [z], []) for z in zeros]
    alone += [(set(one.attributes), [], [one]) for one in invariants if one.attributes]
    for own, rules, exact in alone:
        for other in [found for found in together if found[0] & own]:
            together.remove(other)
            own, rules, exact = own | other[0], other[1] + rules, other[2] + exact
        together.append((own, rules, exact))
    return tuple(_joined([a for a in attributes if a.name in own], rules, exact) for own, rules, exact in together)


def _joined(attributes: Sequence[Attribute], rules: Sequence[Impossible], exact: Sequence[Invariant]) -> Impossible:
    names, shape = tuple(a.name for a in attributes), tuple(a.size for a in attributes)
    if math.prod(shape) > MOST_CELLS:
        raise SchemaError(
            f"the facts on {set_name(names)} are about {math.prod(shape):,} cells together; at most {MOST_CELLS:,} are "
            "read. Use fewer attributes in facts that share one"
        )
    sizes = dict(zip(names, shape, strict=True))
    start = np.ones(shape)
    for rule in rules:
        start = start * np.expand_dims(
            rule.possible(rule.names) > 0.0, [a for a, n in enumerate(names) if n not in rule.names]
        )
    margins = [
        (tuple(a for a, n in enumerate(names) if n not in one.attributes), one.table(sizes, one.attributes))
        for one in exact
    ]
    table = _proportional(start, margins, names)
    if table is None:
        table = _most_possible(start > 0.0, margins, names)
    return Impossible(names=names, share=table / table.sum())


def promise_beside(budget: Budget, exact: str) -> str:
    """Return the promise of a budget where tables are public and exact, which ``exact`` names.

    Whoever knows everybody else reads the presence of one person off exact totals.  What is left to guess is which of
    two contributions is theirs, both with the same totals: rows that are replaced.
    """
    replaced, k = budget.at(budget.replace_one_pcost), budget.rows_per_person
    rows = "one row" if k == 1 else f"up to {k:,} rows"
    return (
        f"Nothing protects what {exact} say: they are public, and whoever knows everybody else reads off them that you "
        "are counted, and where. Of two contributions that leave them as they are, whoever sees what is published "
        f"guesses right at most {replaced.guess:g}% of the time which is yours (a coin flip: 50%). That is for all "
        f"that you contributed, {rows}."
    )


def meaning_beside(budget: Budget, exact: str, *, curve: bool = True) -> str:
    """Return what a budget means, in one line, where tables are public and exact, which ``exact`` names.

    Source: Subspace Differential Privacy (Gao, Gong and Yu 2021).
    """
    epsilon = "" if budget.pure_epsilon is None else f"epsilon {cost(budget.pure_epsilon)}, "
    return (
        f"Subspace differential privacy: {exact} are kept to the digit and protect nobody; what they leave open hides "
        f"whether {budget.protects}: {epsilon}{budget.numbers(curve=curve)}."
    )


_Margins = Sequence[tuple[tuple[int, ...], _Table]]  # axes that are summed out, and what is then left


def _proportional(table: npt.NDArray[np.float64], margins: _Margins, names: tuple[str, ...]) -> Any:
    """Return the table nearest to an even one that has the margins; None where that does not arrive in time."""
    for _ in range(ROUNDS if margins else 1):
        missed = 0.0
        for out, wanted in margins:
            sums = table.sum(axis=out, keepdims=True)
            aimed = np.expand_dims(wanted, out)
            if ((sums == 0.0) & (aimed > 0)).any():
                raise _contradiction(names)
            missed = max(missed, float(np.abs(sums - aimed).sum() / aimed.sum()))
            table = table * np.divide(aimed, sums, out=np.zeros(sums.shape), where=sums > 0.0)
        if missed <= ARRIVED:
            return table
    return None


def _most_possible(possible: npt.NDArray[np.bool_], margins: _Margins, names: tuple[str, ...]) -> Any:
    """Return a table with the margins, and with as many cells above 0 as any such table has.

    Maximise sum of t subject to t <= x, 0 <= t <= 1 and margins of x that are s times those wanted, s >= 1: where a
    cell can be above 0 at all, a large s lets t be 1.
    """
    import scipy.optimize
    import scipy.sparse

    cells = np.flatnonzero(possible)
    if cells.size > MOST_SEARCHED:
        raise SchemaError(
            f"the facts on {set_name(names)} leave {cells.size:,} cells possible, too many to see whether they can all "
            f"hold; at most {MOST_SEARCHED:,} are searched. Use fewer attributes in facts that share one"
        )
    number, count = np.unravel_index(cells, possible.shape), cells.size
    sums, wanted = list[Any](), list[Any]()
    for out, aimed in margins:
        kept = [a for a in range(possible.ndim) if a not in out]
        at = np.ravel_multi_index([number[a] for a in kept], aimed.shape) if kept else np.zeros(count, int)
        sums.append(scipy.sparse.csr_array((np.ones(count), (at, np.arange(count))), shape=(aimed.size, count)))
        wanted.append(aimed.ravel() / aimed.sum() * count)
    eye, none = scipy.sparse.eye_array(count), scipy.sparse.csr_array((count, 1))
    aim = np.concatenate(wanted)
    parts: list[Any] = [scipy.sparse.vstack(sums), scipy.sparse.csr_array((aim.size, count)), -aim[:, None]]
    equal: Any = scipy.sparse.hstack(parts)
    apart: Any = scipy.sparse.hstack([-eye, eye, none])
    found = scipy.optimize.linprog(
        np.concatenate([np.zeros(count), -np.ones(count), [0.0]]),
        A_ub=apart,
        b_ub=np.zeros(count),
        A_eq=equal,
        b_eq=np.zeros(aim.size),
        bounds=[(0, None)] * count + [(0, 1)] * count + [(1, None)],
    )
    if found.x is None:
        raise _contradiction(names)
    table = np.zeros(possible.shape)
    table.flat[cells] = np.where(found.x[count : 2 * count] > 0.5, found.x[:count] / found.x[-1], 0.0)
    return table


def _contradiction(names: Iterable[str]) -> SchemaError:
    return SchemaError(
        f"the facts on {set_name(names)} contradict each other: no table of counts has these exact totals and nothing "
        "in impossible cells. Correct an invariant or a rule"
    )
