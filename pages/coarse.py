"""Coarse or fine page: two-stage release with a choice between several analyses."""

import streamlit as st

from engine import figures
from engine.common_mechanism import CommonPlan
from pages.parts.coarse import candidates_form, rehearsal, two_stage_view
from pages.parts.coarse import script as coarse_code
from pages.parts.shell import figure_view, page_layout, python_script
from pages.parts.shell.error_text import escape_markdown
from pages.parts.shell.python_script import Script

page_layout.require()

TUTORIAL = (
    "A **fine** analysis has more detail, a **coarse** one less noise. The part that both share,"
    " the **look**, is measured first and shows whether the counts are large enough. A **rule** set"
    " in advance then chooses, and only the **remainder** of that analysis is measured. Together"
    " they cost what the analysis costs alone."
)


def draw_hint(text: str) -> None:
    """Draw a sentence of tutorial text, unless it is switched off."""
    if st.session_state.get("tutorial", True):
        st.caption(text)


studio = page_layout.header(
    page_layout.page("Coarse or fine"),
    "Measure what the analyses share, then choose; the look costs nothing extra.",
    TUTORIAL,
)
common: CommonPlan | None = None
script: Script | None = None
is_done = two_stage_view.draw_waiting()
with st.expander("Steps 1-3 (done)", key="coarse_settled") if is_done else st.container():
    st.header("1. Analyses")
    draw_hint("Choose two or more analyses, from coarse to fine. No records are read.")
    chosen = candidates_form.choose(studio)
    if chosen is not None:
        split = candidates_form.split(chosen)
        if split is not None:
            common, script = split
    st.header("2. What they share")
    if common is None:
        st.info("Choose at least two analyses to continue.", icon="🪜")
    else:
        draw_hint("Grey: the shared part, measured first.")
        candidates_form.shared(common)
    st.header("3. The rule")
    draw_hint("Set the rule first; choosing it after seeing results risks fitting noise.")
    settings = candidates_form.settings(common)
    if common is not None and script is not None:
        rule = candidates_form.rule(common, settings)
        if rule is not None:
            st.markdown(escape_markdown(figures.rule_text(rule)))
            script += coarse_code.rule_script(settings.arguments(common))
st.header("4. Look, decide, finish")
draw_hint("Rehearse first: the same steps on simulated records spend nothing.")


def rehearse() -> Script | None:
    """Draw the rehearsal, or a note that it needs analyses."""
    if common is None:
        st.info("Choose analyses above to rehearse.", icon="🎭")
        return None
    return rehearsal.draw(common, settings)


def look() -> Script | None:
    """Draw the look at the records, or a note that it needs analyses."""
    if common is None:
        st.info(
            "Choose analyses above to look. Past looks are under Earlier looks.",
            icon="🔭",
        )
        return None
    return two_stage_view.draw(common, settings)


step_script = figure_view.tabs(
    {
        "Rehearse": rehearse,
        two_stage_view.LOOK: look,
        two_stage_view.EARLIER: lambda: two_stage_view.earlier(settings),
    },
    key=two_stage_view.STEP,
)
if script is not None and step_script is not None:
    script += step_script
page_layout.footer(
    code=script.text() if script is not None else python_script.plan_code(studio),
    target=page_layout.page("Release"),
)
