"""Page Compare: options of the mechanism, and the effect of tuned centers."""

from __future__ import annotations

import pytest

from engine import analysis
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.compare.sessions import mechanism_choice, run_comparison
from tests.app.session import UNIFORM, Session, demo_schema, wait

pytestmark = pytest.mark.usefixtures("keeps_comparisons")
WORKLOAD = Workload.all_ways(demo_schema("cps"), (1, 2))


def open_options(workload: Workload = WORKLOAD, **fields: object) -> Session:
    """Open the options of the mechanism, without a comparison."""
    request = RequestState(workload=workload, **{"options": UNIFORM} | fields)
    session = Session(plan=permalink.packed(request)).go("compare", compare_chosen=[])
    return session.set(fold_mechanism=True)


def option_key(session: Session, name: str) -> str:
    return f"option_{name}_{session.version}"


def test_mechanism_change_clears_its_options() -> None:
    session = open_options()
    session.set(**{option_key(session, "solver"): "fourier"})
    options = {"solver": "fourier"}
    assert session.studio.options_without_defaults == options
    session.set(**{mechanism_choice(session).key: "residualplanner"})
    assert session.studio.mechanism == "residualplanner"
    assert session.studio.options == {}
    assert session.press("undo").studio.options_without_defaults == options
    assert session.press("undo").studio.options == UNIFORM


def test_mechanism_choice_with_outdated_text_changes_nothing() -> None:
    session = open_options()
    request, options = session.studio, mechanism_choice(session).options
    outdated = session.app._tree.get_widget_states()  # fields that a browser would send
    run_comparison(session)
    assert mechanism_choice(session).options != options
    session.app._run(outdated)
    assert not session.app.exception
    assert session.studio == request


def test_equal_errors_are_not_called_smaller() -> None:
    plain = Workload.all_ways(demo_schema("cps"), (1, 2), "marginal")
    session = open_options(plain, options={"centers": "tuned"})
    assert "Uniform centers give the same errors." in session.text()
    assert "smaller errors" not in session.text()


def test_default_centers_are_shown_and_changed() -> None:
    session = open_options(options={})
    tuned, uniform = (
        plan(WORKLOAD, Budget(pcost=1.0), centers=centers) for centers in ("tuned", "uniform")
    )
    text = analysis.single_groups_text(tuned, uniform)
    assert "less accurate, " in text  # one group has larger errors
    assert "tuned centers: planning takes about" in session.text()
    assert text in session.text()
    session.press("keep_groups")
    session.until(lambda: "no table is less accurate" in session.text())
    assert session.studio.options_without_defaults == {"centers": "tuned", "keep": 0.0}
    session.press("keep_none")
    assert session.studio.options == {}
    session.press("centers_uniform")
    assert session.studio.options == UNIFORM
    assert "uniform centers (chosen)" in session.text()
    session.press("centers_tuned")
    assert session.studio.options == {}
    assert text in session.text()


def test_centers_field_stores_only_deviating_choice() -> None:
    session = open_options()
    session.set(**{option_key(session, "centers"): "tuned"})
    assert session.studio.options == {}
    session.set(**{option_key(session, "centers"): "uniform"})
    assert session.studio.options == UNIFORM


def test_centers_field_shows_centers_of_plan_for_largest_error() -> None:
    session = open_options(options={})
    field = session.app.selectbox(key=option_key(session, "centers"))
    assert field.value == "tuned"
    # the help explains a word of the text below the field on the page
    assert "centers" in field.help
    session.set(**{option_key(session, "objective"): "max"})
    assert session.app.selectbox(key=option_key(session, "centers")).value == "uniform"
    assert session.studio.options == {"objective": "max"}
    session.set(**{option_key(session, "objective"): "sum"})
    assert session.app.selectbox(key=option_key(session, "centers")).value == "tuned"


def test_preview_has_no_choice_of_the_mechanism() -> None:
    session = open_options().go("preview")
    assert not [s for s in session.app.selectbox if "echanism" in s.label]


def test_error_to_minimize_is_an_option() -> None:
    session = open_options()
    session.set(**{option_key(session, "objective"): "max"})
    assert session.studio.options["objective"] == "max"
    assert session.press("undo").studio.options == UNIFORM
    session.set(**{mechanism_choice(session).key: "hdmm"})
    assert not any("objective" in str(box.key) for box in session.app.selectbox)


def test_plan_for_largest_error_is_compared_with_its_own_bound() -> None:
    request = RequestState(workload=WORKLOAD, options=UNIFORM | {"objective": "max"})
    session = wait(Session(plan=permalink.packed(request)).go("preview")).set(fold_limit=True)
    largest = plan(WORKLOAD, request.budget, objective="max", **UNIFORM)
    assert "Gap to its bound" in session.metrics()
    assert "Gap to the best possible" not in session.metrics()
    assert analysis.short_certificate_text(largest) in session.text().replace("\\", "")


def test_options_say_why_split_becomes_uniform() -> None:
    note = "This sets the split to uniform: it is tuned by default only for the sum"
    session = open_options(options={})
    assert note not in session.text()
    session.set(**{option_key(session, "objective"): "max"})
    assert note in session.text()
    session.set(**{option_key(session, "centers"): "tuned"})
    assert note not in session.text()  # the user chose the split
    session = open_options(options={"solver": "fourier"})
    assert "only with the optimal search" in session.text()
