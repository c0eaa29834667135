"""Balance of each dataset: total, spent and remaining budget, computed from the ledger's rows.

The cost in a row is a decimal number in the unit of the dataset's total. Costs are added as
fractions, so that no sum is rounded.

Units of totals, and what a release is charged in each unit:

    kind   unit                 release with Gaussian noise        release with Laplace noise, epsilon-DP
    zcdp   pcost = 2 rho        its pcost                          max(pcost, epsilon^2), Bun and Steinke 2016, prop. 4
    gdp    pcost = mu^2         its pcost                          max(pcost, mu^2), see `Budget.mu`
    pure   epsilon              refused: it has no pure epsilon    its epsilon

A total in (epsilon, delta) has kind gdp: the point (epsilon, delta) determines one privacy curve of
Gaussian noise, and discrete Gaussian noise satisfies this curve too (`engine.privacy`). An
epsilon-DP release satisfies the curve with `Budget.mu`, where mu^2 can be larger than epsilon^2.
This is why kind gdp charges the maximum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from engine._format import pluralize
from engine._untrusted import parse_json
from engine._validation import check_choice, check_int
from engine.errors import LedgerError
from engine.ledger.sqlite_file import Row
from engine.privacy import ADD_REMOVE, DEFAULT_DELTA, NEIGHBOURS, Budget, delta_text

TOTAL_KINDS = ("zcdp", "gdp", "pure")
_PURE_EPSILON_PREFIX = "epsilon "
# Two costs count as equal if their relative difference is at most this.  The privacy costs of plans
# are rounded up by as much, so the smaller one of two equal costs is still an upper bound.
RELATIVE_COST_TOLERANCE = Fraction(1, 10**12)


@dataclass(frozen=True, kw_only=True)
class TotalDefinition:
    """Definition of the total budget of a dataset: its unit, and the guarantee of all releases.

    Attributes
    ----------
    kind : unit, "zcdp", "gdp" or "pure"; see the table in the docstring of the module.
    rows_per_person : largest number of rows of one person; all of them are protected jointly.
    neighbours : neighbouring relation of the guarantee, "add_remove" or "replace_one".
    delta : delta at which epsilon is reported; a change of the total does not change it.
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
                f"The delta of the total was {self.delta!r}. Give a float above 0 and below 1."
            )

    @property
    def unit(self) -> str:
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
        return f"{kind}{delta}, for {self.neighbours_text}"

    @property
    def neighbours_text(self) -> str:
        """Neighbouring relation of the guarantee, as text.

        >>> TotalDefinition(rows_per_person=3).neighbours_text
        'adding or removing a person of at most 3 rows'
        """
        how = "adding or removing" if self.neighbours == ADD_REMOVE else "replacing"
        return f"{how} a person of at most {pluralize(self.rows_per_person, 'row')}"

    def with_guarantee(self, budget: Budget) -> Budget:
        """Return ``budget`` with the guarantee that releases of this dataset must have.

        The result has the neighbouring relation of the dataset's total.  Its rows per person are
        the maximum of the rows per person of the total and of ``budget``.
        """
        rows = max(budget.rows_per_person, self.rows_per_person)
        return replace(budget, rows_per_person=rows, neighbours=self.neighbours)

    def check_guarantee(self, budget: Budget) -> None:
        """Raise LedgerError unless a release within ``budget`` has this total budget's guarantee.

        The release has this guarantee if two conditions hold: ``budget`` has the neighbouring
        relation of the total, because costs under different relations are not comparable; and
        ``budget`` protects at least as many rows per person as the total.
        """
        if self.with_guarantee(budget) != budget:
            requested = replace(
                self, rows_per_person=budget.rows_per_person, neighbours=budget.neighbours
            )
            raise LedgerError(
                f"The total privacy budget of this dataset is for {self.neighbours_text}, but the"
                f" plan is for {requested.neighbours_text}."
                f" Nothing was spent. Plan with rows_per_person={self.rows_per_person} and"
                f" neighbours={self.neighbours!r} in the budget."
            )

    def total(self, budget: Budget) -> str:
        """Return ``budget`` as text in the unit of the total, such as "0.5" or "epsilon 1.0".

        Raises LedgerError if ``budget`` is pure epsilon and the total is not, or the reverse.
        """
        if (self.kind == "pure") != (budget.pure_epsilon is not None):
            allowed = (
                "pure epsilon" if self.kind == "pure" else "pcost, rho, mu, or epsilon and delta"
            )
            raise LedgerError(
                f"The unit of this dataset's total is {self.unit}, and a total cannot be"
                f" converted to another unit. Give it in {allowed}."
            )
        return self.charge(budget.pcost, budget.pure_epsilon)

    def charge(self, pcost: float, pure_epsilon: float | None = None) -> str:
        """Return what the dataset is charged for a release, as text in the unit of its total.

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
            # mu^2 is rounded up, so that a rounding error of mu cannot allow an overspend
            implied_cost = implied.mu**2 * (1 + 1e-12) if self.kind == "gdp" else implied.pcost
            cost = max(cost, implied_cost)
        # `repr` gives the shortest decimal number for this double; exactly this number is charged
        return repr(cost)

    def to_text(self) -> str:
        """Return the definition as JSON text, the form in which the ledger stores it."""
        # the default delta is left out, so that the text equals the text of earlier versions, which
        # stored no delta
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
            The text is not a definition that this version of the program supports.
        """
        try:
            return cls(**parse_json(text))
        except (ValueError, TypeError):
            raise LedgerError(
                "The definition of a total is damaged, or this version of the program does not"
                " support it. Update the program, or restore the file from a copy."
            ) from None


@lru_cache(maxsize=4096)
def exact(text: str) -> Fraction:
    """Return the cost in a row as an exact fraction.

    The cost is decimal text; the prefix "epsilon " is ignored.

    >>> 10 * exact(repr(0.1)), exact("epsilon 0.5")
    (Fraction(1, 1), Fraction(1, 2))
    """
    return Fraction(text.removeprefix(_PURE_EPSILON_PREFIX))


def same_charge(one: str, other: str) -> bool:
    """Return whether two costs have the same unit and are equal up to rounding errors.

    The cost of one release may have different rounding errors on two machines.

    >>> same_charge("0.3", "0.30000000000000004"), same_charge("0.3", "0.301"), same_charge("0.3", "epsilon 0.3")
    (True, False, False)
    """
    return is_epsilon(one) == is_epsilon(other) and abs(
        exact(one) - exact(other)
    ) <= RELATIVE_COST_TOLERANCE * exact(one)


def is_epsilon(text: str) -> bool:
    """Return True if the unit of a cost is epsilon, and False if it is pcost."""
    return text.startswith(_PURE_EPSILON_PREFIX)


def as_pcost(text: str) -> float:
    """Return a cost as a pcost; a cost in epsilon is converted to epsilon^2."""
    number = float(text.removeprefix(_PURE_EPSILON_PREFIX))
    return Budget.pure(number).pcost if is_epsilon(text) else number


# kind of the rows that name the invariants (exact public tables) of a release
INVARIANTS_NOTE_KIND = "note:exact"


@dataclass(frozen=True, kw_only=True)
class JointCharge:
    """What the releases of one dataset were charged together, up to one of them.

    Attributes
    ----------
    releases : number of charged releases, the last one included.
    spent : sum of their charges in the unit of ``definition``, rounded up.
    definition : unit and guarantee of the dataset's total.
    exact : names of the invariants (exact public tables) of these releases.
    """

    releases: int
    spent: float
    definition: TotalDefinition = field(default_factory=TotalDefinition)
    exact: tuple[str, ...] = ()

    @property
    def guess(self) -> float:
        """Largest success rate of a guess by someone who sees all these releases, in percent.

        For a total of kind "zcdp" the rate holds for any noise, so it can be larger than
        `Budget.guess` of the same pcost.
        """
        definition = self.definition
        is_pure = definition.kind == "pure"
        budget = replace(
            Budget.pure(self.spent) if is_pure else Budget(pcost=self.spent),
            rows_per_person=definition.rows_per_person,
            neighbours=definition.neighbours,
        )
        if self.exact:
            budget = budget.at(budget.replace_one_pcost)
        return budget.guess_zcdp if definition.kind == "zcdp" else budget.guess

    @property
    def text(self) -> str:
        """Sentence on the joint guarantee of these releases; numbers are rounded up.

        >>> JointCharge(releases=1, spent=0.5).text
        'The ledger has no earlier release of this dataset.'
        >>> JointCharge(releases=2, spent=0.5, definition=TotalDefinition(kind="gdp")).text
        ... # doctest: +NORMALIZE_WHITESPACE
        'With the earlier releases of this dataset in the ledger: someone who sees all 2 releases
        guesses right at most 63.9% of the time whether you, with at most 1 row, are in the records.
        Releases under other dataset names are not included.'
        """
        if self.releases == 1:
            return "The ledger has no earlier release of this dataset."
        rows = pluralize(self.definition.rows_per_person, "row")
        if self.exact:
            question = (
                f"which of two contributions of yours, with at most {rows} and the same"
                f" {' and '.join(self.exact).removeprefix('the ')}, is true"
            )
        elif self.definition.neighbours == ADD_REMOVE:
            question = f"whether you, with at most {rows}, are in the records"
        else:
            question = f"which of any two contributions, with at most {rows}, is yours"
        return (
            "With the earlier releases of this dataset in the ledger: someone who sees all"
            f" {self.releases:,} releases guesses right at most {self.guess:g}% of the time"
            f" {question}. Releases under other dataset names are not included."
        )

    def to_dict(self) -> dict[str, object]:
        """Return the values as a dictionary for JSON, from which `from_dict` restores them."""
        return {
            "releases": self.releases,
            "spent": self.spent,
            "definition": json.loads(self.definition.to_text()),
            "exact": list(self.exact),
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> JointCharge:
        """Restore the result of `to_dict`; raise LedgerError if a value is invalid."""
        has_fields = fields.keys() == {"releases", "spent", "definition", "exact"}
        is_valid = has_fields and (
            type(fields["releases"]) is int
            and fields["releases"] >= 1
            and type(fields["spent"]) in (int, float)
            and 0 < fields["spent"] < math.inf
            and isinstance(fields["exact"], list)
            and all(type(name) is str for name in fields["exact"])
        )
        if not is_valid:
            raise LedgerError(
                "The joint charge of the releases has a missing or invalid field; it needs exactly"
                " 'releases', 'spent', 'definition' and 'exact'. Give it as it was published."
            )
        return cls(
            releases=fields["releases"],
            spent=float(fields["spent"]),
            definition=TotalDefinition.from_text(json.dumps(fields["definition"])),
            exact=tuple(fields["exact"]),
        )


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
    """Total, spent and remaining budget of one dataset, as doubles.

    Attributes
    ----------
    total, spent, left : amounts in the unit of `definition`. The ledger computes with exact
        fractions; here `spent` is rounded up and `left` is rounded down.
    note : text that was stored with the dataset.
    definition : unit and guarantee of the total.
    exact : names of the invariants (exact public tables) of all releases; what these tables reveal
        is not protected.
    releases : number of charged releases.
    """

    dataset: str
    total: float
    spent: float
    left: float
    note: str = ""
    definition: TotalDefinition = field(default_factory=TotalDefinition)
    exact: tuple[str, ...] = ()
    releases: int = 0

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

    def joint_charge(self, charge: float, invariants: str = "", *, count: int = 1) -> JointCharge:
        """Return what the dataset is charged together with further releases.

        Parameters
        ----------
        charge : sum of their charges in the unit of the total; see `takes`.
        invariants : text that names the invariants of the releases; empty if they have none.
        count : number of further releases; both steps of a two-stage release count.
        """
        names = (*self.exact, invariants) if invariants else self.exact
        return JointCharge(
            releases=self.releases + count,
            spent=math.nextafter(self.spent + charge, math.inf),
            definition=self.definition,
            exact=tuple(dict.fromkeys(names)),
        )

    def takes(self, pcost: float, pure_epsilon: float | None = None) -> float:
        """Return what a release charges to this dataset, in the unit of the dataset's total.

        Parameters
        ----------
        pcost : privacy cost of the release.
        pure_epsilon : epsilon of a release with Laplace noise; None for Gaussian noise.

        Raises
        ------
        LedgerError
            The total is pure epsilon, and the release has Gaussian noise.
        BudgetError
            A cost is not a finite positive number.
        """
        return float(exact(self.definition.charge(pcost, pure_epsilon)))

    def pays_for(self, pcost: float, pure_epsilon: float | None = None) -> int:
        """Return how many releases of this cost the remaining budget allows.

        The parameters and errors are those of `takes`.
        """
        # `status` rounded `left` down, so the text repr(left) is at most the exact remaining budget
        return int(exact(repr(self.left)) // exact(self.definition.charge(pcost, pure_epsilon)))


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Receipt of one spend: the content of its row in the ledger.

    Attributes
    ----------
    key : key of the release.
    pcost : charge as a pcost; a charge in epsilon is converted to epsilon^2.
    seq, utc : number of the row, and its time in ISO 8601.
    hash : hash of this row and all rows before it. A copy of this hash outside the ledger, for
        example in a release, reveals whether an old copy of the ledger was restored.
    fresh : True for exactly one call per key; only that caller may draw noise and save the result.
    digest : keyed digest of the measured tables, or "" if none was stored; never part of a release.
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

    Two fingerprints count as fingerprints of the same records if they share a column and agree on
    all shared columns.

    Attributes
    ----------
    tables : keyed digest of the measured tables.
    columns : digest of a column's name and public domain -> keyed digest of the counts of the
        values.
    """

    tables: str
    columns: Mapping[str, str]

    def same_columns(self, other: Fingerprint) -> bool:
        """Return whether at least one column is in both fingerprints and all such columns agree."""
        shared = self.columns.keys() & other.columns.keys()
        # without a shared column nothing shows that both fingerprints are of the same records
        return bool(shared) and all(self.columns[name] == other.columns[name] for name in shared)

    def to_text(self) -> str:
        """Return the fingerprint as one line of text, the form in which the ledger stores it."""
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
    """Budgets, spends, results and notes of all datasets after some rows of the ledger.

    Attributes
    ----------
    totals : dataset -> row that added the dataset; its `pcost` is replaced by the latest total.
    spent : dataset -> exact sum of the spends, in the unit of the total.
    spends : key of a release -> row of its spend.
    saved : key of a release -> row of its saved result.
    notes : (kind of note, key of a release) -> rows of the notes.
    exact : dataset -> names of the invariants of its releases.
    """

    totals: dict[str, Row] = field(default_factory=dict)
    spent: dict[str, Fraction] = field(default_factory=dict)
    spends: dict[str, Row] = field(default_factory=dict)
    saved: dict[str, Row] = field(default_factory=dict)
    notes: dict[tuple[str, str], tuple[Row, ...]] = field(default_factory=dict)
    exact: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def copied(self) -> Balance:
        """Return a copy; adding entries to its dictionaries leaves this balance unchanged."""
        return Balance(**{name: dict(entries) for name, entries in vars(self).items()})

    def left(self, dataset: str) -> Fraction:
        """Return the exact remaining budget in the unit of the total."""
        return exact(self.totals[dataset].pcost) - self.spent[dataset]

    def joint_charge(self, key: str) -> JointCharge:
        """Return what the dataset of a spent key was charged up to and including this spend."""
        last = self.spends[key]
        rows = [
            row
            for row in self.spends.values()
            if row.dataset == last.dataset and row.seq <= last.seq
        ]
        names = [
            note.note
            for row in rows
            for note in self.notes.get((INVARIANTS_NOTE_KIND, row.key), ())
        ]
        return JointCharge(
            releases=len(rows),
            spent=_rounded_up(sum((exact(row.pcost) for row in rows), Fraction(0))),
            definition=self.definition(last.dataset),
            exact=tuple(dict.fromkeys(names)),
        )

    def definition(self, dataset: str) -> TotalDefinition:
        """Return the definition of the total of a dataset."""
        return TotalDefinition.from_text(self.totals[dataset].plan_hash)

    def status(self, dataset: str) -> DatasetStatus:
        """Return total, spent and remaining budget of one dataset as doubles.

        Guarantee: spending the amount `left` of the result never exceeds the total.

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
        spent = self.spent[dataset]
        left = self.left(dataset)
        # round spent up and left down, so that no rounding error overstates the remaining budget
        rounded_spent, rounded_left = _rounded_up(spent), float(left)
        while exact(repr(rounded_left)) > left:
            rounded_left = math.nextafter(rounded_left, 0.0)
        return DatasetStatus(
            dataset=dataset,
            total=float(exact(self.totals[dataset].pcost)),
            spent=rounded_spent,
            left=rounded_left,
            note=self.totals[dataset].note,
            definition=self.definition(dataset),
            exact=self.exact.get(dataset, ()),
            releases=sum(row.dataset == dataset for row in self.spends.values()),
        )


def _rounded_up(amount: Fraction) -> float:
    """Return the smallest double whose shortest decimal text is at least ``amount``."""
    rounded = float(amount)
    while exact(repr(rounded)) < amount:
        rounded = math.nextafter(rounded, math.inf)
    return rounded


def balance(rows: Iterable[Row], start: Balance | None = None) -> tuple[Balance, list[str]]:
    """Return the balance after some rows, and one message per row that violates a budget rule.

    Parameters
    ----------
    rows : consecutive rows of the ledger.
    start : balance before ``rows``, which is not changed; None if ``rows`` starts with the first
        row of the ledger.

    Returns
    -------
    state : balance after ``rows``.
    problems : list of messages, empty if no row violates a rule.

    Examples
    --------

    >>> first = Row(seq=1, utc="", kind="ledger")
    >>> spend = Row(seq=2, utc="", kind="spend", dataset="adult", key="a", pcost="0.1")
    >>> balance([first, spend])[1]
    ['row 2 (spend) has a dataset that was never declared']
    """
    state = start.copied() if start else Balance()
    problems = []
    for row in rows:
        try:
            problem = _apply_row(state, row)
        # a damaged row is reported like any other violation, and reading continues
        except (ArithmeticError, TypeError, ValueError, LedgerError):
            problem = "has a cost that is not a number, or a total of an unknown unit"
        if problem:
            problems.append(f"row {row.seq} ({row.kind}) {problem}")
    return state, problems


def _apply_row(state: Balance, row: Row) -> str:
    """Update the balance by one row; return how the row violates a budget rule, or "".

    A row that violates a rule does not change the balance, except that an overspend is subtracted.
    """
    if row.kind == "dataset":
        cost = exact(row.pcost)
        if row.dataset in state.totals or cost <= 0:
            return "adds a dataset twice, or with a budget that is not positive"
        # in rows of this kind, ``plan_hash`` is the definition of the total
        if is_epsilon(row.pcost) != (TotalDefinition.from_text(row.plan_hash).kind == "pure"):
            return "adds a dataset whose total has another unit than its definition"
        state.totals[row.dataset] = row
        state.spent[row.dataset] = Fraction(0)
        return ""
    if row.kind in ("ledger", "clock"):
        return ""
    if row.dataset not in state.totals:
        return "has a dataset that was never declared"
    if row.kind == "total":
        before = state.totals[row.dataset]
        cost = exact(row.pcost)
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
        # costs in epsilon and costs in pcost cannot be added
        if is_epsilon(row.pcost) != is_epsilon(state.totals[row.dataset].pcost):
            return "has a cost in another unit than the total"
        # an overspend is reported below, but it also reduces the budget for later rows
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
