"""Text forms of numbers and public names."""

from __future__ import annotations

import ast
import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import (
    ROUND_CEILING,
    ROUND_FLOOR,
    ROUND_HALF_EVEN,
    ROUND_HALF_UP,
    Context,
    Decimal,
)
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    Frame = pd.DataFrame  # for annotations in modules that do not import pandas


SMALLEST_COST = 1e-7  # smaller privacy parameters are written as "less than 0.0000001"
SMALLEST_ERROR = 1e-7  # smaller errors and estimates are written as "less than 0.0000001"
MAX_NAME = 200  # characters of a name that the search for similar names compares
GAP_COLUMNS = ("gap", "over the bound")  # columns of gaps to a lower bound, which are rounded up
DELIMITERS = ",;\t|"
MAX_HEADER = 2**16  # characters of a CSV text that are searched for the header
SEPARATOR_LINE = re.compile('\ufeff?"?sep=([^"\\r\\n])"?(?:\\r\\n|\\r|\\n)', re.IGNORECASE)
# names of Python arguments that occur in error messages without a following "="
BARE_ARGUMENTS = (
    "SheetFile",
    "count_column",
    "doubtful_cv",
    "max_records",
    "memory_limit",
    "on_changed",
    "on_refused",
    "rows_per_person",
    "split_by_person",
    "suppressed_cv",
    "time_limit",
)
_QUOTED = r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\""
# a Python argument in an error message: name=, name=value, or one of BARE_ARGUMENTS.  Arguments in
# quotes or inside the parentheses of a call do not match.
ARGUMENT = re.compile(
    rf"(?<![\w.'\"`/-])(?<!\w\()(?:([a-z][a-z_]*)=({_QUOTED}|\[(?:{_QUOTED}|[^\]'\"])*\]|\w+(?:\.\d+)?)?"
    rf"|({'|'.join(BARE_ARGUMENTS)}))(?![\w='\"])"
)
# first characters of a text that a spreadsheet evaluates as a formula
FORMULA = ("=", "+", "-", "@", "\t", "\r")
DELTA = re.compile(r"\bdelta (\d+(?:\.\d+)?e-\d+)")
MARKDOWN = re.compile(r"([\\`*\[\]<>|&])")
MARKDOWN_ADDRESS = re.compile(r"(\w)(:(?=//)|@|(?<=\bwww)\.)", re.IGNORECASE)


def quote_public(value: object) -> str:
    """Return the text of a value in an error message, which must not contain private data.

    A string is quoted, with escapes, and shortened to 60 characters.  Of any other value only the
    name of its type is returned.

    >>> quote_public("tab\\t")
    "'tab\\\\t'"
    """
    text = repr(value[:60]) if isinstance(value, str) else type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."


def csv_start(text: str, *, preferred: str = "") -> tuple[str, str]:
    """Remove a first line such as ``sep=;`` from a CSV text, and find the delimiter of its fields.

    Spreadsheets write such a line to state the delimiter.  In a text without this line, the
    delimiter is ``preferred`` if the header (the first line) contains this character; otherwise it
    is the character of `DELIMITERS` that is most frequent in the header outside quotes.

    Returns
    -------
    The remaining text, and the delimiter.

    >>> csv_start("sep=;\\nage;sex\\n"), csv_start('name;"last, first"')[1], csv_start('"a\\n, b, c";d')[1]
    (('age;sex\\n', ';'), ';', ';')
    """
    if separator := SEPARATOR_LINE.match(text):
        return text[separator.end() :], separator[1]
    # Only parts outside quotes: inside quotes, a delimiter or a line break belongs to a field.
    unquoted = "".join(text[:MAX_HEADER].lstrip().split('"')[::2])
    header = re.split(r"[\r\n]", unquoted, maxsplit=1)[0]
    return text, (
        preferred if preferred and preferred in header else max(DELIMITERS, key=header.count)
    )


def header_name(text: str) -> str:
    """Return a column name from the header of a table, with line breaks replaced by blanks.

    >>> header_name("age\\n(years)")
    'age (years)'
    """
    return re.sub(r"\s*[\r\n]+\s*", " ", text)


def near_matches(name: object, names: Iterable[str]) -> str:
    """Return a clause for an error message that lists names similar to a mistyped name.

    The clause is empty if no name is similar.

    >>> near_matches("agee", ["age", "sex"])
    "; close names: 'age'"
    """
    # the time of the comparison is limited, in case there are many names
    candidates = [candidate[:MAX_NAME] for candidate, _ in zip(names, range(2_000), strict=False)]
    near = difflib.get_close_matches(str(name)[:MAX_NAME], candidates, n=3)
    return f"; close names: {', '.join(map(quote_public, near))}" if near else ""


def set_name(attributes: Iterable[str]) -> str:
    """Return the text for a set of attributes, as in headings and tables.

    >>> set_name(["age", "sex"]), set_name([])
    ('age × sex', '(total)')
    """
    return " × ".join(attributes) or "(total)"


def shortest_text(number: float) -> str:
    """Return a decimal text that parses to the same double, without ".0" after an integer below 1e15.

    >>> shortest_text(20.0), shortest_text(0.1)
    ('20', '0.1')
    """
    return f"{number:.0f}" if number.is_integer() and abs(number) < 1e15 else repr(number)


def nonblank_lines(text: str) -> list[str]:
    """Return the lines of a text that are not blank, without blanks at their ends.

    >>> nonblank_lines("F\\n M \\n\\n")
    ['F', 'M']
    """
    return [line.strip() for line in text.splitlines() if line.strip()]


def number(value: int) -> str:
    """Return the text of an integer: all digits below 10^12, else two digits and a power of ten.

    >>> number(21_043_261), number(10**40)
    ('21,043,261', '1.0 × 10^40')
    """
    if value < 10**12:
        return f"{value:,}"
    exponent = math.floor(math.log10(value) + 1e-12)
    return f"{10 ** (math.log10(value) - exponent):.1f} × 10^{exponent}"


def translate_arguments(
    message: str, words: Mapping[str, str], value: Callable[[Sequence[str]], str]
) -> str:
    """Replace the Python arguments in an error message by the words of another interface.

    Parameters
    ----------
    words : mapping from an argument to its replacement.  A key is the name of an argument, or
        ``name=value`` for a replacement that applies to this value only.  In the replacement,
        ``{}`` stands for the value from the message; it is left out if the message has no value.
    value : function that formats a list of values as one text.

    >>> words = {"count_column": "--count-column {}", "rehearsal=True": "the command rehearse"}
    >>> translate_arguments("Give count_column='n', no count_column, or use rehearsal=True.", words, " ".join)
    'Give --count-column n, no --count-column, or use the command rehearse.'
    """

    def replacement(match: re.Match[str]) -> str:
        # The groups of ARGUMENT: name before "=", value after "=", name without "=".
        name, text = match[1] or match[3], match[2]
        if text is None:
            before, _, after = words.get(name, match[0]).partition("{}")
            return before.rstrip(" =:") + after
        values = _argument_values(text)
        single = words.get(f"{name}={values[0]}") if len(values) == 1 else None
        if single is not None:
            return single
        return words[name].replace("{}", value(values)) if name in words else match[0]

    return ARGUMENT.sub(replacement, message)


def _argument_values(text: str) -> list[str]:
    """Return the values in the text of a Python argument: those of a list, or a single value.

    A text that is not a Python literal is returned unchanged as the single value.
    """
    try:
        literal = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return [text]
    values = literal if isinstance(literal, list) else [literal]
    return ["..." if entry is ... else str(entry) for entry in values]


def pluralize(things: int, one: str, many: str = "") -> str:
    """Return a number with its noun in singular or plural; the plural is ``one`` + "s" by default.

    >>> pluralize(1, "group"), pluralize(2500, "query", "queries")
    ('1 group', '2,500 queries')
    """
    return f"{number(things)} {one if things == 1 else many or one + 's'}"


def format_number(value: float) -> str:
    """Return the text of an error or an estimate, without an exponent.

    Numbers below 1000 are rounded to three or four significant digits, larger numbers to integers.
    Positive numbers below `SMALLEST_ERROR` are "less than 0.0000001".  An infinite number is
    "unbounded", NaN is "unknown".

    >>> format_number(45.46519), format_number(0.0012345), format_number(123456.7)
    ('45.47', '0.00123', '123,457')
    >>> format_number(0.00001234), format_number(1e-9), format_number(-1e-9), format_number(math.inf)
    ('0.0000123', 'less than 0.0000001', '0', 'unbounded')
    """
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else "unbounded"
    size = abs(value)
    # 999.95, 99.995 and 0.9995 are the smallest numbers that round up to the next power of ten:
    # 999.97 would be "1000.0" with one decimal, and is written as "1,000".
    if size >= 999.95:
        return f"{value:,.0f}"
    if size >= 99.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    if size >= SMALLEST_ERROR:
        return _positional(float(f"{value:.3g}"))
    return f"less than {_positional(SMALLEST_ERROR)}" if value > 0.0 else "0"


def percent(share: float, decimals: int = 1) -> str:
    """Return a share as a percentage, rounded half up to ``decimals`` decimals.

    For example, 0.05% becomes 0.1%.  Gaps to a lower bound use `percent_rounded_up` instead.

    >>> percent(53 / 2000), percent(0.125, 0)
    ('2.7%', '13%')
    """
    rounded = (
        Decimal(repr(float(share))).scaleb(2).quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    )
    return f"{rounded:,}%"


def percent_rounded_up(share: float, decimals: int = 2) -> str:
    """Return a share as a percentage, rounded up and at least 0.

    Gaps to a lower bound use this function, so that no text states less than the gap.  An excess
    below 1e-9 of the last decimal is a rounding error and is ignored.  Infinity gives "unbounded".

    >>> percent_rounded_up(0.0312), percent_rounded_up(1.03 - 1), percent_rounded_up(0.001111)
    ('3.12%', '3.00%', '0.12%')
    """
    if not math.isfinite(share):
        return format_number(share)
    return f"{100.0 * share_rounded_up(share, decimals):,.{decimals}f}%"


def share_rounded_up(share: float, decimals: int = 2) -> float:
    """Return the number that `percent_rounded_up` shows, as a share; NaN and infinity as they are.

    >>> share_rounded_up(0.03121)
    0.0313
    """
    if not math.isfinite(share):
        return share
    # without the subtraction, 1.03 - 1, which is slightly above 0.03, would become 3.01%
    steps = 10.0 ** (2 + decimals)
    return max(math.ceil(share * steps - 1e-9), 0) / steps


def cost(value: float) -> str:
    """Return the text of a privacy parameter (pcost, rho, mu, epsilon), rounded up to 4 digits.

    The text has no exponent.  Values between -`SMALLEST_COST` and 0 are rounding errors of sums and
    give "0".

    >>> cost(0.9999999984), cost(4.1721), cost(0.00002), cost(1.6e-9), cost(0.0), cost(1.5e7)
    ('1', '4.173', '0.00002', 'less than 0.0000001', '0', '15,000,000')
    """
    if abs(value) < SMALLEST_COST:
        return f"less than {_positional(SMALLEST_COST)}" if value > 0.0 else "0"
    return _positional(float(rounded_up(value)))


def power_text(value: float) -> str:
    """Return a small number in scientific notation, with all its digits.

    >>> power_text(1e-6), power_text(2.5e-7), power_text(0.25)
    ('10^-6', '2.5 * 10^-7', '2.5 * 10^-1')
    """
    decimal = Decimal(repr(float(value))).normalize()
    power, mantissa = f"10^{decimal.adjusted()}", decimal.scaleb(-decimal.adjusted())
    return power if mantissa == 1 else f"{mantissa:f} * {power}"


def deltas_as_powers(text: str) -> str:
    """Return a text in which `power_text` has rewritten each delta that has an exponent.

    >>> deltas_as_powers("epsilon 1 at delta 1e-06; epsilon 2 at delta 2.5e-07.")
    'epsilon 1 at delta 10^-6; epsilon 2 at delta 2.5 * 10^-7.'
    """
    return DELTA.sub(lambda match: f"delta {power_text(float(match[1]))}", text)


def duration_text(seconds: float) -> str:
    """Return the text of a duration in seconds, minutes or hours, depending on its length.

    >>> duration_text(0.02), duration_text(3.04), duration_text(42.3), duration_text(600.0)
    ('under 0.1 s', '3.0 s', '42 s', '10 min')
    >>> duration_text(9000.0), duration_text(math.nan)
    ('2.5 h', 'unknown')
    """
    if math.isnan(seconds):
        return "unknown"
    if seconds < 0.1:
        return "under 0.1 s"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def remaining_text(value: float) -> str:
    """Return the text of a remaining privacy budget, rounded down to 4 significant digits.

    >>> remaining_text(0.33339), remaining_text(0.7), remaining_text(1.6e-9)
    ('0.3333', '0.7', '0')
    """
    return "0" if abs(value) < SMALLEST_COST else _positional(float(_digits(value, ROUND_FLOOR)))


def _positional(value: float) -> str:
    """Return a number as a decimal text without an exponent and without trailing zeros."""
    text = format(Decimal(repr(value)), ",f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def rounded_up(value: float) -> str:
    """Return the text of a number, rounded up to 4 significant digits.

    The number is first rounded to the nearest number of 13 digits, so that the rounding error in
    0.1 + 0.2 does not give "0.3001".

    >>> rounded_up(4.1721), rounded_up(0.1), rounded_up(0.1 + 0.2), rounded_up(1e-9)
    ('4.173', '0.1', '0.3', '1e-09')
    """
    return _digits(value, ROUND_CEILING)


def _digits(value: float, rounding: str) -> str:
    # rounded to 13 digits first, because the last digits of a double may be rounding errors of sums
    number = Context(prec=13, rounding=ROUND_HALF_EVEN).create_decimal(repr(float(value)))
    return f"{float(Context(prec=4, rounding=rounding).plus(number)):g}"


def markdown(text: str) -> str:
    r"""Escape a text for Markdown, so that it is displayed literally.

    HTML, links, pictures, emphasis and the separators of table cells have no effect.

    >>> markdown("age 20-29"), markdown("<script>"), markdown("[x](javascript:y) | `z`")
    ('age 20-29', '\\<script\\>', '\\[x\\](javascript:y) \\| \\`z\\`')
    >>> markdown("https://x.org www.x.org a@x.org")
    'https\\://x.org www\\.x.org a\\@x.org'
    """
    text = MARKDOWN.sub(r"\\\1", " ".join(text.splitlines()))
    return MARKDOWN_ADDRESS.sub(r"\1\\\2", text)


def markdown_code(text: str) -> str:
    """Return a text as inline code for Markdown; the text may contain backticks.

    >>> markdown_code("a < 5"), markdown_code("a `b`")
    ('`a < 5`', '`` a `b` ``')
    """
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{' '.join(text.splitlines())}{space}{fence}"


def escape_formula(text: str) -> str:
    """Put a quote before a text that a spreadsheet would evaluate as a formula.

    >>> escape_formula("=cmd()"), escape_formula("age")
    ("'=cmd()", 'age')
    """
    return f"'{text}" if text.startswith(FORMULA) else text


def csv_text(table: Frame) -> str:
    """Return a table as CSV text, with its texts escaped by `escape_formula`.

    Floats are written by `csv_number`.

    >>> import pandas as pd
    >>> csv_text(pd.DataFrame({"label": ["=1+1"], "cells": [3], "published": [45.0]}))
    "label,cells,published\\n'=1+1,3,45\\n"
    """
    texts = {c: table[c].map(_escape) for c in table.columns if table[c].dtype.kind not in "ifub"}
    texts |= {c: table[c].map(csv_number) for c in table.columns if table[c].dtype.kind == "f"}
    return table.assign(**texts).rename(columns=_escape).to_csv(index=False, lineterminator="\n")


def csv_number(value: float) -> str:
    """Return a float for a CSV file: integers without decimals, NaN as the empty text.

    Other numbers are rounded to six decimals, those between -1 and 1 to six significant digits.

    >>> [csv_number(x) for x in (45.0, 944.123456789, 0.000123456789, -1e-16, float("nan"))]
    ['45', '944.123457', '0.000123457', '-1e-16', '']
    """
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return str(value)
    if value == 0.0:
        return "0"
    decimals = max(6, 5 - math.floor(math.log10(abs(value))))
    return repr(round(float(value), decimals)).removesuffix(".0")


def _escape(value: Any) -> Any:
    return escape_formula(value) if isinstance(value, str) else value


LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "−": "$-$",
    "→": r"$\to$",
    "²": r"$^2$",
    "≠": r"$\ne$",
    "≈": r"$\approx$",
    "∞": r"$\infty$",
    "ε": r"$\varepsilon$",
    **{
        mark: rf"$\{name}$"
        for mark, name in zip("δμρσ", ("delta", "mu", "rho", "sigma"), strict=True)
    },
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    # at the start of a row, LaTeX would read these as arguments of the line break before it
    **{mark: f"{{{mark}}}" for mark in "[]*"},
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


MAX_FLOAT_ROWS = 40  # a LaTeX table with more rows is a longtable, which breaks across pages


def latex_text(
    table: Frame,
    percent: Collection[str] = (),
    caption: str = "",
    decimals: Mapping[str, int] | None = None,
) -> str:
    """Return a table as LaTeX (package booktabs), with numbers right-aligned and texts escaped.

    A table with more than `MAX_FLOAT_ROWS` rows is a longtable (package longtable).

    Parameters
    ----------
    percent : columns of shares that are written as percentages.
    caption : if not empty, the result has this caption, and a short table is a floating one.
    decimals : number of decimals of columns of floats.  Floats of other columns, and floats that
        would become zero, have the digits of `format_number`.

    >>> import pandas as pd
    >>> print(latex_text(pd.DataFrame({"query": ["age_1 × sex", "[18, 30) | <5*"], "RMSE": [45.46519, math.inf]})))
    \\begin{tabular}{lr}
    \\toprule
    query & RMSE \\\\
    \\midrule
    age\\_1 $\\times$ sex & 45.47 \\\\
    {[}18, 30) \\textbar{} \\textless{}5{*} & $\\infty$ \\\\
    \\bottomrule
    \\end{tabular}
    <BLANKLINE>
    """
    sides = "".join("r" if kind.kind in "iuf" else "l" for kind in table.dtypes)
    is_percent = [column in percent for column in table.columns]
    is_gap = [p and c in GAP_COLUMNS for c, p in zip(table.columns, is_percent, strict=True)]
    n_decimals = [(decimals or {}).get(column) for column in table.columns]
    lines = [" & ".join(map(_latex, table.columns)) + r" \\"]
    for row in table.itertuples(index=False):
        cells = [
            _latex(share_rounded_up(value) if g else value, percent=p, decimals=d)
            for value, g, p, d in zip(row, is_gap, is_percent, n_decimals, strict=True)
        ]
        lines.append(" & ".join(cells) + r" \\")
    if len(table) > MAX_FLOAT_ROWS:
        head = [r"\toprule", lines[0], r"\midrule"]
        top = [rf"\begin{{longtable}}{{{sides}}}"]
        if caption:
            top.append(rf"\caption{{{_latex(caption)}}} \\[1ex]")
        heads = [*head, r"\endfirsthead", *head, r"\endhead", r"\bottomrule", r"\endfoot"]
        return "\n".join([*top, *heads, *lines[1:], r"\end{longtable}", ""])
    body = [rf"\begin{{tabular}}{{{sides}}}", r"\toprule", lines[0], r"\midrule", *lines[1:]]
    body += [r"\bottomrule", r"\end{tabular}"]
    if caption:
        top = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(caption)}}}"]
        body = [*top, *body, r"\end{table}"]
    return "\n".join([*body, ""])


def _latex(value: Any, *, percent: bool = False, decimals: int | None = None) -> str:
    """Return a value of a table as LaTeX; see `latex_text` for ``percent`` and ``decimals``.

    The text for NaN is "".
    """
    if isinstance(value, float):
        if math.isnan(value):
            return ""
        if math.isinf(value):
            return r"$\infty$"
        if percent:
            return rf"{value * 100.0:,.2f}\%"
        if decimals is None or 0.0 < abs(value) < 0.5 * 10.0**-decimals:
            return format_number(value)
        return f"{value:,.{decimals}f}"
    text = number(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return "".join(LATEX.get(mark, mark) for mark in " ".join(text.split()))
