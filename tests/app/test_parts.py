"""Modules of the pages: request state, schema grid, Python code, files and coding rules."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import demo_data
from engine import figures
from engine.errors import PlanError, SchemaError, WorkloadError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Width, Workload
from engine.workload.families import Random, read_matrix
from engine.workload.schema_tables import attribute_row
from pages.parts.schema import grid
from pages.parts.shell import figure_view, permalink, python_script
from pages.parts.shell.error_text import LABELS, escape_markdown
from pages.parts.shell.history import History, RequestState, fit_workload, renamed_attributes
from pages.parts.workload.family_form import FORMS, SINGLE
from tests.shapes import levels as levels_shape

ROOT = Path(__file__).resolve().parents[2]
PAGE_FILES = [ROOT / "app.py", *sorted((ROOT / "pages").rglob("*.py"))]
SCHEMA = Schema(
    [
        Attribute.numeric("age", [0, 18, 65, 120]),
        Attribute.categorical("sex", ["F", "M"], other="X"),
        Attribute.of_size("code", 4),
        Attribute.of_size("rank", 3),
    ]
)


def build_studio(pcost: float = 1.0) -> RequestState:
    workload = (
        Workload.all_ways(SCHEMA, ways=(1, 2))
        .add(("age", "sex"), {"age": "range", "sex": "marginal"}, weight=2.5)
        .add(("code", "rank"), "affine")
        .add(("code",), Width(2))
        .add(("code", "rank"), Random(p=0.5, count=3, seed=1))
        .add(("age", "sex"), Custom(predicates=["age >= 18 and sex == 'F'"]))
        .add(("rank",), Custom(matrix=[[1, 0, -1]]))
        .add((), "total")
    )
    return RequestState(workload=workload, budget=Budget(pcost=pcost))


def test_push_without_change_is_no_step() -> None:
    history = History().push(build_studio(), redraw=False)
    assert history.push(build_studio(), redraw=True) is history
    back = history.undo().push(build_studio(pcost=3.0), redraw=False)
    assert back.future == ()


def test_states_survive_text_and_address() -> None:
    here = build_studio(pcost=0.3)
    assert RequestState.from_json(here.to_json()).to_json() == here.to_json()
    assert permalink.unpacked(permalink.packed(here)).to_json() == here.to_json()


def test_equal_requests_share_one_workload() -> None:
    one, other = (permalink.unpacked(permalink.packed(build_studio(pcost=k))) for k in (1.0, 2.0))
    assert one.required_workload is other.required_workload
    more = RequestState(workload=one.required_workload.add(("age",), "prefix"))
    assert permalink.unpacked(permalink.packed(more)).required_workload is not one.required_workload
    assert permalink.unpacked(permalink.packed(more)).to_json() == more.to_json()


@pytest.mark.parametrize(
    "text", ["", "x", "%%%", "eJwDAAAAAAE=", permalink.packed(RequestState())[:-6]]
)
def test_damaged_addresses_are_refused(text: str) -> None:
    with pytest.raises(PlanError):
        permalink.unpacked(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"question": 3, "budget": 1}', "[" * 100_000])
def test_damaged_states_are_refused(text: str) -> None:
    with pytest.raises(PlanError):
        RequestState.from_json(text)


def test_groups_follow_renamed_attributes_or_are_listed() -> None:
    new = Schema([Attribute.numeric("years", [0, 18, 65, 120]), *SCHEMA.attributes[1:]])
    assert renamed_attributes(SCHEMA, new) == {"age": "years"}
    remaining, lost = fit_workload(Workload.all_ways(SCHEMA, ways=(1, 2)), new)
    assert len(remaining.groups) == 4 + 6  # tables of one and of two attributes
    assert lost == ()
    assert remaining.groups[4].attributes == ("years", "sex")
    smaller = Schema([Attribute.categorical("code", ["a", "b"]), Attribute.of_size("rank", 3)])
    remaining, lost = fit_workload(build_studio().workload, smaller)
    assert [g.attributes for g in remaining.groups] == [("rank",), ("code", "rank"), ("rank",), ()]
    assert len(lost) + len(remaining.groups) == len(build_studio().workload.groups)


def edit(schema: Schema | None, edits: dict[str, Any]) -> tuple[Schema | None, list[str]]:
    """Return the schema after edits of its grid, and the names of the incomplete rows.

    Raise the error of an invalid row.
    """
    base = [attribute_row(attribute) for attribute in (schema.attributes if schema else ())]
    edited, incomplete, error = grid.schema_of_rows(schema, grid.edited_rows(base, edits))
    if error is not None:
        raise error
    return edited, [row["name"] for row in incomplete]


@pytest.mark.parametrize("name", [*demo_data.schemas()])
def test_grid_without_edits_returns_schema(name: str) -> None:
    schema = Schema.from_json(demo_data.schemas()[name].read_bytes())
    assert edit(schema, {}) == (schema, [])


def test_grid_edits_are_applied() -> None:
    edits = {
        "edited_rows": {0: {"name": "years"}, "1": {"values": "F | M | X | D"}},
        "added_rows": [
            {"name": "town", "type": "ordered codes", "values": "7"},
            {"type": "labels"},
            {"name": "job"},
        ],
        "deleted_rows": [2],
    }
    schema, incomplete = edit(SCHEMA, edits)
    assert schema is not None
    assert schema.names == ("years", "sex", "rank", "town")
    assert schema.sizes(schema.names) == (3, 4, 3, 7)
    assert incomplete == ["job"]


def test_grid_of_names_only_has_no_schema() -> None:
    assert edit(None, {"added_rows": [{"name": "a"}, {"name": "b", "type": "bins"}]}) == (
        None,
        ["a", "b"],
    )


def test_grid_edits_keep_person_column() -> None:
    declared = Schema(SCHEMA.attributes, person="pid", rows_per_person=3)
    schema, _ = edit(declared, {"deleted_rows": [2]})
    assert schema is not None
    assert (schema.person, schema.rows_per_person) == ("pid", 3)


def test_grid_attribute_named_like_person_column_is_refused() -> None:
    declared = Schema(SCHEMA.attributes, person="pid", rows_per_person=3)
    with pytest.raises(SchemaError, match="person column 'pid'"):
        edit(declared, {"edited_rows": {0: {"name": "pid"}}})


@pytest.mark.parametrize(
    "edits",
    [
        {"edited_rows": {0: {"name": "sex"}}},
        {"edited_rows": {0: {"name": None}}},
        {"edited_rows": {0: {"values": "3, 2, 1"}}},
        {"edited_rows": {2: {"values": "many"}}},
        {"added_rows": [{"name": "half", "values": "|"}]},
    ],
)
def test_invalid_grid_edits_are_refused(edits: dict) -> None:
    with pytest.raises(SchemaError):
        edit(SCHEMA, edits)


@pytest.mark.parametrize(
    "edits",
    [{"deleted_rows": [0, 1, 2, 3]}, {"edited_rows": {n: {"values": ""} for n in range(4)}}],
)
def test_grid_without_values_has_no_schema(edits: dict) -> None:
    assert edit(SCHEMA, edits)[0] is None


@pytest.mark.parametrize(
    ("edits", "row"),
    [
        ({"edited_rows": {2: {"values": "two"}}}, "Row 3"),
        ({"edited_rows": {2: {"values": "two"}}, "deleted_rows": [0]}, "Row 2"),
        ({"added_rows": [{"type": "bins"}, {"name": "d", "values": "2, 1"}]}, "Row 6"),
    ],
)
def test_grid_errors_name_the_displayed_row(edits: dict[str, Any], row: str) -> None:
    with pytest.raises(SchemaError, match=row):
        edit(SCHEMA, edits)


@pytest.mark.parametrize(
    "content", [b"", b"1,2\n3\n", b"a,b\n", b"\xff\xfe\x00", b"1,,2\n", b'"' * 50]
)
def test_invalid_matrix_files_are_refused(content: bytes) -> None:
    with pytest.raises(WorkloadError):
        read_matrix(content)


def test_families_with_parameters_have_a_form() -> None:
    from engine.workload.families import FAMILIES

    needs = {
        f.name
        for f in FAMILIES
        if f.name not in ("affine", "abs", "level", "levels")
        and (f.name not in SINGLE or f is Width)
    }
    assert needs == set(FORMS)


@pytest.mark.parametrize("demo", [None, "cps"])
def test_plan_code_rebuilds_the_plan(demo: str | None) -> None:
    if demo is None:
        here = build_studio(pcost=0.7)
    else:
        schema = Schema.from_json(demo_data.schemas()[demo].read_bytes())
        here = RequestState(
            workload=Workload.all_ways(schema, ways=(1, 3)), budget=Budget.approx(1.0, 1e-6)
        )
        assert "all_ways(schema, ways=(1, 3))" in python_script.plan_code(here)
    names: dict = {}
    exec(python_script.plan_code(here), names)
    assert (
        names["workload_plan"].hash
        == plan(here.workload, here.budget, **here.options_without_defaults).hash
    )


def test_rehearsal_code_prints_answers(capsys: pytest.CaptureFixture) -> None:
    exec(python_script.rehearsal_code(build_studio(), rows=50, seed=3), {})
    assert "answer" in capsys.readouterr().out


def test_long_code_reads_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Schema([Attribute.of_size(f"a{i}", 2) for i in range(60)])
    workload = Workload(wide)
    for i in range(59):
        workload = workload.add((f"a{i}", f"a{i + 1}"))
    monkeypatch.chdir(tmp_path)
    Path("workload.json").write_text(workload.to_json(), encoding="utf-8")
    names: dict = {}
    exec(python_script.workload_script(RequestState(workload=workload)).text(), names)
    assert names["workload"] == workload


def test_code_with_levels_reads_schema_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = levels_shape()
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text(workload.schema.to_json(), encoding="utf-8")
    code = python_script.workload_script(RequestState(workload=workload)).text()
    assert "Levels(levels=['district', 'region'], weights=[1.0, 3.0])" in code
    names: dict = {}
    exec(code, names)
    assert names["workload"] == workload


def test_docstring_examples_pass() -> None:
    shown = [
        file
        for file in (ROOT / "pages" / "parts").rglob("*.py")
        if ">>>" in file.read_text(encoding="utf-8")
    ]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in shown]
    results = {name: doctest.testmod(importlib.import_module(name)) for name in names}
    assert len(results) > 5
    assert {
        name: result for name, result in results.items() if result.failed or not result.attempted
    } == {}


def test_message_labels_name_fields_of_pages() -> None:
    texts = {
        node.value
        for file in PAGE_FILES
        if file.stem != "error_text"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    fields = re.findall("“(.*?)[:”]", " ".join(LABELS.values()))
    assert len(fields) > 15
    assert [field for field in fields if not any(field in text for text in texts)] == []


def test_escape_markdown_disables_markup_and_addresses() -> None:
    assert escape_markdown("![x](y) <b>") == "\\!\\[x\\]\\(y\\) \\<b\\>"
    assert "http://" not in escape_markdown("http://example.com").replace("\\", "")


@pytest.mark.parametrize("file", PAGE_FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_page_module_follows_import_rules(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    modules = {
        n.name for node in ast.walk(tree) if isinstance(node, ast.Import) for n in node.names
    }
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {m.split(".")[0] for m in modules} & {"numpy", "scipy", "pandas", "plotly", "pickle"}
    handlers = [node.type for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler)]
    assert not [
        h
        for h in handlers
        if h is None or (isinstance(h, ast.Name) and h.id in ("Exception", "BaseException"))
    ]
    for banned in (":material/", "cache_data", "unsafe_allow_html", "st.html", "components"):
        assert banned not in text


def find_stale_clicks(text: str) -> list[str]:
    """Return the labels of buttons in a source text whose callbacks get fixed argument values.

    Such a callback would use the values at the time of drawing, not those at the click.
    """
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    buttons = [
        call
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "button"
    ]
    keywords = {id(call): {word.arg: word.value for word in call.keywords} for call in buttons}
    stale = [
        c
        for c in buttons
        if "args" in keywords[id(c)]
        or isinstance(keywords[id(c)].get("on_click"), (ast.Call, ast.Lambda))
    ]
    return [ast.unparse(call.args[0]) for call in stale]


def test_buttons_bind_no_stale_values() -> None:
    texts = {file: file.read_text(encoding="utf-8") for file in PAGE_FILES}
    assert {
        file.name: stale for file, text in texts.items() if (stale := find_stale_clicks(text))
    } == {}
    assert find_stale_clicks(
        "st.button('Go', on_click=go, args=(rows,))\nst.button('Undo', on_click=undo)"
    ) == ["'Go'"]
    assert find_stale_clicks("left.button('Go', on_click=partial(go, rows))") == ["'Go'"]


def test_figures_can_be_saved_as_svg() -> None:
    pages = Path(figure_view.__file__).resolve().parents[2]
    drawn = {
        file.relative_to(pages).as_posix(): file.read_text(encoding="utf-8")
        for file in pages.rglob("*.py")
    }
    assert [name for name, text in drawn.items() if "plotly_chart" in text] == [
        "parts/shell/figure_view.py"
    ]
    # The option displayModeBar could hide the toolbar with the button that saves a figure.
    assert [name for name, text in drawn.items() if "displayModeBar" in text] == []
    chart = figure_view.chart(
        figures.family_picture(SCHEMA, build_studio().workload.groups[0]), key="one"
    )
    assert chart.keywords["config"]["toImageButtonOptions"]["format"] == "svg"
