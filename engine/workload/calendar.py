"""Calendar periods as cells: consecutively numbered years, quarters, months or days.

    unit      label of a cell    number of a cell
    year      2024               the year
    quarter   2024-Q1            4 * year + quarter - 1
    month     2024-03            12 * year + month - 1
    day       2024-03-15         day 1 is 0001-01-01

Texts are parsed as ISO 8601 in its extended form, or by a declared format. A time with a time zone
or an offset from UTC is assigned to its day in UTC, any other time to the day that is written.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass
from functools import lru_cache

from engine._format import quote_public
from engine.errors import SchemaError

UNITS = ("year", "quarter", "month", "day")  # from coarse to fine
# Cells end one year before the last year of Python's calendar, so that the day after a cell is a
# date.
MAX_YEAR = 9998
_MAX_FORMAT_LENGTH = 40
# Directive of a date format -> largest number of digits.
_MAX_DIGITS = {"Y": 4, "m": 2, "d": 2, "H": 2, "M": 2, "S": 2}
_REQUIRED_DIRECTIVES = {"year": "Y", "quarter": "Ym", "month": "Ym", "day": "Ymd"}

_ISO = re.compile(
    r"(?P<Y>\d{4})(?:-Q(?P<q>[1-4])|-(?P<m>\d{2})(?:-(?P<d>\d{2})(?:[T ](?P<H>\d{2}):(?P<M>\d{2})"
    r"(?::(?P<S>\d{2})(?:[.,]\d+)?)?(?P<zone> ?Z|[+-]\d{2}(?::?\d{2})?)?)?)?)?",
    re.ASCII,
)


@dataclass(frozen=True)
class Period:
    """Calendar period with its first day and its unit, one of `UNITS`."""

    day: datetime.date
    unit: str

    def number(self, unit: str) -> int | None:
        """Return the number of the year, quarter, month or day (``unit``) that contains the period.

        The result is None if the period is longer than one ``unit``.

        >>> Period(datetime.date(2024, 3, 1), "month").number("quarter")
        8096
        """
        return None if UNITS.index(self.unit) < UNITS.index(unit) else cell_number(self.day, unit)

    @property
    def last_day(self) -> datetime.date:
        """The last day of the period."""
        if self.unit == "day":
            return self.day
        if (
            self.day.year == datetime.MAXYEAR
            and self.day.month + {"year": 12, "quarter": 3, "month": 1}[self.unit] > 12
        ):
            return datetime.date.max
        return first_day(cell_number(self.day, self.unit) + 1, self.unit) - datetime.timedelta(
            days=1
        )


def cell_number(day: datetime.date, unit: str) -> int:
    """Return the number of the year, quarter, month or day (``unit``) that contains a day.

    >>> cell_number(datetime.date(2024, 3, 15), "month") == 12 * 2024 + 2
    True
    """
    if unit == "day":
        return day.toordinal()
    return {
        "year": day.year,
        "quarter": 4 * day.year + (day.month - 1) // 3,
        "month": 12 * day.year + day.month - 1,
    }[unit]


def first_day(number: int, unit: str) -> datetime.date:
    """Return the first day of the year, quarter, month or day with this number.

    >>> first_day(8096, "quarter")
    datetime.date(2024, 1, 1)
    """
    if unit == "day":
        return datetime.date.fromordinal(number)
    months = {"year": 12, "quarter": 3, "month": 1}[unit] * number
    return datetime.date(months // 12, months % 12 + 1, 1)


def cell_label(number: int, unit: str) -> str:
    """Return the ISO text of the year, quarter, month or day with this number.

    >>> cell_label(8096, "quarter"), cell_label(738960, "day")
    ('2024-Q1', '2024-03-15')
    """
    day = first_day(number, unit)
    if unit == "quarter":
        return f"{day.year:04d}-Q{(day.month + 2) // 3}"
    return day.isoformat()[: {"year": 4, "month": 7, "day": 10}[unit]]


def read_period(text: str, date_format: str | None = None) -> Period | None:
    """Return the period that a text denotes, or None if the text denotes no period.

    The text is in ``date_format`` or, if it does not match this format or there is none, in ISO
    8601.

    >>> read_period("2024-Q2").last_day
    datetime.date(2024, 6, 30)
    >>> read_period("2024-01-01T00:30+02:00").day, read_period("1.2.2024", "%d.%m.%Y").day
    (datetime.date(2023, 12, 31), datetime.date(2024, 2, 1))
    """
    text = text.strip(" \t\r\n")
    if date_format is not None and (match := _pattern(date_format).fullmatch(text)) is not None:
        return _period(match.groupdict())
    match = _ISO.fullmatch(text)
    return None if match is None else _period(match.groupdict())


def _period(parts: dict[str, str | None]) -> Period | None:
    """Return the period of a parsed text; None if it is not in the calendar, such as month 13.

    Each key of ``parts`` is one of Y, m, d, H, M, S, q (quarter) and zone. Its value is the text of
    this part. A part that the parsed text does not contain is absent or None.
    """
    year, month, day = (int(parts.get(key) or 1) for key in "Ymd")
    if quarter := parts.get("q"):
        month, unit = 3 * int(quarter) - 2, "quarter"
    elif parts.get("d"):
        unit = "day"
    else:
        unit = "month" if parts.get("m") else "year"
    try:
        hour, minute, second = (int(parts.get(key) or 0) for key in "HMS")
        moment = datetime.datetime(year, month, day, hour, minute, second)
        return Period((moment - _offset(parts.get("zone"))).date(), unit)
    except (ValueError, OverflowError):
        return None


def _offset(zone: str | None) -> datetime.timedelta:
    """Parse an offset from UTC: +02:00, +0200, +02 or Z.

    Raises ValueError for more than 23 hours or 59 minutes.
    """
    if zone is None or zone.endswith("Z"):
        return datetime.timedelta()
    hours, minutes = int(zone[1:3]), int(zone[3:].strip(":") or 0)
    if hours > 23 or minutes > 59:
        raise ValueError
    offset = datetime.timedelta(hours=hours, minutes=minutes)
    return -offset if zone[0] == "-" else offset


@lru_cache(maxsize=256)
def _pattern(date_format: str) -> re.Pattern[str]:
    """Return the regular expression that matches the texts of a valid date format."""
    parts = re.findall(r"%.|[^%]+", date_format)
    out = []
    for i, part in enumerate(parts):
        if part[0] != "%":
            out.append(re.escape(part))
            continue
        # Without a separator between two numbers, as in %Y%m, only a fixed number of digits
        # determines where the first number ends.
        is_adjacent = any(
            0 <= k < len(parts) and (parts[k][0] == "%" or parts[k][-1].isdigit())
            for k in (i - 1, i + 1)
        )
        max_digits = _MAX_DIGITS[part[1]]
        min_digits = max_digits if is_adjacent or part[1] == "Y" else 1
        out.append(rf"(?P<{part[1]}>\d{{{min_digits},{max_digits}}})")
    return re.compile("".join(out), re.ASCII)


def check_format(date_format: str, unit: str, subject: str) -> None:
    """Raise SchemaError if a date format is invalid, leaves the cell open or misreads ISO dates.

    Parameters
    ----------
    unit : calendar unit of the cells.
    subject : name of the attribute in error messages.

    >>> check_format("%d.%m.%Y", "day", "attribute 'birth'")
    """
    allowed = ", ".join(f"%{key}" for key in _MAX_DIGITS)
    keys = re.findall(r"%(.?)", date_format)
    if (
        len(date_format) > _MAX_FORMAT_LENGTH
        or any(key not in _MAX_DIGITS for key in keys)
        or len(set(keys)) < len(keys)
    ):
        raise SchemaError(
            f"{subject} has the invalid date format {quote_public(date_format)}; give at most"
            f" {_MAX_FORMAT_LENGTH} characters with {allowed}, each at most once"
        )
    if absent := [f"%{key}" for key in _REQUIRED_DIRECTIVES[unit] if key not in keys]:
        raise SchemaError(
            f"{subject} has cells of one {unit}, but a date format without {' and '.join(absent)};"
            f" add {' and '.join(absent)} to the format"
        )
    # ISO dates are accepted in addition to every format. A format that matches ISO dates must
    # therefore read the same day from them.
    sample = datetime.date(2024, 3, 4)
    if (match := _pattern(date_format).fullmatch("2024-03-04")) and _period(
        match.groupdict()
    ) != Period(sample, "day"):
        raise SchemaError(
            f"{subject} has the date format {quote_public(date_format)}, which reads the ISO date"
            " 2024-03-04 as another day. ISO dates are always accepted; give a format that does not"
            " match them"
        )
