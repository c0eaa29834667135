"""Release package: plan, measurements, certificate and report.

The released whole numbers with all that is needed to compute from them, in NumPy's own file format.

`measurements.json` says for every block what was measured; the arrays it names are in `measurements.npz`:

    integers * grid  =  (R_1 (x) R_2 (x) ...) t  + noise        in counts, weighted row by row where there are weights

where t is the exact table on the block's attributes, R_f the rows of factor f on the attributes `axes`, and the noise
independent with standard deviation `noise`.  All answers of a release are the least-squares answers of these equations.

Where a release was made in two steps, its answers follow from both, and the arrays are the estimates that combine them;
they are estimates, too, where these files are written on a machine that would measure the same in other rows.

Release packages: one zip that a reader can use, check and reproduce without the records.

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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engine._arrays import Array
from engine._format import amount, cost, how_many, set_name
from engine._untrusted import MAX_JSON_MEMORY, parse_json
from engine.analysis import group_table
from engine.analysis.error_targets import claim_text
from engine.errors import PlanError
from engine.ledger import Ledger, Receipt
from engine.plans import Block, Plan
from engine.progress import Progress, told
from engine.publish.output_path import new_file
from engine.publish.package_files import ArrayFile
from engine.publish.report import MARK, write_answers
from engine.release import Measurement
from engine.release.measure import measured
from engine.residuals import Space, Strategy

if TYPE_CHECKING:
    import pandas as pd

    from engine.figures import Picture


MEASUREMENTS_FORMAT = "measurements/1"
NAMES = ("measurements.json", "measurements.npz")


def write_measurements(measurement: Measurement, folder: Path) -> list[Path]:
    """Write the released integers of all blocks, and the equations they stand for; return the files."""
    if not in_one_step(measurement):
        return _write_estimates(measurement, folder)
    arrays: dict[str, npt.NDArray[Any]] = {}
    rows: dict[Strategy, str] = {}
    blocks = []
    for number, (space, block) in enumerate(measurement.plan.blocks.items()):
        factors = []
        for axes, strategy in block.factors:
            name = rows.setdefault(strategy, f"rows{len(rows)}")
            arrays[name] = strategy.rows
            factors.append({"axes": [block.attributes[a] for a in axes], "rows": name})
        found: dict[str, Any] = {"attributes": block.attributes, "factors": factors, "integers": f"block{number}"}
        found |= {"grid": block.grid, "noise": block.noise, "law": block.law}
        arrays[f"block{number}"] = measurement.answers_on_grid[space]
        if block.weights is not None:
            found["weights"] = f"weights{number}"
            arrays[f"weights{number}"] = block.weights
        blocks.append(found)
    return _write(measurement, folder, {"blocks": blocks}, arrays)


def in_one_step(measurement: Measurement) -> bool:
    """Return whether the integers are those of the plan's own blocks, row by row, and say what the estimates do.

    Those of a step that adds to a look are not, nor those of rows that an earlier version or another machine turned.
    """
    plan, integers = measurement.plan, measurement.answers_on_grid
    if any(s not in integers or integers[s].size != b.measurements for s, b in plan.blocks.items()):
        return False
    again = measured(plan, integers, dataset="", key="", utc="", rehearsal=measurement.rehearsal)
    return all(np.allclose(again.estimates[s], e, rtol=1e-9, atol=1e-9) for s, e in measurement.estimates.items())


def _write_estimates(measurement: Measurement, folder: Path) -> list[Path]:
    found = dict(enumerate(measurement.estimates.items()))
    told = [{"space": list(space), "estimates": f"estimates{i}"} for i, (space, _) in found.items()]
    return _write(measurement, folder, {"estimates": told}, {f"estimates{i}": e for i, (_, e) in found.items()})


def _write(
    measurement: Measurement, folder: Path, told: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> list[Path]:
    text = {"format": MEASUREMENTS_FORMAT, "meaning": " ".join((__doc__ or "").split()), **told}
    if measurement.rehearsal:
        text["status"] = "REHEARSAL"
    made = [folder / name for name in NAMES]
    made[0].write_text(json.dumps(text, indent=1, ensure_ascii=False), encoding="utf-8")
    np.savez(made[1], allow_pickle=False, **arrays)
    return made


def read_measurements(plan: Plan, description: Path, arrays: Path, *, rehearsal: bool, **words: str) -> Measurement:
    """Return the measurement of a plan from its released integers, or from the estimates of both steps.

    Its plan measures the rows of the files, which another machine may have turned; see `Strategy.by_rows`.

    Parameters
    ----------
    description, arrays : the files `NAMES`.

    Raises
    ------
    PlanError : the files do not hold, for every block, equations that say what those of the plan do.
    """
    text = parse_json(description.read_bytes(), max_memory=MAX_JSON_MEMORY)
    if not isinstance(text, dict) or text.get("format") != MEASUREMENTS_FORMAT:
        raise PlanError("The measurements have another form than this version reads.")
    with ArrayFile.open(arrays) as told_arrays:
        if "estimates" in text:
            estimates = _told_estimates(plan, text["estimates"], told_arrays)
            return Measurement(plan=plan, rehearsal=rehearsal, answers_on_grid={}, estimates=estimates, **words)
        if not isinstance(text.get("blocks"), list) or len(text["blocks"]) != len(plan.blocks):
            raise PlanError("The measurements have another number of blocks than the plan.")
        found, blocks, told_rows = {}, {}, dict[tuple[Strategy, str], Strategy]()
        for (space, block), told in zip(plan.blocks.items(), text["blocks"], strict=True):
            _check_block(block, told)
            blocks[space] = _as_told(block, told, told_arrays, told_rows)
            found[space] = told_arrays.read(told["integers"], "i", (block.measurements,)).astype(np.int64)
    if any(block is not plan.blocks[space] for space, block in blocks.items()):
        plan = replace(plan, blocks=blocks)
    return measured(plan, found, rehearsal=rehearsal, **words)


def _told_estimates(plan: Plan, told: Any, arrays: ArrayFile) -> dict[Space, Array]:
    if not isinstance(told, list) or not all(
        isinstance(e, dict)
        and isinstance(e.get("space"), list)
        and all(isinstance(name, str) for name in e["space"])
        and isinstance(e.get("estimates"), str)
        for e in told
    ):
        raise PlanError("The estimates in the measurements are damaged.")
    names = {tuple(e["space"]): e["estimates"] for e in told}
    if len(names) != len(told) or names.keys() != plan.answering.keys():
        raise PlanError("The measurements have estimates of other attributes than the plan.")
    return {space: arrays.read(name, "f", plan.answering[space].coordinates) for space, name in names.items()}


def _check_block(block: Block, told: Any) -> None:
    """Raise PlanError unless the description of a block has the fields of the block, each of its type."""
    texts = ("law", "integers") if block.weights is None else ("law", "integers", "weights")
    if (
        not isinstance(told, dict)
        or not all(isinstance(told.get(name), str) for name in texts)
        or not all(type(told.get(name)) in (int, float) for name in ("grid", "noise"))
        or not isinstance(told.get("factors"), list)
        or len(told["factors"]) != len(block.factors)
        or not all(isinstance(f, dict) and isinstance(f.get("rows"), str) and "axes" in f for f in told["factors"])
    ):
        raise _other(block)


def _as_told(
    block: Block, told: Mapping[str, Any], arrays: ArrayFile, told_rows: dict[tuple[Strategy, str], Strategy]
) -> Block:
    """Return a block with the rows that a file says were measured; blocks that share a strategy share the told one.

    Raises: PlanError where they are of another.
    """
    same = (
        (told["grid"], told["noise"], told["law"]) == (block.grid, block.noise, block.law)
        and told.get("attributes") == list(block.attributes)
        and [f["axes"] for f in told["factors"]] == [[block.attributes[a] for a in axes] for axes, _ in block.factors]
        and (block.weights is None) == ("weights" not in told)
    )
    if same and block.weights is not None:
        weights = arrays.read(told["weights"], "f", block.weights.shape)
        same = np.allclose(weights, block.weights, rtol=1e-9)
    if not same:
        raise _other(block)
    factors = []
    for f, (axes, strategy) in zip(told["factors"], block.factors, strict=True):
        shared = (strategy, f["rows"])
        found = told_rows.get(shared) or strategy.by_rows(arrays.read(f["rows"], "f", strategy.rows.shape))
        # weights of rows, and the L1 norms of Laplace noise, hold for the rows as they are
        turned = block.weights is None and block.law == "gaussian"
        if found is None or not (turned or np.allclose(found.rows, strategy.rows, rtol=1e-9, atol=1e-12)):
            raise _other(block)
        told_rows[shared] = found
        factors.append((axes, found))
    own = all(one is other for (_, one), (_, other) in zip(factors, block.factors, strict=True))
    return block if own else replace(block, factors=tuple(factors))


def _other(block: Block) -> PlanError:
    return PlanError(f"What was measured on {list(block.attributes)} is not what the plan measures.")


PACKAGE_FORMAT = "release/5"
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
    measurement: Measurement, receipt: Receipt | None, confidence: float, *, format: str = PACKAGE_FORMAT
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
