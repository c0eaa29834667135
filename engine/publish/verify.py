"""Verification of release packages.

Checking a zip of published tables without the records: it is made again from its integers, file by file.

Checking a package without the records: every file, every field of the certificate, every number, the signature.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from engine._untrusted import MAX_JSON_MEMORY, is_plain_name, parse_json
from engine._validation import positive, whole
from engine.errors import EngineError, PlanError
from engine.ledger import Ledger, Receipt, verify_ledger
from engine.ledger.signing import good_signature
from engine.mechanisms import load_plan
from engine.plans.blocks import GUARD
from engine.postprocess import QualityRule, publish, uncertainty
from engine.publish.package_files import (
    MAX_CERTIFICATE,
    MAX_PLAN,
    MAX_SMALL,
    PackageFiles,
    max_bytes_of,
    open_answers,
    package_files,
)
from engine.publish.release_package import (
    BEFORE,
    CERTIFICATE,
    NAMES,
    PACKAGE_FORMAT,
    SIGNATURE,
    certificate,
    read_measurements,
)
from engine.publish.report import MARK, answer_batches
from engine.publish.tables_package import HOW, MAX_TABLE_ROWS, PLAN, TABLES_FORMAT, tables_files, unescaped_texts
from engine.release import Measurement

CLOSE = 1e-6  # what numbers of other machines may differ by
MAX_RULE = 1e100  # of the numbers of a quality rule, so that products with counts stay finite
MAX_DRAWS = 10_000  # each of them fits all tables


def table_problems(files: PackageFiles, public_key: str | None, ledger: str | Path | None) -> list[str]:
    """Return every problem of the files of `write_tables` in words, none if all is sound.

    Estimates, errors, published counts and flags are computed again from the released integers.  With a ledger, it must
    hold the spend of this very plan.
    """
    how = _options(files.read(HOW, MAX_SMALL))
    if missing := sorted({PLAN, *NAMES} - set(files.names)):
        return [f"{name} is not there" for name in missing]
    plan = load_plan(files.read(PLAN, MAX_PLAN), untrusted=True)
    if plan.workload.queries > MAX_TABLE_ROWS:
        raise PlanError(f"The plan has {plan.workload.queries:,} queries, more than tables have.")
    words = {name: how[name] for name in ("dataset", "key", "utc")}
    limits = max_bytes_of(plan)
    for name in (PLAN, *NAMES):
        files.digest(name, limits[name])
    found = read_measurements(
        plan,
        files.path(NAMES[0]),
        files.path(NAMES[1]),
        rehearsal=how["rehearsal"],
        **words,
    )
    tables = publish(found, how["fit"], integer=how["integer"])
    errors = uncertainty(tables, draws=how["draws"])
    rule = QualityRule(**how["rule"])
    problems = ["tables carry no signature; that of their release has one"] if public_key else []
    with tempfile.TemporaryDirectory() as place:
        expected = {
            file.name: file for file in tables_files(errors, Path(place), rule=rule, confidence=how["confidence"])
        }
        told = set(files.names)
        problems += [f"{name} is not there" for name in sorted(expected.keys() - told)]
        problems += [f"{name} is no part of the tables" for name in sorted(told - expected.keys())]
        earlier = unescaped_texts(found, how["confidence"])
        for name in sorted((expected.keys() & told) - {NAMES[1]}):  # which was read above, whatever its bytes
            files.digest(name, 2 * expected[name].stat().st_size + MAX_SMALL)
            try:
                same = _same(expected[name], files.path(name))
            except (ValueError, csv.Error):  # text of another encoding, or no table
                same = False
            if not same and name in earlier:
                same = files.path(name).read_bytes() == earlier[name].encode()
            if not same:
                problems.append(f"{name} is not what plan and integers give")
    return problems + ([] if ledger is None else _spend_problems(found, ledger))


def _options(text: bytes) -> dict[str, Any]:
    """Return how the tables were made; raise PlanError unless every option is there, with a value of its type."""
    how = parse_json(text)
    if not isinstance(how, dict) or how.get("format") != TABLES_FORMAT:
        given = how.get("format") if isinstance(how, dict) else None
        raise PlanError(f"The tables are of the form {str(given)[:40]!r}. This version reads {TABLES_FORMAT}.")
    types = {"dataset": str, "key": str, "utc": str, "fit": str, "rehearsal": bool, "integer": bool, "rule": dict}
    for name, kind in types.items():
        if type(how.get(name)) is not kind:
            raise PlanError(f"The option {name} in {HOW} is damaged.")
    rule, names = how["rule"], {field.name for field in fields(QualityRule)}
    if rule.keys() != names or not all(type(v) in (int, float) and abs(v) < MAX_RULE for v in rule.values()):
        raise PlanError(f"The option rule in {HOW} is damaged.")
    whole(f"number of draws in {HOW}", how.get("draws"), 2, MAX_DRAWS, error=PlanError)
    positive(f"confidence in {HOW}", how.get("confidence"), below=1, error=PlanError)
    return how


def _spend_problems(found: Measurement, ledger: str | Path) -> list[str]:
    receipt = None if found.rehearsal else Ledger(ledger).find(found.key)
    if receipt is None or receipt.plan_hash != found.plan.hash or receipt.dataset != found.dataset:
        return ["the ledger holds no spend of this plan under this key"]
    return []


def _same(one: Path, other: Path) -> bool:
    """Equal, but for the last digits of the numbers in a table, or of a cost."""
    if one.suffix == ".json":
        return _same_values(json.loads(one.read_bytes()), parse_json(other.read_bytes(), max_memory=MAX_JSON_MEMORY))
    if one.suffix != ".csv":
        return one.read_bytes() == other.read_bytes()
    with open(one, newline="", encoding="utf-8") as first, open(other, newline="", encoding="utf-8") as second:
        rows = itertools.zip_longest(csv.reader(first), csv.reader(second))
        return all(
            a is not None
            and b is not None
            and len(a) == len(b)
            and all(x == y or _near(x, y) for x, y in zip(a, b, strict=True))
            for a, b in rows
        )


def _same_values(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE**2)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_same_values(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_values, one, other))
    return type(one) is type(other) and bool(one == other)


def _near(one: str, other: str) -> bool:
    if one.lstrip("-").isdigit() and other.lstrip("-").isdigit():
        return False  # whole numbers are the same on every machine
    try:
        return math.isclose(float(one), float(other), rel_tol=CLOSE, abs_tol=CLOSE)
    except ValueError:
        return False


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
    known_format = seal["format"] if seal.get("format") in BEFORE else PACKAGE_FORMAT
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
