"""Comparisons of an attribute of dates with a date, evaluated on cells."""

from __future__ import annotations

import datetime

import numpy as np
import numpy.typing as npt

from engine._format import quote_public
from engine.errors import WorkloadError
from engine.workload.attribute import Attribute
from engine.workload.calendar import read_period


def compared_dates(
    attribute: Attribute, sign: str, constant: str, *, clip: bool = False
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.intp]]:
    """Evaluate a comparison on the cells of an attribute of dates.

    Parameters
    ----------
    sign : comparison operator of SQL.
    constant : a date, a longer calendar period, which denotes all its days, or the label of missing
        values, which supports = and <> only. The cell for missing values is not ordered relative to
        the dates, so only <> holds for it.
    clip : whether the first and the last cell include all earlier and later days.

    Returns
    -------
    mask of the cells in which all days satisfy the comparison, shape (size,), and the positions of the
    cells in which only some days do.

    Raises
    ------
    WorkloadError : if the constant is not a date, a period or that label.

    >>> month = Attribute.dates("day", "2024-01", "2024-04")
    >>> compared_dates(month, ">=", "2024-Q2"), compared_dates(month, "<", "2024-02-10")
    ((array([False, False, False,  True]), array([], dtype=int64)), (array([ True, False, False, False]), array([1])))
    """
    cell = np.arange(attribute.size)
    if constant == attribute.missing:
        if sign not in ("=", "<>"):
            raise WorkloadError(f"{quote_public(constant)} is not a date, so {sign} is undefined. Use = or <>.")
        return (cell == attribute.date_cells) == (sign == "="), np.array([], np.intp)
    period = read_period(constant)
    if period is None:
        raise WorkloadError(
            f"'{attribute.name}' has dates, but {quote_public(constant)} is not a date. Write it as in "
            f"'{attribute.label(0)}' or '{attribute.days(0)[0]}'."
        )
    if attribute.unit == "day":
        low = attribute.first_cell + np.arange(attribute.date_cells)
        high = low.copy()
    else:
        days = np.array([[day.toordinal() for day in attribute.days(i)] for i in range(attribute.date_cells)])
        low, high = days[:, 0].copy(), days[:, 1].copy()
    if clip:
        low[0], high[-1] = 0, datetime.date.max.toordinal() + 1
    first, last = period.day.toordinal(), period.last_day.toordinal()
    if sign in ("=", "<>"):
        yes, no = (first <= low) & (high <= last), (high < first) | (last < low)
    elif sign in ("<", ">="):
        yes, no = high < first, low >= first
    else:
        yes, no = high <= last, low > last
    cut = np.flatnonzero(~(yes | no))
    satisfied = np.zeros(attribute.size, dtype=bool)
    satisfied[: attribute.date_cells] = no if sign in ("<>", ">", ">=") else yes
    satisfied[attribute.date_cells :] = sign == "<>"
    return satisfied, cut


def cut_text(attribute: Attribute, i: int) -> str:
    """Return the description of a cell that a comparison cuts, for error messages."""
    first, last = attribute.days(i)
    return f"the cell {attribute.label(i)} of '{attribute.name}', which contains {first} to {last}; use bounds of cells"
