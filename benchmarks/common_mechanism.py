"""The published numbers of the common mechanism beside ours.

    python -m benchmarks.common_mechanism                   shares of the budget saved: they need no data
    python -m benchmarks.common_mechanism --data FILE.npz   also tables 5 and 6, on the Brazil counts of the paper

FILE holds an array `counts`, one row per state and occupation, one column per cell of age 101 x sex 2.  Choices are
simulated with ordinary floating-point noise; nothing here is a release.

Source: Xiao, Wang, Zhang and Kifer 2022, section 7.
"""

import argparse
import itertools
import time
from pathlib import Path

import numpy as np

from engine.common import CommonMechanism, census_cascade
from engine.decide import NestedRule, exponential_probabilities, reserved_look
from engine.linear import LinearMechanism

BINARY, AGES = (2,) * 7, (101, 2)
SAVED = {  # domain, coarse and fine ways, and the share printed in the tables, in percent
    "tables 2-4: 1-way vs 2-way, 2^7": (BINARY, 1, 2, 75.0),
    "tables 2-4: 1-way vs identity, 2^7": (BINARY, 1, 7, 6.25),
    "tables 5-6: 1-way vs 2-way, 101 x 2": (AGES, 1, 2, 50.5),
}
CASCADE = {  # 1/rho: % of tracts that should choose Total, Age4, Age9, Age23, and the % saved, as printed in table 7
    8: (0.34, 0.68, 1.64, 97.34, 49.67),
    32: (0.39, 1.31, 12.61, 85.69, 49.59),
    72: (0.45, 3.46, 31.51, 64.58, 48.92),
    128: (0.50, 8.08, 49.95, 41.47, 47.74),
    200: (0.56, 14.50, 61.43, 23.51, 46.11),
    288: (0.63, 22.55, 64.85, 11.97, 46.06),
}
BRAZIL = {  # (rho, x, y): % that should choose the 1-way marginals, and the accuracy, as printed in tables 5 and 6
    (2, 0.3, 3): (71.47, 96.95),
    (1, 0.3, 3): (71.47, 97.86),
    (1 / 2, 0.3, 3): (78.65, 98.29),
    (1 / 8, 0.3, 3): (85.30, 98.94),
    (1 / 32, 0.3, 3): (90.66, 99.20),
    (2, 0.2, 3): (58.56, 96.27),
    (2, 0.4, 3): (81.14, 97.55),
    (2, 0.5, 3): (88.78, 98.46),
    (2, 0.6, 3): (94.58, 99.18),
    (2, 0.3, 4): (71.47, 98.41),
    (2, 0.3, 5): (75.78, 99.03),
    (2, 0.3, 6): (78.65, 99.00),
    (2, 0.3, 8): (80.94, 99.40),
}
NEAR = 0.3  # percentage points


def ways(sizes: tuple[int, ...], k: int, *, pcost: float = 1.0) -> LinearMechanism:
    """All k-way marginals with equal independent noise."""
    tables = []
    for kept in itertools.combinations(range(len(sizes)), k):
        rows = np.ones((1, 1))
        for i, size in enumerate(sizes):
            rows = np.kron(rows, np.eye(size) if i in kept else np.ones((1, size)))
        tables.append(rows)
    B = np.vstack(tables)
    return LinearMechanism(B, np.eye(len(B)) * len(tables) / pcost)


def savings() -> None:
    """The shares that depend on the queries alone, and what the cheapest look of equal variances would cost."""
    print(f"{'% of the budget saved':<38}{'paper':>9}{'ours':>9}{'cheapest equal look (proven bound)':>37}")
    for name, (sizes, coarse, fine, printed) in SAVED.items():
        both = CommonMechanism(ways(sizes, coarse), ways(sizes, fine))
        queries = both.mechanisms[0].B
        rival = reserved_look(queries, np.diag(both.common.covariance(queries)))
        cheapest = f"{100 * rival.mechanism.pcost:.3f} ({100 * rival.bound:.3f})"
        print(f"{name:<38}{printed:>9.2f}{100 * both.saved:>9.3f}{cheapest:>37}")


def cascade() -> None:
    """Table 7's savings from its printed choices; the last look is counted outside the bin that both options share."""
    chain = census_cascade(pcost=1.0)
    costs = [np.diag(look.privacy_cost_matrix()) for look in chain.looks]
    left = np.diag(chain.residuals[-1].privacy_cost_matrix())
    by_sex = [costs[0].max(), costs[1].max(), costs[2][left > 1e-9].max()]
    one_total = [by_sex[0] / 2, *by_sex[1:]]  # the first look without sex, as the printed column has it
    print(
        f"\ntable 7: looks cost {by_sex[0]:.2%}, {by_sex[1]:.2%} and {costs[2].max():.0%} of the budget, the last one"
    )
    print(f"{by_sex[2]:.0%} outside ages 0-4, which Age9 and Age23 tell alike")
    print(f"{'rho':<38}{'paper':>9}{'by sex':>9}{'one total':>11}")
    for rho, (*chosen, printed) in CASCADE.items():
        shares = [np.dot(chosen, [*looks, looks[2]]) for looks in (by_sex, one_total)]
        print(f"1/{rho:<36}{printed:>9.2f}{shares[0]:>9.2f}{shares[1]:>11.2f}")


def brazil_rule(rho: float, share: float, snr: float) -> tuple[CommonMechanism, NestedRule]:
    """The pair of tables 5 and 6 with the rule of the experiments, which takes the estimate for the count."""
    both = CommonMechanism(ways(AGES, 1, pcost=2 * rho), ways(AGES, 2, pcost=2 * rho))
    coarse, fine = both.mechanisms
    return both, NestedRule(look=both.common, coarse=coarse, fine=fine, share=share, snr=snr, sigmas=0.0)


def noisy(mechanism: LinearMechanism, counts: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Outputs of a mechanism in standard form, one row per table."""
    exact = counts @ mechanism.B.T
    return exact + random.standard_normal(exact.shape)


def accuracy(counts: np.ndarray, *, repeats: int, seed: int) -> None:
    """Tables 5 and 6: how often the look leads to the choice that the exact counts ask for."""
    random, near = np.random.default_rng(seed), 0
    print(
        f"\n{'tables 5 and 6: rho, x, y':<22}{'%M1 paper':>11}{'ours':>8}{'% right paper':>15}{'ours':>8}{'within':>9}"
    )
    for (rho, share, snr), (printed_coarse, printed) in BRAZIL.items():
        both, rule = brazil_rule(rho, share, snr)
        right = rule.fine_enough(counts @ both.mechanisms[0].B.T)
        hits = [
            np.mean(rule.fine_enough(noisy(both.common, counts, random) @ rule.map.T) == right) for _ in range(repeats)
        ]
        ours = 100 * float(np.mean(hits))
        near += abs(ours - printed) <= NEAR
        text = "yes" if abs(ours - printed) <= NEAR else f"{ours - printed:+.2f}"
        print(
            f"{rho:<10.5g}{share:<6}{snr:<6}{printed_coarse:>11.2f}{100 * np.mean(~right):>8.2f}"
            f"{printed:>15.2f}{ours:>8.2f}{text:>9}"
        )
    print(f"{near} of {len(BRAZIL)} rows within {NEAR} points of the paper ({repeats} runs each)")


def rivals(counts: np.ndarray, *, repeats: int, seed: int) -> None:
    """Other ways to choose at rho 2, x 0.3, y 3, and what they cost beyond the chosen analysis."""
    random = np.random.default_rng(seed)
    both, rule = brazil_rule(2, 0.3, 3)
    coarse, budget = both.mechanisms[0], both.mechanisms[0].pcost
    exact, totals = counts @ coarse.B.T, counts.sum(axis=1)
    right = rule.fine_enough(exact)
    print(f"\n{'rivals at rho 2, x 0.3, y 3':<52}{'% right':>9}{'% of budget':>13}")

    def line(name: str, share_right: float, cost: float) -> None:
        print(f"{name:<52}{100 * share_right:>9.2f}{100 * cost:>13.2f}")

    def looks(look: LinearMechanism) -> float:
        read = look.estimates(coarse.B)
        hits = [np.mean(rule.fine_enough(noisy(look, counts, random) @ read.T) == right) for _ in range(repeats)]
        return float(np.mean(hits))

    line("common mechanism", looks(both.common), 0.0)
    reserved = reserved_look(coarse.B, np.diag(both.common.covariance(coarse.B))).mechanism
    line("reserved budget, cheapest look of equal variances", looks(reserved), reserved.pcost / budget)
    order = np.argsort(totals)
    below = np.r_[0, np.cumsum(~right[order])] + np.r_[right.sum(), right.sum() - np.cumsum(right[order])]
    possible = np.r_[True, np.diff(totals[order]) > 0, True]  # a threshold cannot part equal totals
    line("threshold on the exact total, tuned (not private)", float(below[possible].max() / len(counts)), 0.0)
    stand_out = (exact / rule.errors["fine"] >= rule.snr).sum(axis=1) - rule.share * exact.shape[1]
    for cost in (0.01, 0.1, reserved.pcost / budget):
        # one record is in two marginal cells, so it moves the number that stand out by 2 at most
        law = exponential_probabilities(np.stack([-stand_out, stand_out], axis=1), sensitivity=2, pcost=cost * budget)
        line("exponential mechanism", float(np.mean(np.where(right, law[:, 1], law[:, 0]))), cost)
    line("always the more frequent choice", float(max(np.mean(right), np.mean(~right))), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="npz file with the Brazil counts")
    parser.add_argument("--repeats", type=int, default=5, help="simulated looks per table")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    savings()
    cascade()
    if options.data:
        with np.load(options.data) as file:
            counts = file["counts"].astype(np.float64)
        accuracy(counts, repeats=options.repeats, seed=options.seed)
        rivals(counts, repeats=options.repeats, seed=options.seed)
    else:
        print("\nTables 5 and 6 need the Brazil counts: give --data FILE.npz")
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
