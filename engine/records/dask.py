"""Counts of Dask DataFrames: the workers count each partition and add the counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from operator import add
from typing import Any

from engine.errors import EngineError
from engine.progress import Listener, Progress, check_callback
from engine.records.batches import check_columns, import_optional, without_values
from engine.records.counts import Counts
from engine.records.database import POLL_INTERVAL_S

DASK_FRAME, COUNTING_TEXT = "the Dask frame", "Counting on the workers"
# Largest number of partitions that are counted at the same time, because memory may hold the tables
# of all of them.
MAX_CONCURRENT_PARTITIONS = 64
# If the name of the type of an exception contains one of these words, the cluster lost its workers.
_LOST_WORKER_ERRORS = ("killed", "cancelled", "commclosed", "timeout", "connection")


def is_dask_frame(data: Any) -> bool:
    """Return whether data is a Dask DataFrame."""
    return (
        hasattr(data, "npartitions") and hasattr(data, "get_partition") and hasattr(data, "dtypes")
    )


def count_partitions(
    data: Any, names: Sequence[str], count: Callable[[Any], Counts], progress: Progress | None
) -> Counts:
    """Count all partitions of a Dask DataFrame and return the sum of their counts.

    The workers send only counts, and no records, to this process.

    Parameters
    ----------
    names : columns that `count` needs.
    count : function that counts one partition, given as a pandas DataFrame.
    progress : function that receives a fraction and a text. Without a cluster, it is called after
        each task; on a cluster, whenever tasks finish and at regular intervals.

    Raises
    ------
    DataError
        A column is missing, a partition cannot be read, the workers were lost, or this library is
        not installed on the workers.
    """
    dask = import_optional("dask", DASK_FRAME)
    check_columns(list(data.columns), names)
    listener = check_callback(progress)
    parts = without_values(lambda: data[list(names)].to_delayed(), DASK_FRAME)
    counts: Counts | None = None
    for start in range(0, len(parts), MAX_CONCURRENT_PARTITIONS):
        stop = min(start + MAX_CONCURRENT_PARTITIONS, len(parts))
        tasks = [dask.delayed(count)(part) for part in parts[start:stop]]
        # counts are added in pairs, so that a worker needs memory for few tables at a time
        sums = tasks
        while len(sums) > 1:
            sums = [
                dask.delayed(add)(*sums[i : i + 2]) if i + 1 < len(sums) else sums[i]
                for i in range(0, len(sums), 2)
            ]
        (total,) = sums
        if listener is None:
            batch_counts = _compute(dask, total, None)
        else:
            report_share = partial(_report_share, listener, start / len(parts), stop / len(parts))
            if (cluster := _cluster_client(dask)) is None:
                batch_counts = _compute(dask, total, partial(_report_task, report_share))
            else:
                batch_counts = _compute_on_cluster(cluster, tasks, total, report_share)
            listener(stop / len(parts), COUNTING_TEXT)
        counts = batch_counts if counts is None else counts + batch_counts
    # every Dask frame has at least one partition
    assert counts is not None
    return counts


def _compute(dask: Any, task_graph: Any, report_task: Callable[..., None] | None) -> Counts:
    """Compute a task graph with the default scheduler of Dask.

    Without a cluster, ``report_task`` is called after each task. If it raises an exception, the
    computation stops and this exception is raised.
    """
    report_errors: list[Exception] = []

    def after_task(*args: Any) -> None:
        try:
            if report_task is not None:
                report_task(*args)
        except Exception as error:
            report_errors.append(error)
            raise

    try:
        with dask.callbacks.Callback(posttask=after_task):
            counts: Counts = without_values(task_graph.compute, DASK_FRAME, _explain_error)
    except EngineError:
        # `without_values` replaces every exception by an EngineError; an exception that
        # `report_task` raised is passed on unchanged
        if report_errors:
            raise report_errors[0] from None
        raise
    return counts


def _cluster_client(dask: Any) -> Any:
    """Return the client of the cluster that Dask uses by default.

    The result is None if there is no cluster, or if the client is for asynchronous code.
    """
    client = getattr(dask.base.get_scheduler(), "__self__", None)
    return (
        client if hasattr(client, "gather") and not getattr(client, "asynchronous", True) else None
    )


def _compute_on_cluster(
    client: Any, tasks: Sequence[Any], total: Any, report_share: Callable[[float], object]
) -> Counts:
    """Compute on a cluster the task `total`, which adds the results of `tasks`.

    ``report_share`` is called with the fraction of `tasks` that is finished. If it raises an
    exception, all tasks are cancelled and this exception is raised.
    """
    wait: Any = import_optional("distributed", DASK_FRAME).wait

    # The future of each task shows whether the task is finished. Futures of finished tasks are
    # removed from `futures`, so that the cluster can free results that were added to the total.
    *futures, result = without_values(
        lambda: client.compute([*tasks, total]), DASK_FRAME, _explain_error
    )

    def wait_briefly() -> None:
        # cancelled tasks are reported by `result.result` below
        with suppress(TimeoutError, CancelledError):
            wait([*futures, result], timeout=POLL_INTERVAL_S, return_when="FIRST_COMPLETED")

    try:
        while not result.done():
            without_values(wait_briefly, DASK_FRAME, _explain_error)
            futures = [future for future in futures if not future.done()]
            # futures of failed and lost tasks are done too; after a failure `result` is done, and
            # no progress is reported
            if not result.done():
                report_share(1.0 - len(futures) / len(tasks))
        counts: Counts = without_values(result.result, DASK_FRAME, _explain_error)
    except BaseException:
        # the cluster may have ended
        with suppress(Exception):
            client.cancel([*futures, result])
        raise
    return counts


def _report_share(listener: Listener, low: float, high: float, share: float) -> None:
    """Call a progress listener while a batch of tasks is computed.

    Parameters
    ----------
    low, high : fractions of all tasks that are finished when this batch starts and when it ends.
    share : fraction of this batch that is finished.
    """
    listener(low + (high - low) * min(1.0, share), COUNTING_TEXT)


def _report_task(
    report_share: Callable[[float], object],
    _key: Any,
    _result: Any,
    tasks: Any,
    state: Any,
    _by: Any,
) -> None:
    report_share(len(state["finished"]) / len(tasks))


def _explain_error(error: Exception) -> str:
    """Return a message for an error of a known type; "" for other types.

    The text of the error is not used, because it may contain values of records.
    """
    if isinstance(error, ImportError):
        return (
            "this library, or a library that it needs, is not installed on the Dask workers;"
            " install the same versions on every worker"
        )
    kinds = " ".join(kind.__name__.lower() for kind in type(error).__mro__)
    if any(word in kinds for word in _LOST_WORKER_ERRORS):
        return "the Dask workers were lost before all partitions were counted; count again"
    return ""
