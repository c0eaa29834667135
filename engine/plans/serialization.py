"""Parsing and validation of plan files."""

from __future__ import annotations

import binascii
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from engine._untrusted import MAX_JSON_MEMORY, parse_json
from engine.errors import PlanError
from engine.plans.objectives import Emphasis, unpack
from engine.plans.plan import FORMAT, Plan
from engine.plans.solver_state import Lines, SolverState, Tradeoff
from engine.residuals import Complement, Space, Split

# entries of the custom matrices in an untrusted plan file
MAX_ENTRIES = 5_000_000
# entries of the custom matrices per byte of an untrusted plan file, if that is more
MAX_ENTRIES_PER_BYTE = 10


def parse_plan(text: str | bytes, *, untrusted: bool = False) -> tuple[dict[str, Any], SolverState]:
    """Return the validated JSON document of a plan and the state of its solver.

    Parameters
    ----------
    text : content of the plan file.
    untrusted : limit the memory that the document may need in proportion to its size.

    Raises
    ------
    PlanError : the text is not a plan file of this version, or is damaged.
    """
    try:
        data = parse_json(text, max_memory=MAX_JSON_MEMORY if untrusted else math.inf)
    except ValueError:
        message = "The plan is not valid JSON. Give the text that to_json wrote, not the name of a file."
        raise PlanError(message) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise PlanError(f'This is not a plan file. Give JSON with "format": "{FORMAT}".')
    solved = data.get("solved")
    needed = ("mechanism", "options", "budget", "max_records", "workload")
    if any(k not in data for k in needed) or not isinstance(solved, dict) or not isinstance(solved.get("duals"), list):
        raise PlanError(f"The plan file lacks one of {', '.join(needed)}, solved. Export it again.")
    if untrusted and (entries := _packed_entries(data["workload"])) > max(
        MAX_ENTRIES, MAX_ENTRIES_PER_BYTE * len(text)
    ):
        raise PlanError(f"The custom matrices of the plan file unfold to {entries:,} numbers; so many are not read.")
    try:
        duals = [unpack(d) for d in solved["duals"]]
        split = Split(
            centers={name: unpack(pi) for name, pi in solved["centers"].items()},
            complements=_unpacked_complements(solved["complements"]),
            unions={tuple(map(str, a)): tuple(tuple(map(str, s)) for s in spaces) for a, spaces in solved["unions"]},
            stopped=frozenset(map(str, solved.get("stopped", ()))),
        )
        matrices = tuple(unpack(m["values"]).reshape(m["shape"]) for m in solved["matrices"])
        tradeoff = _unpacked_tradeoff(solved.get("tradeoff"))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, binascii.Error):
        raise PlanError("The solver weights in the plan file are damaged. Export it again.") from None
    if not all(len(d) and (d >= 0).all() and (d <= 1).all() and abs(d.sum() - 1.0) < 1e-9 for d in duals):
        raise PlanError("The solver weights in the plan file are not probabilities. Export it again.")
    tuned = [*split.centers.values(), *(a for c in split.complements.values() for a in (*c.by_axis, c.by_total))]
    if not all((np.abs(a) < 1e6).all() for a in (*tuned, *matrices)):
        raise PlanError("The centers or matrices in the plan file are not numbers below 1e6. Export it again.")
    endings, limit = solved.get("endings"), solved.get("memory_limit")
    if (
        "memory_limit" not in solved
        or not isinstance(endings, list)
        or len(endings) != len(duals)
        or not all(isinstance(e, str) for e in endings)
        or not (limit is None or (type(limit) in (int, float) and limit > 0))
    ):
        raise PlanError("The endings or the memory limit in the plan file are damaged. Export it again.")
    if not isinstance(joint := solved.get("joint", False), bool):
        raise PlanError(
            "The field 'joint' of the plan file decides how blocks are charged and must be true or false. "
            "Export it again."
        )
    return data, SolverState(
        duals=tuple(duals),
        endings=tuple(endings),
        memory_limit=math.inf if limit is None else limit,
        split=split,
        matrices=matrices,
        tradeoff=tradeoff,
        joint=joint,
    )


def _packed_entries(workload: Any) -> int:
    """Return the number of entries that the packed matrices of a workload declare."""
    total, level = 0, [workload]
    while level:
        value = level.pop()
        if isinstance(value, dict):
            shape = value.get("shape")
            if isinstance(shape, list) and all(type(n) is int for n in shape):
                total += math.prod(shape)
            level += value.values()
        elif isinstance(value, list):
            level += value
    return total


def check_rebuilt(plan: Plan, data: Mapping[str, Any]) -> Plan:
    """Return the plan if it agrees with the document; raise PlanError otherwise."""
    solved = data["solved"]
    promises = {"pcost": plan.pcost, "weighted_rmse": plan.weighted_rmse}
    if plan.tradeoff is not None:
        promises["achieved"] = plan.achieved
    for name, mine in promises.items():
        stored = solved.get(name)
        if not isinstance(stored, float) or not math.isclose(stored, mine, rel_tol=1e-6):
            raise PlanError(
                f"The plan file promises {name} {stored!r}, but its matrices give {mine}. The file was changed."
            )
    if solved.get("hash") != plan.hash:
        raise PlanError("The plan file was changed after it was written: its hash does not match. Export it again.")
    return plan


def _unpacked_complements(packed: Any) -> dict[Space, Complement]:
    out: dict[Space, Complement] = {}
    for item in packed:
        total = unpack(item["by_total"])
        first, second = (unpack(D).reshape(len(total), -1) for D in item["by_axis"])
        if first.shape[1] * second.shape[1] != len(total):
            raise ValueError("the shapes of a complement do not match")
        complement = Complement(by_axis=(first, second), by_total=total)
        for a, b in item["pairs"]:
            out[a, b] = complement
    return out


def _unpacked_tradeoff(packed: Any) -> Tradeoff | None:
    if packed is None:
        return None
    shares, witness = unpack(packed["shares"]), packed["witness"]
    if not ((shares > 0) & np.isfinite(shares)).all():
        raise ValueError("shares must be positive and finite")
    limits = unpack(packed["limits"]) if "limits" in packed else None
    if limits is not None and not (limits > 0).all():
        raise ValueError("limits must be positive")
    return Tradeoff(
        shares=shares,
        emphasis=Emphasis.from_dict(packed["emphasis"]),
        witness=None if witness is None else Emphasis.from_dict(witness),
        limits=limits,
        lines=Lines.from_dict(packed["lines"]) if "lines" in packed else None,
    )
