"""Benchmark of published pairs: its solver of residuals, its tables and its section of the README."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import scipy

from benchmarks import published_pairs, readme
from benchmarks.published_pairs import encode_quantiles, residual_tables, trial
from engine.postprocess.residual_estimates import evidence


def small_measurement(attributes):
    """Return the measurement of 40 random records at epsilon 0.5, with negative counts."""
    rng = np.random.default_rng(1)
    records = pd.DataFrame({name: rng.integers(0, 3, 40) for name in attributes})
    setting = trial(*encode_quantiles(records), epsilon=0.5)
    return setting.measure(setting.plan(setting.workload), 0)


def test_residual_tables_reach_the_optimum_of_one_pair():
    measurement = small_measurement("ab")
    estimates = evidence(measurement)
    answers = measurement.marginal(("a", "b"))
    assert answers.min() < 0.0
    variances = {axes: residual.variance for axes, residual in estimates.residuals.items()}
    total_part, centring = np.ones((3, 3)) / 9.0, np.eye(3) - 1.0 / 3.0
    # The covariance of the unbiased cells is a sum over the four residual spaces.
    covariance = (
        estimates.total_variance * np.kron(total_part, total_part)
        + variances[0,] * np.kron(centring, total_part)
        + variances[1,] * np.kron(total_part, centring)
        + variances[0, 1] * np.kron(centring, centring)
    )
    root = np.linalg.cholesky(np.linalg.inv(covariance)).T
    expected, _ = scipy.optimize.nnls(root, root @ answers.ravel())
    table = residual_tables(measurement)(("a", "b"))
    np.testing.assert_allclose(table.ravel(), expected, atol=1e-3 * expected.max())


def test_residual_tables_are_consistent_and_nonnegative():
    tables = residual_tables(small_measurement("abcd"))
    pairs = {pair: tables(pair) for pair in itertools.combinations("abcd", 2)}
    assert min(table.min() for table in pairs.values()) >= 0.0
    for other in "cd":
        a_from_b, a_from_other = pairs["a", "b"].sum(axis=1), pairs["a", other].sum(axis=1)
        np.testing.assert_allclose(a_from_b, a_from_other, rtol=0.02)


def test_benchmark_writes_rows_and_its_command(tmp_path, monkeypatch):
    records = pd.DataFrame({"a": [0, 1, 2, 1] * 30, "b": [0, 1, 1, 0] * 30, "c": range(120)})
    records.to_csv(tmp_path / "small.csv", index=False)
    out = tmp_path / "small.txt"
    published_pairs.main(
        [str(tmp_path / "small.csv"), "--seeds", "1", "--epsilon", "1", "--out", str(out)]
    )
    _, row, command = out.read_text().splitlines()
    assert row.split()[:3] == ["small", "1", "1"]
    assert command == (
        "python -m benchmarks.published_pairs small.csv --seeds 1 --mixture 0 --epsilon 1"
    )
    monkeypatch.setattr(readme, "FOLDER", tmp_path)
    section = readme.section("small", "a title")
    assert f"`{command}`" in section
    assert command not in section.split("```text")[1]
