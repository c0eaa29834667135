"""Export of the tables of figures: LaTeX that compiles, and CSV round trips."""

from __future__ import annotations

import subprocess
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine._format import LATEX, csv_text, latex_text
from engine.analysis import group_table
from engine.analysis.compare import comparison
from engine.figures import (
    SHARE_COLUMNS,
    budget_picture,
    budgets_picture,
    effort_picture,
    error_picture,
    ranking_picture,
    where_picture,
)
from engine.mechanisms import plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload

DOCUMENT = "\\documentclass{article}\n\\usepackage{booktabs,longtable}\n\\begin{document}\n%s\n\\end{document}\n"
HARD = ["50% & more_of $x$ #1", "[18, 30)", "*", "a \\input{b}", "~^", "äßéø – … “so”"]
SCHEMA = Schema(
    [Attribute.categorical("what & why_", HARD), Attribute.numeric("age ≤", [0, 18, 30, 65])]
)
WORKLOAD = Workload.all_ways(SCHEMA, (1, 2))


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    """Return tables of every exported kind, with names and labels that need escaping."""
    result: Plan = plan(WORKLOAD, Budget(pcost=1.0))
    compared = comparison(WORKLOAD, result.budget, ["querysmasher", "identity", "wff"])
    pictures = {
        "ranking": ranking_picture(compared),
        "effort": effort_picture(compared),
        "where": where_picture(compared, WORKLOAD),
        "budgets": budgets_picture(compared, result.budget),
        "errors": error_picture(result, 2),
        "spent": budget_picture(result),
    }
    signs = pd.DataFrame({"sign": [f"{sign}x{sign}" for sign in [*LATEX, *HARD]]})
    numbers = pd.DataFrame({"number": [np.inf, np.nan, -1.5, 1e-9, 1e12]})
    return {name: picture.table for name, picture in pictures.items()} | {
        "groups": group_table(result),
        "signs": signs,
        "numbers": numbers,
    }


@pytest.mark.needs("LaTeX")
def test_latex_text_of_every_table_compiles(
    tables: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    file = tmp_path / "tables.tex"
    # the table with many rows is the only one that takes more than one page
    tables = tables | {"long": pd.DataFrame({"query": range(60), "standard error": 127.634})}
    pages = [
        f"\\typeout{{{name}}}\n{latex_text(table, caption='50% & more' if name == 'long' else '')}"
        for name, table in tables.items()
    ]
    file.write_text(DOCUMENT % "\n\\clearpage\n".join(pages), encoding="utf-8")
    options = ["-halt-on-error", "-interaction=nonstopmode", "-no-shell-escape"]
    process = subprocess.run(
        ["pdflatex", *options, file.name], cwd=tmp_path, capture_output=True, check=False
    )
    log = process.stdout.decode(errors="replace")
    # the end of the log names the table that does not compile
    assert process.returncode == 0, log[-800:]
    assert f"Output written on tables.pdf ({len(tables) + 1} pages" in log
    assert file.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def lines_of_cells(text: str) -> list[str]:
    """Return the header and the rows of a table in LaTeX."""
    return [line for line in text.splitlines() if line.endswith(r" \\")]


def test_latex_text_rows_have_all_columns(tables: dict[str, pd.DataFrame]) -> None:
    for name, table in tables.items():
        header, *rows = lines_of_cells(latex_text(table))
        assert len(rows) == len(table), name
        for row in (header, *rows):
            assert row.replace(r"\&", "").count("&") == len(table.columns) - 1, row
            assert row.replace(r"\$", "").count("$") % 2 == 0, row
            assert row.isprintable(), row


def test_csv_text_has_all_columns_and_rows(tables: dict[str, pd.DataFrame]) -> None:
    for name, table in tables.items():
        csv_table = pd.read_csv(StringIO(csv_text(table)), keep_default_na=False)
        assert list(csv_table.columns) == list(map(str, table.columns)), name
        assert len(csv_table) == len(table), name


def test_latex_text_writes_percent_columns_as_percentages() -> None:
    table = pd.DataFrame({"over the bound": [0.0312, np.nan, np.inf], "RMSE": [0.5, 1e-5, 2e4]})
    _, *rows = lines_of_cells(latex_text(table, percent=SHARE_COLUMNS))
    assert rows == [r"3.12\% & 0.5 \\", r" & 0.00001 \\", r"$\infty$ & 20,000 \\"]


def test_latex_text_of_many_rows_is_a_longtable() -> None:
    table = pd.DataFrame({"query": range(41), "standard error": 127.634})
    text = latex_text(table, caption="Errors of age.", decimals={"standard error": 2})
    assert text.startswith("\\begin{longtable}{rr}\n\\caption{Errors of age.} ")
    assert "40 & 127.63 \\\\" in text
    assert text.count("query & standard error") == 2  # on the first page and on later pages
    assert "longtable" not in latex_text(table.head(40))


def test_latex_text_has_given_decimals() -> None:
    table = pd.DataFrame({"RMSE": [0.5, 1234.5678, 0.0012, 0.0, np.inf]})
    _, *rows = lines_of_cells(latex_text(table, decimals={"RMSE": 2}))
    assert rows == [rf"{cell} \\" for cell in ("0.50", "1,234.57", "0.0012", "0.00", r"$\infty$")]
