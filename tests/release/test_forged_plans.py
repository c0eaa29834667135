"""Forged plans are measured completely or refused without a spend."""

from __future__ import annotations

import base64
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from engine.common_mechanism import stepwise
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.errors import EngineError, PlanError
from engine.ledger import Ledger
from engine.mechanisms import load_plan, plan
from engine.privacy import Budget
from engine.release import measure
from engine.workload import Attribute, Schema, Workload

PLAN_FILES = sorted((Path(__file__).parents[1] / "golden_files").glob("*.plan.json"))
SCHEMA = Schema([Attribute.of_size("a", 3), Attribute.of_size("b", 2)])
RECORDS = pd.DataFrame({"a": [0, 1, 2, 2], "b": [0, 1, 1, 0]})


@pytest.fixture
def ledger(tmp_path):
    book = Ledger.create(tmp_path / "office.ledger")
    book.add_dataset("survey", total=Budget(pcost=1e6))
    return book


def spends(ledger) -> list:
    return [row for row in ledger.rows() if row.kind == "spend"]


def check_completes_or_spends_nothing(forged_plan, records, ledger) -> None:
    """Measure a plan completely, or assert that a refused plan spends nothing."""
    before = spends(ledger)
    try:
        measurement = measure(forged_plan, records, dataset="survey", ledger=ledger)
    except EngineError:
        assert spends(ledger) == before
        return
    for group in range(len(forged_plan.workload.groups)):
        measurement.values(group)


def forged(block, change):
    """Return a block whose first factor has the strategy ``change(strategy)``.

    The block of the total has no factor; another attribute is forged instead.
    """
    if not block.factors:  # the total, whose strategy is one number
        return replace(block, attributes=("a",))
    (axes, strategy), *others = block.factors
    return replace(block, factors=((axes, change(strategy)), *others))


CHANGES = {
    "rows of other cells": lambda b: forged(
        b, lambda s: replace(s, rows=np.ones((len(s.rows), s.rows.shape[1] + 1)))
    ),
    "rows not finite": lambda b: forged(
        b, lambda s: replace(s, rows=np.where(s.rows > 2, s.rows, np.nan))
    ),
    "rows huge": lambda b: forged(b, lambda s: replace(s, rows=s.rows * 1e30)),
    "estimates of other rows": lambda b: forged(b, lambda s: replace(s, pinv=np.ones((5, 5)))),
    "estimates not finite": lambda b: forged(
        b, lambda s: replace(s, pinv=np.full_like(s.pinv, np.inf))
    ),
    "texts": lambda b: forged(b, lambda s: replace(s, rows=s.rows.astype(str))),
    "grid of no power of two": lambda b: replace(b, grid=0.3),
    "grid zero": lambda b: replace(b, grid=0.0),
    "grid not finite": lambda b: replace(b, grid=np.nan),
    "grid tiny": lambda b: replace(b, grid=2.0**-200),
    "grid coarse": lambda b: replace(b, grid=2.0**200),
    "noise not finite": lambda b: replace(b, noise=np.inf),
    "noise off its grid": lambda b: replace(b, noise=b.noise + b.grid / 3),
    "another law": lambda b: replace(b, law="cauchy"),
    "weights of another shape": lambda b: replace(b, weights=np.ones((7,) * (1 + len(b.factors)))),
    "weights not finite": lambda b: replace(
        b, weights=np.full([len(s.rows) for _, s in b.factors], np.nan)
    ),
    "attributes of another table": lambda b: replace(
        b, attributes=("a", "b") if len(b.attributes) < 2 else ("a",)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mechanism", ["querysmasher", "hdmm"])
def test_measure_forged_block_spends_nothing(change, mechanism, ledger) -> None:
    forged_plan = plan(Workload.all_ways(SCHEMA, ways=(1, 2)), Budget(pcost=1.0), mechanism)
    assert forged_plan.pcost <= 1.0  # cached, so that only the measured blocks are forged
    sound_blocks = dict(forged_plan.blocks)
    for space, block in sound_blocks.items():
        blocks = sound_blocks | {space: CHANGES[change](block)}
        object.__setattr__(forged_plan, "blocks", blocks)
        with pytest.raises(PlanError, match=r"Nothing was spent"):
            measure(forged_plan, RECORDS, dataset="survey", ledger=ledger)
    assert not spends(ledger)


def test_look_forged_block_spends_nothing(ledger) -> None:
    coarse, fine = (
        plan(Workload.all_ways(SCHEMA, ways=k), Budget(pcost=1.0), centers="uniform")
        for k in (1, 2)
    )
    common = coarse_or_fine(coarse, fine)
    blocks = dict(common.look.blocks)
    space = next(iter(blocks))
    blocks[space] = replace(blocks[space], grid=0.3)  # not a power of two
    object.__setattr__(common.look, "blocks", blocks)
    with pytest.raises(PlanError, match="Nothing was spent"):
        stepwise.look(common, RECORDS, dataset="survey", ledger=ledger)
    assert not spends(ledger)


def repacked(value, rng):
    """Multiply a quarter of the floats in an array by one random factor.

    The argument and the result are base64 texts of the array.
    """
    numbers = np.frombuffer(base64.b64decode(value), "<f8").copy()
    if len(numbers):
        at = rng.integers(len(numbers), size=max(1, len(numbers) // 4))
        numbers[at] *= rng.choice([0.0, -1.0, 1e-12, 0.5, 2.0, 1e5])
    return base64.b64encode(numbers.tobytes()).decode()


def packed_places(value, path=()):
    """Yield the path of keys to every base64 text of a plan document."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from packed_places(child, (*path, key))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from packed_places(child, (*path, number))
    elif (
        isinstance(value, str)
        and len(value) % 4 == 0
        and re.fullmatch(r"[A-Za-z0-9+/]{8,}=*", value)
    ):
        yield path


def forge(text: str, rng: np.random.Generator) -> str:
    """Return a plan file with up to two changed arrays that is consistent as far as possible.

    If loading fails because a stated figure differs from the changed matrices, the figure is
    replaced by the one in the error message, up to four times.
    """
    document = json.loads(text)
    paths = [path for path in packed_places(document["solved"]) if path[0] != "hash"]
    for number in rng.choice(len(paths), size=min(len(paths), 2), replace=False):
        *parent_keys, key = paths[number]
        parent = document["solved"]
        for parent_key in parent_keys:
            parent = parent[parent_key]
        parent[key] = repacked(parent[key], rng)
    # Dual weights must be non-negative with sum 1.
    duals = document["solved"]["duals"]
    for number, packed in enumerate(duals):
        weights = np.abs(np.frombuffer(base64.b64decode(packed), "<f8"))
        duals[number] = base64.b64encode((weights / max(weights.sum(), 1e-300)).tobytes()).decode()
    for _ in range(4):
        try:
            load_plan(json.dumps(document))
            break
        except PlanError as error:
            figure = re.search(
                r"states (\w+) = .*, but the rebuilt plan has ([-+.e0-9]+):", str(error)
            )
            if figure is None:
                break
            document["solved"][figure[1]] = float(figure[2])
    return json.dumps(document)


@pytest.mark.parametrize("path", PLAN_FILES, ids=lambda path: path.name)
def test_measure_forged_plan_file_completes_or_spends_nothing(path, ledger) -> None:
    rng, codes = np.random.default_rng(len(path.name)), random.Random(3)
    text = path.read_text(encoding="utf-8")
    records = pd.DataFrame(
        {
            attribute.name: [attribute.label(codes.randrange(attribute.size)) for _ in range(30)]
            for attribute in load_plan(text).schema.attributes
        }
    )
    loaded_files = 0
    for _ in range(6):
        try:
            forged_plan = load_plan(forge(text, rng))
        except EngineError:
            continue
        loaded_files += 1
        check_completes_or_spends_nothing(forged_plan, records, ledger)
    assert loaded_files, "every forged file was refused when it was loaded; nothing was measured"
