"""Every error the engine raises on purpose.

A message says what was given, what is allowed and what to do about it.  It never holds a value that was read
from records: column names, public labels and counts of refused rows are the most it may carry.

    EngineError
    |-- SchemaError        the schema, or a file that describes it, is not usable        (also ValueError)
    |-- WorkloadError      a query group does not fit its attributes, or is too large    (also ValueError)
    |-- BudgetError        a privacy budget that is no finite positive number            (also ValueError)
    |-- PlanError          a plan file is damaged, or the options do not fit             (also ValueError)
    |   `-- NotApplicable  the mechanism cannot serve this workload; the reason is the message
    |       `-- Unanswered a query that has a weight would have an infinite error
    |-- NotAnswerable      a query that the measured strategy says nothing about         (also ValueError)
    |-- DataError          records do not fit the public schema                          (also ValueError)
    |   `-- OtherRecords   a stored release was measured on other records than those given
    |-- LimitExceeded      a forecast passes the time or memory limit                    (also MemoryError)
    |-- Cancelled          the person, or a progress callback, asked to stop
    `-- LedgerError        the ledger cannot be trusted or written; nothing was spent
        |-- BudgetExceeded the spend would pass what is left for the dataset
        `-- ResultLost     budget was spent, but the result was never saved
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of every deliberate error."""


class SchemaError(EngineError, ValueError):
    """The schema, or a file that describes it, is not usable."""


class WorkloadError(EngineError, ValueError):
    """A query group does not fit its attributes, or is too large."""


class BudgetError(EngineError, ValueError):
    """A privacy budget that is no finite positive number."""


class PlanError(EngineError, ValueError):
    """A plan file is damaged, or the options do not fit the mechanism."""


class NotApplicable(PlanError):
    """The mechanism cannot serve this workload."""


class Unanswered(NotApplicable):
    """A query that has a weight would not be answered; the message names its group."""


class NotAnswerable(EngineError, ValueError):
    """A query that the measured strategy says nothing about."""


class DataError(EngineError, ValueError):
    """Records do not fit the public schema."""


class OtherRecords(DataError):
    """A stored release was measured on other records than those given; nothing was returned, drawn or spent.

    `fact` is what is wrong, `remedy` what to do, in the words of the interface.
    """

    def __init__(self, fact: str, remedy: str) -> None:
        super().__init__(fact, remedy)
        self.fact, self.remedy = fact, remedy

    def __str__(self) -> str:
        return f"{self.fact} {self.remedy}"


class LimitExceeded(EngineError, MemoryError):
    """A forecast of time or memory passes the limit that was set."""


class Cancelled(EngineError):
    """The work was stopped on request; nothing was changed."""


class LedgerError(EngineError):
    """The ledger cannot be trusted or written; nothing was spent."""


class BudgetExceeded(LedgerError):
    """The spend would pass what is left for the dataset."""


class ResultLost(LedgerError):
    """Budget was spent under this key, but its result was never saved."""
