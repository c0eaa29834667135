"""What is built and handed out: its files and words, and the studio started from it, away from the checkout."""

from __future__ import annotations

import email
import os
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

from engine.cli.main import main
from engine.privacy import Budget
from engine.workload import Schema, Workload
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.server.client import opened
from tests.server.serving import ROOT, serving
from tests.waiting import CEILING

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FOLDERS = ("demo_data", "engine", "pages", ".streamlit", ".readme", ".ci", "benchmarks", "tests")
FILES = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "app.py", "pyproject.toml")
APP = "dp_query_workbench"
OF_THE_SOURCE = ("tests/test_config.py", "tests/golden_files", "tests/workload", "tests/cli", "tests/install")


@dataclass(frozen=True, kw_only=True)
class Built:
    """The two files that are handed out, the one of an editable install, and the names in them."""

    checkout: Path
    wheel: Path
    sdist: Path
    editable: Path

    @property
    def in_wheel(self) -> set[str]:
        """Names in the wheel, without its metadata."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {name for name in archive.namelist() if ".dist-info/" not in name}

    @property
    def in_sdist(self) -> set[str]:
        """Names in the source distribution below its folder, without what the builder adds."""
        with tarfile.open(self.sdist) as archive:
            names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
        return names - {"PKG-INFO", ".gitignore"}

    @property
    def metadata(self) -> email.message.Message:
        """What a package index is told."""
        with zipfile.ZipFile(self.wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            return email.message_from_bytes(archive.read(name))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Both, built from a checkout in which people have left files of theirs."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    for name in FOLDERS:
        (source / name).symlink_to(ROOT / name)
    for name in (*FILES, ".gitignore"):
        shutil.copy(ROOT / name, source)
    for name in ("office.ledger", "records.csv", "plan.json", "notes/private.txt"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("mine")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(source)
        wheel, sdist = (made / build(str(made)) for build in (hatchling.build.build_wheel, hatchling.build.build_sdist))
        editable = made.with_name("editable")
        editable.mkdir()
        editable /= hatchling.build.build_editable(str(editable))
    return Built(checkout=source, wheel=wheel, sdist=sdist, editable=editable)


def in_checkout(*places: str) -> set[str]:
    """Names of the files below some places of the checkout."""
    found = [file for place in places for file in (ROOT / place).rglob("*") if file.is_file()]
    return {f.relative_to(ROOT).as_posix() for f in found if "__pycache__" not in f.parts}


def test_the_wheel_has_everything_and_keeps_the_app_in_one_folder(built: Built) -> None:
    assert {PurePosixPath(name).parts[0] for name in built.in_wheel} == {"demo_data", "engine", APP}
    app = {f"{APP}/{name}" for name in (*in_checkout("pages", ".streamlit"), "app.py")}
    assert built.in_wheel == in_checkout("demo_data", "engine") | app
    assert {"engine/py.typed", "demo_data/survey.csv", f"{APP}/.streamlit/config.toml"} <= built.in_wheel


def test_the_source_has_everything_and_nothing_that_lies_beside_it(built: Built) -> None:
    assert built.in_sdist == in_checkout(*FOLDERS) | set(FILES)
    assert "tests/install/test_installed.py" in built.in_sdist


def test_an_editable_install_leads_into_the_checkout(built: Built) -> None:
    with zipfile.ZipFile(built.editable) as archive:
        (path,) = [name for name in archive.namelist() if name.endswith(".pth")]
        assert archive.read(path).decode().split("\n") == [str(built.checkout)]
        assert not [name for name in archive.namelist() if name.startswith(("engine", "demo_data"))]


def test_an_index_is_told_what_is_true(built: Built) -> None:
    told = built.metadata
    assert (told["Name"], told["Version"]) == ("dp-query-workbench", PROJECT["version"])
    assert (told["Requires-Python"], told["License-Expression"]) == (">=3.11", "Apache-2.0")
    assert {text for text in told.get_all("Requires-Dist") if "extra ==" not in text} == set(PROJECT["dependencies"])
    assert told.get_all("Provides-Extra") == sorted(PROJECT["optional-dependencies"])
    assert told.get_all("Project-URL") is None, "an address that is named has to be there"


def test_the_words_on_an_index_need_nothing_beside_them(built: Built) -> None:
    told = built.metadata
    words, readme = told.get_payload(decode=True).decode(), (ROOT / "README.md").read_text(encoding="utf-8")
    assert told["Description-Content-Type"] == "text/markdown"
    assert "](.readme/" in readme
    assert "](" not in words.replace("](https://", ""), "neither pictures nor links lead into the checkout"
    assert set(words.splitlines()) < set(readme.splitlines())
    assert len(words.splitlines()) > 0.9 * len(readme.splitlines())


def test_the_citation_is_that_of_this_version() -> None:
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(found), "required by the Citation File Format 1.2.0"
    assert (found["cff-version"], found["type"]) == ("1.2.0", "software")
    assert str(found["version"]) == PROJECT["version"]
    assert (found["license"], found["keywords"]) == (PROJECT["license"], PROJECT["keywords"])
    assert found["authors"] == PROJECT["authors"]
    assert all(set(name) == {"given-names", "family-names"} for one in found["references"] for name in one["authors"])


PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input", "install")


def is_served(folder: Path, packages: Path, *start: str, **environment: str) -> None:
    """Start the studio of these packages, and have a page drawn and a worker's work done by it."""
    schema = Schema.from_json((ROOT / "demo_data" / "survey.json").read_bytes())
    studio = Studio(workload=Workload.all_ways(schema, (1,)), budget=Budget(pcost=1.0))
    with serving(folder, start=start, **environment) as server:
        with pytest.raises(HTTPError, match="403"):
            urlopen(server.url, timeout=CEILING)
        page = opened(server)
        begun = next(message.new_session for message in page.told if message.WhichOneof("type") == "new_session")
        assert Path(begun.main_script_path) == packages / APP / "app.py"
        assert begun.custom_theme.base_radius == "small"
        assert "Election survey 1996" in page.text
        page.close()
        page = opened(server, "release", f"plan={link.packed(studio)}")
        page.press("rehearse").until("REHEARSAL on simulated")  # by a worker, which has to find its modules, too
        page.close()


def test_the_studio_starts_where_it_is_installed(built: Built, tmp_path: Path) -> None:
    folder = tmp_path / "installed"
    options = ("--no-deps", "--no-index", "--no-compile", "--target", str(folder))
    subprocess.run([sys.executable, *PIP, *options, str(built.wheel)], check=True)
    # without `site`, whose .pth files may lead into the checkout, the libraries have to be named
    paths = os.pathsep.join([str(folder), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    start = (sys.executable, "-S", str(folder / "bin" / "dp-query-workbench"), "studio")
    is_served(tmp_path, folder, *start, PYTHONPATH=paths)


@pytest.mark.full
def test_an_empty_environment_serves_the_studio_and_the_source_passes_its_tests(built: Built, tmp_path: Path) -> None:
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
    is_served(tmp_path, packages, str(scripts / "dp-query-workbench"), "studio", PYTHONPATH="")

    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / built.sdist.name.removesuffix(".tar.gz")
    python(*PIP, f"{source}[test]")
    python("-m", "pytest", "-p", "no:cacheprovider", *OF_THE_SOURCE, folder=source)


def test_the_command_gives_its_options_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(sys, "argv", ["dp-query-workbench"])
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: asked.append([name, *sys.argv]))
    assert main(["studio"]) == 0
    names = ["--allowed-host", "one.example.org", "--server.allowedHosts", "two.example.org"]
    assert main(["studio", "--port", "8600", "--address", "127.0.0.2", *names, "--", "--theme.base", "dark"]) == 0
    plain, full = asked
    assert plain == ["streamlit", "streamlit", "run", str(ROOT / "app.py")]
    assert full[4:] == [
        "--server.port=8600",
        "--server.address=127.0.0.2",
        "--server.allowedHosts=one.example.org",
        "--server.allowedHosts=two.example.org",
        "--theme.base",
        "dark",
    ]
