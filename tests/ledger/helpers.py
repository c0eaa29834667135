"""Helper functions of the ledger tests."""

from engine.ledger import release_key
from tests.release.ledger_worker import FORK
from tests.waiting import CEILING


def spend(ledger, attempt=1, pcost=0.25, dataset="adult", plan_hash="1f3a"):
    """Spend budget of a dataset under the key of (dataset, plan, attempt); return the receipt."""
    key = release_key(dataset=dataset, plan_hash=plan_hash, attempt=attempt)
    return ledger.spend(dataset=dataset, key=key, pcost=pcost, plan_hash=plan_hash)


def in_child(work) -> str:
    """Run a function in a forked process; return its result, its error or its exit code as text."""
    queue = FORK.SimpleQueue()

    def run():
        try:
            queue.put(str(work()))
        except Exception as error:
            queue.put(f"{type(error).__name__}: {error}")

    process = FORK.Process(target=run)
    process.start()
    process.join(CEILING)
    return f"died with {process.exitcode}" if queue.empty() else queue.get()


def fill(ledger):
    """Add three spends with results and a note to a ledger, and return it."""
    for attempt in (1, 2, 3):
        receipt = spend(ledger, attempt=attempt)
        ledger.save_result(receipt=receipt, content=b"noisy")
    ledger.note(dataset="adult", kind="decision", text="enough")
    return ledger
