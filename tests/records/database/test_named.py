"""Database tables named in the settings, and errors without secrets."""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb
import pytest

from engine.errors import DataError
from engine.records.database import describe_error, named_sources, named_table
from tests.records.mixed import FRAME, check


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write settings that name a database table; return their path.

    The settings read the secret path of the database from an environment variable.
    """
    path = tmp_path / "office-secret.duckdb"
    with duckdb.connect(str(path)) as database:
        database.register("frame", FRAME)
        database.execute("create schema held; create table held.people as from frame")
    settings = tmp_path / "sources.toml"
    settings.write_text(
        '[census]\naddress = "duckdb://${PLACE}"\ntable = "people"\ndatabase = "held"\n'
    )
    monkeypatch.setenv("DP_WORKBENCH_SOURCES", str(settings))
    monkeypatch.setenv("PLACE", str(path))
    return settings


def test_named_table_is_counted_in_database(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "engine.records.marginals.read_batches", lambda *_: pytest.fail("rows were read")
    )
    assert named_sources() == ("census",)
    check(named_table("census"))


def test_invalid_source_settings_error_hides_secrets(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error_message(name: str = "census", settings: str | None = None) -> str:
        if settings is not None:
            settings_file.write_text(settings)
        with pytest.raises(DataError) as caught:
            named_table(name)
        assert "office-secret" not in str(caught.value)
        assert caught.value.__context__ is None
        return str(caught.value)

    valid = settings_file.read_text()
    assert "close names: 'census'" in error_message("cencus")
    other_table = valid.replace("people", "persons")
    assert "no longer has this table" in error_message(settings=other_table)
    missing_file = valid.replace("${PLACE}", "${PLACE}/no/office-secret")
    assert "cannot be reached" in error_message(settings=missing_file)
    unset_variable = valid.replace("PLACE", "PLACES")
    assert "environment variable 'PLACES'" in error_message(settings=unset_variable)
    for invalid in (
        "address",
        "[census]\ntable = 'x'",
        valid + "port = '1'",
        "[census]\naddress = 1\ntable = 'x'",
        "x = 1",
    ):
        assert "DP_WORKBENCH_SOURCES" in error_message(settings=invalid)
    settings_file.unlink()
    assert "DP_WORKBENCH_SOURCES" in error_message()
    monkeypatch.delenv("DP_WORKBENCH_SOURCES")
    assert named_sources() == ()
    assert "environment variable DP_WORKBENCH_SOURCES" in error_message()


def test_attribute_error_without_spark_is_not_ended_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    assert describe_error(AttributeError("'NoneType' object has no attribute 'x'")) == ""
