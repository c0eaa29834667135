"""Answers of plans that measure attributes jointly as plain CSV: every answer a weighted sum of released integers.

With z the integers, g their grids and s the standard deviations of their noise, all in counts, and W_t the weights of a
table, one row a query and one column an integer, the answers of a table are W_t (g z), and the covariance of any two is
that of independent noises,  W_t diag(s^2) W_t'^T.

Beside exact totals the last integer is 1, with grid 1 and noise 0: its weights are what they add to answers.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from engine.arrays import Array, Index
from engine.plans import Plan, SpaceAnswers
from engine.publish.measurements import in_one_step
from engine.release import Measurement, apply_group, measured
from engine.spaces import Space
from engine.workload import Group

MOST_INTEGERS, MOST_WEIGHTS = 2_000, 2_000_000
SCRIPT = r"""# Recomputes estimates, standard errors and the error of a sum from the released integers, in base R.
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
    """Return whether the integers are those of the plan, and all weights are few enough to be written."""
    plan = measurement.plan
    rows = sum(block.measurements for block in plan.blocks.values())
    return (
        rows <= MOST_INTEGERS
        and rows * plan.workload.queries <= MOST_WEIGHTS
        and in_one_step(measurement)
        and all(_all_answered(measurement, number) for number in range(len(plan.workload.groups)))
    )


def write_linear_form(measurement: Measurement, folder: Path) -> list[Path]:
    """Write integers, the weights of every answer, and the script; return the files. A table a group, from 1."""
    plan, made = measurement.plan, [folder / "recompute.R"]
    made[0].write_text(SCRIPT, encoding="utf-8")

    def written(name: str, rows: Iterable[Iterable[object]]) -> None:
        made.append(folder / name)
        with open(made[-1], "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)

    blocks = [(block, z) for space, block in plan.blocks.items() for z in measurement.answers_on_grid[space]]
    rows = [[i, int(z), repr(block.grid), repr(block.noise)] for i, (block, z) in enumerate(blocks, start=1)]
    nothing: dict[Space, Index] = {s: np.zeros(b.measurements, np.int64) for s, b in plan.blocks.items()}
    known, columns = _answers(plan, nothing), list[Array]()
    for space, block in plan.blocks.items():
        # by steps as large as what is known, so that no digit is lost beside it
        step = 2 ** max(0, math.ceil(math.log2(max(np.abs(known).max(), block.grid) / block.grid)))
        for position in range(block.measurements):
            one = nothing[space].copy()
            one[position] = step
            columns.append((_answers(plan, {**nothing, space: one}) - known) / (step * block.grid))
    if plan.schema.invariants:
        rows.append([len(rows) + 1, 1, repr(1.0), repr(0.0)])
        columns.append(known)
    written("integers.csv", [["id", "integer", "grid", "noise"], *rows])
    parts = np.split(np.array(columns), np.cumsum([group.count for group in plan.workload.groups])[:-1], axis=1)
    ends = []
    for number, (group, weights) in enumerate(zip(plan.workload.groups, parts, strict=True), start=1):
        written(f"table{number}_weights.csv", ([repr(float(x)) for x in row] for row in weights.T))
        places = {0, group.count - 1}
        both = measurement.answer(group.attributes, sum(_query(group, i) for i in places))
        ends.append([f"table{number}", repr(float(both.answer)), repr(float(both.std))])
    written("tables.csv", [["table", "sum", "sum_std"], *ends])
    return made


def _query(group: Group, index: int) -> Array:
    """Return one query of a group as a table on its attributes, shape (n_1, ..., n_k)."""
    places = np.unravel_index(index, [part.count for part in group.parts]) if group.parts else ()
    out, axes = np.ones(()), list[int]()
    for part, place in zip(group.parts, places, strict=True):
        row = part.family.rows(part.sizes, int(place), int(place) + 1).reshape(part.sizes)
        out, axes = np.multiply.outer(out, row), [*axes, *part.axes]
    return np.asarray(out.transpose(np.argsort(axes)) if axes else out)


def _answers(plan: Plan, integers: Mapping[Space, Index]) -> Array:
    """Return the answers to all queries, shape (queries,), had these integers been measured."""
    made = measured(plan, integers, dataset="", key="", utc="", rehearsal=True)
    said = plan.answers_from(made.estimates)
    assert isinstance(said, SpaceAnswers)  # what published tables are made of
    groups = plan.workload.groups
    return np.concatenate([apply_group(g, said.known_table(g.attributes), 0, g.count) for g in groups])


def _all_answered(measurement: Measurement, number: int) -> bool:
    return bool(np.isfinite(measurement.plan.variances(number)).all())
