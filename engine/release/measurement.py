"""Measurements: noisy answers with covariances and confidence intervals.

A residual space (the part of a table that no smaller attribute set contains) is identified by its
attribute set B, and y_B is an unbiased estimate of its residual coordinates.  The noisy table on
the attributes A is

    sum over B subset of A of (N y_B on the attributes in B) (x) (pi on the attributes in A \\ B),

with the cosine basis N and the center pi of each attribute.  It is computed as one linear map per
attribute.  Every residual space is measured by exactly one block, so tables on overlapping
attribute sets are consistent.  A plan that measures the cells of full tables answers each query
from one of these tables instead, and its tables need not be consistent.

The second half of the module reads and writes result files.  A result file is a zip archive of a
JSON header, texts, int64 answers and float64 estimates, with one array per residual space.  The
estimates could be computed from the answers; they are stored so that later versions of libraries,
which may round differently, cannot change them.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import scipy

from engine._arrays import Array
from engine._atomic_io import fresh_file
from engine._threads import threads_for
from engine._untrusted import array_header, open_zip, parse_json, read_member
from engine._validation import check_int, check_positive, check_slice, check_type
from engine._values import FrozenValue
from engine.errors import EngineError, LedgerError, PlanError
from engine.ledger import Receipt
from engine.mechanisms import load_plan, mechanism_class
from engine.plans import Block, Plan
from engine.plans.blocks import apply_factors, undo_factors
from engine.plans.reconstruction import Answers
from engine.residuals import Space
from engine.workload import Group, Part, Schema
from engine.workload.attribute import IN_FILES
from engine.workload.attribute import query_texts as texts_with_bins
from engine.workload.families import Intervals

if TYPE_CHECKING:
    import pandas as pd

# Tables with more entries than this are processed in slabs of about this number of entries, which
# limits the memory.
ANSWER_SLAB_ENTRIES = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One answer: its value, standard error and confidence interval, all in counts."""

    answer: float
    std: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Measurement(FrozenValue):
    """Noisy answers to a plan's strategy, and the estimates, intervals and tables that follow.

    Attributes
    ----------
    plan : the plan that was measured.
    dataset, key, utc : dataset name, key and time of this release on the ledger; empty for a
        rehearsal.
    rehearsal : True if nothing was spent, so that the result must not be published.
    answers_on_grid : mapping from residual space to the released answers of its block, in integer
        grid steps.
    estimates : mapping from residual space to its estimated residual coordinates, in counts, with
        one axis per attribute in schema order.  Residual spaces that are measured jointly (a
        union) have one array with a single axis, which contains the coordinates of all these spaces
        in sequence.  If a strategy measures the cells of a full table, the array contains the
        estimated cells.

    Guarantee: answers are unbiased, and their variances are exactly those that the plan predicts.
    Tables on overlapping attribute sets agree, unless the plan measures the cells of several full
    tables.
    """

    plan: Plan
    dataset: str
    key: str
    utc: str
    rehearsal: bool
    answers_on_grid: Mapping[Space, npt.NDArray[np.int64]]
    estimates: Mapping[Space, Array]

    def answers(
        self, group: int, start: int = 0, stop: int | None = None, confidence: float = 0.95
    ) -> pd.DataFrame:
        """Return the noisy answers to queries ``start:stop`` of a group.

        Parameters
        ----------
        group : index of the group in the workload.
        confidence : probability that the interval from low to high contains the exact answer.

        Returns
        -------
        DataFrame
            One row per query: its text (query), and in counts the answer, its standard error (std)
            and the bounds of its confidence interval (low, high).  Negative answers are not set to
            zero, because that would bias every sum.
        """
        import pandas as pd

        query_group = self._group(group)
        first, last = check_slice(start, stop, query_group.count, error=PlanError)
        values = self.values(group, first, last)
        std = np.sqrt(self.plan.variances(group, first, last))
        half_width = quantile(confidence, self.plan.budget.law) * std
        texts = pd.Series(
            query_texts(self.plan, group, first, last).to_numpy(zero_copy_only=False), dtype="str"
        )
        return pd.DataFrame(
            {
                "query": texts,
                "answer": values,
                "std": std,
                "low": values - half_width,
                "high": values + half_width,
            }
        )

    def values(self, group: int, start: int = 0, stop: int | None = None) -> Array:
        """Return the answers to queries ``start:stop`` of a group, in counts. Shape (queries,)."""
        query_group = self._group(group)
        return apply_group(
            query_group,
            self._space_answers.group_table(group),
            *check_slice(start, stop, query_group.count, error=PlanError),
        )

    def marginal(self, attributes: str | Sequence[str]) -> Array:
        """Return the noisy table on ``attributes``, in counts, with one axis per attribute.

        Shape (n_1, ..., n_k).

        Raises
        ------
        NotAnswerable
            The plan measures too few queries to estimate the complete table.
        """
        return self._space_answers.table(self.plan.schema.named(attributes))

    def answer(
        self, attributes: Sequence[str], query_tensor: npt.ArrayLike, confidence: float = 0.95
    ) -> Estimate:
        """Return the answer to a linear query on ``attributes``, which need not be in the workload.

        Parameters
        ----------
        query_tensor : weight of each cell of the table on ``attributes``, shape (n_1, ..., n_k)
            with the axes in the order of ``attributes``.

        Raises
        ------
        NotAnswerable
            The query has a component that the strategy does not measure.
        """
        return self.combination([(attributes, query_tensor)], [1.0], confidence)

    def combination(
        self,
        queries: Sequence[tuple[Sequence[str], npt.ArrayLike]],
        coefficients: Sequence[float],
        confidence: float = 0.95,
    ) -> Estimate:
        """Return a linear combination of answers, with its exact standard error.

        The standard error takes the covariances of the answers into account.

        Parameters
        ----------
        queries : pairs (attributes, tensor of shape (n_1, ..., n_k)) as in `answer`.
        coefficients : one number per query.
        """
        check_type(
            "queries",
            queries,
            Sequence,
            give="a list of pairs (attributes, tensor with one weight per cell)",
            error=PlanError,
        )
        try:
            weights = np.asarray(coefficients, dtype=float)
        except (TypeError, ValueError):
            raise PlanError(
                f"The {type(coefficients).__name__} of coefficients contains an entry that is not a"
                " number. Give one number per query."
            ) from None
        if weights.shape != (len(queries),) or not np.isfinite(weights).all():
            is_finite = np.isfinite(weights).all()
            fault = f"have the shape {weights.shape}" if is_finite else "are not all finite"
            raise PlanError(
                f"The coefficients {fault}. Give one finite number per query, {len(queries)} in"
                " all."
            )
        std = math.sqrt(max(0.0, float(weights @ self.plan.covariance(queries) @ weights)))
        named_queries = [self.plan.check_query(query) for query in queries]
        value = math.fsum(
            w * self._space_answers.value(names, tensor)
            for w, (names, tensor) in zip(weights, named_queries, strict=True)
        )
        half_width = quantile(confidence, self.plan.budget.law) * std
        return Estimate(answer=value, std=std, low=value - half_width, high=value + half_width)

    def publish(self, fit: str = "shrunk", **options: Any) -> Any:
        """Return consistent tables for publication, without spending budget.

        The tables have no negative counts, unless ``fit`` is "none".  Tables without negative
        counts are biased, and the intervals of the measurement do not apply to them; for sums,
        tests and further analysis use `answers`.  See `engine.postprocess.publish` for the options.
        """
        # imported here because `engine.postprocess` itself imports this module
        from engine.postprocess import publish

        return publish(self, fit, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the measurement and its plan to a file that `load` reads without the ledger.

        Guarantee: the file contains released numbers only, and the file of a rehearsal is marked as
        a rehearsal.  An existing file is not overwritten, and an interrupted call leaves no
        incomplete file.

        Raises
        ------
        PlanError
            The file cannot be written.  Or the measurement is the first stage (look) of a two-stage
            release, which is stored only with its ledger.
        """
        save_measurement(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Measurement:
        """Return the measurement that `save` wrote to a file.

        The plan in the file is checked as `load_plan` checks plan files.

        Raises
        ------
        LedgerError
            The file is missing, damaged, or not a measurement.
        PlanError
            ``path`` is not a path, or the plan in the file is not valid.
        """
        return cls(**saved_measurement(path))

    def headline(self) -> dict[str, str]:
        """Return the main facts as a mapping from name to text.

        The dataset and the time of the release, or the mark of a rehearsal, come first.  The facts
        of the plan follow, such as its accuracy and cost.
        """
        plan = self.plan.headline()
        if self.rehearsal:
            return {"REHEARSAL": "not for publication"} | plan
        return {"dataset": repr(self.dataset), "released": self.utc} | plan

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Measurement)
            and all(getattr(self, name) == getattr(other, name) for name in NAMES)
            and _same(self.answers_on_grid, other.answers_on_grid)
            and _same(self.estimates, other.estimates)
            and self.plan == other.plan
        )

    def __hash__(self) -> int:
        return hash((self.dataset, self.key, self.plan))

    def _group(self, group: int) -> Group:
        groups = self.plan.workload.groups
        return groups[check_int("number of the group", group, 0, len(groups) - 1, error=PlanError)]

    @cached_property
    def _space_answers(self) -> Answers:
        return self.plan.answers_from(self.estimates)


def _same(one: Mapping[Space, npt.NDArray[Any]], other: Mapping[Space, npt.NDArray[Any]]) -> bool:
    """Return whether two mappings have the same residual spaces with equal arrays."""
    return one.keys() == other.keys() and all(
        np.array_equal(one[space], other[space]) for space in one
    )


def estimate(block: Block, answers_on_grid: npt.NDArray[np.int64]) -> Array:
    """Return the least-squares estimate from the noisy answers of a block, in counts.

    Parameters
    ----------
    answers_on_grid : noisy answers in grid steps, shape (measurements,).

    Returns
    -------
    Array of shape ``block.coordinates``: residual coordinates, or cells if the strategy measures
    the cells of a full table.
    """
    answers = answers_on_grid.reshape([len(s.rows) for _, s in block.factors])
    with threads_for(max((len(s.rows) for _, s in block.factors), default=1)):
        estimates = undo_factors(block, answers).astype(float, copy=False)
    # the grid is a power of two, so this product is exact
    estimates *= block.grid
    return estimates


def strategy_answers(block: Block, table: npt.NDArray[np.int64]) -> Array:
    """Return the answers B x of a block to an exact marginal table x, without noise, in counts.

    Shape (rows_1, ..., rows_k), one axis per Kronecker factor of the strategy B.
    """
    # The product with strategy rows is a float array.  A block without factors (the total) leaves
    # the integers unchanged, so `astype` converts them.
    exact: Array = apply_factors(block, table, lambda s: s.answer_rows).astype(float, copy=False)
    return exact if block.weights is None else exact * block.weights


def apply_group(group: Group, table: Array, start: int, stop: int) -> Array:
    """Return the answers of a table to the queries ``start:stop`` of a group, in counts.

    Parameters
    ----------
    table : counts with one axis per attribute of the group, in the order of the group.

    Returns
    -------
    Array of shape (stop - start,).
    """
    if not group.parts:
        return np.full(stop - start, float(table))
    # A group consists of parts, each with a query family on some of the attributes.  The array
    # `cells` has one axis per part, with the cells of all attributes of the part.
    order = [axis for part in group.parts for axis in part.axes]
    cells = table.transpose(order).reshape([math.prod(part.sizes) for part in group.parts])
    if all(_is_answered_by_cells(part, table) for part in group.parts):
        answers = cells.reshape(-1)[start:stop]
        # few answers are copied, because a view of them would keep the complete table in memory
        return answers if 2 * answers.size > table.size else answers.copy()
    # The queries of the group are products of one query per part (query family). The first part is
    # answered for the complete table. All later parts are answered for a slab, i.e. several queries
    # of the first part at a time, which limits the memory.
    first_part, *other_parts = group.parts
    first_answers = _part_answers(first_part, cells)
    # number of queries of the group that share one query of the first query family
    queries_per_row = math.prod(part.count for part in other_parts)
    step = max(1, ANSWER_SLAB_ENTRIES // queries_per_row)
    answers = np.empty(stop - start)
    # rows of ``first_answers`` that the queries ``start:stop`` need
    first_row, stop_row = start // queries_per_row, -(-stop // queries_per_row)
    for row in range(first_row, stop_row if stop > start else first_row, step):
        slab = first_answers[row : min(row + step, stop_row)]
        for axis, part in enumerate(other_parts, start=1):
            slab = np.moveaxis(_part_answers(part, np.moveaxis(slab, axis, 0)), 0, axis)
        # the slab contains the queries from ``slab_start`` on; copy those in ``start:stop``
        slab_start = row * queries_per_row
        low, high = max(start, slab_start), min(stop, slab_start + slab.size)
        answers[low - start : high - start] = slab.reshape(-1)[low - slab_start : high - slab_start]
    return answers


def _is_answered_by_cells(part: Part, table: Array) -> bool:
    """Return whether the cells of ``table`` are the answers, so that no matrix product is needed.

    The result is True if ``part`` is a marginal (its queries are single cells) of a large table.
    """
    return part.family.key == ("marginal",) and table.size >= ANSWER_SLAB_ENTRIES


def _part_answers(part: Part, table: Array) -> Array:
    """Return the answers to the queries of ``part``, in counts.

    Parameters
    ----------
    part : query family on some attributes of a group.
    table : counts of shape (cells of the part, ...).

    Returns
    -------
    Array of shape (queries of the part, ...).
    """
    if _is_answered_by_cells(part, table):
        return table
    if table.size < ANSWER_SLAB_ENTRIES or not isinstance(part.family, Intervals):
        return part.family.dot(part.sizes, table)
    # sums over intervals need several times the memory of their table, so they are computed for
    # some of its columns at a time
    columns = table.reshape(len(table), -1)
    answers = np.empty((part.count, columns.shape[1]))
    step = max(1, ANSWER_SLAB_ENTRIES // len(table))
    for start in range(0, columns.shape[1], step):
        slab = slice(start, start + step)
        answers[:, slab] = part.family.dot(part.sizes, columns[:, slab])
    return answers.reshape(part.count, *table.shape[1:])


def query_texts(
    plan: Plan, group: int, start: int, stop: int, *, for_people: bool = False
) -> pa.Array:
    """Return the texts of queries ``start:stop`` of a group of the plan's workload.

    The texts are those of `Workload.describe`; ``group`` is the index of the group.  If
    ``for_people``, bins of integers are written as "0 to 9" in place of "[0, 10)".
    """
    query_group = plan.workload.groups[group]
    return group_texts(plan.schema, query_group, start, stop, for_people=for_people)


def group_texts(
    schema: Schema, query_group: Group, start: int, stop: int, *, for_people: bool = False
) -> pa.Array:
    """Return the texts of queries ``start:stop`` of a group; see `query_texts`."""
    import pyarrow.compute as pc

    if not query_group.parts or stop <= start:
        return pa.array(["all records"] * (stop - start), pa.string())
    # one array of texts per part of the group (a query family on some of its attributes)
    columns: list[pa.Array] = []
    index = np.arange(start, stop)
    has_empty_text = False
    # From one query of the group to the next, the query of the last family changes first.
    for part in reversed(query_group.parts):
        index, query = np.divmod(index, part.count)
        attributes = tuple(schema[query_group.attributes[axis]] for axis in part.axes)
        texts, part_has_empty_text = _part_texts(
            part.family, attributes, part.count, for_people=for_people
        )
        columns.insert(0, texts.take(pa.array(query)))
        has_empty_text |= part_has_empty_text
    # without empty texts, one join is several times faster than the loop below
    if not has_empty_text:
        return pc.binary_join_element_wise(*columns, " and ")
    # join two non-empty texts with "and", and leave out empty texts
    joined = columns.pop()
    while columns:
        column = columns.pop()
        combined = pc.binary_join_element_wise(column, joined, " and ")
        joined = pc.if_else(
            pc.equal(column, ""), joined, pc.if_else(pc.equal(joined, ""), column, combined)
        )
    return pc.if_else(pc.equal(joined, ""), "all records", joined)


@lru_cache(maxsize=64)
def _part_texts(
    family: Any, attributes: tuple[Any, ...], count: int, *, for_people: bool
) -> tuple[pa.Array, bool]:
    """Return the texts of all ``count`` queries of a family on some attributes.

    If ``for_people``, bins of integers are written as "0 to 9".

    Returns
    -------
    texts : array of one text per query; the text is empty if the query counts all records.
    has_empty_text : whether a text is empty.
    """
    texts = [family.text(attributes, i) for i in range(count)]
    if for_people:
        texts = texts_with_bins(attributes, texts, IN_FILES)
    return pa.array(texts, pa.string()), "" in texts


def quantile(confidence: float, law: str = "gaussian") -> float:
    """Return the half width of a two-sided confidence interval, in standard errors.

    If ``law`` is "gaussian", the errors are normal.  If ``law`` is "laplace", the result is the
    larger of the normal and the Laplace quantile: the error of one answer has a Laplace
    distribution, but the error of a sum of many answers is nearly normal.

    >>> round(quantile(0.95), 4), round(quantile(0.95, "laplace"), 4)
    (1.96, 2.1183)
    """
    confidence = check_positive("confidence", confidence, below=1, error=PlanError)
    normal = float(scipy.special.ndtri(0.5 + confidence / 2))
    return normal if law == "gaussian" else max(normal, -math.log1p(-confidence) / math.sqrt(2.0))


# Number of bytes that are read to find the NumPy header of a stored array.
MAX_ARRAY_HEADER_BYTES = 4096
# fields of the header of a result file that are texts
HEAD_TEXTS = ("format", "key", "dataset", "utc")
Shapes = Mapping[Space, tuple[int, ...]]
# Pairs of a residual space and the noisy answers of its block in grid steps.  The noise of a block
# is drawn when the iteration reaches the pair.
Drawn = Iterable[tuple[Space, npt.NDArray[np.int64]]]


def write_archive(
    file: BinaryIO,
    head: Mapping[str, Any],
    receipt: Receipt | None,
    *,
    texts: Mapping[str, str],
    answers: Drawn,
    estimates: Iterable[tuple[Space, Array]] | Callable[[Space, npt.NDArray[np.int64]], Array],
) -> None:
    """Write a result file: header, texts, answers and estimates, one array at a time.

    Parameters
    ----------
    file : file to write, opened for reading and writing.
    head : fields of the JSON header.
    receipt : receipt whose key, dataset, time and cost are added to the header; None adds nothing.
    texts : mapping from file name in the archive to text.
    answers : pairs of residual space and noisy answers.
    estimates : pairs of residual space and array; or a function that computes the array from a
        residual space and its answers.  Before each call of this function the answers are read back
        from the file, so that memory holds the answers of only one space.
    """
    receipt_fields = (
        {}
        if receipt is None
        else {n: getattr(receipt, n) for n in ("key", "dataset", "utc", "pcost")}
    )
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("release.json", json.dumps({**head, **receipt_fields}))
        for name, text in texts.items():
            archive.writestr(name, text)
        # residual space -> position and number of bytes of its answers in the file
        positions: dict[Space, tuple[int, int]] = {}

        def write(folder: str, space: Space, array: npt.NDArray[Any]) -> None:
            with archive.open(_member(folder, space), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array, order="C"), allow_pickle=False)
                positions.setdefault(space, (file.tell() - array.nbytes, array.nbytes))

        def read(space: Space) -> npt.NDArray[np.int64]:
            # `seek` is safe here: the archive moves to its end before it writes again
            position, size = positions[space]
            file.seek(position)
            return np.frombuffer(file.read(size), np.int64)

        for space, drawn in answers:
            write("answers", space, drawn)
        named_estimates = (
            ((space, estimates(space, read(space))) for space in list(positions))
            if callable(estimates)
            else estimates
        )
        for space, array in named_estimates:
            write("estimates", space, array)


@dataclass(kw_only=True)
class Archive:
    """Context manager that reads a result file; raises LedgerError if the file is damaged.

    If an array in the file has another type or shape than requested, the file is damaged.  Returned
    arrays are read-only views of the memory-mapped file: their data are read on access, and the
    file stays open until the last view is deleted.
    """

    path: Path

    def __enter__(self) -> Archive:
        try:
            self._opened = open_zip(
                self.path,
                self.path.name,
                error=LedgerError,
                plain_names=False,
                max_members=math.inf,
            )
            self._zip = self._opened.__enter__()
            # one memory map for all arrays, because each map holds a file descriptor
            self._content = np.memmap(self.path, np.uint8, "r").view(np.ndarray)
        except (OSError, ValueError, LedgerError):
            raise self._damaged() from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.__exit__(None, None, None)
        # A damaged file causes errors of many types, which are replaced by one message.  A
        # PlanError, and errors of the engine that are no ValueError, such as LedgerError, are
        # passed on.  Their messages explain what is wrong.
        if isinstance(error, Exception) and (
            not isinstance(error, EngineError)
            or (isinstance(error, ValueError) and not isinstance(error, PlanError))
        ):
            raise self._damaged() from None

    def __contains__(self, name: str) -> bool:
        return name in self._zip.namelist()

    def head(self, **expected: str) -> dict[str, Any]:
        """Return the fields of the header.

        Parameters
        ----------
        expected : field -> value that the header must have.

        Raises
        ------
        LedgerError
            A field in ``expected`` has another value: the file belongs to another release.
        ValueError
            The header is not an object, or one of the fields `HEAD_TEXTS` is not a text.
        """
        header = parse_json(self.text("release.json"))
        if not isinstance(header, dict) or not all(
            type(header.get(name, "")) is str for name in HEAD_TEXTS
        ):
            raise ValueError("a field of the header is not a text")
        differing = [name for name, value in expected.items() if header.get(name) != value]
        if differing:
            if "key" in differing:
                fault = "belongs to another release. Restore the file from a copy."
            elif "step" in expected:
                fault = (
                    "is not that of the expected step of a two-stage release. Give the key of the"
                    " first measurement of a two-stage release."
                )
            else:
                fault = (
                    "is of another kind, or was written by another version of this program. Give a"
                    " file that was saved for this purpose."
                )
            raise LedgerError(f"The result file {self.path.name} {fault}")
        return header

    def text(self, name: str) -> bytes:
        """Return the text stored under ``name``, as bytes."""
        # texts are stored without compression, so none is larger than the file
        return read_member(self._zip, name, self.path.stat().st_size)

    def answers(self, shapes: Shapes) -> dict[Space, npt.NDArray[np.int64]]:
        """Return the released strategy answers of some residual spaces, in grid steps.

        ``shapes`` maps each requested space to the shape that its array must have.
        """
        return {
            space: self._array("answers", space, np.int64, shape) for space, shape in shapes.items()
        }

    def estimates(self, shapes: Shapes) -> dict[Space, Array]:
        """Return the estimates of some residual spaces, in counts; ``shapes`` as in `answers`."""
        return {
            space: self._array("estimates", space, np.float64, shape)
            for space, shape in shapes.items()
        }

    def everything(self, folder: str) -> dict[Space, npt.NDArray[Any]]:
        """Return all arrays in a folder of the archive, as a mapping from residual space to array.

        ``folder`` is "answers" or "estimates".  The shapes are not checked.
        """
        names = [name for name in self._zip.namelist() if name.startswith(f"{folder}/")]
        spaces = {name: parse_json(name[len(folder) + 1 : -len(".npy")]) for name in names}
        if not all(
            isinstance(s, list) and all(isinstance(a, str) for a in s) for s in spaces.values()
        ):
            raise ValueError("the name of an array is not a list of attributes")
        return {tuple(space): self._window(name) for name, space in spaces.items()}

    def _array(
        self, folder: str, space: Space, dtype: Any, shape: Iterable[int]
    ) -> npt.NDArray[Any]:
        """Return the array of a residual space in "answers" or "estimates" (``folder``).

        Raises ValueError unless the array has the type ``dtype`` and the shape ``shape``.
        """
        name = _member(folder, space)
        array = self._window(name)
        if array.dtype != dtype or array.shape != tuple(shape):
            raise ValueError(f"the array {name} has another type or shape than the plan requires")
        return array

    def _window(self, name: str) -> npt.NDArray[Any]:
        """Return a view of an array in the memory-mapped file, whose data are not read yet."""
        member = self._zip.getinfo(name)
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is compressed")
        # Before the data of each file, a zip archive has a header of 30 bytes, the name of the file
        # and an extra field. The last 4 bytes of the header are the lengths of name and field.
        lengths = self._content[member.header_offset + 26 : member.header_offset + 30].view("<u2")
        start = member.header_offset + 30 + int(lengths.sum())
        stored = self._content[start : start + member.file_size]
        head = io.BytesIO(stored[:MAX_ARRAY_HEADER_BYTES].tobytes())
        shape, by_columns, dtype = array_header(head)
        if by_columns:
            raise ValueError(f"{name} is stored in Fortran order")
        return stored[head.tell() :].view(dtype).reshape(shape)

    def _damaged(self) -> LedgerError:
        return LedgerError(
            f"The stored result {self.path.name} cannot be read. Restore it from a copy."
        )


def _member(folder: str, space: Space) -> str:
    """Return the file name in the archive for a residual space: the JSON list of its attributes."""
    return f"{folder}/{json.dumps(list(space), ensure_ascii=True)}.npy"


FORMAT = "saved/1"
# fields of a measurement that are stored in the header of its file
NAMES = ("dataset", "key", "utc", "rehearsal")


def save_measurement(measurement: Measurement, path: str | os.PathLike[str]) -> None:
    """Write a measurement with its plan; see `Measurement.save`."""
    # This call raises PlanError for the first stage of a two-stage release: its mechanism is not in
    # the registry, so `load` could not read its plan.
    mechanism_class(measurement.plan.mechanism)
    head = {"format": FORMAT} | {name: getattr(measurement, name) for name in NAMES}
    answers, estimates = measurement.answers_on_grid.items(), measurement.estimates.items()
    with fresh_file(_checked_path(path), "measurement", error=PlanError) as file:
        texts = {"plan.json": measurement.plan.to_json()}
        write_archive(file, head, receipt=None, texts=texts, answers=answers, estimates=estimates)


def _checked_path(path: str | os.PathLike[str]) -> Path:
    check_type("file", path, (str, os.PathLike), give="its path", error=PlanError)
    return Path(path)


def saved_measurement(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of the measurement in a file; see `Measurement.load`."""
    with Archive(path=_checked_path(path)) as archive:
        head = archive.head(format=FORMAT)
        plan = load_plan(archive.text("plan.json"))
        answers, estimates = archive.everything("answers"), archive.everything("estimates")
        if estimates.keys() != plan.estimate_blocks.keys():
            raise ValueError("the estimates are on other residual spaces than those of the plan")
        return {name: head[name] for name in NAMES} | {
            "plan": plan,
            "answers_on_grid": answers,
            "estimates": estimates,
        }
