"""The rooms: how large they are, how they are entered, and that a wrong import is noticed."""

import ast
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "engine"
SOURCES = sorted([*ENGINE.rglob("*.py"), *(ROOT / "pages").rglob("*.py"), ROOT / "app.py"])
ROOMS = {".".join(p.parent.relative_to(ROOT).parts): p for p in ENGINE.rglob("__init__.py") if p.parent != ENGINE}
MOST_MODULES, MOST_LINES = 16, 400


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def engine_imports(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line, module, name) of every import from the engine."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "engine":
            yield from ((node.lineno, node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, a.name, "") for a in node.names if a.name.startswith("engine."))


def page(room: str) -> tuple[str, list[str]]:
    """Return the docstring of a room's page and its public names."""
    tree = ast.parse(ROOMS[room].read_text(encoding="utf-8"))
    named = next(n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")
    return ast.get_docstring(tree) or "", ast.literal_eval(named.value)


def back_doors(file: Path) -> list[str]:
    """Return the imports of a file that enter a room by another way than its page."""
    me, found = module_name(file), []
    for line, module, name in engine_imports(file):
        for room in ROOMS:
            inside = f"{me}.".startswith(f"{room}.")
            if module.startswith(f"{room}.") and not inside:
                found.append(f"{file.relative_to(ROOT)}:{line} enters {room} by {module}")
            elif module == room and not inside and name not in page(room)[1]:
                found.append(f"{file.relative_to(ROOT)}:{line} takes {name}, which is not on the page of {room}")
    return found


def test_no_folder_and_no_file_is_too_large() -> None:
    folders = Counter(f.parent for f in [*SOURCES, *(ROOT / "tests").rglob("*.py")] if f.name != "__init__.py")
    assert {str(f): n for f, n in folders.items() if n > MOST_MODULES} == {}
    lines = {str(f): len(f.read_text(encoding="utf-8").splitlines()) for f in SOURCES}
    assert {f: n for f, n in lines.items() if n > MOST_LINES} == {}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_says_what_it_is_for_and_what_may_be_touched(room: str) -> None:
    words, names = page(room)
    assert "To touch:" in words
    assert len(words.splitlines()) <= 5
    assert len(set(names)) == len(names)
    assert not [n for n in names if n.startswith("_")]


def test_rooms_are_entered_through_their_pages() -> None:
    assert [line for file in SOURCES for line in back_doors(file)] == []


def test_a_back_door_is_noticed() -> None:
    planted = ROOT / "pages" / "planted_only_in_memory.py"
    text = "from engine.spaces.solvers import Options\nfrom engine.release import _secret\n"
    kept = Path.read_text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_text", lambda p, **k: text if p == planted else kept(p, **k))
        assert len(back_doors(planted)) == 2


def test_no_public_name_stands_in_two_modules() -> None:
    names = Counter(
        node.name
        for file in ENGINE.rglob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("engine/workload/sql/text.py", "from engine.figures import Picture"),
        ("engine/spaces/bounds.py", "from engine.plans import Plan"),
        ("engine/choice/rules.py", "from engine.insight import compare"),
        ("engine/release/measure.py", "import streamlit"),
        ("engine/insight/compare.py", "import plotly"),
        ("engine/publish/report.py", "from engine.release.noise import discrete_gaussian"),
        ("engine/mechanisms/wff.py", "from engine.mechanisms.optimum import Optimum"),
        ("engine/unplaced.py", "X = 1"),
    ],
)
def test_a_planted_import_breaks_the_contract(file: str, line: str, tmp_path: Path) -> None:
    shutil.copytree(ENGINE, tmp_path / "engine", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with open(tmp_path / file, "a", encoding="utf-8") as target:
        target.write(f"\n{line}\n")
    tool = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([tool, "--no-cache"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode != 0, run.stdout
