"""Count Dask DataFrames: the workers count each partition and add the counts."""

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
MAX_CONCURRENT_PARTITIONS = 64  # the tables of each partition may be in memory
# parts of the names of exception types that mean that a cluster lost its workers
_LOST_WORKER_ERRORS = ("killed", "cancelled", "commclosed", "timeout", "connection")


def is_dask_frame(data: Any) -> bool:
    """Whether data is a Dask DataFrame."""
    return (
        hasattr(data, "npartitions") and hasattr(data, "get_partition") and hasattr(data, "dtypes")
    )


def count_partitions(
    data: Any, names: Sequence[str], count: Callable[[Any], Counts], progress: Progress | None
) -> Counts:
    """Return the sum of the counts of all partitions of a Dask DataFrame.

    The workers send counts and no records to this process.

    Parameters
    ----------
    names : columns that `count` needs.
    count : function that counts one partition, a pandas DataFrame.
    progress : called after each task; on a cluster after tasks that finish together, and at regular
        intervals.

    Raises
    ------
    DataError
        A column is missing, a partition cannot be read, or workers were lost or lack this library.
    """
    dask = import_optional("dask", DASK_FRAME)
    check_columns(list(data.columns), names)
    listener = check_callback(progress)
    parts = without_values(lambda: data[list(names)].to_delayed(), DASK_FRAME)
    counts: Counts | None = None
    for start in range(0, len(parts), MAX_CONCURRENT_PARTITIONS):
        stop = min(start + MAX_CONCURRENT_PARTITIONS, len(parts))
        tasks = [dask.delayed(count)(part) for part in parts[start:stop]]
        sums = tasks
        while len(sums) > 1:  # add pairs, so that a worker holds few tables at a time
            sums = [
                dask.delayed(add)(*sums[i : i + 2]) if i + 1 < len(sums) else sums[i]
                for i in range(0, len(sums), 2)
            ]
        if listener is None:
            batch_counts = _compute_locally(dask, sums[0], None)
        else:
            report_share = partial(_report_share, listener, start / len(parts), stop / len(parts))
            if (cluster := _cluster_client(dask)) is None:
                batch_counts = _compute_locally(dask, sums[0], partial(_report_task, report_share))
            else:
                batch_counts = _compute_on_cluster(cluster, tasks, sums[0], report_share)
            listener(stop / len(parts), COUNTING_TEXT)
        counts = batch_counts if counts is None else counts + batch_counts
    assert counts is not None  # every Dask frame has at least one partition
    return counts


def _compute_locally(dask: Any, task_graph: Any, report_task: Callable[..., None] | None) -> Counts:
    """Compute a task graph in this process.

    `report_task` is called after each task; its exception stops the computation and is raised.
    """
    raised: list[Exception] = []

    def after(*args: Any) -> None:
        try:
            if report_task is not None:
                report_task(*args)
        except Exception as error:
            raised.append(error)
            raise

    try:
        with dask.callbacks.Callback(posttask=after):
            counts: Counts = without_values(task_graph.compute, DASK_FRAME, _explain_error)
    except EngineError:
        if raised:
            raise raised[0] from None
        raise
    return counts


def _cluster_client(dask: Any) -> Any:
    """Return the synchronous client of the default scheduler, or None without a cluster."""
    client = getattr(dask.base.get_scheduler(), "__self__", None)
    return (
        client if hasattr(client, "gather") and not getattr(client, "asynchronous", True) else None
    )


def _compute_on_cluster(
    client: Any, tasks: Sequence[Any], total: Any, report_share: Callable[[float], object]
) -> Counts:
    """Compute the task `total`, the sum of `tasks`, on a cluster.

    `report_share` is called with the finished share of the tasks; its exception cancels them.
    """
    wait: Any = import_optional("distributed", DASK_FRAME).wait

    # the future of a task shows whether the task is finished; finished ones are removed from
    # `futures`, so that the cluster can free their results once they are added to the total
    *futures, result = without_values(
        lambda: client.compute([*tasks, total]), DASK_FRAME, _explain_error
    )

    def wait_briefly() -> None:
        with suppress(
            TimeoutError, CancelledError
        ):  # result.result() below reports cancelled tasks
            wait([*futures, result], timeout=POLL_INTERVAL_S, return_when="FIRST_COMPLETED")

    try:
        while not result.done():
            without_values(wait_briefly, DASK_FRAME, _explain_error)
            futures = [future for future in futures if not future.done()]
            if not result.done():  # lost tasks count as done, too
                report_share(1.0 - len(futures) / len(tasks))
        counts: Counts = without_values(result.result, DASK_FRAME, _explain_error)
    except BaseException:
        with suppress(Exception):  # the cluster may have ended
            client.cancel([*futures, result])
        raise
    return counts


def _report_share(listener: Listener, low: float, high: float, share: float) -> None:
    """Report progress during a batch of tasks to a listener.

    Parameters
    ----------
    low, high : fraction of all tasks that is finished before and after this batch.
    share : finished fraction of this batch.
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
    """Describe an error by its types alone, because its text may contain values of records."""
    if isinstance(error, ImportError):
        return (
            "the Dask workers lack this library or one that it needs; install the same version on"
            " every worker"
        )
    kinds = " ".join(kind.__name__.lower() for kind in type(error).__mro__)
    if any(word in kinds for word in _LOST_WORKER_ERRORS):
        return "the Dask workers were lost before all partitions were counted; count again"
    return ""
