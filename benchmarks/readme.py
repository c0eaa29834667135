"""README of the benchmarks: every table of results, copied from the files beside the scripts.

python -m benchmarks.readme --write    after tables were written again
"""

from __future__ import annotations

from pathlib import Path

from benchmarks import options
from benchmarks.__main__ import TABLES

FOLDER = Path(__file__).parent
MAX_LINES = 30  # of one table; longer ones end with a link to their file
MORE = {
    "forecasts": "forecasts of seconds and memory of planning, and measured values",
    "pages": "the app: CPU seconds of pages with hundreds of attributes",
    "published_pairs": (
        "published pairs of ten real tables, compared with simple methods and mixtures of products"
    ),
    "published_rivals": (
        "published pairs of three real tables, compared with AIM, MST, mixtures and residuals; "
        "AIM has the smallest errors on two of them at epsilon 1, and MST beats ours on one of these"
    ),
    "screens": "the app: words, widgets, expanders and height of every page",
}
HEAD = """# Benchmarks

Tables of results, as the scripts in this folder wrote them. `.venv/bin/python -m benchmarks` runs all of
them (minutes to hours), `.venv/bin/python -m benchmarks.published` one. `--write` replaces the file of a
table, and `.venv/bin/python -m benchmarks.readme --write` this page.

Errors are root mean squared errors in counts at privacy cost 1, unless a table says otherwise. *bound* is
a proved lower bound and *gap* is error / bound - 1. *ratio* is our value over the published one. *s* is
seconds and *MB* is peak memory on two cores.

QuerySmasher is described in arXiv:2604.00868. Adult, CPS and Loans are schemas of the sizes used in the
papers (`demo_data/README.md`). `[50]^40` denotes 40 attributes with 50 cells each.
"""


def section(name: str, title: str) -> str:
    """Return the section of one table, cut after `MAX_LINES` lines.

    Without a file, the section has only the command.  A file with a command as its last line was
    written by this command.
    """
    file = FOLDER / f"{name}.txt"
    lines = (
        [line.rstrip() for line in file.read_text(encoding="utf-8").splitlines()]
        if file.exists()
        else []
    )
    has_command = bool(lines) and lines[-1].startswith("python -m ")
    command = lines.pop() if has_command else f"python -m benchmarks.{name}"
    text = f"\n## {name}\n\n{title[0].upper()}{title[1:]}. `{command}`\n"
    if not lines:
        return text
    if len(lines) <= MAX_LINES:
        return text + "\n```text\n" + "\n".join(lines) + "\n```\n"
    shown = "\n".join(lines[:MAX_LINES])
    return (
        f"{text}\n```text\n{shown}\n```\n\nThe first {MAX_LINES} of {len(lines)} lines of"
        f" [{file.name}]({file.name}).\n"
    )


def readme() -> str:
    """Return the text of `benchmarks/README.md`."""
    return HEAD + "".join(section(name, title) for name, title in (TABLES | MORE).items())


def main() -> None:
    write = options(__file__, __doc__ or "").parse_args().write
    text = readme()
    if write:
        (FOLDER / "README.md").write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
