"""One column of the records as the public knows it: a name, a kind, and finitely many cells.

Everything here is public knowledge, fixed before anyone looks at the records.  A domain is never learned from data,
because a label that appears only when one person is present gives that person away.

    attribute kind   given by   cells                                           values in the records
    categorical      labels     one per label                                   text, equal to a label
    numeric          edges      n + 1 edges make n bins [e_i, e_{i+1}),         numbers; the last bin also
                                the last one closed: [e_{n-1}, e_n]             holds its right edge; whole
                                                                                numbers only with `integer`
    either           size       codes 0 .. size - 1                             whole numbers, already encoded
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from numbers import Integral, Real
from typing import Any

from engine.errors import SchemaError
from engine.texts import MAX_NAME, plain, shown
from engine.workload.schema_text import ALL_KEYS, FORBIDDEN, MAX_LABEL, check_text, parse_row

MAX_CELLS = 10_000_000
MAX_INTEGER = 2**53  # largest edge of an attribute of whole numbers
KINDS = ("categorical", "numeric")


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """One column of the records and its public finite domain.

    Use `categorical`, `numeric` or `of_size`; they fill the fields consistently.

    Fields: `name`; `kind`, "categorical" or "numeric" (numeric cells are ordered, so ranges make sense); `size`, the
    number of cells; `labels`, one text per cell, or None; `edges`, size + 1 increasing numbers, or None; `other`, the
    label of the cell that collects text outside the domain (None: refuse it); `missing`, the label of the cell that
    collects missing values or, with edges, the number they are replaced by (None: refuse them); `clip`, with edges:
    numbers outside go into the first or last bin (False: refuse them); `integer`, with edges: all values are whole
    numbers (fractions are refused), so that SQL may read ``age <= 39`` as ``age < 40``.

    >>> Attribute.numeric("age", [0, 20, 65, 120]).label(2)
    '[65, 120]'
    >>> Attribute.categorical("sex", ["F", "M"], missing="unknown").labels
    ('F', 'M', 'unknown')
    """

    name: str
    kind: str
    size: int
    labels: tuple[str, ...] | None = None
    edges: tuple[float, ...] | None = None
    other: str | None = None
    missing: str | float | None = None
    clip: bool = False
    integer: bool = False

    @classmethod
    def categorical(
        cls, name: str, labels: Iterable[str], *, other: str | None = None, missing: str | None = None
    ) -> Attribute:
        """One cell per label; `other` and `missing` are appended, in this order, when they are not labels yet.

        Values compare with labels as exact text: case and spaces count.
        """
        texts = sequence(labels, f"labels of attribute {shown(name)}", "a list of texts")
        for extra in (other, missing):
            if extra is not None and extra not in texts:
                texts.append(extra)
        return cls(name=name, kind="categorical", size=len(texts), labels=tuple(texts), other=other, missing=missing)

    @classmethod
    def numeric(
        cls,
        name: str,
        edges: Iterable[float],
        *,
        clip: bool = False,
        missing: float | None = None,
        integer: bool = False,
    ) -> Attribute:
        """Bins between increasing edges: closed on the left, open on the right, the last one closed on both sides."""
        what = f"edges of attribute {shown(name)}"
        entries = sequence(edges, what, "a list of numbers")
        numbers = [edge if type(edge) is float and edge else _number(edge, what) for edge in entries]
        value = None if missing is None else _number(missing, f"missing of attribute {shown(name)}")
        return cls(
            name=name,
            kind="numeric",
            size=len(numbers) - 1,
            edges=tuple(numbers),
            missing=value,
            clip=clip,
            integer=integer,
        )

    @classmethod
    def of_size(cls, name: str, size: int, kind: str = "numeric") -> Attribute:
        """Records that already hold the codes 0 .. size - 1."""
        return cls(name=name, kind=kind, size=size)

    def __post_init__(self) -> None:
        check_text(self.name, "attribute name", MAX_NAME)
        who = f"attribute {shown(self.name)}"
        if self.kind not in KINDS:
            raise SchemaError(f"{who} has kind {shown(self.kind)}; the kinds are 'categorical' and 'numeric'")
        if not isinstance(self.size, Integral) or isinstance(self.size, bool):
            raise SchemaError(f"{who} has a size of type {type(self.size).__name__}; give a whole number of cells")
        object.__setattr__(self, "size", int(self.size))
        if self.edges is None and self.size < 1:
            raise SchemaError(f"{who} has an empty domain; give it at least one cell")
        if self.size > MAX_CELLS:
            raise SchemaError(f"{who} has more than {MAX_CELLS:,} cells; merge cells into coarser ones")
        if not isinstance(self.clip, bool):
            raise SchemaError(f"{who} has clip of type {type(self.clip).__name__}; give true or false")
        if not isinstance(self.integer, bool):
            raise SchemaError(f"{who} has integer of type {type(self.integer).__name__}; give true or false")
        if self.labels is not None and self.edges is not None:
            raise SchemaError(f"{who} has both labels and edges; give one of them")
        if self.labels is not None:
            self._check_labels(who)
        elif self.other is not None:
            raise SchemaError(f"{who} has other, which needs labels; give labels or leave it out")
        if self.edges is not None:
            self._check_edges(who)
        elif self.clip:
            raise SchemaError(f"{who} has clip, which needs edges; give edges or leave it out")
        elif self.integer:
            raise SchemaError(f"{who} has integer, which needs edges; give edges or leave it out")
        if self.missing is not None and self.labels is None and self.edges is None:
            raise SchemaError(f"{who} has missing, which needs labels or edges; give them or leave it out")

    def _check_labels(self, who: str) -> None:
        if self.kind != "categorical":
            raise SchemaError(f"{who} is numeric but has labels; give edges, or make it categorical")
        labels = self.labels
        if not isinstance(labels, tuple) or len(labels) != self.size:
            raise SchemaError(f"{who} has size {self.size:,} but another number of labels; leave the size out")
        # One pass over the joined text accepts the common case; the loop only runs to name the culprit.
        suspicious = set(map(type, labels)) != {str} or FORBIDDEN.search("".join(labels))
        if suspicious or not all(map(str.strip, labels)) or max(map(len, labels)) > MAX_LABEL:
            for i, label in enumerate(labels):
                check_text(label, f"label {i} of {who}", MAX_LABEL)
            object.__setattr__(self, "labels", tuple(map(str, labels)))
        if len(set(labels)) < len(labels):
            twice = Counter(labels).most_common(1)[0][0]
            raise SchemaError(f"{who} has the label {shown(twice)} twice; remove one of them")
        for key, value in (("other", self.other), ("missing", self.missing)):
            if value is not None and value not in labels:
                raise SchemaError(f"{who} has {key}={shown(value)}, which is not among its labels; add it")

    def _check_edges(self, who: str) -> None:
        if self.kind != "numeric":
            raise SchemaError(f"{who} is categorical but has edges; give labels, or make it numeric")
        edges = self.edges
        if not isinstance(edges, tuple) or len(edges) != self.size + 1:
            raise SchemaError(f"{who} has size {self.size:,} but not one edge more; leave the size out")
        if len(edges) < 2:
            raise SchemaError(f"{who} has {len(edges)} edge(s); give at least two, n + 1 edges make n bins")
        if set(map(type, edges)) != {float} or not all(map(math.isfinite, edges)):
            raise SchemaError(f"{who} has an edge that is not a finite number; replace it")
        if not all(map(operator.lt, edges, edges[1:])):
            i = next(i for i, pair in enumerate(pairwise(edges), 1) if not operator.lt(*pair))
            raise SchemaError(f"{who} has edges that do not increase at position {i}; sort them, drop repeats")
        if self.missing is not None:
            if type(self.missing) is not float or not math.isfinite(self.missing):
                raise SchemaError(f"{who} replaces missing values by no finite number; give one, or leave it out")
            if not self.clip and not edges[0] <= self.missing <= edges[-1]:
                raise SchemaError(f"{who} replaces missing values by a number outside its edges; move it inside")
        if self.integer:
            numbers = edges if self.missing is None else (*edges, self.missing)
            # beyond this limit neighbouring whole numbers are the same float
            if not all(number.is_integer() and abs(number) <= MAX_INTEGER for number in numbers):
                raise SchemaError(
                    f"{who} has integer, but an edge or the number for missing values is not a whole number up to "
                    f"{MAX_INTEGER:,}; change that number, or leave integer out"
                )

    def label(self, i: int) -> str:
        """Text of cell i, 0 <= i < size.

        >>> Attribute.of_size("code", 4).label(3)
        '3'
        """
        return self.span(i, i)

    def span(self, first: int, last: int) -> str:
        """Text of the cells first .. last, both included.

        >>> Attribute.numeric("age", [0, 20, 65, 120]).span(0, 1)
        '[0, 65)'
        >>> Attribute.of_size("code", 9).span(2, 5)
        '2..5'
        """
        if not 0 <= first <= last < self.size:
            raise SchemaError(f"attribute {shown(self.name)} has the cells 0..{self.size - 1}; stay inside them")
        if self.edges is not None:
            closing = "]" if last == self.size - 1 else ")"
            return f"[{plain(self.edges[first])}, {plain(self.edges[last + 1])}{closing}"
        start, stop = (self.labels[first], self.labels[last]) if self.labels else (str(first), str(last))
        return start if first == last else f"{start}..{stop}"

    def condition(self, first: int, last: int | None = None) -> str:
        """Text of the condition "the value lies in the cells first .. last"; one cell when `last` is left out.

        >>> Attribute.categorical("sex", ["F", "M"]).condition(1)
        'sex = M'
        >>> Attribute.numeric("age", [0, 20, 65, 120]).condition(1, 2)
        'age in [20, 120]'
        """
        last = first if last is None else last
        relation = "=" if first == last and self.edges is None else "in"
        return f"{self.name} {relation} {self.span(first, last)}"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready description; keys that hold their default are left out."""
        found: dict[str, Any] = {"name": self.name, "kind": self.kind}
        if self.labels is not None:
            found["labels"] = list(self.labels)
        elif self.edges is not None:
            found["edges"] = list(self.edges)
        else:
            found["size"] = self.size
        optional = {
            "other": self.other,
            "missing": self.missing,
            "clip": self.clip or None,
            "integer": self.integer or None,
        }
        return found | {key: value for key, value in optional.items() if value is not None}

    @classmethod
    def from_dict(cls, document: Any) -> Attribute:
        """Inverse of `to_dict`.  Raises: SchemaError for unknown keys, contradictions and wrong types."""
        if not isinstance(document, dict):
            raise SchemaError(f"an attribute is given as {type(document).__name__}; give an object with name and kind")
        unknown = [key for key in document if key not in ALL_KEYS]
        if unknown:
            keys = ", ".join(ALL_KEYS)
            raise SchemaError(f"an attribute has the unknown key {shown(unknown[0])}; the keys are {keys}")
        found = {key: value for key, value in document.items() if value is not None}
        name, kind = found.pop("name", None), found.pop("kind", None)
        check_text(name, "attribute name", MAX_NAME)
        domains = found.keys() & {"labels", "edges"}
        if len(domains) == 2 or not (domains or "size" in found):
            raise SchemaError(f"attribute {shown(name)} needs exactly one of size, labels and edges")
        size = found.pop("size", None)
        if "labels" in found:
            attribute = _call(cls.categorical, name, found.pop("labels"), found)
        elif "edges" in found:
            attribute = _call(cls.numeric, name, found.pop("edges"), found)
        else:
            attribute = cls(name=name, kind=kind, size=size, **found)
        if kind != attribute.kind:
            raise SchemaError(
                f"attribute {shown(name)} has kind {shown(kind)}; labels need 'categorical', edges need 'numeric'"
            )
        if size is not None and (type(size) is not int or size != attribute.size):
            raise SchemaError(f"attribute {shown(name)} has a size that differs from its {attribute.size:,} cells")
        return attribute


def attribute_from_texts(row: Mapping[str, str]) -> Attribute:
    """Return the attribute that one row of a schema CSV describes; empty texts are left out.  Raises: SchemaError.

    >>> attribute_from_texts({"name": "sex", "kind": "categorical", "labels": "F|M", "edges": ""}).labels
    ('F', 'M')
    """
    return Attribute.from_dict(parse_row(row))


def sequence(values: Any, what: str, wanted: str) -> list[Any]:
    """The values as a list.  Raises: SchemaError for a text, a mapping, no iterable, or an endless one."""
    # a set has another order, and so the cells other numbers, in every run
    if isinstance(values, (str, bytes, Mapping, set, frozenset)) or not isinstance(values, Iterable):
        raise SchemaError(f"{what}: given {type(values).__name__}, give {wanted}")
    found = list(islice(values, MAX_CELLS + 2))
    if len(found) > MAX_CELLS + 1:
        raise SchemaError(f"{what}: more than {MAX_CELLS:,} entries; use a coarser domain")
    return found


def _number(value: Any, what: str) -> float:
    if type(value) is not int and (not isinstance(value, Real) or isinstance(value, bool)):
        raise SchemaError(f"{what}: one is of type {type(value).__name__}; give numbers")
    try:
        return float(value) + 0.0  # turns -0.0 into 0.0, which prints and compares the same everywhere
    except OverflowError:
        return math.inf


def _call(build: Callable[..., Attribute], name: str, domain: Any, options: dict[str, Any]) -> Attribute:
    try:
        return build(name, domain, **options)
    except TypeError:
        raise SchemaError(
            f"attribute {shown(name)} mixes options: labels go with other and missing, edges with missing, clip and "
            "integer"
        ) from None
