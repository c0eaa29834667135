"""Comparisons of an attribute of dates with a date, decided on whole cells."""

from __future__ import annotations

import datetime

import numpy as np
import numpy.typing as npt

from engine._format import shown
from engine.errors import WorkloadError
from engine.workload.attribute import Attribute
from engine.workload.calendar import read_period


def compared_dates(
    attribute: Attribute, sign: str, constant: str, *, clip: bool = False
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.intp]]:
    """Return the cells whose every day meets a comparison, shape (size,), and the cells that it cuts.

    Parameters
    ----------
    constant : a date, a longer calendar period, which stands for all its days, or the label of missing values, which
        can be equal or not.  The cell of missing values is before, at and after no date.
    clip : whether the first and the last cell also hold the days before and after.

    Raises
    ------
    WorkloadError : the constant is none of these.

    >>> month = Attribute.dates("day", "2024-01", "2024-04")
    >>> compared_dates(month, ">=", "2024-Q2"), compared_dates(month, "<", "2024-02-10")
    ((array([False, False, False,  True]), array([], dtype=int64)), (array([ True, False, False, False]), array([1])))
    """
    cell = np.arange(attribute.size)
    if constant == attribute.missing:
        if sign not in ("=", "<>"):
            raise WorkloadError(f"{shown(constant)} is no date, so {sign} means nothing. Use = or <>.")
        return (cell == attribute.date_cells) == (sign == "="), np.array([], np.intp)
    period = read_period(constant)
    if period is None:
        raise WorkloadError(
            f"'{attribute.name}' holds dates, and {shown(constant)} is none. Write it as in '{attribute.label(0)}' or "
            f"'{attribute.days(0)[0]}'."
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
    held = np.zeros(attribute.size, dtype=bool)
    held[: attribute.date_cells] = no if sign in ("<>", ">", ">=") else yes
    held[attribute.date_cells :] = sign == "<>"
    return held, cut


def cut_text(attribute: Attribute, i: int) -> str:
    """Return what a comparison that cuts cell i can be written as instead."""
    first, last = attribute.days(i)
    return f"the cell {attribute.label(i)} of '{attribute.name}', which holds {first} to {last}; use whole cells"
