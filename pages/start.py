"""Start page: demo, own schema or lesson."""

import streamlit as st

import demo_data
from engine import figures
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.release import Measurement, measure
from engine.workload import Schema, Workload
from pages.parts.shell import budgets, figure_view, history, page_layout, python_script
from pages.parts.shell.error_text import escape_markdown

page_layout.require()

WORDS = (
    "- **Schema**: the columns and their possible values.\n"
    "- **Workload**: the counts to publish.\n"
    "- **Budget**: how much all counts together may reveal about one person.\n\n"
    "Until you release, no records are read and no budget is spent."
)
DEMO = "Try a demo"
EXAMPLE, EXAMPLE_ATTRIBUTE = "survey", "party"  # public records
EXAMPLE_HEIGHT = 360  # pixels
# small enough that the intervals are visible next to counts of hundreds
EXAMPLE_BUDGET = Budget(pcost=0.01)


@st.cache_resource(max_entries=1, show_spinner=False)
def example() -> Measurement:
    """Noisy counts of a public survey, by rehearsal, which spends no budget."""
    schema = Schema.from_json(demo_data.schemas()[EXAMPLE].read_bytes())
    example_plan = plan(Workload(schema).add(EXAMPLE_ATTRIBUTE), EXAMPLE_BUDGET)
    return measure(example_plan, demo_data.tables()[EXAMPLE], rehearsal=True)


def try_demo() -> None:
    """Open the chosen demo with all its tables of one and two attributes."""
    schema = Schema.from_json(demo_data.schemas()[st.session_state.start_demo].read_bytes())
    history.change(workload=Workload.all_ways(schema, (1, 2)), redraw=True)


def demo_choice() -> None:
    """Draw the list of demos."""
    demos = list(demo_data.TITLES)
    demo = st.selectbox(
        "Demo", demos, demos.index(EXAMPLE), demo_data.TITLES.__getitem__, key="start_demo"
    )
    st.caption(demo_data.WORDS[demo])


def page_button(label: str, target: str) -> None:
    """Draw a button that opens a page; the demo button loads the demo first."""
    if st.button(label, key=f"start_{label}", type="primary", width="stretch"):
        if label == DEMO:
            try_demo()
        st.switch_page(page_layout.page(target).file)


studio = page_layout.header(
    page_layout.page("Start"),
    "Publish counts from confidential records with differential privacy. See how accurate each"
    " number will be before you spend any budget.",
)
if studio.workload is not None:
    target = page_layout.page("Preview" if studio.workload.groups else "Workload")
    with st.container(border=True):
        st.markdown(f"**Your project.** {escape_markdown(budgets.summary(studio))}")
        if st.button(f"Continue: {target.title} →", key="go_on", type="primary"):
            st.switch_page(target.file)
left, picture = st.columns([8, 6])
with left:
    demo, project = st.columns(2)
    st.markdown(WORDS)
with demo, st.container(border=True):
    demo_choice()
    page_button(DEMO, "Preview")
with project:
    with st.container(border=True):
        st.markdown("Upload a column list or fill in a form. Your records are not read.")
        page_button("Use my own schema", "Schema")
    with st.container(border=True):
        st.markdown("What the noise does and why it protects.")
        page_button("Take a lesson", "Learn")
with picture:
    drawn = figures.answers_picture(example().answers(0), rehearsal=True)
    st.markdown("**Example result: noisy counts with 95% confidence intervals**")
    figure_view.chart(drawn, key="start", config=figure_view.EXPORT, height=EXAMPLE_HEIGHT)()
    st.caption(
        escape_markdown(
            f"944 voters of a public survey by {EXAMPLE_ATTRIBUTE}, at"
            f" {budgets.headline(EXAMPLE_BUDGET, budgets.language())}."
        )
    )
page_layout.footer(code=python_script.workload_script(studio).text(), target=None)
