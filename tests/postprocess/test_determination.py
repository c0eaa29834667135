"""Attributes that another attribute determines, in published tables and their errors."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest

from engine.mechanisms import plan
from engine.postprocess.residual_estimates import assemble_table, evidence
from engine.postprocess.uncertainty import (
    determined_attributes,
    draw_truth,
    follow_sources,
    residual_posteriors,
    simulate_measurement,
)
from engine.privacy import Budget
from engine.publish.tables_package import write_tables
from engine.publish.verify import verify_package
from engine.workload import Attribute, Schema, Workload

SIZES = {"region": 3, "income": 8, "square": 8, "county": 9, "sex": 2}
SCHEMA = Schema([Attribute.of_size(name, size) for name, size in SIZES.items()])
REGION, INCOME, SQUARE, COUNTY, SEX = range(5)


def records(exceptions):
    """Return 20,000 records as a dictionary from each attribute to its codes.

    Income determines "square" (here 7 - income) and county determines region, except in the share
    ``exceptions`` of the records.
    """
    rng = np.random.default_rng(1)
    sex, county = rng.integers(0, 2, 20_000), rng.integers(0, 9, 20_000)
    income = np.minimum(rng.poisson(2 + 2 * sex + county // 5), 7)
    columns = {"region": county // 3, "income": income, "square": 7 - income, "county": county}
    for name in ("region", "square"):
        is_exception = rng.random(20_000) < exceptions
        columns[name][is_exception] = rng.integers(0, SIZES[name], is_exception.sum())
    return columns | {"sex": sex}


def published_from(pcost, exceptions=0.0, seed=0):
    codes = records(exceptions)

    def table(names):
        if not names:
            return np.array(20_000.0)
        counts = np.zeros(SCHEMA.sizes(names))
        np.add.at(counts, tuple(codes[name] for name in names), 1.0)
        return counts

    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    result = plan(workload, Budget(pcost=pcost), mechanism="residualplanner")
    published = simulate_measurement(result, table, np.random.default_rng(seed)).publish()
    return published, evidence(published.measurement), table


@pytest.mark.parametrize("pcost", [0.02, 1.0, 1e4])
def test_determined_attributes_are_found(pcost):
    published, estimates, _ = published_from(pcost)
    determined = determined_attributes(estimates, published.contrasts)
    assert {a: d.source for a, d in determined.items()} == {SQUARE: INCOME, REGION: COUNTY}
    square_of_income = determined[SQUARE].cells.tolist()
    assert square_of_income == [7, 6, 5, 4, 3, 2, 1, 0]
    region_of_county = determined[REGION].cells.tolist()
    assert region_of_county == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("pcost", "exceptions"),
    [(1.0, 0.1), (1.0, 1.0), (1e-6, 0.0)],
    ids=["a tenth are exceptions", "independent", "noise only"],
)
def test_no_determination_with_exceptions_or_without_signal(pcost, exceptions):
    for seed in range(3):
        published, estimates, _ = published_from(pcost, exceptions, seed)
        assert determined_attributes(estimates, published.contrasts) == {}


def test_package_names_determined_attributes(tmp_path):
    published, _, _ = published_from(1.0)
    errors = published.uncertainty(draws=2)
    assert errors.determined == {"region": "county", "square": "income"}
    assert "county determines region, income determines square" in errors.determined_text
    write_tables(errors, tmp_path / "tables.zip")
    with zipfile.ZipFile(tmp_path / "tables.zip") as archive:
        lines = archive.read("README.md").decode().splitlines()
    assert {"- county determines region", "- income determines square"} <= set(lines)
    assert not verify_package(tmp_path / "tables.zip")  # no problems


def test_exact_tables_follow_their_sources():
    published, estimates, table = published_from(1.0)
    determined = determined_attributes(estimates, published.contrasts)
    with_determined = [("region", "square"), ("income", "square"), ("square", "sex")]
    names = [*with_determined, ("income", "sex")]
    sets = [published.positions(n) for n in names]
    # the residuals of the tables with determined attributes are replaced by zeros
    contrasts = {axes: contrast_of(table, axes) for axes in estimates.sets}
    for attributes in with_determined:
        axes = published.positions(attributes)
        contrasts[axes] = np.zeros(estimates.shape(axes))
    following = follow_sources(contrasts, determined, sets)
    for axes in sets:
        exact = table([estimates.names[a] for a in axes])
        np.testing.assert_allclose(assemble_table(following, axes), exact, atol=1e-8)


def contrast_of(table, axes):
    """Return the exact table of the attributes at ``axes``, centered along each of its axes."""
    counts = table([SCHEMA.names[a] for a in axes])
    for axis in range(counts.ndim):
        counts = counts - counts.mean(axis=axis, keepdims=True)
    return counts


def test_drawn_tables_keep_determinations():
    published, estimates, _ = published_from(1.0)
    determined = determined_attributes(estimates, published.contrasts)
    posteriors = residual_posteriors(estimates, published.contrasts, determined)
    truth = draw_truth(published.contrasts, posteriors, determined, np.random.default_rng(0))
    by_income = truth[INCOME, SEX]
    np.testing.assert_allclose(truth[SQUARE, SEX], by_income[::-1], atol=1e-8)
    assert (by_income != published.contrasts[INCOME, SEX]).any()


def test_tables_with_equal_counts_share_a_posterior():
    # Precise tables show which attributes are determined. The posterior is needed only for noisy
    # tables.
    published, estimates, _ = published_from(pcost=1.0)
    determined = determined_attributes(estimates, published.contrasts)
    published, estimates, _ = published_from(pcost=1e-4)
    shared = residual_posteriors(estimates, published.contrasts, determined)
    separate = residual_posteriors(estimates, published.contrasts, {})
    np.testing.assert_allclose(shared[SQUARE, SEX].probabilities, shared[INCOME, SEX].probabilities)
    assert not np.allclose(separate[SQUARE, SEX].probabilities, separate[INCOME, SEX].probabilities)


def test_intervals_of_determined_attributes_are_not_conservative():
    """Without determinations, the estimated errors of these pairs would be 15% too large."""
    errors, estimated = [], []
    for seed in range(4):
        published, _, table = published_from(1.0, seed=seed)
        uncertainty = published.uncertainty(draws=10)
        for names in (("square", "sex"), ("income", "sex"), ("income", "county")):
            errors.append(np.ravel(published.table(names) - table(names)))
            estimated.append(np.ravel(uncertainty.table_errors(names)))
    ratio = np.sqrt(np.mean(np.concatenate(estimated) ** 2) / np.mean(np.concatenate(errors) ** 2))
    assert 0.9 <= ratio <= 1.1
