"""Answers recomputed from the files of a package, in Python and in R."""

from __future__ import annotations

import subprocess

import numpy as np
import pandas as pd
import pytest

from tests.requirements import program_path


def answer_from_files(folder, names, query):
    """Return estimate and variance of a query, computed as the README of a package describes."""
    attributes = pd.read_csv(folder / "attributes.csv")
    spaces = pd.read_csv(folder / "spaces.csv", keep_default_na=False)
    centers, integers = pd.read_csv(folder / "centers.csv"), pd.read_csv(folder / "integers.csv")
    ids = [attributes.set_index("name")["id"][n] for n in names]
    value = variance = 0.0
    for row in spaces.itertuples():
        space = row.attributes.split()
        files = row.matrices.split()
        if not set(space) <= set(ids):
            continue
        # Transform the query to coefficients of the measured integers of this residual space:
        # average the attributes outside the space with their centers, and multiply the others by
        # the reconstruction matrices of the space.
        weights = np.asarray(query, float)
        remaining = list(ids)
        for outside in [i for i in ids if i not in space]:
            center = centers[centers["attribute"] == outside]["center"].to_numpy()
            weights = np.tensordot(weights, center, (remaining.index(outside), 0))
            remaining.remove(outside)
        weights = weights.transpose([remaining.index(i) for i in space])
        for axis, file in enumerate(files):
            matrix = np.loadtxt(folder / f"{file}.csv", delimiter=",", ndmin=2)
            weights = np.moveaxis(np.tensordot(weights, matrix, (axis, 0)), -1, axis)
        value += (
            float(weights.ravel() @ integers[integers["space"] == row.space]["integer"].to_numpy())
            * row.grid
        )
        variance += float(np.sum(weights**2)) * row.noise**2
    return value, variance


def check_r_script(folder):
    """Assert that recompute.R accepts a package and rejects a wrong standard error or integer.

    The test is skipped if R is not installed.
    """
    if program_path("Rscript") is None:
        pytest.skip("R not installed")

    def run() -> subprocess.CompletedProcess[str]:
        command = ["Rscript", "recompute.R"]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    result = run()
    assert result.returncode == 0, result.stdout + result.stderr
    assert "largest relative difference" in result.stdout
    sums = pd.read_csv(folder / "tables.csv")
    name = "check_first_plus_last_std"
    sums.assign(**{name: 1.001 * sums[name]}).to_csv(folder / "tables.csv", index=False)
    assert run().returncode == 1
    sums.to_csv(folder / "tables.csv", index=False)
    integers = pd.read_csv(folder / "integers.csv")
    integers.assign(integer=1_000 * integers["integer"]).to_csv(
        folder / "integers.csv", index=False
    )
    assert run().returncode == 1
