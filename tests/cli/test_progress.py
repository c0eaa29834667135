"""Progress, limits and cancellation on the command line, in notebooks and in Python."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from demo_data.make_synthetic import synthetic
from engine.analysis.compare import compare
from engine.cli.main import main
from engine.cli.output import in_options
from engine.errors import Cancelled, EngineError, LimitExceeded
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.postprocess import publish
from engine.privacy import Budget
from engine.progress import Bar
from engine.publish import write_answers
from engine.release import measure
from engine.workload import Attribute, Schema, Workload
from tests.cli.commands import RELEASE, Capture, run

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = Schema([Attribute.of_size("age", 5), Attribute.of_size("hours", 4)])
WORKLOAD = Workload.all_ways(SCHEMA, (1, 2))
PLAN = plan(WORKLOAD, Budget(pcost=1.0))
RECORDS = synthetic(SCHEMA, 100, seed=1)
MEASURED = measure(PLAN, RECORDS, rehearsal=True)
# a new budget per comparison, because cached comparisons cannot be cancelled
NEW_PCOSTS = iter((3.0, 3.5, 4.0))

LONG_WORK: dict[str, Callable[..., object]] = {
    "plan": lambda folder, **options: plan(WORKLOAD, Budget(pcost=2.0), **options),
    "measure": lambda folder, **options: measure(PLAN, RECORDS, rehearsal=True, **options),
    "compare": lambda folder, **options: compare(
        WORKLOAD, Budget(pcost=next(NEW_PCOSTS)), ["identity"], **options
    ),
    "publish": lambda folder, **options: publish(MEASURED, **options),
    "write": lambda folder, **options: write_answers(
        MEASURED, folder / "a.csv", format="csv", **options
    ),
}


@pytest.mark.parametrize("work", LONG_WORK)
def test_long_tasks_share_progress_and_cancel_interface(
    work: str, tmp_path: Path, capsys: Capture
) -> None:
    LONG_WORK[work](tmp_path, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines
    assert all(re.match(r"[ \d]{2}\d%  ", line) for line in lines)
    (tmp_path / "a.csv").unlink(missing_ok=True)
    with pytest.raises(Cancelled):
        LONG_WORK[work](tmp_path, progress=lambda fraction, text: False)
    with pytest.raises(EngineError, match="progress"):
        LONG_WORK[work](tmp_path, progress="yes")
    assert list(tmp_path.iterdir()) == []


class RecordedBar:
    """Replacement of tqdm that records its calls."""

    instances: ClassVar[list[RecordedBar]] = []

    def __init__(self, **options: Any) -> None:
        self.n, self.open, self.texts = 0.0, True, list[str]()
        RecordedBar.instances.append(self)

    def update(self, by: float) -> None:
        self.n += by

    def set_description_str(self, text: str, refresh: bool) -> None:
        self.texts.append(text)

    def close(self) -> None:
        self.open = False


def test_bar_in_notebook_opens_one_per_part(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(RecordedBar, "instances", [])
    monkeypatch.setattr("tqdm.auto.tqdm", RecordedBar)
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    with Bar() as bar:
        # a part ends where the fraction decreases
        reports = ((0.0, "count"), (0.5, "count"), (1.0, "done"), (0.25, "write"), (0.2, "again"))
        for fraction, text in reports:
            bar(fraction, text)
        assert [bar.open for bar in RecordedBar.instances] == [False, False, True]
    assert [bar.n for bar in RecordedBar.instances] == [100.0, 25.0, 20.0]
    assert not RecordedBar.instances[-1].open
    assert RecordedBar.instances[0].texts == ["count", "count", "done"]
    assert capsys.readouterr() == ("", "")


def test_memory_limit_gives_same_error_in_cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text('{"age": 500, "hours": 400}')
    large = Workload.all_ways(Schema.from_json(Path("schema.json").read_bytes()), (2,))
    with pytest.raises(LimitExceeded) as caught:
        plan(large, Budget(pcost=1.0), memory_limit=1e5)
    command = ["plan", "--schema", "schema.json", "--ways", "2", "--pcost", "1", "--out", "p.json"]
    assert main([*command, "--options", "memory_limit=1e5"]) == 1
    assert f"LimitExceeded: {in_options(caught.value)}\n" in capsys.readouterr().err
    assert not Path("p.json").exists()


def test_interrupt_after_spend_waits_for_saved_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_text(PLAN.to_json())
    RECORDS.to_csv("people.csv", index=False)
    Ledger.create("office").add_dataset("people", total=Budget(pcost=2.0))
    # Spark leaves a handler of its own in a process that has used it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    measuring = sys.modules["engine.release.measure"]
    draw = measuring.draw

    def interrupted_draw(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return draw(*args)

    with monkeypatch.context() as patch:
        patch.setattr(measuring, "draw", interrupted_draw)
        assert run(f"{RELEASE} --out a.csv") == 130
    output = capsys.readouterr()
    assert (output.out, output.err.splitlines()[-1]) == ("", "Stopped.")
    assert not Path("a.csv").exists()
    assert Ledger("office").status("people").spent == PLAN.pcost
    # the result is saved, not only recoverable from the journal
    assert [row.kind for row in Ledger("office").rows()][-2:] == ["spend", "saved"]
    assert main(["verify", "--ledger", "office"]) == 0
    assert run(f"{RELEASE} --out a.csv") == 0
    assert "nothing was spent now" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupt_during_search_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(str({f"a{i}": 60 for i in range(30)}).replace("'", '"'))
    args = "plan --schema schema.json --ways 1 2 3 --pcost 1 --out plan.json"
    args += " --options centers=tuned cache=false"
    command = [sys.executable, "-m", "engine", *args.split()]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    path = {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=path, start_new_session=True, **pipes) as run:
        assert run.stderr is not None
        assert run.stdout is not None
        assert "%  " in run.stderr.readline()
        # a terminal signals all processes of the group
        os.killpg(run.pid, signal.SIGINT)
        output = run.stderr.read()
        assert output.splitlines()[-1] == "Stopped."
        assert run.stdout.read() == ""
        assert "Traceback" not in output
    # The shell's code 130 means exit with 130 or end by SIGINT. If the signal arrives while an
    # import executes source text, as dataclasses do, CPython ends the process by the signal
    # although the command caught it.
    assert run.returncode in (130, -signal.SIGINT)
    assert [path.name for path in tmp_path.iterdir()] == ["schema.json"]
