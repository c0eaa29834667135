"""Random workloads from publication weights to published tables: no warning, consistent sums."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

from engine.errors import NotAnswerable
from engine.mechanisms import plan
from engine.postprocess import QualityRule
from engine.postprocess.publication_weights import publication_weights
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.publish.tables_package import write_tables
from engine.publish.verify import verify_package
from engine.records import count_marginals
from engine.workload import Attribute, Schema, Workload
from tests.publish.measured import check_consistent

RULE = QualityRule(least_count=5.0)
REFERENCES = ("none", "records", "file", "published")


def random_records(rng):
    """Return coded records, and their schema of 1 to 5 attributes.

    The schema may have impossible cells and exact totals, which the records satisfy.
    """
    names = "abcde"[: rng.integers(1, 6)]
    sizes = {name: int(rng.choice([1, 2, 3, 4, 7, 12])) for name in names}
    count = int(rng.choice([3, 40, 500, 5_000]))
    records = pd.DataFrame(
        {name: np.minimum(rng.geometric(0.5, count) - 1, n - 1) for name, n in sizes.items()}
    )
    schema = Schema([Attribute.of_size(name, n) for name, n in sizes.items()])
    if len(names) > 1 and min(sizes["a"], sizes["b"]) > 1 and rng.random() < 0.5:
        last = sizes["a"] - 1
        schema = schema.with_facts(impossible=[f"a == {last} and b == 0"])
        records = records[~((records["a"] == last) & (records["b"] == 0))].reset_index(drop=True)
    if rng.random() < 0.3:
        counts = np.bincount(records[names[-1]], minlength=sizes[names[-1]])
        schema = schema.with_facts(invariants=[([names[-1]], counts.tolist())])
    return records, schema


def random_workload(schema, rng):
    """Return up to 8 groups with random families and weights; the weight of the first is 1."""
    ways = rng.integers(0, min(len(schema.names), 4) + 1, 3)
    sets = [s for k in sorted(set(ways)) for s in itertools.combinations(schema.names, k)]
    workload = Workload(schema).add(schema.names[:2])
    for i in rng.permutation(len(sets))[:7]:
        families = ["marginal", "prefix", "range"] if len(sets[i]) < 3 else ["marginal", "prefix"]
        family = str(rng.choice(families)) if sets[i] else "marginal"
        workload = workload.add(sets[i], family, weight=float(rng.choice([0.0, 0.1, 1.0, 50.0])))
    return workload


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=() if s < 6 else pytest.mark.full) for s in range(30)]
)
def test_random_workload_is_published_consistently(seed, tmp_path):
    rng = np.random.default_rng(seed)
    records, schema = random_records(rng)
    workload, budget = random_workload(schema, rng), Budget(pcost=float(10 ** rng.uniform(-6, 3)))

    def exact(names):
        return count_marginals(records, schema, [tuple(names)])[tuple(names)].astype(float)

    def simulate(workload, budget):
        return simulate_measurement(plan(workload, budget, "residualplanner"), exact, rng)

    reference = None
    match REFERENCES[seed % 4]:
        case "published":
            reference = simulate(workload, Budget(pcost=1e3)).publish()
        case "records":
            reference = records
        case "file":
            reference = tmp_path / "reference.csv"
            records.to_csv(reference, index=False)
    weighted = publication_weights(workload, budget, expected_records=400.0, reference=reference)
    for new_group, group in zip(weighted.groups, workload.groups, strict=True):
        assert np.isfinite(new_group.weight)
        assert (new_group.weight > 0) == (group.weight > 0)

    fit = "shrunk" if seed % 3 else "nonnegative"
    published = simulate(weighted, budget).publish(fit, integer=seed % 5 == 0)
    check_consistent(published, workload, tolerance=1e-6 * max(1.0, published.total))
    for group in workload.groups:
        impossible = schema.possible_share(group.attributes) == 0.0
        assert not published.table(group.attributes)[impossible].any()
    if published.total > 0.0:
        errors = published.uncertainty(draws=3)
        assert len(errors.summary(RULE)) == len(workload.groups)
        path = write_tables(errors, tmp_path / "tables.zip", rule=RULE)
        assert verify_package(path) == ()
    else:
        with pytest.raises(NotAnswerable, match="larger budget"):
            published.uncertainty(draws=3)
