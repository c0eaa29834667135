"""The package of published tables: one zip of plain text that is used without this project.

README.md, codebook.md           in words: what was counted, what the columns mean, what the numbers are good for
table1.csv, table2.csv, ...      one row a query, one column a code and one a label of every attribute
table2_crosstab.csv, ...         published counts of two attributes as rows and columns, for spreadsheets
tables.csv-metadata.json         the same for machines, CSV on the Web (W3C)
registry.json                    what public registries of differential-privacy deployments ask for, or "not stated"
plan.json, measurements.json     the plan and its integers, and in how.json the choices: `verify` makes all of it again
recompute.R and its files        the released integers, and a script that makes estimates and standard errors of them
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.csv

from engine.errors import LimitExceeded
from engine.progress import Progress, told
from engine.publish.linear_form import is_linear, write_linear_form
from engine.publish.measurements import write_measurements
from engine.publish.open_form import is_open, write_open_form
from engine.publish.report import MARK, escaped
from engine.publish.tables import REASONS, QualityRule, Uncertainty
from engine.publish.target import new_file
from engine.release import Measurement
from engine.texts import csv_text, markdown, markdown_code, set_name
from engine.workload import Group, Schema

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 2_000_000
UNKNOWN = "not stated"
PLAN, HOW, TABLES_FORMAT = "plan.json", "how.json", "tables/1"
COLUMNS = {
    "query_id": ("integer", "number of the query in the whole release, from 0"),
    "query": ("string", "the query in words"),
    "estimate": ("number", "unbiased noisy count; it may be negative, and is the one to add up, test and model with"),
    "std": ("number", "standard error of the estimate, exact"),
    "low": ("number", "lower end of the interval of the estimate"),
    "high": ("number", "upper end of the interval of the estimate"),
    "published": ("number", "published count: not negative, consistent with other tables, biased; empty if suppressed"),
    "error": ("number", "root mean squared error to be expected of the published count, from a bootstrap"),
    "published_low": ("number", "lower end of the approximate interval of the published count"),
    "published_high": ("number", "upper end of the approximate interval of the published count"),
    "flag": ("string", "publishable, doubtful or suppressed, for readers of single numbers; not a measure of privacy"),
    "reason": ("string", "why: " + "; ".join(f"{code or 'empty'}: {words}" for code, words in REASONS.items())),
}


def write_tables(
    found: Uncertainty,
    path: str | os.PathLike[str],
    *,
    rule: QualityRule | None = None,
    confidence: float = 0.95,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write published tables with their unbiased answers, errors and flags as one zip file of plain text.

    Guarantee: nothing in it depends on the records but through released answers.  The file appears under its name only
    when it is complete; an earlier one is replaced only with ``overwrite``.

    Raises
    ------
    LimitExceeded : more than two million queries; publish from a workload of fewer.
    Cancelled : ``progress`` returned False; nothing is left behind.
    """
    measurement = found.published.measurement
    workload = measurement.plan.workload
    if workload.queries > MOST_ROWS:
        raise LimitExceeded(
            f"The package would have {workload.queries:,} rows of text, over {MOST_ROWS:,}. Publish from a workload of "
            "fewer queries; write_answers writes any number of answers."
        )
    tell = told(progress, "Writing the tables was cancelled; no file was left behind.")
    with new_file(path, overwrite=overwrite) as partial, tempfile.TemporaryDirectory(dir=partial.parent) as place:
        made = tables_files(found, Path(place), rule=rule or QualityRule(), confidence=confidence, tell=tell)
        tell(0.9, "Packing")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for member in made:
                archive.write(member, member.name)
    tell(1.0, "Packed")
    return Path(path)


def tables_files(
    found: Uncertainty,
    folder: Path,
    *,
    rule: QualityRule,
    confidence: float,
    tell: Callable[[float, str], None] = lambda share, words: None,
) -> list[Path]:
    """Write what is in the zip into a folder and return the files; a function of released numbers alone."""
    measurement = found.published.measurement
    workload = measurement.plan.workload
    made, described, cells, first = [], [], [], 0
    for number, group in enumerate(workload.groups):
        name = f"table{number + 1}"
        frame = labelled_rows(found, number, first, rule, confidence)
        first += group.count
        tell(0.8 * first / workload.queries, "Writing tables")
        made.append(folder / f"{name}.csv")
        text = escaped(pa.table({c: _column(frame[c]) for c in frame}))
        pyarrow.csv.write_csv(text, made[-1], pyarrow.csv.WriteOptions(quoting_style="needed"))
        described.append((name, group, text.column_names))
        if is_cells(group):
            cells.append((name, group.attributes))
            if len(group.attributes) == 2:
                made.append(folder / f"{name}_crosstab.csv")
                words = csv_text(crosstab(frame, group, workload.schema))
                made[-1].write_text(words, encoding="utf-8-sig")  # by the mark Excel tells the encoding
    for file, words in (
        ("README.md", _readme(measurement, described, confidence)),
        ("codebook.md", _codebook(workload.schema)),
        ("registry.json", json.dumps(registry(measurement), indent=1, ensure_ascii=False)),
        ("tables.csv-metadata.json", json.dumps(_metadata(described), indent=1)),
        (PLAN, measurement.plan.to_json()),
        (HOW, json.dumps(_how(found, rule, confidence), indent=1, ensure_ascii=False)),
    ):
        made.append(folder / file)
        made[-1].write_text(words, encoding="utf-8")
    made += write_measurements(measurement, folder)
    if is_open(measurement):
        made += write_open_form(measurement, folder, cells)
    elif is_linear(measurement):
        made += write_linear_form(measurement, folder)
    return made


def _how(found: Uncertainty, rule: QualityRule, confidence: float) -> dict[str, object]:
    """Return what the files follow from, beside the plan and the integers."""
    published = found.published
    measurement = published.measurement
    told = {"format": TABLES_FORMAT, "fit": published.fit, "integer": published.people is not None}
    told |= {"draws": len(found.errors), "rule": asdict(rule), "confidence": confidence}
    names = ("dataset", "key", "utc", "rehearsal")
    return told | {name: getattr(measurement, name) for name in names}


def is_cells(group: Group) -> bool:
    """Whether the queries of a group are the cells of its table."""
    return all(part.family.name == "marginal" for part in group.parts)


def labelled_rows(
    found: Uncertainty, number: int, first: int, rule: QualityRule | None, confidence: float
) -> pd.DataFrame:
    """Return the rows of one group, with codes and labels where its queries are cells."""
    measurement = found.published.measurement
    group, schema = measurement.plan.workload.groups[number], measurement.plan.schema
    frame = found.answers(number, confidence=confidence, rule=rule).rename(columns={"answer": "estimate"})
    frame.insert(0, "query_id", np.arange(first, first + group.count))
    frame = frame[list(COLUMNS)]
    if measurement.rehearsal:
        frame.insert(0, "status", "REHEARSAL")
    if is_cells(group) and group.attributes:
        codes = np.unravel_index(np.arange(group.count), schema.sizes(group.attributes))
        at = list(frame).index("query_id") + 1
        for name, code in zip(group.attributes, codes, strict=True):
            labels = np.array([schema[name].label(i) for i in range(schema[name].size)], dtype=object)
            frame.insert(at, f"{name}_code", code)
            frame.insert(at + 1, f"{name}_label", labels[code])
            at += 2
    return frame


def crosstab(frame: pd.DataFrame, group: Group, schema: Schema) -> pd.DataFrame:
    """Return the published counts of a pair, one row a cell of its first attribute; what is suppressed is empty."""
    import pandas as pd

    down, across = (schema[name] for name in group.attributes)
    values = frame["published"].to_numpy().reshape(down.size, across.size)
    head = f"{down.name} \\ {across.name}"
    rows = pd.DataFrame({across.label(i): values[:, i] for i in range(across.size)})
    rows.insert(0, head, [down.label(i) for i in range(down.size)], allow_duplicates=True)
    if "status" in frame:
        rows.insert(0, MARK, "REHEARSAL", allow_duplicates=True)
    return rows


def _column(values: pd.Series) -> pa.Array:
    # pandas has texts of types of its own, which what looks for formulas passes over
    return pa.array(values, pa.string() if values.dtype.kind not in "if" else None, from_pandas=True)


Described = list[tuple[str, Group, list[str]]]


def unescaped_texts(measurement: Measurement, confidence: float) -> dict[str, str]:
    """Return the texts of packages that earlier versions wrote, in which labels are raw Markdown."""
    groups = measurement.plan.workload.groups
    described: Described = [(f"table{number}", group, []) for number, group in enumerate(groups, start=1)]
    return {
        "README.md": _readme(measurement, described, confidence, raw=True),
        "codebook.md": _codebook(measurement.plan.schema, raw=True),
    }


def _readme(measurement: Measurement, described: Described, confidence: float, *, raw: bool = False) -> str:
    plan, escape = measurement.plan, str if raw else markdown
    title = MARK if measurement.rehearsal else escape(f"Tables of {measurement.dataset}")
    lines = [
        f"# {title}",
        "",
        escape(plan.schema.promise(plan.budget)),
        "",
        escape(plan.meaning),
        "",
        "## Tables",
        "",
    ]
    contents = [f"{g.family_text}, {set_name(g.attributes) or 'all records'}" for _, g, _ in described]
    lines += [f"- {name}.csv: {escape(text)}" for (name, _, _), text in zip(described, contents, strict=True)]
    lines += ["", "`registry.json` says what public registries of deployments ask for, as far as it is known here."]
    lines += ["", "## Columns", "", f"Intervals are at {confidence:.0%}. Codes and labels are in codebook.md.", ""]
    lines += [f"- `{name}`: {words}" for name, (_, words) in COLUMNS.items()]
    lines += [
        "",
        "## Which number to use",
        "",
        "To read one number, or to hand out tables: `published`. To add up, compare, test or model: `estimate`, whose",
        "errors are exact and do not pile up as bias. The intervals of published counts come from an empirical Bayes",
        "bootstrap: they hold on average over the cells of a table. Suppressed cells are in all sums: the rule keeps",
        "readers from numbers that are mostly noise, while people are protected by the noise itself.",
        "",
        "## Recomputing",
        "",
    ]
    if is_open(measurement):
        lines += [
            "`integers.csv` has the released whole numbers of every space of attributes in `spaces.csv`. Times `grid`,",
            "through one matrix per attribute (`matrix*.csv`), they are what the space adds to the cells of a table;",
            "what attributes it does not have share it out by `centers.csv`. Their noise is independent, of standard",
            "deviation `noise`. `Rscript recompute.R` makes estimates and standard errors from them and compares.",
        ]
    elif is_linear(measurement):
        lines += [
            "The plan measures attributes jointly. `integers.csv` has its released whole numbers; times `grid` they",
            "have independent noise of standard deviation `noise`. Row i of `table*_weights.csv` has the weights by",
            "which they make estimate i of that table. `Rscript recompute.R` makes estimates and standard errors from",
            "them and compares; the error of any sum follows from the sum of the weights.",
        ]
        lines += ["The last integer, 1 without noise, stands for the exact totals."] if plan.schema.invariants else []
    else:
        lines.append("The plan measures attributes jointly; the package of the release has its integers and equations.")
    lines += [
        "",
        "With the project, `verify --package` makes every file again from `plan.json`, `measurements.npz` and the",
        "choices in `how.json`, and compares.",
    ]
    return "\n".join(lines) + "\n"


def _codebook(schema: Schema, *, raw: bool = False) -> str:
    def cell(label: str) -> str:
        return label.replace("|", "\\|") if raw else markdown(label)

    lines = ["# Codebook", ""]
    for attribute in schema.attributes:
        name = attribute.name if raw else markdown(attribute.name)
        lines += [f"## {name}", "", f"{attribute.kind}, {attribute.size:,} cells", ""]
        lines += ["| code | label |", "|---|---|"]
        lines += [f"| {i} | {cell(attribute.label(i))} |" for i in range(attribute.size)]
        lines.append("")
    if schema.impossible:
        lines += ["## Impossible cells", "", "Rows that meet one of these rules were left out of every count."]
        lines += ["Published counts of cells that are impossible are exactly 0; estimates have their noise.", ""]
        lines += [f"- {f'`{rule}`' if raw else markdown_code(str(rule))}" for rule in schema.impossible]
    return "\n".join(lines)


def registry(measurement: Measurement) -> dict[str, object]:
    """Return a release in the fields that public registries of differential-privacy deployments ask for.

    What the project cannot know is "not stated", for the office to fill in.
    """
    plan, budget = measurement.plan, measurement.plan.budget
    pure = budget.pure_epsilon
    loss: dict[str, object] = {"rho": plan.pcost / 2, "pcost": plan.pcost}
    loss["epsilon by delta"] = {f"{d:g}": plan.epsilon(d) for d in (1e-5, 1e-6, 1e-9)}
    if pure is not None:
        loss["epsilon"] = pure
    unit = "1 row" if budget.rows_per_person == 1 else f"all of up to {budget.rows_per_person:,} rows"
    return {
        "status": MARK if measurement.rehearsal else "release",
        "deployment name": measurement.dataset or UNKNOWN,
        "data curator": UNKNOWN,
        "intended use": UNKNOWN,
        "data product": f"tables of counts on {len(plan.schema):,} attributes, {plan.workload.queries:,} queries",
        "release date": measurement.utc or UNKNOWN,
        "region": UNKNOWN,
        "privacy unit": f"a person, {unit}",
        "neighbours": budget.neighbours,
        "model": "central: a curator adds the noise to exact counts",
        "flavor": ("subspace " if plan.schema.invariants else "")
        + ("pure epsilon-DP" if pure is not None else "zero-concentrated DP"),
        "privacy loss": loss,
        "loss of other releases of these records": UNKNOWN,
        "mechanism": f"exact discrete {budget.law.capitalize()} noise on linear queries, planned by {plan.mechanism}",
        "accounting": "privacy cost of the matrix mechanism, the dearest cell, rounding and floating point charged",
        "post-processing": "published counts are fitted to be consistent and not negative, from released numbers alone",
        "unprotected": ", ".join(filter(None, ["schema, queries, plan, noise scales", plan.schema.exact_text])),
        "open source implementation": UNKNOWN,
        "justification of the loss": UNKNOWN,
    }


def _metadata(described: Described) -> dict[str, object]:
    """Return what the tables hold in the words of CSV on the Web."""
    tables = []
    for name, group, columns in described:
        told: list[dict[str, str]] = []
        for column in columns:
            kind, words = COLUMNS.get(column, ("string", "label"))
            if column.endswith("_code") and column not in COLUMNS:
                kind, words = "integer", "code of the cell; see codebook.md"
            told.append({"name": f"c{len(told) + 1}", "titles": column, "datatype": kind, "dc:description": words})
        told_of = set_name(group.attributes) or "all records"
        tables.append({"url": f"{name}.csv", "dc:title": told_of, "tableSchema": {"columns": told}})
    return {"@context": "http://www.w3.org/ns/csvw", "tables": tables}
