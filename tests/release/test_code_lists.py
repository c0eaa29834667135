"""Code lists with levels, from the list to estimates, intervals, tables and verified packages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.analysis.ad_hoc_queries import condition_query
from engine.ledger import Ledger
from engine.mechanisms import load_plan, plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.publish.package_files import _label_bytes, _text_bytes
from engine.publish.release_package import write_package
from engine.publish.tables_package import write_tables
from engine.publish.verify import verify_package
from engine.release.ingest import check_records
from engine.release.measure import measure
from engine.workload import Attribute, CodeList, Level, Levels, Schema, Workload

RNG = np.random.default_rng(5)
# 5 regions, 20 districts and about 100 places with codes that begin with zeros
TREE = {
    f"region {r}": {
        f"district {r}-{d}": [f"0{r}{d}{p:02}" for p in range(RNG.integers(3, 8))] for d in range(4)
    }
    for r in range(5)
}
CODES = CodeList.from_labels(TREE, name="geography", levels=["region", "district"])
PLACE = Attribute.hierarchy("place", CODES, missing="unknown")
SCHEMA = Schema([PLACE, Attribute.categorical("sex", ["F", "M"])])
ALL_LEVELS = Levels(["region", "district", "place"], weights=[4, 2, 1])
WORKLOAD = (
    Workload(SCHEMA)
    .add(("place", "sex"), {"place": ALL_LEVELS, "sex": "marginal"})
    .add("place", Level("region"))
)


@pytest.fixture(scope="module")
def by_level() -> Plan:
    return plan(WORKLOAD, Budget(pcost=1.0))


def records(rows: int = 4_000) -> pd.DataFrame:
    rng = np.random.default_rng(7)
    places = rng.choice(CODES.codes, rows)
    return pd.DataFrame({"place": places, "sex": rng.choice(["F", "M"], rows)})


def exact_answers(people: pd.DataFrame) -> np.ndarray:
    """Return the exact answers to all queries of the workload, shape (queries,).

    First come the counts by sex for the areas of every level and for the cells, then the totals of
    the areas of the first level.
    """
    counts = pd.crosstab(people["place"], people["sex"])
    table = counts.reindex(PLACE.labels, fill_value=0)[["F", "M"]].to_numpy()
    level_codes = [level.area_of_cell for level in PLACE.hierarchies[0].levels]
    sums = [
        np.array([table[areas == area].sum(axis=0) for area in range(areas.max() + 1)])
        for areas in (*level_codes, np.arange(PLACE.size))
    ]
    return np.concatenate([*(one.ravel() for one in sums), sums[0].sum(axis=1)])


def test_plan_by_level_is_near_bound(by_level: Plan) -> None:
    assert 90 < PLACE.size < 130
    assert by_level.certificate.gap < 0.01


def test_plan_by_level_round_trips(by_level: Plan) -> None:
    loaded_plan = load_plan(by_level.to_json())
    assert loaded_plan.hash == by_level.hash
    assert loaded_plan.rmse == by_level.rmse
    loaded_workload = Workload.from_json(WORKLOAD.to_json())
    assert plan(loaded_workload, Budget(pcost=1.0)).hash == by_level.hash


def test_intervals_of_areas_cover_exact_counts(by_level: Plan) -> None:
    people = records()
    exact = exact_answers(people)
    is_covered, standardised_errors = [], []
    for seed in range(20):
        measurement = measure(by_level, people, rehearsal=True, seed=seed)
        groups = range(len(WORKLOAD.groups))
        answers = pd.concat([measurement.answers(group) for group in groups])
        is_covered.append((answers["low"] <= exact) & (exact <= answers["high"]))
        standardised_errors.append((answers["answer"] - exact) / answers["std"])
    assert np.mean(is_covered) == pytest.approx(0.95, abs=0.015)
    assert np.std(standardised_errors) == pytest.approx(1.0, abs=0.05)


def test_areas_are_sums_of_their_parts(by_level: Plan) -> None:
    measurement = measure(by_level, records(), rehearsal=True, seed=1)
    by_area_and_sex = measurement.values(0).reshape(-1, 2)
    region_level, district_level = PLACE.hierarchies[0].levels
    regions, districts, places = np.split(
        by_area_and_sex, np.cumsum([region_level.areas, district_level.areas])
    )
    for totals, level in ((regions, region_level), (districts, district_level)):
        sums = np.zeros((level.areas, 2))
        np.add.at(sums, level.area_of_cell, places)
        np.testing.assert_allclose(totals, sums, atol=1e-6)


def test_query_of_other_areas_has_estimate(by_level: Plan) -> None:
    people = records()
    measurement = measure(by_level, people, rehearsal=True, seed=2)
    # two districts of different regions
    condition = "district in ['district 1-2', 'district 3-0'] and sex == 'F'"
    query = condition_query(SCHEMA, condition)
    estimate = measurement.answer(query.attributes, query.tensor)
    meets_condition = people["place"].str.startswith(("012", "030")) & (people["sex"] == "F")
    assert abs(estimate.answer - meets_condition.sum()) < 5 * estimate.std


def test_packages_by_level_are_verified(by_level: Plan, tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("survey", total=Budget(pcost=1.0))
    measurement = measure(by_level, records(), dataset="survey", ledger=ledger)
    receipt = ledger.find(measurement.key)
    package = write_package(measurement, tmp_path / "release.zip", receipt=receipt)
    assert verify_package(package) == ()
    published = measurement.publish()
    tables = write_tables(published.uncertainty(draws=3), tmp_path / "tables.zip")
    assert verify_package(tables) == ()
    region_totals = published.answers(1)
    assert (region_totals["published"] >= 0).all()


def test_package_size_bound_contains_area_labels() -> None:
    long_labels = {f"{'long ' * 199}{r}": [str(r)] for r in range(3)}
    place = Attribute.hierarchy("p", CodeList.from_labels(long_labels, levels=["region"]))
    workload = Workload(Schema([place])).add("p", Level("region"))
    bound = _text_bytes(workload.groups[0], {"p": _label_bytes(place)})
    last_query_text = workload.describe(2)
    assert bound >= len(last_query_text.encode())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([code[1:] for code in CODES.codes], "leading zero"),
        ([int(code) for code in CODES.codes], "leading zero"),
        ([f" {code}" for code in CODES.codes], "blanks"),
    ],
    ids=["without first zero", "numbers", "blanks"],
)
def test_codes_in_another_format_cause_warning(by_level: Plan, values: Any, words: str) -> None:
    people = pd.concat([records(50), pd.DataFrame({"place": values, "sex": "F"})])
    warnings = " ".join(check_records(by_level, people).warnings)
    assert words in warnings
    assert "place" in warnings
