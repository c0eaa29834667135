"""The released whole numbers with all that is needed to compute from them, in NumPy's own file format.

`measurements.json` says for every block what was measured; the arrays it names are in `measurements.npz`:

    integers * grid  =  (R_1 (x) R_2 (x) ...) t  + noise        in counts, weighted row by row where there are weights

where t is the exact table on the block's attributes, R_f the rows of factor f on the attributes `axes`, and the noise
independent with standard deviation `noise`.  All answers of a release are the least-squares answers of these equations.

Where a release was made in two steps, its answers follow from both, and the arrays are the estimates that combine them;
they are estimates, too, where these files are written on a machine that would measure the same in other rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import PlanError
from engine.plans import Block, Plan
from engine.release import Measurement, measured
from engine.spaces import Strategy

FORMAT = "measurements/1"
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
    text = {"format": FORMAT, "meaning": " ".join((__doc__ or "").split()), **told}
    if measurement.rehearsal:
        text["status"] = "REHEARSAL"
    made = [folder / name for name in NAMES]
    made[0].write_text(json.dumps(text, indent=1, ensure_ascii=False), encoding="utf-8")
    np.savez(made[1], allow_pickle=False, **arrays)
    return made


def read_measurements(plan: Plan, folder: Path, *, rehearsal: bool, **words: str) -> Measurement:
    """Return the measurement of a plan from its released integers, or from the estimates of both steps.

    Its plan measures the rows of the files, which another machine may have turned; see `Strategy.by_rows`.
    Raises: PlanError unless the files hold, for every block, equations that say what those of the plan do.
    """
    text = json.loads((folder / NAMES[0]).read_bytes())
    with np.load(folder / NAMES[1], allow_pickle=False) as arrays:
        if text.get("format") == FORMAT and "estimates" in text:
            estimates = {tuple(e["space"]): arrays[e["estimates"]] for e in text["estimates"]}
            return Measurement(plan=plan, rehearsal=rehearsal, answers_on_grid={}, estimates=estimates, **words)
        if text.get("format") != FORMAT or len(text["blocks"]) != len(plan.blocks):
            raise PlanError("The measurements are of another form, or of another number of blocks, than the plan.")
        found, blocks, told_rows = {}, {}, dict[tuple[Strategy, str], Strategy]()
        for (space, block), told in zip(plan.blocks.items(), text["blocks"], strict=True):
            integers, blocks[space] = arrays[told["integers"]], _as_told(block, told, arrays, told_rows)
            if integers.dtype != np.int64 or integers.shape != (block.measurements,):
                raise _other(block)
            found[space] = integers
    if any(block is not plan.blocks[space] for space, block in blocks.items()):
        plan = replace(plan, blocks=blocks)
    return measured(plan, found, rehearsal=rehearsal, **words)


def _as_told(
    block: Block,
    told: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
    told_rows: dict[tuple[Strategy, str], Strategy],
) -> Block:
    """Return a block with the rows that a file says were measured; blocks that share a strategy share the told one.

    Raises: PlanError where they are of another.
    """
    same = (
        (told["grid"], told["noise"], told["law"]) == (block.grid, block.noise, block.law)
        and told["attributes"] == list(block.attributes)
        and [f["axes"] for f in told["factors"]] == [[block.attributes[a] for a in axes] for axes, _ in block.factors]
        and (block.weights is None) == ("weights" not in told)
        and (block.weights is None or np.allclose(arrays[told["weights"]], block.weights, rtol=1e-9))
    )
    if not same:
        raise _other(block)
    factors = []
    for f, (axes, strategy) in zip(told["factors"], block.factors, strict=True):
        shared = (strategy, f["rows"])
        found = told_rows.get(shared) or strategy.by_rows(arrays[f["rows"]])
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
