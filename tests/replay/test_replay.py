"""A short replay of random plans, and that it notices what is charged wrongly."""

from __future__ import annotations

import numpy as np
import pytest

from engine.plans import Block
from tests.replay import campaign


def test_no_release_costs_more_than_it_is_charged() -> None:
    found = list(campaign.replays(36, seed=2))
    assert [f for f in found if f.wrong] == []
    kinds = {f.kind.split()[0] for f in found}
    assert {"querysmasher", "gaussian", "laplace", "hdmm", "wff", "look,"} <= kinds
    assert {f.neighbours for f in found} >= {"add_remove", "replace_one", "a person of a panel"}


@pytest.mark.parametrize("factor", [0.999, 1.001])
def test_a_wrong_charge_is_noticed(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    honest = Block.sensitivity
    monkeypatch.setattr(Block, "sensitivity", lambda self, records: factor * honest(self, records))
    with campaign.silent():
        rng = np.random.default_rng(0)
        found = [f for _ in range(3) for f in campaign.one_step("querysmasher", {}, rng)]
    assert any(f.wrong for f in found)


def test_the_command_prints_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert campaign.main(["--plans", "2", "--seed", "5"]) == 0
    assert "2 plans: 0 charged wrongly" in capsys.readouterr().out
