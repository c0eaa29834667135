"""Balance of a dataset, derived from the rows of the ledger.

The cost in a row is a decimal number and counts exactly, as a fraction: no sum is rounded. Its unit
is the unit of the total, see `budget_unit`.

Units of declared totals, and the charge of a spend in each unit.

    kind   unit                 release with Gaussian noise        release with Laplace noise, epsilon-DP
    zcdp   pcost (rho = /2)     its pcost                          epsilon^2, Bun and Steinke 2016, proposition 4
    gdp    pcost (mu = root)    its pcost                          max(pcost, mu^2), see `Budget.mu`
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
    """Unit of the total of a dataset.

    Attributes
    ----------
    kind : "zcdp", "gdp" or "pure", see the module documentation.
    rows_per_person : largest number of rows of one person that is protected.
    neighbours : neighbouring relation of the guarantee.
    delta : the delta at which the declared total states epsilon; changes of the total keep it.
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
        """Return the definition as text.

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
        """Return a budget with the same cost and at least the rows and neighbours of this total."""
        rows = max(budget.rows_per_person, self.rows_per_person)
        return replace(budget, rows_per_person=rows, neighbours=self.neighbours)

    def check_unit(self, budget: Budget) -> None:
        """Raise LedgerError unless a release within a budget has the guarantee of this total.

        A guarantee for more rows per person implies the one for fewer; costs for different
        neighbours are not comparable.
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
        """Return a total as decimal text; raise LedgerError if the budget is of another kind."""
        if (self.kind == "pure") != (budget.pure_epsilon is not None):
            raise LedgerError(
                f"A total of kind {self.kind!r} cannot be given as {budget.describe()} Give a"
                " budget of its own kind."
            )
        return self.charge(budget.pcost, budget.pure_epsilon)

    def charge(self, pcost: float, pure_epsilon: float | None = None) -> str:
        """Return the charge of a release as decimal text.

        Parameters
        ----------
        pcost : cost of the release.
        pure_epsilon : epsilon of a release with Laplace noise.

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
                    "The total of this dataset is pure epsilon, which Gaussian noise does not keep"
                    " at any cost. Nothing was spent. Plan with pure epsilon, by a mechanism with"
                    " Laplace noise."
                )
            return f"{_PURE_EPSILON_PREFIX}{Budget.pure(pure_epsilon).pure_epsilon!r}"
        cost = Budget(pcost).pcost
        if pure_epsilon is not None:
            implied = Budget.pure(pure_epsilon)
            # rounded up slightly, because mu is rounded and must not let a total be overdrawn
            cost = (
                max(cost, implied.mu**2 * (1 + 1e-12))
                if self.kind == "gdp"
                else max(cost, implied.pcost)
            )
        # repr is the shortest text that parses to this double, so the displayed number is the exact
        # cost
        return repr(cost)

    def to_text(self) -> str:
        """Return the definition as stored in the ledger."""
        # without the default delta, as ledgers of earlier versions
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
                "A total has a definition that this program does not support; update the program."
            ) from None


@lru_cache(maxsize=4096)
def exact(text: str) -> Fraction:
    """Return the decimal number in a row as a fraction, in the unit of its total.

    >>> 10 * exact(repr(0.1)), exact("epsilon 0.5")
    (Fraction(1, 1), Fraction(1, 2))
    """
    return Fraction(text.removeprefix(_PURE_EPSILON_PREFIX))


def same_charge(one: str, other: str) -> bool:
    """Whether two costs agree up to rounding, as when two machines compute them.

    >>> same_charge("0.3", "0.30000000000000004"), same_charge("0.3", "0.301"), same_charge("0.3", "epsilon 0.3")
    (True, False, False)
    """
    return is_epsilon(one) == is_epsilon(other) and abs(
        exact(one) - exact(other)
    ) <= RELATIVE_COST_TOLERANCE * exact(one)


def is_epsilon(text: str) -> bool:
    """Whether the unit of a number in a row is epsilon."""
    return text.startswith(_PURE_EPSILON_PREFIX)


def as_pcost(text: str) -> float:
    """Return a number in a row as a pcost; epsilon-DP costs at most epsilon^2."""
    number = float(text.removeprefix(_PURE_EPSILON_PREFIX))
    return Budget.pure(number).pcost if is_epsilon(text) else number


INVARIANTS_NOTE_KIND = "note:exact"  # kind of rows that name the invariants of a release


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
    """Budget of one dataset as doubles; the ledger itself is exact.

    Attributes
    ----------
    total, spent, left : amounts in the unit of `definition`; `spent` is rounded up and `left` down.
    definition : unit of the total: pcost, or epsilon for a pure total.
    exact : invariants of the releases. No release protects what these public tables reveal.
    """

    dataset: str
    total: float
    spent: float
    left: float
    note: str = ""
    definition: TotalDefinition = field(default_factory=TotalDefinition)
    exact: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describe the unit of the total and the joint guarantee of all releases.

        >>> DatasetStatus(dataset="a", total=1.0, spent=0.5, left=0.5, exact=("the exact totals on age",)).describe()
        ... # doctest: +NORMALIZE_WHITESPACE
        'zCDP (pcost), for adding or removing a person of at most 1 row; for all releases together
        this is subspace differential privacy beside the exact totals on age, which protect nobody'
        """
        if not self.exact:
            return self.definition.describe()
        tables = " and ".join(self.exact)
        return (
            f"{self.definition.describe()}; for all releases together this is subspace differential"
            f" privacy beside {tables}, which protect nobody"
        )

    def takes(self, pcost: float, pure_epsilon: float | None = None) -> float:
        """Return the charge of a release in the unit of this total.

        Raises
        ------
        LedgerError : the total is pure epsilon, and the release has Gaussian noise.
        """
        return float(exact(self.definition.charge(pcost, pure_epsilon)))

    def pays_for(self, pcost: float, pure_epsilon: float | None = None) -> int:
        """Return how many such releases the remaining budget allows.

        Raises the errors of `takes`.
        """
        return int(Fraction(self.left) // exact(self.definition.charge(pcost, pure_epsilon)))


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Proof of one spend.

    Attributes
    ----------
    fresh : True for exactly one call per key; only that caller may draw noise and save the result.
    hash : hash of this row and all rows before it. Stored outside the ledger, for example in a
        release, it reveals that an old copy of the ledger was restored.
    digest : keyed digest of the measured tables, if recorded; never part of a release.
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
    """Keyed digests of counted records: of the measured tables, and of every column by its domain.

    Two fingerprints belong to the same records if all columns that occur in both agree.
    """

    tables: str
    columns: Mapping[str, str]

    def same_columns(self, other: Fingerprint) -> bool:
        """Whether the fingerprints share columns and agree on all of them."""
        shared = self.columns.keys() & other.columns.keys()
        # without a shared column nothing can be concluded; a different digest proves other records
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
    """State of the budgets after some rows.

    Attributes
    ----------
    totals : dataset -> declaring row, with the latest total as its cost.
    spent : dataset -> exact sum of the spends.
    spends, saved : key -> row.
    notes : (kind, key) -> rows.
    exact : dataset -> names of invariants.
    """

    totals: dict[str, Row] = field(default_factory=dict)
    spent: dict[str, Fraction] = field(default_factory=dict)
    spends: dict[str, Row] = field(default_factory=dict)
    saved: dict[str, Row] = field(default_factory=dict)
    notes: dict[tuple[str, str], tuple[Row, ...]] = field(default_factory=dict)
    exact: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def copied(self) -> Balance:
        """Return a copy, so that adding rows leaves this state unchanged."""
        return Balance(**{name: dict(entries) for name, entries in vars(self).items()})

    def left(self, dataset: str) -> Fraction:
        """Return the exact remaining budget in the unit of the total."""
        return exact(self.totals[dataset].pcost) - self.spent[dataset]

    def definition(self, dataset: str) -> TotalDefinition:
        """Return the definition of the total of a dataset."""
        return TotalDefinition.from_text(self.totals[dataset].plan_hash)

    def status(self, dataset: str) -> DatasetStatus:
        """Return the budget of one dataset as doubles.

        Guarantee: a spend of `left` never exceeds the total.

        Raises
        ------
        LedgerError
            The dataset was never declared.
        """
        if dataset not in self.totals:
            names = ", ".join(map(repr, self.totals)) or "none"
            raise LedgerError(
                f"Dataset {dataset!r} is not in the ledger (it has: {names}); declare it first."
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
    """Return the balance after some rows, and a description of every row that violates a budget
    rule.

    Parameters
    ----------
    rows : rows in order.
    start : balance before these rows; it is not changed.

    Examples
    --------

    >>> opened = Row(seq=1, utc="", kind="ledger")
    >>> spend = Row(seq=2, utc="", kind="spend", dataset="adult", key="a", pcost="0.1")
    >>> balance([opened, spend])[1]
    ['row 2 (spend) has a dataset that was never declared']
    """
    state, problems = start.copied() if start else Balance(), []
    for row in rows:
        try:
            problem = _apply_row(state, row)
        # a damaged row is reported like any other violation, and reading continues
        except (ArithmeticError, TypeError, ValueError, LedgerError):
            problem = (
                "holds no number where its cost should be, or a total this program does not know"
            )
        if problem:
            problems.append(f"row {row.seq} ({row.kind}) {problem}")
    return state, problems


def _apply_row(state: Balance, row: Row) -> str:
    """Apply one row; return the violated rule, or an empty text."""
    if row.kind == "dataset":
        cost = exact(row.pcost)
        if row.dataset in state.totals or cost <= 0:
            return "declares a dataset twice, or with no positive budget"
        if is_epsilon(row.pcost) != (TotalDefinition.from_text(row.plan_hash).kind == "pure"):
            return "declares a total that is not of its kind"
        state.totals[row.dataset], state.spent[row.dataset] = row, Fraction(0)
        return ""
    if row.kind in ("ledger", "clock"):
        return ""
    if row.dataset not in state.totals:
        return "has a dataset that was never declared"
    if row.kind == "total":
        before, cost = state.totals[row.dataset], exact(row.pcost)
        if row.plan_hash != before.plan_hash or is_epsilon(row.pcost) != is_epsilon(before.pcost):
            return "changes what a total counts"
        if cost <= 0 or cost < state.spent[row.dataset]:
            return "lowers a total below what is spent"
        if not row.note:
            return "changes a total without saying who and why"
        state.totals[row.dataset] = replace(before, pcost=row.pcost)
        return ""
    if row.kind == "spend":
        cost = exact(row.pcost)
        if row.key in state.spends or cost <= 0:
            return "spends a key twice, or no positive cost"
        # epsilon and pcost have different units and cannot be added
        if is_epsilon(row.pcost) != is_epsilon(state.totals[row.dataset].pcost):
            return "spends what its total does not count"
        # recorded before it is checked, because an invalid spend still counts for later rows
        state.spends[row.key] = row
        state.spent[row.dataset] += cost
        return "" if state.left(row.dataset) >= 0 else "spends more than was left"
    if row.kind == "saved":
        # a result without a spend was not paid for
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
    return "is of an unknown kind"
