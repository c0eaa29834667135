"""Package of published tables: CSV files with codebook, and workbook.

The package is one zip of plain text files that needs no software of this project:

README.md, codebook.md           description of tables, columns and their uses
table1_age.csv, ...              one row per query; if the queries are the cells of a table, with a
                                 code and a label column for every attribute
table2_age_sex_crosstab.csv, ... published counts of the cells of two attributes as rows and
                                 columns, for spreadsheets
totals.csv                       for each table of cells: number of suppressed counts, and the sums
                                 with and without them
tables.csv-metadata.json         column descriptions as CSV on the Web (W3C)
registry.json                    the fields of public registries of deployments, or "not stated"
plan.json, how.json              the plan, and the options of publishing
measurements.json, .npz          the released integers.  `verify_package` recomputes all other files
                                 from these four files
recompute.R and its files        the released integers as CSV, and an R script that recomputes
                                 estimates and standard errors; only for releases that have one of
                                 the two forms below

The workbook (.xlsx) has these sheets:

Cover               guarantee and recommended use of the numbers
Contents            all tables with links, and the share of numbers with each flag
Table 1, ...        one row per query: labels or query, published count with interval and flag, then
                    the unbiased answer
Table 2 crossed     published counts of the cells of two attributes as rows and columns
Codebook            the labels of every attribute

Sheets follow the accessibility rules of statistical offices: one table per sheet, a title above it,
no merged cells and no information by color only.  Texts are written as strings, so that no label
becomes a formula or a link.

**Open form** of the released integers, see `is_open`.  The table on attributes A is

    sum over residual spaces B inside A of
        (L_1 (x) L_2 (x) ...) z_B grid_B  (x)  centers of the attributes of A outside B.

z_B are the integers of residual space B, in the order in which its last attribute changes fastest,
and L_i is the matrix from strategy answers to cells of attribute i.  The covariance of two sums of
cells with coefficients q and q' is

    sum over B of  noise_B^2 * c_B(q)^T ((L_1 L_1^T) (x) (L_2 L_2^T) (x) ...) c_B(q'),

where c_B(q) are the coefficients q, summed over the attributes of A outside B with their centers as
weights.  A residual space with a public table has the cells of this table as integers, grid 1 and
noise 0.

**Linear form** of the released integers, see `is_linear`.  Let z be the integers, g their grids
and s the standard deviations of their noise, both in counts.  Let W_t be the weights of table t,
with one row per query and one column per integer.  The answers of table t are W_t (g z).  Noise is
independent, so the covariance of the answers of tables t and u is W_t diag(s^2) W_u^T.  If there
are exact totals, the last integer is 1, with grid 1 and noise 0, and its weights are the exact part
of the answers.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from engine._arrays import Array, Index
from engine._format import (
    csv_number,
    csv_text,
    deltas_as_powers,
    escape_formula,
    markdown,
    markdown_code,
    pluralize,
    set_name,
)
from engine._untrusted import MAX_MEMBERS
from engine.errors import LimitExceeded
from engine.plans import Block, Plan, SpaceAnswers
from engine.postprocess import QualityRule
from engine.postprocess.published_tables import FITS, Published
from engine.postprocess.uncertainty import REASONS, Uncertainty
from engine.progress import Progress, progress_reporter
from engine.publish.output_path import RULE, added_columns, new_file
from engine.publish.package_files import integers_determine_estimates, write_measurements
from engine.publish.report import REHEARSAL_MARK, csv_decimals, csv_table
from engine.release import Measurement, apply_group
from engine.release.measure import measurement_of
from engine.release.measurement import query_texts
from engine.residuals import Space, basis, center
from engine.workload import Attribute, Group, Schema, Workload
from engine.workload.attribute import IN_FILES, cell_text

if TYPE_CHECKING:
    import pandas as pd


PLAN, HOW, TABLES_FORMAT = "plan.json", "how.json", "tables/4"
# columns of tables.csv: the sum of the first and the last estimate of a table (the only estimate of
# a table of one number), and its standard error
CHECK_COLUMN = "check_first_plus_last"
CHECK_COLUMNS = (CHECK_COLUMN, f"{CHECK_COLUMN}_std")
# last lines of both R scripts
REPORT_AND_QUIT = r"""  cat(sprintf("largest relative difference %.3g\n", worst))
  quit(status = if (worst < 1e-6) 0 else 1)
}
"""
OPEN_CODE = (
    r"""# Recomputes estimates, standard errors and the error of a sum from the released integers, in base R.
#
#   Rscript recompute.R            compares every table, and a sum of two of its cells, with what the package says
#   source("recompute.R")          then sum_of_cells(c("a", "b"), q): q an array with one entry per cell of the table

attributes <- read.csv("attributes.csv", colClasses = c("character", "character", "integer"), check.names = FALSE)
spaces <- read.csv("spaces.csv", colClasses = c("integer", "character", "character", "numeric", "numeric"))
centers <- read.csv("centers.csv", colClasses = c("character", "integer", "numeric"))
integers <- read.csv("integers.csv", colClasses = c("integer", "integer", "numeric"))
files <- read.csv("tables.csv", colClasses = "character")
# exact totals have no error
std_difference <- function(std, expected) if (expected > 0) abs(std / expected - 1) else abs(std)
split_words <- function(text) if (nchar(text)) strsplit(text, " ", fixed = TRUE)[[1]] else character(0)
matrices <- new.env()
matrix_of <- function(name) {
  if (is.null(matrices[[name]])) matrices[[name]] <- as.matrix(read.csv(paste0(name, ".csv"), header = FALSE))
  matrices[[name]]
}
center <- function(id) centers$center[centers$attribute == id]

# Multiply one axis of an array by a matrix.
along <- function(x, axis, m) {
  d <- dim(x); order <- c(axis, setdiff(seq_along(d), axis))
  moved <- m %*% matrix(aperm(x, order), nrow = d[axis])
  d[axis] <- nrow(m)
  aperm(array(moved, d[order]), order(order))
}

# Coefficients of a query in one residual space: contract the attributes outside the space with their centers, and the
# others with the matrices of the space. In R the first index changes fastest, so integers are in reverse order.
coefficients_of <- function(ids, q, inside, names) {
  for (k in seq_along(ids)) if (!(ids[k] %in% inside)) q <- along(q, k, matrix(center(ids[k]), nrow = 1))
  for (k in seq_along(inside)) q <- along(q, match(inside[k], ids), t(matrix_of(names[k])))
  q
}

sum_of_cells <- function(names, q) {
  ids <- attributes$id[match(names, attributes$name)]
  q <- array(q, if (length(ids)) attributes$size[match(ids, attributes$id)] else 1)
  value <- 0; variance <- 0
  for (b in seq_len(nrow(spaces))) {
    inside <- split_words(spaces$attributes[b])
    if (!all(inside %in% ids)) next
    part <- coefficients_of(ids, q, inside, split_words(spaces$matrices[b]))
    z <- integers$integer[integers$space == spaces$space[b]]
    positions <- match(inside, ids)
    weights <- as.vector(part)
    if (length(inside)) weights <- as.vector(aperm(array(part, dim(part)[sort(positions)]), rev(rank(positions))))
    value <- value + sum(weights * z) * spaces$grid[b]
    variance <- variance + sum(weights^2) * spaces$noise[b]^2
  }
  c(estimate = value, std = sqrt(variance))
}

if (sys.nframe() == 0) {
  worst <- 0
  for (f in seq_len(nrow(files))) {
    stored <- read.csv(paste0(files$table[f], ".csv"), check.names = FALSE)
    ids <- split_words(files$attributes[f])
    names <- attributes$name[match(ids, attributes$id)]
    sizes <- attributes$size[match(ids, attributes$id)]
    cell <- function(i) {
      q <- array(0, if (length(ids)) sizes else 1)
      at <- if (length(ids)) as.integer(stored[i, paste0(names, "_code")]) + 1 else 1
      q[matrix(at, nrow = 1)] <- 1
      q
    }
    rows <- unique(round(seq(1, nrow(stored), length.out = min(nrow(stored), 40))))
    for (i in rows) {
      result <- sum_of_cells(names, cell(i))
      scale <- 1 + abs(stored$estimate[i])
      worst <- max(worst, abs(result["estimate"] - stored$estimate[i]) / scale,
                   std_difference(result["std"], stored$std[i]))
    }
    if (nrow(stored) > 1) {
      both <- sum_of_cells(names, cell(1) + cell(nrow(stored)))
      worst <- max(worst, abs(both["estimate"] - as.numeric(files$CHECK[f])) / (1 + abs(as.numeric(files$CHECK[f]))),
                   std_difference(both["std"], as.numeric(files$CHECK_std[f])))
      cat(sprintf("%s: the sum of its first and last cell is %.9g with standard error %.9g\n",
                  files$table[f], both["estimate"], both["std"]))
    }
  }
"""
    + REPORT_AND_QUIT
).replace("CHECK", CHECK_COLUMN)


def is_open(measurement: Measurement) -> bool:
    """Return whether the released integers can be exported in the open form (module docstring).

    The integers must determine the estimates.  Every block must measure one residual space by a
    product of strategies on one attribute each, without row weights.  No residual space may have a
    complement, see `Split.complement`.
    """
    plan = measurement.plan
    return (
        integers_determine_estimates(measurement)
        and all(
            block.weights is None
            and not block.union
            and plan.split.complement(space) is None
            and all(len(axes) == 1 for axes, _ in block.factors)
            for space, block in plan.blocks.items()
        )
        and all(plan.split.complement(space) is None for space in plan.schema.exact_spaces)
    )


def write_open_form(
    measurement: Measurement, folder: Path, tables: Iterable[tuple[str, Space]]
) -> list[Path]:
    """Write the released integers in the open form, as CSV files with an R script.

    ``tables`` lists the tables that the script recomputes, as pairs (name, attributes).  Returns
    the paths of all files.
    """
    plan = measurement.plan
    ids = {name: f"a{i + 1}" for i, name in enumerate(plan.schema.names)}
    files = [folder / "recompute.R"]
    files[0].write_text(OPEN_CODE, encoding="utf-8")

    def write_csv(name: str, head: list[str], rows: Iterable[Iterable[object]]) -> None:
        files.append(folder / name)
        with open(files[-1], "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows] if head else rows)

    # (shape and values of a matrix, as bytes) -> name of its file, so that equal matrices share one
    names_by_content: dict[bytes, str] = {}
    space_rows = []
    exact = plan.schema.exact_spaces
    centers = {n: center(plan.schema[n].size, plan.split.centers.get(n)) for n in plan.schema.names}

    def matrix_names(matrices: Iterable[Array]) -> str:
        """Write each matrix to a file, unless an equal matrix was written; return the file names.

        The result is one text, with the names separated by blanks.
        """
        names = []
        for matrix in matrices:
            content = repr(matrix.shape).encode() + matrix.tobytes()
            if content not in names_by_content:
                name = names_by_content[content] = f"matrix{len(names_by_content) + 1}"
                write_csv(f"{name}.csv", [], ([repr(float(x)) for x in row] for row in matrix))
            names.append(names_by_content[content])
        return " ".join(names)

    for number, block in enumerate(plan.blocks.values(), start=1):
        block_ids = [ids[block.attributes[axes[0]]] for axes, _ in block.factors]
        space_rows.append(
            [
                number,
                " ".join(block_ids),
                matrix_names(_cell_matrices(block)),
                repr(block.grid),
                repr(block.noise),
            ]
        )
    for number, space in enumerate(exact, start=len(space_rows) + 1):
        projections = [np.eye(len(pi)) - pi[:, None] for pi in map(centers.__getitem__, space)]
        space_rows.append(
            [
                number,
                " ".join(ids[n] for n in space),
                matrix_names(projections),
                repr(1.0),
                repr(0.0),
            ]
        )
    write_csv("spaces.csv", ["space", "attributes", "matrices", "grid", "noise"], space_rows)
    write_csv(
        "attributes.csv",
        ["id", "name", "size"],
        ([ids[n], escape_formula(n), plan.schema[n].size] for n in plan.schema.names),
    )
    rows = ([ids[n], i, repr(float(x))] for n, pi in centers.items() for i, x in enumerate(pi))
    write_csv("centers.csv", ["attribute", "code", "center"], rows)
    answers = [measurement.answers_on_grid[space] for space in plan.blocks]
    answers += [plan.schema.exact_table(space).ravel() for space in exact]
    write_csv(
        "integers.csv",
        ["space", "position", "integer"],
        (
            [b, i, int(z)]
            for b, integers in enumerate(answers, start=1)
            for i, z in enumerate(integers)
        ),
    )
    ends = (
        [t, " ".join(ids[n] for n in names), *_end_cells_sum(measurement, names)]
        for t, names in tables
    )
    write_csv("tables.csv", ["table", "attributes", *CHECK_COLUMNS], ends)
    return files


def _end_cells_sum(measurement: Measurement, names: Space) -> tuple[str, str]:
    """Return the sum of the first and the last cell of a table, and its standard error, as texts.

    For a table of one cell, the sum is this cell.
    """
    query = np.zeros(measurement.plan.schema.sizes(names))
    query.flat[0] = query.flat[-1] = 1.0
    answer = measurement.answer(names, query)
    return repr(float(answer.answer)), repr(float(answer.std))


def _cell_matrices(block: Block) -> list[Array]:
    """Return one matrix per attribute of a block, shape (cells, strategy rows) of the attribute.

    The matrix maps strategy answers to cells.
    """
    return [np.asarray(basis(s.sizes[0]) @ s.pinv) for _, s in block.factors]


# largest numbers of released integers, and of weights (integers times queries), in the linear form
MAX_INTEGERS, MAX_WEIGHTS = 2_000, 2_000_000
LINEAR_CODE = (
    r"""# Recomputes estimates, standard errors and the error of a sum from the released integers, in base R.
#
#   Rscript recompute.R            compares every table, and the sum of two of its answers, with what the package says
#   source("recompute.R")          then sum_of_answers(list(table1_age = c(1, 0, -1))): table names as in tables.csv,
#                                one number per row of the table

integers <- read.csv("integers.csv", colClasses = c("integer", "numeric", "numeric", "numeric"))
files <- read.csv("tables.csv", colClasses = "character")
released <- integers$integer * integers$grid
# the error of exact totals is rounding only
std_difference <- function(std, expected) abs(std - expected) / pmax(expected, 1e-6)
weights <- function(table) as.matrix(read.csv(paste0(table, "_weights.csv"), header = FALSE))

# The noise of the integers is independent: add the weights of a sum first, then square them.
sum_of_answers <- function(coefficients) {
  w <- numeric(length(released))
  for (table in names(coefficients)) w <- w + as.vector(coefficients[[table]] %*% weights(table))
  c(estimate = sum(w * released), std = sqrt(sum((w * integers$noise)^2)))
}

if (sys.nframe() == 0) {
  worst <- 0
  for (f in seq_len(nrow(files))) {
    stored <- read.csv(paste0(files$table[f], ".csv"), check.names = FALSE)
    w <- weights(files$table[f])
    estimate <- as.vector(w %*% released)
    std <- sqrt(as.vector(w^2 %*% integers$noise^2))
    worst <- max(worst, abs(estimate - stored$estimate) / (1 + abs(stored$estimate)), std_difference(std, stored$std))
    both <- numeric(nrow(stored)); both[1] <- 1; both[nrow(stored)] <- 1
    result <- sum_of_answers(setNames(list(both), files$table[f]))
    expected <- as.numeric(c(files$CHECK[f], files$CHECK_std[f]))
    worst <- max(worst, abs(result["estimate"] - expected[1]) / (1 + abs(expected[1])),
                 std_difference(result["std"], expected[2]))
    cat(sprintf("%s: the sum of its first and last answer is %.9g with standard error %.9g\n",
                files$table[f], result["estimate"], result["std"]))
  }
"""
    + REPORT_AND_QUIT
).replace("CHECK", CHECK_COLUMN)


def is_linear(measurement: Measurement) -> bool:
    """Return whether the released integers can be exported in the linear form (module docstring).

    The integers must determine the estimates, and every query must have an answer.  There may be at
    most `MAX_INTEGERS` released integers.  The number of integers times the number of queries may
    be at most `MAX_WEIGHTS`.
    """
    plan = measurement.plan
    rows = sum(block.measurements for block in plan.blocks.values())
    return (
        rows <= MAX_INTEGERS
        and rows * plan.workload.queries <= MAX_WEIGHTS
        and integers_determine_estimates(measurement)
        and all(_all_answered(measurement, number) for number in range(len(plan.workload.groups)))
    )


MAX_NAME_LENGTH = 60  # characters of the attributes in a file name


def table_names(groups: Sequence[Group]) -> list[str]:
    """Return the names of the tables of all groups, which are valid as file names and in R.

    A name has the number of the group, from 1, and the names of its attributes, cut to
    `MAX_NAME_LENGTH` characters.  Other characters than ASCII letters and digits become "_".

    >>> from engine.workload import Schema, Workload
    >>> schema = Schema.from_json('{"Age group": 3, "sex": 2}')
    >>> table_names(Workload.all_ways(schema, ways=(0, 2)).groups)
    ['table1_total', 'table2_age_group_sex']
    """
    numbers = [f"table{number}" for number in range(1, len(groups) + 1)]
    texts = ["_".join(group.attributes).lower() or "total" for group in groups]
    slugs = [re.sub(r"[^a-z0-9]+", "_", text)[:MAX_NAME_LENGTH].strip("_") for text in texts]
    return [
        f"{number}_{slug}" if slug else number for number, slug in zip(numbers, slugs, strict=True)
    ]


def write_linear_form(measurement: Measurement, folder: Path, names: Sequence[str]) -> list[Path]:
    """Write the released integers in the linear form, as CSV files with an R script.

    ``names`` has the name of the table of every group.  Returns the paths of all files.
    """
    plan, files = measurement.plan, [folder / "recompute.R"]
    files[0].write_text(LINEAR_CODE, encoding="utf-8")

    def write_csv(name: str, rows: Iterable[Iterable[object]]) -> None:
        files.append(folder / name)
        with open(files[-1], "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)

    released = [
        (block, z)
        for space, block in plan.blocks.items()
        for z in measurement.answers_on_grid[space]
    ]
    rows = [
        [i, int(z), repr(block.grid), repr(block.noise)]
        for i, (block, z) in enumerate(released, start=1)
    ]
    zeros: dict[Space, Index] = {
        s: np.zeros(b.measurements, np.int64) for s, b in plan.blocks.items()
    }
    exact_part, columns = _answers(plan, zeros), list[Array]()
    for space, block in plan.blocks.items():
        # The answers are affine functions of the integers.  The weights of one integer are
        # therefore the change of all answers if the integer changes from 0 to ``step``, divided by
        # the step in counts.  A step as large as the answers makes rounding errors small.
        step = 2 ** max(
            0, math.ceil(math.log2(max(np.abs(exact_part).max(), block.grid) / block.grid))
        )
        for position in range(block.measurements):
            perturbed = zeros[space].copy()
            perturbed[position] = step
            columns.append(
                (_answers(plan, {**zeros, space: perturbed}) - exact_part) / (step * block.grid)
            )
    if plan.schema.invariants:
        rows.append([len(rows) + 1, 1, repr(1.0), repr(0.0)])
        columns.append(exact_part)
    write_csv("integers.csv", [["id", "integer", "grid", "noise"], *rows])
    parts = np.split(
        np.array(columns), np.cumsum([group.count for group in plan.workload.groups])[:-1], axis=1
    )
    ends = []
    for name, group, weights in zip(names, plan.workload.groups, parts, strict=True):
        write_csv(f"{name}_weights.csv", ([repr(float(x)) for x in row] for row in weights.T))
        end_indices = {0, group.count - 1}
        ends_sum = measurement.answer(group.attributes, sum(_query(group, i) for i in end_indices))
        ends.append([name, repr(float(ends_sum.answer)), repr(float(ends_sum.std))])
    write_csv("tables.csv", [["table", *CHECK_COLUMNS], *ends])
    return files


def _query(group: Group, index: int) -> Array:
    """Return the coefficients of query ``index`` of a group, one per cell: shape (n_1, ..., n_k)."""
    # one query of every part (query family) of the group
    part_queries = (
        np.unravel_index(index, [part.count for part in group.parts]) if group.parts else ()
    )
    tensor, axes = np.ones(()), list[int]()
    for part, query in zip(group.parts, part_queries, strict=True):
        row = part.family.rows(part.sizes, int(query), int(query) + 1).reshape(part.sizes)
        tensor = np.multiply.outer(tensor, row)
        axes = [*axes, *part.axes]
    return np.asarray(tensor.transpose(np.argsort(axes)) if axes else tensor)


def _answers(plan: Plan, integers: Mapping[Space, Index]) -> Array:
    """Return the answers to all queries, in counts, that the given released integers imply.

    ``integers`` maps the residual spaces of the blocks to integers.  Shape (queries,).
    """
    measurement = measurement_of(plan, integers, dataset="", key="", utc="", rehearsal=True)
    answers = plan.answers_from(measurement.estimates)
    assert isinstance(answers, SpaceAnswers)  # published tables need residual spaces
    groups = plan.workload.groups
    return np.concatenate(
        [apply_group(g, answers.partial_table(g.attributes), 0, g.count) for g in groups]
    )


def _all_answered(measurement: Measurement, number: int) -> bool:
    """Return whether the measurement answers every query of a group."""
    return bool(np.isfinite(measurement.plan.variances(number)).all())


MAX_TABLE_ROWS = 2_000_000  # rows of a tables package, one per query
# largest number of files in a package, not counting tables, matrices and weights
OTHER_FILES = 20
UNKNOWN = "not stated"
# columns of tables: name -> (data type, description).  Descriptions are part of the files, which
# `verify_package` compares, so they must not change within a format.
COLUMNS = {
    "query_id": ("integer", "number of the query in the whole release, from 0"),
    "query": ("string", "the query in words"),
    "estimate": (
        "number",
        "unbiased noisy count; it may be negative, and is the one to add up, test and model with",
    ),
    "std": ("number", "standard error of the estimate, exact"),
    "low": ("number", "lower end of the interval of the estimate"),
    "high": ("number", "upper end of the interval of the estimate"),
    "published": (
        "number",
        "published count: not negative, consistent with other tables, biased; empty if suppressed",
    ),
    "error": (
        "number",
        "root mean squared error to be expected of the published count, from a bootstrap",
    ),
    "published_low": ("number", "lower end of the approximate interval of the published count"),
    "published_high": ("number", "upper end of the approximate interval of the published count"),
    "flag": (
        "string",
        (
            "publishable, doubtful or suppressed, for readers of single numbers; not a measure of"
            " privacy"
        ),
    ),
    "reason": (
        "string",
        "why: " + "; ".join(f"{code or 'empty'}: {words}" for code, words in REASONS.items()),
    ),
    "measured": (
        "number",
        "how much of the published count was measured, from 0 to 1; the rest follows from smaller"
        " tables",
    ),
}

# descriptions that replace those in `COLUMNS` for tables of fit="none"
UNFITTED_COLUMNS = {
    "published": (
        "number",
        "published count: unbiased, so it may be negative; consistent with other tables, and 0 in"
        " impossible cells; empty if suppressed",
    ),
}


def columns_of(fit: str) -> dict[str, tuple[str, str]]:
    """Return data type and description of each column of the tables; ``fit`` is one of `FITS`."""
    return COLUMNS | (UNFITTED_COLUMNS if fit == "none" else {})


def write_tables(
    uncertainty: Uncertainty,
    path: str | os.PathLike[str],
    *,
    rule: QualityRule | None = None,
    confidence: float = 0.95,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write published tables with unbiased answers, errors and flags as one zip of text files.

    The module docstring lists the files.

    Guarantee: the package depends on the records only through released answers.  It is written
    atomically; an earlier file is replaced only with ``overwrite``.

    Raises
    ------
    LimitExceeded : there are too many rows or files, see `check_size`.
    PlanError : the confidence level is not between 0 and 1, or the path must not be written, see
        `check_target`.
    Cancelled : ``progress`` returned False; partial files are removed.
    """
    check_size(uncertainty.published.measurement.plan.workload)
    report_progress = progress_reporter(
        progress, "Writing the tables was cancelled; no file was left behind."
    )
    with (
        new_file(path, overwrite=overwrite) as partial,
        tempfile.TemporaryDirectory(dir=partial.parent) as temporary,
    ):
        members = tables_files(
            uncertainty,
            Path(temporary),
            rule=rule or QualityRule(),
            confidence=confidence,
            report_progress=report_progress,
        )
        report_progress(0.9, "Compressing files")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for member in members:
                archive.write(member, member.name)
    report_progress(1.0, "The file is complete")
    return Path(path)


def check_size(workload: Workload, *, other_files: int = 0) -> None:
    """Raise LimitExceeded if a package of tables would have too many rows or files.

    ``other_files`` is the number of files of the release package that contains the tables package.
    """
    if workload.queries > MAX_TABLE_ROWS:
        raise LimitExceeded(
            f"The package would have {workload.queries:,} rows, but at most {MAX_TABLE_ROWS:,} are"
            " allowed. Plan fewer queries, or write the tables as Parquet, which has no such"
            " limit."
        )
    n_tables = sum(1 + _has_crosstab(group) for group in workload.groups)
    n_files = OTHER_FILES + other_files + n_tables
    if n_files > MAX_MEMBERS:
        raise LimitExceeded(
            f"The package would have {n_files:,} files, one or two per group, but at most"
            f" {MAX_MEMBERS:,} can be verified. Plan fewer groups, or write the tables as Parquet,"
            " which is one file for all groups."
        )


def tables_files(
    uncertainty: Uncertainty,
    folder: Path,
    *,
    rule: QualityRule,
    confidence: float,
    report_progress: Callable[[float, str], None] = lambda share, text: None,
) -> list[Path]:
    """Write the files of a tables package into a folder; return their paths.

    Guarantee: the files depend on the records only through released numbers.
    """
    import pyarrow.csv

    measurement = uncertainty.published.measurement
    workload = measurement.plan.workload
    files, entries, cell_tables, totals, first = [], [], [], [], 0
    names = table_names(workload.groups)
    for number, (name, group) in enumerate(zip(names, workload.groups, strict=True)):
        frame = labelled_rows(uncertainty, number, first, rule, confidence)
        first += group.count
        report_progress(0.8 * first / workload.queries, "Writing tables")
        files.append(folder / f"{name}.csv")
        text_table = csv_table(
            pa.table({c: _column(frame[c]) for c in frame}), csv_decimals(frame["std"])
        )
        pyarrow.csv.write_csv(
            text_table, files[-1], pyarrow.csv.WriteOptions(quoting_style="needed")
        )
        entries.append((name, group, text_table.column_names))
        if is_cells(group):
            counts = frame["published"].to_numpy()
            totals.append([name, *sums_of_counts(uncertainty.published, number, counts).values()])
            # Tables with unmeasured cells are left out, because these cells have no standard error
            # that the R script could recompute.
            if _all_answered(measurement, number):
                cell_tables.append((name, group.attributes))
            if _has_crosstab(group):
                files.append(folder / f"{name}_crosstab.csv")
                crossed = crosstab(workload.schema, group, frame["published"])
                if "status" in frame:
                    crossed.insert(0, REHEARSAL_MARK, "REHEARSAL", allow_duplicates=True)
                # Excel detects the encoding by the byte order mark
                files[-1].write_text(csv_text(crossed), encoding="utf-8-sig")
    how, fit = _how(uncertainty, rule, confidence), uncertainty.published.fit
    for file, text in (
        ("README.md", _readme(uncertainty, entries, confidence)),
        ("codebook.md", _codebook(workload.schema)),
        ("registry.json", json.dumps(registry(measurement, fit), indent=1, ensure_ascii=False)),
        ("tables.csv-metadata.json", json.dumps(_metadata(entries, fit), indent=1)),
        (PLAN, measurement.plan.to_json()),
        (HOW, json.dumps(how, indent=1, ensure_ascii=False)),
    ):
        files.append(folder / file)
        files[-1].write_text(text, encoding="utf-8")
    if totals:
        files.append(folder / "totals.csv")
        with open(files[-1], "w", newline="", encoding="utf-8") as stream:
            rows = ([csv_number(x) if isinstance(x, float) else x for x in row] for row in totals)
            csv.writer(stream).writerows([["table", *SUMS], *rows])
    files += write_measurements(measurement, folder)
    if is_open(measurement):
        files += write_open_form(measurement, folder, cell_tables)
    elif is_linear(measurement):
        files += write_linear_form(measurement, folder, names)
    return files


# columns of totals.csv: name -> description
SUMS = {
    "counts": "number of published counts",
    "suppressed": "number of them that are suppressed, so that their cells are empty",
    "sum_of_shown": "sum of the counts that are shown",
    "sum_with_suppressed": "sum of all published counts, which is the total of the table",
}


SUMS_NOTE = (
    "Suppressed counts are empty in the tables, so the other counts of a table can sum to less than"
    " its total. `totals.csv` has for each table of counts:"
)


def sums_of_counts(published: Published, number: int, shown: Array) -> dict[str, float]:
    """Return one row of totals.csv: numbers and sums of the counts of a table, by keys of `SUMS`.

    Parameters
    ----------
    number : position of the group in the workload; its queries are cells.
    shown : published counts of the group; suppressed counts are NaN.
    """
    return {
        "counts": len(shown),
        "suppressed": int(np.isnan(shown).sum()),
        "sum_of_shown": float(np.nansum(shown)),
        "sum_with_suppressed": float(published.values(number).sum()),
    }


def sums_text(sums: Mapping[str, float]) -> str:
    """Return a sentence with the sums of a table without and with its suppressed counts.

    The result is empty if no count is suppressed.

    >>> sums_text({"counts": 11, "suppressed": 1, "sum_of_shown": 1955, "sum_with_suppressed": 1980})
    '1 of 11 counts is suppressed: the counts shown sum to 1,955, all counts to 1,980.'
    """
    if not sums["suppressed"]:
        return ""
    shown, total = (
        f"{sums[name]:,.1f}".removesuffix(".0") for name in ("sum_of_shown", "sum_with_suppressed")
    )
    verb = "is" if sums["suppressed"] == 1 else "are"
    return (
        f"{sums['suppressed']:,} of {pluralize(int(sums['counts']), 'count')} {verb} suppressed: the"
        f" counts shown sum to {shown}, all counts to {total}."
    )


def _how(errors: Uncertainty, rule: QualityRule, confidence: float) -> dict[str, object]:
    """Return the content of how.json: the options with which the tables were computed and written.

    Plan, released integers and these options determine all files of the package.
    """
    published = errors.published
    measurement = published.measurement
    options = {
        "format": TABLES_FORMAT,
        "fit": published.fit,
        "integer": published.people is not None,
    }
    options |= {"draws": len(errors.errors), "rule": asdict(rule), "confidence": confidence}
    names = ("dataset", "key", "utc", "rehearsal")
    return options | {name: getattr(measurement, name) for name in names}


def is_cells(group: Group) -> bool:
    """Return whether the queries of a group are the single cells of its table."""
    return all(part.family.name == "marginal" for part in group.parts)


def _has_crosstab(group: Group) -> bool:
    return is_cells(group) and len(group.attributes) == 2


def labelled_rows(
    uncertainty: Uncertainty,
    number: int,
    first: int,
    rule: QualityRule | None,
    confidence: float,
) -> pd.DataFrame:
    """Return the table of a group with one row per query and the columns `COLUMNS`.

    If the queries are cells, there are also columns with the code and the label of each attribute.
    The table of a rehearsal has a first column ``status`` with the text REHEARSAL.

    Parameters
    ----------
    number : position of the group in the workload.
    first : number of the first query of the group in the whole release.
    """
    measurement = uncertainty.published.measurement
    group = measurement.plan.workload.groups[number]
    schema = measurement.plan.schema
    frame = uncertainty.answers(number, confidence=confidence, rule=rule).rename(
        columns={"answer": "estimate"}
    )
    texts = query_texts(measurement.plan, number, 0, group.count, for_people=True)
    frame["query"] = texts.to_pylist()
    frame.insert(0, "query_id", np.arange(first, first + group.count))
    frame = frame[list(COLUMNS)]
    if measurement.rehearsal:
        frame.insert(0, "status", "REHEARSAL")
    if is_cells(group) and group.attributes:
        codes = np.unravel_index(np.arange(group.count), schema.sizes(group.attributes))
        position = list(frame).index("query_id") + 1
        for name, code in zip(group.attributes, codes, strict=True):
            labels = np.array(labels_of(schema[name]), dtype=object)
            frame.insert(position, f"{name}_code", code)
            frame.insert(position + 1, f"{name}_label", labels[code])
            position += 2
    return frame


def labels_of(attribute: Attribute, between: str = IN_FILES) -> list[str]:
    """Return the labels of all cells of an attribute, with bins of integers such as "0 to 9".

    ``between`` is the text between the first and the last integer of a bin.
    """
    return [cell_text(attribute, cell, between) for cell in range(attribute.size)]


def crosstab(
    schema: Schema,
    group: Group,
    numbers: npt.ArrayLike,
    *,
    between: str = IN_FILES,
    is_tall: bool = False,
) -> pd.DataFrame:
    """Return the numbers of all cells of two attributes as a cross table.

    Rows are the cells of the first attribute of the group, columns those of the second one.  Before
    them is a column of row labels, whose name has the names of both attributes, separated by a
    backslash.

    Parameters
    ----------
    numbers : one number per cell; the second attribute changes fastest.
    between : text between the first and the last integer of a bin.
    is_tall : if True, rows are the cells of the attribute that has more cells.
    """
    import pandas as pd

    rows, columns = (schema[name] for name in group.attributes)
    table = np.asarray(numbers).reshape(rows.size, columns.size)
    if is_tall and rows.size < columns.size:
        rows, columns, table = columns, rows, table.T
    frame = pd.DataFrame(table, columns=labels_of(columns, between))
    head = f"{rows.name} \\ {columns.name}"
    frame.insert(0, head, labels_of(rows, between), allow_duplicates=True)
    return frame


def _column(values: pd.Series) -> pa.Array:
    # `escape_texts` does not escape large_string, the Arrow type of string columns of pandas
    return pa.array(
        values, pa.string() if values.dtype.kind not in "if" else None, from_pandas=True
    )


# name, group and column names of every table
TableEntries = list[tuple[str, Group, list[str]]]


# texts of README.md, which must not change within a format
USE_TEXT = """
## Which number to use

To read one number, or to hand out tables: `published`. To add up, compare, test or model: `estimate`, whose
errors are exact and do not pile up as bias. The intervals of published counts come from an empirical Bayes
bootstrap: they hold on average over the cells of a table. Suppressed cells are in all sums: the rule keeps
readers from numbers that are mostly noise, while people are protected by the noise itself.
"""
UNFITTED_USE_TEXT = """
## Which number to use

`published` and `estimate` are unbiased, and may be negative. `published` is 0 in impossible cells, which the other
numbers of a table take into account; its errors are simulated. The errors of `estimate` are exact. Suppressed cells
are in all sums: the rule keeps readers from numbers that are mostly noise, while people are protected by the noise
itself.
"""
DETERMINED_TEXT = """
## Attributes that follow from others

According to the measurement, each value of the first attribute belongs to one value of the second one, possibly
with a few exceptions that the noise hides. Tables with the second attribute then follow from tables with the
first one, and the errors of published counts take this into account.
"""
OPEN_TEXT = """
`integers.csv` has the released whole numbers of every space of attributes in `spaces.csv`. Times `grid`,
through one matrix per attribute (`matrix*.csv`), they are what the space adds to the cells of a table;
what attributes it does not have share it out by `centers.csv`. Their noise is independent, of standard
deviation `noise`. `Rscript recompute.R` makes estimates and standard errors from them and compares.
"""
LINEAR_TEXT = """
The plan measures attributes jointly. `integers.csv` has its released whole numbers; times `grid` they
have independent noise of standard deviation `noise`. Row i of `table*_weights.csv` has the weights by
which they make estimate i of that table. `Rscript recompute.R` makes estimates and standard errors from
them and compares; the error of any sum follows from the sum of the weights.
"""
CHECK_TEXT = f"""
`{CHECK_COLUMN}` in `tables.csv` is the estimate of the sum of the first and the last number of a table.
The script compares it; it is not the total of the table.
"""
VERIFY_TEXT = """
With the project, `verify --package` makes every file again from `plan.json`, `measurements.npz` and the
choices in `how.json`, and compares.
"""


def _readme(uncertainty: Uncertainty, entries: TableEntries, confidence: float) -> str:
    measurement, fit = uncertainty.published.measurement, uncertainty.published.fit
    plan = measurement.plan
    title = (
        REHEARSAL_MARK if measurement.rehearsal else markdown(f"Tables of {measurement.dataset}")
    )
    lines = [f"# {title}", "", markdown(plan.schema.promise(plan.budget)), ""]
    lines += [markdown(plan.meaning), "", "## Tables", ""]
    for name, group, _ in entries:
        text = f"{group.family_text}, {set_name(group.attributes) or 'all records'}"
        lines.append(f"- {name}.csv: {markdown(text)}")
    lines += [
        "",
        "`registry.json` says what public registries of deployments ask for, as far as it is known"
        " here.",
        "",
        "## Columns",
        "",
        f"Intervals are at {confidence:.0%}. Codes and labels are in codebook.md.",
        "",
    ]
    lines += [f"- `{name}`: {words}" for name, (_, words) in columns_of(fit).items()]
    if any(is_cells(group) for _, group, _ in entries):
        lines += ["", "## Suppressed counts and sums", "", SUMS_NOTE, ""]
        lines += [f"- `{name}`: {words}" for name, words in SUMS.items()]
    lines += (UNFITTED_USE_TEXT if fit == "none" else USE_TEXT).splitlines()
    if uncertainty.determined:
        lines += [*DETERMINED_TEXT.splitlines(), ""]
        lines += [
            f"- {markdown(source)} determines {markdown(name)}"
            for name, source in uncertainty.determined.items()
        ]
    return "\n".join([*lines, "", "## Recomputing", _recomputing_text(measurement)])


def _recomputing_text(measurement: Measurement) -> str:
    """Return the last section of README.md, without its heading."""
    if is_open(measurement):
        return OPEN_TEXT + CHECK_TEXT + VERIFY_TEXT
    if is_linear(measurement):
        exact_text = ""
        if measurement.plan.schema.invariants:
            exact_text = "The last integer, 1 without noise, stands for the exact totals.\n"
        return LINEAR_TEXT + exact_text + CHECK_TEXT + VERIFY_TEXT
    return (
        "\nThe plan measures attributes jointly; the package of the release has its integers and"
        f" equations.\n{VERIFY_TEXT}"
    )


def _codebook(schema: Schema) -> str:
    lines = ["# Codebook", ""]
    for attribute in schema.attributes:
        lines += [
            f"## {markdown(attribute.name)}",
            "",
            f"{attribute.kind}, {attribute.size:,} cells",
            "",
            "| code | label |",
            "|---|---|",
        ]
        lines += [
            f"| {code} | {markdown(label)} |" for code, label in enumerate(labels_of(attribute))
        ]
        lines.append("")
    if schema.impossible:
        lines += [
            "## Impossible cells",
            "",
            "Rows that meet one of these rules were left out of every count.",
            "Published counts of cells that are impossible are exactly 0; estimates have their noise.",
            "",
        ]
        lines += [f"- {markdown_code(str(rule))}" for rule in schema.impossible]
    return "\n".join(lines)


def registry(measurement: Measurement, fit: str = FITS[0]) -> dict[str, object]:
    """Describe a release by the fields that public registries of DP deployments ask for.

    The value of a field that this project does not know is "not stated".  ``fit`` is the method of
    fitting the tables.
    """
    fitted = "consistent" if fit == "none" else "consistent and not negative"
    plan, budget = measurement.plan, measurement.plan.budget
    pure = budget.pure_epsilon
    loss: dict[str, object] = {"rho": plan.pcost / 2, "pcost": plan.pcost}
    loss["epsilon by delta"] = plan.epsilon_by_delta
    if pure is not None:
        loss["epsilon"] = pure
    unit = (
        "1 row" if budget.rows_per_person == 1 else f"all of up to {budget.rows_per_person:,} rows"
    )
    return {
        "status": REHEARSAL_MARK if measurement.rehearsal else "release",
        "deployment name": measurement.dataset or UNKNOWN,
        "data curator": UNKNOWN,
        "intended use": UNKNOWN,
        "data product": (
            f"tables of counts on {len(plan.schema):,} attributes, {plan.workload.queries:,}"
            " queries"
        ),
        "release date": measurement.utc or UNKNOWN,
        "region": UNKNOWN,
        "privacy unit": f"a person, {unit}",
        "neighbours": budget.neighbours,
        "model": "central: a curator adds the noise to exact counts",
        "flavor": (
            ("subspace " if plan.schema.invariants else "")
            + ("pure epsilon-DP" if pure is not None else "zero-concentrated DP")
        ),
        "privacy loss": loss,
        "loss of other releases of these records": UNKNOWN,
        "mechanism": (
            f"exact discrete {budget.law.capitalize()} noise on linear queries, planned by"
            f" {plan.mechanism}"
        ),
        "accounting": (
            "privacy cost of the matrix mechanism, the dearest cell, rounding and floating point"
            " charged"
        ),
        "post-processing": f"published counts are fitted to be {fitted}, from released numbers alone",
        "unprotected": ", ".join(
            filter(None, ["schema, queries, plan, noise scales", plan.schema.exact_text])
        ),
        "open source implementation": UNKNOWN,
        "justification of the loss": UNKNOWN,
    }


def _metadata(entries: TableEntries, fit: str) -> dict[str, object]:
    """Return the descriptions of all columns of all tables in the format CSV on the Web (W3C)."""
    descriptions, tables = columns_of(fit), []
    for name, group, columns in entries:
        column_entries: list[dict[str, str]] = []
        for column in columns:
            data_type, description = descriptions.get(column, ("string", "label"))
            if column.endswith("_code") and column not in COLUMNS:
                data_type, description = "integer", "code of the cell; see codebook.md"
            column_entries.append(
                {
                    "name": f"c{len(column_entries) + 1}",
                    "titles": column,
                    "datatype": data_type,
                    "dc:description": description,
                }
            )
        title = set_name(group.attributes)
        tables.append(
            {"url": f"{name}.csv", "dc:title": title, "tableSchema": {"columns": column_entries}}
        )
    return {"@context": "http://www.w3.org/ns/csvw", "tables": tables}


MAX_WORKBOOK_ROWS = 250_000  # a spreadsheet needs more than a minute to open more rows
MAX_SHEET_COLUMNS = 16_000  # Excel allows 16,384 columns
MAX_CELL_CHARS = 32_767  # limit of Excel
# widths of columns in characters
MAX_COLUMN_CHARS, MIN_COLUMN_CHARS, NUMBER_CHARS, COVER_CHARS = 60, 10, 14, 100
LINE_POINTS = 15  # height of a line of text in points
MAX_HEAD_LINES = 6
# columns of the tables in a workbook, in this order: name in `COLUMNS` -> heading
SHOWN = {
    "published": "published count",
    "published_low": "lower end",
    "published_high": "upper end",
    "error": "error to be expected",
    "flag": "flag",
    "reason": "reason",
    "measured": "share measured",
    "estimate": "unbiased estimate",
    "std": "standard error",
    "low": "lower end of the estimate",
    "high": "upper end of the estimate",
}
# options of XlsxWriter: write texts as strings, never as formulas, links or numbers
PLAIN = {
    "constant_memory": True,
    "strings_to_formulas": False,
    "strings_to_urls": False,
    "strings_to_numbers": False,
}
A4 = 9  # number of this paper size in Excel
# creation date of workbooks of rehearsals, which have no release date; it is constant, so that
# equal arguments produce equal bytes
UNDATED = datetime(2000, 1, 1, tzinfo=UTC)


def write_workbook(
    uncertainty: Uncertainty,
    path: str | os.PathLike[str],
    *,
    rule: QualityRule | None = None,
    confidence: float = 0.95,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write published tables with errors, flags and unbiased answers as a workbook (.xlsx).

    Guarantee: the workbook depends on the records only through released answers, and the same
    arguments produce the same bytes.  It is written atomically; an earlier file is replaced only
    with ``overwrite``.

    Raises
    ------
    LimitExceeded : more than 250,000 queries; `write_tables` and `write_published` accept more.
    PlanError : the confidence level is not between 0 and 1, or the path must not be written, see
        `check_target`.
    Cancelled : ``progress`` returned False; partial files are removed.
    """
    workload = uncertainty.published.measurement.plan.workload
    if workload.queries > MAX_WORKBOOK_ROWS:
        raise LimitExceeded(
            f"The workbook would have {workload.queries:,} rows, but at most {MAX_WORKBOOK_ROWS:,}"
            " are allowed. Plan fewer queries, or write the tables as zip or Parquet."
        )
    report_progress = progress_reporter(
        progress, "Writing the workbook was cancelled; no file was left behind."
    )
    with (
        new_file(path, overwrite=overwrite) as partial,
        tempfile.TemporaryDirectory(dir=partial.parent) as temporary,
    ):
        book = _WorkbookWriter(uncertainty, partial, temporary, rule or QualityRule(), confidence)
        try:
            book.cover()
            book.contents()
            n_written = 0
            for number, group in enumerate(workload.groups):
                book.table(number, n_written)
                n_written += group.count
                report_progress(0.9 * n_written / workload.queries, "Writing sheets")
            book.codebook()
        finally:
            book.close()
        report_progress(1.0, "The file is complete")
    return Path(path)


class _WorkbookWriter:
    """Writer of the sheets of a workbook; call its methods in the order of the sheets."""

    def __init__(
        self, errors: Uncertainty, path: Path, temporary: str, rule: QualityRule, confidence: float
    ) -> None:
        import xlsxwriter

        self.errors, self.rule, self.confidence = errors, rule, confidence
        self.measurement = errors.published.measurement
        self.schema = self.measurement.plan.schema
        self.title = f"Tables of {self.measurement.dataset or 'records'}"
        self.book = xlsxwriter.Workbook(str(path), {**PLAIN, "tmpdir": temporary})
        utc = self.measurement.utc
        self.book.set_properties(
            {
                "title": self.title,
                "comments": REHEARSAL_MARK if self.measurement.rehearsal else "",
                "created": datetime.fromisoformat(utc) if utc else UNDATED,
            }
        )
        # `check_target` recognizes workbooks of this project by this property
        self.book.set_custom_property("plan_hash", self.measurement.plan.hash, "text")
        self.bold = self.book.add_format({"bold": True})
        head = {"bold": True, "text_wrap": True, "valign": "bottom", "bottom": 1}
        self.head, self.head_right = (
            self.book.add_format(head),
            self.book.add_format(head | {"align": "right"}),
        )
        self.head_indented = self.book.add_format(head | {"align": "left", "indent": 1})
        # indented, because the preceding column may have right-aligned numbers
        self.indented = self.book.add_format({"indent": 1})
        self.wrapped = self.book.add_format({"text_wrap": True, "valign": "top"})
        self.percent_format = self.book.add_format({"num_format": "0%"})
        self.integer_format = self.book.add_format({"num_format": "#,##0"})
        self.decimal_format = self.book.add_format({"num_format": "#,##0.0"})

    def close(self) -> None:
        """Finish the file."""
        self.book.close()

    def _sheet(self, name: str, lines: Sequence[str]) -> tuple[Any, int]:
        """Add a sheet with ``lines`` of text at the top; return the sheet and its first free row.

        The sheets of a rehearsal have `REHEARSAL_MARK` as their first line.
        """
        sheet = self.book.add_worksheet(name)
        mark = [REHEARSAL_MARK] if self.measurement.rehearsal else []
        sheet.set_landscape()
        sheet.set_paper(A4)
        # print one page wide and any number of pages long
        sheet.fit_to_pages(1, 0)
        for row, line in enumerate([*mark, *lines]):
            sheet.write_string(
                row, 0, line[:MAX_CELL_CHARS], self.bold if row <= len(mark) else None
            )
        return sheet, len(mark) + len(lines)

    def cover(self) -> None:
        """Write the cover: guarantee, use of the numbers, and columns of the tables."""
        sheet, row = self._sheet("Cover", [self.title])
        sheet.set_column(0, 0, COVER_CHARS)
        fit = self.errors.published.fit
        notes = _notes(self.measurement, fit, self.confidence)
        for line in (*notes, "", *_columns(self.schema.names, fit)):
            # wrapped lines need an explicit row height
            sheet.set_row(row, LINE_POINTS * max(1, math.ceil(len(line) / COVER_CHARS)))
            sheet.write_string(row, 0, line, self.wrapped)
            row += 1

    def contents(self) -> None:
        """Write the list of tables, with the share of numbers with each flag."""
        shares = self.errors.summary(self.rule)
        sheet, row = self._sheet("Contents", [f"{self.title}: contents"])
        names = [
            "table",
            "attributes",
            "queries",
            "numbers",
            "publishable",
            "doubtful",
            "suppressed",
        ]
        widths = [10, 50, 30, 12, 12, 12, 12]
        are_texts = [True] * 3 + [False] * 4  # name, attributes and queries are texts
        self._heads(sheet, row, names, widths, are_texts)
        for number, (group, share) in enumerate(
            zip(self.measurement.plan.workload.groups, shares.to_dict("records"), strict=True)
        ):
            row += 1
            name = _name(number)
            sheet.write_url(row, 0, f"internal:'{name}'!A1", string=name)
            sheet.write_string(
                row,
                1,
                set_name(group.attributes)[:MAX_CELL_CHARS],
                self.indented,
            )
            sheet.write_string(row, 2, group.family_text[:MAX_CELL_CHARS], self.indented)
            sheet.write_number(row, 3, group.count, self.integer_format)
            for column, word in enumerate(names[4:], 4):
                sheet.write_number(row, column, share[word], self.percent_format)

    def table(self, number: int, first: int) -> None:
        """Write the sheet of group ``number``, with one row per query.

        If the queries are the cells of two attributes, `_crosstab` writes a second sheet.
        ``first`` is the number of the group's first query in the whole release.
        """
        group = self.measurement.plan.workload.groups[number]
        frame = labelled_rows(self.errors, number, first, self.rule, self.confidence)
        labels = [f"{a}_label" for a in group.attributes] if is_cells(group) else []
        label_columns = labels or ["query"]
        shown = frame[[*label_columns, *SHOWN]].assign(
            reason=[REASONS[r] if r else "" for r in frame["reason"].fillna("")]
        )
        label_headings = group.attributes if labels else label_columns
        # `added_columns` renames a column that has the name of an attribute.
        headings = [*label_headings, *added_columns(SHOWN.values(), label_headings).values()]
        lines = _heading(number, group, self.confidence)
        if is_cells(group):
            counts = frame["published"].to_numpy()
            text = sums_text(sums_of_counts(self.errors.published, number, counts))
            lines += [text] if text else []
        sheet, row = self._sheet(_name(number), lines)
        sheet.write_url(row, 0, "internal:'Contents'!A1", string="Contents")
        self._body(sheet, row + 1, shown, headings, counts={"published"})
        if is_cells(group) and len(group.attributes) == 2:
            self._crosstab(number, frame)

    def _crosstab(self, number: int, frame: pd.DataFrame) -> None:
        """Write the published counts of group ``number`` as a crosstab, if Excel has enough columns.

        ``frame`` is the result of `labelled_rows` for the group.
        """
        group = self.measurement.plan.workload.groups[number]
        crossed = crosstab(self.schema, group, frame["published"])
        if crossed.shape[1] > MAX_SHEET_COLUMNS:
            return
        down, across = group.attributes
        title = (
            f"{_name(number)}: published counts, {down} down, {across} across; what is"
            " suppressed is empty"
        )
        sheet, row = self._sheet(f"{_name(number)} crossed", [title])
        self._body(sheet, row, crossed, [str(c) for c in crossed], counts=set(map(str, crossed)))

    def codebook(self) -> None:
        """Write the labels of every attribute."""
        sheet, row = self._sheet("Codebook", ["Codebook: the cells of every attribute"])
        self._heads(sheet, row, ["attribute", "code", "label"], [30, 10, 60], [True, False, True])
        for attribute in self.schema.attributes:
            for code, label in enumerate(labels_of(attribute)):
                row += 1
                sheet.write_string(row, 0, attribute.name)
                sheet.write_number(row, 1, code)
                sheet.write_string(row, 2, label, self.indented)

    def _heads(
        self,
        sheet: Any,
        row: int,
        names: Sequence[str],
        widths: Sequence[int],
        are_texts: Sequence[bool],
    ) -> None:
        """Write column headings into a row that stays visible and is repeated on printed pages.

        ``are_texts`` has one entry per column: whether the column contains text.  The headings of
        columns of numbers are right-aligned.
        """
        # Headings are bold and therefore about 1.2 times as wide as other texts.
        lines = max(
            math.ceil(1.2 * len(name) / width) for name, width in zip(names, widths, strict=True)
        )
        sheet.set_row(row, LINE_POINTS * min(lines, MAX_HEAD_LINES))
        for column, (name, width, is_text) in enumerate(zip(names, widths, are_texts, strict=True)):
            sheet.set_column(column, column, width)
            style = self.head_indented if column else self.head
            if not is_text:
                style = self.head_right
            sheet.write_string(row, column, name[:MAX_CELL_CHARS], style)
        sheet.freeze_panes(row + 1, 0)
        sheet.repeat_rows(row)

    def _body(
        self, sheet: Any, row: int, frame: pd.DataFrame, names: Sequence[str], counts: set[str]
    ) -> None:
        """Write the table ``frame`` from ``row`` on, with a filter.

        ``names`` are the headings of the columns, ``counts`` the columns of ``frame`` with
        published counts.  NaN becomes an empty cell, and an infinite number the text "inf" or
        "-inf".
        """
        columns = [frame.iloc[:, k] for k in range(frame.shape[1])]
        are_texts = [column.dtype.kind not in "if" for column in columns]
        widths = []
        for column, is_text in zip(columns, are_texts, strict=True):
            width = 2 + max(map(len, column), default=0) if is_text else NUMBER_CHARS
            widths.append(min(MAX_COLUMN_CHARS, max(MIN_COLUMN_CHARS, width)))
        self._heads(sheet, row, names, widths, are_texts)
        formats = [self._number_format(name, is_count=name in counts) for name in map(str, frame)]
        table_rows = zip(*(column.tolist() for column in columns), strict=True)
        for sheet_row, values in enumerate(table_rows, start=row + 1):
            for k, (value, is_text) in enumerate(zip(values, are_texts, strict=True)):
                if is_text:
                    sheet.write_string(
                        sheet_row, k, value[:MAX_CELL_CHARS], self.indented if k else None
                    )
                elif math.isinf(value):
                    # Excel has no infinite numbers; the standard error of an answer without
                    # measurement is infinite
                    sheet.write_string(sheet_row, k, str(value))
                elif not math.isnan(value):
                    sheet.write_number(sheet_row, k, value, formats[k])
        if len(frame):
            sheet.autofilter(row, 0, row + len(frame), len(names) - 1)

    def _number_format(self, name: str, *, is_count: bool) -> Any:
        """Return the format of a column of numbers; counts of integer tables have no decimals."""
        if is_count:
            are_integers = self.errors.published.people is not None
            return self.integer_format if are_integers else self.decimal_format
        return self.percent_format if name == "measured" else self.decimal_format


def _name(number: int) -> str:
    return f"Table {number + 1}"


def _heading(number: int, group: Group, confidence: float) -> list[str]:
    names = set_name(group.attributes)
    title = f"{_name(number)}: {names}" + (
        "" if is_cells(group) else f", {group.family_text} queries"
    )
    return [
        title,
        (
            f"Counts; lower and upper ends of intervals at {confidence:.0%}. A suppressed count is"
            " empty."
        ),
    ]


def _notes(measurement: Measurement, fit: str, confidence: float) -> list[str]:
    """Return the paragraphs of the cover: the guarantee and the use of the numbers."""
    plan = measurement.plan
    published = (
        "It is unbiased, so it may be negative, and all tables agree."
        if fit == "none"
        else "It is not negative, and all tables agree; it is biased."
    )
    return [
        plan.schema.promise(plan.budget),
        deltas_as_powers(plan.meaning),
        "",
        (
            f"To read one number, or to hand out tables: the published count. {published} To add up,"
            " compare, test or model: the unbiased estimate, whose standard error is exact."
        ),
        (
            f"Intervals are at {confidence:.0%}; those of published counts hold on average over the"
            " cells of a table."
        ),
        (
            "A count is flagged publishable, doubtful or suppressed for readers of single numbers."
            " People are protected by the noise, not by the flags; suppressed cells are in all"
            " sums."
        ),
    ]


def _columns(attributes: Sequence[str], fit: str) -> list[str]:
    """Return the paragraphs of the cover that describe the columns of the tables."""
    words = {name: description for name, (_, description) in columns_of(fit).items()} | {
        "reason": "why it is not publishable"
    }
    added = added_columns(SHOWN.values(), attributes)
    rule = [RULE] if any(name != column for name, column in added.items()) else []
    return [
        "Columns of the tables",
        *rule,
        *(f"{shown}: {words[name]}" for name, shown in SHOWN.items()),
    ]
