"""Balance of a dataset, derived from ledger rows.

A cost in a row is a decimal number and counts as just that, as a fraction: no sum is ever rounded.  What it is a number
of is in `total`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from engine.errors import LedgerError
from engine.ledger.budget_unit import TotalDefinition, as_pcost, exact, is_epsilon
from engine.ledger.hash_chain import Row

EXACT = "note:exact"  # names the public tables that a release keeps


@dataclass(frozen=True, kw_only=True)
class DatasetStatus:
    """The budget of one dataset: `spent` is rounded up and `left` down to a double, the ledger is exact.

    `definition` says what these numbers count: pcost, or epsilon where the total is pure.  `exact` names the public
    tables that releases kept: costs add up beside them, and what they say is hidden by no release.
    """

    dataset: str
    total: float
    spent: float
    left: float
    note: str = ""
    definition: TotalDefinition = field(default_factory=TotalDefinition)
    exact: tuple[str, ...] = ()

    def describe(self) -> str:
        """What the total counts, and what guarantee all releases together have, in words.

        >>> DatasetStatus(dataset="a", total=1.0, spent=0.5, left=0.5, exact=("the exact totals on age",)).describe()
        ... # doctest: +NORMALIZE_WHITESPACE
        'zCDP (pcost), for adding or removing a person of at most 1 row; for all releases together this is subspace
        differential privacy beside the exact totals on age, which protect nobody'
        """
        if not self.exact:
            return self.definition.describe()
        beside = " and ".join(self.exact)
        return (
            f"{self.definition.describe()}; for all releases together this is subspace differential privacy beside "
            f"{beside}, which protect nobody"
        )

    def takes(self, pcost: float, pure_epsilon: float | None = None) -> float:
        """What a release takes from this total, in what it counts; raises LedgerError if it cannot be counted."""
        return float(exact(self.definition.charge(pcost, pure_epsilon)))

    def pays_for(self, pcost: float, pure_epsilon: float | None = None) -> int:
        """How many such releases what is left pays for; raises LedgerError if they cannot be counted."""
        return int(Fraction(self.left) // exact(self.definition.charge(pcost, pure_epsilon)))


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """Proof of one spend.  `fresh` is True for exactly one call per key ever: the one that may draw and save.

    `hash` seals this row and all before it; kept outside the ledger (in a release) it shows a ledger set back.
    `digest` is a keyed digest of the tables that it was spent for, where one was kept; it is in no release.
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
        """The receipt of a spend row."""
        names = ("dataset", "key", "plan_hash", "note", "seq", "utc", "hash")
        return cls(
            pcost=as_pcost(row.pcost),
            fresh=fresh,
            digest=Fingerprint.from_text(row.sha256).tables,
            **{name: getattr(row, name) for name in names},
        )


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """What a ledger keeps of counted records: keyed digests of the tables measured, and of every column by its domain.

    The columns are those of the same records if all that are in both fingerprints agree.
    """

    tables: str
    columns: Mapping[str, str]

    def same_columns(self, other: Fingerprint) -> bool:
        """Whether both are of the same records, as far as they have columns in common."""
        shared = self.columns.keys() & other.columns.keys()
        # no column in common proves nothing; one that differs proves other records
        return bool(shared) and all(self.columns[name] == other.columns[name] for name in shared)

    def to_text(self) -> str:
        """One line that a row holds."""
        return " ".join([self.tables, *(f"{name}={digest}" for name, digest in self.columns.items())])

    @classmethod
    def from_text(cls, text: str) -> Fingerprint:
        """What `to_text` wrote; empty for a row from before there were fingerprints."""
        tables, *columns = text.split(" ")
        return cls(tables=tables, columns=dict(column.split("=", 1) for column in columns if "=" in column))


@dataclass(kw_only=True)
class Balance:
    """The state after some rows.

    `totals` by dataset, the row that declared one with the cost that it was last changed to; `spent` (exact) by
    dataset, `spends` and `saved` by key, `notes` by kind and key, `exact` by dataset.
    """

    totals: dict[str, Row] = field(default_factory=dict)
    spent: dict[str, Fraction] = field(default_factory=dict)
    spends: dict[str, Row] = field(default_factory=dict)
    saved: dict[str, Row] = field(default_factory=dict)
    notes: dict[tuple[str, str], tuple[Row, ...]] = field(default_factory=dict)
    exact: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def copied(self) -> Balance:
        """The same state, to which rows can be added while others look at this one."""
        return Balance(**{name: dict(known) for name, known in vars(self).items()})

    def left(self, dataset: str) -> Fraction:
        """Exactly what is left, in what the total counts."""
        return exact(self.totals[dataset].pcost) - self.spent[dataset]

    def definition(self, dataset: str) -> TotalDefinition:
        """What the total of a dataset means."""
        return TotalDefinition.from_text(self.totals[dataset].plan_hash)

    def status(self, dataset: str) -> DatasetStatus:
        """The budget of one dataset as doubles.

        Guarantee: a spend of `left` never passes the total.
        Raises: LedgerError if the dataset was never declared.
        """
        if dataset not in self.totals:
            known = ", ".join(map(repr, self.totals)) or "none"
            raise LedgerError(f"Dataset {dataset!r} is not in the ledger (it has: {known}); declare it first.")
        total, spent, left = float(exact(self.totals[dataset].pcost)), self.spent[dataset], self.left(dataset)
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
    """What rows add up to, and every row that breaks a rule of the budget.

    With `start`, which is left as it is, the rows come after those that it stands for.

    >>> opened = Row(seq=1, utc="", kind="ledger")
    >>> spend = Row(seq=2, utc="", kind="spend", dataset="adult", key="a", pcost="0.1")
    >>> balance([opened, spend])[1]
    ['row 2 (spend) has a dataset that was never declared']
    """
    state, problems = start.copied() if start else Balance(), []
    for row in rows:
        try:
            problem = _enter(state, row)
        # a damaged row is a problem to be told of, beside all others, and no reason to stop reading
        except (ArithmeticError, TypeError, ValueError, LedgerError):
            problem = "holds no number where its cost should be, or a total this program does not know"
        if problem:
            problems.append(f"row {row.seq} ({row.kind}) {problem}")
    return state, problems


def _enter(state: Balance, row: Row) -> str:
    """Enter one row; the rule it breaks in words, or nothing."""
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
        # epsilon and pcost are numbers of different things, and a sum of both would be neither
        if is_epsilon(row.pcost) != is_epsilon(state.totals[row.dataset].pcost):
            return "spends what its total does not count"
        # entered before it is judged: what was spent is spent, and later rows are judged with it
        state.spends[row.key] = row
        state.spent[row.dataset] += cost
        return "" if state.left(row.dataset) >= 0 else "spends more than was left"
    if row.kind == "saved":
        # a result without a spend is noise that nobody paid for
        if row.key in state.saved or row.key not in state.spends:
            return "saves a result twice, or without a spend"
        state.saved[row.key] = row
        return ""
    if row.kind.startswith("note:"):
        state.notes[row.kind, row.key] = (*state.notes.get((row.kind, row.key), ()), row)
        if row.kind == EXACT:
            state.exact[row.dataset] = tuple(dict.fromkeys((*state.exact.get(row.dataset, ()), row.note)))
        return ""
    return "is of an unknown kind"
