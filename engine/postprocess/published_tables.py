"""Published tables: consistent, non-negative, with uncertainty."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index
from engine._format import set_name
from engine._threads import threads_for
from engine._validation import one_of, whole
from engine.errors import LimitExceeded, NotAnswerable, PlanError
from engine.plans import Plan, SpaceAnswers
from engine.postprocess.checkpoint import Reached, by_axes, of_axes, steps_of
from engine.postprocess.constraints import keeping_facts
from engine.postprocess.contrasts import add_lower, assembled, contrast, maximal
from engine.postprocess.nonnegative_projection import emptied, nonnegative
from engine.postprocess.partial_pooling import borrowed_total
from engine.postprocess.residual_estimates import Evidence, all_sets, evidence, published_sets
from engine.postprocess.shrinkage import agreeing, shrunk_contrasts, shrunk_total
from engine.postprocess.synthetic_records import nearest_people, table_of
from engine.progress import Progress, listener, told
from engine.records import MEMORY_LIMIT
from engine.release import Measurement, apply_group
from engine.residuals import Axes

if TYPE_CHECKING:
    import pandas as pd


FITS = ("shrunk", "nonnegative", "none")
Folder = str | os.PathLike[str]
COPIES = 3  # of all cells: as seen, as contrasts, and multipliers where tables would be negative
COARSEST, FINE = 5e-4, 5e-3
MOST_SETS = 1_000_000
MOST_RECORDS = 1_000_000_000
RECORD_COPIES = 2
WORKING = 10  # copies of the largest table while it is fitted


@dataclass(frozen=True, kw_only=True, eq=False)
class Published:
    """Tables that follow from a measurement at no further cost.

    Attributes
    ----------
    measurement : where they come from; its unbiased answers stand beside every published one.
    fit : "shrunk", "nonnegative" or "none".
    contrasts : what the tables are made of, see `engine.postprocess.contrasts`, by positions in ``names``.
    names : the attributes of more than one cell.
    people : records of which all tables are counts, shape (people, attributes), or None where tables are not whole.

    Guarantee: unless ``fit`` is "none", every table is >= 0, and tables agree wherever they overlap to 1e-9 counts;
    exactly where they are counts of people.  Cells that the facts of the schema make impossible are exactly 0, and its
    public tables are kept to the digit, by as many records as they tell, too.
    Published numbers are biased: the standard errors and intervals of the measurement are not theirs.
    """

    measurement: Measurement
    fit: str
    names: tuple[str, ...]
    contrasts: dict[Axes, Array] = field(repr=False)
    people: Index | None = field(default=None, repr=False)

    @property
    def total(self) -> float:
        """Number of records that every table sums to."""
        return float(self.contrasts[()]) if self.people is None else float(len(self.people))

    def table(self, attributes: Sequence[str]) -> Array:
        """Return the published table on some attributes, in counts, axes in the order given. Shape (n_1, ..., n_k).

        Raises
        ------
        NotAnswerable : no group of the workload holds these attributes.
        """
        return self.laid_out(self._of(self.positions(attributes)), attributes)

    def positions(self, attributes: Sequence[str]) -> Axes:
        """Return the positions in ``names`` of some attributes, those of one cell left out.

        Raises: NotAnswerable when no group of the workload holds them.
        """
        names = self.measurement.plan.schema.named(attributes)
        axes = self._axes(names)
        if axes not in self.contrasts:
            raise NotAnswerable(
                f"No published table holds {set_name(names)}. Tables are published on the attributes of a group of the "
                "workload, and on fewer of them."
            )
        return axes

    def laid_out(self, table: Array, attributes: Sequence[str]) -> Array:
        """Return a table on `positions` with its axes in the order of the attributes, those of one cell among them.

        Shape (n_1, ..., n_k).
        """
        names = self.measurement.plan.schema.named(attributes)
        axes = self._axes(names)
        wide = [axes.index(self._at[name]) for name in names if name in self._at]
        return table.transpose(wide).reshape(self.measurement.plan.schema.sizes(names))

    def spread(self, attributes: Sequence[str]) -> Array:
        """Return a table with the published sums on any attributes, as even as they allow where no group holds all.

        Shape (n_1, ..., n_k).  There, cells may be negative: this is what to rehearse on, and nothing to publish.
        """
        axes = self._axes(self.measurement.plan.schema.named(attributes))
        if axes in self.contrasts:
            return self.table(attributes)
        table = np.zeros([self._sizes[a] for a in axes])
        add_lower(table, axes, self.contrasts)
        return self.laid_out(table, attributes)

    def _axes(self, names: Sequence[str]) -> Axes:
        return tuple(sorted(self._at[name] for name in names if name in self._at))

    def _of(self, axes: Axes) -> Array:
        if self.people is not None:
            return table_of(self.people, axes, self._sizes).astype(float)
        if (schema := self.measurement.plan.schema).is_exact(own := [self.names[a] for a in axes]):
            return schema.exact_table(own).astype(float)
        table = assembled(self.contrasts, axes)
        if (impossible := self.impossible(axes)) is not None:
            table[impossible] = 0.0
        return table if self.fit == "none" else np.maximum(table, 0.0)  # what lies under 0 is the rounding of sums

    def impossible(self, axes: Axes) -> npt.NDArray[np.bool_] | None:
        """Return which cells of the table on `positions` are impossible, shape (n_1, ..., n_k); None for none."""
        schema = self.measurement.plan.schema
        if schema.ruled.isdisjoint(self.names[a] for a in axes):
            return None
        return np.asarray(schema.even_share([self.names[a] for a in axes]) == 0.0)

    def values(self, group: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the published answers to queries ``start:stop`` of a group, in counts. Shape (queries,)."""
        asked = self.measurement.plan.workload.groups[group]
        first, last, _ = slice(start, stop).indices(asked.count)
        return apply_group(asked, self.table(asked.attributes), first, max(first, last))

    def answers(self, group: int, start: int = 0, stop: int | None = None, confidence: float = 0.95) -> pd.DataFrame:
        """Return queries ``start:stop`` of a group: columns query, published, answer, std, low, high (counts).

        The last four are the unbiased answer and its interval, which hold for it and not for what is published.
        """
        found = self.measurement.answers(group, start, stop, confidence)
        found.insert(1, "published", self.values(group, start, stop))
        return found

    def records(
        self, n: int | None = None, *, progress: Progress | None = None, resume: Folder | None = None
    ) -> pd.DataFrame:
        """Return whole records whose counts come near the tables: one column of cell codes per published attribute.

        Parameters
        ----------
        n : how many; by default as many as the tables sum to, rounded.
        progress : called with the share done and words; False stops.
        resume : see `publish`.

        Guarantee: a function of what is published and of ``n`` alone, so that it costs no privacy; the same every time.
        Where tables are whole, their own records are returned.  Records are simulated: no row stands for a person, and
        what tables on more attributes than those published would say of them is a guess.

        Raises: PlanError where cells may be negative.
        """
        import pandas as pd

        if self.fit == "none":
            raise PlanError('Tables with negative cells have no records. Publish with fit="shrunk" or "nonnegative".')
        people = round(self.total) if n is None else whole("number of records", n, 0, MOST_RECORDS, error=PlanError)
        codes = self.people if self.people is not None and len(self.people) == people else None
        codes = self._drawn(people, progress, _steps(self.measurement, self.fit, resume)) if codes is None else codes
        schema = self.measurement.plan.schema
        held = {name for group in self.measurement.plan.workload.groups for name in group.attributes}
        columns = {name: codes[:, self._at[name]] if name in self._at else 0 for name in schema.names if name in held}
        return pd.DataFrame(columns, index=pd.RangeIndex(people))

    def _drawn(self, people: int, progress: Progress | None, steps: Reached) -> Index:
        """Return so many records near the tables."""
        sets = [axes for axes in maximal(self.contrasts) if axes]
        cells = sum(self.contrasts[axes].size for axes in sets)
        if (needed := 8 * (RECORD_COPIES * people * len(self.names) + WORKING * cells)) > MEMORY_LIMIT:
            raise LimitExceeded(
                f"{people:,} records would need about {needed / 1e9:,.1f} GB, over the limit of "
                f"{MEMORY_LIMIT / 1e9:,.1f} GB. Ask for fewer with n."
            )
        share = people / self.total if self.total else 0.0
        tables = {axes: share * self._of(axes) for axes in sets}
        tell = told_share(progress)
        generator = np.random.default_rng(seed_of(self.measurement))
        barred = {axes: barring for axes in sets if (barring := self.impossible(axes)) is not None}
        own_steps = steps.within(f"records {people}")
        records = nearest_people(tables, self._sizes, people, generator, tell, barred, own_steps)
        held = {self.names[a] for axes in self.contrasts for a in axes}
        own = {name: records[:, self._at[name]] for name in self.names if name in held}
        for name, codes in keeping_facts(own, self.measurement.plan.schema, generator).items():
            records[:, self._at[name]] = codes
        return records

    def uncertainty(self, **options: Any) -> Any:
        """Return errors, intervals and flags of the published numbers; see `engine.postprocess.uncertainty`."""
        from engine.postprocess.uncertainty import uncertainty

        return uncertainty(self, **options)

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return self.measurement.plan.schema.sizes(self.names)

    @cached_property
    def _at(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}


def publish(
    measurement: Measurement,
    fit: str = "shrunk",
    *,
    integer: bool = False,
    progress: Progress | None = None,
    memory_limit: int = MEMORY_LIMIT,
    resume: Folder | None = None,
) -> Published:
    """Return tables of numbers >= 0 that agree with each other, from a measurement alone.

    Parameters
    ----------
    fit : "shrunk" draws every table towards what smaller tables say, as far as noise may have moved it, and reads
        smaller tables from larger ones; "nonnegative" changes the unbiased tables only as far as cells are negative;
        "none" leaves them unbiased, so that cells may be negative, and only moves impossible cells to 0, where those of
        all counted records are.
    integer : whether all cells are whole: tables are then counts of the same records, see `Published.records`.
    progress : called with the share done and words; False stops.
    resume : a folder in which what is reached is kept, readable by its owner: the same call, after it was stopped or
        killed, goes on from there, to the same numbers to the last digit.  The folder is the caller's to remove.

    Guarantee: a function of the measurement and the options alone, so that it costs no privacy.

    Raises
    ------
    PlanError : an option that is not allowed; whole tables of unbiased ones, which may be negative.
    NotApplicable : the plan has no residual spaces.
    NotAnswerable : the number of records does not follow from what was measured.
    LimitExceeded : more memory would be needed than ``memory_limit`` bytes.
    PlanError : the folder of ``resume`` cannot be written to.

    >>> from engine.workload import Attribute, Schema, Workload
    >>> from engine.privacy.budget import Budget
    >>> from engine.release import measure
    >>> from engine.mechanisms import plan
    >>> schema = Schema([Attribute.of_size("a", 3), Attribute.of_size("b", 2)])
    >>> import pandas as pd
    >>> records = pd.DataFrame({"a": [0, 0, 1, 0], "b": [0, 1, 0, 0]})
    >>> found = measure(plan(Workload(schema).add(("a", "b")), Budget(pcost=1.0)), records, rehearsal=True)
    >>> tables = publish(found)
    >>> bool((tables.table(["a", "b"]) >= 0).all()), tables.table(["b"]).shape
    (True, (2,))
    """
    one_of("fit", fit, FITS, error=PlanError)
    if integer and fit == "none":
        raise PlanError('Whole tables have no negative cells. Publish with fit="shrunk" or "nonnegative".')
    progress, own = listener(progress), 0.5 if integer else 1.0  # one bar for all parts
    tell = told_share(progress, 0.0, own)
    _check_memory(measurement, memory_limit)
    tell(0.0, "Reading what was measured")
    steps = _steps(measurement, fit, resume)
    done = steps.taken("contrasts")
    with threads_for(1):  # many small products
        contrasts = of_axes(done) if done else _fitted(measurement, fit, tell, steps)
    made = Published(measurement=measurement, fit=fit, names=published_sets(measurement.plan)[0], contrasts=contrasts)
    if integer:
        made = replace(made, people=made._drawn(round(made.total), told_share(progress, own, 1.0), steps))
    told_share(progress)(1.0, "Published")
    return made


def _fitted(
    measurement: Measurement, fit: str, tell: Callable[[float, str], None], steps: Reached
) -> dict[Axes, Array]:
    """Return the contrasts of the fit, the last of its steps."""
    found = evidence(measurement)
    seen = borrowed_total(found) if fit == "shrunk" else (found.total, found.total_variance)
    total = found.total if fit == "none" else shrunk_total(*seen)
    if total <= 0.0 and fit != "none":
        contrasts = {axes: np.zeros(found.shape(axes)) for axes in found.sets}
    elif fit == "none":
        contrasts = _as_measured(found, measurement, total)
        if found.possible:
            contrasts = emptied(contrasts, found.tables, found.sizes, found.possible, found.exact)
    else:
        begin = shrunk_contrasts(found, total, tell, steps) if fit == "shrunk" else None
        contrasts = _as_measured(found, measurement, total) if begin is None else begin
        enough, later = _tolerance(found, total), lambda s, w: tell(0.4 + 0.6 * s, w)
        found = replace(found, seen={})  # which takes as much memory as the tables
        if fit == "shrunk" and not (found.possible or found.exact):
            contrasts = agreeing(found, contrasts, enough, later, steps)
        else:
            facts = found.possible, found.even, found.exact
            contrasts = nonnegative(contrasts, found.tables, found.sizes, enough, later, *facts, steps=steps)
    steps.settle("contrasts", by_axes(contrasts))
    return contrasts


def _steps(measurement: Measurement, fit: str, folder: Folder | None) -> Reached:
    return steps_of(folder, [seed_of(measurement), fit])


def told_share(progress: Progress | None, low: float = 0.0, high: float = 1.0) -> Callable[[float, str], None]:
    """Return what tells the share done of a part of the work, and stops it when it is told to."""

    tell = told(progress, "Publishing was cancelled; nothing was changed.")
    return lambda share, words: tell(low + share * (high - low), words)


def seed_of(measurement: Measurement) -> list[int]:
    """Return numbers that follow from the released ones, so that what is drawn with them does, too."""
    made, integers = hashlib.sha256(measurement.plan.hash.encode()), measurement.answers_on_grid
    # the released integers are the same on every machine; what is estimated from them only to its last digits
    whole_plan = all(space in integers for space in measurement.plan.blocks)
    for space, values in sorted((integers if whole_plan else measurement.estimates).items()):
        made.update(repr(space).encode())
        made.update(np.ascontiguousarray(values).tobytes())
    return [int(word) for word in np.frombuffer(made.digest(), "<u4")]


def _tolerance(found: Evidence, total: float) -> float:
    """Return what share of even tables may be mixed in: little beside the noise of a table, whatever the budget."""
    noise = [found.cells(a) * np.sqrt(found.seen[a].variance) / total for a in found.tables if a in found.seen]
    return min(COARSEST, FINE * float(np.mean(noise))) if noise else COARSEST


def _as_measured(found: Evidence, measurement: Measurement, total: float) -> dict[Axes, Array]:
    said = measurement.plan.answers_from(measurement.estimates)
    assert isinstance(said, SpaceAnswers)  # what `evidence` has seen to
    out = {axes: contrast(said.known_table([found.names[a] for a in axes])) for axes in found.sets}
    return out | {(): np.array(total)}


@dataclass(frozen=True, kw_only=True)
class PublishForecast:
    """What publishing from a plan's measurement will take.

    Attributes
    ----------
    cells : of all tables that are published, and of those below them.
    bytes_needed : main memory, in bytes, without the draws of `Published.uncertainty`.
    """

    cells: int
    bytes_needed: int

    @property
    def text(self) -> str:
        """The same in words."""
        return f"{self.cells:,} cells in all tables, about {self.bytes_needed / 1e6:,.1f} MB of memory."


def publish_forecast(plan: Plan) -> PublishForecast:
    """Return what publishing will take, before there is a measurement.

    Raises
    ------
    NotApplicable : the plan has no residual spaces.
    LimitExceeded : the groups have too many subsets of attributes.

    >>> from engine.workload import Attribute, Schema, Workload
    >>> from engine.privacy.budget import Budget
    >>> from engine.mechanisms import plan
    >>> schema = Schema([Attribute.of_size("a", 3), Attribute.of_size("b", 2)])
    >>> publish_forecast(plan(Workload(schema).add(("a", "b")), Budget(pcost=1.0))).cells
    12
    """
    names, tables = published_sets(plan)
    if sum(2 ** len(axes) for axes in tables) > MOST_SETS:
        raise LimitExceeded(
            f"The groups of the workload have more than {MOST_SETS:,} subsets of attributes, each with a table of its "
            "own. Publish from a workload of fewer attributes a group."
        )
    cells = [plan.schema.cells([names[a] for a in axes]) for axes in all_sets(tables)]
    return PublishForecast(cells=sum(cells), bytes_needed=8 * (COPIES * sum(cells) + WORKING * max(cells)))


def _check_memory(measurement: Measurement, limit: int) -> None:
    """Raise LimitExceeded when publishing would need more than so many bytes."""
    needed = publish_forecast(measurement.plan)
    if needed.bytes_needed > limit:
        raise LimitExceeded(
            f"Publishing {needed.cells:,} cells would need about {needed.bytes_needed / 1e9:,.1f} GB, over the limit "
            f"of {limit / 1e9:,.1f} GB. Publish from a workload of smaller tables, or raise memory_limit."
        )
