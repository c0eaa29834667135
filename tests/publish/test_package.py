"""Release packages: complete, sealed, readable without the network, and checkable without the records."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import json
import math
import os
import re
import runpy
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from demo_data.make_synthetic import synthetic
from engine.cli.main import main
from engine.common_mechanism import stepwise
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.errors import Cancelled
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.publish import release_package
from engine.publish import release_package as package
from engine.publish.release_package import write_package
from engine.publish.verify import verify_package
from engine.workload import Attribute, Schema, Workload

measure = sys.modules["engine.release.measure"].measure
SCHEMA = Schema([Attribute.categorical("<b>sex", ["F", "=M"]), Attribute.of_size("age", 6)])
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def made():
    return plan(Workload.all_ways(SCHEMA, ways=(0, 1, 2)), Budget(pcost=0.5))


@pytest.fixture(scope="module")
def released(made, tmp_path_factory):
    ledger = Ledger.create(tmp_path_factory.mktemp("office") / "office.ledger")
    ledger.add_dataset("survey", total=Budget(pcost=1.0))
    found = measure(made, synthetic(SCHEMA, 500, seed=3), dataset="survey", ledger=ledger)
    return found, ledger.find(found.key), ledger


def unpacked(path: Path, folder: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return folder


def test_a_package_says_what_is_in_it_and_holds_every_answer(released, tmp_path) -> None:
    found, receipt, _ = released
    folder = unpacked(write_package(found, tmp_path / "release.zip", receipt=receipt), tmp_path / "out")
    seal = json.loads((folder / "certificate.json").read_text())
    assert set(seal["files"]) == {p.name for p in folder.iterdir()} - {"certificate.json"}
    for name, digest in seal["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert seal["pcost"] == found.plan.pcost
    assert seal["ledger"] == {"seq": receipt.seq, "hash": receipt.hash, "pcost": receipt.pcost, "utc": receipt.utc}
    table = pq.read_table(folder / "answers.parquet")
    assert table.num_rows == found.plan.workload.queries
    with open(folder / "answers.csv", newline="", encoding="utf-8") as file:
        assert sum(1 for _ in csv.reader(file)) == found.plan.workload.queries + 1
    assert not list(tmp_path.glob("*.part"))


def test_certificate_and_report_say_first_what_any_mechanism_could_reach(released, tmp_path) -> None:
    found, receipt, _ = released
    plan_, words = found.plan, "above what any matrix mechanism can reach, whatever it measures"
    with zipfile.ZipFile(write_package(found, tmp_path / "r.zip", receipt=receipt)) as archive:
        seal = json.loads(archive.read("certificate.json"))
        report = archive.read("report.html").decode()
    assert seal["global_gap"] == pytest.approx(plan_.certificate.global_gap)
    assert seal["global_bound_counts"] * (1 + seal["global_gap"]) == pytest.approx(plan_.weighted_rmse)
    assert words in seal["claim"]
    assert report.index(words) < report.index(plan_.certificate.statement[:40])


def test_the_certificate_names_the_groups_that_were_kept_and_their_shares(tmp_path, monkeypatch) -> None:
    schema = Schema([Attribute.of_size("x", 6), Attribute.of_size("y", 4)])
    asked = Workload(schema).add("y", "prefix").add("x", "prefix").add(("x", "y"), "prefix")
    uniform = " above its error with uniform centers"
    told = {
        0.0: f"every group: not{uniform}",
        0.025: f"x (prefix): at most 2.5%{uniform}; x × y (prefix): not{uniform}",
    }
    for share, words in told.items():
        keep = {1: share, 2: 0.0} if share else share
        found = measure(
            plan(asked, Budget(pcost=0.5), centers="tuned", keep=keep), synthetic(schema, 50, seed=1), rehearsal=True
        )
        assert package.certificate(found, None, 0.95)["kept"] == words
    honest = package.certificate
    monkeypatch.setattr(package, "certificate", lambda *given: honest(*given) | {"kept": "every group: not at all"})
    changed = write_package(found, tmp_path / "changed.zip")
    assert verify_package(changed) == ("the certificate's kept is not what plan and integers give",)


def test_the_report_loads_nothing_and_escapes_names(released, tmp_path) -> None:
    found, receipt, _ = released
    page = (
        unpacked(write_package(found, tmp_path / "r.zip", receipt=receipt), tmp_path / "out") / "report.html"
    ).read_text()
    body = re.sub(r"<script[^>]*>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=", page)
    assert "<b>sex" not in body
    assert "&lt;b&gt;sex" in body
    assert receipt.key in page
    assert "REHEARSAL" not in body


@pytest.fixture(scope="module")
def written(released, tmp_path_factory):
    found, receipt, ledger = released
    return write_package(found, tmp_path_factory.mktemp("signed") / "signed.zip", receipt=receipt, ledger=ledger)


@pytest.fixture
def signed(released, written, tmp_path):
    """The files, which a test may change, the package and the ledger, which stay as they are."""
    return unpacked(written, tmp_path / "signed"), written, released[2]


def resealed(folder: Path) -> None:
    """Make the digests fit again, as somebody would who changes a file on purpose."""
    seal = json.loads((folder / "certificate.json").read_text())
    seal["files"] = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in seal["files"]}
    (folder / "certificate.json").write_text(json.dumps(seal))
    (folder / "signature.json").unlink(missing_ok=True)


def test_a_signed_package_is_sound_and_every_changed_file_is_noticed(signed) -> None:
    folder, path, ledger = signed
    public = ledger.sign(b"")[0]
    assert verify_package(path) == verify_package(folder, public_key=public, ledger=ledger.path) == ()
    for file in sorted(folder.iterdir()):
        kept = file.read_bytes()
        file.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
        assert verify_package(folder), file.name
        file.unlink()
        assert verify_package(folder, public_key=public), file.name
        file.write_bytes(kept)
    (folder / "more.txt").write_text("?")
    assert "more.txt" in verify_package(folder)[0]
    (folder / "more.txt").unlink()
    assert verify_package(folder, public_key=public) == ()


def test_verify_package_accepts_all_arrays_of_plan(tmp_path, monkeypatch) -> None:
    schema = Schema([Attribute.of_size(f"a{i}", 2) for i in range(7)])
    wide = plan(Workload.all_ways(schema, ways=(1, 2)), Budget(pcost=0.5))
    write_package(measure(wide, synthetic(schema, 50, seed=3), rehearsal=True), tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert len(archive.namelist()) <= 10
        arrays = np.load(io.BytesIO(archive.read("measurements.npz")))
    assert 10 < len(arrays.files) <= release_package.max_arrays_of(wide)
    limited = functools.partial(release_package.open_zip, max_members=10)
    monkeypatch.setattr(release_package, "open_zip", limited)
    assert verify_package(tmp_path / "a.zip") == ()


def test_every_field_of_the_certificate_is_compared(signed) -> None:
    folder, _, _ = signed
    kept = json.loads((folder / "certificate.json").read_text())
    (folder / "signature.json").unlink()
    assert verify_package(folder) == ()
    told_by_the_ledger = {"dataset", "key", "utc"}  # no other file of the package knows them: the signature keeps them
    for name, value in kept.items():
        if name in told_by_the_ledger or name == "files":
            continue
        other = value + 1 if isinstance(value, (int, float)) else {} if isinstance(value, dict) else value + "!"
        if name == "ledger":
            other = value | {"pcost": 0.125}
        (folder / "certificate.json").write_text(json.dumps(kept | {name: other}))
        assert verify_package(folder), name
    (folder / "certificate.json").write_text(json.dumps(kept | {"note": "all is well"}))
    assert verify_package(folder)


def test_the_last_digits_of_another_machine_are_no_problem(signed) -> None:
    folder, _, _ = signed
    kept = json.loads((folder / "certificate.json").read_text())
    (folder / "signature.json").unlink()

    def sound(**told: object) -> bool:
        (folder / "certificate.json").write_text(json.dumps(kept | told))
        return verify_package(folder) == ()

    gap, least, claim = kept["global_gap"], kept["global_bound_counts"], kept["claim"]
    percent = f"{math.ceil(1000.0 * gap - 1e-9) / 10.0:.1f}%"
    assert percent in claim
    assert sound(pcost=float(np.nextafter(kept["pcost"], 1.0)), rmse_counts=kept["rmse_counts"] * (1.0 + 1e-7))
    assert not sound(pcost=kept["pcost"] * (1.0 + 1e-8))
    assert not sound(rmse_counts=kept["rmse_counts"] * (1.0 + 1e-4))
    assert sound(claim=claim.replace(percent, f"{float(percent[:-1]) + 0.1:.1f}%"))
    assert not sound(claim=claim.replace(percent, f"{float(percent[:-1]) + 0.5:.1f}%"))
    # a machine that is slower proves a little less, and says so
    slower = {"global_gap": gap + 0.005, "global_bound_counts": least / 1.005}
    assert sound(**slower, claim=claim.replace(percent, f"{float(percent[:-1]) + 0.5:.1f}%"))
    assert not sound(global_gap=gap + 0.02 * (1.0 + gap))
    assert not sound(claim=claim.replace("whatever", "whichever"))
    assert not sound(claim=claim.replace(percent, "%"))


def test_only_the_ledger_signs(signed, tmp_path) -> None:
    folder, _, ledger = signed
    public, certificate = ledger.sign(b"")[0], folder / "certificate.json"
    certificate.write_text(certificate.read_text().replace('"survey"', '"census"'))
    assert "signature" in verify_package(folder)[0]
    resealed(folder)
    assert "not signed" in verify_package(folder, public_key=public)[0]
    other = Ledger.create(tmp_path / "other").sign(certificate.read_bytes())
    told = {"algorithm": "Ed25519", "public_key": other[0], "signature": other[1]}
    (folder / "signature.json").write_text(json.dumps(told))
    assert "another ledger" in verify_package(folder, public_key=public)[0]


@pytest.mark.parametrize("column", ["answer", "std", "low", "high"])
def test_changed_answers_do_not_follow_from_the_integers(signed, column: str) -> None:
    folder, _, _ = signed
    table = pq.read_table(folder / "answers.parquet").to_pandas()
    table.loc[4, column] += 0.01
    table.to_parquet(folder / "answers.parquet")
    resealed(folder)
    assert "answers.parquet" in verify_package(folder)[0]


def test_changed_integers_and_csv_are_noticed(signed) -> None:
    folder, _, _ = signed
    text = (folder / "answers.csv").read_text().splitlines()
    (folder / "answers.csv").write_text("\n".join([text[0], text[2], text[1], *text[3:]]) + "\n")
    resealed(folder)
    assert "answers.csv" in verify_package(folder)[0]
    with np.load(folder / "measurements.npz") as file:
        arrays = dict(file)
    arrays["block0"] = arrays["block0"] + 2**20
    np.savez(folder / "measurements.npz", **arrays)
    resealed(folder)
    assert any("answers.parquet" in problem for problem in verify_package(folder))


def test_anyone_recomputes_answers_errors_and_covariances_from_the_integers(released, signed) -> None:
    """By least squares on all cells, with nothing but NumPy and the files."""
    folder, (found, _, _) = signed[0], released
    told, arrays = json.loads((folder / "measurements.json").read_text()), np.load(folder / "measurements.npz")
    sizes, names, rows, right = (2, 6), ["<b>sex", "age"], [], []
    for block in told["blocks"]:
        matrix = np.ones((1, 1))
        for name, size in zip(names, sizes, strict=True):
            own = [arrays[f["rows"]] for f in block["factors"] if f["axes"] == [name]]
            matrix = np.kron(matrix, own[0] if own else np.ones((1, size)))
        rows.append(matrix / block["noise"])
        right.append(arrays[block["integers"]] * (block["grid"] / block["noise"]))
    B, y = np.concatenate(rows), np.concatenate(right)
    cells = np.linalg.lstsq(B, y)[0]
    np.testing.assert_allclose(cells.reshape(sizes), found.marginal(names), atol=1e-6)
    covariance = np.linalg.inv(B.T @ B)
    one = pq.read_table(folder / "answers.parquet").to_pandas()
    both = one[one["attributes"] == "<b>sex x age"]
    upto = np.kron(np.eye(2), np.tril(np.ones((6, 6))))  # the queries are numbers of each sex up to an age
    np.testing.assert_allclose(both["answer"], upto @ cells, atol=1e-6)
    np.testing.assert_allclose(both["std"], np.sqrt(np.diag(upto @ covariance @ upto.T)), rtol=1e-9)
    np.testing.assert_allclose(both["high"] - both["answer"], 1.959963984540054 * both["std"], rtol=1e-9)
    queries = [(names, np.eye(12)[i].reshape(sizes)) for i in (0, 7)]
    np.testing.assert_allclose(found.plan.covariance(queries)[0, 1], covariance[0, 7], rtol=1e-9)


def test_a_release_in_two_steps_is_packed_and_checked_as_well(tmp_path) -> None:
    schema = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3)])
    options = [plan(Workload.all_ways(schema, ways=k), Budget(pcost=0.4), centers="uniform") for k in (1, 2)]
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("survey", total=Budget(pcost=1.0))
    records = synthetic(schema, 500, seed=3)
    key = stepwise.look(coarse_or_fine(*options), records, dataset="survey", ledger=ledger).key
    stepwise.decide(ledger, key, option=1, by="A. Reader")
    done = stepwise.finish(ledger, key, records)
    path = write_package(done, tmp_path / "r.zip", receipt=ledger.find(done.key), ledger=ledger)
    assert verify_package(path, ledger=ledger.path) == ()


def test_a_ledger_that_was_set_back_does_not_hold_the_spend(made, tmp_path) -> None:
    place = tmp_path / "office.ledger"
    ledger = Ledger.create(place)
    ledger.add_dataset("survey", total=Budget(pcost=2.0))
    early = place.read_bytes()
    found = measure(made, synthetic(SCHEMA, 500, seed=3), dataset="survey", ledger=ledger)
    receipt = ledger.find(found.key)
    package = write_package(found, tmp_path / "r.zip", receipt=receipt, ledger=ledger)
    check = ["verify", "--ledger", str(place), "--package", str(package)]
    assert main(check) == main([*check[:3], "--receipt", f"{receipt.seq}:{receipt.hash}"]) == 0
    place.write_bytes(early)
    for file in Path(f"{place}.results").iterdir():
        file.unlink()
    assert main(["verify", "--ledger", str(place)]) == 0, "alone it looks sound"
    assert main(check) == 1
    assert main([*check[:3], "--receipt", f"{receipt.seq}:{receipt.hash}"]) == 1


def test_the_script_in_the_package_passes_and_notices_changes(released, tmp_path, monkeypatch) -> None:
    found, receipt, _ = released
    folder = unpacked(write_package(found, tmp_path / "r.zip", receipt=receipt), tmp_path / "out")
    good = subprocess.run(
        [sys.executable, "check.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert good.returncode == 0, good.stderr
    assert "Every file, field, answer, standard error and interval" in good.stdout
    (folder / "plan.json").write_text((folder / "plan.json").read_text().replace('"pcost"', ' "pcost"', 1))
    monkeypatch.setattr(sys, "argv", ["check.py"])
    with pytest.raises(SystemExit) as ended:  # what one start of Python has shown, another need not
        runpy.run_path(str(folder / "check.py"), run_name="__main__")
    assert ended.value.code == 1


def test_rehearsals_are_marked_everywhere(made, tmp_path) -> None:
    found = measure(made, synthetic(SCHEMA, 500, seed=3), rehearsal=True)
    book = Ledger.create(tmp_path / "book")
    folder = unpacked(write_package(found, tmp_path / "r.zip", ledger=book), tmp_path / "out")
    assert "<p class=mark>REHEARSAL" in (folder / "report.html").read_text()
    assert json.loads((folder / "certificate.json").read_text())["status"].startswith("REHEARSAL")
    assert json.loads((folder / "measurements.json").read_text())["status"] == "REHEARSAL"
    with open(folder / "answers.csv", newline="", encoding="utf-8") as file:
        assert all(row["status"] == "REHEARSAL" for row in csv.DictReader(file))
    assert verify_package(folder) == ()
    assert not (folder / "signature.json").exists()


def test_cancelling_leaves_nothing_behind(made, tmp_path) -> None:
    found = measure(made, synthetic(SCHEMA, 500, seed=3), rehearsal=True)
    with pytest.raises(Cancelled):
        write_package(found, tmp_path / "r.zip", progress=lambda fraction, text: fraction < 0.7)
    assert not list(tmp_path.iterdir())
