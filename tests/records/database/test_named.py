"""Tables that settings name: counted where they are, and what is wrong is said without a secret."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from engine.errors import DataError
from engine.records.database import named_sources, named_table
from tests.records.mixed import FRAME, check


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Settings that name the records in a database, whose place is a secret of the environment."""
    place = tmp_path / "office-secret.duckdb"
    with duckdb.connect(str(place)) as database:
        database.register("frame", FRAME)
        database.execute("create schema held; create table held.people as from frame")
    settings = tmp_path / "sources.toml"
    settings.write_text('[census]\naddress = "duckdb://${PLACE}"\ntable = "people"\ndatabase = "held"\n')
    monkeypatch.setenv("DP_WORKBENCH_SOURCES", str(settings))
    monkeypatch.setenv("PLACE", str(place))
    return settings


def test_a_table_that_settings_name_is_counted_where_it_is(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.records.marginals.read_batches", lambda *_: pytest.fail("rows travelled"))
    assert named_sources() == ("census",)
    check(named_table("census"))


def test_settings_of_sources_that_are_wrong_say_so_and_tell_no_secret(
    named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(name: str = "census", text: str | None = None) -> str:
        if text is not None:
            named.write_text(text)
        with pytest.raises(DataError) as caught:
            named_table(name)
        assert "office-secret" not in str(caught.value)
        assert caught.value.__context__ is None
        return str(caught.value)

    good = named.read_text()
    assert "close names: 'census'" in said("cencus")
    assert "has another table" in said(text=good.replace("people", "persons"))
    assert "cannot be reached" in said(text=good.replace("${PLACE}", "${PLACE}/no/office-secret"))
    assert "the variable 'PLACES'" in said(text=good.replace("PLACE", "PLACES"))
    for wrong in (
        "address",
        "[census]\ntable = 'x'",
        good + "port = '1'",
        "[census]\naddress = 1\ntable = 'x'",
        "x = 1",
    ):
        assert "DP_WORKBENCH_SOURCES" in said(text=wrong)
    named.unlink()
    assert "DP_WORKBENCH_SOURCES" in said()
    monkeypatch.delenv("DP_WORKBENCH_SOURCES")
    assert named_sources() == ()
    assert "the variable DP_WORKBENCH_SOURCES" in said()
