"""Simulated measurements of clustered records, and checks of published tables."""

from __future__ import annotations

import itertools

import numpy as np

from engine.mechanisms import plan
from engine.postprocess.uncertainty import simulate_measurement
from engine.privacy import Budget
from engine.workload import Attribute, Schema

SIZES = (9, 7, 5, 2)
SCHEMA = Schema([Attribute.of_size(name, n) for name, n in zip("abcd", SIZES, strict=True)])
FITS = ("shrunk", "nonnegative")


def marginals_of(schema, counts):
    """Return a function that maps attribute names to their marginal of a table of counts."""

    def table(names):
        axes = [schema.order[name] for name in names]
        summed = counts.sum(axis=tuple(a for a in range(counts.ndim) if a not in axes))
        return summed.transpose([sorted(axes).index(a) for a in axes])

    return table


def random_tables(schema, records, seed):
    """Return a function that maps attribute names to exact tables of random clustered records."""
    rng = np.random.default_rng(seed)
    shares = np.ones(())
    for n in schema.sizes(schema.names):
        shares = np.multiply.outer(shares, rng.dirichlet(np.full(n, 0.4)))
    shares = 0.9 * shares.ravel() + 0.1 * rng.dirichlet(np.full(schema.size, 0.05))
    counts = rng.multinomial(records, shares).reshape(schema.sizes(schema.names))
    return marginals_of(schema, counts.astype(float))


def random_possible_tables(schema, records, seed):
    """Return a function that maps attribute names to exact tables of random possible records.

    The records are those of `random_tables` without the records in impossible cells."""
    possible = schema.possible_share(schema.names) > 0.0
    return marginals_of(schema, random_tables(schema, records, seed)(schema.names) * possible)


def measured_on(
    workload, budget=None, *, records=3_000, seed=1, mechanism="residualplanner", **options
):
    """Return (simulated measurement, function from attribute names to their exact table).

    The records are random.
    """
    budget = Budget(pcost=0.05) if budget is None else budget
    table = random_tables(workload.schema, records, seed)
    chosen_plan = plan(workload, budget, mechanism=mechanism, **options)
    return simulate_measurement(chosen_plan, table, np.random.default_rng(seed)), table


def attribute_sets(schema, ways):
    """Return all attribute sets whose size is in ``ways``."""
    return [names for k in ways for names in itertools.combinations(schema.names, k)]


def check_consistent(published, workload, tolerance=1e-9):
    """Assert that tables are non-negative and have one total and consistent margins."""
    for group in workload.groups:
        table = published.table(group.attributes)
        assert (table >= 0).all()
        assert abs(table.sum() - published.total) <= tolerance
        for axis in range(table.ndim):
            rest = group.attributes[:axis] + group.attributes[axis + 1 :]
            assert np.abs(table.sum(axis=axis) - published.table(rest)).max() <= tolerance
