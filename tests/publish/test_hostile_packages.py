"""Verification of hostile packages within bounded time and memory."""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
import random
import re
import shutil
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demo_data.make_synthetic import synthetic
from engine.mechanisms import plan
from engine.postprocess import publish, uncertainty
from engine.privacy import Budget
from engine.publish.release_package import write_package
from engine.publish.tables_package import write_tables
from engine.publish.verify import verify_package
from engine.workload import Attribute, Schema, Workload
from tests.hostile import VALUES, places, with_value

measure = sys.modules["engine.release.measure"].measure
ROOT = Path(__file__).resolve().parents[2]
SCHEMA = Schema([Attribute.categorical("sex", ["F", "M"]), Attribute.of_size("age", 6)])
DOCUMENTS = {
    "release": ("certificate.json", "plan.json", "measurements.json", "signature.json"),
    "tables": (
        "how.json",
        "plan.json",
        "measurements.json",
        "registry.json",
        "tables.csv-metadata.json",
    ),
}
SAMPLE, MAX_MEGABYTES = 12, 500
# Largest ratio of the CPU seconds of a hostile package to those of the correct package.
MAX_TIME_RATIO = 50
# files with the same format as another tested file
SIMILAR = {
    "table2_sex.csv",
    "table3_age.csv",
    "table4_sex_age.csv",
    "matrix2.csv",
    "centers.csv",
    "attributes.csv",
    "codebook.md",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sound")
    chosen_plan = plan(Workload.all_ways(SCHEMA, ways=(0, 1, 2)), Budget(pcost=0.5))
    measurement = measure(chosen_plan, synthetic(SCHEMA, 500, seed=3), rehearsal=True)
    tables = uncertainty(publish(measurement), draws=2)
    return {
        "release": write_package(measurement, folder / "release.zip"),
        "tables": write_tables(tables, folder / "tables.zip"),
    }


@pytest.fixture
def unpacked(packages, tmp_path):
    folders = {}
    for kind, path in packages.items():
        with zipfile.ZipFile(path) as archive:
            archive.extractall(tmp_path / kind)
        folders[kind] = tmp_path / kind
    return folders


def seal(folder: Path) -> None:
    """Write the digests of the current files into the certificate."""
    path = folder / "certificate.json"
    if path.exists():
        certificate = json.loads(path.read_text())
        files = {name: folder / name for name in certificate["files"]}
        certificate["files"] = {
            name: hashlib.sha256(file.read_bytes()).hexdigest()
            for name, file in files.items()
            if file.is_file()
        }
        path.write_text(json.dumps(certificate))


def pack(folder: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, file.name)
    return path


def verdict(path: Path) -> tuple[str, ...]:
    """Return the problems that verification reports for a package.

    Each problem must be a sentence that does not name a Python error.
    """
    problems = verify_package(path)
    assert isinstance(problems, tuple)
    for text in problems:
        assert isinstance(text, str)
        assert not re.search(r"\b\w+Error\b|package: it is damaged\.$", text), text
    return problems


def check_documents(folder: Path, kind: str, sample: int | None) -> None:
    """Check that `verify` does not crash when a JSON file of a package holds a hostile value.

    Each value of a document is replaced in turn by each hostile value; ``sample`` limits the number
    of such cases per file, and None tests all.
    """
    for name in DOCUMENTS[kind]:
        path = folder / name
        if not path.exists():  # only signature.json can be absent
            path.write_text(
                json.dumps(
                    {"algorithm": "Ed25519", "public_key": "00" * 32, "signature": "00" * 64}
                )
            )
        before = path.read_bytes()
        document = json.loads(before)
        cases = [(where, value) for where in places(document) for value in VALUES]
        if sample is not None:
            cases = random.Random(5).sample(cases, min(sample, len(cases)))
        for where, value in cases:
            path.write_bytes(with_value(document, where, value))
            if name not in ("certificate.json", "signature.json"):
                seal(folder)
            verdict(folder)
        path.write_bytes(before)
        if name == "signature.json":
            path.unlink()
        seal(folder)
        assert verdict(folder) == ()


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_verify_hostile_json_values_gives_verdict(unpacked, kind) -> None:
    check_documents(unpacked[kind], kind, sample=SAMPLE)


@pytest.mark.full
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_verify_every_hostile_json_value_gives_verdict(unpacked, kind) -> None:
    check_documents(unpacked[kind], kind, sample=None)


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_verify_damaged_files_gives_problem(unpacked, kind) -> None:
    folder = unpacked[kind]
    # files whose digests are not in the certificate, or whose content is not recomputed
    unsealed = ("certificate.json", "check.py", "report.html")
    for file in sorted(file for file in folder.iterdir() if file.name not in SIMILAR):
        sound = file.read_bytes()
        contents = [
            b"",
            sound[: len(sound) // 2],
            sound * 2,
            b"\x00" * len(sound),
            b"\xff" * 100,
        ]
        if kind == "tables":  # these packages have many files, and take longer to verify
            contents = random.Random(file.name).sample(contents, 2)
        for content in contents:
            file.write_bytes(content)
            # readers of parquet and zip ignore bytes before or after their content
            is_readable = content == sound * 2 and file.suffix in (".npz", ".parquet")
            assert verdict(folder) or is_readable, file.name
            if kind == "release" and file.name not in unsealed:
                seal(folder)
                assert verdict(folder) or is_readable, file.name
            file.write_bytes(sound)
            seal(folder)
        file.unlink()
        assert verdict(folder), f"{file.name} is missing"
        file.symlink_to("/dev/zero")
        assert verdict(folder), f"{file.name} is a link"
        file.unlink()
        file.write_bytes(sound)
        seal(folder)
    assert verdict(folder) == ()


def test_verify_damaged_zip_gives_verdict(packages, tmp_path) -> None:
    rng, damaged = random.Random(8), tmp_path / "damaged.zip"
    for path in packages.values():
        sound = path.read_bytes()
        for _ in range(60):
            content = bytearray(sound)
            for _ in range(rng.choice([1, 4, 40])):
                # On average half of the damage is in the last 600 bytes, which contain the
                # directory of the zip.
                anywhere, near_end = rng.randrange(len(content)), -rng.randrange(1, 600)
                content[rng.choice([anywhere, near_end])] = rng.randrange(256)
            length = rng.choice([len(content), rng.randrange(len(content))])
            damaged.write_bytes(bytes(content[:length]))
            verdict(damaged)


def zip_with(
    path: Path,
    folder: Path,
    *,
    skip: str = "",
    extra: tuple[tuple[zipfile.ZipInfo, bytes], ...] = (),
) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.iterdir()):
            if file.name != skip:
                archive.write(file, file.name)
        for info, content in extra:
            archive.writestr(info, content)
    return path


@pytest.mark.parametrize("kind", DOCUMENTS)
@pytest.mark.parametrize(
    "name",
    [
        "plan.json",
        "PLAN.JSON",
        "../evil",
        "/elsewhere/evil",
        "a/b",
        "a\\b",
        "c:evil",
        "evil\n",
        "x" * 300,
        "folder/",
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_verify_zip_with_other_names_gives_problem(unpacked, kind, name, tmp_path) -> None:
    path = zip_with(tmp_path / "p.zip", unpacked[kind], extra=((zipfile.ZipInfo(name), b"{}"),))
    assert len(verdict(path)) == 1


def test_verify_zip_with_special_members_gives_problem(unpacked, tmp_path) -> None:
    folder, path = unpacked["release"], tmp_path / "special.zip"

    def problem_of(member: zipfile.ZipInfo, content: bytes) -> str:
        """Return the first problem of a package whose plan.json is ``member``."""
        zip_with(path, folder, skip="plan.json", extra=((member, content),))
        return verdict(path)[0]

    link = zipfile.ZipInfo("plan.json")
    link.external_attr = 0o120777 << 16  # file type and permissions of a symbolic link
    assert "link" in problem_of(link, b"/etc/passwd")
    lzma = zipfile.ZipInfo("plan.json")
    lzma.compress_type = zipfile.ZIP_LZMA
    assert "compressed" in problem_of(lzma, b"{}")
    content = bytearray(zip_with(path, folder).read_bytes())
    last_directory_entry = content.rfind(b"PK\x01\x02")
    content[last_directory_entry + 8] |= 1  # the flag of encrypted members
    path.write_bytes(bytes(content))
    assert "encrypted" in verdict(path)[0]


def test_verify_zip_with_false_directory_gives_verdict(packages, tmp_path) -> None:
    sound, damaged = packages["release"].read_bytes(), tmp_path / "damaged.zip"
    end = sound.rfind(b"PK\x05\x06")
    # fields of the end record: number of files, and size and position of the central directory
    for offset, form in ((10, "<H"), (12, "<I"), (16, "<I")):
        values = [0, 1, 0x7FFF, 0xFFFF]
        if form == "<I":
            values += [0x7FFFFFFF, 0xFFFFFFFF]
        for value in values:
            content = bytearray(sound)
            struct.pack_into(form, content, end + offset, value)
            damaged.write_bytes(bytes(content))
            verdict(damaged)
    # The ZIP64 end record states 2^62 files.
    zip64_end = struct.pack(
        "<4sQHHIIQQQQ", b"PK\x06\x06", 44, 45, 45, 0, 0, 2**62, 2**62, 2**62, 2**62
    )
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, end, 1)
    damaged.write_bytes(sound[:end] + zip64_end + locator + sound[end:])
    assert "files" in verdict(damaged)[0]


# --- time and memory, in a subprocess ---

CHILD = """
import re, sys, time
from engine.publish import verify_package
assert verify_package(sys.argv[1]) == ()
start = time.process_time()
verify_package(sys.argv[1])
correct_seconds = time.process_time() - start
for path in sys.argv[2:]:
    start = time.process_time()
    problems = verify_package(path)
    ratio = (time.process_time() - start) / correct_seconds
    memory = re.search("VmHWM: *([0-9]+)", open("/proc/self/status").read().replace(chr(9), " "))
    print(path, ratio, int(memory[1]) / 1024, len(problems), sep="|")
"""


def bomb(path: Path, folder: Path, name: str, chunk: bytes, count: int) -> Path:
    """Write a zip package in which the file ``name`` consists of ``count`` times ``chunk``.

    The certificate has the correct digest of this file, unless the file is the certificate.
    """
    digest = hashlib.sha256()
    for _ in range(count):
        digest.update(chunk)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for file in sorted(folder.iterdir()):
            if file.name == name:
                continue
            if file.name == "certificate.json":
                certificate = json.loads(file.read_text())
                certificate["files"][name] = digest.hexdigest()
                archive.writestr(file.name, json.dumps(certificate))
            else:
                archive.write(file, file.name)
        with archive.open(name, "w", force_zip64=True) as member:
            for _ in range(count):
                member.write(chunk)
    return path


def parquet_bomb(folder: Path) -> None:
    table = pq.read_table(folder / "answers.parquet")
    long = pa.array(["0" * (64 * MB)] + [""] * (len(table) - 1), pa.string())
    pq.write_table(
        table.set_column(table.column_names.index("query"), "query", long),
        folder / "answers.parquet",
    )


def dictionary_bomb(folder: Path) -> None:
    """Replace all query texts of answers.parquet by one text of 1 MB, which is stored only once."""
    table = pq.read_table(folder / "answers.parquet")
    long = pa.array(["0" * MB] * len(table), pa.string())
    pq.write_table(
        table.set_column(table.column_names.index("query"), "query", long),
        folder / "answers.parquet",
    )


def array_bomb(folder: Path) -> None:
    with np.load(folder / "measurements.npz") as arrays:
        contents = dict(arrays)
    with zipfile.ZipFile(
        folder / "measurements.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1
    ) as archive:
        for name, array in contents.items():
            content = io.BytesIO()
            np.save(content, array)
            archive.writestr(
                f"{name}.npy", content.getvalue() + bytes(300 * MB if name == "block0" else 0)
            )


def matrix_bomb(folder: Path) -> None:
    document = json.loads((folder / "plan.json").read_text())
    packed = base64.b64encode(zlib.compress(bytes(100 * MB))).decode()
    family = {"name": "custom", "shape": [50 * MB, 2], "matrix": packed}
    document["workload"]["groups"].append({"attributes": ["sex"], "family": family, "weight": 1.0})
    (folder / "plan.json").write_text(json.dumps(document))


MB = 1 << 20
BOMBS = (
    ("release", "answers.csv", b"0" * MB, 300),
    ("release", "certificate.json", b"[" * MB, 300),
    ("release", "plan.json", b"[],{}," * (MB // 6), 140),
    ("release", "plan.json", b"0" * MB, 110),
    ("release", "plan.json", "\U0001f600".encode() * (MB // 4), 45),
    ("tables", "table1_total.csv", b"," * MB, 300),
)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_verify_bombs_within_limits(packages, unpacked, tmp_path) -> None:
    paths = [
        bomb(tmp_path / f"{number}.zip", unpacked[kind], name, chunk, count)
        for number, (kind, name, chunk, count) in enumerate(BOMBS)
    ]
    for change in (parquet_bomb, dictionary_bomb, array_bomb, matrix_bomb):
        folder = shutil.copytree(unpacked["release"], tmp_path / change.__name__)
        change(folder)
        seal(folder)
        paths.append(pack(folder, tmp_path / f"{change.__name__}.zip"))
    many_members = tmp_path / "members.zip"
    with zipfile.ZipFile(many_members, "w") as archive:
        archive.writestr("0", b"")
        # the directory lists the same content under many names
        (member,) = archive.filelist
        for number in range(1, 60_000):
            repeated = copy.copy(member)
            repeated.filename = f"{number}"
            archive.filelist.append(repeated)
    paths.append(many_members)
    assert max(path.stat().st_size for path in paths) < 8 * MB
    # in one new process, so that the peak memory is that of the packages
    command = [sys.executable, "-c", CHILD, packages["release"], *paths]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == len(paths)
    for line in lines:
        _, ratio, megabytes, problems = line.split("|")
        assert int(problems) > 0, line
        assert float(ratio) < MAX_TIME_RATIO, line
        assert float(megabytes) < MAX_MEGABYTES, line
