"""Coarse or fine: look first at what several analyses share, then choose, and pay for the chosen
one alone.
"""

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
    "A **fine** analysis tells more, a **coarse** one is less noisy, and which of them is right"
    " depends on the records. What both would release anyway is measured first: the **look**. It"
    " shows whether the counts are large enough. Then a **rule** that you fixed before, or you"
    " yourself, choose, and only **the rest** of the chosen analysis is measured. Look and rest"
    " together are that analysis, at exactly its cost: **the look is free**."
)


def tell(text: str) -> None:
    """A sentence of tutorial text, unless it is switched off."""
    if st.session_state.get("tutorial", True):
        st.caption(text)


studio = page_layout.header(
    page_layout.page("Coarse or fine"),
    "Look at what the analyses share, then choose; the look costs nothing extra.",
    TUTORIAL,
)
common: CommonPlan | None = None
script: Script | None = None
settled = two_stage_view.waiting()
with (
    st.expander("Steps 1 to 3, which are settled", key="coarse_settled")
    if settled
    else st.container()
):
    st.header("1. Analyses")
    tell(
        "Choose two or more analyses of the same records, from coarse to fine. They are plans: no"
        " record is read here."
    )
    chosen = candidates_form.choose(studio)
    if chosen is not None:
        made = candidates_form.split(chosen)
        if made is not None:
            common, script = made
    st.header("2. What they share")
    if common is None:
        st.info("What is shared is shown here once there are two plans or more.", icon="🪜")
    else:
        tell(
            "Grey is what every option would measure anyway. It is measured first and is a part of"
            " what you choose."
        )
        candidates_form.shared(common)
    st.header("3. The rule")
    tell("Fix the rule before the look: who chooses it afterwards may fit it to the noise.")
    settings = candidates_form.settings(common)
    if common is not None and script is not None:
        rule = candidates_form.rule(common, settings)
        if rule is not None:
            st.markdown(escape_markdown(figures.rule_text(rule)))
            script += coarse_code.rule_script(settings.arguments(common))
st.header("4. Look, decide, finish")
tell(
    "Rehearse first: the same steps on simulated records cost nothing and tell nothing about"
    " anyone."
)


def rehearse() -> Script | None:
    """Rehearsal, or what it needs first."""
    if common is None:
        st.info("A rehearsal needs the analyses above.", icon="🎭")
        return None
    return rehearsal.draw(common, settings)


def look() -> Script | None:
    """The look for real, or what it needs first."""
    if common is None:
        st.info(
            "A look needs the analyses above. What was looked at before is under Earlier looks.",
            icon="🔭",
        )
        return None
    return two_stage_view.draw(common, settings)


more = figure_view.tabs(
    {
        "Rehearse": rehearse,
        two_stage_view.LOOK: look,
        two_stage_view.EARLIER: lambda: two_stage_view.earlier(settings),
    },
    key=two_stage_view.STEP,
)
if script is not None and more is not None:
    script += more
page_layout.footer(
    code=script.text() if script is not None else python_script.plan_code(studio),
    target=page_layout.page("Release"),
)
