"""Short replay of random plans, and detection of wrong charges."""

from __future__ import annotations

import numpy as np
import pytest

from engine.plans import Block
from tests.replay import campaign


def test_replays_never_cost_more_than_their_charge() -> None:
    replays = list(campaign.replays(36, seed=2))
    assert [replay for replay in replays if replay.wrong] == []
    mechanisms = {replay.kind.split()[0] for replay in replays}
    assert {"querysmasher", "gaussian", "laplace", "hdmm", "wff", "look,"} <= mechanisms
    neighbours = {replay.neighbours for replay in replays}
    assert {"add_remove", "replace_one", "a person of a panel"} <= neighbours


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_replay_detects_wrong_charges(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    sensitivity = Block.sensitivity
    monkeypatch.setattr(
        Block, "sensitivity", lambda self, records: factor * sensitivity(self, records)
    )
    with campaign.no_noise():
        rng = np.random.default_rng(0)
        replays = [
            replay for _ in range(3) for replay in campaign.one_step("querysmasher", {}, rng)
        ]
    assert any(replay.wrong for replay in replays)


def test_replay_command_prints_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(["--plans", "2", "--seed", "5"]) == 0
    assert "2 plans: 0 charged wrongly" in capsys.readouterr().out
