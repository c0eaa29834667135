"""Start page: continue, open or save a project, or begin with a demo, a schema or a lesson."""

from typing import Any

import streamlit as st

import demo_data
from engine import figures
from engine._format import pluralize
from engine.analysis.ad_hoc_queries import add_truth
from engine.mechanisms import plan
from engine.release import measure
from engine.workload import Levels, Schema, Workload
from engine.workload.attribute import query_texts
from pages.parts.jobs import plans
from pages.parts.schema import grid
from pages.parts.shell import (
    budgets,
    figure_view,
    history,
    page_layout,
    python_script,
    session_restore,
)
from pages.parts.shell.error_text import escape_markdown
from pages.parts.start import project_file

page_layout.require()

WORDS = (
    "**Schema**: columns and possible values.  \n"
    "**Workload**: counts to publish.  \n"
    "**Budget**: what they may reveal about a person."
)
PROMISE = (
    "Planning reads no records; the file check and the release do. Only a release spends budget."
)
UNDO = "Undo restores it."
DEMO_WAYS = (1, 2)  # numbers of attributes per table in a demo
LEVEL_WAYS = (1, 2, 3)  # the same for a demo with a code list
EXAMPLE, EXAMPLE_ATTRIBUTE = "survey", "tv_news_days"  # public records
EXAMPLE_HEIGHT = 270  # pixels


def demo_families(schema: Schema) -> dict[str, str | Levels]:
    """Return the query family of each attribute of a demo; empty for a demo without a code list.

    An attribute with a code list gets counts at all levels and of single codes; every other
    attribute gets counts of single values.
    """
    if not any(attribute.hierarchies for attribute in schema.attributes):
        return {}
    return {
        attribute.name: (
            Levels((*attribute.hierarchies[0].level_names, attribute.name))
            if attribute.hierarchies
            else "marginal"
        )
        for attribute in schema.attributes
    }


@st.cache_resource(show_spinner=False)
def demo_workload(name: str) -> Workload:
    """Return the workload of a demo."""
    schema = Schema.from_json(demo_data.schemas()[name].read_bytes())
    families = demo_families(schema)
    return Workload.all_ways(schema, LEVEL_WAYS if families else DEMO_WAYS, families or "auto")


@st.cache_resource(max_entries=1, show_spinner=False)
def example() -> Any:
    """Return noisy answers and true counts of one table of the survey demo, from a rehearsal.

    The plan is that of the demo, so the answers have the errors that its preview shows.  The noise
    is drawn anew at each start of the app, so that some pictures have intervals without the truth.
    """
    workload = demo_workload(EXAMPLE)
    state = history.RequestState(workload=workload, budget=history.DEFAULT_BUDGET)
    example_plan = plans.keep(
        state,
        lambda: plan(workload, state.budget, state.mechanism, **state.options_without_defaults),
    )
    measurement = measure(example_plan, demo_data.tables()[EXAMPLE], rehearsal=True)
    number = [group.attributes for group in workload.groups].index((EXAMPLE_ATTRIBUTE,))
    answers = add_truth(
        measurement.answers(number), example_plan, number, 0, demo_data.tables()[EXAMPLE]
    )
    texts = query_texts(workload.schema.attributes, answers["query"])
    return answers.assign(query=texts)


def try_demo() -> None:
    """Replace the project of the session by the chosen demo."""
    grid.clear()
    session_restore.clear_project()
    history.change(
        workload=demo_workload(st.session_state.start_demo),
        budget=history.DEFAULT_BUDGET,
        redraw=True,
    )


def demo() -> None:
    """Draw the choice of a demo, a description of its project, and the button that opens it."""
    names = list(demo_data.TITLES)
    name = st.selectbox(
        "Demo", names, names.index(EXAMPLE), demo_data.TITLES.__getitem__, key="start_demo"
    )
    workload = demo_workload(name)
    tables = pluralize(len(workload.groups), "table")
    sizes = "one or two attributes"
    for family in demo_families(workload.schema).values():
        if isinstance(family, Levels):  # the demo has one attribute with a code list
            sizes = f"one to three attributes, by {', '.join(family.levels)}"
    st.caption(
        escape_markdown(
            f"{demo_data.WORDS[name]}. Opens all {tables} of {sizes}, at"
            f" {budgets.headline(history.DEFAULT_BUDGET, budgets.chosen_unit())}."
        )
        + (f" Replaces your project; {UNDO}" if history.current().workload else "")
    )
    if page_button("Try a demo", key="start_Try a demo"):
        try_demo()
        st.switch_page(page_layout.page("Preview").file)


def page_button(label: str, *, key: str) -> bool:
    """Draw a wide button, highlighted while there is no project; return whether it was clicked."""
    is_first = history.current().workload is None
    return st.button(label, key=key, type="primary" if is_first else "secondary", width="stretch")


def project(request: history.RequestState) -> None:
    """Draw a summary of the project, with buttons to continue and to save it."""
    has_tables = bool(request.required_workload.groups)
    target = page_layout.page("Preview" if has_tables else "Workload")
    with st.container(border=True, horizontal=True, vertical_alignment="center"):
        st.markdown(f"**Project** · {escape_markdown(budgets.summary(request))}")
        if st.button(f"Continue: {target.title} →", key="go_on", type="primary"):
            st.switch_page(target.file)
        with st.popover("Save"):
            project_file.save(request)


request = page_layout.header(
    page_layout.page("Start"), "Publish counts from confidential records with differential privacy."
)
if request.workload is not None:
    project(request)
left, right = st.columns(2, gap="large")
with left:
    with st.container(border=True):
        demo()
    with st.container(border=True):
        if page_button("Describe my own data", key="start_Use my own schema"):
            project_file.clear_demo()
            st.switch_page(page_layout.page("Schema").file)
        if project_file.is_demo(request.schema):
            st.caption("Replaces the demo.")
        elif request.schema is not None:
            st.caption("Opens the columns of your project.")
        if opened := project_file.draw():
            st.switch_page(page_layout.page(opened).file)
with right:
    st.markdown(WORDS if request.workload is not None else f"{WORDS}\n\n{PROMISE}")
    # The style sheet of the app hides this container on phones.
    with st.container(key="start_example"):
        drawn = figures.answers_picture(example(), rehearsal=True)
        figure_view.chart(drawn, key="start", config=figure_view.EXPORT, height=EXAMPLE_HEIGHT)()
        budget = budgets.headline(history.DEFAULT_BUDGET, budgets.chosen_unit())
        covered = example()["truth"].between(example()["low"], example()["high"])
        st.caption(
            escape_markdown(
                f"Survey demo, {budget}: {covered.sum()} of {len(covered)} intervals contain the"
                " truth (95% expected)."
            )
        )
    if st.button("Take a lesson", key="start_Take a lesson", width="stretch"):
        st.switch_page(page_layout.page("Learn").file)
page_layout.footer(code=python_script.workload_script(request).text(), target=None)
