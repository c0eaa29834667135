"""The released whole numbers with all that is needed to compute from them, in NumPy's own file format.

`measurements.json` says for every block what was measured; the arrays it names are in `measurements.npz`:

    integers * grid  =  (R_1 (x) R_2 (x) ...) t  + noise        in counts, weighted row by row where there are weights

where t is the exact table on the block's attributes, R_f the rows of factor f on the attributes `axes`, and the noise
independent with standard deviation `noise`.  All answers of a release are the least-squares answers of these equations.

Where a release was made in two steps, its answers follow from both, and the arrays are the estimates that combine them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import PlanError
from engine.plans import Plan
from engine.release import Measurement, measured
from engine.spaces import Strategy

FORMAT = "measurements/1"
NAMES = ("measurements.json", "measurements.npz")


def write_measurements(measurement: Measurement, folder: Path) -> list[Path]:
    """Write the released integers of all blocks, and the equations they stand for; return the files."""
    if not _in_one_step(measurement):
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


def _in_one_step(measurement: Measurement) -> bool:
    """Whether the integers are those of the plan's own blocks, and not of a step that adds to a look."""
    plan, integers = measurement.plan, measurement.answers_on_grid
    if any(s not in integers or integers[s].size != b.measurements for s, b in plan.blocks.items()):
        return False
    words = {"dataset": measurement.dataset, "key": measurement.key, "utc": measurement.utc}
    again = measured(plan, integers, rehearsal=measurement.rehearsal, **words)
    return all(np.allclose(again.estimates[s], e, rtol=1e-9, atol=1e-9) for s, e in measurement.estimates.items())


def _write_estimates(measurement: Measurement, folder: Path) -> list[Path]:
    found = dict(enumerate(measurement.estimates.items()))
    told = [{"space": list(space), "estimates": f"estimates{i}"} for i, (space, _) in found.items()]
    return _write(measurement, folder, {"estimates": told}, {f"estimates{i}": e for i, (_, e) in found.items()})


def _write(
    measurement: Measurement, folder: Path, told: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> list[Path]:
    text = {"format": FORMAT, "meaning": " ".join((__doc__ or "").split()), **told}
    if measurement.rehearsal:
        text["status"] = "REHEARSAL"
    made = [folder / name for name in NAMES]
    made[0].write_text(json.dumps(text, indent=1, ensure_ascii=False), encoding="utf-8")
    np.savez(made[1], allow_pickle=False, **arrays)
    return made


def read_measurements(plan: Plan, folder: Path, *, rehearsal: bool, **words: str) -> Measurement:
    """Return the measurement of a plan from its released integers, or from the estimates of both steps.

    Raises: PlanError unless the files hold, for every block, exactly the equations of the plan.
    """
    text = json.loads((folder / NAMES[0]).read_bytes())
    with np.load(folder / NAMES[1], allow_pickle=False) as arrays:
        if text.get("format") == FORMAT and "estimates" in text:
            estimates = {tuple(e["space"]): arrays[e["estimates"]] for e in text["estimates"]}
            return Measurement(plan=plan, rehearsal=rehearsal, answers_on_grid={}, estimates=estimates, **words)
        if text.get("format") != FORMAT or len(text["blocks"]) != len(plan.blocks):
            raise PlanError("The measurements are of another form, or of another number of blocks, than the plan.")
        found = {}
        for (space, block), told in zip(plan.blocks.items(), text["blocks"], strict=True):
            factors = [([block.attributes[a] for a in axes], s.rows) for axes, s in block.factors]
            same = (
                (told["grid"], told["noise"], told["law"]) == (block.grid, block.noise, block.law)
                and told["attributes"] == list(block.attributes)
                and len(told["factors"]) == len(factors)
                and all(
                    f["axes"] == axes and np.allclose(arrays[f["rows"]], rows, rtol=1e-9, atol=1e-12)
                    for f, (axes, rows) in zip(told["factors"], factors, strict=True)
                )
                and (block.weights is None) == ("weights" not in told)
                and (block.weights is None or np.allclose(arrays[told["weights"]], block.weights, rtol=1e-9))
            )
            integers = arrays[told["integers"]]
            if not same or integers.dtype != np.int64 or integers.shape != (block.measurements,):
                raise PlanError(f"What was measured on {list(block.attributes)} is not what the plan measures.")
            found[space] = integers
    return measured(plan, found, rehearsal=rehearsal, **words)
