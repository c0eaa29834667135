"""What mechanisms and adaptive methods would publish, rehearsed on a reference at several budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from engine import figures
from engine.mechanisms import title_of
from engine.publish.aim_mst import ADAPTIVE, adaptive_missing
from engine.publish.publication_comparison import PublishedComparison
from pages.parts.compare import run, script
from pages.parts.compare.run import Compared
from pages.parts.jobs import publishing, watch, work
from pages.parts.shell import budgets as say
from pages.parts.shell import clicks, show
from pages.parts.shell.state import Studio
from pages.parts.shell.words import plain, shown_here
from pages.parts.workload import reference_form

LAST = "standing_job"
Choices = Sequence[tuple[str, Mapping[str, Any]]]


def standing(studio: Studio, found: Compared | None) -> str:
    """The reference, what stands beside each other, the button that rehearses, and what came of it."""
    if studio.workload is None or not studio.workload.groups:
        st.info("There is nothing to compare yet: choose a schema and add queries on the Workload page.", icon="🧮")
        return ""
    st.caption(
        "The other views compare unbiased answers, whose errors are proven. Published tables are fitted: non-negative, "
        "consistent, and **biased**, like those of adaptive methods, which choose with the records what they measure. "
        "How far these are off can only be **simulated**, here on a reference, which must be public: **never the "
        "records that are to be protected**. Which way is better depends on the budget."
    )
    offered, (label, _) = run.offered(studio), run.present(studio)
    left, right = st.columns([3, 2])
    chosen = left.multiselect("Mechanisms", list(offered), [label], title_of, key="standing_of", max_selections=4)
    reason = adaptive_missing()
    adaptive = right.multiselect(
        "Adaptive methods",
        ADAPTIVE,
        [] if reason else ADAPTIVE,
        disabled=bool(reason),
        key="standing_adaptive",
        help="Simulated, biased. They fit one graphical model, which takes seconds to minutes a budget.",
    )
    if reason:
        right.caption(plain(reason))
    reference = reference_form.choose("standing")
    one, two, _ = st.columns([1, 1, 2])
    rehearsals = int(one.number_input("Rehearsals", 2, 50, 3, key="standing_rehearsals"))
    seconds = float(two.number_input("Seconds for each way and budget", 1, 3600, 120, key="standing_seconds"))
    choices = [offered[name] for name in chosen]
    asked = choices, list(adaptive), reference, rehearsals, seconds
    key = f"stand|{studio.asked_key}|{[chosen, *asked[1:2], reference_form.digest(reference), rehearsals, seconds]}"
    waits = reference is None or not (chosen or adaptive) or work.is_there(key)
    clicks.button("Rehearse", _begin, key, studio, *asked, key="standing_start", disabled=waits, type="primary")
    with shown_here():
        done = watch.job(key, label="Rehearsing what would be published")
        if done is not None:
            _shown(studio, done.result)
    return script.standing(studio, choices, adaptive, reference, rehearsals)


def _begin(key: str, studio: Studio, choices: Choices, *asked: Any) -> None:
    if (old := st.session_state.get(LAST, key)) != key:
        watch.let_go(old)
    st.session_state[LAST] = key
    plain_choices = [(name, dict(options)) for name, options in choices]
    watch.start(key, publishing.stand, studio.asked.to_json(), studio.budget.to_dict(), plain_choices, *asked)


def _shown(studio: Studio, found: PublishedComparison) -> None:
    rows = found.frame
    words = found.words(lambda pcost: say.said(studio.budget.at(pcost)))
    if (rows["status"] == "ok").any():
        for sentence in words or ["At all these budgets the order is the same, or too close to call."]:
            st.markdown(f"- {plain(sentence)}")
        picture = figures.standing_picture(rows, found.turns(), words, studio.budget, say.said)
        show.picture(picture, key="standing")
    if len(left := rows[rows["status"] != "ok"]):
        st.subheader("Without a result")
        left = left.assign(budget=[say.said(studio.budget.at(pcost)) for pcost in left["pcost"]])
        left = left.rename(columns={"status": "reason"})[["way", "budget", "reason"]]
        show.table(left, name="standing_without_result", alt="Ways without a result, and why")
