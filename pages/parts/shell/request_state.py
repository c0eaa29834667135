"""Request of a session: schema, workload, budget, mechanism and options."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import streamlit as st

from engine._untrusted import parse_json
from engine.analysis import remove_targets, workload_digest
from engine.analysis.error_targets import options_after_change
from engine.analysis.what_if import Request
from engine.errors import PlanError
from engine.mechanisms import mechanism_class
from engine.mechanisms.registry import DefaultOptions, default_options
from engine.privacy import Budget
from engine.workload import Schema, Workload

CENTERS = "centers"  # option of some mechanisms; the app chooses its default for each workload
PAPER = "uniform"  # value of this option in the papers, and its default in `plan`


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestState:
    """Public schema, workload, budget and mechanism with its options; contains no data.

    Attributes
    ----------
    workload : workload with its schema; None if no schema is chosen.
    mechanism : name of the mechanism.
    options : options of the mechanism that the user chose. Without the option "centers", the app
        chooses centers for the workload, see `default_options`.
    """

    workload: Workload | None = None
    budget: Budget = field(default_factory=lambda: Budget(pcost=1.0))
    mechanism: str = "querysmasher"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> Schema | None:
        """Public schema; None if none is chosen."""
        return self.workload.schema if self.workload is not None else None

    @property
    def required_workload(self) -> Workload:
        """Workload; raises PlanError if no schema is chosen."""
        if self.workload is None:
            raise PlanError("There is no schema yet. Choose one on the Schema page.")
        return self.workload

    @property
    def request(self) -> Request:
        """Arguments of `plan` as an object of the engine; raises PlanError without a schema."""
        return Request(
            workload=self.required_workload,
            budget=self.budget,
            mechanism=self.mechanism,
            options=self.options_without_defaults,
        )

    def with_request(self, request: Request) -> RequestState:
        """Return the state for ``request``, a modified copy of `self.request`.

        If its options are unmodified, centers that the app chose are not stored as a choice of the
        user: after a change of the workload the app chooses again.
        """
        state = RequestState(
            workload=request.workload,
            budget=request.budget,
            mechanism=request.mechanism,
            options=self.options,
        )
        return (
            state
            if request.options == self.options_without_defaults
            else state.with_options(request.options)
        ).after(self)

    def with_options(self, options: Mapping[str, Any]) -> RequestState:
        """Return this state with other options, given as for `plan`.

        Centers that the app would choose for this workload anyway are not stored, so that the app
        chooses again after a change of the workload.
        """
        other_options = {name: value for name, value in options.items() if name != CENTERS}
        with_default_centers = replace(self, options=other_options)
        centers = options.get(CENTERS, PAPER)
        if with_default_centers.options_without_defaults.get(CENTERS, PAPER) == centers:
            return with_default_centers
        return replace(self, options={**other_options, CENTERS: centers})

    @property
    def centers_are_open(self) -> bool:
        """Whether the app chooses the centers, because the user did not."""
        return CENTERS not in self.options

    @property
    def with_uniform_centers(self) -> RequestState:
        """This state with uniform centers instead of centers that the app would choose.

        Plans with uniform centers share the residual spaces that they have in common. The state is
        unchanged if the user chose the centers, if the option "keep" requires tuned centers, or if
        the mechanism has no centers.
        """
        if (
            not self.centers_are_open
            or "keep" in self.options
            or CENTERS not in mechanism_class(self.mechanism).choices
        ):
            return self
        return replace(self, options=dict(self.options) | {CENTERS: PAPER})

    @cached_property
    def default_options(self) -> DefaultOptions:
        """Options with the centers that the app chose, and the reason for that choice."""
        if self.workload is None or not self.workload.groups:
            return DefaultOptions(options=self.options)
        options = json.dumps(dict(self.options), sort_keys=True)
        return _default_options(f"{workload_digest(self.workload)}{self.mechanism}{options}", self)

    @property
    def options_without_defaults(self) -> Mapping[str, Any]:
        """Options for `plan`; uniform centers are left out, because they are its default."""
        options = self.default_options.options
        return {name: value for name, value in options.items() if (name, value) != (CENTERS, PAPER)}

    @property
    def plan_arguments(self) -> tuple[str, dict[str, Any], str, dict[str, Any]]:
        """Workload (JSON), budget, mechanism and options, in the form that workers receive."""
        return (
            self.required_workload.to_json(),
            self.budget.to_dict(),
            self.mechanism,
            dict(self.options_without_defaults),
        )

    def after(self, before: RequestState) -> RequestState:
        """Return this state with error targets that fit its groups, after a change from ``before``.

        Removed groups lose their targets. If there is a new group, which has no target, or no group
        at all, all targets are removed.
        """
        if (
            before.workload is None
            or self.workload is None
            or self.workload.groups is before.workload.groups
        ):
            return self
        options = options_after_change(self.options, before.workload.groups, self.workload.groups)
        return replace(self, options=remove_targets(self.options) if options is None else options)

    @property
    def request_json(self) -> str:
        """Workload, mechanism and options as JSON; not cached, because undo keeps many states."""
        workload_json = "null" if self.workload is None else self.workload.to_json()
        return f'{self._mechanism_json[:-1]}, "workload": {workload_json}}}'

    @cached_property
    def request_key(self) -> str:
        """Digest of workload, mechanism and options."""
        digest = "" if self.workload is None else workload_digest(self.workload)
        return hashlib.sha256(f"{self._mechanism_json}{digest}".encode()).hexdigest()

    @property
    def _mechanism_json(self) -> str:
        return json.dumps(
            {"mechanism": self.mechanism, "options": dict(self.options_without_defaults)},
            sort_keys=True,
        )

    @cached_property
    def workload_budget_key(self) -> str:
        """Text that is equal for states with the same workload and budget."""
        return f"{workload_digest(self.required_workload)}{json.dumps(self.budget.to_dict())}"

    @cached_property
    def key(self) -> str:
        """Digest of workload, mechanism, options and budget."""
        return hashlib.sha256(
            f"{self.request_key}{json.dumps(self.budget.to_dict())}".encode()
        ).hexdigest()

    def to_json(self) -> str:
        """Return the state as text; equal texts mean equal states."""
        return (
            f'{{"budget": {json.dumps(self.budget.to_dict(), sort_keys=True)}, "question":'
            f" {self.request_json}}}"
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> RequestState:
        """Return the state of a text from `to_json`; raises EngineError for other texts."""
        try:
            document = parse_json(text, constants=True)
            question, budget = document["question"], document["budget"]
            workload_data, mechanism, options = (
                question["workload"],
                question["mechanism"],
                question["options"],
            )
        except (ValueError, KeyError, TypeError):
            raise PlanError("This is not a saved request. Export it again.") from None
        if not isinstance(mechanism, str) or not isinstance(options, dict):
            raise PlanError(
                "The mechanism of the saved request or its options are damaged. Export the request"
                " again."
            )
        workload = None if workload_data is None else Workload.from_dict(workload_data)
        return cls(
            workload=workload, budget=Budget.from_dict(budget), mechanism=mechanism
        ).with_options(options)


@st.cache_resource(max_entries=64, show_spinner=False)
def _default_options(key: str, _request_state: RequestState) -> DefaultOptions:
    try:
        return default_options(
            _request_state.required_workload, _request_state.mechanism, _request_state.options
        )
    except PlanError:  # the page reports invalid options when it computes the plan
        return DefaultOptions(options=_request_state.options)
