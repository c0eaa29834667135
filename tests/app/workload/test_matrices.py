"""Matrix files of NumPy and spreadsheets."""

from __future__ import annotations

import io

import numpy as np
import pytest

from engine.errors import WorkloadError
from engine.workload.families import read_matrix
from tests.app.workload.sessions import open_workload


def write_numpy(array: np.ndarray, **options: bool) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        np.eye(3),
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.ones(3, bool),
    ],
    ids=["floats", "integers", "columns first", "one row"],
)
def test_numpy_files_are_read(array: np.ndarray) -> None:
    np.testing.assert_array_equal(read_matrix(write_numpy(array)), np.atleast_2d(array))


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_separators_are_recognised(separator: str) -> None:
    np.testing.assert_array_equal(
        read_matrix("1,0.5\r\n0,-2\r\n".replace(",", separator).encode()), [[1, 0.5], [0, -2]]
    )


def numpy_header(shape: str, kind: str = "<f8") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (write_numpy(np.array([{"a": 1}], dtype=object), allow_pickle=True), "real numbers"),
        (write_numpy(np.ones((2, 3, 4))), "shape"),
        (write_numpy(np.ones((2, 3), complex)), "real numbers"),
        (write_numpy(np.array([["a"]])), "real numbers"),
        (write_numpy(np.array(3.0)), "shape"),
        (write_numpy(np.eye(3))[:-5], "header"),
        (write_numpy(np.eye(3))[:20], "readable array"),
        (b"\x93NUMPY\x09\x00", "readable array"),
        (b"\x93NUMPY", "readable array"),
        (numpy_header("(1000000, 1000000)"), "at most 200,000,000"),
        (numpy_header("(-1, 3)"), "header"),
        (numpy_header("('x', 3)"), "readable array"),
        (numpy_header("(2, 3)", "|O"), "real numbers"),
        (numpy_header("__import__('os')"), "readable array"),
        (b"1,2\n3,x\n", "Line 2"),
    ],
)
def test_invalid_matrix_files_are_refused(content: bytes, words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        read_matrix(content)


@pytest.mark.parametrize(
    ("name", "three_columns", "two_rows"),
    [
        ("m.npy", write_numpy(np.eye(3)), write_numpy(np.eye(2))),
        ("m.csv", b"1,1,1\n", b"1,1\n1,-1\n"),
    ],
)
def test_uploaded_matrix_needs_one_column_per_cell(
    name: str, three_columns: bytes, two_rows: bytes
) -> None:
    session = open_workload("census", add_how="One table").set(group_names=["sex"])
    session.set(group_how="Joint", joint="custom", joint_how="Matrix file")
    assert "no matrix file" in session.errors()
    assert "no condition" in session.set(joint_how="Conditions").errors()
    session.set(joint_how="Matrix file")
    session.run(session.app.file_uploader(key="joint_file").upload(name, three_columns, ""))
    assert "3 columns" in session.errors()
    session.run(session.app.file_uploader(key="joint_file").upload(name, two_rows, ""))
    assert session.press("add_group").studio.workload.groups[0].count == 2
