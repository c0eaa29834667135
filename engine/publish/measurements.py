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

from engine.arrays import Array
from engine.errors import PlanError
from engine.plans import Block, Plan
from engine.publish.package_files import ArrayFile
from engine.release import Measurement, measured
from engine.spaces import Space, Strategy
from engine.untrusted import MAX_JSON_MEMORY, parse_json

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
    if not isinstance(text, dict) or text.get("format") != FORMAT:
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
