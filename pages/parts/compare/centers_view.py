"""Choice between uniform and tuned centers, and the effect on the errors of single tables.

Centers are weights that split a query between a table and its smaller tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from engine import analysis
from engine.errors import EngineError, NotApplicable
from engine.mechanisms import mechanism_class
from engine.plans import Plan
from pages.parts.jobs import plans
from pages.parts.shell import buttons, history
from pages.parts.shell.error_text import deferred_errors, escape_markdown, show_deferred_error
from pages.parts.shell.request_state import CENTERS, PAPER, RequestState

TUNED = "tuned"
CHOSEN = {PAPER: "uniform centers (chosen)", TUNED: "tuned centers (chosen)"}
# The errors of tuned and uniform centers are compared for workloads of at most this many groups,
# because the comparison needs a second plan, with uniform centers.
MAX_GROUPS = 5_000
UNKNOWN = "Some tables may be less accurate than with uniform centers; see Compare."


def draw(plan: Plan) -> None:
    """Draw the mechanism and its centers, and the effect of tuned centers on single tables.

    Buttons change the centers and the option ``keep``, which is the largest relative increase of
    the error of a table that tuned centers may cause: 0 allows no increase, None any increase.
    """
    request_state = history.current()
    cls = mechanism_class(request_state.mechanism)
    if CENTERS not in cls.choices:
        st.caption(f"Mechanism: {cls.title}")
        return
    centers = request_state.options_without_defaults.get(CENTERS, PAPER)
    keep = request_state.options.get("keep")
    text = f"Mechanism: {cls.title}, {request_state.default_options.reason or CHOSEN[centers]}."
    if centers == TUNED and (effect := _effect_text(request_state, plan)):
        text += f" {effect}"
    st.caption(escape_markdown(text))
    with st.container(horizontal=True):
        if centers == PAPER:
            _button("Tune the split to this workload", {CENTERS: TUNED}, "centers_tuned")
        else:
            _button("Use the standard (uniform) split", {CENTERS: PAPER}, "centers_uniform")
            if request_state.options_without_defaults.get("objective", "sum") == "sum":
                if keep is None:
                    _button(
                        "Do not let any table become less accurate",
                        {CENTERS: TUNED, "keep": 0.0},
                        "keep_groups",
                    )
                else:
                    _button("Minimize the total error only", {CENTERS: TUNED}, "keep_none")
    show_deferred_error(CENTERS)


def _button(label: str, options: Mapping[str, Any], key: str) -> None:
    buttons.button(label, _apply, options, key=key)


def _apply(options: Mapping[str, Any]) -> None:
    """Replace the options "centers" and "keep" of the mechanism by ``options``, and plan again.

    If planning takes long, a worker does it.
    """
    request_state = history.current()
    others = {k: v for k, v in request_state.options.items() if k not in (CENTERS, "keep")}
    with deferred_errors(CENTERS):
        new_state = request_state.with_options(others | dict(options))
        plans.begin(new_state)
        history.commit(new_state, redraw=True)


def _effect_text(request_state: RequestState, plan: Plan) -> str:
    """Return as text how tuned centers change the errors of single tables.

    One cached text serves all budgets of one noise distribution, because the ratios of the errors
    do not depend on the size of the budget.
    """
    try:
        return _compare_with_uniform(
            f"{request_state.request_key}{request_state.budget.law}", request_state, plan
        )
    except EngineError:
        return UNKNOWN


@st.cache_resource(max_entries=64, show_spinner=False)
def _compare_with_uniform(key: str, _request_state: RequestState, _plan: Plan) -> str:
    """Return as text how the errors of the plan differ from those with uniform centers; cached.

    ``key`` is the cache key.

    Raises
    ------
    NotApplicable : the workload has more than `MAX_GROUPS` groups, or the plan with uniform centers
        is neither cached nor quickly computed.
    """
    others = {
        name: value
        for name, value in _request_state.options_without_defaults.items()
        if name not in (CENTERS, "keep")
    }
    uniform = None
    if len(_plan.workload.groups) <= MAX_GROUPS:
        uniform = plans.quick_plan(_request_state.with_options(others))
    if uniform is None:  # Streamlit does not cache exceptions, so the next run tries again
        raise NotApplicable(
            "The workload has too many groups, or its plan with uniform centers takes too long."
            " Compute the plan with uniform centers first."
        )
    return analysis.single_groups_text(_plan, uniform)
