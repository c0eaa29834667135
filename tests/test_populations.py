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
    blocks, random = race_blocks(4_000, seed=0).astype(float), np.random.default_rng(0)
    for fine_ways in (2, 7):
        both = CommonMechanism(ways(BINARY, 1, pcost=0.25), ways(BINARY, fine_ways, pcost=0.25))
        coarse, fine = both.mechanisms
        rule = NestedRule(look=both.common, coarse=coarse, fine=fine, share=0.5, snr=5, sigmas=0.0)
        right = rule.fine_enough(blocks @ coarse.B.T)
        chosen = rule.fine_enough(noisy(both.common, blocks, random) @ rule.map.T)
        assert np.mean(chosen == right) > max(np.mean(right), np.mean(~right)) + 0.05
        assert np.mean(chosen == right) > 0.94


def test_age_tracts_fit_census_cascade():
    tracts = age_tracts(50, seed=3)
    chain = census_cascade(pcost=1.0)
    assert tracts.shape[1] == chain.analyses[0].cells == 2 * 103
    np.testing.assert_array_equal(
        tracts @ chain.analyses[0].B.T, tracts.reshape(-1, 103, 2).sum(axis=1)
    )
