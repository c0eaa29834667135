"""Coarse or fine page: a wizard for two-stage releases, and the page of one of them."""

from collections.abc import Callable
from functools import partial

import streamlit as st

from engine import figures
from engine.common_mechanism import CommonPlan
from engine.ledger.balance import DatasetStatus
from pages.parts.coarse import candidates_form, rehearsal, two_stage_view
from pages.parts.coarse import script as coarse_code
from pages.parts.release import dataset_form, records_form, wizard
from pages.parts.shell import page_layout, python_script
from pages.parts.shell.error_text import escape_markdown
from pages.parts.shell.python_script import Script

page_layout.require()

STEP = two_stage_view.STEP
TITLES = ANALYSES, RULE, REHEARSE, FILE, PAYER, LOOK, PAST = (
    "1. Analyses",
    "2. Rule",
    "3. Rehearse",
    "4. File",
    "5. Who pays",
    "6. Measure",
    "Past measurements",
)
QUESTIONS = {
    ANALYSES: (
        "Not sure whether fine tables will be accurate enough? Measure first, then decide, at no"
        " extra cost."
    ),
    RULE: "When are the counts large enough for the finer one?",
    REHEARSE: "What will come out? Try it on simulated records.",
    FILE: "Which file has the records?",
    PAYER: "Which dataset pays?",
    LOOK: "Measure what the analyses share? It is part of each, so it costs nothing extra.",
    PAST: "Which first measurements were taken?",
}
RESULT = "First measurement, decision and second measurement"
TUTORIAL = (
    "A **fine** analysis has more detail, a **coarse** one less noise. The **first measurement**"
    " (in Python: **look**) has the part that both share, and shows whether the counts are large"
    " enough. A **rule** set in advance then chooses one, and a second measurement adds what it"
    " still needs (the **remainder**). Both together cost what the analysis costs alone."
)


def choose_analyses() -> Script | None:
    """Draw step 1: the choice of the analyses, and the cost of the part that they share.

    Return Python code that defines and splits the analyses; None unless at least two can be split.
    """
    st.caption(
        escape_markdown(
            f"Two or more, from coarse to fine. {candidates_form.settings_text(request_state)}"
        ),
        help=candidates_form.settings_help(request_state),
    )
    analyses = candidates_form.choose(request_state)
    split = candidates_form.split(analyses) if analyses is not None else None
    if split is None:
        wizard.next_button(RULE, key=STEP, reason="choose at least two analyses.")
        return None
    wizard.next_button(RULE, key=STEP)
    candidates_form.draw_shared_part(split[0])
    return split[1]


def with_analyses(
    draw: Callable[[CommonPlan, candidates_form.Settings], Script | None],
) -> Script | None:
    """Draw a later step of the wizard, or a button back to step 1 if the analyses are missing.

    Return the Python code of the analyses, the rule and this step; None without analyses.
    """
    analyses = candidates_form.analyses_of_form(request_state)
    split = candidates_form.split(analyses) if analyses is not None else None
    if split is None:
        wizard.missing("choose at least two analyses.", ANALYSES, key=STEP)
        return None
    common, script = split
    step_script = draw(common, candidates_form.settings_of_form(common))
    rule_code = coarse_code.rule_script(candidates_form.settings_of_form(common).arguments(common))
    return script + rule_code + step_script if step_script is not None else script + rule_code


def set_rule(common: CommonPlan, _: candidates_form.Settings) -> None:
    """Draw step 2: the settings of the selection rule, and the rule as a sentence."""
    settings = candidates_form.settings(common)
    rule = candidates_form.rule(common, settings)
    if rule is not None:
        st.markdown(escape_markdown(figures.rule_text(rule)))
    st.caption("Set the rule first; choosing it after seeing results risks fitting noise.")
    wizard.next_button(
        REHEARSE,
        key=STEP,
        reason="" if rule is not None else "correct the rule.",
        start=partial(rehearsal.start_if_quick, common),
    )


def rehearse(common: CommonPlan, settings: candidates_form.Settings) -> Script:
    """Draw step 3: the rehearsal on simulated records; return its Python code."""

    def next_button(is_primary: bool) -> None:
        wizard.next_button(FILE, key=STEP, is_primary=is_primary)

    return rehearsal.draw(common, settings, next_button)


def choose_file(common: CommonPlan, _: candidates_form.Settings) -> None:
    """Draw step 4: the choice of the file, upload or database table with the records."""
    look = common.look
    source = records_form.source(look.budget.rows_per_person, look.schema.person)
    st.caption("Rows that do not fit the schema are dropped. Only you see how many.")
    wizard.next_button(PAYER, key=STEP, reason=source.problem(look.schema) or source.unreadable)


def choose_payer(common: CommonPlan, _: candidates_form.Settings) -> None:
    """Draw step 5: the choice of ledger and dataset, with the budget that all steps need."""

    def describe(status: DatasetStatus) -> str:
        text = figures.to_finish_text(common, status.left, candidates_form.short_budget)
        return f"{dataset_form.balance(status)}. {text}"

    dataset_form.choose(common.look.schema, common.options[0].budget, describe, (STEP, LOOK))
    status = dataset_form.dataset_of_form(dataset_form.ledger_of_form(), common.look.schema)
    dataset_form.remember(status)
    reason = "" if status is not None else "choose or create the dataset to charge."
    wizard.next_button(LOOK, key=STEP, reason=reason)


def look(common: CommonPlan, settings: candidates_form.Settings) -> Script | None:
    """Draw step 6, where the user types to confirm the first measurement (look).

    Return the Python script of the release; None if the rule is invalid or no dataset is chosen.
    """
    return two_stage_view.take_look(common, settings, PAYER, FILE)


key = wizard.open_release_key(two_stage_view.NAME)
question = QUESTIONS[wizard.current(QUESTIONS, key=STEP)]
request_state = page_layout.header(
    page_layout.page("Coarse or fine"), RESULT if key else question, TUTORIAL
)
script: Script | None = None
if key:
    two_stage_view.draw_look(key, {"New measurement": ANALYSES, PAST: PAST})
else:
    two_stage_view.draw_waiting(PAST)
    draws = (set_rule, rehearse, choose_file, choose_payer, look)
    steps: list[Callable[[], Script | None]] = [
        choose_analyses,
        *(partial(with_analyses, draw) for draw in draws),
    ]
    script = wizard.draw(
        dict(zip(TITLES, [*steps, two_stage_view.past_looks], strict=True)), key=STEP
    )
page_layout.footer(
    code=script.text() if script is not None else python_script.plan_code(request_state),
    target=None,
)
