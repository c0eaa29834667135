"""Pages with thousands of groups or hundreds of attributes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from engine import analysis
from engine.analysis import ad_hoc_queries as ask
from engine.privacy import Budget
from engine.workload import Attribute, Group, Schema, Workload
from pages.parts.compare import run
from pages.parts.shell import permalink, python_script
from pages.parts.shell.history import History, RequestState
from tests.app.session import Session, upload
from tests.app.workload.sessions import build_large_workload


def test_large_workload_can_be_edited() -> None:
    workload = build_large_workload()
    assert len(workload.groups) > 2_900
    content = workload.to_json().encode()
    session = upload(Session().go("start"), "w.json", content, "open_file").go("workload")
    assert len(session.app.dataframe[0].value) == 100  # the first page of tables
    session.set(find="x3 x25")
    numbers = ask.find_groups(workload, "x3 x25")
    assert set(session.app.dataframe[0].value["group"]) == set(numbers)
    assert len(numbers) == 25  # the groups on one pair and on 24 triples
    assert all({"x3", "x25"} <= set(workload.groups[i].attributes) for i in numbers)
    session.set(new_weight=7.0).press("weigh")
    assert [i for i, g in enumerate(session.studio.workload.groups) if g.weight == 7.0] == numbers
    session.press("remove")
    assert len(session.studio.workload.groups) == len(workload.groups) - len(numbers)
    session.set(find="").set(page_29=29)
    assert session.app.dataframe[0].value["group"].iloc[0] == 2_800
    assert "no table matches" in session.set(find="nothing").text().lower()
    session.press("undo").press("undo")
    assert session.studio.workload == workload


def test_page_of_clamps_the_page_number() -> None:
    numbers = range(250)
    expected = [0, 100, 200, 200, 0]
    assert [ask.page_of(numbers, page, 100)[0][0] for page in (1, 2, 3, 4, 0)] == expected
    assert ask.page_of([], 1, 100) == ([], 1)


def test_large_workload_code_is_short() -> None:
    # The request is too large for an address, and the workload too long for a script: the script
    # reads the workload from a file.
    studio = RequestState(
        workload=Workload(build_large_workload().schema, build_large_workload().groups * 10)
    )
    text = python_script.workload_script(studio).text()
    assert len(text) < 2_000
    assert len(studio.request_json) > permalink.MAX_QUESTION


class CountingTuple(tuple):
    """Tuple of groups that counts how often code iterates over it."""

    iterations = 0

    def __iter__(self) -> Iterator[Group]:
        CountingTuple.iterations += 1
        return super().__iter__()


@pytest.mark.parametrize("page", ["workload", "compare", "release", "start"])
def test_redrawn_page_does_not_iterate_groups(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "begin", lambda *_: None)
    schema = Schema([Attribute.of_size(f"question {i}", 2, kind="categorical") for i in range(30)])
    workload = Workload(schema, CountingTuple(Workload.all_ways(schema, (1, 2)).groups))
    session = Session()
    session.app.session_state["history"] = History(present=RequestState(workload=workload))
    session.go(page)
    CountingTuple.iterations = 0
    session.run(session.app)
    assert CountingTuple.iterations == 0


def test_cached_comparison_lookup_does_not_iterate_groups() -> None:
    workload = Workload(build_large_workload().schema, CountingTuple(build_large_workload().groups))
    assert analysis.partial_comparison(workload, Budget(pcost=1.0), ["wff"]) is None
    CountingTuple.iterations = 0
    assert analysis.partial_comparison(workload, Budget(pcost=1.0), ["wff"]) is None
    assert CountingTuple.iterations == 0


def test_page_of_many_attributes_lists_no_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema([Attribute.of_size(f"x{i}", 4) for i in range(300)])
    workload, listed = Workload.all_ways(schema, (1,)), []
    build = Workload.all_ways

    def listing(schema: Schema, ways: tuple[int, ...], *more: object) -> Workload:
        listed.append(tuple(ways))
        return build(schema, ways, *more)

    monkeypatch.setattr(Workload, "all_ways", listing)
    session = Session(plan=permalink.packed(RequestState(workload=workload))).go("workload")
    assert next(b for b in session.app.button if b.key == "add_ways").disabled
    assert "Already in the workload" in session.text()
    session.set(ways_ask="Tables").set(special=[])
    assert listed == [(1,), (1,)]  # the combinations are listed once per query type
    assert "Choose at least two table sizes" in session.go("coarse").text()
    assert listed == [(1,), (1,)]
