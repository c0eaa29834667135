"""Interval queries on many cells, as benchmarks use them, compared with explicit matrices."""

import numpy as np
import pytest

from benchmarks.interval_strategies import (
    IntervalQueries,
    circulant_error,
    p_identity_error,
)
from engine.mechanisms import kronecker
from engine.workload import Range, Width
from engine.workload.families import Prefix

FAMILIES = {"range": Range(), "prefix": Prefix(), "width32": Width(32)}


@pytest.mark.parametrize("name", FAMILIES)
def test_interval_queries_equal_query_matrix(name: str) -> None:
    queries, gram = IntervalQueries(name=name, cells=50), FAMILIES[name].gram((50,))
    rows = np.random.default_rng(0).random((3, 50))
    np.testing.assert_allclose(queries.times_gram(rows), rows @ gram, rtol=1e-12)
    np.testing.assert_allclose(queries.diagonal, np.diag(gram))
    assert queries.count == FAMILIES[name].count((50,))
    error, gradient = p_identity_error(rows, queries)
    expected, expected_gradient = kronecker.p_identity_error(rows, gram)
    assert error == pytest.approx(expected, rel=1e-10)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-8, atol=1e-8 * expected)


def test_circulant_error_equals_error_of_matrix() -> None:
    # The matrix of the circulant strategy has the singular values of the queries in the Fourier
    # basis.
    n, gram = 64, Width(32).gram((64,))
    basis = np.fft.fft(np.eye(n), norm="ortho")
    eigenvalues = np.diag(basis.conj() @ gram @ basis.T).real
    singular_values = np.sqrt(np.maximum(eigenvalues, 1e-12))
    inverse = np.real(basis.conj().T @ np.diag(1.0 / singular_values) @ basis)
    expected = np.trace(inverse @ gram) * singular_values.mean()
    assert circulant_error(IntervalQueries(name="width32", cells=n)) == pytest.approx(expected)
