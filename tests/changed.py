"""Selection of the test files for changed files: `python -m tests --changed [REVISION]`.

For a changed module these are the test files that import it, the test files of its package that
import it indirectly, and test files with the name of the module or of a module that imports it. For
a test helper they are the tests that import it, for a conftest the tests in its folder, and for any
other file the tests in its folder and those in whose text its name occurs.  For a module of the
app, all test files of its package and `APP_TESTS` are added.
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
    """Run git and return the lines of its output."""
    run = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return run.stdout.splitlines()


def changed_files(revision: str | None = None) -> list[str]:
    """Return files that differ from a revision, by default the one at which the branch left main.

    New files that git does not ignore are included.
    """
    if revision is None:
        has_main = git("branch", "--list", "main")
        revision = git("merge-base", "HEAD", "main")[0] if has_main else "HEAD"
    new = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", "--no-renames", revision), *new})


@cache
def modules() -> dict[str, str]:
    """Return a mapping from the name of every module to the path of its file."""
    files = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return {
        ".".join(file.with_suffix("").parts).removesuffix(".__init__"): file.as_posix()
        for file in files
    }


@cache
def imported_names(module: str) -> dict[str, str]:
    """Return a mapping from each name that a module imports to the full name of the object."""
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
    """Return the module that defines a name, or None if it is not a name of this project.

    Names that a package re-exports are followed to the defining module.
    """
    if name in modules():
        return name
    parent, _, last = name.rpartition(".")
    if parent in modules() and (origin := imported_names(parent).get(last)):
        return defining_module(origin)
    return defining_module(parent) if parent else None


@cache
def imports(module: str) -> frozenset[str]:
    """Return the modules of this project that define the names which a module imports."""
    return frozenset(filter(None, map(defining_module, imported_names(module).values())))


def importers(targets: Iterable[str], prefixes: tuple[str, ...]) -> set[str]:
    """Return the targets, and all modules that import them directly or indirectly.

    Only modules whose names start with one of the prefixes are followed.
    """
    reached, waiting = set(targets), set(targets)
    while waiting:
        waiting = {
            m for m in modules() if m.startswith(prefixes) and imports(m) & waiting
        } - reached
        reached |= waiting
    return reached


def tests_of(file: str) -> set[str]:
    """Return the test files to run for one changed file.

    A changed module of the engine is returned, too, so that its doctests run.
    """
    tests = {path for path in modules().values() if Path(path).name.startswith("test_")}
    module = next((name for name, path in modules().items() if path == file), None)
    folder, stem = file.rpartition("/")[0], Path(file).stem
    if stem == "conftest":
        return {path for path in tests if path.startswith(f"{folder}/")}
    if module is None:
        # a data file or document: tests that name it, and tests next to it
        mentions = {
            path for path in tests if Path(file).name in (ROOT / path).read_text(encoding="utf-8")
        }
        return mentions | {
            path
            for path in tests
            if path.startswith("tests/") and path.rpartition("/")[0] == folder
        }
    # tests that import the module, perhaps by way of other modules of the tests
    selected = tests & {modules()[name] for name in importers([module], ("tests.",))}
    if file.startswith("tests/"):
        return selected | ({file} & tests)
    # tests that are named after the module or after a module that imports it
    importing = [name for name in modules() if module in imports(name)]
    stems = {f"test_{stem}", *(f"test_{name.rpartition('.')[2]}" for name in importing)}
    selected |= {path for path in tests if Path(path).stem in stems}
    package = (
        module.removeprefix("engine.").removeprefix("pages.").removeprefix("parts.").split(".")[0]
    )
    tests_of_package = {path for path in tests if f"/{package}/" in path}
    if file.startswith("pages/"):
        return selected | tests_of_package | set(APP_TESTS)
    reached = {modules()[name] for name in importers([module], ("engine.", "tests."))}
    selected |= tests_of_package & reached
    return selected | {file} if file.startswith("engine/") else selected


def selection(files: Iterable[str]) -> list[str]:
    """Return the test files of changed files, sorted; slow tests only if they changed themselves.

    `RULES` is included if any file changed.
    """
    changed = list(files)
    tests = {test for file in changed for test in tests_of(file)} | ({RULES} if changed else set())
    return sorted(test for test in tests if not test.startswith(SLOW) or test in changed)
