"""Exceptions of the engine.

A message states what is wrong, what is allowed and what to do.  A message about records may contain
column names, public labels and the count of refused rows, but never a value that was read from
them.

    EngineError
    |-- SchemaError        the schema, or a file that describes it, is not usable   (also ValueError)
    |-- WorkloadError      a query group does not fit its attributes, or is too large (also ValueError)
    |-- BudgetError        a privacy budget is not a finite positive number         (also ValueError)
    |-- PlanError          a plan file is damaged, or the options do not fit        (also ValueError)
    |   `-- NotApplicable  the mechanism cannot answer this workload; the message has the reason
    |       `-- Unanswered a query with positive weight would have an infinite error
    |-- NotAnswerable      the measured strategy does not determine the query       (also ValueError)
    |-- DataError          records do not fit the public schema                     (also ValueError)
    |   `-- OtherRecords   a stored release was measured on other records
    |-- LimitExceeded      a forecast exceeds the time or memory limit              (also MemoryError)
    |-- Cancelled          the user, or a progress callback, stopped the work
    `-- LedgerError        the ledger cannot be trusted or written; nothing was spent
        |-- BudgetExceeded the spend would exceed the remaining budget of the dataset
        `-- ResultLost     budget was spent, but the result was never saved
"""

from __future__ import annotations


class EngineError(Exception):
    """Base class of the errors that the engine raises deliberately."""


class SchemaError(EngineError, ValueError):
    """The schema, or a file that describes it, is not usable."""


class WorkloadError(EngineError, ValueError):
    """A query group does not fit its attributes, or is too large."""


class BudgetError(EngineError, ValueError):
    """A privacy budget is not a finite positive number."""


class PlanError(EngineError, ValueError):
    """A plan file is damaged, or the options do not fit the mechanism."""


class NotApplicable(PlanError):
    """The mechanism cannot answer this workload."""


class Unanswered(NotApplicable):
    """A query with positive weight would not be answered; the message names its group."""


class NotAnswerable(EngineError, ValueError):
    """The measured strategy does not determine the query."""


class DataError(EngineError, ValueError):
    """Records do not fit the public schema."""


class OtherRecords(DataError):
    """A stored release was measured on other records than those given, so it was not returned.

    No noise was drawn and no budget was spent.

    Attributes
    ----------
    fact : what is wrong.
    remedy : what to do, in the terms of the interface.
    """

    def __init__(self, fact: str, remedy: str) -> None:
        super().__init__(fact, remedy)
        self.fact, self.remedy = fact, remedy

    def __str__(self) -> str:
        return f"{self.fact} {self.remedy}"


class LimitExceeded(EngineError, MemoryError):
    """A forecast of time or memory exceeds the limit."""


class Cancelled(EngineError):
    """The work was stopped on request; nothing was changed."""


class LedgerError(EngineError):
    """The ledger cannot be trusted or written; nothing was spent."""


class BudgetExceeded(LedgerError):
    """The spend would exceed the remaining budget of the dataset."""


class ResultLost(LedgerError):
    """The ledger contains the spend of a release whose result was never saved."""
