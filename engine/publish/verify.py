"""Checking a package without the records: every file, every field of the certificate, every number, the signature."""

from __future__ import annotations

import hashlib
import json
import math
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from engine.errors import EngineError
from engine.mechanisms import load_plan
from engine.plans import GUARD
from engine.publish.measurements import NAMES, read_measurements
from engine.publish.package import BEFORE, CERTIFICATE, FORMAT, SIGNATURE, certificate
from engine.publish.report import MARK, answer_batches
from engine.publish.tables_package import HOW
from engine.publish.verify_tables import table_problems
from engine.release import Measurement, Receipt, good_signature, verify_ledger

NEEDED = {"plan.json", "check.py", "report.html", "answers.parquet", *NAMES}
LARGEST = 64_000_000_000  # bytes that a package may unfold to
NUMBERS = ("answer", "std", "low", "high")
DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?")
Near = tuple[float, float]  # relative, absolute
ADDED: Near = (1e-9, 1e-12)  # sums have other last digits where a machine adds in another order
# strategies are found by eigenvalues, bounds for all mechanisms by searches that end with the time
SOLVED, SEARCHED = (1e-5, 1e-5), (0.01, 0.01)
FOUND: dict[str, Near] = {
    **dict.fromkeys(("rmse_counts", "lower_bound_counts", "gap"), SOLVED),
    **dict.fromkeys(("global_bound_counts", "global_gap"), SEARCHED),
}
WORDS = ("claim", "bound")  # what is said of them, in percentages with one decimal


def verify_package(
    path: str | Path, *, public_key: str | None = None, ledger: str | Path | None = None
) -> tuple[str, ...]:
    """Return every problem of a package in words, none if all is sound.

    Plan, certificate, answers, standard errors and intervals are computed again from the released integers.  A zip of
    published tables, as `write_tables` makes it, is made again file by file.

    Parameters
    ----------
    path : the zip file, or the folder of its files.
    public_key : of the ledger that must have signed, in hexadecimal; else whoever holds the key inside has signed.
    ledger : a ledger that must hold the spend; one that was set back to an older copy does not.
    """
    place = Path(path)
    if not place.exists():
        return (f"There is no file or folder {place}. Give the package that was handed out.",)
    if place.suffix.lower() == ".xlsx":
        return (f"{place.name} is a workbook, from which nothing is computed again. Give the zip of the same tables.",)
    try:
        if place.is_dir():
            return tuple(_problems(place, public_key, ledger))
        with tempfile.TemporaryDirectory() as folder:
            if problem := _unpacked(place, Path(folder)):
                return (problem,)
            return tuple(_problems(Path(folder), public_key, ledger))
    except EngineError as error:
        return (str(error),)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, pa.ArrowException) as error:
        return (f"{place.name} is no whole package: {type(error).__name__}.",)


def _unpacked(place: Path, folder: Path) -> str:
    with zipfile.ZipFile(place) as archive:
        names = archive.namelist()
        if len(set(names)) < len(names) or any(Path(name).name != name for name in names):
            return "The package holds a name twice, or a file outside its folder."
        if sum(member.file_size for member in archive.infolist()) > LARGEST:
            return f"The package unfolds to more than {LARGEST:,} bytes."
        archive.extractall(folder)
    return ""


def _problems(folder: Path, public_key: str | None, ledger: str | Path | None) -> list[str]:
    if (folder / HOW).is_file():
        return table_problems(folder, public_key, ledger)
    text = (folder / CERTIFICATE).read_bytes()
    seal = json.loads(text)
    files = seal.pop("files")
    problems = [f"{name} is missing from the certificate" for name in sorted(NEEDED - set(files))]
    for name, digest in sorted(files.items()):
        if Path(name).name != name or not (folder / name).is_file():
            problems.append(f"{name} is not there")
        elif hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest:
            problems.append(f"{name} was changed")
    known = {*files, CERTIFICATE, SIGNATURE}
    problems += [
        f"{file.name} is not in the certificate" for file in sorted(folder.iterdir()) if file.name not in known
    ]
    problems += _signature_problems(folder, text, public_key)
    if problems:
        return problems
    plan = load_plan((folder / "plan.json").read_bytes())
    rehearsal, spent = seal.get("status") == MARK, seal.get("ledger")
    words = {name: str(seal.get(name)) for name in ("dataset", "key", "utc")}
    found = read_measurements(plan, folder, rehearsal=rehearsal, **words)
    receipt = None
    if spent is not None:
        receipt = Receipt(
            plan_hash=plan.hash, note="", fresh=False, dataset=words["dataset"], key=words["key"], **spent
        )
    known_format = seal["format"] if seal.get("format") in BEFORE else FORMAT
    expected = json.loads(json.dumps(certificate(found, receipt, seal["confidence"], format=known_format)))
    said = dict.fromkeys(WORDS, _words_near(expected.get("global_gap"), seal.get("global_gap")))
    if known_format in BEFORE:
        said["meaning"] = (1.1e-3, 0.0)  # one step in the last of four digits, which were rounded otherwise
    for name in sorted(expected.keys() | seal.keys()):
        one, other = expected.get(name), seal.get(name)
        if not (_same_words(one, other, said[name]) if name in said else _close(one, other, FOUND.get(name, ADDED))):
            problems.append(f"the certificate's {name} is not what plan and integers give")
    if receipt is not None and found.answers_on_grid and receipt.pcost < found.plan.pcost / GUARD:
        problems.append("the ledger's spend in the certificate is less than the plan costs")
    if receipt is not None and receipt.utc != found.utc:
        problems.append("the certificate tells two times of the spend")
    problems += _answer_problems(found, seal["confidence"], folder, "answers.csv" in files)
    if ledger is not None:
        if receipt is None:
            problems.append("the certificate names no spend to look for in the ledger")
        else:
            problems += verify_ledger(ledger, receipts=[receipt], results=False)
    return problems


def _signature_problems(folder: Path, text: bytes, public_key: str | None) -> list[str]:
    if not (folder / SIGNATURE).is_file():
        return ["the package is not signed"] if public_key else []
    told = json.loads((folder / SIGNATURE).read_bytes())
    if told.get("algorithm") != "Ed25519" or not good_signature(told["public_key"], told["signature"], text):
        return ["the signature is not that of this certificate"]
    if public_key and told["public_key"] != public_key.strip().lower():
        return ["the package is signed by another ledger"]
    return []


def _answer_problems(found: Measurement, confidence: float, folder: Path, with_csv: bool) -> list[str]:
    """Compare all answers of the files, in pieces, with those computed from the integers."""
    files: list[tuple[str, Any]] = [("answers.parquet", pq.ParquetFile(folder / "answers.parquet").iter_batches())]
    if with_csv:
        files.append(("answers.csv", pyarrow.csv.open_csv(folder / "answers.csv")))
    problems = []
    for name, batches in files:
        table = pa.Table.from_batches(list(batches))
        start, wrong = 0, False
        for _, piece in answer_batches(found, confidence):
            part = table.slice(start, len(piece))
            start += len(piece)
            std = piece["std"].to_numpy()
            wrong |= len(part) != len(piece) or not all(_same_numbers(part[c], piece[c], std) for c in NUMBERS)
            if name.endswith("parquet") and not wrong:
                wrong = part["query"].to_pylist() != piece["query"].to_pylist()
            if found.rehearsal and not wrong:
                wrong = set(part["status"].to_pylist()) != {"REHEARSAL"}
        if wrong or start != len(table):
            problems.append(f"the answers in {name} are not those that plan and integers give")
    return problems


def _same_numbers(one: Any, other: Any, std: Any) -> bool:
    """Equal, but for the last digits of large numbers, and for what is 1e-5 of the standard error."""
    a, b = one.to_numpy().astype(float), other.to_numpy()
    least = 1e-9 * (1.0 + float(np.abs(b).max(initial=0.0))) + SOLVED[0] * np.where(np.isfinite(std), std, 0.0)
    return bool(((a == b) | (np.abs(a - b) <= least)).all())


def _close(one: Any, other: Any, near: Near) -> bool:
    """Equal, but for numbers that another machine finds a little elsewhere."""
    if isinstance(one, float) and isinstance(other, (int, float)) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=near[0], abs_tol=near[1])
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_close(value, other[name], near) for name, value in one.items())
    return type(one) is type(other) and bool(one == other)


def _words_near(one: Any, other: Any) -> Near:
    """How near percentages in words are: as near as the gaps that they tell, but for one step of their rounding."""
    apart = abs(one - other) if isinstance(one, float) and isinstance(other, float) else 0.0
    return apart + 1e-3, 100.0 * apart + 0.1 + 1e-9


def _same_words(one: Any, other: Any, near: Near) -> bool:
    """Equal, but for numbers that are near."""
    if not isinstance(one, str) or not isinstance(other, str) or DECIMAL.sub("#", one) != DECIMAL.sub("#", other):
        return False
    pairs = zip(*(map(float, DECIMAL.findall(text)) for text in (one, other)), strict=True)
    return all(_close(ours, theirs, near) for ours, theirs in pairs)
