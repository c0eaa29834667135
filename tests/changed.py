"""Test files that belong to a change: `python -m tests --changed [REVISION]`.

A changed module selects the test files that import it, those of its package that reach it through
other imports, and those named after it or after a module that imports it. A changed test helper
selects the tests that import it, a conftest those below it, and any other file those that name it.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("engine", "pages", "tests", "demo_data", "benchmarks")
# these tests start servers and browsers; run them by name
SLOW = ("tests/browser/", "tests/server/")
APP_TESTS = ("tests/app/test_pages.py", "tests/app/test_parts.py")
RULES = "tests/test_architecture.py"


def git(*arguments: str) -> list[str]:
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def changed_files(revision: str | None = None) -> list[str]:
    """Return the changed and new files since a revision, by default since the branch left main."""
    if revision is None:
        has_main = git("branch", "--list", "main")
        revision = git("merge-base", "HEAD", "main")[0] if has_main else "HEAD"
    new = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", "--no-renames", revision), *new})


@cache
def modules() -> dict[str, str]:
    """Return the file of every module, by the name of the module."""
    files = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {
        ".".join(file.with_suffix("").parts).removesuffix(".__init__"): file.as_posix()
        for file in files
    }


@cache
def imported_names(module: str) -> dict[str, str]:
    """Return the full name of each object that a module imports, by its name there."""
    names: dict[str, str] = {}
    for node in ast.walk(ast.parse((ROOT / modules()[module]).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    return names


def defining_module(name: str) -> str | None:
    """Return the module in which a name is defined, through packages that export it again."""
    if name in modules():
        return name
    parent, _, last = name.rpartition(".")
    if parent in modules() and (origin := imported_names(parent).get(last)):
        return defining_module(origin)
    return defining_module(parent) if parent else None


@cache
def imports(module: str) -> frozenset[str]:
    return frozenset(filter(None, map(defining_module, imported_names(module).values())))


def importers(targets: Iterable[str], prefixes: tuple[str, ...]) -> set[str]:
    """Return the targets and all modules with the prefixes that import them, also indirectly."""
    reached, waiting = set(targets), set(targets)
    while waiting:
        waiting = {
            m for m in modules() if m.startswith(prefixes) and imports(m) & waiting
        } - reached
        reached |= waiting
    return reached


def tests_of(file: str) -> set[str]:
    """Return the test files that belong to one changed file; doctests are in the file itself."""
    tests = {path for path in modules().values() if Path(path).name.startswith("test_")}
    module = next((name for name, path in modules().items() if path == file), None)
    folder, stem = file.rpartition("/")[0], Path(file).stem
    if stem == "conftest":
        return {path for path in tests if path.startswith(f"{folder}/")}
    if module is None:
        named = {
            path for path in tests if Path(file).name in (ROOT / path).read_text(encoding="utf-8")
        }
        return named | {
            path
            for path in tests
            if path.startswith("tests/") and path.rpartition("/")[0] == folder
        }
    direct = {modules()[name] for name in importers([module], ("tests.",))}
    if file.startswith("tests/"):
        return (direct | {file}) & tests
    package = (
        module.removeprefix("engine.").removeprefix("pages.").removeprefix("parts.").split(".")[0]
    )
    stems = {f"test_{name.rpartition('.')[2]}" for name in modules() if module in imports(name)} | {
        f"test_{stem}"
    }
    reached = {modules()[name] for name in importers([module], ("engine.", "tests."))}
    of_package = {
        path
        for path in tests
        if f"/{package}/" in path and (path in reached or file.startswith("pages/"))
    }
    named = {path for path in tests if Path(path).stem in stems}
    app = set(APP_TESTS) if file.startswith("pages/") else set()
    return (
        direct & tests
        | of_package
        | named
        | app
        | ({file} if file.startswith("engine/") else set())
    )


def selection(files: Iterable[str]) -> list[str]:
    """Return the test files that belong to changed files, in order."""
    changed = list(files)
    tests = {test for file in changed for test in tests_of(file)} | ({RULES} if changed else set())
    return sorted(test for test in tests if not test.startswith(SLOW) or test in changed)
