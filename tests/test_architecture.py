"""Package structure: layers, imports and the architecture document."""

import ast
import builtins
import functools
import io
import keyword
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "engine"
SOURCES = sorted([*ENGINE.rglob("*.py"), *(ROOT / "pages").rglob("*.py"), ROOT / "app.py"])
PACKAGES = {
    ".".join(p.parent.relative_to(ROOT).parts): p
    for p in ENGINE.rglob("__init__.py")
    if p.parent != ENGINE
}
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SCRIPTS = sorted(f for folder in ("benchmarks", "demo_data") for f in (ROOT / folder).rglob("*.py"))


@functools.cache
def parsed(text: str) -> ast.Module:
    return ast.parse(text)


@functools.cache
def statements(text: str) -> tuple[ast.AST, ...]:
    """Return the statements of a source text at any depth.

    Expressions are not included.  The result is cached, because several rules use it.
    """

    def inside(node: ast.AST) -> Iterator[ast.AST]:
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, part, [])
            for child in children if isinstance(children, list) else ():
                yield child
                yield from inside(child)

    return tuple(inside(parsed(text)))


@functools.cache
def importing(text: str) -> list[ast.Import | ast.ImportFrom]:
    return [node for node in statements(text) if isinstance(node, (ast.Import, ast.ImportFrom))]


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def internal_imports(file: Path, root: str = "engine") -> Iterator[tuple[int, str, str]]:
    """Yield (line, module, name) of every import from the engine, or from the pages."""
    for node in importing(file.read_text(encoding="utf-8")):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == root:
            yield from ((node.lineno, node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (
                (node.lineno, a.name, "") for a in node.names if a.name.startswith(f"{root}.")
            )


def exports(package: str) -> tuple[str, list[str]]:
    """Return the docstring of a package and the names that it exports."""
    tree = parsed(PACKAGES[package].read_text(encoding="utf-8"))
    named = next(
        n for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
    )
    return ast.get_docstring(tree) or "", ast.literal_eval(named.value)


def test_architecture_document_matches_packages_and_files() -> None:
    text = (ENGINE / "ARCHITECTURE.md").read_text(encoding="utf-8")
    packages = text.split("## Packages")[1].split("## ")[0]
    top = {p.stem if p.is_file() else p.name for p in ENGINE.iterdir()} - {
        "__pycache__",
        "ARCHITECTURE",
        "THREAT_MODEL",
        "py",
    }
    assert top - {"__init__", "__main__"} <= set(re.findall(r"`(\w+)`", packages))
    tasks = text.split("## Where to change what")[1].split("## ")[0]
    files = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`", tasks))
    assert len(files) > 25
    assert [f for f in files if not (ENGINE / f).exists() and not (ROOT / f).exists()] == []


def test_engine_docstring_lists_every_package() -> None:
    docstring = (
        ast.get_docstring(parsed((ENGINE / "__init__.py").read_text(encoding="utf-8"))) or ""
    )
    packages = {p.parent.name for p in ENGINE.glob("*/__init__.py")}
    assert packages <= set(re.findall(r"^ {4}(\w+)", docstring, re.MULTILINE))


def wrong_imports(file: Path) -> list[str]:
    """Return imports of private names, and of exported names from a module, not from its package."""
    importer, wrong = module_name(file), []
    for line, module, name in internal_imports(file):
        for package in PACKAGES:
            inside = f"{importer}.".startswith(f"{package}.")
            if inside or not f"{module}.".startswith(f"{package}."):
                continue
            if name.startswith("_"):
                wrong.append(
                    f"{file.relative_to(ROOT)}:{line} imports the private {name} from {module}"
                )
            elif module != package and name in exports(package)[1]:
                wrong.append(
                    f"{file.relative_to(ROOT)}:{line} imports {name} from {module}, not from"
                    f" {package}"
                )
    return wrong


def test_packages_export_unique_public_names() -> None:
    for package in PACKAGES:
        _, names = exports(package)
        assert len(set(names)) == len(names), package
        assert not [name for name in names if name.startswith("_")], package


def test_exported_names_are_imported_from_packages() -> None:
    assert [line for file in SOURCES for line in wrong_imports(file)] == []


@contextmanager
def planted(place: str, text: str) -> Iterator[Path]:
    """While the block runs, let reads of the file ``place`` return ``text``; yield its path."""
    file, read_text = ROOT / place, Path.read_text
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_text", lambda p, **k: text if p == file else read_text(p, **k))
        yield file


def test_wrong_import_is_reported() -> None:
    wrong_lines = (
        "from engine.release.measure import measure\nfrom engine.release.noise import _secret\n"
    )
    with planted("pages/planted.py", wrong_lines) as file:
        assert len(wrong_imports(file)) == 2


def imports_of_test_modules(file: Path) -> list[str]:
    """Return imports from test modules; shared helpers belong in separate modules."""
    return [
        f"{file.relative_to(ROOT)}:{line} imports {name} from {module}"
        for line, module, name in internal_imports(file, "tests")
        if any(word.startswith("test_") for word in [*module.split("."), name])
    ]


def test_test_modules_do_not_import_each_other() -> None:
    assert [line for file in [*TESTS, *SCRIPTS] for line in imports_of_test_modules(file)] == []
    wrong_lines = (
        "from tests.app.test_pages import Session\n"
        "from tests.golden_files import (\n    test_formats,\n)\n"
    )
    with planted("tests/planted.py", wrong_lines) as file:
        assert len(imports_of_test_modules(file)) == 2


def forbidden_imports(file: Path) -> list[str]:
    """Return the imports of mechanism modules and of pages in a file.

    The registry may import all mechanisms, and a mechanism its own modules.
    """
    registry = ENGINE / "mechanisms" / "registry.py"
    if file == registry:
        return []
    # The modules are read from the registry and the folder, so new ones are included.
    mechanisms = {m for _, m, _ in internal_imports(registry) if m.startswith("engine.mechanisms.")}
    mechanisms -= {"engine.mechanisms.base"}
    page_files = {module_name(f) for f in (ROOT / "pages").glob("*.py") if f.name != "__init__.py"}
    messages = []
    for root, restricted in (("engine", mechanisms), ("pages", page_files)):
        for line, module, name in internal_imports(file, root):
            # "from package import module" and modules inside the package of a mechanism count too
            imported = {module, f"{module}.{name}", ".".join(module.split(".")[:3])}
            for target in restricted & imported:
                if not f"{module_name(file)}.".startswith(f"{target}."):
                    messages.append(f"{file.relative_to(ROOT)}:{line} imports {target}")
    return messages


def test_only_registry_imports_mechanisms_and_nothing_imports_pages() -> None:
    assert [line for file in SOURCES for line in forbidden_imports(file)] == []


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("engine/mechanisms/residualplanner.py", "from engine.mechanisms.baselines import Optimum"),
        ("engine/mechanisms/residual_base.py", "import engine.mechanisms.querysmasher"),
        ("engine/mechanisms/baselines.py", "from engine.mechanisms.hdmm import Lattice"),
        ("engine/mechanisms/baselines.py", "from engine.mechanisms import hierarchical"),
        ("pages/parts/release/results_view.py", "import pages.release"),
        ("pages/preview.py", "from pages import compare"),
    ],
)
def test_import_between_mechanisms_or_pages_is_reported(place: str, text: str) -> None:
    with planted(place, text) as file:
        assert len(forbidden_imports(file)) == 1


def names_in(file: Path) -> Iterator[str]:
    """Yield all names that a file defines or uses, and the parts of its path."""
    yield from file.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(parsed(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.alias):
            yield from (node.asname or node.name).split(".")
        elif isinstance(node, (ast.arg, ast.keyword)):
            yield node.arg or ""
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id


def texts_in(file: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every line of a comment or docstring, without doctests."""
    text = file.read_text(encoding="utf-8")
    for node in ast.walk(parsed(text)):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module))
            and node.body
            and isinstance(node.body[0], ast.Expr)
            and isinstance(constant := node.body[0].value, ast.Constant)
            and isinstance(constant.value, str)
        ):
            yield from enumerate(constant.value.split("\n"), constant.lineno)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def unknown_names(text: str, names: Collection[str]) -> list[str]:
    """Return the names in single backticks of a line of text that are not among ``names``.

    Lines of doctests have no such names.
    """
    if text.lstrip().startswith((">>>", "...")):
        return []
    quoted = re.findall(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(.*?\))?`(?!`)", text)
    return [name for name in quoted if not all(part in names for part in name.split("."))]


def test_names_in_docstrings_and_comments_exist() -> None:
    names = {name for file in (*SOURCES, *TESTS, *SCRIPTS) for name in names_in(file)}
    names.update(dir(builtins), keyword.kwlist)
    unknown = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in SOURCES
        for line, text in texts_in(file)
        for name in unknown_names(text, names)
    ]
    assert not unknown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see `plan` and `no_such_name`", ["no_such_name"]),
        (f"see `{'engine'}.no_such_module`", [f"{'engine'}.no_such_module"]),
        ("``no_such_name`` is a value", []),
        (">>> evaluate('`no_such_name` > 1')", []),
    ],
)
def test_unknown_name_in_backticks_is_reported(text: str, expected: list[str]) -> None:
    assert unknown_names(text, {"engine", "plan"}) == expected


def compared_by_arrays(file: Path) -> list[str]:
    """Return dataclasses whose generated ``__eq__`` would compare array or table fields."""
    messages = []
    for node in statements(file.read_text(encoding="utf-8")):
        kind = next(
            (
                ast.unparse(d)
                for d in getattr(node, "decorator_list", [])
                if "dataclass" in ast.unparse(d)
            ),
            "",
        )
        if isinstance(node, ast.ClassDef) and kind and "eq=False" not in kind:
            types = " ".join(
                ast.unparse(n.annotation) for n in node.body if isinstance(n, ast.AnnAssign)
            )
            has_equality = any(
                isinstance(n, ast.FunctionDef) and n.name == "__eq__" for n in node.body
            )
            if not has_equality and re.search(
                r"(?<!pa\.)\b(Array|Index|NDArray|ndarray|DataFrame)\b", types
            ):
                messages.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}")
    return messages


def test_dataclasses_with_arrays_define_equality() -> None:
    assert [line for file in ENGINE.rglob("*.py") for line in compared_by_arrays(file)] == []


def test_dataclass_comparing_arrays_is_reported() -> None:
    text = (
        "@dataclass(frozen=True)\nclass A:\n    x: Array\n\n\n"
        "@dataclass(eq=False)\nclass B:\n    x: Array\n"
    )
    with planted("engine/planted.py", text) as file:
        assert compared_by_arrays(file) == ["engine/planted.py:2 A"]


ENGINE_LAYERS = "Packages import only packages below them"
PARTS_OF_PAGES = "Parts of the pages import down only"
PLANTS = [
    (ENGINE_LAYERS, "engine.workload.sql", "engine.figures"),
    (ENGINE_LAYERS, "engine.bounds.lower_bounds", "engine.plans"),
    (ENGINE_LAYERS, "engine.common_mechanism.selection_rule", "engine.analysis.compare"),
    ("The engine never imports the app", "engine.release.measure", "streamlit"),
    ("The engine never imports the app", "engine._format", "pages.parts.shell.error_text"),
    ("Only figures, lessons and publish", "engine.analysis.compare", "plotly"),
    ("Only release and common_mechanism", "engine.publish.report", "engine.release.noise"),
    ("Pages compute nothing", "pages.preview", "numpy"),
    ("Pages compute nothing", "pages.parts.compare.run", "scipy"),
    ("Pages compute nothing", "pages.parts.release.results_view", "plotly"),
    (PARTS_OF_PAGES, "pages.parts.shell.python_script", "pages.parts.workload.family_form"),
    (PARTS_OF_PAGES, "pages.parts.compare.views", "pages.parts.preview.plan_headline_view"),
    ("Workers load no Streamlit", "pages.parts.jobs.tasks", "pages.parts.jobs.job_widget"),
]
UNPLACED = [(ENGINE_LAYERS, "engine/unplaced.py"), (PARTS_OF_PAGES, "pages/parts/unplaced.py")]


def broken_contracts(added: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the violations that lint-imports reports, by contract.

    ``added`` maps files to text that is appended to them in a copy of the project in ``folder``.
    At least one contract must be broken.
    """
    for part in ("engine", "pages"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    for file, text in added.items():
        with open(folder / file, "a", encoding="utf-8") as target:
            target.write(text)
    tool = Path(sys.executable).with_name("lint-imports")
    run = subprocess.run([tool, "--no-cache"], cwd=folder, capture_output=True, text=True)
    assert run.returncode != 0, run.stdout
    parts = re.split(
        r"^(.+)\n-+\n", run.stdout.partition("Broken contracts\n")[2], flags=re.MULTILINE
    )
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.fixture(scope="module")
def violations(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the violations, by contract, in a copy that contains every forbidden import."""
    added: dict[str, str] = {}
    for _, module, imported in PLANTS:
        file = f"{module.replace('.', '/')}.py"
        added[file] = f"{added.get(file, '')}\nfrom {imported} import planted\n"
    return broken_contracts(added, tmp_path_factory.mktemp("planted"))


@pytest.mark.needs("importlinter")
@pytest.mark.parametrize(("contract", "module", "imported"), PLANTS)
def test_planted_import_breaks_its_contract(
    contract: str, module: str, imported: str, violations: dict[str, str]
) -> None:
    (report,) = [text for name, text in violations.items() if name.startswith(contract)]
    assert re.search(
        rf"^- +{re.escape(module)} -> {re.escape(imported)}\b", report, re.MULTILINE
    ), report


@pytest.mark.needs("importlinter")
def test_module_without_layer_is_reported(tmp_path: Path) -> None:
    report = broken_contracts({file: "X = 1\n" for _, file in UNPLACED}, tmp_path)
    assert list(report) == [contract for contract, _ in UNPLACED]
    for contract, file in UNPLACED:
        assert f"- {file.removesuffix('.py').replace('/', '.')}\n" in report[contract]
