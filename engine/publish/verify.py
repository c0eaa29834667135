"""Verification of release packages and tables packages, without the records.

A release package is compared with what its plan and integers imply: every file, certificate field,
answer and signature. A tables package is recomputed from its integers and compared file by file.
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

from engine._untrusted import MAX_JSON_MEMORY, is_plain_name, parse_json
from engine._validation import check_int, check_positive
from engine.errors import EngineError, PlanError
from engine.ledger import Ledger, Receipt, verify_ledger
from engine.ledger.signing import good_signature
from engine.mechanisms import load_plan
from engine.plans.blocks import ROUNDING_FACTOR
from engine.postprocess import QualityRule, publish, uncertainty
from engine.publish.release_package import (
    CERTIFICATE,
    MAX_CERTIFICATE,
    MAX_PLAN,
    MAX_SMALL,
    NAMES,
    README,
    SIGNATURE,
    PackageFiles,
    certificate,
    max_bytes_of,
    open_answers,
    package_files,
    read_measurements,
    readme,
)
from engine.publish.report import REHEARSAL_MARK, answer_batches
from engine.publish.tables_package import (
    HOW,
    MAX_TABLE_ROWS,
    NUMBERED_FORMAT,
    PLAN,
    TABLES_FORMAT,
    tables_files,
)
from engine.release import Measurement

TABLE_TOLERANCE = 1e-6  # relative difference between machines
MAX_RULE_NUMBER = 1e100  # numbers of a quality rule: products with counts are finite
MAX_DRAWS = 10_000  # bounds the time: each draw fits all tables


def table_problems(
    files: PackageFiles, public_key: str | None, ledger: str | Path | None
) -> list[str]:
    """Return all problems of the files of `write_tables`, as messages; empty if they are valid.

    Estimates, errors, published counts and flags are recomputed from the released integers.  If
    ``ledger`` is set, it must contain the spend of the plan.
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
    measurement = read_measurements(
        plan,
        files.path(NAMES[0]),
        files.path(NAMES[1]),
        rehearsal=how["rehearsal"],
        **words,
    )
    tables = publish(measurement, how["fit"], integer=how["integer"])
    errors = uncertainty(tables, draws=how["draws"])
    rule = QualityRule(**how["rule"])
    problems = ["tables carry no signature; that of their release has one"] if public_key else []
    with tempfile.TemporaryDirectory() as place:
        expected = {
            file.name: file
            for file in tables_files(
                errors,
                Path(place),
                rule=rule,
                confidence=how["confidence"],
                format_name=how["format"],
            )
        }
        present = set(files.names)
        problems += [f"{name} is not there" for name in sorted(expected.keys() - present)]
        problems += [
            f"{name} is no part of the tables" for name in sorted(present - expected.keys())
        ]
        # the arrays were read above, and their bytes may differ
        for name in sorted((expected.keys() & present) - {NAMES[1]}):
            files.digest(name, 2 * expected[name].stat().st_size + MAX_SMALL)
            try:
                same = _same(expected[name], files.path(name))
            except (ValueError, csv.Error):
                # a different encoding, or not a table
                same = False
            if not same:
                problems.append(f"{name} is not what plan and integers give")
    return problems + ([] if ledger is None else _spend_problems(measurement, ledger))


def _options(text: bytes) -> dict[str, Any]:
    """Return the options of the tables; raise PlanError if one is missing or of a wrong type."""
    how, formats = parse_json(text), (NUMBERED_FORMAT, TABLES_FORMAT)
    if not isinstance(how, dict) or how.get("format") not in formats:
        format_name = how.get("format") if isinstance(how, dict) else None
        raise PlanError(
            f"The tables have the format {str(format_name)[:40]!r}. This version reads"
            f" {' and '.join(formats)}."
        )
    types = {
        "dataset": str,
        "key": str,
        "utc": str,
        "fit": str,
        "rehearsal": bool,
        "integer": bool,
        "rule": dict,
    }
    for name, kind in types.items():
        if type(how.get(name)) is not kind:
            raise PlanError(f"The option {name} in {HOW} is damaged.")
    rule, names = how["rule"], {field.name for field in fields(QualityRule)}
    if rule.keys() != names or not all(
        type(v) in (int, float) and abs(v) < MAX_RULE_NUMBER for v in rule.values()
    ):
        raise PlanError(f"The option rule in {HOW} is damaged.")
    check_int(f"number of draws in {HOW}", how.get("draws"), 2, MAX_DRAWS, error=PlanError)
    check_positive(f"confidence in {HOW}", how.get("confidence"), below=1, error=PlanError)
    return how


def _spend_problems(measurement: Measurement, ledger: str | Path) -> list[str]:
    receipt = None if measurement.rehearsal else Ledger(ledger).find(measurement.key)
    if (
        receipt is None
        or receipt.plan_hash != measurement.plan.hash
        or receipt.dataset != measurement.dataset
    ):
        return ["the ledger holds no spend of this plan under this key"]
    return []


def _same(one: Path, other: Path) -> bool:
    """Compare two files, with a tolerance for numbers in tables and JSON."""
    if one.suffix == ".json":
        return _same_values(
            json.loads(one.read_bytes()), parse_json(other.read_bytes(), max_memory=MAX_JSON_MEMORY)
        )
    if one.suffix != ".csv":
        return one.read_bytes() == other.read_bytes()
    with (
        open(one, newline="", encoding="utf-8") as first,
        open(other, newline="", encoding="utf-8") as second,
    ):
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
        return math.isclose(one, other, rel_tol=TABLE_TOLERANCE, abs_tol=TABLE_TOLERANCE**2)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(
            _same_values(value, other[name]) for name, value in one.items()
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same_values, one, other))
    return type(one) is type(other) and bool(one == other)


def _near(one: str, other: str) -> bool:
    if one.lstrip("-").isdigit() and other.lstrip("-").isdigit():
        # integers are the same on every machine
        return False
    try:
        return math.isclose(
            float(one), float(other), rel_tol=TABLE_TOLERANCE, abs_tol=TABLE_TOLERANCE
        )
    except ValueError:
        return False


REQUIRED_FILES = {"plan.json", "check.py", "report.html", "answers.parquet", *NAMES}
NUMBER_COLUMNS = ("answer", "std", "low", "high")
SPEND_TYPES: dict[str, tuple[type, ...]] = {
    "seq": (int,),
    "hash": (str,),
    "pcost": (float, int),
    "utc": (str,),
}
DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?")
Near = tuple[float, float]  # relative and absolute tolerance
SUM_TOLERANCE: Near = (1e-9, 1e-12)  # sums depend on the order of additions
# strategies depend on eigenvalues; bounds for all mechanisms on searches with a time limit
SOLVER_TOLERANCE, SEARCH_TOLERANCE = (1e-5, 1e-5), (0.01, 0.01)
FIELD_TOLERANCES: dict[str, Near] = {
    **dict.fromkeys(("rmse_counts", "lower_bound_counts", "gap"), SOLVER_TOLERANCE),
    **dict.fromkeys(("global_bound_counts", "global_gap"), SEARCH_TOLERANCE),
}
TEXT_FIELDS = ("claim", "bound")  # sentences with these numbers, as percentages with one decimal


def verify_package(
    path: str | Path, *, public_key: str | None = None, ledger: str | Path | None = None
) -> tuple[str, ...]:
    """Return all problems of a package, as messages; empty if the package is valid.

    Certificate, answers, standard errors and intervals are recomputed from plan and released
    integers.  All files of a tables package (`write_tables`) are recomputed.  Files are read only
    up to the size that the plan implies, and damaged packages do not raise errors.

    Parameters
    ----------
    path : the zip file, or the folder of its files.
    public_key : hexadecimal public key of the ledger that must have signed the package; by default
        any signature with the key in the package is accepted.
    ledger : ledger that must contain the spend.
    """
    place = Path(path)
    if not place.exists():
        return (f"There is no file or folder {place}. Give the package that was handed out.",)
    if place.suffix.lower() == ".xlsx":
        return (
            (
                f"{place.name} is a workbook, which cannot be verified. Give the zip of the same"
                " tables."
            ),
        )
    try:
        with tempfile.TemporaryDirectory() as scratch, package_files(place, Path(scratch)) as files:
            if HOW in files.names:
                return tuple(table_problems(files, public_key, ledger))
            return tuple(_problems(files, public_key, ledger))
    except EngineError as error:
        return (str(error),)
    except Exception as error:
        # untrusted files may raise anything; report it as a problem
        invalid = isinstance(error, json.JSONDecodeError)
        words = (
            "a file is not valid JSON"
            if invalid
            else str(error)
            if type(error) is ValueError
            else "it is damaged"
        )
        return (f"{place.name} is not a complete package: {words}.",)


def _problems(files: PackageFiles, public_key: str | None, ledger: str | Path | None) -> list[str]:
    text = files.read(CERTIFICATE, MAX_CERTIFICATE)
    seal = _certificate(text)
    digests = seal.pop("files")
    problems = [
        f"{name} is missing from the certificate" for name in sorted(REQUIRED_FILES - set(digests))
    ]
    problems += [f"{name} is not there" for name in sorted(digests.keys() - set(files.names))]
    problems += [
        f"{name} is no part of a release"
        for name in sorted(digests.keys() - REQUIRED_FILES - {"answers.csv", README})
    ]
    listed = {*digests, CERTIFICATE, SIGNATURE}
    problems += [f"{name} is not in the certificate" for name in files.names if name not in listed]
    problems += _signature_problems(files, text, public_key)
    # check the plan first: it bounds the sizes of the other files
    if not problems and files.digest(PLAN, MAX_PLAN) != digests[PLAN]:
        problems.append(f"{PLAN} was changed")
    if problems:
        return problems
    plan = load_plan(files.path(PLAN).read_bytes(), untrusted=True)
    limits = max_bytes_of(plan)
    problems += [
        f"{name} was changed"
        for name in sorted(digests)
        if files.digest(name, limits[name]) != digests[name]
    ]
    if problems:
        return problems
    rehearsal, spent = seal.get("status") == REHEARSAL_MARK, seal.get("ledger")
    words = {name: str(seal.get(name)) for name in ("dataset", "key", "utc")}
    found = read_measurements(
        plan, files.path(NAMES[0]), files.path(NAMES[1]), rehearsal=rehearsal, **words
    )
    receipt = None
    if spent is not None:
        receipt = Receipt(
            plan_hash=plan.hash,
            note="",
            fresh=False,
            dataset=words["dataset"],
            key=words["key"],
            **spent,
        )
    expected = json.loads(json.dumps(certificate(found, receipt, seal["confidence"])))
    text_tolerances = dict.fromkeys(
        TEXT_FIELDS, _text_tolerance(expected.get("global_gap"), seal.get("global_gap"))
    )
    for name in sorted(expected.keys() | seal.keys()):
        one, other = expected.get(name), seal.get(name)
        if not (
            _same_words(one, other, text_tolerances[name])
            if name in text_tolerances
            else _same_fields(one, other, FIELD_TOLERANCES.get(name, SUM_TOLERANCE))
        ):
            problems.append(f"the certificate's {name} is not what plan and integers give")
    if (
        receipt is not None
        and found.answers_on_grid
        and receipt.pcost < found.plan.pcost / ROUNDING_FACTOR
    ):
        problems.append("the ledger's spend in the certificate is less than the plan costs")
    if receipt is not None and receipt.utc != found.utc:
        problems.append("the certificate tells two times of the spend")
    problems += _answer_problems(found, seal["confidence"], files, limits, "answers.csv" in digests)
    if README in digests:
        expected_text = readme(found, seal["confidence"]).encode()
        if files.path(README).read_bytes() != expected_text:
            problems.append(f"{README} is not what plan and integers give")
    if ledger is not None:
        if receipt is None:
            problems.append("the certificate names no spend to look for in the ledger")
        else:
            problems += verify_ledger(ledger, receipts=[receipt], results=False)
    return problems


def _certificate(text: bytes) -> dict[str, Any]:
    """Return the content of a certificate; raise PlanError unless its fields have valid types."""
    # the gap of a plan without a bound is infinite, which Python writes as the constant Infinity
    seal = parse_json(text, max_memory=MAX_JSON_MEMORY, constants=True)
    if not isinstance(seal, dict) or not _is_map(seal.get("files"), {"": (str,)}):
        raise PlanError("The certificate lists no files. Give the package as it was handed out.")
    if not all(is_plain_name(name) and len(digest) == 64 for name, digest in seal["files"].items()):
        raise PlanError(
            "The certificate lists paths, or digests that are none. Give the package as it was"
            " handed out."
        )
    spent = seal.get("ledger")
    if spent is not None and (
        not _is_map(spent, SPEND_TYPES) or spent.keys() != SPEND_TYPES.keys()
    ):
        raise PlanError("The certificate names a spend without its row, hash, cost and time.")
    check_positive(
        "confidence in the certificate", seal.get("confidence"), below=1, error=PlanError
    )
    return seal


def _is_map(value: Any, kinds: Mapping[str, tuple[type, ...]]) -> bool:
    """Return whether a value is a JSON object whose fields have the types in ``kinds``.

    The key "" of ``kinds`` has the types of all fields without a key of their own.
    """
    return isinstance(value, dict) and all(
        type(v) in kinds.get(name, kinds.get("", ())) for name, v in value.items()
    )


def _signature_problems(files: PackageFiles, text: bytes, public_key: str | None) -> list[str]:
    if SIGNATURE not in files.names:
        return ["the package is not signed"] if public_key else []
    told = parse_json(files.read(SIGNATURE, MAX_SMALL))
    if (
        not _is_map(told, {"": (str,)})
        or not {"algorithm", "public_key", "signature"} <= told.keys()
    ):
        return ["the signature is not that of this certificate"]
    if told["algorithm"] != "Ed25519" or not good_signature(
        told["public_key"], told["signature"], text
    ):
        return ["the signature is not that of this certificate"]
    if public_key and told["public_key"] != public_key.strip().lower():
        return ["the package is signed by another ledger"]
    return []


def _answer_problems(
    measurement: Measurement,
    confidence: float,
    files: PackageFiles,
    limits: Mapping[str, int],
    with_csv: bool,
) -> list[str]:
    """Compare the answers in the files, in pieces, with recomputed answers."""
    import pyarrow.csv

    rows, parquet = measurement.plan.workload.queries, "answers.parquet"
    sources: dict[str, Callable[[], Iterator[pa.RecordBatch]]] = {
        parquet: (
            lambda: open_answers(files.path(parquet), rows, limits[parquet]).iter_batches(1 << 14)
        )
    }
    if with_csv:
        columns = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(NUMBER_COLUMNS, pa.float64())
        )
        sources["answers.csv"] = lambda: iter(
            pyarrow.csv.open_csv(files.path("answers.csv"), convert_options=columns)
        )
    problems = []
    for name, source in sources.items():
        pieces = (piece for _, piece in answer_batches(measurement, confidence))
        try:
            told = _Rows(source())
            # stop at the first difference, so that the rest of the file is not read
            wrong = not all(
                _same_answers(p, told, measurement.rehearsal, texts=name == parquet) for p in pieces
            )
            wrong = wrong or told.more()
        except (pa.ArrowException, KeyError, OSError):
            # missing columns, or not a table
            wrong = True
        if wrong:
            problems.append(f"the answers in {name} are not those that plan and integers give")
    return problems


class _Rows:
    """Reader of rows from record batches, in pieces of any length."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches, self._rest = batches, list[pa.RecordBatch]()

    def take(self, count: int) -> pa.Table | None:
        """Return the next ``count`` rows; None if there are fewer."""
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
    if part is None or not all(_same_numbers(part[c], piece[c], std) for c in NUMBER_COLUMNS):
        return False
    if texts and not _same_texts(part["query"], piece["query"]):
        return False
    return not rehearsal or _same_texts(
        part["status"], pa.chunked_array([["REHEARSAL"] * len(piece)])
    )


def _same_texts(texts: pa.ChunkedArray, expected: pa.ChunkedArray) -> bool:
    """Compare texts; reject texts longer than expected before dictionaries are expanded."""
    import pyarrow.compute as pc

    longest = pc.max(pc.binary_length(expected)).as_py() or 0
    for chunk in texts.chunks:
        words = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
        if (pc.max(pc.binary_length(words)).as_py() or 0) > longest:
            return False
    return bool(texts.cast(pa.string()).equals(expected.cast(pa.string())))


def _same_numbers(one: Any, other: Any, std: Any) -> bool:
    """Compare numbers with tolerances relative to the largest number and the standard errors."""
    if not pa.types.is_floating(one.type) and not pa.types.is_integer(one.type):
        return False
    a, b = one.to_numpy().astype(float), other.to_numpy()
    least = 1e-9 * (1.0 + float(np.abs(b).max(initial=0.0))) + SOLVER_TOLERANCE[0] * np.where(
        np.isfinite(std), std, 0.0
    )
    return bool(((a == b) | (np.abs(a - b) <= least)).all())


def _same_fields(one: Any, other: Any, near: Near) -> bool:
    """Compare values of a certificate with a tolerance for numbers."""
    if isinstance(one, float) and isinstance(other, (int, float)) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=near[0], abs_tol=near[1])
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _same_fields(value, other[name], near) for name, value in one.items()
        )
    return type(one) is type(other) and bool(one == other)


def _text_tolerance(one: Any, other: Any) -> Near:
    """Tolerance of percentages in sentences: the difference of the gaps plus one rounding step."""
    difference = abs(one - other) if isinstance(one, float) and isinstance(other, float) else 0.0
    return difference + 1e-3, 100.0 * difference + 0.1 + 1e-9


def _same_words(one: Any, other: Any, near: Near) -> bool:
    """Compare sentences with a tolerance for the numbers in them."""
    if (
        not isinstance(one, str)
        or not isinstance(other, str)
        or DECIMAL.sub("#", one) != DECIMAL.sub("#", other)
    ):
        return False
    pairs = zip(*(map(float, DECIMAL.findall(text)) for text in (one, other)), strict=True)
    return all(_same_fields(ours, theirs, near) for ours, theirs in pairs)
