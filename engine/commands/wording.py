"""Engine messages in the words of the command line: options instead of Python arguments."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from engine.texts import translate_arguments

# Python argument -> option; an argument that has no option is described
OPTIONS = {
    "centers": "--options centers={}",
    "clip": "clip",
    "count_column": "--count-column {}",
    "doubtful_cv": "--doubtful-cv {}",
    "fit": "--fit {}",
    "ignore": "--ignore {}",
    "integer=True": "--whole",
    "max_records": "--options max_records={}",
    "memory_limit": "the memory limit (of plans: --options memory_limit=BYTES)",
    "missing": "missing",
    "neighbours": "--neighbours {}",
    "on_changed": "--on-changed {}",
    "on_refused=drop": "a smaller file",
    "on_refused": "the treatment of refused rows",
    "other": "other",
    "rehearsal=False": "the command release",
    "rehearsal=True": "the command rehearse",
    "rows_per_person": "--rows-per-person {}",
    "split_by_person=True": "--split-by-person",
    "split_by_person": "--split-by-person",
    "suppressed_cv": "--suppressed-cv {}",
    "time_limit": "--options time_limit={}",
}


def in_options(message: object) -> str:
    """Return the text of a message or an error with the options of the command line.

    >>> in_options("Plan for rows_per_person=3, or leave out ignore=['n', 'all rows'].")
    "Plan for --rows-per-person 3, or leave out --ignore n 'all rows'."
    """
    return translate_arguments(str(message), OPTIONS, _values)


def _values(values: Sequence[str]) -> str:
    return " ".join(text if text == "..." else shlex.quote(text) for text in values)
