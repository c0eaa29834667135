"""Readers of untrusted files refuse hostile values only with errors of the engine."""

from __future__ import annotations

import io
import json
import random
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine._untrusted import array_header, open_zip, parse_json, read_array, read_member
from engine.common_mechanism import CommonPlan, stepwise
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.errors import DataError, EngineError
from engine.ledger import Ledger
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.records import Counts, count_marginals
from engine.release import Measurement, measure
from engine.release.measure import load_measurement
from engine.workload import Attribute, Schema, Workload
from tests.hostile import RAW, VALUES, places, with_value

GOLDEN = Path(__file__).parent / "golden_files"
SCHEMA = Schema([Attribute.categorical("sex", ["F", "M"]), Attribute.of_size("age", 4)])
SAMPLE = 40


def cases(document, seed, count=SAMPLE):
    """Return a random sample of pairs (path in a document, hostile value to put there)."""
    combinations = [(where, value) for where in places(document) for value in VALUES]
    return random.Random(seed).sample(combinations, min(count, len(combinations)))


def refused_share(read, document, seed, count=SAMPLE) -> float:
    """Return the share of hostile values that ``read`` refuses; an error of Python is not caught."""
    refused = 0
    changes = cases(document, seed, count)
    for where, value in changes:
        try:
            read(with_value(document, where, value))
        except EngineError:
            refused += 1
    return refused / len(changes)


@pytest.mark.parametrize(
    "text",
    [
        *(text for name, text in RAW.items() if name != "@long integer@"),
        *("", "{", '"\\ud800"', b"\xff", b"\xed\xa0\x80", 5, None),
    ],
)
def test_parse_json_hostile_text_raises_value_error(text) -> None:
    with pytest.raises(ValueError, match=r"JSON|UTF-8|Expecting|numbers"):
        parse_json(text)


def test_parse_json_sound_text_gives_value() -> None:
    value = {"a": [1, 2.5, None, True, "ü😀"], "b": {"c": -3e-9}}
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value
    assert parse_json("[Infinity]", constants=True) == [float("inf")]


def test_parse_json_over_memory_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="memory"):
        parse_json("[" + "[]," * 1000 + "1]", max_memory=50_000)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.plan.json")), ids=lambda path: path.name)
def test_load_plan_hostile_values_raise_named_error(path) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert refused_share(load_plan, document, path.name) > 0.9


def document_readers():
    """Yield pairs (function that reads a JSON text, valid document)."""
    plans = [
        plan(Workload.all_ways(SCHEMA, ways=k), Budget(pcost=0.5), centers="uniform")
        for k in (1, 2)
    ]
    yield Workload.from_json, json.loads(Workload.all_ways(SCHEMA, ways=(1, 2)).to_json())
    yield Schema.from_json, json.loads(SCHEMA.to_json())
    yield CommonPlan.from_json, json.loads(coarse_or_fine(*plans).to_json())


@pytest.mark.parametrize(
    ("read", "document"), [*document_readers()], ids=["workload", "schema", "options"]
)
def test_read_hostile_values_raises_named_error(read, document) -> None:
    # Other errors than EngineError fail in `refused_share`. Some changed values are valid by chance.
    assert refused_share(read, document, seed=1, count=150) > 0.9


def changed_zip(path: Path, name: str, content: bytes, target: Path) -> Path:
    """Write a copy of a zip file in which one member has another content; return its path."""
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(target, "w") as after:
        for info in before.infolist():
            after.writestr(info, content if info.filename == name else before.read(info))
    return target


def check_zip(path: Path, head: str, read, error, target: Path) -> None:
    """Read damaged copies of a zip file; assert that each is read or raises ``error``.

    The damage is a hostile value in the JSON member ``head``, another content of a member, a
    changed byte, or a cut-off end.
    """
    with zipfile.ZipFile(path) as archive:
        document = json.loads(archive.read(head))
        names = archive.namelist()
        contents = {name: archive.read(name) for name in names}
    changes = [(head, with_value(document, *case)) for case in cases(document, 2, 80)]
    changes += [
        (name, c)
        for name in names
        for c in (b"", contents[name][:-3], contents[name] * 2, b"\xff" * 200)
    ]
    for name, content in changes:
        changed_zip(path, name, content, target)
        with suppress(error):
            read(target)
    rng, sound = random.Random(4), path.read_bytes()
    for _ in range(60):
        content = bytearray(sound)
        # every second changed byte is in the directory at the end of the zip file
        position = rng.choice([rng.randrange(len(content)), -rng.randrange(1, 300)])
        content[position] = rng.randrange(256)
        length = rng.choice([len(content), rng.randrange(len(content))])
        target.write_bytes(bytes(content[:length]))
        with suppress(error):
            read(target)


def test_counts_load_hostile_file_raises_named_error(tmp_path) -> None:
    records = pd.DataFrame({"sex": ["F", "M", "F"], "age": [0, 1, 3]})
    counts = count_marginals(records, SCHEMA, [("sex",), ("sex", "age")])
    counts.save(tmp_path / "a.counts")
    check_zip(tmp_path / "a.counts", "counts.json", Counts.load, EngineError, tmp_path / "b.counts")


@pytest.fixture
def ledger_and_records(tmp_path):
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("survey", total=Budget(pcost=5.0))
    records = pd.DataFrame({"sex": ["F", "M", "F"], "age": [0, 1, 3]})
    return ledger, records


def test_load_result_hostile_file_raises_named_error(
    ledger_and_records, tmp_path, monkeypatch
) -> None:
    ledger, records = ledger_and_records
    result = plan(Workload.all_ways(SCHEMA, ways=2), Budget(pcost=0.5))
    release = measure(result, records, dataset="survey", ledger=ledger)
    path = ledger.result_path(release.key)

    def read(place):
        monkeypatch.setattr(Ledger, "result_path", lambda book, key: place)
        measurement = load_measurement(ledger, release.key)
        measurement.values(0)

    check_zip(path, "release.json", read, EngineError, tmp_path / "changed.result")


def test_load_look_hostile_file_raises_named_error(
    ledger_and_records, tmp_path, monkeypatch
) -> None:
    ledger, records = ledger_and_records
    options = [
        plan(Workload.all_ways(SCHEMA, ways=k), Budget(pcost=0.5), centers="uniform")
        for k in (1, 2)
    ]
    key = stepwise.look(coarse_or_fine(*options), records, dataset="survey", ledger=ledger).key
    path = ledger.result_path(key)

    def read(place):
        monkeypatch.setattr(Ledger, "result_path", lambda book, key: place)
        stepwise.resume(ledger, key)

    check_zip(path, "release.json", read, EngineError, tmp_path / "changed.result")


def test_measurement_load_hostile_file_raises_named_error(ledger_and_records, tmp_path) -> None:
    _, records = ledger_and_records
    measurement = measure(
        plan(Workload.all_ways(SCHEMA, ways=2), Budget(pcost=0.5)), records, rehearsal=True
    )
    measurement.save(tmp_path / "a.measurement")
    check_zip(
        tmp_path / "a.measurement",
        "release.json",
        Measurement.load,
        EngineError,
        tmp_path / "b.measurement",
    )


def test_open_zip_accepts_names_differing_in_case(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a", b"1")
        archive.writestr("A", b"2")
    with open_zip(tmp_path / "a.zip", "a", error=DataError, plain_names=False) as archive:
        assert read_member(archive, "A", 1) == b"2"
    with (
        pytest.raises(DataError, match="same name"),
        open_zip(tmp_path / "a.zip", "a", error=DataError),
    ):
        pass


def npy(array) -> bytes:
    """Return the content of a ``.npy`` file with this array."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY\x01\x00\xff\xff",
        npy(np.zeros(3))[:-1],
        npy(np.zeros(3)) + b"0",
        npy(np.zeros(3)).replace(b"(3,)", b"(-3)"),
        npy(np.zeros(3)).replace(b"(3,), }   ", b"(10**9,), }"),
        npy(np.zeros(3)).replace(b"<f8", b"|O8"),
        npy(np.zeros(3, np.complex128)),
        npy(np.zeros((3, 1))),
    ],
)
def test_read_array_hostile_content_raises_value_error(content) -> None:
    with pytest.raises(ValueError, match="array"):
        read_array(content, kinds="f", shape=(3,))


def test_read_array_columns_first_keeps_values() -> None:
    array = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(read_array(npy(array), kinds="f"), array)
    shape, is_fortran_order, *_ = array_header(io.BytesIO(npy(array)))
    assert (shape, is_fortran_order) == ((2, 3), True)
    assert read_array(npy(array.astype(">f4")), kinds="f").dtype == np.dtype("f4")
