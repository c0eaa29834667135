"""Streamlit settings: safe options, local fonts, text contrast, and the CI script."""

import os
import re
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from streamlit import config as streamlit_config

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / ".streamlit" / "config.toml"
CONFIG = tomllib.loads(FILE.read_text(encoding="utf-8"))
MODES = ("light", "dark")
TEST_COMMAND = (
    'python3 -m venv .venv && .venv/bin/pip install -e ".[test]" && .venv/bin/python -m tests'
)
START_COMMAND = (
    "python3 -m venv .venv && .venv/bin/pip install --no-compile -e . && .venv/bin/streamlit run"
    " app.py"
)

SAFE = {
    "server.address": "127.0.0.1",
    "server.allowedHosts": ["127.0.0.1", "localhost"],
    "server.corsAllowedOrigins": [],
    "server.enableAgentApi": False,
    "server.enableCORS": True,
    "server.enableStaticServing": False,
    "server.enableXsrfProtection": True,
    "server.fileWatcherType": "none",
    "server.runOnSave": False,
    "server.xsrfCookieSameSite": "strict",
    "browser.gatherUsageStats": False,
    "client.allowedOrigins": [],
    "client.showErrorDetails": "none",
    "client.showErrorLinks": False,
    "client.toolbarMode": "viewer",
    "runner.fastReruns": False,
    "runner.magicEnabled": False,
    "runner.postScriptGC": False,
}


def flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return options by dotted name."""
    options = {}
    for key, value in table.items():
        options |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        )
    return options


OPTIONS = flat(CONFIG)


@pytest.mark.parametrize("name", SAFE)
def test_safety_option_has_safe_value(name: str) -> None:
    assert OPTIONS[name] == SAFE[name]


def test_upload_size_is_limited() -> None:
    assert 0 < OPTIONS["server.maxUploadSize"] <= 200


def test_options_exist_in_installed_streamlit() -> None:
    assert set(OPTIONS) <= set(streamlit_config.get_config_options())


def test_streamlit_reads_config_file(monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("STREAMLIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(ROOT)
    try:
        options = streamlit_config.get_config_options(force_reparse=True)
        assert {name: options[name].value for name in SAFE} == SAFE
    finally:
        monkeypatch.undo()
        streamlit_config.get_config_options(force_reparse=True)


def test_options_name_no_external_file_or_host() -> None:
    strings = [text for text in OPTIONS.values() if isinstance(text, str)]
    assert not [text for text in strings if "://" in text or text.startswith("//")]
    assert not any("fontFaces" in name or name == "theme.base" for name in OPTIONS)


@pytest.mark.parametrize("name", ["font", "headingFont", "codeFont"])
def test_fonts_are_local_with_generic_fallback(name: str) -> None:
    families = [family.strip().strip("'") for family in CONFIG["theme"][name].split(",")]
    # A colon would make Streamlit load a style sheet from the address after it.
    assert all(re.fullmatch(r"[A-Za-z -]+", family) for family in families)
    assert families[-1] in ("sans-serif", "monospace")


def luminance(color: str) -> float:
    """Return the relative luminance of #rrggbb, as WCAG 2.2 defines it."""
    assert re.fullmatch(r"#[0-9a-f]{6}", color), color
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as WCAG 2.2 defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def mixed(color: str, ground: str, opacity: float) -> str:
    """Blend a colour of some opacity over an opaque background."""
    pairs = [(int(color[i : i + 2], 16), int(ground[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(opacity * c + (1 - opacity) * g):02x}" for c, g in pairs)


def test_contrast_matches_reference_values() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert mixed("#ff0000", "#0000ff", 0.2) == "#3300cc"


def colors(mode: str, place: str) -> dict[str, str]:
    """Return the theme colours of a ``place`` (page or sidebar) in a ``mode`` (light or dark).

    The sidebar has the colours of the page unless it sets its own.
    """
    page = {key: value for key, value in CONFIG["theme"][mode].items() if key != "sidebar"}
    return page | CONFIG["theme"][mode]["sidebar"] if place == "sidebar" else page


@pytest.mark.parametrize("place", ["page", "sidebar"])
@pytest.mark.parametrize("mode", MODES)
def test_text_contrast_is_sufficient(mode: str, place: str) -> None:
    palette = colors(mode, place)
    text, link, primary = palette["textColor"], palette["linkColor"], palette["primaryColor"]
    page, field = palette["backgroundColor"], palette["secondaryBackgroundColor"]
    ratios = {
        "text on the page": contrast(text, page),
        "text in a field": contrast(text, field),
        "caption, drawn at 60%": contrast(mixed(text, page, 0.6), page),
        "link on the page": contrast(link, page),
        "link in a field": contrast(link, field),
        "primary button": contrast("#ffffff", primary),
        "selected tab or slider value": contrast(primary, page),
        "code": contrast(palette["codeTextColor"], palette["codeBackgroundColor"]),
        "table header": contrast(
            palette["dataframeHeaderTextColor"], palette["dataframeHeaderBackgroundColor"]
        ),
    }
    # level AA of WCAG 2 requires a contrast of 4.5
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


@pytest.mark.parametrize("place", ["page", "sidebar"])
@pytest.mark.parametrize("mode", MODES)
def test_field_border_contrast_is_sufficient(mode: str, place: str) -> None:
    palette = colors(mode, place)
    assert contrast(palette["borderColor"], palette["backgroundColor"]) >= 3
    assert contrast(palette["borderColor"], palette["secondaryBackgroundColor"]) >= 3


def test_theme_backgrounds_match_their_names() -> None:
    assert luminance(CONFIG["theme"]["light"]["backgroundColor"]) > 0.9
    assert luminance(CONFIG["theme"]["dark"]["backgroundColor"]) < 0.1


def test_ci_script_runs_documented_test_command() -> None:
    script = ROOT / ".ci" / "run"
    lines = script.read_text(encoding="utf-8").splitlines()
    assert script.stat().st_mode & stat.S_IXUSR
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert lines[-1] == TEST_COMMAND.replace("[test]", "[dev]")
    assert "missing=$(python3 -m tests.requirements)" in lines


@pytest.mark.needs("bash")
@pytest.mark.parametrize(("lowest_status", "newest_status"), [(0, 0), (3, 0), (0, 4), (3, 4)])
def test_ci_script_fails_if_any_version_fails(
    lowest_status: int, newest_status: int, tmp_path: Path
) -> None:
    programs, venv = tmp_path / "programs", tmp_path / ".venv" / "bin"
    stubs = {
        programs / "apt-get": "",
        programs
        / "python3": f'case "$*" in *versions) echo old; sleep 0.1; exit {lowest_status};; esac',
        venv / "pip": "",
        venv / "python": f"echo new; exit {newest_status}",
        tmp_path / ".ci" / "run": (ROOT / ".ci" / "run").read_text(encoding="utf-8"),
    }
    for file, text in stubs.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text if text.startswith("#!") else f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        [tmp_path / ".ci" / "run"], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert (ran.returncode == 0) == (lowest_status == newest_status == 0), ran
    assert {"old", "new"} <= set(ran.stdout.split())


@pytest.mark.parametrize("command", [START_COMMAND, TEST_COMMAND])
def test_readme_contains_command(command: str) -> None:
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
