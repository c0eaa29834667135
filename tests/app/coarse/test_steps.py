"""Page "Coarse or fine" with records: first and second measurement, decision and resumption."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest

import demo_data
from demo_data.make_synthetic import synthetic
from engine.cli.main import main
from engine.common_mechanism import selection_rule as analyses
from engine.common_mechanism import stepwise
from engine.errors import OtherRecords
from engine.ledger import Ledger
from engine.ledger.balance import TotalDefinition
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Schema
from pages.parts.coarse import candidates_form, ledger_state
from pages.parts.jobs import job_queue, tasks
from pages.parts.jobs.status import Status
from pages.parts.shell import budgets
from tests.app.coarse.sessions import (
    ANALYSES,
    FILE,
    LOOK,
    PAST,
    PAYER,
    RULE,
    SCHEMA,
    build_common_plan,
    enter_override,
    find_button,
    find_decision,
    open_look_step,
    open_page,
    record_decision,
    row_kinds,
    run_finish,
    run_look,
    show_look,
    spent_pcosts,
)
from tests.app.release.sessions import answers_of_first_group, answers_on_page
from tests.app.session import Session, wait


def test_coarse_page_code_of_release_runs(
    ledger: Ledger, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = open_look_step(ledger, records).app.code[0].value
    monkeypatch.chdir(ledger.path.parent)
    names: dict = {}
    exec(script, names)
    assert row_kinds(ledger) == ["spend", "saved", "note:decision", "spend", "saved"]
    assert names["measurement"].plan.hash == build_common_plan().options[1].hash


def test_look_without_confirmation_is_disabled(ledger: Ledger, records: Path) -> None:
    session = open_look_step(ledger, Path())
    session.set(coarse_step=FILE).set(records_path="")
    assert "choose the records" in session.text()
    session.set(coarse_step=LOOK)
    assert find_button(session, "coarse_look").disabled
    assert "choose the records" in session.text()
    session.set(coarse_step=FILE).set(records_path=str(records)).press("Next: Who pays")
    assert "Together with the second measurement, it costs" in session.text()
    session.press("Next: Measure")
    for typed in ("", "Office", "offic"):
        session.set(coarse_confirmation=typed)
        assert find_button(session, "coarse_look").disabled
    assert not find_button(session.set(coarse_confirmation="office"), "coarse_look").disabled
    table = next(d.value for d in session.app.dataframe if "first (now)" in d.value)
    for look, rest, total in zip(
        table["first (now)"], table["second (later)"], table["analysis alone"], strict=True
    ):
        assert Decimal(look) + Decimal(rest) == Decimal(total)
    assert row_kinds(ledger) == []


def test_confirm_states_guarantee_of_all_releases(ledger: Ledger, records: Path) -> None:
    session = open_look_step(ledger, records)
    assert "someone who sees this release" in session.text()
    assert "someone who sees all" not in session.text()
    ledger.spend(dataset="office", key="earlier", pcost=0.1, plan_hash="p")
    total = build_common_plan().options[-1].budget.pcost
    joint = ledger.status("office").joint_charge(total, count=2)
    assert (joint.releases, joint.spent) == (3, pytest.approx(total + 0.1))
    text = session.run(session.app).text()
    assert f"someone who sees all 3 releases guesses right at most {joint.guess:g}%" in text


def test_look_with_insufficient_budget_is_disabled(ledger: Ledger, records: Path) -> None:
    session = open_look_step(ledger, records, pcost=1.2, confirmation="office")
    assert find_button(session, "coarse_look").disabled
    assert "ε 4.886 is left of the total, but ε 5.423 is needed" in session.text()
    assert "has left is too little" in session.set(coarse_step=PAYER).text()
    assert "enough for" not in session.text()


def test_coarse_steps_requested_twice_run_once(ledger: Ledger, records: Path) -> None:
    common = build_common_plan()
    session, other = (open_look_step(ledger, records, confirmation="office") for _ in range(2))
    session.press("coarse_look")
    other.press("coarse_look")
    wait(session)
    wait(other)
    assert row_kinds(ledger) == ["spend", "saved", "note:rule"]
    assert "office was measured on" in session.text()
    assert "Rows read 3,000 = counted 3,000 + dropped 0" in session.text()
    assert "Choose 2-way: " in session.text()
    assert "(by the rule)" in find_decision(session).options[1]
    record_decision(session)
    record_decision(other)
    assert not other.errors()
    assert row_kinds(ledger)[3:] == ["note:decision"]
    assert "'2-way' was chosen by the rule" in session.text()
    for one in (session, other):
        one.set(coarse_confirm_finish="office")
    session.press("coarse_finish")
    other.press("coarse_finish")
    wait(session)
    wait(other)
    assert row_kinds(ledger)[4:] == ["spend", "saved"]
    assert "as much as this analysis alone" in session.text()
    assert sum(spent_pcosts(ledger)) == Decimal(repr(common.options[1].pcost))
    session.set(coarse_past=True)
    assert f"{spent_pcosts(ledger)[0]:f} + {spent_pcosts(ledger)[1]:f}" in session.text()
    session.set(coarse_past=False)
    stored = stepwise.resume(ledger, stepwise.look_key(common, dataset="office")).finished
    summary = "was '2-way', after a first measurement"
    for one in (session, other, show_look(open_look_step(ledger, records))):
        assert summary in one.text()
        pd.testing.assert_frame_equal(answers_on_page(one, -1), answers_of_first_group(stored))
    # no view has added to the six rows of the ledger
    assert len(row_kinds(ledger)) == 6


def test_finished_release_has_valid_package_and_offers_second_attempt(
    ledger: Ledger, records: Path, downloads: dict[str, Callable[[], bytes]]
) -> None:
    session = run_look(ledger, records)
    record_decision(session)
    run_finish(session)
    session.set(coarse_released_0_tab="Download")
    package = ledger.path.parent / "release.zip"
    package.write_bytes(downloads["release_answers.zip"]())
    assert main(["verify", "--ledger", str(ledger.path), "--package", str(package)]) == 0
    session.press("New measurement").set(coarse_step=LOOK).set(coarse_again_1=True)
    assert "Attempt 2 draws new noise" in session.text()


def test_new_look_starts_with_default_rule_and_analyses(ledger: Ledger, records: Path) -> None:
    session = run_look(ledger, records, snr=7.0, share=0.3)
    session.set(coarse_real_0_view="Share of reliable cells").press("New measurement")
    assert session.app.session_state["coarse_step"] == ANALYSES
    assert "at least 5 standard errors" in session.set(coarse_step=RULE).text()
    assert session.app.number_input(key="coarse_share").value == 0.5
    assert "coarse_real_0_view" not in session.app.session_state["open_tabs"]
    assert session.app.session_state["records_path"] == str(records)  # the same records


def test_new_session_finishes_look_of_another_session(ledger: Ledger, records: Path) -> None:
    run_look(ledger, records, snr=7.0)
    # A new session has neither the analyses nor the rule (7 standard errors) of the first session.
    for job in list(job_queue._JOBS):
        job_queue.forget(job)
    session = Session().go("coarse").set(ledger_path=str(ledger.path), dataset="office")
    assert "1 unfinished release of office" in session.text()
    session.set(coarse_step=PAST)
    assert "1-way or 2-way; waits for a decision" in " ".join(
        session.app.selectbox(key="coarse_list_1").options
    )
    session.press("coarse_show")
    assert "1 unfinished release of office" not in session.text()
    assert "must reach 7 standard errors" in session.text()
    assert "above 7 standard errors" in session.text()
    record_decision(session)
    (note,) = (row for row in Ledger(ledger.path).rows() if row.kind == "note:decision")
    assert '"snr": 7.0' in note.note
    again = Session().go("coarse").set(coarse_step=PAST, ledger_path=str(ledger.path))
    assert "waits for the next measurement" in " ".join(
        again.app.selectbox(key="coarse_list_1").options
    )
    again.press("coarse_show").set(records_how="File on the server")
    run_finish(again.set(records_path=str(records)))
    assert "as much as this analysis alone" in again.text()
    again.press("Past measurements")
    assert "chosen, finished" in " ".join(again.app.selectbox(key="coarse_list_1").options)
    assert row_kinds(ledger) == ["spend", "saved", "note:rule", "note:decision", "spend", "saved"]


def test_decision_against_rule_requires_name_and_reason(ledger: Ledger, records: Path) -> None:
    session = run_look(ledger, records)
    session.run(find_decision(session).set_value("1-way"))
    assert find_button(session, "coarse_record_").disabled
    enter_override(session, "1-way", " ", "x")
    assert find_button(session, "coarse_record_").disabled
    record_decision(enter_override(session, "1-way", "A. Reader", "totals matter most."))
    assert (
        "'1-way' was chosen by A. Reader, against the rule (totals matter most)" in session.text()
    )
    run_finish(session)
    assert "decision was made by A. Reader, against the rule (totals matter most)" in session.text()
    assert sum(spent_pcosts(ledger)) == Decimal(repr(build_common_plan().options[0].pcost))


def test_stop_decision_can_be_replaced_by_option(
    ledger: Ledger, records: Path, downloads: dict[str, Callable[[], bytes]]
) -> None:
    session = run_look(ledger, records, snr=1e4)
    assert "Stop: at most" in session.text()
    record_decision(session)
    assert "was to stop" in session.text()
    assert "Stop was chosen by the rule" in session.set(coarse_seen_0=True).text()
    assert "Only the first measurement is released. It cost ε" in session.text()
    assert (
        "Only the first measurement is released. It cost ε" in downloads["decision.txt"]().decode()
    )
    assert len(spent_pcosts(ledger)) == 1
    assert "coarse_finish" not in [b.key for b in session.app.button]
    session.set(coarse_stopped_0_tab="Download")
    assert "release_answers.zip" not in downloads
    table = pd.read_csv(io.BytesIO(downloads["answers.csv"]()))
    assert len(table) == build_common_plan().look.workload.queries
    # When the decision is reopened, the page preselects no option.
    session.set(coarse_change=True)
    assert find_decision(session).value is None
    button = find_button(session, "coarse_record_")
    assert (button.disabled, button.proto.type) == (True, "secondary")
    record_decision(enter_override(session, "2-way", "A. Reader", "requested"))
    assert "'2-way' was chosen by A. Reader" in session.text()
    run_finish(session)
    expected = ["spend", "saved", "note:rule", *["note:decision"] * 2, "spend", "saved"]
    assert row_kinds(ledger) == expected


def test_look_at_invalid_records_spends_nothing(ledger: Ledger, records: Path) -> None:
    good = records.read_bytes()
    records.write_text("a,b\n1,2\n", encoding="utf-8")
    session = run_look(ledger, records)
    assert "First measurement:" in session.errors()
    assert row_kinds(ledger) == []
    records.write_bytes(good)
    wait(session.set(coarse_confirmation="office").press("coarse_look"))
    record_decision(session)
    records.unlink()
    run_finish(wait(session.run(session.app)))
    assert "Next measurement:" in session.errors()
    assert len(spent_pcosts(ledger)) == 1
    records.write_bytes(good)
    run_finish(wait(session.run(session.app)))
    assert len(spent_pcosts(ledger)) == 2


def test_remainder_of_other_records_is_refused_without_pcost(ledger: Ledger, records: Path) -> None:
    session = record_decision(run_look(ledger, records))
    synthetic(SCHEMA, 3000, seed=4).to_csv(records, index=False)
    run_finish(wait(session.run(session.app)))
    error = session.errors()
    assert "Next measurement:" in error
    assert "Choose the records of the first measurement" in error
    assert (
        "tick “The records have changed since the first measurement: charge this step separately”"
        in error
    )
    assert "pcost" not in error
    assert len(spent_pcosts(ledger)) == 1


@pytest.mark.parametrize(
    ("engine_remedy", "page_remedy"),
    [
        ('Give the records, or use on_changed="charge".', "Choose the records of the first"),
        ('Use on_changed="charge".', "Tick “The records have changed"),
    ],
    ids=["same records are possible", "only charge is possible"],
)
def test_finish_names_only_possible_remedies(
    monkeypatch: pytest.MonkeyPatch, engine_remedy: str, page_remedy: str
) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OtherRecords("The records differ.", engine_remedy)

    monkeypatch.setattr(tasks, "open_source", nullcontext)
    monkeypatch.setattr(tasks.stepwise, "finish", refuse)
    with pytest.raises(OtherRecords) as caught:
        tasks.finish("ledger.db", "key", "records", 1, {}, "refuse", progress=lambda *_: True)
    assert caught.value.remedy.startswith(f"Nothing was spent. {page_remedy}")


def test_stored_look_with_other_records_is_hidden(ledger: Ledger, records: Path) -> None:
    run_look(ledger, records)
    for chosen, is_shown in ((records, True), (records.with_name("other.csv"), False)):
        if not is_shown:
            synthetic(SCHEMA, 3000, seed=4).to_csv(chosen, index=False)
        session = open_look_step(ledger, chosen)
        assert any(b.key == "coarse_show" for b in session.app.button) == is_shown
        assert ("not the records" in session.errors()) != is_shown
    assert "'Past measurements'" in session.errors()
    assert "coarse_record" not in str([b.key for b in session.app.button])
    session.set(coarse_step=PAST).press("coarse_show")
    assert "Choose 2-way: " in session.text()
    assert len(spent_pcosts(ledger)) == 1


def test_look_and_rest_without_result_show_errors(ledger: Ledger, records: Path) -> None:
    common = build_common_plan()
    key = stepwise.look_key(common, dataset="office")
    ledger.spend(
        dataset="office", key=key, pcost=common.look.budget.pcost, plan_hash=f"look:{common.hash}"
    )
    session = open_look_step(ledger, records)
    assert "no result is saved" in session.errors()
    session.set(coarse_again_1=True, coarse_confirmation="office")
    wait(session.press("coarse_look"))
    record_decision(session)
    (second,) = [k for k in stepwise.looks(ledger, "office") if k != key]
    option, attempt = 1, 1
    rest = stepwise._second_stage_key(common, option, second, attempt)
    ledger.spend(
        dataset="office",
        key=rest,
        pcost=common.residuals[option].spend,
        plan_hash=f"rest1:{common.hash}",
    )
    session.run(session.app)
    assert "its result was not saved (attempts 1)" in session.errors()
    assert "coarse_finish" not in [b.key for b in session.app.button]
    run_finish(session.set(coarse_redraw_2=True))
    total = budgets.amount(float(sum(spent_pcosts(ledger))), TotalDefinition())
    assert f"All measurements together cost {total}, while this analysis alone" in session.text()
    assert "This includes 2 paid attempts whose result was lost." in session.text()


def test_interrupted_rest_is_finished_without_cost(
    ledger: Ledger, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = record_decision(run_look(ledger, records))
    (key,) = stepwise.looks(ledger, "office")
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "save_result", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            stepwise.finish(ledger, key, records)
    session.run(session.app)
    assert "spends nothing more" in str([w.value for w in session.app.warning])
    label = find_button(session, "coarse_finish").label
    assert label == "Finish the measurement: spend nothing more"
    run_finish(session)
    assert row_kinds(ledger) == ["spend", "saved", "note:rule", "note:decision", "spend", "saved"]


@pytest.mark.parametrize(
    "kind", [candidates_form.SIZES, pytest.param(candidates_form.CENSUS, marks=pytest.mark.full)]
)
def test_finer_decision_opens_the_next_look(ledger: Ledger, tmp_path: Path, kind: str) -> None:
    if kind == candidates_form.CENSUS:
        schema = Schema.from_json(demo_data.schemas()["census"].read_bytes())
        workloads, ways = analyses.census_ages(schema), {}
    else:
        schema = SCHEMA
        workloads = analyses.workloads_by_way(SCHEMA, (1, 2, 3))
        ways = {"coarse_ways_3_True": [1, 2, 3]}
    place = tmp_path / "people.csv"
    synthetic(schema, 20_000, seed=5).to_csv(place, index=False)
    session = open_page(0.9, coarse_kind=kind, coarse_snr=20.0, **ways)
    session.set(coarse_step=PAYER, ledger_path=str(ledger.path), records_path=str(place))
    session.set(dataset="office").set(coarse_step=LOOK).set(coarse_confirmation="office")
    wait(session.press("coarse_look"))
    assert "Choose a finer one: " in session.text()
    for number in range(2, len(workloads)):
        run_finish(record_decision(session))
        assert not session.errors()
        assert any(f"Measurement {number}" in s.value for s in session.app.subheader)
    run_finish(record_decision(session))
    session.set(coarse_past=True)
    assert f"Spent in {len(workloads)} steps" in session.text()
    assert "as much as this analysis alone" in session.text()
    (key,) = stepwise.looks(ledger, "office")
    common = stepwise.resume(ledger, key).common
    while common.following:
        common = common.following
    finest = common.options[-1]
    assert finest.pcost == pytest.approx(
        plan(list(workloads.values())[-1], Budget(pcost=0.9)).pcost, rel=1e-8
    )
    assert sum(spent_pcosts(ledger)) == Decimal(repr(finest.pcost))
    session.press("Past measurements")
    (line,) = session.app.selectbox(key="coarse_list_1").options
    assert " or ".join(workloads) in line
    assert "chosen, finished" in line


def test_look_job_is_marked_as_spending(
    ledger: Ledger, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options_by_job, start = {}, job_queue.start

    def record_options(key: str, *arguments: object, **options: object) -> Status:
        options_by_job[key] = options
        return start(key, *arguments, **options)

    monkeypatch.setattr(job_queue, "start", record_options)
    run_look(ledger, records)
    key = stepwise.look_key(build_common_plan(), dataset="office")
    assert options_by_job[ledger_state.look_job(ledger, key)]["spends"]
