"""Start page: what this is, and three ways in."""

import streamlit as st

import demo_data
from engine import figures
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.release import Measurement, measure
from engine.workload import Schema, Workload
from pages.parts.shell import budgets, figure_view, history, page_layout, python_script
from pages.parts.shell.error_text import escape_markdown, show_deferred_error

page_layout.require()

TUTORIAL = (
    "The path is always the same: a **schema** says what is publicly known of the columns, a"
    " **workload** which counts will be published, a **preview** how exact each will be at which"
    " price; then one **release** spends the budget. Everything before the release is free and"
    " reads no record."
)
DEMO = "Try a demo"
PICTURED = (
    "survey",
    "party",
)  # a demo with public records, and the attribute whose counts are drawn
HIGH = 360  # pixels of the picture
SEEN = Budget(pcost=0.01)  # small enough that its intervals are seen beside counts of hundreds


@st.cache_resource(max_entries=1, show_spinner=False)
def example() -> Measurement:
    """Noisy counts of a public survey; a rehearsal, so that nothing is spent."""
    name, attribute = PICTURED
    schema = Schema.from_json(demo_data.schemas()[name].read_bytes())
    example_plan = plan(Workload(schema).add(attribute), SEEN)
    return measure(example_plan, demo_data.tables()[name], rehearsal=True)


def try_demo() -> None:
    """Take the chosen demo with all its tables of one and two attributes."""
    schema = Schema.from_json(demo_data.schemas()[st.session_state.start_demo].read_bytes())
    history.change(workload=Workload.all_ways(schema, (1, 2)), redraw=True)


def card(title: str, words: str) -> bool:
    """One way in; whether it was taken."""
    st.subheader(title)
    st.markdown(words)
    if title == DEMO:
        demos = list(demo_data.TITLES)
        demo = st.selectbox(
            "Demo", demos, demos.index("survey"), demo_data.TITLES.__getitem__, key="start_demo"
        )
        st.caption(demo_data.WORDS[demo])
    return st.button(title, key=f"start_{title}", type="primary", width="stretch")


studio = page_layout.header(
    page_layout.page("Start"),
    "Publish counts from confidential records: see first how exact every number will be, and what"
    " it costs in privacy. Then spend the budget once, safely, and hand out answers with honest"
    " error bars.",
    TUTORIAL,
)
if studio.workload is not None:
    target = page_layout.page("Preview" if studio.workload.groups else "Workload")
    with st.container(border=True):
        st.markdown(f"**Go on where you were.** {escape_markdown(budgets.summary(studio))}")
        if st.button(f"Go on: {target.title} →", key="go_on", type="primary"):
            st.switch_page(target.file)


def ways(*some: tuple[str, str, str]) -> None:
    """Cards one below the other, each with its title, its words and the page that it leads to."""
    for title, words, page in some:
        with st.container(border=True):
            if card(title, words):
                if title == DEMO:
                    try_demo()
                st.switch_page(page_layout.page(page).file)


demo, others, picture = st.columns([4, 4, 6])
with demo:
    ways(
        (
            DEMO,
            "Ready schemas of known tables, with all tables of one and two attributes.",
            "Preview",
        )
    )
    chosen = budgets.choose_language()
    st.caption(budgets.UNITS[chosen])
    show_deferred_error("budget")
with others:
    ways(
        (
            "Use my own schema",
            "A schema file, a list of columns, or a form. Records are never read for it.",
            "Schema",
        ),
        (
            "Take a lesson",
            "What the noise does, why it protects, and how to choose; with questions.",
            "Learn",
        ),
    )
with picture:
    drawn = figures.answers_picture(example().answers(0), rehearsal=True)
    st.markdown(
        "**What comes out: counts with noise, each with the interval that holds the truth 95% of"
        " the time**"
    )
    figure_view.chart(drawn, key="start", config=figure_view.EXPORT, height=HIGH)()
    st.caption(
        escape_markdown(
            f"944 voters of a public survey by {PICTURED[1]}, at {budgets.headline(SEEN, chosen)}."
            f" {drawn.alt}"
        )
    )
page_layout.footer(code=python_script.workload_script(studio).text(), target=None)
