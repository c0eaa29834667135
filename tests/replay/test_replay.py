"""Short replay of random plans, and detection of wrong charges."""

from __future__ import annotations

import numpy as np
import pytest

from engine.plans import Block
from tests.replay import campaign


def test_replays_never_cost_more_than_their_charge() -> None:
    results = list(campaign.replays(36, seed=2))
    assert [f for f in results if f.wrong] == []
    kinds = {f.kind.split()[0] for f in results}
    assert {"querysmasher", "gaussian", "laplace", "hdmm", "wff", "look,"} <= kinds
    assert {f.neighbours for f in results} >= {"add_remove", "replace_one", "a person of a panel"}


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_replay_detects_wrong_charges(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    honest = Block.sensitivity
    monkeypatch.setattr(Block, "sensitivity", lambda self, records: factor * honest(self, records))
    with campaign.no_noise():
        rng = np.random.default_rng(0)
        results = [f for _ in range(3) for f in campaign.one_step("querysmasher", {}, rng)]
    assert any(f.wrong for f in results)


def test_replay_command_prints_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(["--plans", "2", "--seed", "5"]) == 0
    assert "2 plans: 0 charged wrongly" in capsys.readouterr().out
