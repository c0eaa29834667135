"""Release packages: one zip that a reader can use, check and reproduce without the records.

Files inside
------------
answers.parquet, answers.csv   every answer with standard error and interval (CSV only up to a million answers)
plan.json                      the plan: schema, workload, budget, mechanism, and what its search found
certificate.json               what was spent, under which key, what it means, and the sha256 of every other file
report.html                    a readable report that loads nothing from elsewhere
check.py                       recomputes privacy cost and errors from plan.json and compares them with the answers
"""

from __future__ import annotations

import hashlib
import html
import json
import math
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.insight import claim_text, group_table
from engine.plans import Plan
from engine.progress import Progress, told
from engine.publish.measurements import write_measurements
from engine.publish.report import MARK, write_answers
from engine.publish.target import new_file
from engine.release import Ledger, Measurement, Receipt
from engine.texts import amount, cost, how_many, set_name

if TYPE_CHECKING:
    import pandas as pd

    from engine.figures import Picture

FORMAT = "release/5"
# earlier certificates: without a promise, without the groups that were kept, and with two epsilons
BEFORE = ("release/2", "release/3", "release/4")
MOST_IN_CSV = 1_000_000
SHOWN = 40  # answers of a group in the report
GROUPS = 12  # groups of which answers are shown
DELTAS = (1e-5, 1e-6, 1e-9)
STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .75rem;border-bottom:1px solid #ccc;text-align:right}
th:first-child,td:first-child{text-align:left}
.mark{border:3px solid #b34700;padding:.5rem 1rem;font-weight:bold}
code{overflow-wrap:anywhere}
@media print{body{margin:0}}
"""
CERTIFICATE, SIGNATURE = "certificate.json", "signature.json"
CHECK = '''"""Recompute everything that this release says from its integers and its plan, and compare; reads no record.

    python check.py                     with the project that made the release installed
    python check.py PUBLIC_KEY          the key of the ledger that must have signed it

Without the project: measurements.json says what the integers in measurements.npz are.
"""

import sys
from pathlib import Path

from engine.publish import verify_package

sys.stdout.reconfigure(errors="backslashreplace")  # names of attributes may have signs that a terminal does not have
problems = verify_package(Path(__file__).parent, public_key=sys.argv[1] if len(sys.argv) > 1 else None)
print("\\n".join(problems) or "Every file, field, answer, standard error and interval is what plan and integers give.")
sys.exit(1 if problems else 0)
'''


def write_package(
    measurement: Measurement,
    path: str | os.PathLike[str],
    *,
    receipt: Receipt | None = None,
    ledger: Ledger | None = None,
    confidence: float = 0.95,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Write a release with everything that a reader needs to use and check it, as one zip file.

    Parameters
    ----------
    receipt : the ledger's receipt of the spend; its hash lets a later reader see whether a ledger was set back.
    ledger : signs the certificate, which holds the digests of all files; without it the package is not signed.
    confidence : of the intervals.
    overwrite : replace an earlier file of answers; anything else that is there is never replaced.
    progress : called with (fraction, text); returning False stops, and nothing is left behind.

    Guarantee: nothing in the package depends on the records but through the released answers.  The file appears under
    its name only when it is complete.

    Raises
    ------
    Cancelled : ``progress`` returned False.
    """

    tell, plan = told(progress, "Writing the package was cancelled; no file was left behind."), measurement.plan
    with new_file(path, overwrite=overwrite) as partial, tempfile.TemporaryDirectory(dir=partial.parent) as place:
        folder = Path(place)
        made = [folder / "plan.json", folder / "check.py", folder / "answers.parquet"]
        made[0].write_text(plan.to_json(), encoding="utf-8")
        made[1].write_text(CHECK, encoding="utf-8")
        made += write_measurements(measurement, folder)
        write_answers(measurement, made[2], confidence=confidence, progress=lambda f, t: tell(0.5 * f, t))
        if plan.workload.queries <= MOST_IN_CSV:
            made.append(folder / "answers.csv")
            write_answers(
                measurement, made[-1], format="csv", confidence=confidence, progress=lambda f, t: tell(0.5, t)
            )
        tell(0.6, "Writing the report")
        made.append(folder / "report.html")
        made[-1].write_text(report_html(measurement, receipt=receipt, confidence=confidence), encoding="utf-8")
        seal = certificate(measurement, receipt, confidence)
        seal["files"] = {file.name: _digest(file) for file in made}
        text = json.dumps(seal, indent=2, sort_keys=True, ensure_ascii=False).encode()
        made.append(folder / CERTIFICATE)
        made[-1].write_bytes(text)
        if ledger is not None and not measurement.rehearsal:
            public, signature = ledger.sign(text)
            made.append(folder / SIGNATURE)
            signed = {"algorithm": "Ed25519", "of": CERTIFICATE, "public_key": public, "signature": signature}
            made[-1].write_text(json.dumps(signed, indent=2), encoding="utf-8")
        tell(0.8, "Packing")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for file in made:
                archive.write(file, file.name)
    tell(1.0, "Packed")
    return Path(path)


def certificate(
    measurement: Measurement, receipt: Receipt | None, confidence: float, *, format: str = FORMAT
) -> dict[str, Any]:
    """Return what was promised and spent, as JSON-ready data.

    A receipt adds the place and the hash of the spend in its ledger.
    """
    plan, budget = measurement.plan, measurement.plan.budget
    seal = plan.certificate
    out: dict[str, Any] = {
        "format": format,
        "status": MARK if measurement.rehearsal else "release",
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
        "epsilon_by_delta_proved": {f"{d:g}": plan.epsilon(d) for d in DELTAS},
        "meaning": plan.meaning,
        "max_records": plan.max_records,
        "queries": plan.workload.queries,
        "rmse_counts": plan.rmse,
        "confidence": confidence,
        "global_bound_counts": seal.global_bound,
        "global_gap": seal.global_gap if math.isfinite(seal.global_gap) else None,
        "claim": claim_text(plan),
        "lower_bound_counts": seal.lower_bound,
        "gap": seal.gap,
        "bound": seal.statement,
    }
    if format != BEFORE[0]:
        out["promise"] = plan.schema.promise(budget)
    if format not in BEFORE[:2] and (kept := plan.options.get("keep")) is not None:
        out["kept"] = _kept_text(plan, kept)
    if format in BEFORE:
        out["epsilon_by_delta_proved"] = {f"{d:g}": budget.epsilon_zcdp(d) for d in DELTAS}
        if budget.pure_epsilon is None:
            out["meaning"] = (
                f"{plan.schema.meaning(budget).removesuffix('.')} (proved: {cost(budget.epsilon_zcdp(1e-6))})."
            )
    if plan.schema.invariants:
        out["exact"] = [list(one.attributes) for one in plan.schema.invariants]
    if budget.pure_epsilon is not None:
        out["pure_epsilon"] = budget.pure_epsilon
    if receipt is not None:
        out["ledger"] = {"seq": receipt.seq, "hash": receipt.hash, "pcost": receipt.pcost, "utc": receipt.utc}
    return out


def _kept_text(plan: Plan, keep: float | Mapping[int, float]) -> str:
    """Say which groups were kept as exact as with uniform centers, up to which share."""
    shares = keep.items() if isinstance(keep, Mapping) else [(None, keep)]
    told = []
    for at, share in shares:
        group = None if at is None else plan.workload.groups[at]
        name = "every group" if group is None else f"{set_name(group.attributes)} ({group.family_text})"
        most = f"at most {100.0 * share:g}%" if share else "not"
        told.append(f"{name}: {most} above its error with uniform centers")
    return "; ".join(told) or "no group"


def report_html(measurement: Measurement, *, receipt: Receipt | None = None, confidence: float = 0.95) -> str:
    """Return a readable report as one HTML page that loads nothing from elsewhere."""
    from engine.figures import Picture, answers_picture, budget_picture, spread_picture

    plan, seal = measurement.plan, certificate(measurement, receipt, confidence)
    title = "Rehearsal report" if measurement.rehearsal else f"Release of {measurement.dataset}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    if measurement.rehearsal:
        parts.append(f"<p class=mark>{MARK}</p>")
    parts.append(
        f"<p>{how_many(plan.workload.queries, 'count')} about {how_many(len(plan.schema), 'attribute')}, each with its "
        f"standard error and {confidence:.0%} interval. Typical error {amount(plan.rmse)} counts.</p>"
    )
    told = f"<p><b>To the people in these records:</b> {html.escape(plan.schema.promise(plan.budget))}</p>"
    parts += ["<h2>Privacy</h2>", told, f"<p>{html.escape(plan.meaning)}</p>", _facts(seal)]
    parts += ["<h2>How exact</h2>", f"<p>{html.escape(claim_text(plan))}</p>"]
    pictures = [spread_picture(plan, plan.rmse), budget_picture(plan)]
    for number in range(min(GROUPS, len(plan.workload.groups))):
        answers = measurement.answers(number, 0, SHOWN, confidence)
        found = answers_picture(answers, rehearsal=measurement.rehearsal)
        names = set_name(plan.workload.groups[number].attributes)
        pictures.append(
            Picture(title=f"Answers on {names}", figure=found.figure, table=found.table, alt=found.alt, note=found.note)
        )
    parts += [_picture(p, first=i == 0, number=i) for i, p in enumerate(pictures[:2])]
    parts += ["<h2>Errors of every group</h2>", _table(group_table(plan).head(500))]
    parts.append(f"<h2>Answers</h2><p>The first {SHOWN} of a group are shown; answers.parquet has all of them.</p>")
    parts += [_picture(p, first=False, number=i + 2) for i, p in enumerate(pictures[2:])]
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body><main>{"".join(parts)}</main></body></html>'


def _picture(found: Picture, *, first: bool, number: int) -> str:
    drawn = found.figure.to_html(
        full_html=False, include_plotlyjs=first, config={"displaylogo": False}, div_id=f"figure-{number}"
    )
    title, alt, note = (html.escape(text) for text in (found.title, found.alt, found.note))
    return (
        f'<h3>{title}</h3><figure role="group" aria-label="{alt}">{drawn}<figcaption>{alt} {note}</figcaption></figure>'
        f"<details><summary>The same as a table</summary>{_table(found.table.head(500))}</details>"
    )


def _facts(seal: dict[str, Any]) -> str:
    import pandas as pd

    rows = {k: v for k, v in seal.items() if not isinstance(v, dict) and v not in ("", None)}
    return _table(pd.DataFrame({"what": list(rows), "value": [str(v) for v in rows.values()]}))


def _table(frame: pd.DataFrame) -> str:
    return frame.to_html(index=False, border=0, float_format=lambda v: f"{v:,.4g}", escape=True)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
