"""Release package: one zip that readers can use, verify and reproduce without the records.

Files
-----
answers.parquet, answers.csv   all answers with standard errors and intervals (CSV only up to a
                               million answers)
plan.json                      the plan: schema, workload, budget, mechanism and strategy
measurements.json, .npz        the released integers with the equations that they measure, as JSON
                               and as NumPy arrays; after a two-stage release, estimates
certificate.json               charged budget, key, privacy guarantee of the release and, with a
                               ledger, of all releases of the dataset up to this one, and the SHA-256
                               of every other file except signature.json
signature.json                 the ledger's signature of certificate.json; only if there is a
                               ledger, and not in rehearsals
report.html                    a readable report without external resources
README.md                      description of the files and of the columns of answers
check.py                       verifies the package; without this project, only its digests
published/                     optional: a tables package (see `write_tables`) of this release, with
                               the same plan and released integers

`engine.publish.package_files` describes the equations of measurements.json.
"""

from __future__ import annotations

import hashlib
import html
import json
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine._format import deltas_as_powers, format_number, markdown, pluralize, set_name
from engine.analysis import group_table
from engine.analysis.certificates import claim_text
from engine.ledger import Ledger, Receipt
from engine.ledger.balance import JointCharge
from engine.ledger.signing import key_fingerprint
from engine.plans import Plan
from engine.postprocess import QualityRule
from engine.privacy import ADD_REMOVE, REPLACE_ONE
from engine.progress import Progress, progress_reporter
from engine.publish.output_path import new_file
from engine.publish.package_files import MAX_RELEASE_FILES, PUBLISHED, README, write_measurements
from engine.publish.report import REHEARSAL_MARK, write_answers
from engine.publish.tables_package import check_size, tables_files
from engine.release import Measurement
from engine.workload.attribute import query_texts

if TYPE_CHECKING:
    import pandas as pd

    from engine.figures import Picture
    from engine.postprocess.uncertainty import Uncertainty


PACKAGE_FORMAT = "release/6"
RECEIPT_FORMAT = "receipt/1"
MAX_CSV_ANSWERS = 1_000_000  # a package with more answers has no answers.csv
REPORT_ANSWERS = 40  # answers per group in the report
REPORT_GROUPS = 12  # groups with answers in the report
REPORT_ROWS = 300  # rows of a table in the report
STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .75rem;border-bottom:1px solid #ccc;text-align:right}
th:first-child,td:first-child{text-align:left}
.mark{border:3px solid #b34700;padding:.5rem 1rem;font-weight:bold}
td{overflow-wrap:anywhere}
svg{width:100%;font-size:13px;fill:currentColor;stroke-width:2}
path{stroke:#1f77b4}
.zero{stroke:#888;stroke-width:1}
circle{fill:#1f77b4}
@media print{body{margin:0}}
"""
CERTIFICATE, SIGNATURE = "certificate.json", "signature.json"
CHECK = '''"""Verify this release; reads no records.

    python check.py                     recompute all answers from the plan and the released integers
    python check.py PUBLIC_KEY          also require the signature of the ledger with this key

Recomputing needs the Python package dp-query-workbench. Without it, only the digests of the files are
compared, and the exit code is 2. measurements.json describes the integers in measurements.npz.
"""

import hashlib
import json
import sys
from pathlib import Path


def signer_text(folder):
    file = folder / "signature.json"
    if not file.is_file():
        return "The package is not signed: nothing in it shows who published it."
    key = json.loads(file.read_text(encoding="utf-8"))["public_key"]
    digest = hashlib.sha256(bytes.fromhex(key)).hexdigest()[:32]
    fingerprint = " ".join(digest[i : i + 4] for i in range(0, 32, 4))
    return (
        f"signature.json has the public key {key}.\\nFingerprint of this key: {fingerprint}"
        "\\nCompare it with the fingerprint that the publisher gives outside this package."
    )


def check_digests(folder):
    certificate = json.loads((folder / "certificate.json").read_text(encoding="utf-8"))
    problems = []
    for name, digest in sorted(certificate["files"].items()):
        place = folder / "published" if name.startswith("published/") else folder
        file = place / Path(name).name
        if not file.is_file():
            problems.append(f"{name} is missing")
        elif hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            problems.append(f"{name} was changed")
    return problems


def main():
    # names of attributes may have characters that a terminal cannot print
    sys.stdout.reconfigure(errors="backslashreplace")
    folder = Path(__file__).parent
    try:
        from engine.publish import verify_package
    except ImportError:
        problems = check_digests(folder)
        print("\\n".join(problems) or "Every file has the digest that certificate.json states.")
        print("Signature and answers were not checked. Install the Python package dp-query-workbench to check them.")
        if not problems:
            print(signer_text(folder))
        return 1 if problems else 2
    problems = verify_package(folder, public_key=sys.argv[1] if len(sys.argv) > 1 else None)
    success = "Every file, field, answer, standard error and interval is what the plan and the measurements give."
    print("\\n".join(problems) or f"{success}\\n{signer_text(folder)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
'''

_README_FILES = {
    "answers.parquet": "all answers with standard errors and intervals",
    "answers.csv": "the same as text",
    "report.html": "a report to read in a browser",
    "certificate.json": "privacy guarantee, charged budget, and the SHA-256 of every file",
    "signature.json": "the ledger's signature of the certificate, if there is a ledger",
    "plan.json": "schema, queries, budget, mechanism and strategy",
    "measurements.json": "the equations of the released integers in measurements.npz",
    "check.py": "verifies the package: `python check.py`",
}
_README_COLUMNS = {
    "attributes, family, query": "what is counted",
    "answer": "unbiased noisy count; it may be negative and has decimals",
    "std": "standard error of the answer, in counts",
    "low, high": "limits of the confidence interval, in counts",
}


def readme(
    measurement: Measurement,
    confidence: float,
    *,
    fit: str | None = None,
    public_key: str | None = None,
    receipt: Receipt | None = None,
    joint: JointCharge | None = None,
) -> str:
    """Return the text of README.md in a release package.

    Parameters
    ----------
    fit : method of fitting the published tables in the package; None without such tables.
    public_key : hexadecimal public key of the ledger that signs the package; None if it is not
        signed.
    receipt : receipt of the spend, for a signed package.
    joint : charge of all releases of the dataset up to this one; None if it is not known.
    """
    plan = measurement.plan
    title = (
        REHEARSAL_MARK if measurement.rehearsal else f"Release of {markdown(measurement.dataset)}"
    )
    files = dict(_README_FILES)
    if plan.workload.queries > MAX_CSV_ANSWERS:
        del files["answers.csv"]
    if fit is not None:
        tables = "tables" if fit == "none" else "tables without negative counts"
        files[PUBLISHED] = f"{tables} that agree with each other; see published/README.md"
    lines = [f"# {title}", "", markdown(plan.schema.promise(plan.budget)), ""]
    if joint is not None:
        lines += [markdown(joint.text), ""]
    lines += [markdown(plan.meaning), "", "## Files", ""]
    lines += [f"- `{name}`: {text}" for name, text in files.items()]
    lines += ["", "## Columns of the answers", ""]
    lines += [f"- {name}: {text}" for name, text in _README_COLUMNS.items()]
    lines += ["", f"Intervals have confidence level {confidence:g}."]
    if public_key is not None:
        lines += ["", "## Who signed", "", *_signer_lines(public_key, receipt)]
    return "\n".join(lines) + "\n"


def _signer_lines(public_key: str, receipt: Receipt | None) -> list[str]:
    """Return the lines of README.md on the signature and on how to compare the fingerprint."""
    lines = [
        "The publisher's ledger signed `certificate.json`, which has the digests of all files.",
        "",
        f"- Fingerprint of the public key: `{key_fingerprint(public_key)}`",
        f"- Public key (Ed25519): `{public_key}`",
    ]
    if receipt is not None:
        lines.append(f"- Receipt: row {receipt.seq} of the ledger, with the hash `{receipt.hash}`")
    return [
        *lines,
        "",
        "Anyone can sign a package with a key of their own. Ask the publisher for the fingerprint in"
        " another way, such as by telephone or from the publisher's website, and compare all its"
        " characters. If they agree, check the signature with"
        f" `python check.py {public_key}`. The fingerprint is the first half of the SHA-256 of the"
        " public key.",
    ]


def receipt_json(receipt: Receipt, public_key: str) -> str:
    """Return the receipt of a spend as JSON, with the public key of its ledger.

    The text contains nothing private: the digest of the records and the note are left out.
    """
    names = ("dataset", "key", "plan_hash", "pcost", "seq", "hash", "utc")
    fields = {"format": RECEIPT_FORMAT} | {name: getattr(receipt, name) for name in names}
    fields |= {"public_key": public_key, "fingerprint": key_fingerprint(public_key)}
    return json.dumps(fields, indent=2, ensure_ascii=False) + "\n"


def write_package(
    measurement: Measurement,
    path: str | os.PathLike[str],
    *,
    receipt: Receipt | None = None,
    ledger: Ledger | None = None,
    confidence: float = 0.95,
    overwrite: bool = False,
    progress: Progress | None = None,
    published: Uncertainty | None = None,
    rule: QualityRule | None = None,
) -> Path:
    """Write a release package: one zip with everything that readers need to use and verify answers.

    Parameters
    ----------
    receipt : receipt of the ledger for the spend.  Its hash is written into the certificate, so
        that readers can find out whether the ledger was later reset to an older state.
    ledger : ledger whose key signs the certificate.  The package is not signed without a ledger, or
        if the measurement is a rehearsal.
    confidence : confidence level of the intervals.
    overwrite : whether to replace an earlier output of this project; other files are never
        replaced.
    progress : called with (fraction, text); if it returns False, writing is cancelled and partial
        files are removed.
    published : errors of the published tables of the measurement, which are then in the folder
        `PUBLISHED` of the package; by default the package has no published tables.
    rule : rule that flags unreliable published numbers; by default `QualityRule()`.

    Guarantee: the package depends on the records only through the released answers.  The file is
    written atomically.

    Raises
    ------
    LimitExceeded : the published tables have too many rows or files, see `check_size`.
    PlanError : the confidence level is not between 0 and 1, or the path must not be written, see
        `check_target`.
    Cancelled : ``progress`` returned False.
    """
    plan = measurement.plan
    report_progress = progress_reporter(
        progress, "Writing the package was cancelled; no file was left behind."
    )
    with (
        new_file(path, overwrite=overwrite) as partial,
        tempfile.TemporaryDirectory(dir=partial.parent) as temporary,
    ):
        folder = Path(temporary)
        files = [folder / "plan.json", folder / "check.py", folder / "answers.parquet"]
        files[0].write_text(plan.to_json(), encoding="utf-8")
        files[1].write_text(CHECK, encoding="utf-8")
        files.append(folder / README)
        signing_ledger = None if measurement.rehearsal else ledger
        public_key = None if signing_ledger is None else signing_ledger.public_key()
        joint = None
        if signing_ledger is not None and receipt is not None:
            joint = signing_ledger.joint_charge(receipt.key)
        readme_text = readme(
            measurement,
            confidence,
            fit=None if published is None else published.published.fit,
            public_key=public_key,
            receipt=receipt,
            joint=joint,
        )
        files[-1].write_bytes(readme_text.encode())
        measurement_files = write_measurements(measurement, folder)
        files += measurement_files
        write_answers(
            measurement,
            files[2],
            confidence=confidence,
            progress=lambda f, t: report_progress(0.5 * f, t),
        )
        if plan.workload.queries <= MAX_CSV_ANSWERS:
            files.append(folder / "answers.csv")
            write_answers(
                measurement,
                files[-1],
                format="csv",
                confidence=confidence,
                progress=lambda f, t: report_progress(0.5, t),
            )
        report_progress(0.6, "Writing the report")
        files.append(folder / "report.html")
        files[-1].write_text(
            report_html(
                measurement,
                receipt=receipt,
                confidence=confidence,
                public_key=public_key,
                joint=joint,
            ),
            encoding="utf-8",
        )
        if published is not None:
            report_progress(0.7, "Writing the published tables")
            files += _write_published_tables(
                published, folder, [files[0], *measurement_files], rule, confidence
            )
        fields = certificate(measurement, receipt, confidence, joint)
        fields["files"] = {f.relative_to(folder).as_posix(): _digest(f) for f in files}
        text = json.dumps(fields, indent=2, sort_keys=True, ensure_ascii=False).encode()
        files.append(folder / CERTIFICATE)
        files[-1].write_bytes(text)
        if signing_ledger is not None:
            public, signature = signing_ledger.sign(text)
            files.append(folder / SIGNATURE)
            signed = {
                "algorithm": "Ed25519",
                "of": CERTIFICATE,
                "public_key": public,
                "signature": signature,
            }
            files[-1].write_text(json.dumps(signed, indent=2), encoding="utf-8")
        report_progress(0.8, "Compressing files")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for file in files:
                archive.write(file, file.relative_to(folder).as_posix())
    report_progress(1.0, "The file is complete")
    return Path(path)


def _write_published_tables(
    errors: Uncertainty,
    folder: Path,
    shared_files: Iterable[Path],
    rule: QualityRule | None,
    confidence: float,
) -> list[Path]:
    """Write the files of a tables package into the folder `PUBLISHED`; return their paths.

    ``shared_files`` are the plan and the measurements of the release package, of which the tables
    package has copies.
    """
    check_size(errors.published.measurement.plan.workload, other_files=MAX_RELEASE_FILES)
    place = folder / PUBLISHED
    place.mkdir()
    files = tables_files(errors, place, rule=rule or QualityRule(), confidence=confidence)
    for file in shared_files:
        shutil.copyfile(file, place / file.name)
    return files


def certificate(
    measurement: Measurement,
    receipt: Receipt | None,
    confidence: float,
    joint: JointCharge | None = None,
) -> dict[str, Any]:
    """Return the content of certificate.json: privacy guarantee, privacy cost and accuracy.

    With a receipt, the content includes number, hash, privacy cost and time of the ledger row. With
    ``joint``, it includes the charge and the guarantee of all releases of the dataset up to this
    one.
    """
    plan, budget = measurement.plan, measurement.plan.budget
    optimality = plan.certificate
    fields: dict[str, Any] = {
        "format": PACKAGE_FORMAT,
        "status": REHEARSAL_MARK if measurement.rehearsal else "release",
        "dataset": measurement.dataset,
        "key": measurement.key,
        "utc": measurement.utc,
        "plan_hash": plan.hash,
        "mechanism": plan.mechanism,
        "noise": f"exact discrete {budget.law.capitalize()}",
        "neighbours": budget.neighbours,
        "rows_per_person": budget.rows_per_person,
        "pcost": plan.pcost,
        "rho": plan.pcost / 2,
        "epsilon_by_delta_proved": plan.epsilon_by_delta,
        "meaning": plan.meaning,
        "max_records": plan.max_records,
        "queries": plan.workload.queries,
        "rmse_counts": plan.rmse,
        "confidence": confidence,
        "global_bound_counts": optimality.global_bound,
        "global_gap": optimality.global_gap if math.isfinite(optimality.global_gap) else None,
        "claim": claim_text(plan),
        "lower_bound_counts": optimality.lower_bound,
        "gap": optimality.gap,
        "bound": optimality.statement,
    }
    fields["promise"] = plan.schema.promise(budget)
    if joint is not None:
        fields |= {"joint_charge": joint.to_dict(), "joint_promise": joint.text}
    if (keep := plan.options.get("keep")) is not None:
        fields["kept"] = _keep_text(plan, keep)
    if plan.schema.invariants:
        fields["exact"] = [list(invariant.attributes) for invariant in plan.schema.invariants]
    if budget.pure_epsilon is not None:
        fields["pure_epsilon"] = budget.pure_epsilon
    if receipt is not None:
        fields["ledger"] = {
            "seq": receipt.seq,
            "hash": receipt.hash,
            "pcost": receipt.pcost,
            "utc": receipt.utc,
        }
    return fields


def _keep_text(plan: Plan, keep: float | Mapping[int, float]) -> str:
    """Describe the accuracy constraints of groups that the plan option ``keep`` sets.

    A value of ``keep`` is the largest allowed relative excess of a group's error over its error
    with uniform centers.  ``keep`` is one value for all groups, or a mapping from group numbers to
    values.
    """
    shares = keep.items() if isinstance(keep, Mapping) else [(None, keep)]
    limits = []
    for number, share in shares:
        group = None if number is None else plan.workload.groups[number]
        name = (
            "every group"
            if group is None
            else f"{set_name(group.attributes)} ({group.family_text})"
        )
        limit = f"at most {100.0 * share:g}%" if share else "not"
        limits.append(f"{name}: {limit} above its error with uniform centers")
    return "; ".join(limits) or "no group"


def report_html(
    measurement: Measurement,
    *,
    receipt: Receipt | None = None,
    confidence: float = 0.95,
    public_key: str | None = None,
    joint: JointCharge | None = None,
) -> str:
    """Return a readable report as one HTML page without external resources.

    Parameters
    ----------
    public_key : hexadecimal key that signs the package; None if it is not signed.
    joint : charge of all releases of the dataset up to this one; None if it is not known.
    """
    from engine.figures import answers_picture, budget_picture, spread_picture

    plan = measurement.plan
    fields = certificate(measurement, receipt, confidence)
    title = "Rehearsal report" if measurement.rehearsal else f"Release of {measurement.dataset}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if measurement.rehearsal:
        parts.append(f"<p class=mark>{REHEARSAL_MARK}</p>")
    parts.append(
        f"<p>{pluralize(plan.workload.queries, 'count')} about"
        f" {pluralize(len(plan.schema), 'attribute')}, each with its standard error and"
        f" {confidence:.0%} interval. Typical error {format_number(plan.rmse)} counts.</p>"
    )
    promise = (
        "<p><b>To the people in these records:</b>"
        f" {html.escape(plan.schema.promise(plan.budget))}</p>"
    )
    if joint is not None:
        promise += f"<p>{html.escape(joint.text)}</p>"
    parts += [
        "<h2>Privacy</h2>",
        promise,
        f"<p>{html.escape(deltas_as_powers(plan.meaning))}</p>",
        _facts(fields),
    ]
    if public_key is not None:
        parts += ["<h2>Who signed</h2>", _signer_table(public_key, receipt)]
    claim = claim_text(plan)
    if fields["bound"] not in claim:
        claim = f"{claim} {fields['bound']}"
    parts += [
        "<h2>How exact</h2>",
        f"<p>{html.escape(claim)}</p>",
    ]
    parts += [_picture(p) for p in (spread_picture(plan, plan.rmse), budget_picture(plan))]
    parts += ["<h2>Errors of every group</h2>", _table(group_table(plan).head(REPORT_ROWS))]
    parts.append(
        f"<h2>Answers</h2><p>The first {REPORT_ANSWERS} of a group are shown; answers.parquet has"
        " all of them.</p>"
    )
    for number, group in enumerate(plan.workload.groups[:REPORT_GROUPS]):
        answers = measurement.answers(number, 0, REPORT_ANSWERS, confidence)
        answers["query"] = query_texts(plan.schema.attributes, answers["query"])
        picture = answers_picture(answers, rehearsal=measurement.rehearsal)
        picture = replace(picture, title=f"Answers on {set_name(group.attributes)}")
        parts.append(_picture(picture, _interval_chart(answers)))
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return (
        "<!doctype html><html"
        f' lang="en"><head>{head}</head><body><main>{"".join(parts)}</main></body></html>'
    )


def _picture(picture: Picture, chart: str = "") -> str:
    """Return a picture as HTML: its title, its text, its table, and ``chart`` if there is one."""
    title, alt, note = (html.escape(text) for text in (picture.title, picture.alt, picture.note))
    table = _table(picture.table.head(REPORT_ROWS))
    if not chart:
        return f"<h3>{title}</h3><p>{alt} {note}</p>{table}"
    return (
        f'<h3>{title}</h3><figure role="group" aria-label="{alt}">{chart}<figcaption>{alt}'
        f" {note}</figcaption></figure><details><summary>The same as a"
        f" table</summary>{table}</details>"
    )


def _interval_chart(answers: pd.DataFrame) -> str:
    """Return an SVG drawing of answers with intervals, one row per answer.

    The result is empty if an interval is infinite.
    """
    low = min(0.0, answers["low"].min())
    high = max(1.0, answers["high"].max())
    if not math.isfinite(high - low):
        return ""
    left, width, row_height = 300, 500, 18

    def at(value: float) -> str:
        return f"{left + width * (value - low) / (high - low):.1f}"

    height = row_height * len(answers) + row_height
    rows = [f'<path class=zero d="M{at(0.0)} 0V{height - row_height}"/>']
    columns = (answers[name].tolist() for name in ("query", "answer", "low", "high"))
    for i, (query, answer, start, end) in enumerate(zip(*columns, strict=True)):
        y = row_height * i + row_height // 2
        label = str(query)
        label = label if len(label) <= 40 else f"{label[:39]}…"
        rows.append(
            f'<text x="{left - 10}" y="{y + 5}" text-anchor="end">{html.escape(label)}</text>'
            f'<path d="M{at(start)} {y}H{at(end)}"/>'
            f'<circle cx="{at(answer)}" cy="{y}" r="3"/>'
        )
    for value, anchor in ((low, "start"), (high, "end")):
        text = f"{format_number(value)} counts"
        rows.append(f'<text x="{at(value)}" y="{height - 4}" text-anchor="{anchor}">{text}</text>')
    return f'<svg viewBox="0 0 {left + width + 10} {height}">{"".join(rows)}</svg>'


_NEIGHBOURS = {
    ADD_REMOVE: "one person added or removed",
    REPLACE_ONE: "one person replaced by another",
}
# fields of the certificate that the report shows in a table: key -> (label, function that formats
# the value)
_FACTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "status": ("Status", str),
    "dataset": ("Dataset", str),
    "key": ("Key of the release", str),
    "utc": ("Time of the release (UTC)", str),
    "mechanism": ("Mechanism", str),
    "noise": ("Noise", str),
    "neighbours": ("Neighbouring datasets", lambda name: _NEIGHBOURS[name]),
    "rows_per_person": ("Rows of one person, at most", lambda rows: f"{rows:,}"),
    "pcost": ("Privacy cost", format_number),
    "rho": ("rho of zero-concentrated DP", format_number),
    "pure_epsilon": ("epsilon of pure DP", format_number),
    "max_records": ("Number of records, at most", lambda records: f"{records:,}"),
    "queries": ("Number of answers", lambda queries: f"{queries:,}"),
    "rmse_counts": ("Typical standard error (counts)", format_number),
    "lower_bound_counts": ("Lower bound on this error (counts)", format_number),
    "confidence": ("Confidence level of the intervals", lambda share: f"{share:g}"),
    "kept": ("Limits on the error of groups", str),
    "exact": ("Public tables that are exact", lambda sets: "; ".join(map(set_name, sets))),
    "plan_hash": ("SHA-256 of the plan", str),
}


def _signer_table(public_key: str, receipt: Receipt | None) -> str:
    """Return HTML with the public key of the signature, its fingerprint and the receipt."""
    import pandas as pd

    rows = [
        ("Fingerprint of the public key", key_fingerprint(public_key)),
        ("Public key (Ed25519)", public_key),
    ]
    if receipt is not None:
        rows += [("Row in the ledger", f"{receipt.seq:,}"), ("Hash of this row", receipt.hash)]
    advice = (
        "<p>Compare the fingerprint with the one that the publisher gives in another way than this"
        " package. README.md says how to check the signature.</p>"
    )
    return _table(pd.DataFrame(rows, columns=["Property", "Value"])) + advice


def _facts(fields: dict[str, Any]) -> str:
    import pandas as pd

    rows = [
        (label, text(fields[key]))
        for key, (label, text) in _FACTS.items()
        if fields.get(key) not in ("", None)
    ]
    return _table(pd.DataFrame(rows, columns=["Property", "Value"]))


def _table(frame: pd.DataFrame) -> str:
    return frame.to_html(index=False, border=0, float_format=lambda v: f"{v:,.4g}", escape=True)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
