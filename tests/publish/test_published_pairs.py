"""Benchmark of published pairs: its solver of residuals, its tables and its section of the README."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import scipy

from benchmarks import published_pairs, readme
from benchmarks.published_pairs import encode_quantiles, residual_tables, trial
from engine.postprocess.residual_estimates import evidence


def small_trial(epsilon, attributes=("a", "b")):
    rng = np.random.default_rng(1)
    records = pd.DataFrame({name: rng.integers(0, 3, 40) for name in attributes})
    return trial(*encode_quantiles(records), epsilon)


def test_residual_tables_reach_the_optimum_of_one_pair():
    setting = small_trial(0.5)
    measurement = setting.measure(setting.plan(setting.workload), 0)
    estimates = evidence(measurement)
    answers, tables = measurement.marginal(("a", "b")), residual_tables(measurement)
    assert answers.min() < 0.0
    variances = {axes: r.variance for axes, r in estimates.residuals.items()}
    mean, ones = np.full((3, 3), 1.0 / 3.0), np.ones((3, 3)) / 9.0
    centring = np.eye(3) - mean
    # The covariance of the unbiased cells is a sum over the four residual spaces.
    covariance = (
        estimates.total_variance * np.kron(ones, ones)
        + variances[0,] * np.kron(centring, ones)
        + variances[1,] * np.kron(ones, centring)
        + variances[0, 1] * np.kron(centring, centring)
    )
    root = np.linalg.cholesky(np.linalg.inv(covariance)).T
    expected, _ = scipy.optimize.nnls(root, root @ answers.ravel())
    np.testing.assert_allclose(tables(("a", "b")).ravel(), expected, atol=1e-3 * expected.max())


def test_residual_tables_are_consistent_and_nonnegative():
    setting = small_trial(0.5, "abcd")
    tables = residual_tables(setting.measure(setting.plan(setting.workload), 0))
    pairs = {pair: tables(pair) for pair in itertools.combinations("abcd", 2)}
    assert min(table.min() for table in pairs.values()) >= 0.0
    for other in "cd":
        np.testing.assert_allclose(pairs["a", "b"].sum(1), pairs["a", other].sum(1), rtol=0.02)


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
