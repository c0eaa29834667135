"""Simulated populations: reproducible, skewed and sparse; selection rule on them."""

import numpy as np

from benchmarks.common_mechanism import BINARY, noisy, ways
from benchmarks.matrix_rules import NestedRule, census_cascade
from demo_data.make_populations import BLOCK_SIZE, RACES, TRACT_SIZE, age_tracts, race_blocks
from engine.common_mechanism.common_mechanism import CommonMechanism


def test_race_blocks_are_skewed_sparse_and_reproducible():
    blocks = race_blocks(5_000, seed=1)
    assert blocks.shape == (5_000, 2 ** len(RACES))
    np.testing.assert_array_equal(blocks, race_blocks(5_000, seed=1))
    assert (blocks != race_blocks(5_000, seed=2)).any()
    people = blocks.sum(axis=1)
    assert people.min() >= 1
    assert 0.9 < people.mean() / BLOCK_SIZE < 1.1
    assert np.median(people) < 0.7 * people.mean()
    assert (blocks > 0).mean() < 0.05


def test_age_tracts_have_realistic_sizes_and_ages():
    tracts = age_tracts(2_000, seed=1).reshape(-1, 103, 2)  # ages and sexes
    np.testing.assert_array_equal(tracts.reshape(-1, 206), age_tracts(2_000, seed=1))
    assert 0.85 < tracts.sum(axis=(1, 2)).mean() / TRACT_SIZE < 1.1
    by_age = tracts.sum(axis=(0, 2))
    assert 0.1 < by_age[65:].sum() / by_age.sum() < 0.2
    men = tracts[:, :, 0].sum() / tracts.sum()
    assert 0.45 < men < 0.55
    assert (tracts == 0).mean() > 0.05


def test_selection_rule_beats_majority_choice():
    """The setting is that of the paper: rho 1/8, half of the cells above 5 standard errors."""
    blocks = race_blocks(4_000, seed=0).astype(float)
    rng = np.random.default_rng(0)
    for fine_ways in (2, 7):
        common_mechanism = CommonMechanism(
            ways(BINARY, 1, pcost=0.25), ways(BINARY, fine_ways, pcost=0.25)
        )
        coarse, fine = common_mechanism.mechanisms
        rule = NestedRule(
            look=common_mechanism.common, coarse=coarse, fine=fine, share=0.5, snr=5, sigmas=0.0
        )
        needs_fine = rule.fine_enough(blocks @ coarse.B.T)
        chosen = rule.fine_enough(noisy(common_mechanism.common, blocks, rng) @ rule.map.T)
        accuracy = np.mean(chosen == needs_fine)
        accuracy_of_majority = max(np.mean(needs_fine), np.mean(~needs_fine))
        assert accuracy > max(0.94, accuracy_of_majority + 0.05)


def test_age_tracts_fit_census_cascade():
    tracts = age_tracts(50, seed=3)
    people_by_sex = tracts.reshape(-1, 103, 2).sum(axis=1)
    by_sex, *_ = census_cascade(pcost=1.0).analyses
    assert tracts.shape[1] == by_sex.cells == 2 * 103
    np.testing.assert_array_equal(tracts @ by_sex.B.T, people_by_sex)
