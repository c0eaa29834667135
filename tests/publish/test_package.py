"""Release packages: contents, signature, report and verification."""

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
from engine.ledger.signing import key_fingerprint
from engine.mechanisms import plan
from engine.postprocess import QualityRule, publish, uncertainty
from engine.privacy import Budget
from engine.publish import package_files
from engine.publish import release_package as package
from engine.publish.release_package import write_package
from engine.publish.verify import package_signer, verify_package
from engine.workload import Attribute, Schema, Workload

measure = sys.modules["engine.release.measure"].measure
SCHEMA = Schema([Attribute.categorical("<b>sex", ["F", "=M"]), Attribute.of_size("age", 6)])
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def small_plan():
    return plan(Workload.all_ways(SCHEMA, ways=(0, 1, 2)), Budget(pcost=0.5))


@pytest.fixture(scope="module")
def released(small_plan, tmp_path_factory):
    ledger = Ledger.create(tmp_path_factory.mktemp("office") / "office.ledger")
    ledger.add_dataset("survey", total=Budget(pcost=1.0))
    measurement = measure(
        small_plan, synthetic(SCHEMA, 500, seed=3), dataset="survey", ledger=ledger
    )
    return measurement, ledger.find(measurement.key), ledger


def unpacked(path: Path, folder: Path) -> Path:
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    return folder


def test_package_lists_its_files_and_every_answer(released, tmp_path) -> None:
    measurement, receipt, _ = released
    path = write_package(measurement, tmp_path / "release.zip", receipt=receipt)
    folder = unpacked(path, tmp_path / "unpacked")
    certificate = json.loads((folder / "certificate.json").read_text())
    names = {file.name for file in folder.iterdir()}
    assert set(certificate["files"]) == names - {"certificate.json"}
    for name, digest in certificate["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert certificate["pcost"] == measurement.plan.pcost
    assert certificate["ledger"] == {
        "seq": receipt.seq,
        "hash": receipt.hash,
        "pcost": receipt.pcost,
        "utc": receipt.utc,
    }
    queries = measurement.plan.workload.queries
    assert pq.read_table(folder / "answers.parquet").num_rows == queries
    with open(folder / "answers.csv", newline="", encoding="utf-8") as file:
        _, *rows = csv.reader(file)
    assert len(rows) == queries
    assert not list(tmp_path.glob("*.part"))  # no temporary file


def test_certificate_and_report_state_global_bound_first(released, tmp_path) -> None:
    measurement, receipt, _ = released
    result = measurement.plan
    path = write_package(measurement, tmp_path / "release.zip", receipt=receipt)
    with zipfile.ZipFile(path) as archive:
        certificate = json.loads(archive.read("certificate.json"))
        report = archive.read("report.html").decode()
    gap, bound = certificate["global_gap"], certificate["global_bound_counts"]
    assert gap == pytest.approx(result.certificate.global_gap)
    assert bound * (1 + gap) == pytest.approx(result.weighted_rmse)
    claim = "above the theoretical limit for any matrix mechanism"
    assert claim in certificate["claim"]
    assert report.index(claim) < report.index(result.certificate.statement[:40])


def test_certificate_states_accuracy_constraints(tmp_path, monkeypatch) -> None:
    schema = Schema([Attribute.of_size("x", 6), Attribute.of_size("y", 4)])
    workload = Workload(schema).add("y", "prefix").add("x", "prefix").add(("x", "y"), "prefix")
    records = synthetic(schema, 50, seed=1)

    def release_with_constraints(keep):
        result = plan(workload, Budget(pcost=0.5), centers="tuned", keep=keep)
        return measure(result, records, rehearsal=True)

    uniform = " above its error with uniform centers"
    every_group = release_with_constraints(0.0)
    some_groups = release_with_constraints({1: 0.025, 2: 0.0})
    assert package.certificate(every_group, None, 0.95)["kept"] == f"every group: not{uniform}"
    certificate = package.certificate
    assert certificate(some_groups, None, 0.95)["kept"] == (
        f"x (prefix): at most 2.5%{uniform}; x × y (prefix): not{uniform}"
    )
    monkeypatch.setattr(
        package,
        "certificate",
        lambda *args: certificate(*args) | {"kept": "every group: not at all"},
    )
    changed = write_package(some_groups, tmp_path / "changed.zip")
    assert verify_package(changed) == (
        "kept in the certificate differs from what the plan and the measurements imply",
    )


def test_report_loads_nothing_and_escapes_names(released, tmp_path) -> None:
    measurement, receipt, _ = released
    path = write_package(measurement, tmp_path / "release.zip", receipt=receipt)
    with zipfile.ZipFile(path) as archive:
        page = archive.read("report.html").decode()
    assert not re.search(r"<(script|link|img|iframe)", page)
    assert "<b>sex" not in page
    assert "&lt;b&gt;sex" in page
    assert receipt.key in page
    assert "REHEARSAL" not in page
    assert len(page) < 500_000
    assert "rmse_counts" not in page
    assert "at delta 10^-6" in page
    assert "delta 1e-" not in page


@pytest.fixture(scope="module")
def signed_file(released, tmp_path_factory):
    measurement, receipt, ledger = released
    return write_package(
        measurement,
        tmp_path_factory.mktemp("signed") / "signed.zip",
        receipt=receipt,
        ledger=ledger,
    )


@pytest.fixture
def signed(released, signed_file, tmp_path):
    """Return (folder with an unpacked package, package file, ledger).

    Tests may change the files in the folder.
    """
    _, _, ledger = released
    return unpacked(signed_file, tmp_path / "signed"), signed_file, ledger


def unsigned(released, folder: Path) -> Path:
    """Return the folder of an unpacked package without a signature."""
    measurement, receipt, _ = released
    path = write_package(measurement, folder / "unsigned.zip", receipt=receipt)
    return unpacked(path, folder / "unsigned")


def update_digests(folder: Path) -> None:
    """Update the digests and remove the signature, as an attacker would."""
    certificate_fields = json.loads((folder / "certificate.json").read_text())
    certificate_fields["files"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in certificate_fields["files"]
    }
    (folder / "certificate.json").write_text(json.dumps(certificate_fields))
    (folder / "signature.json").unlink(missing_ok=True)


def test_verify_signed_package_detects_every_changed_file(signed) -> None:
    folder, path, ledger = signed
    public = ledger.public_key()
    assert verify_package(path) == ()
    assert verify_package(folder, public_key=public, ledger=ledger.path) == ()
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        last_bit_changed = content[:-1] + bytes([content[-1] ^ 1])
        file.write_bytes(last_bit_changed)
        assert verify_package(folder), f"{file.name} is changed"
        file.unlink()
        assert verify_package(folder, public_key=public), f"{file.name} is missing"
        file.write_bytes(content)
    (folder / "more.txt").write_text("?")
    assert "more.txt" in verify_package(folder)[0]
    (folder / "more.txt").unlink()
    assert verify_package(folder, public_key=public) == ()


def test_verify_package_accepts_all_arrays_of_plan(tmp_path, monkeypatch) -> None:
    """A plan of many blocks has more arrays than a package may have files."""
    schema = Schema([Attribute.of_size(f"a{i}", 2) for i in range(7)])
    many_blocks = plan(Workload.all_ways(schema, ways=(1, 2)), Budget(pcost=0.5))
    measurement = measure(many_blocks, synthetic(schema, 50, seed=3), rehearsal=True)
    path = write_package(measurement, tmp_path / "release.zip")
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) <= 10
        arrays = np.load(io.BytesIO(archive.read("measurements.npz")))
    assert 10 < len(arrays.files) <= package_files.max_arrays_of(many_blocks)
    limited = functools.partial(package_files.open_zip, max_members=10)
    monkeypatch.setattr(package_files, "open_zip", limited)
    assert verify_package(path) == ()


def test_verify_compares_every_certificate_field(released, tmp_path) -> None:
    folder = unsigned(released, tmp_path)
    path = folder / "certificate.json"
    certificate = json.loads(path.read_text())
    assert verify_package(folder) == ()
    ledger_fields = {"dataset", "key", "utc"}  # in no other file; only the signature protects them
    for name in certificate.keys() - ledger_fields - {"files"}:
        value = certificate[name]
        if name == "ledger":
            changed = value | {"pcost": 0.125}
        elif isinstance(value, dict):
            changed = {}
        else:
            changed = value + ("!" if isinstance(value, str) else 1)
        path.write_text(json.dumps(certificate | {name: changed}))
        assert verify_package(folder), name
    path.write_text(json.dumps(certificate | {"note": "all is well"}))
    assert verify_package(folder)


def test_verify_certificate_tolerates_rounding_differences(released, tmp_path) -> None:
    folder = unsigned(released, tmp_path)
    certificate = json.loads((folder / "certificate.json").read_text())

    def is_valid(**changes: object) -> bool:
        (folder / "certificate.json").write_text(json.dumps(certificate | changes))
        return verify_package(folder) == ()

    pcost, rmse = certificate["pcost"], certificate["rmse_counts"]
    assert is_valid(pcost=float(np.nextafter(pcost, 1.0)), rmse_counts=rmse * (1.0 + 1e-7))
    assert not is_valid(pcost=pcost * (1.0 + 1e-8))
    assert not is_valid(rmse_counts=rmse * (1.0 + 1e-4))

    gap, bound, claim = (certificate[n] for n in ("global_gap", "global_bound_counts", "claim"))
    percent = math.ceil(10_000.0 * gap - 1e-9) / 100.0
    assert f"{percent:.2f}%" in claim

    def claim_of(percent_text: str) -> str:
        return claim.replace(f"{percent:.2f}%", percent_text)

    # packages of earlier versions state one decimal
    assert is_valid(claim=claim_of(f"{math.ceil(1000.0 * gap - 1e-9) / 10.0:.1f}%"))
    assert is_valid(claim=claim_of(f"{percent + 0.1:.1f}%"))
    assert not is_valid(claim=claim_of(f"{percent + 0.5:.1f}%"))
    # a slower machine may prove a slightly weaker bound
    slower = {"global_gap": gap + 0.005, "global_bound_counts": bound / 1.005}
    assert is_valid(**slower, claim=claim_of(f"{percent + 0.5:.1f}%"))
    assert not is_valid(global_gap=gap + 0.02 * (1.0 + gap))
    assert not is_valid(claim=claim.replace("theoretical", "practical"))
    assert not is_valid(claim=claim_of("%"))


def test_verify_requires_signature_of_the_ledger(signed, tmp_path) -> None:
    folder, _, ledger = signed
    public, certificate = ledger.public_key(), folder / "certificate.json"
    certificate.write_text(certificate.read_text().replace('"survey"', '"census"'))
    assert "signature" in verify_package(folder)[0]
    update_digests(folder)
    assert "not signed" in verify_package(folder, public_key=public)[0]
    other_public, signature = Ledger.create(tmp_path / "other").sign(certificate.read_bytes())
    fields = {"algorithm": "Ed25519", "public_key": other_public, "signature": signature}
    (folder / "signature.json").write_text(json.dumps(fields))
    assert "another ledger" in verify_package(folder, public_key=public)[0]


@pytest.mark.parametrize("column", ["answer", "std", "low", "high"])
def test_verify_detects_changed_answers(signed, column: str) -> None:
    folder, _, _ = signed
    table = pq.read_table(folder / "answers.parquet").to_pandas()
    table.loc[4, column] += 0.01
    table.to_parquet(folder / "answers.parquet")
    update_digests(folder)
    assert "answers.parquet" in verify_package(folder)[0]


def test_verify_detects_changed_integers_and_csv(signed) -> None:
    folder, _, _ = signed
    header, first, second, *rest = (folder / "answers.csv").read_text().splitlines()
    (folder / "answers.csv").write_text("\n".join([header, second, first, *rest]) + "\n")
    update_digests(folder)
    assert "answers.csv" in verify_package(folder)[0]
    with np.load(folder / "measurements.npz") as file:
        arrays = dict(file)
    arrays["block0"] = arrays["block0"] + 2**20
    np.savez(folder / "measurements.npz", **arrays)
    update_digests(folder)
    assert any("answers.parquet" in problem for problem in verify_package(folder))


def test_answers_follow_from_integers_by_least_squares(released, signed) -> None:
    (measurement, _, _), (folder, _, _) = released, signed
    document = json.loads((folder / "measurements.json").read_text())
    arrays = np.load(folder / "measurements.npz")
    sizes, names = (2, 6), ["<b>sex", "age"]
    rows, measured = [], []  # both in units of the noise
    for block in document["blocks"]:
        matrix_of = {tuple(f["axes"]): arrays[f["rows"]] for f in block["factors"]}
        by_sex, by_age = (
            matrix_of.get((name,), np.ones((1, size)))
            for name, size in zip(names, sizes, strict=True)
        )
        rows.append(np.kron(by_sex, by_age) / block["noise"])
        measured.append(arrays[block["integers"]] * (block["grid"] / block["noise"]))
    B = np.concatenate(rows)
    cells, *_ = np.linalg.lstsq(B, np.concatenate(measured))
    np.testing.assert_allclose(cells.reshape(sizes), measurement.marginal(names), atol=1e-6)
    covariance = np.linalg.inv(B.T @ B)
    answers = pq.read_table(folder / "answers.parquet").to_pandas()
    pair = answers[answers["attributes"] == "<b>sex x age"]
    prefixes = np.kron(np.eye(2), np.tril(np.ones((6, 6))))  # prefix queries on age, per sex
    np.testing.assert_allclose(pair["answer"], prefixes @ cells, atol=1e-6)
    std = np.sqrt(np.diag(prefixes @ covariance @ prefixes.T))
    np.testing.assert_allclose(pair["std"], std, rtol=1e-9)
    half_width = 1.959963984540054 * std  # of 95% intervals
    np.testing.assert_allclose(pair["high"] - pair["answer"], half_width, rtol=1e-9)
    first, eighth = (np.eye(12)[cell].reshape(sizes) for cell in (0, 7))
    planned = measurement.plan.covariance([(names, first), (names, eighth)])
    np.testing.assert_allclose(planned[0, 1], covariance[0, 7], rtol=1e-9)


def test_verify_accepts_two_stage_release(tmp_path) -> None:
    schema = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3)])
    coarse, fine = (
        plan(Workload.all_ways(schema, ways=k), Budget(pcost=0.4), centers="uniform")
        for k in (1, 2)
    )
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("survey", total=Budget(pcost=1.0))
    records = synthetic(schema, 500, seed=3)
    look = stepwise.look(coarse_or_fine(coarse, fine), records, dataset="survey", ledger=ledger)
    stepwise.decide(ledger, look.key, option=1, by="A. Reader")
    final = stepwise.finish(ledger, look.key, records)
    receipt = ledger.find(final.key)
    path = write_package(final, tmp_path / "release.zip", receipt=receipt, ledger=ledger)
    assert verify_package(path, ledger=ledger.path) == ()


def test_verify_detects_restored_older_ledger(small_plan, tmp_path) -> None:
    ledger_path = tmp_path / "office.ledger"
    ledger = Ledger.create(ledger_path)
    ledger.add_dataset("survey", total=Budget(pcost=2.0))
    older_content = ledger_path.read_bytes()
    records = synthetic(SCHEMA, 500, seed=3)
    measurement = measure(small_plan, records, dataset="survey", ledger=ledger)
    receipt = ledger.find(measurement.key)
    package_path = tmp_path / "release.zip"
    write_package(measurement, package_path, receipt=receipt, ledger=ledger)
    verify = ["verify", "--ledger", str(ledger_path)]
    with_package = [*verify, "--package", str(package_path)]
    with_receipt = [*verify, "--receipt", f"{receipt.seq}:{receipt.hash}"]
    assert main(with_package) == 0
    assert main(with_receipt) == 0
    ledger_path.write_bytes(older_content)
    for file in Path(f"{ledger_path}.results").iterdir():
        file.unlink()
    assert main(verify) == 0, "the older file is consistent"
    assert main(with_package) == 1
    assert main(with_receipt) == 1


def test_check_script_detects_changes(released, tmp_path, monkeypatch) -> None:
    measurement, receipt, _ = released
    path = write_package(measurement, tmp_path / "release.zip", receipt=receipt)
    folder = unpacked(path, tmp_path / "unpacked")
    complete = subprocess.run(
        [sys.executable, "check.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert complete.returncode == 0, complete.stderr
    assert "Every file, field, answer, standard error and interval" in complete.stdout
    plan_file = folder / "plan.json"
    plan_file.write_text(plan_file.read_text().replace('"pcost"', ' "pcost"', 1))
    monkeypatch.setattr(sys, "argv", ["check.py"])
    with pytest.raises(SystemExit) as ended:  # run in this process, because a subprocess is slow
        runpy.run_path(str(folder / "check.py"), run_name="__main__")
    assert ended.value.code == 1


def test_check_script_without_project_compares_digests(released, tmp_path) -> None:
    measurement, receipt, _ = released
    path = write_package(measurement, tmp_path / "release.zip", receipt=receipt)
    folder = unpacked(path, tmp_path / "unpacked")

    def run_check_script() -> subprocess.CompletedProcess[str]:
        # isolated mode and no site-packages: only the standard library can be imported
        command = [sys.executable, "-I", "-S", folder / "check.py"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    complete = run_check_script()
    # exit code 2: the digests are right, but the answers were not recomputed
    assert complete.returncode == 2, complete.stderr
    assert "dp-query-workbench" in complete.stdout
    (folder / "answers.csv").write_text("changed")
    changed = run_check_script()
    assert changed.returncode == 1
    assert "answers.csv was changed" in changed.stdout


def test_package_readme_lists_files_and_is_verified(released, tmp_path) -> None:
    measurement, receipt, _ = released
    path = write_package(measurement, tmp_path / "r.zip", receipt=receipt)
    with zipfile.ZipFile(path) as archive:
        text = archive.read("README.md").decode()
        names = set(archive.namelist())
    assert all(f"`{name}`" in text for name in names - {"README.md", "measurements.npz"})
    folder = unpacked(path, tmp_path / "out")
    (folder / "README.md").write_text("changed")
    assert verify_package(folder) == ("README.md was changed",)


def test_package_names_its_signer(signed, capsys, monkeypatch) -> None:
    folder, path, ledger = signed
    public = ledger.public_key()
    fingerprint = key_fingerprint(public)
    assert package_signer(path) == package_signer(folder) == public
    readme = (folder / "README.md").read_text()
    receipt = ledger.find(json.loads((folder / "certificate.json").read_text())["key"])
    for text in (fingerprint, public, f"row {receipt.seq}", receipt.hash):
        assert text in readme
    assert fingerprint in (folder / "report.html").read_text()
    assert main(["verify", "--package", str(path)]) == 0
    shown = capsys.readouterr().out
    assert fingerprint in shown
    assert "publisher gives in another way" in shown
    assert main(["verify", "--package", str(path), "--public-key", public]) == 0
    assert f"required one: {fingerprint}" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["check.py"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(folder / "check.py"), run_name="__main__")
    assert ended.value.code == 0
    assert fingerprint in capsys.readouterr().out


def test_removed_or_foreign_signature_contradicts_the_readme(signed, tmp_path) -> None:
    folder, _, _ = signed
    problem = "README.md differs from what the plan and the measurements imply"
    certificate = (folder / "certificate.json").read_bytes()
    foreign_key, signature = Ledger.create(tmp_path / "other").sign(certificate)
    fields = {"algorithm": "Ed25519", "public_key": foreign_key, "signature": signature}
    (folder / "signature.json").write_text(json.dumps(fields))
    assert verify_package(folder) == (problem,)
    (folder / "signature.json").unlink()
    assert package_signer(folder) is None
    assert verify_package(folder) == (problem,)


def test_unsigned_package_has_no_signer(released, tmp_path, capsys) -> None:
    folder = unsigned(released, tmp_path)
    assert package_signer(folder) is None
    assert "Who signed" not in (folder / "README.md").read_text()
    assert main(["verify", "--package", str(folder)]) == 0
    assert "not signed" in capsys.readouterr().out
    assert package_signer(tmp_path / "missing.zip") is None


def test_receipt_file_has_no_digest_of_records(released) -> None:
    _, receipt, ledger = released
    public = ledger.public_key()
    fields = json.loads(package.receipt_json(receipt, public))
    assert fields["seq"] == receipt.seq
    assert fields["hash"] == receipt.hash
    assert fields["public_key"] == public
    assert not {"digest", "note", "fresh"} & set(fields)


def test_rehearsal_package_is_marked(small_plan, tmp_path) -> None:
    measurement = measure(small_plan, synthetic(SCHEMA, 500, seed=3), rehearsal=True)
    book = Ledger.create(tmp_path / "book")
    folder = unpacked(write_package(measurement, tmp_path / "r.zip", ledger=book), tmp_path / "out")
    assert "<p class=mark>REHEARSAL" in (folder / "report.html").read_text()
    assert json.loads((folder / "certificate.json").read_text())["status"].startswith("REHEARSAL")
    assert json.loads((folder / "measurements.json").read_text())["status"] == "REHEARSAL"
    with open(folder / "answers.csv", newline="", encoding="utf-8") as file:
        assert all(row["status"] == "REHEARSAL" for row in csv.DictReader(file))
    assert verify_package(folder) == ()
    assert not (folder / "signature.json").exists()


def test_cancelled_package_leaves_no_file(small_plan, tmp_path) -> None:
    measurement = measure(small_plan, synthetic(SCHEMA, 500, seed=3), rehearsal=True)
    with pytest.raises(Cancelled):
        write_package(
            measurement, tmp_path / "r.zip", progress=lambda fraction, text: fraction < 0.7
        )
    assert not list(tmp_path.iterdir())


# --- published tables in the package ---


@pytest.fixture(scope="module")
def with_tables(released, tmp_path_factory):
    measurement, receipt, ledger = released
    errors = uncertainty(publish(measurement), draws=4)
    path = tmp_path_factory.mktemp("tables") / "release.zip"
    rule = QualityRule(least_count=5)
    write_package(measurement, path, receipt=receipt, ledger=ledger, published=errors, rule=rule)
    return path, ledger


def test_package_contains_published_tables_in_folder(with_tables, tmp_path) -> None:
    path, ledger = with_tables
    assert verify_package(path, ledger=ledger.path) == ()
    folder = unpacked(path, tmp_path / "all")
    assert verify_package(folder) == ()
    assert verify_package(folder / "published") == ()
    assert "published/README.md" in (folder / "README.md").read_text()
    table = (folder / "published" / "table3_age.csv").read_text()
    assert min(float(row["published"]) for row in csv.DictReader(io.StringIO(table))) >= 0
    files = json.loads((folder / "certificate.json").read_text())["files"]
    assert "published/table3_age.csv" in files


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("published/table3_age.csv", lambda text: text.replace("1", "2")),
        ("published/README.md", lambda text: f"{text}more"),
        ("published/how.json", lambda text: text.replace('"survey"', '"other"')),
        ("published/plan.json", lambda text: f"{text} "),
        ("published/further.csv", lambda text: "a\n1\n"),
        ("published/codebook.md", None),
    ],
    ids=["counts", "readme", "options", "plan", "added file", "missing file"],
)
@pytest.mark.parametrize("digest_updated", [False, True], ids=["old digest", "new digest"])
def test_changed_published_tables_are_a_problem(
    with_tables, tmp_path, name, change, digest_updated
) -> None:
    path, _ = with_tables
    folder = unpacked(path, tmp_path / "all")
    file = folder / name
    if change is None:
        file.unlink()
    else:
        file.write_text(change(file.read_text() if file.exists() else ""))
    if digest_updated:
        (folder / "signature.json").unlink()
        certificate = json.loads((folder / "certificate.json").read_text())
        certificate["files"].pop(name, None)
        if file.exists():
            certificate["files"][name] = hashlib.sha256(file.read_bytes()).hexdigest()
        (folder / "certificate.json").write_text(json.dumps(certificate))
    assert verify_package(folder)
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(changed, "w") as archive:
        for member in sorted(p for p in folder.rglob("*") if p.is_file()):
            archive.write(member, member.relative_to(folder).as_posix())
    assert verify_package(changed)


def test_linked_folder_of_published_tables_is_a_problem(with_tables, tmp_path) -> None:
    path, _ = with_tables
    folder = unpacked(path, tmp_path / "all")
    (folder / "published").rename(tmp_path / "elsewhere")
    (folder / "published").symlink_to(tmp_path / "elsewhere")
    assert verify_package(folder)


def test_package_of_second_release_states_joint_guarantee(tmp_path) -> None:
    result = plan(Workload(SCHEMA).add("age", "marginal"), Budget(pcost=0.05))
    ledger = Ledger.create(tmp_path / "office.ledger")
    ledger.add_dataset("survey", total=Budget.gdp(1.0), kind="gdp")
    records = synthetic(SCHEMA, 500, seed=3)

    def release_folder(attempt):
        measurement = measure(result, records, dataset="survey", ledger=ledger, attempt=attempt)
        receipt, path = ledger.find(measurement.key), tmp_path / f"{attempt}.zip"
        write_package(measurement, path, receipt=receipt, ledger=ledger)
        assert verify_package(path, ledger=ledger.path) == ()
        return unpacked(path, tmp_path / f"release {attempt}")

    first_folder, second_folder = release_folder(1), release_folder(2)
    joint_guess = Budget(pcost=2 * 0.05).guess
    for name in ("certificate.json", "README.md", "report.html"):
        first, second = (
            (folder / name).read_text(encoding="utf-8") for folder in (first_folder, second_folder)
        )
        assert "no earlier release of this dataset" in first
        assert f"all 2 releases guesses right at most {joint_guess:g}%" in second
        assert "sees everything" not in second
    certificate = json.loads((second_folder / "certificate.json").read_text())
    assert certificate["joint_charge"]["spent"] == ledger.status("survey").spent


def test_verify_package_former_wording_is_accepted(released, tmp_path, monkeypatch) -> None:
    measurement, receipt, _ = released
    original = Budget.promise.fget
    monkeypatch.setattr(package, "PACKAGE_FORMAT", "release/5")
    monkeypatch.setattr(
        Budget,
        "promise",
        property(lambda self: original(self).replace("this release", "everything published")),
    )
    path = write_package(measurement, tmp_path / "former.zip", receipt=receipt)
    monkeypatch.undo()
    assert verify_package(path) == ()


def test_verify_package_other_joint_charge_is_reported(released, tmp_path, monkeypatch) -> None:
    measurement, receipt, ledger = released
    monkeypatch.setattr(
        Ledger, "joint_charge", lambda *_: package.JointCharge(releases=2, spent=0.125)
    )
    path = write_package(measurement, tmp_path / "r.zip", receipt=receipt, ledger=ledger)
    monkeypatch.undo()
    assert verify_package(path, ledger=ledger.path) == (
        "joint_charge in the certificate differs from that of the ledger",
    )
