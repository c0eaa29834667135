"""Exceptions of the engine.

A message states what is wrong, what is allowed and what to do.  A message about records may contain
column names, public labels and the count of refused rows, but never a value that was read from
them.

    EngineError
    |-- SchemaError        the schema, or a file that describes it, is not usable   (also ValueError)
    |-- WorkloadError      a query group, or an argument that defines queries, is not valid (also ValueError)
    |-- BudgetError        a privacy budget is not valid                            (also ValueError)
    |-- PlanError          a plan, a file or an argument of a function is not valid (also ValueError)
    |   `-- NotApplicable  a mechanism or rule cannot be used; the message has the reason
    |       `-- Unanswered a query with positive weight would have an infinite error
    |-- NotAnswerable      the measured strategy does not determine the query       (also ValueError)
    |-- DataError          records cannot be read, or do not fit the public schema  (also ValueError)
    |   `-- OtherRecords   a stored release was measured on other records
    |-- LimitExceeded      time, memory or the size of a table exceeds a limit      (also MemoryError)
    |-- Cancelled          the user, or a progress callback, stopped the work
    `-- LedgerError        the ledger cannot be used, or does not allow the action
        |-- BudgetExceeded the spend would exceed the remaining budget of the dataset
        `-- ResultLost     budget was spent, but the result is missing or was changed
"""

from __future__ import annotations


class EngineError(Exception):
    """Base class of the errors that the engine raises deliberately."""


class SchemaError(EngineError, ValueError):
    """The schema, or a file that describes it, is not usable."""


class WorkloadError(EngineError, ValueError):
    """A query group, or an argument that defines queries, is not valid."""


class BudgetError(EngineError, ValueError):
    """A privacy budget is not valid, for example not a finite positive number."""


class PlanError(EngineError, ValueError):
    """A plan, a file or an argument of a function is not valid."""


class NotApplicable(PlanError):
    """A mechanism cannot answer this workload, or a selection rule cannot be used for it."""


class Unanswered(NotApplicable):
    """A query with positive weight would not be answered; the message names its group."""


class NotAnswerable(EngineError, ValueError):
    """The measured strategy does not determine the query."""


class DataError(EngineError, ValueError):
    """Records cannot be read, or do not fit the public schema."""


class OtherRecords(DataError):
    """A stored release was measured on other records than those of this call.

    This call drew no noise and spent no budget.

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
    """Time or memory, known or forecast, or the size of a table or file exceeds a limit."""


class Cancelled(EngineError):
    """The user, or a progress callback, stopped the work."""


class LedgerError(EngineError):
    """The ledger cannot be read, trusted or written, or does not allow the action."""


class BudgetExceeded(LedgerError):
    """The spend would exceed the remaining budget of the dataset."""


class ResultLost(LedgerError):
    """Budget was spent for a release, but its result was not saved, is missing or was changed."""
