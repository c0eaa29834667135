"""Export of released integers as CSV, with an R script that recomputes all answers.

Open form: plans whose blocks are products of single attributes.  The table on attributes A, and the
covariance of two sums of its cells q and q', are

    sum over spaces B inside A of  (L_1 (x) L_2 (x) ...) z_B grid_B  (x)  centers of the other
    attributes sum over spaces B inside A of  noise_B^2  ((L L^T) (x) ...) between q and q' , summed
    over the others with centers

where z_B are the integers of a space, in the order in which its last attribute changes fastest.  A
space with public answers has the cells of its exact table as integers, grid 1 and noise 0.

Linear form: plans that measure attributes jointly.  With z the integers, g their grids, s the
standard deviations of their noise, all in counts, and W_t the weights of a table, one row per query
and one column per integer, the answers of a table are W_t (g z), and the covariance of two answers
is that of independent noise, W_t diag(s^2) W_t'^T.  If there are exact totals, the last integer is
1, with grid 1 and noise 0, and its weights are the exact part of the answers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from engine._arrays import Array, Index
from engine._format import escape_formula
from engine.plans import Block, Plan, SpaceAnswers
from engine.publish.release_package import in_one_step
from engine.release import Measurement, apply_group
from engine.release.measure import measurement_of
from engine.residuals import Space, basis, center
from engine.workload import Group

OPEN_CODE = r"""# Recomputes estimates, standard errors and the error of a sum from the released integers, in base R.
#
#   Rscript recompute.R            compares every table, and a sum of two of its cells, with what the package says
#   source("recompute.R")          then sum_of_cells(c("a", "b"), q): q an array with one entry a cell of the table

attributes <- read.csv("attributes.csv", colClasses = c("character", "character", "integer"), check.names = FALSE)
spaces <- read.csv("spaces.csv", colClasses = c("integer", "character", "character", "numeric", "numeric"))
centers <- read.csv("centers.csv", colClasses = c("character", "integer", "numeric"))
integers <- read.csv("integers.csv", colClasses = c("integer", "integer", "numeric"))
files <- read.csv("tables.csv", colClasses = "character")
apart <- function(made, told) if (told > 0) abs(made / told - 1) else abs(made)  # exact totals have no error
words <- function(text) if (nchar(text)) strsplit(text, " ", fixed = TRUE)[[1]] else character(0)
matrices <- new.env()
lift <- function(name) {
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

# What a space says of a sum of cells: the query with the centers of the attributes that the space does not have, and
# its matrices. In R the first index changes fastest: integers are laid out backwards.
asked_of <- function(ids, q, own, names) {
  for (k in seq_along(ids)) if (!(ids[k] %in% own)) q <- along(q, k, matrix(center(ids[k]), nrow = 1))
  for (k in seq_along(own)) q <- along(q, match(own[k], ids), t(lift(names[k])))
  q
}

sum_of_cells <- function(names, q) {
  ids <- attributes$id[match(names, attributes$name)]
  q <- array(q, if (length(ids)) attributes$size[match(ids, attributes$id)] else 1)
  value <- 0; variance <- 0
  for (b in seq_len(nrow(spaces))) {
    own <- words(spaces$attributes[b])
    if (!all(own %in% ids)) next
    part <- asked_of(ids, q, own, words(spaces$matrices[b]))
    z <- integers$integer[integers$space == spaces$space[b]]
    kept <- match(own, ids)
    weights <- as.vector(part)
    if (length(own)) weights <- as.vector(aperm(array(part, dim(part)[sort(kept)]), rev(rank(kept))))
    value <- value + sum(weights * z) * spaces$grid[b]
    variance <- variance + sum(weights^2) * spaces$noise[b]^2
  }
  c(estimate = value, std = sqrt(variance))
}

if (sys.nframe() == 0) {
  worst <- 0
  for (f in seq_len(nrow(files))) {
    told <- read.csv(paste0(files$table[f], ".csv"), check.names = FALSE)
    ids <- words(files$attributes[f])
    names <- attributes$name[match(ids, attributes$id)]
    sizes <- attributes$size[match(ids, attributes$id)]
    cell <- function(i) {
      q <- array(0, if (length(ids)) sizes else 1)
      at <- if (length(ids)) as.integer(told[i, paste0(names, "_code")]) + 1 else 1
      q[matrix(at, nrow = 1)] <- 1
      q
    }
    rows <- unique(round(seq(1, nrow(told), length.out = min(nrow(told), 40))))
    for (i in rows) {
      made <- sum_of_cells(names, cell(i))
      scale <- 1 + abs(told$estimate[i])
      worst <- max(worst, abs(made["estimate"] - told$estimate[i]) / scale, apart(made["std"], told$std[i]))
    }
    if (nrow(told) > 1) {
      both <- sum_of_cells(names, cell(1) + cell(nrow(told)))
      worst <- max(worst, abs(both["estimate"] - as.numeric(files$sum[f])) / (1 + abs(as.numeric(files$sum[f]))),
                   apart(both["std"], as.numeric(files$sum_std[f])))
      cat(sprintf("%s: the sum of its first and last cell is %.9g with standard error %.9g\n",
                  files$table[f], both["estimate"], both["std"]))
    }
  }
  cat(sprintf("largest relative difference %.3g\n", worst))
  quit(status = if (worst < 1e-6) 0 else 1)
}
"""


def is_open(measurement: Measurement) -> bool:
    """Return whether the open form applies: all blocks are products of single attributes."""
    plan = measurement.plan
    return (
        in_one_step(measurement)
        and all(
            block.weights is None
            and not block.union
            and plan.split.complement(space) is None
            and all(len(axes) == 1 for axes, _ in block.factors)
            for space, block in plan.blocks.items()
        )
        and all(plan.split.complement(space) is None for space in plan.schema.exact_spaces)
    )


def write_open_form(measurement: Measurement, folder: Path, tables: Iterable[tuple[str, Space]]) -> list[Path]:
    """Write the open form for tables (name, attributes); return the CSV files and the script."""
    plan = measurement.plan
    ids = {name: f"a{i + 1}" for i, name in enumerate(plan.schema.names)}
    files = [folder / "recompute.R"]
    files[0].write_text(OPEN_CODE, encoding="utf-8")

    def write_csv(name: str, head: list[str], rows: Iterable[Iterable[object]]) -> None:
        files.append(folder / name)
        with open(files[-1], "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows] if head else rows)

    lifts: dict[bytes, str] = {}
    space_rows = []
    exact = plan.schema.exact_spaces
    shares = {n: center(plan.schema[n].size, plan.split.centers.get(n)) for n in plan.schema.names}

    def matrix_names(matrices: Iterable[Array]) -> str:
        names = []
        for matrix in matrices:
            key = repr(matrix.shape).encode() + matrix.tobytes()
            if key not in lifts:
                lifts[key] = f"matrix{len(lifts) + 1}"
                write_csv(f"{lifts[key]}.csv", [], ([repr(float(x)) for x in row] for row in matrix))
            names.append(lifts[key])
        return " ".join(names)

    for number, block in enumerate(plan.blocks.values(), start=1):
        block_ids = [ids[block.attributes[axes[0]]] for axes, _ in block.factors]
        space_rows.append(
            [number, " ".join(block_ids), matrix_names(_lifts(block)), repr(block.grid), repr(block.noise)]
        )
    for number, space in enumerate(exact, start=len(space_rows) + 1):
        projections = [np.eye(len(pi)) - pi[:, None] for pi in map(shares.__getitem__, space)]
        space_rows.append([number, " ".join(ids[n] for n in space), matrix_names(projections), repr(1.0), repr(0.0)])
    write_csv("spaces.csv", ["space", "attributes", "matrices", "grid", "noise"], space_rows)
    write_csv(
        "attributes.csv",
        ["id", "name", "size"],
        ([ids[n], escape_formula(n), plan.schema[n].size] for n in plan.schema.names),
    )
    rows = ([ids[n], i, repr(float(x))] for n, pi in shares.items() for i, x in enumerate(pi))
    write_csv("centers.csv", ["attribute", "code", "center"], rows)
    answers = [measurement.answers_on_grid[space] for space in plan.blocks]
    answers += [plan.schema.exact_table(space).ravel() for space in exact]
    write_csv(
        "integers.csv",
        ["space", "position", "integer"],
        ([b, i, int(z)] for b, integers in enumerate(answers, start=1) for i, z in enumerate(integers)),
    )
    ends = ([t, " ".join(ids[n] for n in names), *_end_cells_sum(measurement, names)] for t, names in tables)
    write_csv("tables.csv", ["table", "attributes", "sum", "sum_std"], ends)
    return files


def _end_cells_sum(measurement: Measurement, names: Space) -> tuple[str, str]:
    """Return the sum of the first and last cell of a table and its standard error.

    The script recomputes both as a test of the covariance.
    """
    query = np.zeros(measurement.plan.schema.sizes(names))
    query.flat[0] = query.flat[-1] = 1.0
    answer = measurement.answer(names, query)
    return repr(float(answer.answer)), repr(float(answer.std))


def _lifts(block: Block) -> list[Array]:
    """Return one matrix per attribute, from answers to cells, shape (n, rows)."""
    return [np.asarray(basis(s.sizes[0]) @ s.pinv) for _, s in block.factors]


MOST_INTEGERS, MOST_WEIGHTS = 2_000, 2_000_000
LINEAR_CODE = r"""# Recomputes estimates, standard errors and the error of a sum from the released integers, in base R.
#
#   Rscript recompute.R            compares every table, and the sum of two of its answers, with what the package says
#   source("recompute.R")          then sum_of_answers(list(table1 = c(1, 0, -1))): one number a row of the tables named

integers <- read.csv("integers.csv", colClasses = c("integer", "numeric", "numeric", "numeric"))
files <- read.csv("tables.csv", colClasses = "character")
released <- integers$integer * integers$grid
apart <- function(made, told) abs(made - told) / pmax(told, 1e-6)  # exact totals have no error but rounding
weights <- function(table) as.matrix(read.csv(paste0(table, "_weights.csv"), header = FALSE))

# The noises of the integers are independent, so that the weights of a sum add up before they are squared.
sum_of_answers <- function(asked) {
  w <- numeric(length(released))
  for (table in names(asked)) w <- w + as.vector(asked[[table]] %*% weights(table))
  c(estimate = sum(w * released), std = sqrt(sum((w * integers$noise)^2)))
}

if (sys.nframe() == 0) {
  worst <- 0
  for (f in seq_len(nrow(files))) {
    told <- read.csv(paste0(files$table[f], ".csv"), check.names = FALSE)
    w <- weights(files$table[f])
    estimate <- as.vector(w %*% released)
    std <- sqrt(as.vector(w^2 %*% integers$noise^2))
    worst <- max(worst, abs(estimate - told$estimate) / (1 + abs(told$estimate)), apart(std, told$std))
    both <- numeric(nrow(told)); both[1] <- 1; both[nrow(told)] <- 1
    made <- sum_of_answers(setNames(list(both), files$table[f]))
    said <- as.numeric(c(files$sum[f], files$sum_std[f]))
    worst <- max(worst, abs(made["estimate"] - said[1]) / (1 + abs(said[1])), apart(made["std"], said[2]))
    cat(sprintf("%s: the sum of its first and last answer is %.9g with standard error %.9g\n",
                files$table[f], made["estimate"], made["std"]))
  }
  cat(sprintf("largest relative difference %.3g\n", worst))
  quit(status = if (worst < 1e-6) 0 else 1)
}
"""


def is_linear(measurement: Measurement) -> bool:
    """Return whether the linear form applies and its weights are few enough to be written."""
    plan = measurement.plan
    rows = sum(block.measurements for block in plan.blocks.values())
    return (
        rows <= MOST_INTEGERS
        and rows * plan.workload.queries <= MOST_WEIGHTS
        and in_one_step(measurement)
        and all(_all_answered(measurement, number) for number in range(len(plan.workload.groups)))
    )


def write_linear_form(measurement: Measurement, folder: Path) -> list[Path]:
    """Write the linear form, one table per group; return the CSV files and the script."""
    plan, files = measurement.plan, [folder / "recompute.R"]
    files[0].write_text(LINEAR_CODE, encoding="utf-8")

    def write_csv(name: str, rows: Iterable[Iterable[object]]) -> None:
        files.append(folder / name)
        with open(files[-1], "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)

    blocks = [(block, z) for space, block in plan.blocks.items() for z in measurement.answers_on_grid[space]]
    rows = [[i, int(z), repr(block.grid), repr(block.noise)] for i, (block, z) in enumerate(blocks, start=1)]
    zeros: dict[Space, Index] = {s: np.zeros(b.measurements, np.int64) for s, b in plan.blocks.items()}
    exact_part, columns = _answers(plan, zeros), list[Array]()
    for space, block in plan.blocks.items():
        # difference quotients with steps as large as the exact answers, to avoid cancellation
        step = 2 ** max(0, math.ceil(math.log2(max(np.abs(exact_part).max(), block.grid) / block.grid)))
        for position in range(block.measurements):
            perturbed = zeros[space].copy()
            perturbed[position] = step
            columns.append((_answers(plan, {**zeros, space: perturbed}) - exact_part) / (step * block.grid))
    if plan.schema.invariants:
        rows.append([len(rows) + 1, 1, repr(1.0), repr(0.0)])
        columns.append(exact_part)
    write_csv("integers.csv", [["id", "integer", "grid", "noise"], *rows])
    parts = np.split(np.array(columns), np.cumsum([group.count for group in plan.workload.groups])[:-1], axis=1)
    ends = []
    for number, (group, weights) in enumerate(zip(plan.workload.groups, parts, strict=True), start=1):
        write_csv(f"table{number}_weights.csv", ([repr(float(x)) for x in row] for row in weights.T))
        end_indices = {0, group.count - 1}
        ends_sum = measurement.answer(group.attributes, sum(_query(group, i) for i in end_indices))
        ends.append([f"table{number}", repr(float(ends_sum.answer)), repr(float(ends_sum.std))])
    write_csv("tables.csv", [["table", "sum", "sum_std"], *ends])
    return files


def _query(group: Group, index: int) -> Array:
    """Return one query of a group as a table on its attributes, shape (n_1, ..., n_k)."""
    places = np.unravel_index(index, [part.count for part in group.parts]) if group.parts else ()
    out, axes = np.ones(()), list[int]()
    for part, place in zip(group.parts, places, strict=True):
        row = part.family.rows(part.sizes, int(place), int(place) + 1).reshape(part.sizes)
        out, axes = np.multiply.outer(out, row), [*axes, *part.axes]
    return np.asarray(out.transpose(np.argsort(axes)) if axes else out)


def _answers(plan: Plan, integers: Mapping[Space, Index]) -> Array:
    """Return the answers to all queries, shape (queries,), for hypothetical integers."""
    measurement = measurement_of(plan, integers, dataset="", key="", utc="", rehearsal=True)
    answers = plan.answers_from(measurement.estimates)
    assert isinstance(answers, SpaceAnswers)  # published tables need residual spaces
    groups = plan.workload.groups
    return np.concatenate([apply_group(g, answers.partial_table(g.attributes), 0, g.count) for g in groups])


def _all_answered(measurement: Measurement, number: int) -> bool:
    return bool(np.isfinite(measurement.plan.variances(number)).all())
