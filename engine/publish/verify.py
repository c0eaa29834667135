"""Verification of release packages and tables packages, without the records.

In a release package, the digests and the signature are checked; the certificate and the answers are
recomputed from the plan and the measurements and compared.  The files of a tables package are
recomputed and compared.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine._untrusted import MAX_JSON_MEMORY, is_plain_name, parse_json
from engine._validation import check_int, check_positive
from engine.errors import EngineError, PlanError
from engine.ledger import Ledger, Receipt, verify_ledger
from engine.ledger.balance import JointCharge
from engine.ledger.signing import good_signature
from engine.mechanisms import load_plan
from engine.plans.blocks import ROUNDING_FACTOR
from engine.postprocess import QualityRule, publish, uncertainty
from engine.publish.package_files import (
    MAX_CERTIFICATE,
    MAX_PLAN,
    MAX_SMALL,
    NAMES,
    PUBLISHED,
    README,
    PackageFiles,
    max_bytes_of,
    open_answers,
    package_files,
    read_measurements,
)
from engine.publish.release_package import (
    CERTIFICATE,
    PACKAGE_FORMAT,
    SIGNATURE,
    certificate,
    readme,
)
from engine.publish.report import REHEARSAL_MARK, answer_batches
from engine.publish.tables_package import (
    HOW,
    MAX_TABLE_ROWS,
    PLAN,
    TABLES_FORMAT,
    tables_files,
)
from engine.release import Measurement

TABLE_TOLERANCE = 1e-6  # allowed relative difference of decimal numbers between machines
MAX_RULE_NUMBER = 1e100  # largest threshold of a quality rule: products with counts remain finite
MAX_DRAWS = 10_000  # bounds the time of verification, because each draw fits all tables


def table_problems(
    files: PackageFiles, public_key: str | None = None, ledger: str | Path | None = None
) -> list[str]:
    """Return messages of the problems of a tables package; the list is empty if it is valid.

    The files of `write_tables` are recomputed from the plan and the measurements and compared.
    Tables packages are not signed, so giving ``public_key`` is a problem.  If ``ledger`` is given,
    it must contain the spend of the plan.

    Raises: EngineError or ValueError if a file cannot be read or the plan has too many queries.
    """
    how = _options(files.read(HOW, MAX_SMALL))
    if missing := sorted({PLAN, *NAMES} - set(files.names)):
        return [f"{name} is missing" for name in missing]
    plan = load_plan(files.read(PLAN, MAX_PLAN), untrusted=True)
    if plan.workload.queries > MAX_TABLE_ROWS:
        raise PlanError(
            f"The plan has {plan.workload.queries:,} queries, but a tables package has at most"
            f" {MAX_TABLE_ROWS:,}. Give the package as it was published."
        )
    release_fields = {name: how[name] for name in ("dataset", "key", "utc")}
    limits = max_bytes_of(plan)
    for name in (PLAN, *NAMES):
        files.digest(name, limits[name])
    measurement = read_measurements(
        plan,
        files.path(NAMES[0]),
        files.path(NAMES[1]),
        rehearsal=how["rehearsal"],
        **release_fields,
    )
    tables = publish(measurement, how["fit"], integer=how["integer"])
    errors = uncertainty(tables, draws=how["draws"])
    rule = QualityRule(**how["rule"])
    problems = ["tables packages are not signed; verify the release package"] if public_key else []
    with tempfile.TemporaryDirectory() as folder:
        expected = {
            file.name: file
            for file in tables_files(errors, Path(folder), rule=rule, confidence=how["confidence"])
        }
        present = set(files.names)
        problems += [f"{name} is missing" for name in sorted(expected.keys() - present)]
        problems += [
            f"{name} is not a file of a tables package"
            for name in sorted(present - expected.keys())
        ]
        # The bytes of measurements.npz can differ for equal arrays.  `read_measurements` has
        # checked the arrays.
        for name in sorted((expected.keys() & present) - {NAMES[1]}):
            files.digest(name, 2 * expected[name].stat().st_size + MAX_SMALL)
            try:
                same = _same(expected[name], files.path(name))
            except (ValueError, csv.Error):
                # the file has a wrong encoding, or is not CSV or JSON
                same = False
            if not same:
                problems.append(f"{name} differs from what the plan and the measurements imply")
    return problems + ([] if ledger is None else _spend_problems(measurement, ledger))


def _options(text: bytes) -> dict[str, Any]:
    """Return the content of how.json; raise PlanError unless format and options are valid."""
    how = parse_json(text)
    if not isinstance(how, dict) or how.get("format") != TABLES_FORMAT:
        format_name = how.get("format") if isinstance(how, dict) else None
        raise PlanError(
            f"The tables have the format {str(format_name)[:40]!r}, but this version reads only"
            f" {TABLES_FORMAT}. Verify with the version that wrote the package."
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
            raise PlanError(
                f"The option {name} in {HOW} is missing, or is not of the type {kind.__name__}. "
                "Give the package as it was published."
            )
    rule = how["rule"]
    names = {field.name for field in fields(QualityRule)}
    if rule.keys() != names or not all(
        type(v) in (int, float) and abs(v) < MAX_RULE_NUMBER for v in rule.values()
    ):
        raise PlanError(
            f"The option rule in {HOW} must have these entries and no others, all of them numbers"
            f" below {MAX_RULE_NUMBER:g}: {', '.join(sorted(names))}. Give the package as it was"
            " published."
        )
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
        return ["the ledger contains no spend of this plan with the key of the release"]
    return []


def _same(one: Path, other: Path) -> bool:
    """Return whether a recomputed file (``one``) and a file of a package (``other``) are equal.

    Decimal numbers in CSV and JSON files may differ by `TABLE_TOLERANCE`.
    """
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
    """Return whether two JSON values are equal, with a tolerance for decimal numbers."""
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
    """Return whether two texts are numbers that are equal up to a tolerance.

    The tolerance is relative or absolute, whichever allows more.  The absolute tolerance includes
    one unit of the last decimal of a file, because a rounded number can differ by this unit between
    machines.  The result is False for two integers, which are the same on every machine and need no
    tolerance.
    """
    if one.lstrip("-").isdigit() and other.lstrip("-").isdigit():
        return False
    try:
        return math.isclose(
            float(one), float(other), rel_tol=TABLE_TOLERANCE, abs_tol=1.5 * TABLE_TOLERANCE
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
Tolerance = tuple[float, float]  # relative and absolute tolerance
SUM_TOLERANCE: Tolerance = (1e-9, 1e-12)  # sums depend on the order of additions
# eigenvalues, and all numbers computed from strategies, differ slightly between machines; bounds
# that a search with a time limit computes differ more
SOLVER_TOLERANCE, SEARCH_TOLERANCE = (1e-5, 1e-5), (0.01, 0.01)
FIELD_TOLERANCES: dict[str, Tolerance] = {
    **dict.fromkeys(("rmse_counts", "lower_bound_counts", "gap"), SOLVER_TOLERANCE),
    **dict.fromkeys(("global_bound_counts", "global_gap"), SEARCH_TOLERANCE),
}
# Certificates and READMEs of this earlier format state the guarantee of one release by the first
# phrase of each pair.  In later formats they state it by the second phrase.
FORMER_FORMAT = "release/5"
FORMER_PHRASES = (
    ("someone who sees everything published and knows", "someone who sees this release and knows"),
    ("somebody who sees the published numbers guesses", "somebody who sees this release guesses"),
)
# Certificate fields that are sentences.  They state the gap as a percentage with two decimals, in
# packages of earlier versions with one decimal.
TEXT_FIELDS = ("claim", "bound")


def verify_package(
    path: str | Path, *, public_key: str | None = None, ledger: str | Path | None = None
) -> tuple[str, ...]:
    """Verify a package; return messages of its problems, and none if the package is valid.

    For a release package, the certificate, the answers, the standard errors and the intervals are
    recomputed from the plan and the measurements and compared.  For a tables package (of
    `write_tables`), all files are recomputed and compared.  Files have size limits, see
    `package_files`.  A missing or damaged package does not raise an exception, but is reported as a
    problem.  After some problems, the remaining checks are omitted.

    Parameters
    ----------
    path : the zip file, or the folder of its files.
    public_key : hexadecimal public key of the ledger that must have signed the package.  By default
        the signature may be missing; if there is one, it must fit the public key in the package.
    ledger : path of the ledger that must contain the spend of the release; by default no ledger is
        read.
    """
    package = Path(path)
    if not package.exists():
        return (f"There is no file or folder {package}. Give the path of the published package.",)
    if package.suffix.lower() == ".xlsx":
        return (
            (
                f"{package.name} is a workbook, which cannot be verified. Give the zip of the same"
                " tables."
            ),
        )
    try:
        with (
            tempfile.TemporaryDirectory() as scratch,
            package_files(package, Path(scratch)) as files,
        ):
            if HOW in files.names:
                return tuple(table_problems(files, public_key, ledger))
            return tuple(_problems(files, public_key, ledger))
    except EngineError as error:
        return (str(error),)
    except Exception as error:
        # parsing an untrusted file may raise any exception
        if isinstance(error, json.JSONDecodeError):
            reason = "a file is not valid JSON"
        elif type(error) is ValueError:
            reason = str(error)
        else:
            reason = "it is damaged"
        return (f"{package.name} is not a complete package: {reason}.",)


def _problems(files: PackageFiles, public_key: str | None, ledger: str | Path | None) -> list[str]:
    """Return messages of the problems of a release package; the list is empty if it is valid.

    Raises: EngineError or ValueError if a file cannot be read.
    """
    text = files.read(CERTIFICATE, MAX_CERTIFICATE)
    certificate_fields = _certificate(text)
    digests = certificate_fields.pop("files")
    is_former = certificate_fields.get("format") == FORMER_FORMAT
    if is_former:
        promise = str(certificate_fields.get("promise"))
        certificate_fields |= {
            "format": PACKAGE_FORMAT,
            "promise": _present_phrases(promise.encode()).decode(),
        }
    problems = _listing_problems(files.names, digests)
    problems += _signature_problems(files, text, public_key)
    # check the plan first, because it determines the largest sizes of the other files
    if not problems and files.digest(PLAN, MAX_PLAN) != digests[PLAN]:
        problems.append(f"{PLAN} was changed")
    if problems:
        return problems
    plan = load_plan(files.path(PLAN).read_bytes(), untrusted=True)
    limits = max_bytes_of(plan)
    problems += [
        f"{name} was changed"
        for name in sorted(digests)
        if not name.startswith(PUBLISHED) and files.digest(name, limits[name]) != digests[name]
    ]
    if problems:
        return problems
    release_fields = {name: str(certificate_fields.get(name)) for name in ("dataset", "key", "utc")}
    measurement = read_measurements(
        plan,
        files.path(NAMES[0]),
        files.path(NAMES[1]),
        rehearsal=certificate_fields.get("status") == REHEARSAL_MARK,
        **release_fields,
    )
    receipt = _receipt(certificate_fields, measurement)
    joint = _joint_charge(certificate_fields)
    problems += _field_problems(certificate_fields, measurement, receipt, joint)
    confidence = certificate_fields["confidence"]
    problems += _answer_problems(measurement, confidence, files, limits, "answers.csv" in digests)
    has_tables = any(name.startswith(PUBLISHED) for name in digests)
    if README in digests:
        fit = _options(files.inner(PUBLISHED).read(HOW, MAX_SMALL))["fit"] if has_tables else None
        # Packages of earlier versions do not name the signer in their README.
        texts = {
            readme(
                measurement, confidence, fit=fit, public_key=key, receipt=receipt, joint=joint
            ).encode()
            for key in {None, _signing_key(files, text)}
        }
        content = files.path(README).read_bytes()
        if (_present_phrases(content) if is_former else content) not in texts:
            problems.append(f"{README} differs from what the plan and the measurements imply")
    if not problems and has_tables:
        problems += _published_problems(files, digests, measurement)
    if ledger is not None:
        if receipt is None:
            problems.append("the certificate contains no spend that the ledger could confirm")
        else:
            ledger_problems = verify_ledger(ledger, receipts=[receipt], results=False)
            problems += ledger_problems
            is_charged = joint is not None and not ledger_problems
            if is_charged and Ledger(ledger).joint_charge(receipt.key) != joint:
                problems.append("joint_charge in the certificate differs from that of the ledger")
    return problems


def _present_phrases(text: bytes) -> bytes:
    """Return a text of the format `FORMER_FORMAT` with the phrases of the present format."""
    for former, present in FORMER_PHRASES:
        text = text.replace(former.encode(), present.encode())
    return text


def _listing_problems(names: Iterable[str], digests: Mapping[str, str]) -> list[str]:
    """Return messages on differences between the files of a package and its certificate.

    ``names`` are the files of the package, ``digests`` those in the certificate.
    """
    problems = [
        f"{name} is missing from the certificate" for name in sorted(REQUIRED_FILES - set(digests))
    ]
    problems += [f"{name} is missing" for name in sorted(digests.keys() - set(names))]
    problems += [
        f"{name} is not a file of a release package"
        for name in sorted(digests.keys() - REQUIRED_FILES - {"answers.csv", README})
        if not name.startswith(PUBLISHED)
    ]
    listed = {*digests, CERTIFICATE, SIGNATURE}
    return problems + [f"{name} is not in the certificate" for name in names if name not in listed]


def _receipt(certificate_fields: Mapping[str, Any], measurement: Measurement) -> Receipt | None:
    """Return the receipt of the spend in a certificate; None if there is no spend in it."""
    spent = certificate_fields.get("ledger")
    if spent is None:
        return None
    return Receipt(
        plan_hash=measurement.plan.hash,
        note="",
        fresh=False,
        dataset=measurement.dataset,
        key=measurement.key,
        **spent,
    )


def _joint_charge(certificate_fields: Mapping[str, Any]) -> JointCharge | None:
    """Return the joint charge of the releases in a certificate; None if there is none in it."""
    fields = certificate_fields.get("joint_charge")
    return None if fields is None else JointCharge.from_dict(fields)


def _field_problems(
    certificate_fields: Mapping[str, Any],
    measurement: Measurement,
    receipt: Receipt | None,
    joint: JointCharge | None,
) -> list[str]:
    """Return messages on fields of a certificate that contradict the measurement or each other."""
    problems = []
    # like the fields in the file, the expected fields are converted to JSON and back
    expected = json.loads(
        json.dumps(certificate(measurement, receipt, certificate_fields["confidence"], joint))
    )
    text_tolerance = _text_tolerance(
        expected.get("global_gap"), certificate_fields.get("global_gap")
    )
    for name in sorted(expected.keys() | certificate_fields.keys()):
        recomputed, stated = expected.get(name), certificate_fields.get(name)
        if name in TEXT_FIELDS:
            same = _same_words(recomputed, stated, text_tolerance)
        else:
            same = _same_fields(recomputed, stated, FIELD_TOLERANCES.get(name, SUM_TOLERANCE))
        if not same:
            problems.append(
                f"{name} in the certificate differs from what the plan and the measurements imply"
            )
    if (
        receipt is not None
        and measurement.answers_on_grid
        and receipt.pcost < measurement.plan.pcost / ROUNDING_FACTOR
    ):
        problems.append("the spend in the certificate is less than the privacy cost of the plan")
    if receipt is not None and receipt.utc != measurement.utc:
        problems.append("the certificate states two different times of the spend")
    return problems


def _published_problems(
    files: PackageFiles, digests: Mapping[str, str], measurement: Measurement
) -> list[str]:
    """Return messages of the problems of the published tables in a valid release package."""
    shared = [name for name in (PLAN, *NAMES) if digests.get(f"{PUBLISHED}{name}") != digests[name]]
    if shared:
        return [f"{PUBLISHED}{name} differs from {name}" for name in shared]
    tables = files.inner(PUBLISHED)
    how = _options(tables.read(HOW, MAX_SMALL))
    names = ("dataset", "key", "utc", "rehearsal")
    problems = [
        f"{name} in {PUBLISHED}{HOW} differs from the certificate"
        for name in names
        if how[name] != getattr(measurement, name)
    ]
    # If `table_problems` finds no problem, it has copied every file out of the zip, so that
    # `tables.path` can be used.
    problems += [f"{PUBLISHED}{problem}" for problem in table_problems(tables)]
    if problems:
        return problems
    return [
        f"{PUBLISHED}{name} was changed"
        for name in tables.names
        if tables.digest(name, tables.path(name).stat().st_size) != digests[f"{PUBLISHED}{name}"]
    ]


def _certificate(text: bytes) -> dict[str, Any]:
    """Parse a certificate; raise PlanError unless its files, ledger and confidence are valid."""
    # the gap of a plan without a bound is infinite, which Python writes as the constant Infinity
    certificate_fields = parse_json(text, max_memory=MAX_JSON_MEMORY, constants=True)
    if not isinstance(certificate_fields, dict) or not _is_map(
        certificate_fields.get("files"), {"": (str,)}
    ):
        raise PlanError(
            "The certificate does not list the files with their digests. Give the package as it was"
            " published."
        )
    if not all(
        is_plain_name(name.removeprefix(PUBLISHED)) and re.fullmatch("[0-9a-f]{64}", digest)
        for name, digest in certificate_fields["files"].items()
    ):
        raise PlanError(
            "The certificate lists a file with a name that is not allowed, or a digest that is not"
            " SHA-256. Give the package as it was published."
        )
    spent = certificate_fields.get("ledger")
    if spent is not None and (
        not _is_map(spent, SPEND_TYPES) or spent.keys() != SPEND_TYPES.keys()
    ):
        raise PlanError(
            "The spend in the certificate does not have exactly the fields seq, hash, pcost and utc,"
            " or one of them has a wrong type. Give the package as it was published."
        )
    check_positive(
        "confidence in the certificate",
        certificate_fields.get("confidence"),
        below=1,
        error=PlanError,
    )
    return certificate_fields


def _is_map(value: Any, kinds: Mapping[str, tuple[type, ...]]) -> bool:
    """Return whether a value is a JSON object whose fields have the types in ``kinds``.

    ``kinds`` maps field names to allowed types.  The key "" has the allowed types of all other
    fields; without this key, other fields are not allowed.  Fields may be missing.
    """
    return isinstance(value, dict) and all(
        type(v) in kinds.get(name, kinds.get("", ())) for name, v in value.items()
    )


def _signature_problems(files: PackageFiles, text: bytes, public_key: str | None) -> list[str]:
    """Return a message if the signature of the certificate ``text`` is wrong; otherwise none.

    The signature may be missing if there is no ``public_key``.
    """
    if SIGNATURE not in files.names:
        return ["the package is not signed"] if public_key else []
    signature = parse_json(files.read(SIGNATURE, MAX_SMALL))
    # the key "" allows any field name
    if (
        not _is_map(signature, {"": (str,)})
        or not {"algorithm", "public_key", "signature"} <= signature.keys()
    ):
        return ["the signature does not belong to this certificate"]
    if signature["algorithm"] != "Ed25519" or not good_signature(
        signature["public_key"], signature["signature"], text
    ):
        return ["the signature does not belong to this certificate"]
    if public_key and signature["public_key"] != public_key.strip().lower():
        return ["the package is signed by another ledger"]
    return []


def _signing_key(files: PackageFiles, text: bytes) -> str | None:
    """Return the public key whose signature of the certificate ``text`` is valid.

    The result is None if the package has no signature or a wrong one.
    """
    if SIGNATURE not in files.names or _signature_problems(files, text, None):
        return None
    public_key: str = parse_json(files.read(SIGNATURE, MAX_SMALL))["public_key"]
    return public_key


def package_signer(path: str | Path) -> str | None:
    """Return the hexadecimal public key that signed a release package.

    The result is None if the package is not signed, has a wrong signature, or cannot be read.
    Anyone can sign with a key of their own: compare the key, or its `key_fingerprint`, with the one
    that the publisher gives in another way.  `verify_package` verifies the other files.
    """
    try:
        with (
            tempfile.TemporaryDirectory() as scratch,
            package_files(Path(path), Path(scratch)) as files,
        ):
            if CERTIFICATE not in files.names:
                return None
            return _signing_key(files, files.read(CERTIFICATE, MAX_CERTIFICATE))
    except Exception:
        # parsing an untrusted file may raise any exception
        return None


def _answer_problems(
    measurement: Measurement,
    confidence: float,
    files: PackageFiles,
    limits: Mapping[str, int],
    with_csv: bool,
) -> list[str]:
    """Return one message per file of answers that differs from the recomputed answers."""
    import pyarrow.csv

    rows = measurement.plan.workload.queries
    parquet = "answers.parquet"
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
        batches = (batch for _, batch in answer_batches(measurement, confidence))
        try:
            rows_in_file = _Rows(source())
            # stop at the first difference, so that the rest of the file is not read
            wrong = not all(
                _same_answers(batch, rows_in_file, measurement.rehearsal, texts=name == parquet)
                for batch in batches
            )
            wrong = wrong or rows_in_file.more()
        except (pa.ArrowException, KeyError, OSError):
            # missing columns, or not a table
            wrong = True
        if wrong:
            problems.append(
                f"the answers in {name} differ from those that the plan and the measurements imply"
            )
    return problems


class _Rows:
    """Reader that returns requested numbers of rows from a sequence of record batches."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._rest = list[pa.RecordBatch]()

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
        """Return whether rows remain that `take` has not returned.

        Rows may be read and discarded, so `take` must not be called afterwards.
        """
        return any(map(len, self._rest)) or any(map(len, self._batches))


def _same_answers(expected: pa.Table, rows: _Rows, rehearsal: bool, *, texts: bool) -> bool:
    """Return whether the next rows of a file have the expected numbers, texts and status.

    Parameters
    ----------
    expected : recomputed answers.
    rows : reader of the file; the next ``len(expected)`` rows are taken from it.
    rehearsal : whether the file must have REHEARSAL in the column status.
    texts : whether the texts of the queries are compared.
    """
    table, std = rows.take(len(expected)), expected["std"].to_numpy()
    if table is None:
        return False
    if not all(_same_numbers(table[c], expected[c], std) for c in NUMBER_COLUMNS):
        return False
    if texts and not _same_texts(table["query"], expected["query"]):
        return False
    return not rehearsal or _same_texts(
        table["status"], pa.chunked_array([["REHEARSAL"] * len(expected)])
    )


def _same_texts(texts: pa.ChunkedArray, expected: pa.ChunkedArray) -> bool:
    """Return whether two columns of texts are equal.

    Expanding a dictionary-encoded column of long texts could need much memory.  Texts that are
    longer than the longest expected one are therefore found before the column is expanded.
    """
    import pyarrow.compute as pc

    longest = pc.max(pc.binary_length(expected)).as_py() or 0
    for chunk in texts.chunks:
        words = chunk.dictionary if pa.types.is_dictionary(chunk.type) else chunk
        if (pc.max(pc.binary_length(words)).as_py() or 0) > longest:
            return False
    return bool(texts.cast(pa.string()).equals(expected.cast(pa.string())))


def _same_numbers(one: Any, other: Any, std: Any) -> bool:
    """Return whether two columns of numbers are equal up to a tolerance.

    The tolerance is the sum of two terms: 1e-9 times (1 + largest absolute number), for rounding,
    and 1e-5 times the standard error ``std`` of each number (if it is finite), for solvers that
    differ between machines.
    """
    if not pa.types.is_floating(one.type) and not pa.types.is_integer(one.type):
        return False
    a, b = one.to_numpy().astype(float), other.to_numpy()
    tolerance = 1e-9 * (1.0 + float(np.abs(b).max(initial=0.0))) + SOLVER_TOLERANCE[0] * np.where(
        np.isfinite(std), std, 0.0
    )
    return bool(((a == b) | (np.abs(a - b) <= tolerance)).all())


def _same_fields(one: Any, other: Any, tolerance: Tolerance) -> bool:
    """Return whether two values of a certificate are equal; floats may differ by ``tolerance``."""
    if isinstance(one, float) and isinstance(other, (int, float)) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=tolerance[0], abs_tol=tolerance[1])
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            _same_fields(value, other[name], tolerance) for name, value in one.items()
        )
    return type(one) is type(other) and bool(one == other)


def _text_tolerance(one: Any, other: Any) -> Tolerance:
    """Return the tolerance (relative, absolute) for percentages in sentences about a gap.

    ``one`` is the recomputed gap and ``other`` the gap in the certificate, both as fractions.  The
    percentages may differ by the difference of these gaps and by the rounding to one decimal.
    """
    difference = abs(one - other) if isinstance(one, float) and isinstance(other, float) else 0.0
    return difference + 1e-3, 100.0 * difference + 0.1 + 1e-9


def _same_words(one: Any, other: Any, tolerance: Tolerance) -> bool:
    """Return whether two sentences are equal; the numbers in them may differ by ``tolerance``."""
    if (
        not isinstance(one, str)
        or not isinstance(other, str)
        or DECIMAL.sub("#", one) != DECIMAL.sub("#", other)
    ):
        return False
    pairs = zip(*(map(float, DECIMAL.findall(text)) for text in (one, other)), strict=True)
    return all(_same_fields(ours, theirs, tolerance) for ours, theirs in pairs)
