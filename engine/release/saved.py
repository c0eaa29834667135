"""A measurement as a file of its own, apart from any ledger."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.checks import instance
from engine.errors import PlanError
from engine.mechanisms import load_plan, mechanism_class
from engine.release.archive import Archive, write_archive
from engine.release.fresh_file import fresh_file

if TYPE_CHECKING:
    from engine.release.reconstruct import Measurement

FORMAT = "saved/1"
NAMES = ("dataset", "key", "utc", "rehearsal")


def save_measurement(found: Measurement, path: str | os.PathLike[str]) -> None:
    """Write a measurement with its plan; see `Measurement.save`."""
    mechanism_class(found.plan.mechanism)  # what cannot be planned could not be loaded
    head = {"format": FORMAT} | {name: getattr(found, name) for name in NAMES}
    answers, estimates = found.answers_on_grid.items(), found.estimates.items()
    with fresh_file(_place(path), "measurement", error=PlanError) as file:
        texts = {"plan.json": found.plan.to_json()}
        write_archive(file, head, None, texts=texts, answers=answers, estimates=estimates)


def _place(path: str | os.PathLike[str]) -> Path:
    instance("file", path, (str, os.PathLike), give="its path", error=PlanError)
    return Path(path)


def saved_measurement(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the fields of the measurement in a file; see `Measurement.load`."""
    with Archive(path=_place(path)) as archive:
        head = archive.head(format=FORMAT)
        plan = load_plan(archive.text("plan.json"))
        answers, estimates = archive.everything("answers"), archive.everything("estimates")
        if estimates.keys() != plan.answering.keys():
            raise ValueError("these are estimates of another plan")
        return {name: head[name] for name in NAMES} | {
            "plan": plan,
            "answers_on_grid": answers,
            "estimates": estimates,
        }
