"""Wheel and source distribution: files, metadata and the installed app."""

from __future__ import annotations

import email
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.error import HTTPError
from urllib.request import urlopen

import hatchling.build
import pytest
import yaml
from packaging.requirements import Requirement

from engine.cli.main import main
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.server.client import open_client
from tests.server.serving import ROOT, run_server
from tests.waiting import CEILING

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOLDERS = (
    "demo_data",
    "engine",
    "pages",
    ".streamlit",
    ".readme",
    ".ci",
    ".github",
    "benchmarks",
    "tests",
)
FILES = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "app.py",
    "pyproject.toml",
)
APP = "dp_query_workbench"
TESTS_OF_SOURCE = (
    "tests/test_config.py",
    "tests/golden_files",
    "tests/workload",
    "tests/cli",
    "tests/install",
)


@dataclass(frozen=True, kw_only=True)
class Distributions:
    """Paths of the wheel, the source distribution and the editable wheel."""

    checkout: Path
    wheel: Path
    sdist: Path
    editable: Path

    @property
    def in_wheel(self) -> set[str]:
        """Return the names in the wheel, without its metadata."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if ".dist-info/" not in name}

    @property
    def in_sdist(self) -> set[str]:
        """Return the paths of the files in the source distribution, relative to its top folder.

        PKG-INFO and .gitignore, which the build tool adds, are omitted.
        """
        with tarfile.open(self.sdist) as archive:
            names = {
                member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()
            }
        return names - {"PKG-INFO", ".gitignore"}

    @property
    def metadata(self) -> email.message.Message:
        """Return the metadata of the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Return distributions built from a checkout that contains unrelated private files."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    for name in FOLDERS:
        (source / name).symlink_to(ROOT / name)
    for name in (*FILES, ".gitignore"):
        shutil.copy(ROOT / name, source)
    for name in ("office.ledger", "records.csv", "plan.json", "notes/private.txt"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("private")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(source)
        wheel, sdist = (
            target / build(str(target))
            for build in (hatchling.build.build_wheel, hatchling.build.build_sdist)
        )
        editable = target.with_name("editable")
        editable.mkdir()
        editable /= hatchling.build.build_editable(str(editable))
    return Distributions(checkout=source, wheel=wheel, sdist=sdist, editable=editable)


def in_checkout(*places: str) -> set[str]:
    """Return the paths of all files below some folders of the checkout, relative to its root."""
    files = [file for place in places for file in (ROOT / place).rglob("*") if file.is_file()]
    return {f.relative_to(ROOT).as_posix() for f in files if "__pycache__" not in f.parts}


def test_wheel_contains_packages_and_app_folder(built: Distributions) -> None:
    assert {PurePosixPath(name).parts[0] for name in built.in_wheel} == {"demo_data", "engine", APP}
    app = {f"{APP}/{name}" for name in (*in_checkout("pages", ".streamlit"), "app.py")}
    assert built.in_wheel == in_checkout("demo_data", "engine") | app
    assert {
        "engine/py.typed",
        "demo_data/survey.csv",
        f"{APP}/.streamlit/config.toml",
    } <= built.in_wheel


def test_source_distribution_contains_only_project_files(built: Distributions) -> None:
    assert built.in_sdist == in_checkout(*FOLDERS) | set(FILES)
    assert "tests/install/test_installed.py" in built.in_sdist


def test_editable_install_points_to_checkout(built: Distributions) -> None:
    with zipfile.ZipFile(built.editable) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".pth")]
        assert archive.read(path).decode().split("\n") == [str(built.checkout)]
        assert not [name for name in archive.namelist() if name.startswith(("engine", "demo_data"))]


def test_wheel_metadata_matches_project(built: Distributions) -> None:
    metadata = built.metadata
    assert (metadata["Name"], metadata["Version"]) == ("dp-query-workbench", PROJECT["version"])
    assert (metadata["Requires-Python"], metadata["License-Expression"]) == (">=3.11", "Apache-2.0")
    # Requirement writes the bounds of a version in one order
    assert {text for text in metadata.get_all("Requires-Dist") if "extra ==" not in text} == {
        str(Requirement(text)) for text in PROJECT["dependencies"]
    }
    assert metadata.get_all("Provides-Extra") == sorted(PROJECT["optional-dependencies"])
    assert metadata.get_all("Project-URL") is None, "no address may be given that does not exist"


def test_wheel_description_has_no_relative_links(built: Distributions) -> None:
    metadata = built.metadata
    description = metadata.get_payload(decode=True).decode()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "](.readme/" in readme
    assert "](" not in description.replace("](https://", ""), "no relative pictures or links"
    readme_without_links = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", readme)
    assert set(description.splitlines()) < set(readme_without_links.splitlines())
    assert len(description.splitlines()) > 0.9 * len(readme.splitlines())


def test_citation_file_matches_project() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation), "required by CFF 1.2.0"
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert str(citation["version"]) == PROJECT["version"]
    assert (citation["license"], citation["keywords"]) == (PROJECT["license"], PROJECT["keywords"])
    assert citation["authors"] == PROJECT["authors"]
    for reference in citation["references"]:
        for author in reference["authors"]:
            assert set(author) == {"given-names", "family-names"}


PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input", "install")


def check_app(folder: Path, packages: Path, *start: str, **environment: str) -> None:
    """Start the installed app in ``folder`` and check that its pages and workers use ``packages``.

    Parameters
    ----------
    packages : folder in which the app and the engine are installed.
    start : command that starts the app, and its arguments.
    environment : further environment variables of the server.
    """
    schema = Schema.from_json((ROOT / "demo_data" / "survey.json").read_bytes())
    request = RequestState(workload=Workload.all_ways(schema, (1,)), budget=Budget(pcost=1.0))
    with run_server(folder, start=start, **environment) as server:
        with pytest.raises(HTTPError, match="403"):
            urlopen(server.url, timeout=CEILING)
        page = open_client(server)
        session = next(
            message.new_session
            for message in page.messages
            if message.WhichOneof("type") == "new_session"
        )
        assert Path(session.main_script_path) == packages / APP / "app.py"
        assert session.custom_theme.base_radius == "small"
        assert "Election survey 1996" in page.text
        page.close()
        page = open_client(server, "release", f"plan={permalink.packed(request)}")
        # The rehearsal runs in a worker process, which has to import the packages, too.
        page.press("rehearse").until("REHEARSAL on simulated")
        page.close()


def test_installed_app_starts(built: Distributions, tmp_path: Path) -> None:
    folder = tmp_path / "installed"
    options = ("--no-deps", "--no-index", "--no-compile", "--target", str(folder))
    subprocess.run([sys.executable, *PIP, *options, str(built.wheel)], check=True)
    # -S disables `site`, whose .pth files may point to the checkout, so libraries are listed
    paths = os.pathsep.join(
        [str(folder), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    )
    start = (sys.executable, "-S", str(folder / "bin" / "dp-query-workbench"), "studio")
    check_app(tmp_path, folder, *start, PYTHONPATH=paths)


@pytest.mark.full
def test_new_environment_serves_app_and_passes_tests(built: Distributions, tmp_path: Path) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    scripts = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def python(*arguments: str, folder: Path = tmp_path) -> str:
        command = [str(scripts / "python"), *arguments]
        return subprocess.run(
            command, cwd=folder, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    python(*PIP, str(built.wheel))
    packages = Path(python("-c", "import engine; print(engine.__file__)")).parents[1]
    assert packages.is_relative_to(tmp_path / "env")
    check_app(tmp_path, packages, str(scripts / "dp-query-workbench"), "studio", PYTHONPATH="")

    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / built.sdist.name.removesuffix(".tar.gz")
    python(*PIP, f"{source}[test]")
    python("-m", "pytest", "-p", "no:cacheprovider", *TESTS_OF_SOURCE, folder=source)


def test_studio_command_passes_options_to_streamlit(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["dp-query-workbench"])
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: calls.append([name, *sys.argv]))
    assert main(["studio"]) == 0
    command = "studio --port 8600 --address 127.0.0.2 --allowed-host one.example.org"
    command += " --server.allowedHosts two.example.org -- --theme.base dark"
    assert main(command.split()) == 0
    start = ["streamlit", "streamlit", "run", str(ROOT / "app.py")]
    without_options, with_options = calls
    assert without_options == start
    assert with_options == [
        *start,
        "--server.port=8600",
        "--server.address=127.0.0.2",
        "--server.allowedHosts=one.example.org",
        "--server.allowedHosts=two.example.org",
        "--theme.base",
        "dark",
    ]
