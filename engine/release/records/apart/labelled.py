"""Files of Stata, SPSS and SAS, which name the values of their columns; and the schema that these names make.

A value that has a label is read as the label, one that the file declares as missing and gives no label as missing.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import DataError, SchemaError
from engine.release.records.apart.asking import heard
from engine.release.records.apart.child import JSON
from engine.release.records.batches import Batch, check_columns
from engine.release.records.clocks import Clock, clock_of
from engine.release.records.identifiers import EXACT, FLOAT_LIMITS
from engine.texts import shown
from engine.workload import Attribute, Schema

if TYPE_CHECKING:
    import pandas as pd

READERS = {".dta": "read_dta", ".sav": "read_sav", ".zsav": "read_sav", ".por": "read_por",
           ".sas7bdat": "read_sas7bdat", ".xpt": "read_xport"}  # fmt: skip
LABELLED_ENDINGS = tuple(READERS)  # endings of the names of files
XPORT_BYTES = 80  # a transport file is full records of these, and does not say how many


@dataclass(frozen=True, kw_only=True)
class DraftSchema:
    """A schema that the labels of a file make, and what it leaves to people.

    Fields: `schema`, one categorical attribute a column with labels; `unlabelled`, the other columns: what values they
    may have is not said, and must not be read off the records.
    """

    schema: Schema
    unlabelled: tuple[str, ...]


def draft_schema(path: str | Path) -> DraftSchema:
    """Return the schema that the value labels of a Stata, SPSS or SAS file make; reads no record.

    A label of a value that the file declares as missing, where it is the only such one, collects missing values, too.

    Raises: DataError when the file cannot be read; SchemaError when no column has labels.
    """
    place = Path(path)
    if place.suffix.lower() not in READERS:
        raise DataError(f"the file {shown(place.name)} has no labels; give one of {', '.join(READERS)}")
    meta = _meta(place)
    attributes = []
    for name, labels in meta.variable_value_labels.items():
        ordered = [str(label) for _, label in sorted(labels.items(), key=lambda pair: (str(type(pair[0])), pair[0]))]
        gone = {str(label) for value, label in labels.items() if _is_missing(meta, name, value)}
        texts = [text for text in dict.fromkeys(ordered) if text]
        if texts:
            missing = next(iter(gone)) if len(gone) == 1 else None
            attributes.append(Attribute.categorical(name, texts, missing=missing))
    if not attributes:
        raise SchemaError(f"no column of {shown(place.name)} has value labels; write the schema by hand")
    made = Schema(attributes)
    return DraftSchema(schema=made, unlabelled=tuple(name for name in meta.column_names if name not in made))


def labelled_columns(path: Path) -> dict[str, bool | None]:
    """Names of the columns, and whether they hold numbers, of which none has a label unless it is missing."""
    meta = _meta(path)
    types, labels = meta.readstat_variable_types, meta.variable_value_labels
    return {
        name: types[name] != "string" and all(_is_missing(meta, name, value) for value in labels.get(name, ()))
        for name in meta.column_names
    }


def labelled_batches(path: Path, names: Sequence[str], rows: int) -> Iterator[Batch]:
    """The named columns, batch by batch, with labels in place of the values that have one."""
    what = f"the file {shown(path.name)}"
    with closing(_said(path, names=list(names), rows=rows)) as found:
        meta = _meta_of(path, next(found))
        check_columns(meta.column_names, names)
        if path.suffix.lower() == ".xpt" and path.stat().st_size % XPORT_BYTES:  # where it breaks off, it just ends
            raise DataError(f"{what} breaks off within a record of {XPORT_BYTES} bytes; copy it again, whole")
        done, total, limits = 0, meta.number_rows, {name: _float_limit(meta, name) for name in names}
        clocks = _clocks(path, meta, names)
        for (count, kinds), held in found:
            done += count
            columns = tuple(_named(_values(*own), meta, name) for *own, name in zip(kinds, held, names, strict=False))
            fraction = done / total if total else None
            fraction = None if fraction is None else min(1.0, fraction)
            yield Batch(columns=columns, rows=count, fraction=fraction, float_limits=limits, clocks=clocks)


def _clocks(path: Path, meta: Any, names: Sequence[str]) -> dict[str, Clock]:
    """The clocks of the named columns whose display format is one of dates."""
    forms = meta.original_variable_types
    clocks = {name: clock_of(path.suffix.lower(), str(forms.get(name) or "")) for name in names}
    return {name: clock for name, clock in clocks.items() if clock is not None}


def _named(values: pd.Series, meta: Any, name: str) -> Any:
    """A column with its labels, told apart once per distinct value."""
    import pandas as pd

    from engine.release.records.sources import array_of

    codes, found = pd.factorize(values)
    labels = meta.variable_value_labels.get(name, {})
    texts = [labels[v] if v in labels else None if _is_missing(meta, name, v) else v for v in found]
    named = pd.Series([*texts, None], dtype=object)
    return array_of(named.iloc[codes].reset_index(drop=True))


def _float_limit(meta: Any, name: str) -> int:
    """Return the size from which on a column stores equal numbers for different whole ones.

    Stata has floats of 32 bits, and SAS cuts the mantissa of a double to the length of its column, of 3 to 8 bytes.
    """
    if meta.readstat_variable_types[name] == "float":
        return FLOAT_LIMITS[4]
    width = meta.variable_storage_width[name]
    return 2 ** (8 * width - 11) if meta.readstat_variable_types[name] == "double" and 3 <= width < 8 else EXACT


def _is_missing(meta: Any, name: str, value: Any) -> bool:
    """Whether the file declares a value as missing: in a range of SPSS, or one of the letters of Stata and SAS."""
    if value in meta.missing_user_values.get(name, ()):
        return True
    ranges = meta.missing_ranges.get(name, ())
    return any(type(value) is type(span["lo"]) and span["lo"] <= value <= span["hi"] for span in ranges)


def _meta(path: Path) -> Any:
    with closing(_said(path, names=None, rows=0)) as found:
        return _meta_of(path, next(found))


def _meta_of(path: Path, told: dict[str, Any]) -> Any:
    """What a file says of its columns; values that have labels may be numbers, which no key of JSON is."""
    labels = {name: dict(own) for name, own in told.pop("labels").items()}
    if not all(isinstance(name, str) for name in told["column_names"]):
        raise DataError(
            f"the file {shown(path.name)} has a column without a name; it is damaged, or was not written whole"
        )
    return SimpleNamespace(**told, variable_value_labels=labels)


def _values(kind: str, held: bytes) -> pd.Series:
    import pandas as pd

    return pd.Series(json.loads(held), dtype=object) if kind == JSON else pd.Series(np.frombuffer(held, kind))


def _said(path: Path, **asked: Any) -> Generator[Any]:
    """What the process in which the file is read says: of its columns first, then of its rows."""
    reader = READERS[path.suffix.lower()]
    return heard(path, "pyreadstat", reader, "; save it as CSV.", kept=_missing_kept(path), **asked)


def _missing_kept(path: Path) -> dict[str, bool]:
    """Ask for the values that a file declares as missing; two readers know no such question, and give none of them."""
    return {} if path.suffix.lower() in (".por", ".xpt") else {"user_missing": True}
