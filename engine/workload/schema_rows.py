"""Attributes as rows of texts, for a table that a person edits.

A row has a name, a type, and the possible values as one text. The syntax of the values depends on
the type:

    type             values
    labels           F | M                  texts, separated by |; see below
                     North, South           words, separated by commas, if no | occurs
    bins             0, 18, 65, 120         edges of bins
                     0:100:20               first edge : last edge : step; both forms can be mixed
    dates            2024-01:2024-12:month  first and last period, and the unit of a cell
    codes            10                     number of codes 0, 1, 2, ...
    ordered codes    10                     codes whose order has a meaning; only these have ranges

All other entries of a row are optional; hierarchies are JSON text. A row with a name and without
values is incomplete. Inside a label, | and backslash are written with a backslash before them, and
so are a blank at the start or end of a label, and a comma in the only label of an attribute.

A row without a type has labels if its values are separated by |, or are at least two words
separated by commas. A word starts with a letter and is not a number.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine._format import quote_public, shortest_text
from engine._untrusted import parse_json
from engine.errors import SchemaError
from engine.workload.attribute import MAX_CELLS, Attribute
from engine.workload.schema_io import DATE_KIND, HIERARCHIES_KEY

LABELS, BINS, DATES, CODES, ORDERED_CODES = "labels", "bins", "dates", "codes", "ordered codes"
ROW_TYPES = (LABELS, BINS, DATES, CODES, ORDERED_CODES)
# Optional entries of a row. A schema CSV has columns with the same names.
COMMON_KEYS = (
    "other",
    "missing",
    "missing_values",
    "clip",
    "integer",
    "decimal",
    "thousands",
    "date_format",
)
ROW_KEYS = ("name", "type", "values", *COMMON_KEYS, HIERARCHIES_KEY)
FLAGS = ("clip", "integer")  # entries that are "true", "false" or empty
# Up to this number of equally spaced edges are written one by one instead of first:last:step.
MIN_STEPS = 3
MAX_EXAMPLE_LABELS = 5  # in an error message
MAX_EXAMPLE_VALUES = 12  # integers of an interval that an error message lists as values
_SEPARATOR = re.compile(r"[,\s|]+")
# An interval that is no list of edges, such as 18-94, 18 to 94 or 0-120:5.
_INTERVAL = re.compile(
    r"(-?\d+(?:\.\d+)?)\s*(?:-|–|—|\bto\b|\.\.)\s*(-?\d+(?:\.\d+)?)(?:\s*:\s*(\d+(?:\.\d+)?))?"
)
_SEPARATOR_OF_BINS = re.compile(r"[,;|\n]")
_TOKEN = re.compile(r"\\.|[|,]|[^|,\\]+|\\", re.DOTALL)


def attribute_row(attribute: Attribute) -> dict[str, str]:
    """Return an attribute as a row; optional entries that the attribute does not use are empty.

    >>> row = attribute_row(Attribute.numeric("age", [0, 20, 40, 60, 80, 100], clip=True))
    >>> row["type"], row["values"], row["clip"]
    ('bins', '0:100:20', 'true')
    """
    document = attribute.to_dict()
    row = dict.fromkeys(ROW_KEYS, "") | {"name": attribute.name}
    if attribute.labels is not None:
        row |= {"type": LABELS, "values": _labels_text(attribute.labels)}
    elif attribute.edges is not None:
        row |= {"type": BINS, "values": edges_text(attribute.edges)}
    elif attribute.is_dated:
        row |= {"type": DATES, "values": f"{attribute.start}:{attribute.stop}:{attribute.unit}"}
    else:
        is_ordered = attribute.kind == "numeric"
        row |= {"type": ORDERED_CODES if is_ordered else CODES, "values": str(attribute.size)}
    for key in COMMON_KEYS:
        if (value := document.get(key)) is not None:
            row[key] = _entry(value)
    if attribute.hierarchies:
        row[HIERARCHIES_KEY] = _hierarchies_text(document[HIERARCHIES_KEY], attribute.labels)
    return row


def _entry(value: object) -> str:
    """Return the value of an optional entry as text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return _joined(value)
    return shortest_text(value) if isinstance(value, float) else str(value)


def _hierarchies_text(documents: Any, labels: Sequence[str] | None) -> str:
    """Return hierarchies as JSON text.

    With labels, the areas of the cells are a mapping from label to area, so that a person can
    reorder labels.
    """
    if labels is not None:
        documents = [
            document | {"areas": dict(zip(labels, document["areas"], strict=True))}
            for document in documents
        ]
    return json.dumps(documents, ensure_ascii=False)


_INVALID_HIERARCHIES = (
    "the hierarchies are not a JSON list of hierarchies; read the code list again"
)


def _parsed_hierarchies(text: str, labels: Sequence[str] | None) -> Any:
    """Return the descriptions of the hierarchies in a text that `_hierarchies_text` wrote.

    With labels, the mapping from label to area becomes a list: the area of each label. Raises
    SchemaError if a label has no area, or the text is not valid.
    """
    try:
        documents = parse_json(text)
        areas = [document["areas"] for document in documents]
    except (KeyError, TypeError, ValueError):
        raise SchemaError(_INVALID_HIERARCHIES) from None
    if labels is None:
        return documents
    try:
        return [
            document | {"areas": [areas_by_label[label] for label in labels]}
            for document, areas_by_label in zip(documents, areas, strict=True)
        ]
    except KeyError as error:
        raise SchemaError(
            f"the hierarchy of the attribute has no area for the label"
            f" {quote_public(error.args[0])}; correct the label, or read a code list that"
            " contains it"
        ) from None
    except TypeError:
        raise SchemaError(_INVALID_HIERARCHIES) from None


def _joined(texts: Sequence[str]) -> str:
    """Return texts as one text with separators |; `_split` is the inverse."""
    return " | ".join(map(_escaped, texts))


def _labels_text(labels: Sequence[str]) -> str:
    """Return labels as one text that `_parsed_labels` reads."""
    text = _joined(labels)
    # `_parsed_labels` splits a text without | at its commas.
    return text.replace(",", "\\,") if len(labels) == 1 else text


def _parsed_labels(values: str) -> list[str]:
    """Return the labels in a text: separated by |, or by commas if the text has no separator |."""
    separator = "|" if _has_bar(values) else ","
    return _split(values, separator)


def _has_bar(values: str) -> bool:
    """Return whether a text contains a | without a backslash before it."""
    return "|" in _TOKEN.findall(values)


def _is_word_list(values: str) -> bool:
    """Return whether a text is at least two words separated by commas.

    >>> _is_word_list("North, South"), _is_word_list("North, 3"), _is_word_list("0-17, 18-64")
    (True, False, False)
    """
    words = _split(values, ",")
    return len(words) > 1 and all(word[:1].isalpha() and not _is_number(word) for word in words)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\\\").replace("|", "\\|")
    stripped = text.strip()
    start, end = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
    if not stripped:
        return "".join(f"\\{blank}" for blank in text)
    return "".join(f"\\{blank}" for blank in start) + stripped + "".join(f"\\{b}" for b in end)


def _split(text: str, separator: str = "|") -> list[str]:
    """Return the texts between the separators, | or a comma, without blanks around them.

    A backslash makes the next character part of a text, also a separator or a blank.
    """
    parts: list[list[str]] = [[]]
    for token in _TOKEN.findall(text):
        if token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return [_unescaped(tokens) for tokens in parts]


def _unescaped(tokens: list[str]) -> str:
    """Join tokens to one text. A token is a plain text, or a backslash and one escaped character.

    The backslashes of escapes, and blanks at the ends that are not escaped, are left out.
    """
    if tokens and not tokens[0].startswith("\\"):
        tokens[0] = tokens[0].lstrip()
    if tokens and not tokens[-1].startswith("\\"):
        tokens[-1] = tokens[-1].rstrip()
    return "".join(token[1:] if len(token) == 2 and token[0] == "\\" else token for token in tokens)


def is_incomplete(row: Mapping[str, str]) -> bool:
    """Return whether a row has a name, but no values yet."""
    return bool(row.get("name", "").strip()) and not row.get("values", "").strip()


def attribute_of_row(row: Mapping[str, str]) -> Attribute:
    """Return the attribute that a row describes; raise SchemaError if an entry is not valid.

    If the row has no type, the type is inferred from the syntax of its values.

    >>> attribute_of_row({"name": "sex", "values": "F | M"}).labels
    ('F', 'M')
    >>> attribute_of_row({"name": "age", "values": "0:100:25", "integer": "true"}).edges
    (0.0, 25.0, 50.0, 75.0, 100.0)
    """
    values = row.get("values", "").strip()
    kind = row.get("type", "") or _type_of(values)
    document: dict[str, Any] = {"name": row.get("name", "")}
    for key in COMMON_KEYS:
        if text := row.get(key, ""):
            document[key] = _parsed_entry(key, text, kind)
    if kind == LABELS:
        document |= {"kind": "categorical", "labels": _parsed_labels(values)}
    elif kind == BINS:
        document |= {"kind": "numeric", "edges": parse_edges(values)}
    elif kind == DATES:
        document |= {"kind": DATE_KIND} | _date_texts(values)
    elif kind in (CODES, ORDERED_CODES):
        if not values.isdecimal():
            raise SchemaError(
                f"the number of codes is {quote_public(values)}; write a whole number, 1 or more"
            )
        document |= {
            "kind": "numeric" if kind == ORDERED_CODES else "categorical",
            "size": int(values),
        }
    else:
        raise SchemaError(
            f"the type {quote_public(kind)} is unknown; choose one of {', '.join(ROW_TYPES)}"
        )
    if text := row.get(HIERARCHIES_KEY, ""):
        document[HIERARCHIES_KEY] = _parsed_hierarchies(text, document.get("labels"))
    return Attribute.from_dict(document)


def _parsed_entry(key: str, text: str, kind: str) -> Any:
    """Return the value of an optional entry: true or false, a list of texts, a number or a text."""
    if key in FLAGS:
        if text not in ("true", "false"):
            raise SchemaError(f"{key} is {quote_public(text)}; choose true or false")
        return text == "true"
    if key == "missing_values":
        return _split(text)
    if key == "missing" and kind == BINS:
        try:
            return float(text)
        except ValueError:
            raise SchemaError(
                f"the replacement of missing values is {quote_public(text)}, but the attribute has"
                " bins; write a number. To count missing values in a separate bin, add an edge"
                " below the first one, such as -1 before 0, and write this number"
            ) from None
    return text


def _type_of(values: str) -> str:
    """Return the type of a row, inferred from the syntax of its values."""
    if _has_bar(values) or _is_word_list(values):
        return LABELS
    parts = values.split(":")
    if len(parts) == 3 and parts[2].strip().isalpha():
        return DATES
    return CODES if values.isdecimal() else BINS


def _date_texts(values: str) -> dict[str, str]:
    parts = [part.strip() for part in values.split(":")]
    if len(parts) != 3:
        raise SchemaError(
            f"the dates {quote_public(values)} are not of the form first:last:unit; write dates "
            "such as 2024-01:2024-12:month"
        )
    return dict(zip(("start", "stop", "unit"), parts, strict=True))


def parse_edges(text: str) -> list[float]:
    """Return bin edges from a text with numbers, with ranges first:last:step, or with both.

    Raises
    ------
    SchemaError : if an entry is neither a number nor a range, or if a range has no bin, too many
        bins, or steps that do not end at its last edge.

    >>> parse_edges("0, 18, 65"), parse_edges("0:100:50, 120")
    ([0.0, 18.0, 65.0], [0.0, 50.0, 100.0, 120.0])
    """
    edges: list[float] = []
    try:
        for part in filter(None, _SEPARATOR.split(text.strip())):
            numbers = [float(number) for number in part.split(":")]
            if len(numbers) not in (1, 3):
                raise ValueError
            edges += numbers if len(numbers) == 1 else _even_edges(*numbers)
    except SchemaError:  # is also a ValueError
        raise
    except ValueError:
        advice = f"write {_edges_example(text)}"
        if _INTERVAL.fullmatch(text.strip()) is None:
            advice = f"for labels, write {_labels_example(text)}; for bins, {advice}"
        raise SchemaError(f"{quote_public(text)} is not a list of bin edges; {advice}") from None
    return edges


def _edges_example(text: str) -> str:
    """Return the bins of a text such as 0-17, 18-64 as edges, as an example for error messages.

    >>> _edges_example("0-17, 18-64, 65-100")
    '0, 18, 65, 100'
    >>> _edges_example("18 to 94")
    '18:95:1 (bins of width 1) or 18, 94 (one bin)'
    >>> _edges_example("1-3")
    '1 | 2 | 3 (one value each) or 1, 3 (one bin)'
    """
    ranges = [_INTERVAL.fullmatch(entry.strip()) for entry in _SEPARATOR_OF_BINS.split(text)]
    intervals = [(float(match[1]), float(match[2])) for match in ranges if match is not None]
    edges = [*(first for first, _ in intervals), *(last for _, last in intervals[-1:])]
    is_increasing = all(low < high for low, high in itertools.pairwise(edges))
    # There is a gap unless each interval begins at the end of the previous one, or 1 above it.
    has_gap = any(
        start - end not in (0.0, 1.0) for (_, end), (start, _) in itertools.pairwise(intervals)
    )
    if len(intervals) < len(ranges) or not is_increasing or has_gap:
        return "edges such as 0, 18, 65, 120, or first edge:last edge:step such as 0:120:10"
    listed = ", ".join(map(shortest_text, edges))
    if len(intervals) > 1:
        return listed
    low, high = edges
    step = ranges[0][3] if ranges[0] is not None else None
    if step is None and low.is_integer() and high.is_integer():
        if high - low < MAX_EXAMPLE_VALUES:
            values = " | ".join(str(number) for number in range(int(low), int(high) + 1))
            return f"{values} (one value each) or {listed} (one bin)"
        # the last bin includes its upper edge, so that a last edge ``high`` would put the two
        # largest integers into one bin
        high += 1.0
    bins = f"{shortest_text(low)}:{shortest_text(high)}:{step or 1}"
    return f"{bins} (bins of width {step or 1}) or {listed} (one bin)"


def _labels_example(text: str) -> str:
    """Return the words of a text, separated by |, as an example of labels for error messages.

    If the text has no two words that can be labels, the example is F | M.
    """
    separator = next((mark for mark in ",;/\n" if mark in text), None)
    words = [word.strip() for word in text.split(separator) if word.strip()]
    if len(words) < 2 or all(":" in word or _is_number(word) for word in words):
        return "F | M"
    shown = words[:MAX_EXAMPLE_LABELS]
    return _joined(shown) + (" | ..." if len(words) > len(shown) else "")


def _even_edges(first: float, last: float, step: float) -> list[float]:
    """Return the edges from ``first`` to ``last`` in steps of ``step``.

    Raises SchemaError if there is no bin, if there are more than `MAX_CELLS` bins, or if the last
    step does not end at ``last``.
    """
    if not step > 0 or not first < last:
        raise SchemaError(
            f"the bin edges {first:g}:{last:g}:{step:g} make no bins; write first edge:last"
            " edge:step with a last edge above the first one, and a step above 0"
        )
    if (last - first) / step > MAX_CELLS:
        raise SchemaError(
            f"the bin edges {first:g}:{last:g}:{step:g} make more than {MAX_CELLS:,} bins; write a"
            " larger step"
        )
    bins = round((last - first) / step)
    if abs(first + bins * step - last) > 1e-9 * max(abs(first), abs(last)):
        # ``fewer`` steps end below ``last``, and one step more ends above it.
        fewer = math.floor((last - first) / step)
        examples = [
            f"{first:.10g}:{first + steps * step:.10g}:{step:.10g}"
            for steps in (fewer, fewer + 1)
            if steps > 0
        ]
        raise SchemaError(
            f"the bin edges {first:.10g}:{last:.10g}:{step:.10g} do not reach {last:.10g} in steps"
            f" of {step:.10g}; write {' or '.join(examples)}"
        )
    return [*(first + i * step for i in range(bins)), last]


def edges_text(edges: Sequence[float]) -> str:
    """Return bin edges as a text that `parse_edges` reads.

    The text has the form first:last:step if there are at least three equally wide bins and
    `parse_edges` reads exactly these edges from it. If only the last bin has another width, its
    upper edge follows as a number. In all other cases the text lists every edge.

    >>> edges_text([0, 18, 65]), edges_text([0, 1, 2, 3, 4, 9])
    ('0, 18, 65', '0:4:1, 9')
    """
    numbers = list(map(float, edges))
    # Try all edges as one range first:last:step, then all edges except the last one.
    for n_single in (0, 1):
        even = numbers[: len(numbers) - n_single]
        if len(even) <= MIN_STEPS:
            continue
        span = ":".join(map(shortest_text, (even[0], even[-1], even[1] - even[0])))
        text = ", ".join([span, *map(shortest_text, numbers[len(even) :])])
        try:
            if parse_edges(text) == numbers:
                return text
        except SchemaError:
            pass
    return ", ".join(map(shortest_text, numbers))
