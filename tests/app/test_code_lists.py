"""Code lists with levels in the app: form, workload, errors, results and published tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.workload import Levels, Workload
from pages.parts.schema import code_list_form, grid
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from pages.parts.workload import group_choice
from tests.app.session import Session, open_demo_schema, upload, wait
from tests.code_lists import N_COUNTIES, SCHEMA, WORKLOAD, counties_csv, counties_workload

CSV = (
    "code,label,parent,level\nN,North,,region\nS,South,,region\n01,Ayle,N,\n02,Borne,N,\n03,Cray,S,"
)
HRC = "North\n@01\n@02\nSouth\n@03\n"


def fill(session: Session, **fields: Any) -> Session:
    """Set fields of the code list form.

    The key of a field ends in the serial number of the form, which this function appends.
    """
    serial = session.app.session_state[code_list_form.SERIAL] if serial_is_set(session) else 0
    return session.set(**{f"code_list_{name}_{serial}": text for name, text in fields.items()})


def serial_is_set(session: Session) -> bool:
    return code_list_form.SERIAL in session.app.session_state


def test_pasted_code_list_becomes_attribute() -> None:
    session = fill(Session().go("schema"), new="place", text=CSV)
    assert "Levels: region (2 areas). 3 cells: 01, 02, 03." in session.text()
    session.press("code_list_add")
    place = session.studio.schema["place"]
    assert place.labels == ("01", "02", "03")
    assert place.hierarchies[0].levels[0].labels == ("North", "South")
    assert "place: Levels: region (2 areas)" in session.text()
    assert session.app.session_state[grid.BASE][0][grid.LEVELS] == "region (2)"
    assert session.press("undo").studio.schema is None


def test_uploaded_hrc_with_level_names_joins_schema() -> None:
    session = open_demo_schema("census")
    upload(session, "places.hrc", HRC.encode(), "code_list_file_0")
    fill(session, new="place", levels="region").press("code_list_add")
    assert session.studio.schema.names == ("age", "sex", "place")
    (hierarchy,) = session.studio.schema["place"].hierarchies
    assert (hierarchy.name, hierarchy.level_names) == ("places", ("region",))


def test_invalid_code_list_keeps_fields_and_schema() -> None:
    session = fill(Session().go("schema"), new="place", text=CSV + "\n04,Dell,X,")
    assert "unknown parent" in session.errors()
    assert not any(b.key == "code_list_add" for b in session.app.button)
    assert session.app.text_area(key="code_list_text_0").value.endswith("04,Dell,X,")
    fill(session, levels="a, b", text=CSV)
    assert "1 levels" in session.errors() or "level names" in session.errors()
    fill(session, levels="").press("code_list_add")
    assert session.studio.schema["place"].size == 3
    assert not session.errors()


def test_code_list_without_column_cannot_be_added() -> None:
    session = fill(Session().go("schema"), text=CSV)
    (button,) = [b for b in session.app.button if b.key == "code_list_add"]
    assert button.disabled
    assert button.help


def test_other_labels_are_refused_and_nothing_is_lost() -> None:
    session = fill(open_demo_schema("census"), column="sex", text=CSV).press("code_list_add")
    assert "sex" in session.errors()
    assert session.app.text_area(key="code_list_text_0").value == CSV
    assert not session.studio.schema["sex"].hierarchies


def test_second_code_list_has_name_and_levels_are_removed() -> None:
    session = fill(Session().go("schema"), new="place", text=CSV).press("code_list_add")
    fill(session, column="place", text=CSV.replace("region", "zone")).press("code_list_add")
    assert "same name" in session.errors()
    session.set(code_list_name_1_areas="zones").press("code_list_add")
    place = session.studio.schema["place"]
    assert [h.name for h in place.hierarchies] == ["areas", "zones"]
    session.press("code_list_remove_place_areas")
    assert [h.name for h in session.studio.schema["place"].hierarchies] == ["zones"]


def test_column_of_records_gets_its_code_list() -> None:
    session = upload(Session().go("schema"), "people.csv", b"place,age\n01,4\n")
    assert set(session.app.selectbox(key="code_list_column_0").options) == {
        code_list_form.NEW,
        "place",
        "age",
    }
    fill(session, column="place", text=CSV).press("code_list_add")
    assert grid.INCOMPLETE in session.app.session_state
    assert [row["name"] for row in session.app.session_state[grid.INCOMPLETE]] == ["age"]


def open_places(page: str = "workload", **fields: Any) -> Session:
    request = RequestState(workload=Workload(SCHEMA))
    return Session(plan=permalink.packed(request)).go(page, **fields)


def test_levels_are_offered_for_attribute_with_code_list() -> None:
    session = open_places(add_how="One table").set(group_names=["sex"])
    options = session.app.selectbox(key="same").options
    assert not any(text.startswith("levels") for text in options)
    session.set(group_names=["place"])
    assert session.app.selectbox(key="own_place").value == "levels"
    # 2 regions, 3 counties and 6 places
    assert "11 queries on 6 cells" in session.text()
    session.press("add_group")
    (group,) = session.studio.workload.groups
    assert group.family == Levels(["region", "county", "place"], hierarchy="geography")


def test_levels_have_weights_and_are_chosen() -> None:
    session = open_places(add_how="One table").set(group_names=["sex", "work"])
    session.set(own_work_levels_geography=["region", "work"]).set(own_work_weighted=True)
    session.set(own_work_weight_geography_region=4.0).press("add_group")
    (group,) = session.studio.workload.groups
    assert group.parts[1].family.to_dict() == Levels(["region", "work"], [4, 1]).to_dict()
    assert group.count == 2 * (2 + 6)
    session.set(group_names=["sex", "work"], own_work_levels_geography=[])
    assert "No level is selected" in session.errors()


def test_second_code_list_is_chosen_for_all_tables() -> None:
    session = open_places(add_how="All combinations", ways=[1]).set(special=["place"])
    session.set(own_place_list="type")
    session.press("add_ways")
    families = {g.attributes: g.parts[0].family for g in session.studio.workload.groups}
    assert families[("place",)].to_dict()["hierarchy"] == "type"
    assert families[("work",)].name == "marginal"


def test_workload_by_level_survives_link_and_file() -> None:
    request = RequestState(workload=WORKLOAD)
    text = permalink.packed(request)
    assert permalink.unpacked(text).key == request.key
    session = Session(plan=text).go("workload")
    assert session.studio.workload == WORKLOAD
    assert session.go("schema").app.session_state[grid.BASE][1][grid.LEVELS].startswith("region")


def open_plan(workload: Workload, page: str = "preview", **fields: Any) -> Session:
    studio = RequestState(workload=workload, options={"centers": "uniform"})
    return wait(Session(plan=permalink.packed(studio)).go(page, **fields))


def test_preview_shows_one_level_with_worst_areas_first() -> None:
    session = open_plan(WORKLOAD)
    assert session.app.radio(key="preview_level").options == ["region", "county", "place"]
    frame = session.app.dataframe[1].value
    assert list(frame.columns) == ["region", "RMSE", "largest standard error"]
    assert frame["largest standard error"].round(9).is_monotonic_decreasing
    session.set(preview_level="place")
    assert set(session.app.dataframe[1].value["place"]) == {"a1", "a2", "b1", "c1", "c2", "c3"}
    assert "Areas 1 to 6 of 6" in session.text()


def test_preview_of_counties_is_paged_and_searched() -> None:
    session = open_plan(counties_workload()).set(preview_level="county")
    assert f"Areas 1 to 100 of {N_COUNTIES:,}" in session.text()
    session.set(areas_find_county="010052")
    assert "Areas 1 to 1 of 1" in session.text()
    session.set(areas_find_county="nowhere")
    assert "No area has this text" in session.text()
    session.set(areas_find_county="", fixed_0_0_find="State 07")
    assert session.app.selectbox(key="fixed_0_0").options == ["state = State 07"]


def first_table(session: Session) -> pd.DataFrame:
    return session.app.dataframe[0].value


def test_results_are_shown_by_level() -> None:
    session = open_plan(WORKLOAD, "release")
    wait(session.set(rows=800).press("rehearse"))
    all_answers = first_table(session)
    session.set(rehearsal_level_0="region")
    table = first_table(session)
    assert len(table) == 2 * 2 * 3  # regions, sexes and age groups
    assert table["query"].str.contains("region = ").all()
    expected = all_answers.set_index("query").loc[table["query"], "answer"]
    np.testing.assert_array_equal(table["answer"], expected)
    assert (abs(table["answer"] - table["truth"]) < 6 * table["std"]).all()


def test_published_tables_are_shown_by_level() -> None:
    session = open_plan(WORKLOAD, "release")
    wait(session.set(rows=800).press("rehearse"))
    session.set(rehearsal_view="Published tables")
    wait(session.press("rehearsal_publish"))
    assert {"answer", "published"} <= set(first_table(session))
    session.set(rehearsal_published_level_0="county")
    counties = first_table(session)
    assert counties["query"].str.contains("county = ").all()
    # The level "kind" of the second code list is not in the workload.
    session.set(rehearsal_published_level_0="kind")
    kinds = first_table(session)
    assert "Sums of published cells" in session.text()
    assert len(kinds) == 2 * 2 * 3
    assert "answer" not in kinds
    women_by_county, women_by_kind = (
        frame[frame["query"].str.contains("sex = F")]["published"].sum()
        for frame in (counties, kinds)
    )
    assert women_by_county == pytest.approx(women_by_kind)
    assert not session.errors()


def test_wide_results_are_searched() -> None:
    session = open_plan(counties_workload(), "release")
    wait(session.set(rows=5_000).press("rehearse"))
    session.set(rehearsal_level_0="county")
    cells_per_county = 2 * 18  # by sex and class of age
    assert f"of {N_COUNTIES * cells_per_county:,}" in session.text()
    session.set(rehearsal_find_0_county="010052")
    assert len(first_table(session)) == cells_per_county
    assert not session.errors()


def test_demo_opens_tables_by_level() -> None:
    session = Session().go("start").set(start_demo="states")
    assert "3,000 simulated persons" in session.text()
    assert "all 7 tables of one to three attributes, by region, division, state" in session.text()
    wait(session.press("start_Try a demo"))
    assert session.studio.workload.groups[0].family["state"].levels[0] == "region"
    assert not session.errors()


def test_pasted_counties_become_attribute() -> None:
    session = fill(Session().go("schema"), new="county", text=counties_csv())
    assert f"{N_COUNTIES:,} cells" in session.text()
    session.press("code_list_add")
    assert session.studio.schema["county"].size == N_COUNTIES


@pytest.mark.parametrize("page", ["schema", "workload", "preview", "compare", "coarse", "release"])
def test_page_with_counties_offers_short_lists(page: str) -> None:
    session = open_plan(counties_workload(), page)
    lists: list[Any] = [*session.app.selectbox, *session.app.multiselect, *session.app.radio]
    assert max((len(one.options) for one in lists), default=0) <= group_choice.MAX_OPTIONS
