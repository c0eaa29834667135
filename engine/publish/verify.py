"""Checking a package without the records: every file, every field of the certificate, every number, the signature."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from engine.checks import positive
from engine.errors import EngineError, PlanError
from engine.mechanisms import load_plan
from engine.plans import GUARD
from engine.publish.measurements import NAMES, read_measurements
from engine.publish.package import BEFORE, CERTIFICATE, FORMAT, SIGNATURE, certificate
from engine.publish.package_files import (
    MAX_CERTIFICATE,
    MAX_PLAN,
    MAX_SMALL,
    PackageFiles,
    max_bytes_of,
    open_answers,
    package_files,
)
from engine.publish.report import MARK, answer_batches
from engine.publish.tables_package import HOW, PLAN
from engine.publish.verify_tables import table_problems
from engine.release import Measurement, Receipt, good_signature, verify_ledger
from engine.untrusted import MAX_JSON_MEMORY, is_plain_name, parse_json

NEEDED = {"plan.json", "check.py", "report.html", "answers.parquet", *NAMES}
NUMBERS = ("answer", "std", "low", "high")
SPENT: dict[str, tuple[type, ...]] = {"seq": (int,), "hash": (str,), "pcost": (float, int), "utc": (str,)}
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
    published tables, as `write_tables` makes it, is made again file by file.  Every file is read within a size that
    the plan implies, and no damage raises an error.

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
        with tempfile.TemporaryDirectory() as scratch, package_files(place, Path(scratch)) as files:
            if HOW in files.names:
                return tuple(table_problems(files, public_key, ledger))
            return tuple(_problems(files, public_key, ledger))
    except EngineError as error:
        return (str(error),)
    except Exception as error:  # a package of somebody else must not stop who checks it, whatever is wrong with it
        invalid = isinstance(error, json.JSONDecodeError)
        words = "a file is not valid JSON" if invalid else str(error) if type(error) is ValueError else "it is damaged"
        return (f"{place.name} is not a complete package: {words}.",)


def _problems(files: PackageFiles, public_key: str | None, ledger: str | Path | None) -> list[str]:
    text = files.read(CERTIFICATE, MAX_CERTIFICATE)
    seal = _certificate(text)
    digests = seal.pop("files")
    problems = [f"{name} is missing from the certificate" for name in sorted(NEEDED - set(digests))]
    problems += [f"{name} is not there" for name in sorted(digests.keys() - set(files.names))]
    problems += [f"{name} is no part of a release" for name in sorted(digests.keys() - NEEDED - {"answers.csv"})]
    known = {*digests, CERTIFICATE, SIGNATURE}
    problems += [f"{name} is not in the certificate" for name in files.names if name not in known]
    problems += _signature_problems(files, text, public_key)
    # the plan says how large the other files may be
    if not problems and files.digest(PLAN, MAX_PLAN) != digests[PLAN]:
        problems.append(f"{PLAN} was changed")
    if problems:
        return problems
    plan = load_plan(files.path(PLAN).read_bytes(), untrusted=True)
    limits = max_bytes_of(plan)
    problems += [f"{name} was changed" for name in sorted(digests) if files.digest(name, limits[name]) != digests[name]]
    if problems:
        return problems
    rehearsal, spent = seal.get("status") == MARK, seal.get("ledger")
    words = {name: str(seal.get(name)) for name in ("dataset", "key", "utc")}
    found = read_measurements(plan, files.path(NAMES[0]), files.path(NAMES[1]), rehearsal=rehearsal, **words)
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
    problems += _answer_problems(found, seal["confidence"], files, limits, "answers.csv" in digests)
    if ledger is not None:
        if receipt is None:
            problems.append("the certificate names no spend to look for in the ledger")
        else:
            problems += verify_ledger(ledger, receipts=[receipt], results=False)
    return problems


def _certificate(text: bytes) -> dict[str, Any]:
    """Return the content of a certificate; raise PlanError unless its fields have the types that they need."""
    # the gap of a plan without a bound is infinite, which Python writes although JSON has no word for it
    seal = parse_json(text, max_memory=MAX_JSON_MEMORY, constants=True)
    if not isinstance(seal, dict) or not _is_map(seal.get("files"), {"": (str,)}):
        raise PlanError("The certificate lists no files. Give the package as it was handed out.")
    if not all(is_plain_name(name) and len(digest) == 64 for name, digest in seal["files"].items()):
        raise PlanError("The certificate lists paths, or digests that are none. Give the package as it was handed out.")
    spent = seal.get("ledger")
    if spent is not None and (not _is_map(spent, SPENT) or spent.keys() != SPENT.keys()):
        raise PlanError("The certificate names a spend without its row, hash, cost and time.")
    positive("confidence in the certificate", seal.get("confidence"), below=1, error=PlanError)
    return seal


def _is_map(value: Any, kinds: Mapping[str, tuple[type, ...]]) -> bool:
    """Return whether a value is an object whose fields have these types; the name "" stands for all other fields."""
    return isinstance(value, dict) and all(type(v) in kinds.get(name, kinds.get("", ())) for name, v in value.items())


def _signature_problems(files: PackageFiles, text: bytes, public_key: str | None) -> list[str]:
    if SIGNATURE not in files.names:
        return ["the package is not signed"] if public_key else []
    told = parse_json(files.read(SIGNATURE, MAX_SMALL))
    if not _is_map(told, {"": (str,)}) or not {"algorithm", "public_key", "signature"} <= told.keys():
        return ["the signature is not that of this certificate"]
    if told["algorithm"] != "Ed25519" or not good_signature(told["public_key"], told["signature"], text):
        return ["the signature is not that of this certificate"]
    if public_key and told["public_key"] != public_key.strip().lower():
        return ["the package is signed by another ledger"]
    return []


def _answer_problems(
    found: Measurement, confidence: float, files: PackageFiles, limits: Mapping[str, int], with_csv: bool
) -> list[str]:
    """Compare all answers of the files, in pieces, with those computed from the integers."""
    rows, parquet = found.plan.workload.queries, "answers.parquet"
    sources: dict[str, Callable[[], Iterator[pa.RecordBatch]]] = {
        parquet: lambda: open_answers(files.path(parquet), rows, limits[parquet]).iter_batches(1 << 14)
    }
    if with_csv:
        columns = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(NUMBERS, pa.float64()))
        sources["answers.csv"] = lambda: iter(pyarrow.csv.open_csv(files.path("answers.csv"), convert_options=columns))
    problems = []
    for name, source in sources.items():
        pieces = (piece for _, piece in answer_batches(found, confidence))
        try:
            told = _Rows(source())
            # the first piece that differs ends the comparison, so that nothing is read beyond it
            wrong = not all(_same_answers(p, told, found.rehearsal, texts=name == parquet) for p in pieces)
            wrong = wrong or told.more()
        except (pa.ArrowException, KeyError, OSError):  # no such columns, or no table
            wrong = True
        if wrong:
            problems.append(f"the answers in {name} are not those that plan and integers give")
    return problems


class _Rows:
    """Rows of batches, taken in pieces of any length."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches, self._rest = batches, list[pa.RecordBatch]()

    def take(self, count: int) -> pa.Table | None:
        """Return the next rows; None where there are not so many."""
        while sum(map(len, self._rest)) < count:
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._rest.append(batch)
        table = pa.Table.from_batches(self._rest)
        self._rest = table.slice(count).to_batches()
        return table.slice(0, count)

    def more(self) -> bool:
        """Return whether rows are left."""
        return any(map(len, self._rest)) or any(map(len, self._batches))


def _same_answers(piece: pa.Table, rows: _Rows, rehearsal: bool, *, texts: bool) -> bool:
    part, std = rows.take(len(piece)), piece["std"].to_numpy()
    if part is None or not all(_same_numbers(part[c], piece[c], std) for c in NUMBERS):
        return False
    if texts and not _same_texts(part["query"], piece["query"]):
        return False
    return not rehearsal or _same_texts(part["status"], pa.chunked_array([["REHEARSAL"] * len(piece)]))


def _same_texts(told: pa.ChunkedArray, expected: pa.ChunkedArray) -> bool:
    """Compare texts; a dictionary with a longer text than any that is expected is not expanded."""
    longest = pc.max(pc.binary_length(expected)).as_py() or 0
    for chunk in told.chunks:
        words = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
        if (pc.max(pc.binary_length(words)).as_py() or 0) > longest:
            return False
    return bool(told.cast(pa.string()).equals(expected.cast(pa.string())))


def _same_numbers(one: Any, other: Any, std: Any) -> bool:
    """Equal, but for the last digits of large numbers, and for what is 1e-5 of the standard error."""
    if not pa.types.is_floating(one.type) and not pa.types.is_integer(one.type):
        return False
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
