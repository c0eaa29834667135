"""The Workload page: SQL, ranges, matrix files, large workloads and the Python code, without a browser."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from engine import Attribute, Budget, Schema, Workload, forecast, insight, plan
from engine.errors import WorkloadError
from engine.figures import questions as domain_figures
from engine.insight import ask
from engine.texts import amount
from engine.workload import Custom, Group, box_workload, example, read_matrix, workload_from_sql
from pages.parts.compare import run
from pages.parts.jobs import dear, plans
from pages.parts.shell import code, designs, link, places
from pages.parts.shell.state import History, Studio
from tests.app.test_pages import EVEN, Session, demo

SURVEY = demo("survey")


def on_workload(name: str = "survey", **left: object) -> Session:
    return Session(plan=link.packed(Studio(workload=Workload(demo(name))))).go("workload", **left)


def saved(array: np.ndarray, **options: bool) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


# ---- SQL ---------------------------------------------------------------------------------------------------------


def test_sql_is_checked_while_it_is_written_and_added() -> None:
    session = on_workload(add_how="Write SQL")
    assert not any(b.key == "add_sql" for b in session.app.button)
    text = "SELECT vote, COUNT(*) FROM t WHERE age BETWEEN 20 AND 39 GROUP BY vote; SELECT COUNT(*) FROM t"
    session.set(sql_text=text)
    assert "This adds 2 groups with 3 queries" in session.said()
    assert "20 <= age < 40" in session.said()
    session.set(sql_weight=2.5).press("add_sql")
    expected = workload_from_sql(SURVEY, text, whole_numbers=["age"])
    assert [g.to_dict() | {"weight": 1.0} for g in session.studio.workload.groups] == [
        g.to_dict() | {"weight": 1.0} for g in expected.groups
    ]
    assert [g.weight for g in session.studio.workload.groups] == [2.5, 2.5]
    assert session.press("undo").studio.workload.groups == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT AVG(age) FROM t", "all queries are counts"),
        ("SELECT COUNT(*) FROM t WHERE income > 3", "no attribute 'income'"),
        ("SELECT COUNT(*) FROM t WHERE household_income < 100", "nearest edges are 0 and 3000"),
        ("DROP TABLE t", "only SELECT"),
        ("(" * 5000, "brackets"),
        ("'", "does not end"),
        ("<img src=x onerror=alert(1)>", "only SELECT"),
    ],
)
def test_sql_that_is_refused_says_why_and_adds_nothing(text: str, words: str) -> None:
    session = on_workload(add_how="Write SQL").set(sql_text=text)
    assert words in session.errors()
    assert not any(b.key == "add_sql" for b in session.app.button)
    assert session.studio.workload.groups == ()


def test_whole_numbers_are_a_choice() -> None:
    session = on_workload(add_how="Write SQL").set(sql_text="SELECT COUNT(*) FROM t WHERE age <= 39")
    assert "age < 40" in session.said()
    assert "cuts through the bin [39, 40)" in session.set(sql_whole=[]).errors()


@pytest.mark.parametrize("name", ["survey", "adult", "cps", "census", "loans"])
def test_the_example_can_be_added(name: str) -> None:
    session = on_workload(name, add_how="Write SQL").press("sql_example").press("add_sql")
    assert session.studio.workload == workload_from_sql(demo(name), example(demo(name)))


def test_the_example_quotes_what_sql_would_misread() -> None:
    schema = Schema([Attribute.of_size(n, 3) for n in ("group", 'a"b', "é", "x y", "plain", "1st", "--", "'", "ﬁ")])
    for first in range(len(schema)):
        names = schema.names[first:] + schema.names[:first]
        turned = schema.subset(names)
        assert workload_from_sql(turned, example(turned)).groups[0].attributes == names[:2]


# ---- ranges ------------------------------------------------------------------------------------------------------


def test_a_range_by_keyboard() -> None:
    session = on_workload(add_how="Drag a range")
    ends = next(s for s in session.app.select_slider if s.key == "range_age_82_0")
    session.run(ends.set_value((2, 21)))
    assert "The range: 20 <= age < 40" in session.said()
    session.set(range_weight=3.0).press("add_range")
    (group,) = session.studio.workload.groups
    assert group.to_dict() == box_workload(SURVEY, {"age": (2, 21)}, 3.0).groups[0].to_dict()
    session.set(**{f"range_names_{len(SURVEY)}": ["age", "education"]}).press("add_range")
    assert session.studio.workload.groups[-1].attributes == ("age", "education")
    session.set(**{f"range_names_{len(SURVEY)}": []})
    assert "Choose one attribute for a range" in session.said()


def test_ranges_of_attributes_of_every_size() -> None:
    names = {"one": 1, "two": 2, "many": 5000, "huge": 1_000_000}
    session = Session()
    session.run(session.app.file_uploader(key="schema_file").upload("s.json", json.dumps(names).encode(), "text/plain"))
    session.press("next").set(add_how="Drag a range")
    for name in names:
        session.set(range_names_4=[name])
        assert not session.errors()
    session.set(range_huge_1000000_0_first=999_999, range_huge_1000000_0_last=7).press("add_range")
    assert session.studio.workload.describe(0) == "huge >= 7"
    session.set(range_names_4=["two", "one"])
    session.run(next(s for s in session.app.select_slider if s.key == "range_two_2_0").set_value((0, 1)))
    session.press("add_range")
    assert session.studio.workload.describe(1) == "all records"


@pytest.mark.parametrize(
    ("box", "expected"),
    [
        ({"x": [1.6, 4.4], "y": [0, 1]}, (2, 4)),
        ({"x": [4.4, 1.6], "y": [0, 1]}, (2, 4)),
        ({"x": [-50, 3.0]}, (0, 3)),
        ({"x": [2.1, 2.2]}, (2, 2)),
        ({"x": [2.6, 2.9]}, (3, 3)),
        ({"x": [200, 300]}, (8, 8)),
        ({"x": [float("nan"), 3]}, (3, 3)),
        ({}, (0, 8)),
    ],
)
def test_boxes_become_runs_of_cells(box: dict, expected: tuple[int, int]) -> None:
    schema = Schema([Attribute.of_size("age", 9), Attribute.of_size("sex", 2)])
    assert domain_figures.cells_in_box(schema, ["age"], box) == {"age": expected}


def test_pictures_of_the_domain_show_what_is_chosen() -> None:
    picture = domain_figures.range_picture(SURVEY, {"age": (2, 21)})
    assert sum(y == 1.0 for y in picture.figure.data[0].y) == 20
    assert "20 of 82 cells chosen: 20 <= age < 40" in picture.alt
    picture = domain_figures.range_picture(SURVEY, {"age": (2, 21), "party": (1, 3)})
    assert picture.figure.data[0].z.sum() == 60
    assert picture.figure.data[0].z[2:22, 1:4].all()
    large = Schema([Attribute.of_size("x", 3000), Attribute.of_size("y", 2000)])
    for chosen in ({"x": (0, 9)}, {"x": (0, 999), "y": (5, 8)}):
        picture = domain_figures.range_picture(large, chosen)
        assert "evenly spaced" in picture.note
        assert all(len(side) <= 512 for side in (picture.figure.data[0].x, picture.figure.data[0].y))


def test_one_query_on_the_plane_is_its_row() -> None:
    schema = Schema([Attribute.of_size("a", 5), Attribute.of_size("b", 4), Attribute.of_size("c", 600)])
    workload = (
        Workload(schema)
        .add(("a", "b"), {"a": "range", "b": "prefix"})
        .add(("b", "a"), "affine")
        .add(("a", "b"), Custom(matrix=np.arange(40.0).reshape(2, 20)))
    )
    for group in workload.groups:
        rows = np.ones((1, 1))
        for part in group.parts:
            rows = np.kron(rows, part.family.rows(part.sizes))
        for query in range(group.count):
            drawn = domain_figures.plane_picture(schema, group, query).figure.data[0].z
            np.testing.assert_array_equal(np.asarray(drawn).ravel(), rows[query])
    (group,) = Workload(schema).add(("a", "c")).groups
    assert np.shape(domain_figures.plane_picture(schema, group, 0).figure.data[0].z) == (5, 512)


# ---- matrix files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [np.eye(3), np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.ones(3, bool)],
    ids=["floats", "whole", "columns first", "one row"],
)
def test_numpy_files(array: np.ndarray) -> None:
    np.testing.assert_array_equal(read_matrix(saved(array)), np.atleast_2d(array))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_matrices_as_spreadsheets_of_any_language_write_them(separator: str) -> None:
    np.testing.assert_array_equal(
        read_matrix("1,0.5\r\n0,-2\r\n".replace(",", separator).encode()), [[1, 0.5], [0, -2]]
    )


def header(shape: str, kind: str = "<f8") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (saved(np.array([{"a": 1}], dtype=object), allow_pickle=True), "real numbers"),
        (saved(np.ones((2, 3, 4))), "shape"),
        (saved(np.ones((2, 3), complex)), "real numbers"),
        (saved(np.array([["a"]])), "real numbers"),
        (saved(np.array(3.0)), "shape"),
        (saved(np.eye(3))[:-5], "announces"),
        (saved(np.eye(3))[:20], "no array"),
        (b"\x93NUMPY\x09\x00", "no array"),
        (b"\x93NUMPY", "no array"),
        (header("(1000000, 1000000)"), "announces"),
        (header("(-1, 3)"), "announces"),
        (header("('x', 3)"), "no array"),
        (header("(2, 3)", "|O"), "real numbers"),
        (header("__import__('os')"), "no array"),
        (b"1,2\n3,x\n", "Line 2"),
    ],
)
def test_matrix_files_that_are_refused(content: bytes, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        read_matrix(content)


def test_a_numpy_file_on_the_page() -> None:
    session = on_workload("census", add_how="One set of attributes").set(group_names=["sex"])
    session.set(group_how="Joint", joint="custom", joint_how="Matrix file")
    session.run(session.app.file_uploader(key="joint_file").upload("m.npy", saved(np.eye(3)), "application/x"))
    assert "3 columns" in session.errors()
    session.run(session.app.file_uploader(key="joint_file").upload("m.npy", saved(np.eye(2)), "application/x"))
    assert session.press("add_group").studio.workload.groups[0].count == 2


# ---- weights, pictures, large workloads --------------------------------------------------------------------------


def test_all_ways_with_a_weight_and_families_of_ones_own() -> None:
    session = on_workload("cps").set(ways_ask="Cumulative tables", ways=[2])
    session.set(special=["age"], own_age="range", ways_weight=0.5).press("add_ways")
    expected = Workload.all_ways(demo("cps"), (2,), {"age": "range"})
    assert [(g.attributes, dict(g.family), g.weight) for g in session.studio.workload.groups] == [
        (g.attributes, dict(g.family), 0.5) for g in expected.groups
    ]


def test_a_picked_group_is_drawn() -> None:
    session = on_workload("cps").set(ways=[2]).press("add_ways")
    version = session.app.session_state["history"].version
    session.set(**{f"chosen_{version}": [0]})
    assert "100 queries" in session.said()
    session.set(group_picture_part=-1)
    assert "Query 2,500 of 5,000" in session.said()


def large_workload() -> Workload:
    schema = Schema([Attribute.of_size(f"x{i}", 4, kind="numeric" if i % 2 else "categorical") for i in range(26)])
    return Workload.all_ways(schema, (2, 3))


def test_a_large_workload_stays_editable() -> None:
    workload = large_workload()
    assert len(workload.groups) > 2_900
    session = Session().go("workload")
    content = workload.to_json().encode()
    session.run(session.app.file_uploader(key="workload_file").upload("w.json", content, "application/json"))
    assert len(session.app.dataframe[0].value) == 100
    session.set(find="x3 x25")
    found = ask.find_groups(workload, "x3 x25")
    assert set(session.app.dataframe[0].value["group"]) == set(found)
    assert len(found) == 25  # one pair, 24 triples
    assert all({"x3", "x25"} <= set(workload.groups[i].attributes) for i in found)
    version = session.app.session_state["history"].version
    session.set(new_weight=7.0, **{f"chosen_{version}": found[:2]}).press("weigh")
    assert [i for i, g in enumerate(session.studio.workload.groups) if g.weight == 7.0] == found[:2]
    session.set(change_which=f"All {len(found)} groups found").press("remove")
    assert len(session.studio.workload.groups) == len(workload.groups) - len(found)
    session.set(find="").set(page_29=29)
    assert session.app.dataframe[0].value["group"].iloc[0] == 2_800
    assert "no group has all" in session.set(find="nothing").said().lower()
    session.press("undo").press("undo")
    assert session.studio.workload == workload


def test_pages_of_numbers() -> None:
    numbers = range(250)
    assert [ask.page_of(numbers, page, 100)[0][0] for page in (1, 2, 3, 4, 0)] == [0, 100, 200, 200, 0]
    assert ask.page_of([], 1, 100) == ([], 1)


# ---- address and Python ------------------------------------------------------------------------------------------


def of_every_kind() -> Studio:
    workload = Workload.all_ways(SURVEY, (1,))
    sql = "SELECT vote, COUNT(*) FROM t WHERE age < 40 OR party = 'Independent' GROUP BY vote; SELECT COUNT(*) FROM t"
    sql = sql.replace("Independent", SURVEY["party"].labels[3].replace("'", "''"))
    for made in (
        workload_from_sql(SURVEY, sql),
        box_workload(SURVEY, {"age": (2, 21), "tv_news_days": (0, 3)}, 2.0),
        Workload(SURVEY).add("vote", Custom(matrix=[[1, -1]], labels=["difference"])),
        Workload(SURVEY).add(("age", "vote"), {"age": Custom(predicates=["age < 30"]), "vote": "marginal"}, 0.5),
    ):
        workload = Workload(SURVEY, (*workload.groups, *made.groups))
    return Studio(workload=workload, budget=Budget(pcost=0.7))


def test_the_python_code_makes_the_same_groups() -> None:
    here, names = of_every_kind(), {}
    exec(code.plan_code(here), names)
    assert names["workload"] == here.workload
    assert names["made"].hash == plan(here.workload, here.budget).hash


def test_the_page_shows_the_code_of_what_was_added() -> None:
    session = on_workload(add_how="Write SQL").set(sql_text=example(SURVEY)).press("add_sql")
    session.set(add_how="Drag a range").press("add_range")
    names: dict = {}
    exec(session.app.code[-1].value, names)
    assert names["workload"] == session.studio.workload


@pytest.mark.parametrize("kind", ["query weights", "large matrix"])
def test_what_is_too_long_for_a_line_comes_from_the_file(kind: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema([Attribute.of_size("age", 60)])
    asked = Custom(matrix=np.eye(60)) if kind == "large matrix" else "marginal"
    weights = None if kind == "large matrix" else np.arange(60)
    workload = Workload(schema).add("age", asked, 1.0, weights)
    text = code.workload_script(Studio(workload=workload)).text()
    assert len(text) < 2_000
    monkeypatch.chdir(tmp_path)
    (tmp_path / "workload.json").write_text(workload.to_json(), encoding="utf-8")
    names: dict = {}
    exec(text, names)
    assert names["workload"] == workload


def test_the_address_and_a_plan_file_hold_every_kind() -> None:
    here = of_every_kind()
    assert len(link.packed(here)) < link.MAX_LENGTH
    session = Session(plan=link.packed(here)).go("workload")
    assert session.studio.to_json() == here.to_json()
    made = plan(here.workload, here.budget)
    session.go("preview")
    session.run(session.app.file_uploader(key="plan_file").upload("p.json", made.to_json().encode(), "text/plain"))
    assert session.studio.workload == here.workload


def test_an_edit_of_thousands_of_groups_costs_no_long_text() -> None:
    # the address is but a name, and the code is not written line by line: both would grow with the groups
    studio = Studio(workload=Workload(large_workload().schema, large_workload().groups * 10))
    text = code.workload_script(studio).text()
    assert len(text) < 2_000
    assert len(studio.question) > link.MAX_QUESTION


class Counted(tuple):
    """Groups that count how often somebody goes through all of them."""

    looks = 0

    def __iter__(self) -> Iterator[Group]:
        Counted.looks += 1
        return super().__iter__()


@pytest.mark.parametrize("page", ["workload", "compare", "release", "start"])
def test_a_page_that_is_drawn_again_does_not_go_through_all_groups_again(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "begin", lambda *_: None)
    schema = Schema([Attribute.of_size(f"question {i}", 2, kind="categorical") for i in range(30)])
    asked = Workload(schema, Counted(Workload.all_ways(schema, (1, 2)).groups))
    session = Session()
    session.app.session_state["history"] = History(present=Studio(workload=asked))
    session.go(page)
    Counted.looks = 0
    session.run(session.app)
    assert Counted.looks == 0


def test_what_there_is_of_a_comparison_is_looked_up_without_going_through_all_groups_again() -> None:
    asked = Workload(large_workload().schema, Counted(large_workload().groups))
    assert insight.compared_so_far(asked, Budget(pcost=1.0), ["wff"]) is None
    Counted.looks = 0
    assert insight.compared_so_far(asked, Budget(pcost=1.0), ["wff"]) is None
    assert Counted.looks == 0


def test_a_request_too_long_for_an_address_is_kept_under_a_name() -> None:
    here = Studio(workload=large_workload(), budget=Budget(pcost=0.7))
    session = Session()
    session.app.session_state["history"] = History(present=here)
    name = session.run(session.app).app.query_params[link.NAME]
    name = name[0] if isinstance(name, list) else name
    assert name.startswith(link.NAMED)
    assert len(name) < 30
    assert Session(plan=name).studio.to_json() == here.to_json()
    (kept,) = (f for f in (places.folder() / "designs").iterdir() if f.stem == name.removeprefix(link.NAMED))
    assert kept.stat().st_mode & 0o077 == 0  # for its owner alone
    assert set(json.loads(designs.find(kept.stem))) == {"question", "budget"}
    for wrong in ("~AAAAAAAAAAAAAAAA", "~", f"~../designs/{kept.stem}", f"~{kept.stem[:-1]}"):
        again = Session(plan=wrong)
        assert again.studio.workload is None
        assert "is not on this server" in again.errors()


def test_only_so_many_requests_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(places.VARIABLE, str(tmp_path))
    monkeypatch.setattr(designs, "KEPT", 3)
    names = [designs.keep(f"text {i}") for i in range(5)]
    left = {file.stem for file in (tmp_path / "designs").iterdir()}
    assert len(left) == 3
    assert names[-1] in left
    assert designs.find(names[-1]) == b"text 4"
    monkeypatch.setattr(designs, "MAX_TEXT", 3)
    assert designs.keep("text") == ""


def test_pages_of_hundreds_of_attributes_list_no_pairs_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema([Attribute.of_size(f"x{i}", 4) for i in range(300)])
    asked, listed = Workload.all_ways(schema, (1,)), []
    build = Workload.all_ways

    def listing(schema: Schema, ways: tuple[int, ...], *more: object) -> Workload:
        listed.append(tuple(ways))
        return build(schema, ways, *more)

    monkeypatch.setattr(Workload, "all_ways", listing)
    session = Session(plan=link.packed(Studio(workload=asked))).go("workload")
    session.set(ways_ask="Cumulative tables", ways_weight=2.0).set(ways_weight=3.0)
    assert listed == [(1,), (1,)]  # once for each kind, however often the page is drawn
    session.press("add_ways")
    assert "asked already" in session.errors()
    assert "Choose two numbers of attributes" in session.go("coarse").said()
    assert listed == [(1,), (1,)]


def test_a_second_press_adds_nothing_and_says_so() -> None:
    session = on_workload().set(ways_ask="Cumulative tables", ways=[1]).press("add_ways")
    before = session.studio.asked
    session.set(ways=[1]).press("add_ways")
    assert session.studio.asked == before
    assert "asked already" in session.errors()
    session.set(ways=[1, 2]).press("add_ways")
    assert session.studio.asked == Workload.all_ways(SURVEY, (1, 2))
    assert not session.errors()
    assert "45 groups added; 10 groups asked already." in session.said()
    assert not session.app.toast  # its dialog has no name for those who listen to the page
    assert "groups added" not in session.set(ways_weight=2.0).said()


# ---- groups that would be too dear to plan -------------------------------------------------------------------------


JOINT = {"add_how": "One set of attributes", "group_names": ["age", "hours-per-week"], "group_how": "Joint"}


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("dear", "plans"):
        monkeypatch.setattr(f"pages.parts.jobs.{module}.MEMORY_LIMIT", 1.8e8)


def test_sums_of_two_large_attributes_do_not_stand_in_the_way() -> None:
    asked = Workload.all_ways(demo("adult"), (1, 2)).add(("age", "hours-per-week"), "affine")
    session = Session(plan=link.packed(Studio(workload=asked))).go("preview")
    assert "Planning has to wait" not in session.said()
    assert not session.errors()


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("remedy", ["Remove it", "Approximate it", "Its marginal table instead"])
def test_the_group_that_makes_planning_too_dear_is_named_and_mended(remedy: str) -> None:
    asked = Workload.all_ways(demo("adult"), (1, 2)).add(("age", "hours-per-week"), "affine").add("sex", "marginal")
    session = Session(plan=link.packed(Studio(workload=asked))).go("preview")
    assert "Planning has to wait" in session.said()
    assert "is group 105: age × hours-per-week, affine" in session.said()
    session.press(remedy)
    assert not session.errors()
    assert "Typical error (counts)" in session.metrics()
    now = session.studio.asked.groups
    assert [g.attributes for g in now if g.family_text == "affine" and g.weight] == []
    assert len(now) == len(asked.groups) - (remedy == "Remove it")
    assert session.press("undo").studio.asked == asked


@pytest.mark.usefixtures("little_memory", "foretelling")
def test_a_group_is_forecast_before_it_is_added() -> None:
    asked = Workload.all_ways(demo("adult"), (1, 2))
    session = Session(plan=link.packed(Studio(workload=asked, options=EVEN))).go("workload")
    session.set(**JOINT)
    assert "What makes it so dear is age × hours-per-week, affine." in session.said()
    assert not any(b.label.startswith("Add: Remove it") for b in session.app.button)  # it is not there yet
    session.press("Add: Approximate it")
    (added,) = session.studio.asked.groups[len(asked.groups) :]
    assert added.weight == 0.0
    session.set(group_names=["sex", "race"], group_how="The same on each")
    assert "asked already" not in session.errors()
    session.set(group_names=["sex", "race", "income"])
    assert "Planning it takes about 1 second." in session.said()


def test_the_forecast_is_that_of_the_plan_that_would_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Workload.all_ways(demo("survey"), (1, 2))
    assert Studio(workload=asked).taken  # tuned, which takes too long with tables beside it
    session = Session(plan=link.packed(Studio(workload=asked))).go("workload").set(ways_ask="Tables", ways=[1, 2])
    tables = Workload.all_ways(demo("survey"), (1, 2), dict.fromkeys(demo("survey").names, "marginal"))
    both = Workload(asked.schema, (*asked.groups, *tables.groups))
    told = f"Planning it takes about {dear.duration(forecast(both).seconds)}."
    assert told in session.said()
    monkeypatch.setattr(insight, "forecast_added", None)  # a page that is drawn again does not work it out again
    session.app.run()
    assert not session.app.exception
    assert told in session.said()


@pytest.mark.usefixtures("foretelling")
def test_how_exact_new_groups_would_be_is_told_before_they_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    session = on_workload("cps", add_how="One set of attributes").set(group_names=["income", "sex"])
    tuned = partial(plan, budget=Budget(pcost=1.0), centers="tuned")
    first = Workload(demo("cps")).add(("income", "sex"), "marginal")
    assert insight.added_text(tuned(first), 1) in session.set(same="marginal").said()
    session.press("add_group").set(group_names=["age"], same="range", group_weight=2.0)
    both = first.add("age", "range", weight=2.0)
    text = insight.added_text(tuned(both), 1, tuned(first))
    assert "That of the others goes from" in text
    assert f"At ε 4.887: {text}" in session.said().replace("*", "")
    session.press("add_group").go("preview")
    row = tuned(both).by_group().iloc[1]
    assert f"typical error of {amount(row['rmse'])} counts, the largest {amount(row['max_std'])}." in text
    assert session.studio.asked == both
    monkeypatch.setattr(plans, "AT_ONCE", -1.0)  # what takes long is foretold by a worker, on request
    session.go("workload").set(group_names=["income"], same="prefix")
    assert "These" not in session.said()
    session.press("foresee").until(lambda: "At ε 4.887" in session.said())
    assert session.studio.asked == both


@pytest.mark.parametrize(
    ("asked", "family", "example"),
    [
        ("Tables", "marginal", "records have income = "),
        ("Cumulative tables", "prefix", "records have income < "),
        ("Ranges", "range", " <= income < "),
    ],
)
def test_tables_come_first_and_every_kind_has_an_example(asked: str, family: str, example: str) -> None:
    session = on_workload("cps")
    choice = session.app.radio(key="ways_ask")
    assert choice.value == "Tables" == choice.options[0]
    session.set(ways_ask=asked, ways=[1, 2])
    assert "Planning it takes about" in session.said()  # told before anything is added
    schema = demo("cps")
    of = {a.name: family for a in schema.attributes if a.kind == "numeric"}
    wanted = Workload.all_ways(schema, (1, 2), of)
    captions = session.app.radio(key="ways_ask").proto.captions
    assert example in captions[["Tables", "Cumulative tables", "Ranges"].index(asked)].replace("\\", "")
    session.press("add_ways")
    assert session.studio.workload == wanted
    names: dict = {}
    exec(session.app.code[-1].value, names)
    assert names["workload"] == wanted
    assert "all_ways" in session.app.code[-1].value
