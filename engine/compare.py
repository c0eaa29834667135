"""Compare mechanisms on one workload, each in a process of its own with limits on time and memory."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import pandas as pd

from engine.errors import Cancelled, EngineError, PlanError
from engine.mechanisms import MECHANISMS, forecast, mechanism_class, plan
from engine.privacy import Budget
from engine.workload import Workload

COLUMNS = ("mechanism", "rmse", "max_std", "gap", "seconds", "peak_mb", "status")
Choice = str | tuple[str, Mapping[str, Any]]
Progress = Callable[[float, str], object]


@dataclass(frozen=True, kw_only=True)
class _Job:
    label: str
    name: str
    options: Mapping[str, Any]


def compare(
    workload: Workload,
    budget: Budget,
    mechanisms: Sequence[Choice] | None = None,
    *,
    time_limit: float = 120.0,
    memory_limit: float = 4e9,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> pd.DataFrame:
    """Plan a workload with several mechanisms and say how each does; no data is touched.

    Parameters
    ----------
    mechanisms : names, or (name, options) pairs; by default every mechanism with each of its variants.
    time_limit, memory_limit : what one mechanism may take, in seconds and bytes; one that would take more says so.
    jobs : processes at once; by default one a core.
    progress : called with (fraction, text); returning False stops everything.

    Returns
    -------
    DataFrame with one row a mechanism, best first: mechanism; rmse and max_std in counts; gap, the relative distance of
    its weighted RMSE to the bound proven for its class; seconds; peak_mb; status, "ok" or the reason why there is no
    result.  A mechanism that fails never raises.

    >>> from engine.schema import Attribute, Schema
    >>> schema = Schema([Attribute.of_size("age", 4)])
    >>> found = compare(Workload.all_ways(schema, ways=(1,)), Budget(pcost=1.0), ["wff", "nonsense"])
    >>> found["status"].str[:13].tolist()
    ['ok', 'There is no m']
    """
    if not isinstance(workload, Workload) or not isinstance(budget, Budget):
        raise PlanError("A comparison needs a Workload and a Budget, such as Budget(pcost=1.0).")
    chosen = _jobs(mechanisms)
    rows: list[dict[str, Any]] = []
    waiting = []
    for job in chosen:
        reason = _refusal(job, workload, memory_limit)
        if reason:
            rows.append(_row(job, status=reason))
        else:
            waiting.append(job)
    rows += _run(waiting, workload, budget, time_limit, memory_limit, jobs or os.cpu_count() or 1, progress)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.sort_values("rmse", kind="stable", na_position="last", ignore_index=True)


def _jobs(mechanisms: Sequence[Choice] | None) -> list[_Job]:
    if mechanisms is None:
        mechanisms = [(m.name, options) for m in MECHANISMS for options in m.variants]
    out = []
    for choice in mechanisms:
        name, options = (choice, {}) if isinstance(choice, str) else choice
        words = ", ".join(f"{k}={v}" for k, v in options.items())
        out.append(_Job(label=f"{name} ({words})" if words else name, name=name, options=dict(options)))
    return out


def _refusal(job: _Job, workload: Workload, memory_limit: float) -> str:
    """Return why a job should not start, or nothing."""
    try:
        needed = forecast(workload, mechanism_class(job.name).name, **job.options)
    except EngineError as error:
        return str(error)
    if needed.memory > memory_limit:
        return f"It would need about {needed.memory / 1e9:.1f} GB, more than the limit of {memory_limit / 1e9:.1f} GB."
    return ""


def _row(job: _Job, status: str, **numbers: float) -> dict[str, Any]:
    return {"mechanism": job.label, "status": status} | numbers


def _run(
    waiting: list[_Job],
    workload: Workload,
    budget: Budget,
    time_limit: float,
    memory_limit: float,
    jobs: int,
    progress: Progress | None,
) -> list[dict[str, Any]]:
    context = multiprocessing.get_context("spawn")
    running: dict[Connection, tuple[_Job, Any, float]] = {}
    rows, total, text = [], len(waiting), workload.to_json()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                job = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                arguments = (sender, text, budget.pcost, job.name, job.options, time_limit, memory_limit)
                process = context.Process(target=_child, args=arguments, daemon=True)
                process.start()
                sender.close()
                running[receiver] = (job, process, time.monotonic())
            if progress is not None and progress(1.0 - (len(waiting) + len(running)) / total, "Comparing") is False:
                raise Cancelled("The comparison was cancelled.")
            for ready in wait(list(running), timeout=0.2):
                assert isinstance(ready, Connection)
                job, process, _ = running.pop(ready)
                rows.append(_result(job, ready))
                process.join()
            for receiver, (job, process, started) in list(running.items()):
                # planning stops itself at the limit; a process that does not is ended
                if time.monotonic() - started > time_limit + 15.0:
                    process.kill()
                    del running[receiver]
                    rows.append(_row(job, status=f"It took more than {time_limit:.0f} s and was ended."))
    finally:
        for _, process, _ in running.values():
            process.kill()
    return rows


def _result(job: _Job, receiver: Connection) -> dict[str, Any]:
    try:
        numbers, status = receiver.recv()
    except (EOFError, OSError):
        return _row(job, status="Its process ended without a result, most likely for want of memory.")
    return _row(job, status=status, **numbers)


def _child(
    sender: Connection,
    workload: str,
    pcost: float,
    name: str,
    options: dict[str, Any],
    time_limit: float,
    memory_limit: float,
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    try:
        asked = Workload.from_json(workload)
        made = plan(asked, Budget(pcost=pcost), name, time_limit=time_limit, memory_limit=memory_limit, **options)
        numbers = {"rmse": made.rmse, "max_std": made.max_variance**0.5, "gap": made.certificate.gap}
        peak = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, before) / 1024
        sender.send((numbers | {"seconds": time.perf_counter() - started, "peak_mb": peak}, "ok"))
    except EngineError as error:
        sender.send(({}, str(error)))
    except MemoryError:
        sender.send(({}, f"It ran out of the memory limit of {memory_limit / 1e9:.1f} GB."))
    finally:
        sender.close()
