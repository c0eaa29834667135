"""Published tables: consistent tables that are computed from a measurement.

The tables are non-negative unless the option ``fit`` is "none".  `publish` fits them and returns
them as `Published`; `publish_forecast` predicts the memory and time of publishing.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array, Index
from engine._format import duration_text, set_name
from engine._threads import threads_for
from engine._validation import check_choice, check_int
from engine.errors import LimitExceeded, NotAnswerable, PlanError
from engine.plans import Plan, SpaceAnswers
from engine.postprocess.checkpoint import (
    Checkpoints,
    arrays_by_axes,
    arrays_by_name,
    checkpoints_of,
)
from engine.postprocess.nonnegative_projection import project_nonnegative, zero_impossible_cells
from engine.postprocess.partial_pooling import pooled_total
from engine.postprocess.residual_estimates import (
    Evidence,
    add_lower,
    all_sets,
    assemble_table,
    contrast,
    evidence,
    maximal_sets,
    published_sets,
)
from engine.postprocess.shrinkage import make_consistent, shrunk_contrasts, shrunk_total
from engine.postprocess.synthetic_records import meet_facts, nearest_people, table_of
from engine.progress import Progress, check_callback, progress_reporter
from engine.records import MEMORY_LIMIT
from engine.release import Measurement, apply_group
from engine.residuals import Axes
from engine.workload import Group, subsets

if TYPE_CHECKING:
    import pandas as pd


FITS = ("shrunk", "nonnegative", "none")
Folder = str | os.PathLike[str]
# Seconds on one core for fitting tables, for writing them to all kinds of files, and for adjusting
# synthetic records (per record and table, and per cell).  Measured on real tables that have 2,500
# to 21 million cells together.
FIT_SECONDS_PER_TABLE, FIT_SECONDS_PER_CELL = 1.6e-3, 1.2e-6
FILE_SECONDS_PER_TABLE, FILE_SECONDS_PER_CELL = 0.033, 7e-5
RECORD_SECONDS_PER_TABLE, RECORD_SECONDS_PER_CELL = 2.5e-7, 1.6e-6
FITS_WITH_ERRORS = 31  # the fit of the tables, and one per default draw of the bootstrap
CELL_COPIES = 3  # numbers in memory per cell: noisy residual, contrast and multiplier
# The share of uniform tables that may be mixed in to remove negative cells is at most
# MAX_UNIFORM_SHARE, and at most UNIFORM_SHARE_PER_NOISE times the mean noise of a table divided by
# the number of records.
MAX_UNIFORM_SHARE, UNIFORM_SHARE_PER_NOISE = 5e-4, 5e-3
MAX_SETS = 1_000_000  # largest number of subsets of attributes, summed over groups
# The search for synthetic records ends when their L1 distance from the tables, divided by the
# number of records, is at most MAX_RECORDS_DISTANCE and at most NOISE_SHARE times the error of the
# tables that is due to noise.
MAX_RECORDS_DISTANCE, NOISE_SHARE = 0.02, 0.18
MAX_RECORDS = 1_000_000_000
RECORD_COPIES = 2  # numbers in memory per value of a synthetic record
TABLE_COPIES = 10  # numbers in memory per cell of the largest table while it is fitted


@dataclass(frozen=True, kw_only=True, eq=False)
class Published:
    """Consistent tables that were computed from a measurement, at no privacy cost.

    Attributes
    ----------
    measurement : the measurement from which the tables were computed; it also has unbiased answers
        to the same queries.
    fit : "shrunk", "nonnegative" or "none", see `publish`.
    contrasts : mapping from attribute sets, as positions in ``names``, to the components of which
        the fitted tables are sums, see `engine.postprocess.residual_estimates`.
    names : the attributes with more than one cell.
    people : synthetic records, shape (people, attributes), whose counts are the tables; None if the
        tables are not integer.

    Guarantee: no cell is negative, unless ``fit`` is "none".  Overlapping tables agree exactly if
    they are integer, and up to rounding errors otherwise.  Impossible cells of the schema are
    exactly 0.  Public tables of the schema are reproduced exactly, but integer tables only if the
    number of records is the public one.  Published numbers are biased, unless ``fit`` is "none".
    Standard errors and intervals of the measurement do not apply to them.
    """

    measurement: Measurement
    fit: str
    names: tuple[str, ...]
    contrasts: dict[Axes, Array] = field(repr=False)
    people: Index | None = field(default=None, repr=False)

    @property
    def total(self) -> float:
        """Published number of records: the sum of the cells of every table, in counts."""
        return float(self.contrasts[()]) if self.people is None else float(len(self.people))

    def table(self, attributes: Sequence[str]) -> Array:
        """Return the published table in counts, axes in the order of ``attributes``.

        Shape (n_1, ..., n_k).

        Raises
        ------
        NotAnswerable : no group of the workload contains these attributes.
        """
        return self.laid_out(self._raw_table(self.positions(attributes)), attributes)

    def positions(self, attributes: Sequence[str]) -> Axes:
        """Return the positions of attributes in ``names``, without attributes of one cell.

        Raises: NotAnswerable if no group of the workload contains the attributes.
        """
        names = self.measurement.plan.schema.named(attributes)
        axes = self._axes(names)
        if axes not in self.contrasts:
            raise NotAnswerable(
                f"No published table contains {set_name(names)}. Use attributes that are all in one"
                " group of the workload."
            )
        return axes

    def laid_out(self, table: Array, attributes: Sequence[str]) -> Array:
        """Return a table with its axes in the order of ``attributes``, shape (n_1, ..., n_k).

        ``table`` has the axes that `positions` returns; attributes of one cell are added.
        """
        names = self.measurement.plan.schema.named(attributes)
        axes = self._axes(names)
        wide = [axes.index(self._positions[name]) for name in names if name in self._positions]
        return table.transpose(wide).reshape(self.measurement.plan.schema.sizes(names))

    def spread(self, attributes: Sequence[str]) -> Array:
        """Return a table in counts on any attributes, even if no group contains all of them.

        Shape (n_1, ..., n_k).  If a group contains all attributes, the result is the published
        table.  Otherwise the result has the margins of the fitted tables and no interaction of more
        attributes.  Its cells may be negative.  Use it for simulations, and do not publish it.
        """
        axes = self._axes(self.measurement.plan.schema.named(attributes))
        if axes in self.contrasts:
            return self.table(attributes)
        table = np.zeros([self._sizes[a] for a in axes])
        add_lower(table, axes, self.contrasts)
        return self.laid_out(table, attributes)

    def _axes(self, names: Sequence[str]) -> Axes:
        return tuple(sorted(self._positions[name] for name in names if name in self._positions))

    def _raw_table(self, axes: Axes) -> Array:
        """Return the published table on the attributes at the positions ``axes``, in counts."""
        if self.people is not None:
            return table_of(self.people, axes, self._sizes).astype(float)
        if (schema := self.measurement.plan.schema).is_exact(
            names := [self.names[a] for a in axes]
        ):
            return schema.exact_table(names).astype(float)
        table = assemble_table(self.contrasts, axes)
        if (impossible := self.impossible(axes)) is not None:
            table[impossible] = 0.0
        # In fitted tables, values below 0 are rounding errors of sums.
        return table if self.fit == "none" else np.maximum(table, 0.0)

    def impossible(self, axes: Axes) -> npt.NDArray[np.bool_] | None:
        """Return the mask of impossible cells, shape (n_1, ..., n_k).

        The result is None if no rule or public total of the schema has one of the attributes.
        """
        schema = self.measurement.plan.schema
        if schema.ruled.isdisjoint(self.names[a] for a in axes):
            return None
        return np.asarray(schema.even_share([self.names[a] for a in axes]) == 0.0)

    def values(self, group: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the published answers to queries ``start:stop`` of a group, in counts."""
        return self.sums(self.measurement.plan.workload.groups[group], start, stop)

    def sums(self, group: Group, start: int = 0, stop: int | None = None) -> Array:
        """Return the published answers to queries ``start:stop`` of any group, in counts.

        ``group`` does not have to be in the workload, but a group of the workload must contain its
        attributes.  For example, `engine.workload.level_queries.at_level` gives a group that counts
        the areas of one level of a hierarchy.  Answers are sums of the cells of `table`.

        Raises
        ------
        NotAnswerable : no group of the workload contains these attributes.
        """
        first, last, _ = slice(start, stop).indices(group.count)
        return apply_group(group, self.table(group.attributes), first, max(first, last))

    def answers(
        self, group: int, start: int = 0, stop: int | None = None, confidence: float = 0.95
    ) -> pd.DataFrame:
        """Return published and unbiased answers to queries ``start:stop`` of a group, in counts.

        Columns: query; published (the published answer); answer, std, low and high (the unbiased
        answer with its standard error and confidence interval).  Standard error and interval do not
        apply to the published answer.
        """
        answers = self.measurement.answers(group, start, stop, confidence)
        answers.insert(1, "published", self.values(group, start, stop))
        return answers

    def records(
        self,
        n: int | None = None,
        *,
        progress: Progress | None = None,
        resume: Folder | None = None,
    ) -> pd.DataFrame:
        """Return synthetic records whose counts approximate the published tables.

        One row per record and one column of cell codes per published attribute.

        Parameters
        ----------
        n : number of records; by default the total of the tables, rounded.
        progress : called with the share of the work done and a message; False cancels.
        resume : see `publish`.

        Guarantee: a deterministic function of released numbers and ``n``, so that it costs no
        privacy.  If the tables are integer and ``n`` is their total, they are the counts of the
        returned records.  Records are simulated: no row is a person.  Counts on attributes that no
        group contains together are not estimates.

        Raises
        ------
        PlanError : the tables have ``fit="none"``, ``n`` is not allowed, or no integer counts
            satisfy the rules and all public totals.
        LimitExceeded : more than `MEMORY_LIMIT` bytes would be needed, or several public totals
            share attributes of too many cells.
        """
        import pandas as pd

        if self.fit == "none":
            raise PlanError(
                'Tables of fit="none" may have negative cells, so no records have these tables.'
                ' Publish with fit="shrunk" or "nonnegative".'
            )
        people = (
            round(self.total)
            if n is None
            else check_int("number of records", n, 0, MAX_RECORDS, error=PlanError)
        )
        if self.people is not None and len(self.people) == people:
            codes = self.people
        else:
            advice = "Give a smaller number of records n."
            _check_records_memory(self, people, MEMORY_LIMIT, advice)
            checkpoints = _checkpoints(self.measurement, self.fit, resume)
            codes = self._generate_records(people, progress, checkpoints)
        schema = self.measurement.plan.schema
        published_names = {
            name for group in self.measurement.plan.workload.groups for name in group.attributes
        }
        columns = {
            name: codes[:, self._positions[name]] if name in self._positions else 0
            for name in schema.names
            if name in published_names
        }
        return pd.DataFrame(columns, index=pd.RangeIndex(people))

    def _generate_records(
        self, people: int, progress: Progress | None, checkpoints: Checkpoints
    ) -> Index:
        """Return ``people`` synthetic records near the tables, shape (people, attributes)."""
        sets = self._largest_sets
        share = people / self.total if self.total else 0.0
        tables = {axes: share * self._raw_table(axes) for axes in sets}
        report_progress = progress_share(progress)
        generator = np.random.default_rng(seed_of(self.measurement))
        impossible = {axes: mask for axes in sets if (mask := self.impossible(axes)) is not None}
        records = nearest_people(
            tables,
            self._sizes,
            people,
            generator,
            report_progress,
            impossible,
            checkpoints.of_part(f"records {people}"),
            _records_tolerance(evidence(self.measurement), tables),
        )
        positions = sorted({a for axes in self.contrasts for a in axes})
        columns = {self.names[a]: records[:, a] for a in positions}
        # impossible cells and public totals can be on attributes of several tables
        for name, codes in meet_facts(columns, self.measurement.plan.schema, generator).items():
            records[:, self._positions[name]] = codes
        return records

    def uncertainty(self, **options: Any) -> Any:
        """Return errors, intervals and flags; see `engine.postprocess.uncertainty.uncertainty`."""
        from engine.postprocess.uncertainty import uncertainty

        return uncertainty(self, **options)

    @cached_property
    def _largest_sets(self) -> list[Axes]:
        """Attribute sets of the tables that no other table contains, without the empty set."""
        return [axes for axes in maximal_sets(self.contrasts) if axes]

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        return self.measurement.plan.schema.sizes(self.names)

    @cached_property
    def _positions(self) -> dict[str, int]:
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
    """Post-process a measurement into consistent tables.

    Parameters
    ----------
    fit : how tables are computed from the unbiased answers.  "shrunk": each table is shrunk towards
        its prediction from smaller tables, the more the larger the noise is, and larger tables
        improve smaller ones.  "nonnegative": the unbiased tables are projected on non-negative
        ones.  "none": the tables remain unbiased and may have negative cells; a linear projection
        sets impossible cells to 0.
    integer : whether tables are integer: the counts of synthetic records, see `Published.records`.
    progress : called with the share of the work done and a message; publishing is cancelled if it
        returns False.
    memory_limit : largest memory of the tables in bytes.  With ``integer=True``, the synthetic
        records may need the same number of bytes in addition.
    resume : folder for checkpoints, which only their owner can read.  After a call was cancelled or
        killed, the same call continues from them, with bit-identical results.  The caller deletes
        the folder.

    Guarantee: a deterministic function of the measurement and the options, so that it costs no
    privacy.

    Raises
    ------
    PlanError : an option is not allowed, ``integer=True`` is combined with ``fit="none"``, the
        folder of ``resume`` is not writable, or no integer counts satisfy the rules and all public
        totals.
    NotApplicable : the plan measures full tables instead of residual spaces.
    NotAnswerable : the number of records is neither measured nor public.
    LimitExceeded : more than ``memory_limit`` bytes would be needed, or the groups have more than
        `MAX_SETS` subsets of attributes; with ``integer=True`` also if several public totals share
        attributes of too many cells.
    Cancelled : ``progress`` returned False.

    >>> from engine import Attribute, Budget, measure, plan, Schema, Workload
    >>> schema = Schema([Attribute.of_size("a", 3), Attribute.of_size("b", 2)])
    >>> import pandas as pd
    >>> records = pd.DataFrame({"a": [0, 0, 1, 0], "b": [0, 1, 0, 0]})
    >>> small_plan = plan(Workload(schema).add(("a", "b")), Budget(pcost=1.0))
    >>> tables = publish(measure(small_plan, records, rehearsal=True))
    >>> bool((tables.table(["a", "b"]) >= 0).all()), tables.table(["b"]).shape
    (True, (2,))
    """
    check_choice("fit", fit, FITS, error=PlanError)
    if integer and fit == "none":
        raise PlanError(
            'integer=True cannot be combined with fit="none", because integer tables are counts of'
            ' records and cannot be negative. Publish with fit="shrunk" or "nonnegative".'
        )
    progress = check_callback(progress)
    _check_memory(measurement, memory_limit)
    # Fitting tables and sampling records share one progress bar, in proportion to the expected
    # times.
    fit_share = _fit_share(measurement) if integer else 1.0
    report_progress = progress_share(progress, 0.0, fit_share)
    report_progress(0.0, "Reading the measurement")
    checkpoints = _checkpoints(measurement, fit, resume)
    done = checkpoints.read("contrasts")
    # With many small matrix products, one thread is faster than several.
    with threads_for(1):
        contrasts = (
            arrays_by_axes(done)
            if done
            else _fitted(measurement, fit, report_progress, checkpoints)
        )
    published = Published(
        measurement=measurement,
        fit=fit,
        names=published_sets(measurement.plan)[0],
        contrasts=contrasts,
    )
    if integer:
        people, report = round(published.total), progress_share(progress, fit_share, 1.0)
        advice = "Publish without integer=True, or raise memory_limit."
        _check_records_memory(published, people, memory_limit, advice)
        records = published._generate_records(people, report, checkpoints)
        published = replace(published, people=records)
    progress_share(progress)(1.0, "Published")
    return published


def _fit_share(measurement: Measurement) -> float:
    """Return the share of the time for integer tables that fitting is expected to take.

    The rest of the time is for sampling the records whose counts are the integer tables.
    """
    forecast = publish_forecast(measurement.plan, evidence(measurement).total)
    return forecast.fit_seconds / (forecast.fit_seconds + forecast.records_seconds)


def _fitted(
    measurement: Measurement,
    fit: str,
    report_progress: Callable[[float, str], None],
    checkpoints: Checkpoints,
) -> dict[Axes, Array]:
    """Fit the tables; return their contrasts by attribute set and write them to a checkpoint."""
    estimates = evidence(measurement)
    if fit == "none":
        contrasts = _as_measured(estimates, measurement, estimates.total)
        if estimates.possible:
            contrasts = zero_impossible_cells(
                contrasts, estimates.tables, estimates.sizes, estimates.possible, estimates.exact
            )
    else:
        contrasts = _nonnegative_contrasts(
            estimates, measurement, fit, report_progress, checkpoints
        )
    checkpoints.write_result("contrasts", arrays_by_name(contrasts))
    return contrasts


def _nonnegative_contrasts(
    evidence: Evidence,
    measurement: Measurement,
    fit: str,
    report_progress: Callable[[float, str], None],
    checkpoints: Checkpoints,
) -> dict[Axes, Array]:
    """Return the contrasts of consistent non-negative tables, for every fit except "none"."""
    is_shrunk = fit == "shrunk"
    if is_shrunk:
        total = shrunk_total(*pooled_total(evidence))
    else:
        total = shrunk_total(evidence.total, evidence.total_variance)
    if total <= 0.0:
        return {axes: np.zeros(evidence.shape(axes)) for axes in evidence.sets}
    if is_shrunk:
        contrasts = shrunk_contrasts(evidence, total, report_progress, checkpoints)
    else:
        contrasts = _as_measured(evidence, measurement, total)
    tolerance = _tolerance(evidence, total)

    def report_rest(share: float, text: str) -> None:
        # the contrasts above are reported as the first 40% of the progress
        report_progress(0.4 + 0.6 * share, text)

    # The residuals are no longer needed.  They take as much memory as the tables.
    evidence = replace(evidence, residuals={})
    if is_shrunk and not (evidence.possible or evidence.exact):
        return make_consistent(evidence, contrasts, tolerance, report_rest, checkpoints)
    return project_nonnegative(
        contrasts,
        evidence.tables,
        evidence.sizes,
        tolerance,
        report_rest,
        evidence.possible,
        evidence.uniform,
        evidence.exact,
        checkpoints=checkpoints,
    )


def _records_tolerance(evidence: Evidence, tables: Mapping[Axes, Array]) -> float:
    """Return the L1 distance from the tables at which the search for synthetic records may end.

    The distance is a share of the records.  It is `NOISE_SHARE` times the expected error of the
    tables, but at most `MAX_RECORDS_DISTANCE`.  The expected error of a residual on two or more
    attributes is that of linear shrinkage, if the variance of every true cell equals its count.
    """
    errors = []
    for axes, table in tables.items():
        squares = 0.0
        for inside in subsets(axes):
            if (estimate := evidence.residuals.get(inside)) is None:
                continue
            margin = table.sum(axis=tuple(i for i, a in enumerate(axes) if a not in inside))
            variances = np.full(margin.shape, estimate.variance)
            if len(inside) > 1:
                variances = variances * margin / (variances + margin)
            squares += float(np.sqrt(variances).sum()) ** 2
        total = max(float(table.sum()), 1.0)
        # a normal error of variance v has the expected absolute value sqrt(2 v / pi)
        errors.append(math.sqrt(2.0 / math.pi * squares) / total)
    return min(MAX_RECORDS_DISTANCE, NOISE_SHARE * float(np.mean(errors))) if errors else 0.0


def _checkpoints(measurement: Measurement, fit: str, folder: Folder | None) -> Checkpoints:
    return checkpoints_of(folder, [seed_of(measurement), fit])


def progress_share(
    progress: Progress | None, low: float = 0.0, high: float = 1.0
) -> Callable[[float, str], None]:
    """Return a function (share, text) with which one part of the work reports its progress.

    Shares from 0 to 1 of the part are shares from ``low`` to ``high`` of the complete work.  The
    function raises Cancelled if ``progress`` returns False.
    """
    report_progress = progress_reporter(progress, "Publishing was cancelled; nothing was changed.")
    return lambda share, words: report_progress(low + share * (high - low), words)


def seed_of(measurement: Measurement) -> list[int]:
    """Return the seed of all random draws of post-processing, as integers below 2^32.

    The seed is a hash of the plan and the released numbers.  Random draws therefore depend on
    nothing else and cost no privacy.
    """
    digest = hashlib.sha256(measurement.plan.hash.encode())
    integers = measurement.answers_on_grid
    # The seed is a hash of the released integers if possible, because estimates differ between
    # machines in their last digits.
    all_integers = all(space in integers for space in measurement.plan.blocks)
    for space, values in sorted((integers if all_integers else measurement.estimates).items()):
        digest.update(repr(space).encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return [int(word) for word in np.frombuffer(digest.digest(), "<u4")]


def _tolerance(evidence: Evidence, total: float) -> float:
    """Return the largest share of uniform tables that may be mixed in to remove negative cells.

    The share is `UNIFORM_SHARE_PER_NOISE` times the mean noise of the tables divided by the number
    of records, but at most `MAX_UNIFORM_SHARE`.  Without a measured table it is
    `MAX_UNIFORM_SHARE`.
    """
    noise = [
        evidence.cells(a) * np.sqrt(evidence.residuals[a].variance) / total
        for a in evidence.tables
        if a in evidence.residuals
    ]
    return (
        min(MAX_UNIFORM_SHARE, UNIFORM_SHARE_PER_NOISE * float(np.mean(noise)))
        if noise
        else MAX_UNIFORM_SHARE
    )


def _as_measured(evidence: Evidence, measurement: Measurement, total: float) -> dict[Axes, Array]:
    """Return the contrasts of the unbiased tables by attribute set, with ``total`` as the total."""
    answers = measurement.plan.answers_from(measurement.estimates)
    assert isinstance(answers, SpaceAnswers)  # `evidence` checks this
    contrasts = {
        axes: contrast(answers.partial_table([evidence.names[a] for a in axes]))
        for axes in evidence.sets
    }
    return contrasts | {(): np.array(total)}


@dataclass(frozen=True, kw_only=True)
class PublishForecast:
    """Predicted size, memory and time of publishing.

    Attributes
    ----------
    cells : number of cells of all published tables and their margins.
    bytes_needed : main memory for the tables in bytes.  `Published.uncertainty` and synthetic
        records need additional memory.
    fit_seconds : expected seconds for fitting the tables once, on one core.
    file_seconds : expected seconds for writing the tables to files.
    records_seconds : expected seconds for drawing and adjusting synthetic records; 0 without them.
    """

    cells: int
    bytes_needed: int
    fit_seconds: float = 0.0
    file_seconds: float = 0.0
    records_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Expected seconds for tables, their errors, files and records on an idle machine.

        Errors need one fit per bootstrap draw.  On real data with 2,500 to 21 million cells, the
        prediction is accurate within a factor of 2.

        >>> PublishForecast(cells=9, bytes_needed=72, fit_seconds=0.1, file_seconds=1.0).seconds
        4.1
        """
        return FITS_WITH_ERRORS * self.fit_seconds + self.file_seconds + self.records_seconds

    @property
    def text(self) -> str:
        """One-line summary.

        >>> PublishForecast(cells=187, bytes_needed=1_496, file_seconds=0.8).text
        '187 cells to fit, with subtotals and the total: about 0.8 s and under 1 MB of memory.'
        """
        megabytes = self.bytes_needed / 1e6
        memory = f"{megabytes:,.0f} MB" if megabytes >= 1.0 else "under 1 MB"
        return (
            f"{self.cells:,} cells to fit, with subtotals and the total: about"
            f" {duration_text(self.seconds)} and {memory} of memory."
        )


def publish_forecast(plan: Plan, records: float = 0.0) -> PublishForecast:
    """Predict size, memory and time of publishing from a plan, before it is measured.

    ``records`` is the expected number of synthetic records, which integer tables need.

    Raises
    ------
    NotApplicable : the plan has no residual spaces.
    LimitExceeded : the groups have too many subsets of attributes.

    >>> from engine import Attribute, Budget, plan, Schema, Workload
    >>> schema = Schema([Attribute.of_size("a", 3), Attribute.of_size("b", 2)])
    >>> publish_forecast(plan(Workload(schema).add(("a", "b")), Budget(pcost=1.0))).cells
    12
    """
    names, tables = published_sets(plan)
    if sum(2 ** len(axes) for axes in tables) > MAX_SETS:
        raise LimitExceeded(
            "Publishing needs one table for every subset of the attributes of every group, but this"
            f" workload has more than {MAX_SETS:,} such subsets. Plan with fewer attributes per"
            " group."
        )
    cells = [plan.schema.cells([names[a] for a in axes]) for axes in all_sets(tables)]
    return PublishForecast(
        cells=sum(cells),
        bytes_needed=8 * (CELL_COPIES * sum(cells) + TABLE_COPIES * max(cells)),
        fit_seconds=FIT_SECONDS_PER_TABLE * len(cells) + FIT_SECONDS_PER_CELL * sum(cells),
        file_seconds=FILE_SECONDS_PER_TABLE * len(cells) + FILE_SECONDS_PER_CELL * sum(cells),
        records_seconds=_records_seconds(max(records, 0.0), len(tables), sum(cells)),
    )


def _records_seconds(records: float, tables: int, cells: int) -> float:
    """Return the expected seconds for drawing and adjusting synthetic records."""
    if not records:
        return 0.0
    return RECORD_SECONDS_PER_TABLE * records * tables + RECORD_SECONDS_PER_CELL * cells


def _check_records_memory(published: Published, people: int, limit: int, advice: str) -> None:
    """Raise LimitExceeded if ``people`` records need more than ``limit`` bytes.

    ``advice`` is the last sentence of the message.
    """
    cells = sum(published.contrasts[axes].size for axes in published._largest_sets)
    needed = 8 * (RECORD_COPIES * people * len(published.names) + TABLE_COPIES * cells)
    if needed > limit:
        raise LimitExceeded(
            f"{people:,} synthetic records would need about {needed / 1e9:,.1f} GB, but the limit "
            f"is {limit / 1e9:,.1f} GB. {advice}"
        )


def _check_memory(measurement: Measurement, limit: int) -> None:
    """Raise LimitExceeded if publishing needs more than ``limit`` bytes."""
    needed = publish_forecast(measurement.plan)
    if needed.bytes_needed > limit:
        raise LimitExceeded(
            f"Publishing {needed.cells:,} cells would need about {needed.bytes_needed / 1e9:,.1f}"
            f" GB, but the limit is {limit / 1e9:,.1f} GB. Plan a workload of smaller tables, or"
            " raise memory_limit."
        )
