"""The delta of a budget: every output states epsilon at the delta that was requested."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine._format import deltas_as_powers
from engine.analysis import budget_for, comparison
from engine.analysis.error_targets import budget_for_error
from engine.cli.main import main
from engine.common_mechanism import CommonPlan
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.common_mechanism.stepwise import decide, finish, look
from engine.errors import LedgerError
from engine.figures.compare import comparison_page
from engine.ledger import Ledger, verify_ledger
from engine.ledger.balance import TotalDefinition
from engine.mechanisms import at_budget, load_plan, plan
from engine.privacy import Budget
from engine.publish import verify_package
from engine.publish.release_package import certificate, write_package
from engine.publish.tables_package import registry
from engine.release import Measurement, measure
from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import budgets, permalink, python_script
from pages.parts.shell.history import RequestState

SCHEMA = Schema([Attribute.of_size("a", 3), Attribute.of_size("b", 4)])
WORKLOAD = Workload.all_ways(SCHEMA, (1, 2), "marginal")
REQUESTED = Budget.approx(1.0, 1e-9)
DEFAULT = Budget(REQUESTED.pcost)
RECORDS = pd.DataFrame({"a": [0, 1, 2, 1], "b": [3, 2, 1, 0]})
STATEMENT = "epsilon 1 at delta 1e-09"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("people", total=Budget(pcost=10.0))
    return ledger


def test_budget_approx_states_its_delta() -> None:
    assert REQUESTED.report_delta == 1e-9
    assert STATEMENT in REQUESTED.describe()
    assert STATEMENT in REQUESTED.numbers()
    assert "delta 1e-06" in REQUESTED.describe(1e-6)
    assert REQUESTED.at(REQUESTED.pcost / 2).report_delta == 1e-9
    assert "1.23456789e-07" in Budget.approx(1.0, 1.23456789e-7).describe()


def test_budget_delta_changes_no_cost() -> None:
    assert REQUESTED.pcost == DEFAULT.pcost
    assert REQUESTED.rho == DEFAULT.rho
    assert REQUESTED.mu == DEFAULT.mu
    assert REQUESTED != DEFAULT
    assert replace(REQUESTED, report_delta=1e-6) == DEFAULT
    assert Budget.approx(1.0, 1e-6) == Budget(Budget.approx(1.0, 1e-6).pcost)


def test_budget_dict_has_delta_unless_default() -> None:
    assert REQUESTED.to_dict() == {"pcost": REQUESTED.pcost, "delta": 1e-9}
    assert Budget.from_dict(json.loads(json.dumps(REQUESTED.to_dict()))) == REQUESTED
    assert DEFAULT.to_dict() == {"pcost": DEFAULT.pcost}
    assert "delta" not in Budget.approx(1.0, 1e-6).to_dict()


def test_plan_delta_keeps_hash_and_noise() -> None:
    requested, default = plan(WORKLOAD, REQUESTED), plan(WORKLOAD, DEFAULT)
    assert requested.hash == default.hash
    assert requested.rmse == default.rmse
    assert STATEMENT in requested.meaning
    assert requested != default
    # only the plan of the request states the delta
    assert "1e-09" not in default.to_json()


def test_plan_file_keeps_delta() -> None:
    result = plan(WORKLOAD, REQUESTED)
    loaded = load_plan(result.to_json())
    assert loaded == result
    assert loaded.budget == REQUESTED
    assert loaded.to_json() == result.to_json()
    assert at_budget(plan(WORKLOAD, DEFAULT), REQUESTED).meaning == result.meaning


def test_plan_epsilon_table_has_requested_delta() -> None:
    result = plan(WORKLOAD, Budget.approx(1.0, 1e-7))
    assert list(result.epsilon_by_delta) == ["1e-05", "1e-06", "1e-07", "1e-09"]
    assert result.epsilon_by_delta["1e-07"] == pytest.approx(1.0, abs=1e-6)
    assert list(plan(WORKLOAD, DEFAULT).epsilon_by_delta) == ["1e-05", "1e-06", "1e-09"]


def test_error_target_keeps_delta() -> None:
    assert budget_for_error(plan(WORKLOAD, REQUESTED), 5.0).report_delta == 1e-9
    assert budget_for(WORKLOAD, 5.0).report_delta == 1e-6


def test_exact_totals_state_requested_delta() -> None:
    schema = Schema(SCHEMA.attributes, invariants=[("a", [1, 2, 1])])
    assert STATEMENT in schema.meaning(REQUESTED)


def test_comparison_page_states_requested_delta() -> None:
    compared = comparison(WORKLOAD, REQUESTED, ["identity"])
    page = comparison_page(compared, WORKLOAD, REQUESTED)
    assert deltas_as_powers(STATEMENT) in page


def test_rehearsal_states_requested_delta() -> None:
    measurement = measure(plan(WORKLOAD, REQUESTED), RECORDS, rehearsal=True)
    assert STATEMENT in measurement.plan.meaning


def test_release_states_requested_delta(ledger: Ledger, tmp_path: Path) -> None:
    result = plan(WORKLOAD, REQUESTED)
    measurement = measure(result, RECORDS, dataset="people", ledger=ledger)
    measurement.save(tmp_path / "release.zip")
    loaded = Measurement.load(tmp_path / "release.zip")
    assert loaded.plan.budget == REQUESTED
    document = certificate(loaded, None, 0.95)
    assert STATEMENT in document["meaning"]
    assert "1e-09" in document["epsilon_by_delta_proved"]
    assert "1e-09" in registry(loaded)["privacy loss"]["epsilon by delta"]  # type: ignore[index]
    package = write_package(measurement, tmp_path / "package.zip", ledger=ledger)
    assert verify_package(package) == ()


def test_release_with_other_delta_spends_once(ledger: Ledger) -> None:
    first = measure(plan(WORKLOAD, DEFAULT), RECORDS, dataset="people", ledger=ledger)
    spent = ledger.status("people").spent
    second = measure(plan(WORKLOAD, REQUESTED), RECORDS, dataset="people", ledger=ledger)
    assert ledger.status("people").spent == spent
    assert second.key == first.key
    for space, answers in first.answers_on_grid.items():
        np.testing.assert_array_equal(second.answers_on_grid[space], answers)
    assert STATEMENT in second.plan.meaning


def test_two_stage_release_states_requested_delta(ledger: Ledger) -> None:
    fine = Workload.all_ways(SCHEMA, (2,), "marginal")
    coarse = Workload.all_ways(SCHEMA, (1,), "marginal")
    common = coarse_or_fine(plan(coarse, REQUESTED), plan(fine, REQUESTED))
    assert CommonPlan.from_json(common.to_json()).look.budget.report_delta == 1e-9
    stage = look(common, RECORDS, dataset="people", ledger=ledger)
    assert "delta 1e-09" in stage.plan.meaning
    decide(ledger, stage.key, option=1, by="A. Reader")
    assert STATEMENT in finish(ledger, stage.key, RECORDS).plan.meaning


def test_ledger_total_keeps_its_delta(ledger: Ledger) -> None:
    ledger.add_dataset("other", total=REQUESTED, kind="gdp")
    measure(plan(WORKLOAD, Budget(REQUESTED.pcost / 2)), RECORDS, dataset="other", ledger=ledger)
    ledger.change_total("other", total=Budget(1.0), by="office", reason="second wave")
    status = Ledger(ledger.path).status("other")
    assert status.definition.delta == 1e-9
    assert "epsilon at delta 1e-09" in status.describe()
    assert verify_ledger(ledger.path) == ()
    assert "delta" not in ledger.status("people").describe()


def test_total_definition_text_omits_default_delta() -> None:
    assert "delta" not in TotalDefinition(kind="gdp").to_text()
    stored = TotalDefinition(kind="gdp", delta=1e-9)
    assert TotalDefinition.from_text(stored.to_text()) == stored


def test_total_definition_text_with_invalid_delta_is_refused() -> None:
    for damaged in ("0.0", "1.0", '"1e-9"', "true", "null"):
        with pytest.raises(LedgerError):
            TotalDefinition.from_text(f'{{"delta":{damaged}}}')


def test_command_line_states_requested_delta(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text(SCHEMA.to_json())
    budget = ["--epsilon", "1", "--delta", "1e-7"]
    assert (
        main(["plan", "--schema", "schema.json", "--ways", "1", *budget, "--out", "plan.json"]) == 0
    )
    assert "epsilon 1 at delta 1e-07" in capsys.readouterr().out
    assert main(["show", "--plan", "plan.json", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["budget"]["delta"] == 1e-7
    assert shown["epsilon_by_delta"]["1e-07"] == pytest.approx(1.0, abs=1e-6)
    assert main(["budget", "create", "--ledger", "office"]) == 0
    assert main(["budget", "add", "--ledger", "office", "--dataset", "people", *budget]) == 0
    assert "epsilon 1 at delta 1e-07" in capsys.readouterr().out
    assert main(["budget", "status", "--ledger", "office", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["datasets"][0]["delta"] == 1e-7


def test_code_and_link_keep_delta() -> None:
    budget = eval(python_script.budget_text(REQUESTED), {"Budget": Budget})
    assert budget == REQUESTED
    assert python_script.budget_text(DEFAULT) == f"Budget(pcost={DEFAULT.pcost!r})"
    state = RequestState(workload=WORKLOAD, budget=REQUESTED)
    assert permalink.unpacked(permalink.packed(state)).budget == REQUESTED
    assert RequestState.from_json(state.to_json()).budget == REQUESTED
    assert state.key != RequestState(workload=WORKLOAD, budget=DEFAULT).key


def test_budget_texts_of_pages_state_requested_delta() -> None:
    assert budgets.other_units(REQUESTED).startswith("epsilon 1 at delta 10^-9 ")
    assert budgets.numbers_of(REQUESTED, budgets.APPROX)[1] == 1e-9
    assert budgets.headline(REQUESTED, budgets.APPROX) == "ε 1"
