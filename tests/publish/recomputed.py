"""Answers recomputed from the files of a package, in Python and in R."""

from __future__ import annotations

import subprocess

import numpy as np
import pandas as pd
import pytest

from tests.requirements import program_path


def from_files(folder, names, query):
    """Estimate and variance of a query, from the CSV files and the README's instructions."""
    attributes = pd.read_csv(folder / "attributes.csv")
    spaces = pd.read_csv(folder / "spaces.csv", keep_default_na=False)
    centers, integers = pd.read_csv(folder / "centers.csv"), pd.read_csv(folder / "integers.csv")
    ids = [attributes.set_index("name")["id"][n] for n in names]
    value = variance = 0.0
    for row in spaces.itertuples():
        axes_of_space, files = row.attributes.split(), row.matrices.split()
        if not set(axes_of_space) <= set(ids):
            continue
        part, left = np.asarray(query, float), list(ids)
        for each in [i for i in ids if i not in axes_of_space]:
            part = np.tensordot(
                part,
                centers[centers["attribute"] == each]["center"].to_numpy(),
                (left.index(each), 0),
            )
            left.remove(each)
        part = part.transpose([left.index(i) for i in axes_of_space])
        for axis, file in enumerate(files):
            matrix = np.loadtxt(folder / f"{file}.csv", delimiter=",", ndmin=2)
            part = np.moveaxis(np.tensordot(part, matrix, (axis, 0)), -1, axis)
        value += (
            float(part.ravel() @ integers[integers["space"] == row.space]["integer"].to_numpy())
            * row.grid
        )
        variance += float(np.sum(part**2)) * row.noise**2
    return value, variance


def in_r(folder):
    """Assert that the script accepts the package and rejects a wrong error or integer; skip without
    R.
    """
    if program_path("Rscript") is None:
        pytest.skip("R not installed")
    run = subprocess.run(
        ["Rscript", "recompute.R"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "largest relative difference" in run.stdout
    sums = pd.read_csv(folder / "tables.csv")
    sums.assign(sum_std=1.001 * sums["sum_std"]).to_csv(folder / "tables.csv", index=False)
    assert (
        subprocess.run(
            ["Rscript", "recompute.R"], cwd=folder, capture_output=True, check=False
        ).returncode
        == 1
    )
    sums.to_csv(folder / "tables.csv", index=False)
    integers = pd.read_csv(folder / "integers.csv")
    integers.assign(integer=1_000 * integers["integer"]).to_csv(
        folder / "integers.csv", index=False
    )
    assert (
        subprocess.run(
            ["Rscript", "recompute.R"], cwd=folder, capture_output=True, check=False
        ).returncode
        == 1
    )
