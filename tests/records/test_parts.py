"""Records counted in shards: sums, files, releases and the command line."""

from __future__ import annotations

import json
import os
import random
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from engine.cli.main import main
from engine.common_mechanism import stepwise
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.common_mechanism.stepwise import counts_for_steps
from engine.errors import DataError, EngineError
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.records import Counts, count_marginals
from engine.release import Intake, measure
from engine.release.ingest import check_records, counts_for
from engine.workload import Attribute, Schema, Workload
from tests.cli.commands import run
from tests.records.equal_counts import have_equal_counts

SCHEMA = Schema(
    [
        Attribute.categorical("sex", ["F", "M"], missing="M"),
        Attribute.numeric("age", [0, 20, 65, 120]),
        Attribute.of_size("one", 1),
    ]
)
WORKLOAD = Workload(SCHEMA).add(("sex", "age"), "marginal").add(("one",), "marginal")
PLAN = plan(WORKLOAD, Budget(pcost=1e6))
COARSE = plan(Workload(SCHEMA).add(("sex",), "marginal"), Budget(pcost=1e6))
CAPPED = plan(WORKLOAD, Budget(pcost=1e6, rows_per_person=2))


def records(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    """Return random records, some with values outside the schema and some missing."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "sex": rng.choice(["F", "M", "X", None], rows, p=[0.5, 0.4, 0.05, 0.05]).astype(object),
            "age": rng.uniform(-5, 125, rows),
            "one": rng.choice([0, 1], rows, p=[0.97, 0.03]),
            "person": rng.integers(0, rows // 3, rows).astype(str),
        }
    )


def split(frame: pd.DataFrame, parts: int) -> list[pd.DataFrame]:
    return [frame.iloc[i::parts] for i in range(parts)]


def test_sum_of_saved_shards_equals_counts_of_all(tmp_path: Path) -> None:
    frame = records()
    expected = counts_for(PLAN, frame)
    assert expected.rows_refused > 20
    assert expected.rows_in == len(frame)
    loaded_shards = []
    for i, part in enumerate(split(frame, 8)):
        counts_for(PLAN, part).save(tmp_path / f"{i}.counts")
        loaded_shards.append(Counts.load(tmp_path / f"{i}.counts"))
    total = Counts.sum(reversed(loaded_shards))
    assert have_equal_counts(total, expected)
    assert len(set(total.shards)) == 8
    path = tmp_path / "all.counts"
    total.save(path)
    loaded = Counts.load(path)
    assert have_equal_counts(loaded, expected)
    assert loaded.shards == total.shards
    assert not loaded["sex", "age"].flags.writeable
    assert have_equal_counts(count_marginals(path, SCHEMA, list(expected)), expected)


def test_counts_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path, umask = tmp_path / "a.counts", os.umask(0)
    try:
        counts_for(PLAN, records()).save(path)
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o600
    content = path.read_bytes()
    for other_path, words in (
        (path, "is not overwritten"),
        (tmp_path / "no" / "a.counts", "existing folder"),
        (Path("/"), "is a folder"),
    ):
        with pytest.raises(DataError, match=words):
            counts_for(PLAN, records(9)).save(other_path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_sum_with_repeated_shard_is_refused() -> None:
    frame = records()
    first, second = (counts_for(PLAN, part).as_shard() for part in split(frame, 2))
    first_in_other_order = counts_for(PLAN, frame.iloc[::2].sample(frac=1))
    total = first + second
    for repeated in (
        (first, first),
        (total, second),
        (first, total),
        (first, first_in_other_order),
    ):
        with pytest.raises(DataError, match="1 part of the records occurred twice"):
            Counts.sum(repeated)
    empty = counts_for(PLAN, frame.iloc[:0]).as_shard()
    assert have_equal_counts(Counts.sum([empty, first, empty, second]), total)
    # names distinguish shards with equal counts
    north, south = (counts_for(PLAN, frame).as_shard(name) for name in ("north", "south"))
    assert (north + south).records == 2 * north.records
    with pytest.raises(DataError, match="occurred twice"):
        north + counts_for(PLAN, frame.iloc[:5]).as_shard("north")
    with pytest.raises(DataError, match="have an id already"):
        first.as_shard("north")
    other_schema = Schema([*SCHEMA.attributes[:2], Attribute.of_size("two", 1)])
    other_counts = count_marginals(
        frame.assign(two=0), other_schema, [("sex",)], on_refused="drop", ignore=["one"]
    )
    assert other_counts.as_shard("north").shards != north.shards


def test_sum_of_incompatible_shards_is_refused() -> None:
    frame = records()
    first, rest = counts_for(PLAN, frame.iloc[:100]), frame.iloc[100:]
    ages = Schema([SCHEMA["sex"], Attribute.numeric("age", [0, 21, 65, 120]), SCHEMA["one"]])
    other_bins = plan(
        Workload(ages).add(("sex", "age"), "marginal").add(("one",), "marginal"), Budget(pcost=1.0)
    )
    for other_plan in (other_bins, COARSE):
        with pytest.raises(DataError, match="different schemas or tables"):
            Counts.sum([first, counts_for(other_plan, rest)])
    capped = counts_for(CAPPED, rest, person="person")
    with pytest.raises(DataError, match="different limits"):
        Counts.sum([first, capped], split_by_person=True)
    with pytest.raises(DataError, match="largest number allowed"):
        replace(first, records=2**62) + first
    with pytest.raises(DataError, match="at least one part"):
        Counts.sum([])
    with pytest.raises(DataError, match="part"):
        Counts.sum([first, {}])  # type: ignore[list-item]
    with pytest.raises(DataError, match="no count column"):
        measure(PLAN, first, rehearsal=True, count_column="n")


def test_sum_of_capped_shards_needs_split_by_person(tmp_path: Path) -> None:
    frame = records()
    expected = counts_for(CAPPED, frame, person="person")
    assert expected.rows_over_cap > 20
    thirds_of_persons = [part for _, part in frame.groupby(frame["person"].astype(int) % 3)]
    shards = [counts_for(CAPPED, part, person="person") for part in thirds_of_persons]
    with pytest.raises(DataError, match="split_by_person"):
        Counts.sum(shards)
    with pytest.raises(DataError, match="split_by_person"):
        shards[0] + shards[1]
    assert have_equal_counts(Counts.sum(shards, split_by_person=True), expected)
    files = [str(tmp_path / f"{i}.counts") for i in range(3)]
    for file, shard in zip(files, shards, strict=True):
        shard.save(file)
    out = tmp_path / "all.counts"
    assert main(["counts", "merge", *files, "--out", str(out)]) == 1
    assert not out.exists()
    assert main(["counts", "merge", *files, "--split-by-person", "--out", str(out)]) == 0
    assert have_equal_counts(Counts.load(out), expected)
    # the cap limits a release of the sum like a release of the records
    one_row_plan = plan(WORKLOAD, Budget(pcost=1.0))
    with pytest.raises(DataError, match="up to 2 rows per person"):
        measure(one_row_plan, out, rehearsal=True)
    assert check_records(CAPPED, out).over_cap == expected.rows_over_cap


def test_release_of_sum_has_digest_of_records(tmp_path: Path) -> None:
    frame, intakes = records(), list[Intake]()
    ledger = Ledger.create(tmp_path / "ledger")
    for name in ("direct", "parts"):
        ledger.add_dataset(name, total=Budget(pcost=1e7))
    measure(PLAN, frame, dataset="direct", ledger=ledger)
    total = Counts.sum(counts_for(PLAN, part).as_shard() for part in split(frame, 8))
    measurement = measure(PLAN, total, dataset="parts", ledger=ledger, intake=intakes.append)
    (intake,) = intakes
    assert "released under the name 'direct'" in intake.warnings[0]
    assert intake.rows_in == len(frame)
    assert intake.refused == counts_for(PLAN, frame).rows_refused
    # with this budget the noise is far below half a count
    assert abs(measurement.answers(0)["answer"] - total["sex", "age"].ravel()).max() < 0.5
    direct, parts = (row.sha256 for row in ledger.rows() if row.kind == "spend")
    assert direct == parts != ""  # keyed digests of the records


def test_look_at_sum_needs_same_records_to_finish(tmp_path: Path) -> None:
    frame, common = records(), coarse_or_fine(COARSE, PLAN, names=["coarse", "fine"])
    total = Counts.sum(counts_for_steps(common, part).as_shard() for part in split(frame, 3))
    ledger = Ledger.create(tmp_path / "ledger")
    ledger.add_dataset("d", total=Budget(pcost=1e8))
    key = stepwise.look(common, total, dataset="d", ledger=ledger).key
    stepwise.decide(ledger, key, option="fine", by="A. Reader")
    more_records = Counts.sum([total, counts_for_steps(common, records(30)).as_shard()])
    fewer_records = frame.iloc[1:]
    for data in (more_records, fewer_records):
        with pytest.raises(DataError, match="not the records of the first measurement"):
            stepwise.finish(ledger, key, data)
    final = stepwise.finish(ledger, key, frame)
    # with this budget the noise is far below half a count
    assert abs(final.answers(0)["answer"] - total["sex", "age"].ravel()).max() < 0.5


def parse_json(text: str) -> dict[str, Any]:
    return dict(json.loads(text))


def write_inputs(folder: Path) -> dict[str, str]:
    """Write two plans, a schema, a ledger and three shards of records; return paths by name.

    The paths include that of a counts file, which is not written.
    """
    names = ("plan", "coarse", "schema", "book", "all.counts")
    paths = {name: str(folder / name) for name in names}
    for name, text in (
        ("plan", PLAN.to_json()),
        ("coarse", COARSE.to_json()),
        ("schema", SCHEMA.to_json()),
    ):
        Path(paths[name]).write_text(text)
    Ledger.create(paths["book"]).add_dataset("d", total=Budget(pcost=1e8))
    for i, part in enumerate(split(records(), 3)):
        part.to_parquet(folder / f"{i}.parquet")
    return paths


def count_shards(folder: Path, *options: str) -> list[str]:
    """Count the three shards of `write_inputs` by the command line; return the counts files."""
    files = [str(folder / f"{i}.counts") for i in range(3)]
    for i, file in enumerate(files):
        data = ["--data", str(folder / f"{i}.parquet"), "--out", file]
        assert main(["count", *options, *data, "--json"]) == 0
    return files


def test_command_line_counts_shards_and_releases_sum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame, paths = records(), write_inputs(tmp_path)
    files = count_shards(tmp_path, "--schema", paths["schema"], "--plan", paths["plan"])
    replies = [parse_json(line) for line in capsys.readouterr().out.splitlines()]
    assert [reply["rows_in"] for reply in replies] == [len(part) for part in split(frame, 3)]
    assert all(reply["private"] is True for reply in replies)
    assert main(["counts", "merge", *files, "--out", paths["all.counts"], "--json"]) == 0
    assert parse_json(capsys.readouterr().out)["shards"] == 3
    args = ["release", "--plan", paths["plan"], "--counts", paths["all.counts"], "--dataset", "d"]
    assert main([*args, "--ledger", paths["book"], "--out", str(tmp_path / "a.csv")]) == 0
    assert f"Rows read {len(frame)} = counted" in capsys.readouterr().err
    answers = pd.read_csv(tmp_path / "a.csv")["answer"]
    # the first table of the plan has 6 cells
    assert abs(answers[:6] - counts_for(PLAN, frame)["sex", "age"].ravel()).max() < 0.5


def test_commands_with_wrong_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write_inputs(tmp_path)
    files = count_shards(tmp_path, "--plan", paths["plan"])
    for wrong in (
        [*files, files[0]],
        [*files, paths["plan"]],
        [*files, str(tmp_path / "no.counts")],
    ):
        assert main(["counts", "merge", *wrong, "--out", paths["all.counts"]]) == 1
        assert "DataError" in capsys.readouterr().err
    assert main(["counts", "merge", *files, "--out", paths["all.counts"]]) == 0
    args = ["release", "--plan", paths["plan"], "--counts", paths["all.counts"], "--dataset", "d"]
    assert main([*args, "--ledger", paths["all.counts"], "--out", paths["all.counts"]]) == 1
    with pytest.raises(SystemExit):
        run(
            f"release --plan {paths['plan']} --counts {paths['plan']} --dataset d --ledger "
            f"{paths['book']}"
        )
    args = ["count", "--plan", paths["plan"], "--data", files[0], "--out", str(tmp_path / "x")]
    assert main(args) == 1


def test_check_reads_declared_encoding_and_delimiter(tmp_path: Path) -> None:
    paths = write_inputs(tmp_path)
    records().to_csv(tmp_path / "x.csv", sep=";", encoding="utf-16", index=False)
    command = f"check --plan {paths['plan']} --data {tmp_path}/x.csv --encoding utf-16 --json"
    for delimiter, code in ((";", 0), ("|", 1)):
        assert run(f"{command} --delimiter '{delimiter}'") == code


def test_commands_measure_sum_of_shards_in_two_stages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each shard is counted for both plans, and both stages use the same sum of the shards."""
    paths = write_inputs(tmp_path)
    files = count_shards(tmp_path, "--plan", paths["coarse"], paths["plan"])
    assert main(["counts", "merge", *files, "--out", paths["all.counts"]]) == 0
    capsys.readouterr()
    where = ["--ledger", paths["book"], "--counts", paths["all.counts"]]
    plans = ["--plans", paths["coarse"], paths["plan"], "--names", "coarse", "fine"]
    look = ["look", *plans, "--dataset", "d", *where]
    assert main([*look, "--out", str(tmp_path / "look.csv"), "--json"]) == 0
    key = parse_json(capsys.readouterr().out)["key"]
    assert run(f"decide --ledger {paths['book']} --look {key} --option fine --by 'A. Reader'") == 0
    assert main(["finish", "--look", key, *where, "--out", str(tmp_path / "fine.csv")]) == 0


def write_modified(path: Path, out: Path, **head: Any) -> Path:
    """Write a copy of a counts file with other header fields ``head``; return its path ``out``.

    The argument ``tables`` is not a header field: it maps the name of a table file to the numbers
    that replace its last six, or to None to leave the table out.
    """
    tables = head.pop("tables", {})
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "counts.json":
                content = json.dumps({**json.loads(content), **head}).encode()
            if name in tables:
                if tables[name] is None:
                    continue
                content = content[: -8 * 6] + np.asarray(tables[name], "<i8").tobytes()
            new.writestr(name, content)
    return out


def test_counts_load_tables_outside_header_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "a.counts"
    counts_for(PLAN, records()).save(path)
    counts = Counts.load(write_modified(path, tmp_path / "b.counts", sets=[["sex", "age"]]))
    assert list(counts) == [("sex", "age")]


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "counts/9"},
        {"schema_digest": "0"},
        {"schema": {"format": "schema/1", "attributes": []}},
        {"sets": [["sex", "age"], ["height"]]},
        {"sets": [["age", "sex"], ["one"]]},
        {"records": -1},
        {"records": 2**70},
        {"records": 7391.0},
        {"records": 7391},
        {"cap": 2},
        {"rows_over_cap": 1},
        {"refused": {"sex": 7391}},
        {"shards": None},
        {"tables": {"tables/0.npy": None}},
        {"tables": {"tables/0.npy": [-7391] * 6}},
        {"tables": {"tables/0.npy": [2**63 - 1] * 6}},
        {"tables": {"tables/0.npy": [0] * 6}},
        {"tables": {"tables/0.npy": [0] * 60_000}},
    ],
    ids=str,
)
def test_invalid_counts_file_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    path = tmp_path / "a.counts"
    counts_for(PLAN, records()).save(path)
    with pytest.raises(EngineError) as caught:
        Counts.load(write_modified(path, tmp_path / "b.counts", **wrong))
    assert "7391" not in str(caught.value)
    assert caught.value.__context__ is None


def test_damaged_counts_file_is_refused_or_equal(tmp_path: Path) -> None:
    path, counts = tmp_path / "a.counts", counts_for(PLAN, records())
    damaged = tmp_path / "damaged.counts"
    counts.save(path)
    content, rng = path.read_bytes(), random.Random(0)
    for truncated in [*(content[:n] for n in range(0, len(content), 97)), b"no zip"]:
        damaged.write_bytes(truncated)
        with pytest.raises(EngineError):
            Counts.load(damaged)
    for _ in range(60):
        changed_bit = bytearray(content)
        changed_bit[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        damaged.write_bytes(bytes(changed_bit))
        try:
            loaded = Counts.load(damaged)
        except EngineError:
            continue
        assert have_equal_counts(loaded, counts)
    os.chmod(path, 0)
    if os.geteuid():
        with pytest.raises(DataError, match="permission"):
            Counts.load(path)
