"""Balance of each dataset: total, spent and remaining budget, computed from the ledger's rows.

The cost in a row is a decimal number in the unit of the dataset's total. It is added as a fraction,
so no sum is rounded.

Units of totals, and the charge of a release in each unit:

    kind   unit                 release with Gaussian noise        release with Laplace noise, epsilon-DP
    zcdp   pcost = 2 rho        its pcost                          epsilon^2, Bun and Steinke 2016, proposition 4
    gdp    pcost = mu^2         its pcost                          max(pcost, mu^2), see `Budget.mu`
    pure   epsilon              refused: it has no pure epsilon    its epsilon

A total in (epsilon, delta) has kind gdp: it is a point on the privacy curve of Gaussian noise,
which also holds for discrete noise (`engine.privacy.budget`). On that curve epsilon-DP costs more
than epsilon^2 if delta is large, so a release with Laplace noise has a higher charge.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache

from engine._format import pluralize
from engine._untrusted import parse_json
from engine._validation import check_choice, check_int
from engine.errors import LedgerError
from engine.ledger.hash_chain import Row
from engine.privacy import ADD_REMOVE, Budget
from engine.privacy.budget import DEFAULT_DELTA, NEIGHBOURS, delta_text

TOTAL_KINDS = ("zcdp", "gdp", "pure")
_PURE_EPSILON_PREFIX = "epsilon "
RELATIVE_COST_TOLERANCE = Fraction(1, 10**12)  # smaller than the upward rounding of costs


@dataclass(frozen=True, kw_only=True)
class TotalDefinition:
    """Definition of the total of a dataset: its unit, and the guarantee of its releases.

    Attributes
    ----------
    kind : unit, "zcdp", "gdp" or "pure"; see the table in the docstring of the module.
    rows_per_person : number of rows of one person that are protected jointly.
    neighbours : neighbouring relation of the guarantee.
    delta : the delta at which the total states epsilon; changes of the total keep it.
    """

    kind: str = "zcdp"
    rows_per_person: int = 1
    neighbours: str = ADD_REMOVE
    delta: float = DEFAULT_DELTA

    def __post_init__(self) -> None:
        check_choice("kind of the total", self.kind, TOTAL_KINDS, error=LedgerError)
        check_int("rows per person of the total", self.rows_per_person, error=LedgerError)
        check_choice("neighbours of the total", self.neighbours, NEIGHBOURS, error=LedgerError)
        if not isinstance(self.delta, float) or not 0.0 < self.delta < 1.0:
            raise LedgerError(
                f"delta of the total was {self.delta!r}. Give a number between 0 and 1."
            )

    @property
    def counts(self) -> str:
        """Unit of the charges: "pcost" or "epsilon"."""
        return "epsilon" if self.kind == "pure" else "pcost"

    def describe(self) -> str:
        """Return the unit and the guarantee as text.

        >>> TotalDefinition(kind="pure").describe()
        'pure epsilon, for adding or removing a person of at most 1 row'
        """
        kind = {"zcdp": "zCDP (pcost)", "gdp": "Gaussian DP (pcost)", "pure": "pure epsilon"}[
            self.kind
        ]
        delta = (
            "" if self.delta == DEFAULT_DELTA else f", epsilon at delta {delta_text(self.delta)}"
        )
        return f"{kind}{delta}, for {self.whom}"

    @property
    def whom(self) -> str:
        """Return the neighbouring relation as text.

        >>> TotalDefinition(rows_per_person=3).whom
        'adding or removing a person of at most 3 rows'
        """
        how = "adding or removing" if self.neighbours == ADD_REMOVE else "replacing"
        return f"{how} a person of at most {pluralize(self.rows_per_person, 'row')}"

    def unit(self, budget: Budget) -> Budget:
        """Return ``budget`` with the neighbours of this total and at least its rows per person."""
        rows = max(budget.rows_per_person, self.rows_per_person)
        return replace(budget, rows_per_person=rows, neighbours=self.neighbours)

    def check_unit(self, budget: Budget) -> None:
        """Raise LedgerError unless a release within ``budget`` has the guarantee of this total.

        It has this guarantee if its budget has the same neighbours, because costs for different
        neighbours are not comparable, and at least as many rows per person as the total.
        """
        if self.unit(budget) != budget:
            requested = replace(
                self, rows_per_person=budget.rows_per_person, neighbours=budget.neighbours
            )
            raise LedgerError(
                f"The total privacy budget of this dataset is {self.describe()}; the plan is for"
                f" {requested.whom}."
                f" Nothing was spent. Plan with a budget for rows_per_person={self.rows_per_person}"
                f" and neighbours={self.neighbours!r}."
            )

    def total(self, budget: Budget) -> str:
        """Return a budget, as the amount of a total of this kind, as text such as "epsilon 1.0".

        Raises LedgerError if only one of the budget and this total is pure epsilon.
        """
        if (self.kind == "pure") != (budget.pure_epsilon is not None):
            allowed = (
                "pure epsilon" if self.kind == "pure" else "pcost, rho, mu, or epsilon and delta"
            )
            raise LedgerError(
                f"The total of this dataset is counted in {self.counts}, and the budget is of"
                f" another kind. Give it in {allowed}."
            )
        return self.charge(budget.pcost, budget.pure_epsilon)

    def charge(self, pcost: float, pure_epsilon: float | None = None) -> str:
        """Return what a release is charged, as decimal text in the unit of this total.

        Parameters
        ----------
        pcost : privacy cost of the release.
        pure_epsilon : epsilon of a release with Laplace noise; None for Gaussian noise.

        Raises
        ------
        LedgerError
            The total is pure epsilon, and the release has Gaussian noise.

        Examples
        --------

        >>> TotalDefinition(kind="pure").charge(0.04, 0.2), TotalDefinition(kind="gdp").charge(0.04, 0.2)[:6]
        ('epsilon 0.2', '0.0627')
        """
        if self.kind == "pure":
            if pure_epsilon is None:
                raise LedgerError(
                    "The total of this dataset is in pure epsilon, and a release with Gaussian"
                    " noise has no pure epsilon. Nothing was spent. Plan with a budget of pure"
                    " epsilon and a mechanism with Laplace noise."
                )
            return f"{_PURE_EPSILON_PREFIX}{Budget.pure(pure_epsilon).pure_epsilon!r}"
        cost = Budget(pcost).pcost
        if pure_epsilon is not None:
            implied = Budget.pure(pure_epsilon)
            # rounded up, because a rounding error of mu must not allow an overspend
            cost = (
                max(cost, implied.mu**2 * (1 + 1e-12))
                if self.kind == "gdp"
                else max(cost, implied.pcost)
            )
        # the shortest text that parses to this double, so that the charge is the number people read
        return repr(cost)

    def to_text(self) -> str:
        """Return the definition as JSON text, the form in which the ledger stores it."""
        # the default delta is left out, because ledgers of earlier versions have no delta
        stored = {
            name: value
            for name, value in vars(self).items()
            if (name, value) != ("delta", DEFAULT_DELTA)
        }
        return json.dumps(stored, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> TotalDefinition:
        """Parse the output of `to_text`.

        Raises
        ------
        LedgerError
            The definition is from a later version of the program.
        """
        try:
            return cls(**parse_json(text))
        except (ValueError, TypeError):
            raise LedgerError(
                "The ledger has a total whose unit this version of the program does not support."
                " Update the program."
            ) from None


@lru_cache(maxsize=4096)
def exact(text: str) -> Fraction:
    """Return the cost in a row, a decimal text, as a fraction.

    >>> 10 * exact(repr(0.1)), exact("epsilon 0.5")
    (Fraction(1, 1), Fraction(1, 2))
    """
    return Fraction(text.removeprefix(_PURE_EPSILON_PREFIX))


def same_charge(one: str, other: str) -> bool:
    """Return whether two costs have the same unit and agree up to rounding errors.

    Two machines may compute the cost of one release with different rounding errors.

    >>> same_charge("0.3", "0.30000000000000004"), same_charge("0.3", "0.301"), same_charge("0.3", "epsilon 0.3")
    (True, False, False)
    """
    return is_epsilon(one) == is_epsilon(other) and abs(
        exact(one) - exact(other)
    ) <= RELATIVE_COST_TOLERANCE * exact(one)


def is_epsilon(text: str) -> bool:
    """Return whether the cost in a row is in epsilon, not in pcost."""
    return text.startswith(_PURE_EPSILON_PREFIX)


def as_pcost(text: str) -> float:
    """Return the cost in a row as a pcost; a cost in epsilon has the pcost epsilon^2."""
    number = float(text.removeprefix(_PURE_EPSILON_PREFIX))
    return Budget.pure(number).pcost if is_epsilon(text) else number


INVARIANTS_NOTE_KIND = "note:exact"  # kind of the rows that store the invariants of a release


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
    """Total, spent and remaining budget of one dataset, as doubles.

    Attributes
    ----------
    total, spent, left : amounts in the unit of `definition`; the ledger computes with fractions, of
        which `spent` is rounded up and `left` is rounded down.
    note : text that was stored with the dataset.
    definition : unit and guarantee of the total.
    exact : texts that name the invariants (exact public tables) of the releases; what these tables
        reveal is not protected.
    """

    dataset: str
    total: float
    spent: float
    left: float
    note: str = ""
    definition: TotalDefinition = field(default_factory=TotalDefinition)
    exact: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the unit of the total and the joint guarantee of all releases as text.

        >>> DatasetStatus(dataset="a", total=1.0, spent=0.5, left=0.5, exact=("the exact totals on age",)).describe()
        ... # doctest: +NORMALIZE_WHITESPACE
        'zCDP (pcost), for adding or removing a person of at most 1 row; all releases together have
        subspace differential privacy: what the exact totals on age reveal is not protected'
        """
        if not self.exact:
            return self.definition.describe()
        tables = " and ".join(self.exact)
        return (
            f"{self.definition.describe()}; all releases together have subspace differential"
            f" privacy: what {tables} reveal is not protected"
        )

    def takes(self, pcost: float, pure_epsilon: float | None = None) -> float:
        """Return what a release would be charged, in the unit of this total.

        Raises
        ------
        LedgerError
            The total is pure epsilon, and the release has Gaussian noise.
        BudgetError
            A cost is not a finite positive number.
        """
        return float(exact(self.definition.charge(pcost, pure_epsilon)))

    def pays_for(self, pcost: float, pure_epsilon: float | None = None) -> int:
        """Return the number of releases of this cost that the remaining budget allows.

        The parameters and errors are those of `takes`.
        """
        # the decimal number that `repr` shows is at most the remaining budget
        return int(exact(repr(self.left)) // exact(self.definition.charge(pcost, pure_epsilon)))


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Receipt of one spend: the content of its row in the ledger.

    Attributes
    ----------
    seq, utc : number of the row, and its time in ISO 8601.
    hash : hash of this row and all rows before it. Stored outside the ledger, for example in a
        release, it reveals that an old copy of the ledger was restored.
    fresh : True for exactly one call per key; only that caller may draw noise and save the result.
    digest : keyed digest of the measured tables, or ""; never part of a release.
    """

    dataset: str
    key: str
    pcost: float
    plan_hash: str
    note: str
    seq: int
    utc: str
    hash: str
    fresh: bool
    digest: str = ""

    @classmethod
    def of(cls, row: Row, *, fresh: bool) -> Receipt:
        """Return the receipt of a spend row."""
        names = ("dataset", "key", "plan_hash", "note", "seq", "utc", "hash")
        return cls(
            pcost=as_pcost(row.pcost),
            fresh=fresh,
            digest=Fingerprint.from_text(row.sha256).tables,
            **{name: getattr(row, name) for name in names},
        )


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Keyed digests that recognise counted records without storing their values.

    Two fingerprints belong to the same records if they share columns and agree on all of them.

    Attributes
    ----------
    tables : digest of the measured tables.
    columns : name of a column together with its domain -> digest of the counts of its values.
    """

    tables: str
    columns: Mapping[str, str]

    def same_columns(self, other: Fingerprint) -> bool:
        """Return whether the fingerprints share columns and agree on all of them."""
        shared = self.columns.keys() & other.columns.keys()
        # without a shared column the records cannot be compared
        return bool(shared) and all(self.columns[name] == other.columns[name] for name in shared)

    def to_text(self) -> str:
        """Return the fingerprint as one line, as stored in a row."""
        return " ".join(
            [self.tables, *(f"{name}={digest}" for name, digest in self.columns.items())]
        )

    @classmethod
    def from_text(cls, text: str) -> Fingerprint:
        """Parse the output of `to_text`; the empty text gives an empty fingerprint."""
        tables, *columns = text.split(" ")
        return cls(
            tables=tables, columns=dict(column.split("=", 1) for column in columns if "=" in column)
        )


@dataclass(kw_only=True)
class Balance:
    """Budgets of all datasets, and the spends, results and notes in some rows of the ledger.

    Attributes
    ----------
    totals : dataset -> row that added it, with the latest total of the dataset.
    spent : dataset -> exact sum of the spends.
    spends, saved : key of a release -> row of its spend, and row of its saved result.
    notes : (kind, key) -> rows of notes.
    exact : dataset -> texts that name the invariants of its releases.
    """

    totals: dict[str, Row] = field(default_factory=dict)
    spent: dict[str, Fraction] = field(default_factory=dict)
    spends: dict[str, Row] = field(default_factory=dict)
    saved: dict[str, Row] = field(default_factory=dict)
    notes: dict[tuple[str, str], tuple[Row, ...]] = field(default_factory=dict)
    exact: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def copied(self) -> Balance:
        """Return a copy with copied dictionaries, to which rows can be added."""
        return Balance(**{name: dict(entries) for name, entries in vars(self).items()})

    def left(self, dataset: str) -> Fraction:
        """Return the exact remaining budget in the unit of the total."""
        return exact(self.totals[dataset].pcost) - self.spent[dataset]

    def definition(self, dataset: str) -> TotalDefinition:
        """Return the definition of the total of a dataset."""
        return TotalDefinition.from_text(self.totals[dataset].plan_hash)

    def status(self, dataset: str) -> DatasetStatus:
        """Return total, spent and remaining budget of one dataset as doubles.

        Guarantee: a spend of `left` never exceeds the total.

        Raises
        ------
        LedgerError
            The ledger has no such dataset.
        """
        if dataset not in self.totals:
            names = ", ".join(map(repr, self.totals)) or "none"
            raise LedgerError(
                f"Dataset {dataset!r} is not in the ledger; its datasets are: {names}. Give one of"
                " them, or add the dataset with its total first."
            )
        total, spent, left = (
            float(exact(self.totals[dataset].pcost)),
            self.spent[dataset],
            self.left(dataset),
        )
        up, down = float(spent), float(left)
        while exact(repr(up)) < spent:
            up = math.nextafter(up, math.inf)
        while exact(repr(down)) > left:
            down = math.nextafter(down, 0.0)
        return DatasetStatus(
            dataset=dataset,
            total=total,
            spent=up,
            left=down,
            note=self.totals[dataset].note,
            definition=self.definition(dataset),
            exact=self.exact.get(dataset, ()),
        )


def balance(rows: Iterable[Row], start: Balance | None = None) -> tuple[Balance, list[str]]:
    """Return the balance after some rows, and a text for every row that violates a budget rule.

    Parameters
    ----------
    rows : rows in the order of the ledger.
    start : balance before these rows, which is not changed; None for the first rows.

    Examples
    --------

    >>> first = Row(seq=1, utc="", kind="ledger")
    >>> spend = Row(seq=2, utc="", kind="spend", dataset="adult", key="a", pcost="0.1")
    >>> balance([first, spend])[1]
    ['row 2 (spend) has a dataset that was never declared']
    """
    state, problems = start.copied() if start else Balance(), []
    for row in rows:
        try:
            problem = _apply_row(state, row)
        # a damaged row is reported like any other violation, and reading continues
        except (ArithmeticError, TypeError, ValueError, LedgerError):
            problem = "has a cost that is no number, or a total of an unknown unit"
        if problem:
            problems.append(f"row {row.seq} ({row.kind}) {problem}")
    return state, problems


def _apply_row(state: Balance, row: Row) -> str:
    """Update the balance by one row; return the rule that it violates as text, or ""."""
    if row.kind == "dataset":
        cost = exact(row.pcost)
        if row.dataset in state.totals or cost <= 0:
            return "adds a dataset twice, or with a budget that is not positive"
        if is_epsilon(row.pcost) != (TotalDefinition.from_text(row.plan_hash).kind == "pure"):
            return "adds a dataset whose total has another unit than its definition"
        state.totals[row.dataset], state.spent[row.dataset] = row, Fraction(0)
        return ""
    if row.kind in ("ledger", "clock"):
        return ""
    if row.dataset not in state.totals:
        return "has a dataset that was never declared"
    if row.kind == "total":
        before, cost = state.totals[row.dataset], exact(row.pcost)
        if row.plan_hash != before.plan_hash or is_epsilon(row.pcost) != is_epsilon(before.pcost):
            return "changes the unit of a total"
        if cost <= 0 or cost < state.spent[row.dataset]:
            return "lowers a total below the amount spent"
        if not row.note:
            return "changes a total without author and reason"
        state.totals[row.dataset] = replace(before, pcost=row.pcost)
        return ""
    if row.kind == "spend":
        cost = exact(row.pcost)
        if row.key in state.spends or cost <= 0:
            return "spends a key twice, or has a cost that is not positive"
        # epsilon and pcost have different units and cannot be added
        if is_epsilon(row.pcost) != is_epsilon(state.totals[row.dataset].pcost):
            return "has a cost in another unit than the total"
        # recorded before the check of the total, because an overspend still counts for later rows
        state.spends[row.key] = row
        state.spent[row.dataset] += cost
        return "" if state.left(row.dataset) >= 0 else "spends more than the remaining budget"
    if row.kind == "saved":
        if row.key in state.saved or row.key not in state.spends:
            return "saves a result twice, or without a spend"
        state.saved[row.key] = row
        return ""
    if row.kind.startswith("note:"):
        state.notes[row.kind, row.key] = (*state.notes.get((row.kind, row.key), ()), row)
        if row.kind == INVARIANTS_NOTE_KIND:
            state.exact[row.dataset] = tuple(
                dict.fromkeys((*state.exact.get(row.dataset, ()), row.note))
            )
        return ""
    return "has an unknown kind"
