"""Published numbers of the common mechanism, compared with ours.

    python -m benchmarks.common_mechanism                   shares saved; tables 2-4 and 7 on simulated populations
    python -m benchmarks.common_mechanism --data FILE.npz   also tables 5 and 6, on the Brazil counts of the paper
    python -m benchmarks.common_mechanism --write           the same, saved in benchmarks/common_mechanism.txt

FILE contains an array `counts`, one row per state and occupation, one column per cell of age 101 x
sex 2. The census tables behind tables 2-4 and 7 are not available: `demo_data.make_populations`
simulates tables of the same shape, so shares of choices differ from the paper. Choices are
simulated with floating-point noise; nothing here is a release.

Source: Xiao, Wang, Zhang and Kifer 2022, section 7.
"""

import argparse
import math
import sys
import time
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TextIO

import numpy as np

import demo_data
from benchmarks.baseline_rules import exponential_probabilities, reserved_look
from benchmarks.matrix_rules import NestedChain, NestedRule, census_cascade
from demo_data.make_populations import age_tracts, race_blocks
from engine.common_mechanism.common_mechanism import CommonMechanism, LinearMechanism
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Schema, Workload
from tests.common_mechanism.matrices import marginals

BINARY, AGES = (2,) * 7, (101, 2)
SAVED = {  # domain, coarse and fine ways, and the share printed in the tables, in percent
    "tables 2-4: 1-way vs 2-way, 2^7": (BINARY, 1, 2, 75.0),
    "tables 2-4: 1-way vs identity, 2^7": (BINARY, 1, 7, 6.25),
    "tables 5-6: 1-way vs 2-way, 101 x 2": (AGES, 1, 2, 50.5),
}
# 1/rho: % of tracts that should choose Total, Age4, Age9, Age23, and the % saved, as printed in
# table 7
CASCADE = {
    8: (0.34, 0.68, 1.64, 97.34, 49.67),
    32: (0.39, 1.31, 12.61, 85.69, 49.59),
    72: (0.45, 3.46, 31.51, 64.58, 48.92),
    128: (0.50, 8.08, 49.95, 41.47, 47.74),
    200: (0.56, 14.50, 61.43, 23.51, 46.11),
    288: (0.63, 22.55, 64.85, 11.97, 46.06),
}
# (rho, x, y): % that should choose the 1-way marginals, and the accuracy, as printed in tables 5
# and 6
BRAZIL = {
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
# As printed in tables 2, 3 and 4: number of attributes of the fine marginals -> (rho, x, y) -> %
# that should choose the 1-way marginals, and the accuracy.
RACES = {
    2: {
        (2, 0.5, 5): (45.54, 98.64),
        (1, 0.5, 5): (54.35, 97.98),
        (1 / 2, 0.5, 5): (65.47, 98.37),
        (1 / 8, 0.5, 5): (84.12, 98.84),
        (1 / 32, 0.5, 5): (94.41, 99.56),
        (1 / 8, 0.5, 2): (58.08, 95.56),
        (1 / 8, 0.5, 3): (70.57, 97.22),
        (1 / 8, 0.5, 4): (78.75, 98.20),
        (1 / 8, 0.5, 6): (87.82, 99.22),
        (1 / 8, 0.5, 8): (92.10, 99.61),
        (1 / 8, 0.2, 5): (79.61, 99.07),
        (1 / 8, 0.3, 5): (81.25, 98.97),
        (1 / 8, 0.4, 5): (82.96, 98.95),
        (1 / 8, 0.6, 5): (97.95, 99.85),
    },
    7: {
        (2, 0.5, 5): (50.20, 95.00),
        (1, 0.5, 5): (61.46, 95.37),
        (1 / 2, 0.5, 5): (71.32, 95.40),
        (1 / 8, 0.5, 5): (88.27, 97.53),
        (1 / 32, 0.5, 5): (95.98, 99.08),
        (1 / 8, 0.5, 2): (64.52, 88.83),
        (1 / 8, 0.5, 3): (76.58, 93.56),
        (1 / 8, 0.5, 4): (83.85, 96.08),
        (1 / 8, 0.5, 6): (91.07, 98.35),
        (1 / 8, 0.5, 8): (94.27, 99.17),
        (1 / 8, 0.2, 5): (84.42, 97.05),
        (1 / 8, 0.3, 5): (85.86, 97.44),
        (1 / 8, 0.4, 5): (87.30, 97.55),
        (1 / 8, 0.6, 5): (98.50, 99.65),
    },
}
# 1/rho -> % of right choices, as printed in table 7
ACCURACY = {8: 99.80, 32: 98.74, 72: 97.32, 128: 96.09, 200: 95.88, 288: 95.75}
BLOCKS, TRACTS = 100_000, 20_000
NEAR = 0.3  # percentage points
OUTPUT = Path(__file__).with_suffix(".txt")


def ways(sizes: tuple[int, ...], k: int, *, pcost: float = 1.0) -> LinearMechanism:
    """Return all k-way marginals with equal independent noise."""
    B = marginals(sizes, k)
    return LinearMechanism(B, np.eye(len(B)) * math.comb(len(sizes), k) / pcost)


def savings() -> None:
    """Saved shares of the budget, and the cost of the cheapest look of equal variances."""
    print(
        f"{'% of the budget saved':<38}{'paper':>9}{'ours':>9}{'cheapest equal look (proven bound)':>37}"
    )
    for name, (sizes, coarse, fine, printed) in SAVED.items():
        both = CommonMechanism(ways(sizes, coarse), ways(sizes, fine))
        queries = both.mechanisms[0].B
        rival = reserved_look(queries, np.diag(both.common.covariance(queries)))
        cheapest = f"{100 * rival.mechanism.pcost:.3f} ({100 * rival.bound:.3f})"
        print(f"{name:<38}{printed:>9.2f}{100 * both.saved:>9.3f}{cheapest:>37}")


def cascade() -> None:
    """Print the savings of table 7 that follow from its printed choices; see `look_costs`."""
    chain = census_cascade(pcost=1.0)
    by_sex, last = look_costs(chain), chain.looks[2].pcost
    # in the printed column the first look (first stage) measures one total without the attribute
    # sex, which costs half as much
    one_total = [by_sex[0] / 2, *by_sex[1:]]
    print(
        f"\ntable 7: looks cost {by_sex[0]:.2%}, {by_sex[1]:.2%} and {last:.0%} of the budget, the"
        " last one"
    )
    print(f"{by_sex[2]:.0%} outside ages 0-4, which Age9 and Age23 tell alike")
    print(f"{'rho':<38}{'paper':>9}{'by sex':>9}{'one total':>11}")
    for rho, (*chosen, printed) in CASCADE.items():
        # at 1/288 the printed 46.06 does not follow from the printed choices by the rule of the
        # other rows; 44.06 does
        shares = [np.dot(chosen, [*looks, looks[2]]) for looks in (by_sex, one_total)]
        print(f"1/{rho:<36}{printed:>9.2f}{shares[0]:>9.2f}{shares[1]:>11.2f}")


def brazil_rule(rho: float, share: float, snr: float) -> tuple[CommonMechanism, NestedRule]:
    """The pair of tables 5 and 6 with the rule of the experiments, which takes the estimate for the
    count.
    """
    both = CommonMechanism(ways(AGES, 1, pcost=2 * rho), ways(AGES, 2, pcost=2 * rho))
    coarse, fine = both.mechanisms
    return both, NestedRule(
        look=both.common, coarse=coarse, fine=fine, share=share, snr=snr, sigmas=0.0
    )


def noisy(
    mechanism: LinearMechanism, counts: np.ndarray, random: np.random.Generator
) -> np.ndarray:
    """Outputs of a mechanism in standard form, one row per table."""
    exact = counts @ mechanism.B.T
    return exact + random.standard_normal(exact.shape)


def accuracy(counts: np.ndarray, *, repeats: int, seed: int) -> None:
    """Print tables 5 and 6: how often the choices by the look and by exact counts agree."""
    random, near = np.random.default_rng(seed), 0
    print(
        f"\n{'tables 5 and 6: rho, x, y':<22}{'%M1 paper':>11}{'ours':>8}{'% right paper':>15}{'ours':>8}{'within':>9}"
    )
    for (rho, share, snr), (printed_coarse, printed) in BRAZIL.items():
        both, rule = brazil_rule(rho, share, snr)
        right = rule.fine_enough(counts @ both.mechanisms[0].B.T)
        hits = [
            np.mean(rule.fine_enough(noisy(both.common, counts, random) @ rule.map.T) == right)
            for _ in range(repeats)
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
    """Baseline choices at rho 2, x 0.3, y 3, and their cost in addition to the analysis."""
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
        hits = [
            np.mean(rule.fine_enough(noisy(look, counts, random) @ read.T) == right)
            for _ in range(repeats)
        ]
        return float(np.mean(hits))

    line("common mechanism", looks(both.common), 0.0)
    reserved = reserved_look(coarse.B, np.diag(both.common.covariance(coarse.B))).mechanism
    line(
        "reserved budget, cheapest look of equal variances",
        looks(reserved),
        reserved.pcost / budget,
    )
    order = np.argsort(totals)
    below = (
        np.r_[0, np.cumsum(~right[order])]
        + np.r_[right.sum(), right.sum() - np.cumsum(right[order])]
    )
    possible = np.r_[True, np.diff(totals[order]) > 0, True]  # a threshold cannot part equal totals
    line(
        "threshold on the exact total, tuned (not private)",
        float(below[possible].max() / len(counts)),
        0.0,
    )
    excess_cells = (exact / rule.errors["fine"] >= rule.snr).sum(axis=1) - rule.share * exact.shape[
        1
    ]
    for cost in (0.01, 0.1, reserved.pcost / budget):
        # one record is in two marginal cells, so it changes the number of exceeding cells by at
        # most 2
        law = exponential_probabilities(
            np.stack([-excess_cells, excess_cells], axis=1), sensitivity=2, pcost=cost * budget
        )
        line("exponential mechanism", float(np.mean(np.where(right, law[:, 1], law[:, 0]))), cost)
    line("always the more frequent choice", float(max(np.mean(right), np.mean(~right))), 0.0)


def one_table(k: int, *, pcost: float) -> float:
    """Return the standard error of a 1-way cell that is summed from a single k-way table.

    All tables on the attribute together would give a smaller error.
    """
    return math.sqrt(2 ** (k - 1) * math.comb(len(BINARY), k) / pcost)


def races(*, blocks: int, seed: int) -> None:
    """Print tables 2 to 4 on simulated blocks: right choices by the look, and by frequency alone.

    The printed shares of M1 fit a fine analysis that sums a 1-way cell from a single 2-way table.
    From all six tables together the cell has a smaller error, so that the fine analysis is right
    more often and fewer choices are clear.
    """
    random, counts = np.random.default_rng(seed), race_blocks(blocks, seed).astype(np.float64)
    for ways_, as_printed in ((2, True), (2, False), (7, False)):
        rows, name = RACES[ways_], "identity" if ways_ == 7 else f"{ways_}-way"
        how = ""
        if ways_ != 7:
            how = ", one table a cell" if as_printed else ", best use of all tables"
        print(f"\ntables 2-4, 1-way vs {name}{how}, {blocks:,} SIMULATED blocks")
        print(
            f"{'rho, x, y':<22}{'%M1 paper':>11}{'ours':>8}{'% right paper':>15}{'ours':>8}{'% right by frequency':>22}"
        )
        above = 0
        for (rho, share, snr), (printed_coarse, printed) in rows.items():
            both = CommonMechanism(
                ways(BINARY, 1, pcost=2 * rho), ways(BINARY, ways_, pcost=2 * rho)
            )
            coarse, fine = both.mechanisms
            rule = NestedRule(
                look=both.common, coarse=coarse, fine=fine, share=share, snr=snr, sigmas=0.0
            )
            if as_printed:
                rule.errors["fine"] = np.full(len(coarse.B), one_table(ways_, pcost=2 * rho))
            right = rule.fine_enough(counts @ coarse.B.T)
            ours = 100 * float(
                np.mean(rule.fine_enough(noisy(both.common, counts, random) @ rule.map.T) == right)
            )
            majority = 100 * float(max(np.mean(right), np.mean(~right)))
            above += ours > majority
            print(
                f"{rho:<10.5g}{share:<6}{snr:<6}{printed_coarse:>11.2f}{100 * np.mean(~right):>8.2f}"
                f"{printed:>15.2f}{ours:>8.2f}{majority:>22.2f}"
            )
        print(f"{above} of {len(rows)} rows above the more frequent choice")


def tracts(*, count: int, seed: int) -> None:
    """Table 7 on simulated tracts: successive decisions, each from all looks so far."""
    random, counts = np.random.default_rng(seed), age_tracts(count, seed).astype(np.float64)
    print(f"\ntable 7, {count:,} SIMULATED tracts; x 0.5, y 20")
    print(f"{'rho':<10}{'% Total, Age4, Age9, Age23':>34}{'% right paper':>15}{'ours':>8}{'by frequency':>14}"
          f"{'% saved paper':>15}{'ours':>8}")  # fmt: skip
    for rho, printed in ACCURACY.items():
        chain = census_cascade(pcost=2 / rho)
        steps, last = chain.increments, len(chain.looks)
        information = np.zeros_like(counts)
        right, chosen = np.full(count, last), np.full(count, last)
        for k in reversed(range(last)):
            right[~_serves(chain, k, counts @ chain.analyses[k].B.T)] = k
        open_ = np.ones(count, dtype=bool)
        for k, look in enumerate(chain.looks):
            information += noisy(steps[k], counts, random) @ steps[k].B
            # the best estimate from all steps so far: the cost matrices of the steps add up to the
            # cost matrix of ``look`` (a first stage)
            read = look.right_inverse.T @ information.T
            primary = (chain.analyses[k].B @ look.right_inverse @ read).T
            here = open_ & ~_serves(chain, k, primary)
            chosen[here], open_ = k, open_ & ~here
        shares = np.bincount(right, minlength=last + 1) / count
        costs = look_costs(chain)
        saved = float(np.mean(np.array([*costs, costs[-1]])[chosen]))
        split = " ".join(f"{100 * s:7.2f}" for s in shares)
        print(
            f"1/{rho:<8}{split:>34}{printed:>15.2f}{100 * np.mean(chosen == right):>8.2f}{100 * shares.max():>14.2f}"
            f"{CASCADE[rho][-1]:>15.2f}{100 * saved:>8.2f}"
        )


def _serves(chain: NestedChain, k: int, counts: np.ndarray) -> np.ndarray:
    """Return per tract whether analysis k + 1 is accurate enough for the cells of analysis k."""
    coarse, fine = chain.analyses[k], chain.analyses[k + 1]
    rule = NestedRule(look=coarse, coarse=coarse, fine=fine, share=0.5, snr=20.0, sigmas=0.0)
    return rule.fine_enough(counts)


def look_costs(chain: NestedChain) -> list[float]:
    """Return the costs of the three looks as shares of the budget.

    The cost of the last look is its largest one over the cells that the fine analysis refines.
    """
    costs = [np.diag(look.privacy_cost_matrix()) for look in chain.looks]
    left = np.diag(chain.residuals[-1].privacy_cost_matrix())
    total = chain.analyses[-1].pcost
    return [
        costs[0].max() / total,
        costs[1].max() / total,
        costs[2][left > 1e-9 * total].max() / total,
    ]


def plans() -> None:
    """Plans of Adult and their common look, computed per residual space."""
    adult = Schema.from_json(demo_data.schemas()["adult"].read_bytes())
    options = {k: plan(Workload.all_ways(adult, ways=k), Budget(pcost=1.0)) for k in (1, 2, 3)}
    print(
        f"\n{'plans of Adult, 14 attributes':<38}{'spaces shared':>14}{'% shared':>10}{'largest':>9}"
    )
    for chosen in ((1, 2), (1, 3), (2, 3), (1, 2, 3)):
        both = coarse_or_fine(*(options[k] for k in chosen))
        name = " vs ".join(f"{k}-way" for k in chosen)
        print(
            f"{name:<38}{len(both.look.blocks):>14}{100 * both.saved:>10.2f}{'yes' if both.maximal else 'no':>9}"
        )


class Tee:
    """Writes what is printed to the screen and to a file."""

    def __init__(self, *files: TextIO) -> None:
        self.files = files

    def write(self, text: str) -> None:
        for file in self.files:
            file.write(text)

    def flush(self) -> None:
        for file in self.files:
            file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="npz file with the Brazil counts")
    parser.add_argument("--repeats", type=int, default=5, help="simulated looks per table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help=f"also write {OUTPUT.name}")
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.write:
            file = stack.enter_context(open(OUTPUT, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(Tee(sys.stdout, file)))  # type: ignore[type-var]
        _run(options)


def _run(options: argparse.Namespace) -> None:
    start = time.perf_counter()
    savings()
    cascade()
    plans()
    races(blocks=BLOCKS, seed=options.seed)
    tracts(count=TRACTS, seed=options.seed)
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
