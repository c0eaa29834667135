"""Classic strategies and level selection, compared with published numbers.

    python -m benchmarks.classic_strategies            print the table
    python -m benchmarks.classic_strategies --write    print it and write benchmarks/classic_strategies.txt
    python -m benchmarks.classic_strategies --quick    leave out 4,096 cells and level selection

"s" are CPU seconds since the previous row. Tables 4 to 7 of HDMM: RMSE at epsilon 1, with delta
1e-6 for Gaussian noise. The census workload is left out, because it is not printed there. HB and
GreedyH under Gaussian noise were published with the tree that suits Laplace noise; "for Gaussian"
is the tree chosen for the noise that is used. The permutation of "permuted" is random, so its rows
agree only roughly.

Example 3.1, corollary C.1 and figures 2 and 3 of Li and Miklau: total errors over the singular
value bound, which is the certified gap of the squared error. A dash is a value that is only in a
figure. The example prints the bound of AllRange(1024) as 5.32e6, figure 3 divides by 6.40e6
(wavelet 1.53, hierarchical 1.78), which is also the bound in table 5 of HDMM; both readings are
shown. "patient" level selection tries one more level after one that does not pay, where the paper
stops.

Of the five domains of the figures, the text names 1024, 32 x 32, 16 x 8 x 8 and 2^10; 4^5 is our
choice. The text does not define the wavelet on several axes; ours is the product of the wavelets of
the axes and has smaller errors than those printed. Level selection has at most 100 levels on three
and more axes; on 16 x 8 x 8 it stops there while the error still decreases (1.08, printed 1.07). On
2^10 the first level does not pay, so the rule of the paper ends with single cells. Figure 3(b):
neither the domain nor the values are in the text; ours is 32 x 32, with 10,000 ranges of a band of
coverages and at most 40 levels.

Figure 2: mean of the bound per query of sampled ranges, divided by that of all ranges. The text says
that 10,000 ranges, drawn uniformly, reach 1, and that biased samples approach 1 more slowly. In a
biased sample, the probability of a range depends exponentially on the distance between its center
and the center of the domain. The text names no rate; ours grows by exp(5) from the center to a corner.
"""

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce

import numpy as np

from benchmarks import options, table
from engine.mechanisms.baselines import data_cube, marginals_error
from engine.mechanisms.hierarchical import (
    PUBLISHED,
    error,
    greedy_hierarchy,
    hb,
    hierarchy,
    level_selection,
    quadtree,
    sensitivity,
    svd_bound,
    wavelet,
)
from engine.mechanisms.kronecker import gaussian_strategy
from engine.privacy import Budget
from engine.workload import Range, Width
from engine.workload.families import family

Line = tuple[str, str, float, float]  # workload, strategy, paper, ours
HEAD = f"{'workload':<39}{'strategy':<26}{'paper':>17}{'ours':>17}{'ratio':>8}{'s':>8}"
SIZES = (64, 256, 1024, 4096)
COLUMNS = ("identity", "H2", "wavelet", "HB", "GreedyH")
TABLE_4 = {
    "range": (
        (6.63, 11.28, 10.11, 6.63, 6.34),
        (13.11, 16.27, 14.87, 8.90, 9.72),
        (26.15, 21.83, 20.26, 12.82, 14.70),
        (52.27, 27.90, 26.18, 16.19, 22.21),
    ),
    "prefix": (
        (8.06, 9.42, 9.37, 8.06, 6.04),
        (16.03, 13.16, 13.09, 8.97, 9.13),
        (32.02, 17.29, 17.20, 12.87, 14.32),
        (64.01, 21.77, 21.67, 14.91, 22.40),
    ),
    "width 32": (
        (8.00, 12.02, 11.09, 8.00, 7.32),
        (8.00, 15.50, 13.57, 7.41, 8.00),
        (8.00, 18.98, 16.56, 9.50, 8.00),
        (8.00, 22.45, 19.58, 10.96, 8.00),
    ),
    "permuted": (
        (6.63, 25.02, 18.97, 6.63, 6.83),
        (13.11, 66.25, 49.09, 18.48, 13.02),
        (26.15, 157.50, 117.06, 37.07, 23.94),
        (52.27, 374.29, 277.42, 107.83, 45.77),
    ),
}
TABLE_5 = {
    "range": (
        (19.82, 12.74, 11.42, 19.82, 14.64),
        (39.18, 16.20, 14.81, 18.80, 23.34),
        (78.13, 19.66, 18.24, 27.07, 36.20),
        (156.14, 23.12, 21.69, 27.92, 56.21),
    ),
    "prefix": (
        (24.08, 10.64, 10.58, 24.08, 14.04),
        (47.89, 13.11, 13.03, 18.95, 22.11),
        (95.64, 15.57, 15.49, 27.18, 35.59),
        (191.21, 18.03, 17.95, 25.72, 56.70),
    ),
    "width 32": (
        (23.90, 13.57, 12.52, 23.90, 17.30),
        (23.90, 15.44, 13.52, 15.65, 23.90),
        (23.90, 17.10, 14.92, 20.08, 23.90),
        (23.90, 18.60, 16.22, 18.90, 23.90),
    ),
    "permuted": (
        (19.82, 28.26, 21.42, 19.82, 16.13),
        (39.18, 65.97, 48.88, 39.04, 35.22),
        (78.13, 141.86, 105.44, 78.30, 60.60),
        (156.14, 310.11, 229.85, 185.98, 118.03),
    ),
}
BOUNDS_4 = {
    "range": (3.22, 4.07, 4.94, 5.82),
    "prefix": (2.89, 3.50, 4.11, 4.74),
    "width 32": (2.75, 3.26, 3.36, 3.38),
    "permuted": (3.22, 4.07, 4.94, 5.82),
}
BOUNDS_5 = {
    "range": (9.62, 12.15, 14.75, 17.38),
    "prefix": (8.62, 10.44, 12.29, 14.15),
    "width 32": (8.23, 9.73, 10.02, 10.09),
    "permuted": (9.62, 12.15, 14.75, 17.38),
}
CPS, ADULT = (7, 4, 2, 50, 100), (42, 16, 15, 9, 7, 6, 5, 2, 2, 100, 100, 100, 99, 85)
LOANS = (51, 36, 15, 8, 6, 5, 4, 3, 101, 101, 101, 101)


# domain -> sizes, printed ratios of the wavelet and of level selection to the bound
DOMAINS = {
    "AllRange(1024)": ((1024,), 1.53, 1.26),
    "AllRange(32, 32)": ((32, 32), 2.23, 1.08),
    "AllRange(16, 8, 8)": ((16, 8, 8), 4.17, 1.07),
    "AllRange(4^5)": ((4,) * 5, math.nan, math.nan),
    "AllRange(2^10)": ((2,) * 10, math.nan, math.nan),
}
SAMPLE = 10_000
SAMPLES = (1_000, 3_000, SAMPLE)
# kind of sample -> rate at which the probability of a range changes with its distance from the center
BIASES = {"uniform": 0.0, "biased": 5.0}
COVERAGES = (0.0, 0.01, 0.1, 0.5)


def scale(noise: str) -> float:
    """Return the standard deviation of the noise at sensitivity 1, epsilon 1 and delta 1e-6."""
    return math.sqrt(2.0) if noise == "laplace" else 1.0 / math.sqrt(Budget.approx(1.0, 1e-6).pcost)


def tree_covariance(rows: np.ndarray) -> np.ndarray:
    """Return (A^T A)^-1 of a tree of weighted intervals, shape (cells, cells), in O(cells^2)."""
    diagonal = np.zeros(rows.shape[1])
    nodes = []
    for row in rows:
        (cells,) = np.nonzero(row)
        if len(cells) == 1:
            diagonal[cells] += row[cells] ** 2
        else:
            nodes.append((len(cells), cells[0], row[cells[0]]))
    C = np.diag(1.0 / diagonal)
    # Sherman-Morrison updates, children before parents, so that no update reaches beyond its node
    for size, first, weight in sorted(nodes):
        block = C[first : first + size, first : first + size]
        u = weight * block.sum(axis=1)
        block -= np.outer(u, u / (1.0 + weight * u.sum()))
    return C


def wavelet_covariance(rows: np.ndarray) -> np.ndarray:
    """Return (A^T A)^-1 of orthogonal rows with short supports, shape (cells, cells)."""
    C = np.zeros((rows.shape[1],) * 2)
    for row in rows:
        cells = np.flatnonzero(row)
        part = slice(cells[0], cells[-1] + 1)
        C[part, part] += np.outer(row[part], row[part] / float(row @ row) ** 2)
    return C


def one_attribute(quick: bool) -> Iterator[Line]:
    """Yield the rows of tables 4 and 5."""
    rng = np.random.default_rng(0)
    for k, n in enumerate(SIZES[:-1] if quick else SIZES):
        h2, haar, published_hb, gaussian_hb = hierarchy(n), wavelet(n), hb(n), hb(n, "gaussian")
        fixed = (
            (h2, tree_covariance(h2)),
            (haar, wavelet_covariance(haar)),
            (published_hb, tree_covariance(published_hb)),
        )
        gaussian_tree = gaussian_hb, tree_covariance(gaussian_hb)
        bounds_by_name: dict[str, float] = {}
        for name in TABLE_4:
            queries = (
                Width(32)
                if name == "width 32"
                else family("prefix" if name == "prefix" else "range")
            )
            gram, count = queries.gram((n,)), queries.count((n,))
            if name == "permuted":
                order = rng.permutation(n)
                gram = gram[np.ix_(order, order)]
            greedy = greedy_hierarchy(gram, squared=True, discount=math.sqrt(0.5))
            trees = (*fixed, (greedy, tree_covariance(greedy)))
            if name != "permuted":  # a permutation of range, the first workload
                bounds_by_name[name] = svd_bound(gram)
            bound = bounds_by_name["range" if name == "permuted" else name]
            for noise, printed, bounds in (
                ("laplace", TABLE_4, BOUNDS_4),
                ("gaussian", TABLE_5, BOUNDS_5),
            ):
                unit = scale(noise) / math.sqrt(count)
                where = f"{name} {n}, {noise}"

                def rmse(tree: tuple, noise=noise, gram=gram, unit=unit) -> float:
                    rows, C = tree
                    return unit * sensitivity(rows, noise) * math.sqrt(float(np.sum(C * gram)))

                yield where, "identity", printed[name][k][0], unit * math.sqrt(np.trace(gram))
                for column, tree, paper in zip(
                    COLUMNS[1:], trees, printed[name][k][1:], strict=True
                ):
                    yield where, column, paper, rmse(tree)
                if noise == "gaussian":
                    yield where, "HB for Gaussian", printed[name][k][3], rmse(gaussian_tree)
                if n < 1024:
                    best = greedy_hierarchy(gram, noise)
                    yield (
                        where,
                        "GreedyH, best rule",
                        printed[name][k][4],
                        unit * math.sqrt(error(best, gram, noise)),
                    )
                yield where, "SVD bound", bounds[name][k], unit * math.sqrt(bound)


def marginals() -> Iterator[Line]:
    """Yield table 3 and the rows of tables 6 and 7 that are workloads of marginals."""
    pairs = list(itertools.combinations(range(4), 2))
    small = (2, 5, 50, 100)
    # in the unit of the paper: squared sensitivity times the trace, at Laplace noise
    yield (
        "2-way (2, 5, 50, 100)",
        "workload, least squares",
        206_964,
        marginals_error(small, pairs, pairs, "laplace"),
    )
    yield (
        "2-way (2, 5, 50, 100)",
        "identity",
        300_000,
        marginals_error(small, pairs, [(0, 1, 2, 3)], "laplace"),
    )
    few = [axes for k in range(13) for axes in itertools.combinations(range(12), k)]
    workloads = {
        "CPS all marginals": (
            CPS,
            [a for k in range(6) for a in itertools.combinations(range(5), k)],
        ),
        "Adult <=3-way marginals": (
            ADULT,
            [a for k in range(4) for a in itertools.combinations(range(14), k)],
        ),
        "Loans small marginals": (LOANS, [a for a in few if math.prod(LOANS[i] for i in a) < 5000]),
    }
    printed = {
        "CPS all marginals": ((5.38, 45.25, 18.49, 2.63), (16.08, 23.90, 19.53, 7.85)),
        "Adult <=3-way marginals": (
            (5352117.26, 664.68, 494.06, 15.08),
            (15988375.02, 91.59, 77.36, 45.06),
        ),
        "Loans small marginals": (
            (3330650.46, 265.87, 113.98, 11.61),
            (9949649.11, 57.92, 37.37, 34.67),
        ),
    }
    for (name, (sizes, sets)), k in itertools.product(workloads.items(), (0, 1)):
        noise, paper = ("laplace", "gaussian")[k], printed[name][k]
        count, unit = (
            sum(math.prod(sizes[i] for i in axes) for axes in sets),
            scale(("laplace", "gaussian")[k]),
        )
        published = data_cube(sizes, sets, noise, limit=len(sets))
        everything = tuple(range(len(sizes)))
        # the workload itself, answered without least squares
        plain = len(sets) if noise == "laplace" else math.sqrt(len(sets))
        for word, figure, ours in (
            (
                "identity",
                paper[0],
                unit * math.sqrt(marginals_error(sizes, sets, [everything], noise) / count),
            ),
            ("noise on the workload", paper[1], unit * plain),
            (
                "DataCube",
                paper[2],
                unit * math.sqrt(marginals_error(sizes, sets, published, noise) / count),
            ),
            (
                "DataCube, best limit",
                paper[2],
                unit
                * math.sqrt(
                    marginals_error(sizes, sets, data_cube(sizes, sets, noise), noise) / count
                ),
            ),
            ("SVD bound", paper[3], unit * math.sqrt(marginals_bound(sizes, sets) / count)),
        ):
            yield f"{name}, {noise}", word, figure, ours


def marginals_bound(sizes: tuple[int, ...], sets: list[tuple[int, ...]]) -> float:
    """Return the singular value bound of marginals, whose eigenspaces are the residual spaces."""
    inside = np.array([[i in axes for i in range(len(sizes))] for axes in sets], dtype=bool)
    outside = np.array(
        [
            math.prod(n for n, is_inside in zip(sizes, row, strict=True) if not is_inside)
            for row in inside
        ]
    )
    total = 0.0
    for space in {
        B for axes in sets for k in range(len(axes) + 1) for B in itertools.combinations(axes, k)
    }:
        eigenvalue = float(outside[inside[:, list(space)].all(axis=1)].astype(float).sum())
        total += math.prod(sizes[i] - 1 for i in space) * math.sqrt(eigenvalue)
    return total**2 / float(math.prod(sizes))


def prefix_marginals() -> Iterator[Line]:
    """Yield identity and noise on the workload for products of prefixes and marginals in tables 6
    and 7.
    """
    loans_sets = [
        axes
        for k in range(13)
        for axes in itertools.combinations(range(12), k)
        if math.prod(LOANS[i] for i in axes) < 5000
    ]
    cases = {
        # prefixes contain the total, so every set of categorical attributes occurs with both
        # numeric attributes
        "CPS all prefix-marginals": (
            CPS,
            3,
            [(*a, 3, 4) for k in range(4) for a in itertools.combinations(range(3), k)],
            (98.06, 56568.54, 292.93, 844.94),
        ),
        "Adult 2-way prefix-marginals": (
            ADULT,
            9,
            list(itertools.combinations(range(14), 2)),
            (475602516.60, 138602.83, 1420766966.19, 1322.58),
        ),
        "Loans small prefix-marginals": (
            LOANS,
            8,
            loans_sets,
            (15340082.96, 11013.90, 45825415.90, 372.83),
        ),
    }
    for name, (sizes, first, sets, printed) in cases.items():
        count = sum(math.prod(sizes[i] for i in axes) for axes in sets)
        # prefix queries on n cells: at most n of them count a cell, and together they count
        # n (n + 1) / 2 cells
        norm = sum(math.prod(sizes[i] for i in axes if i >= first) for axes in sets)
        trace = sum(
            math.prod(
                n * (n + 1) // 2 if i in axes and i >= first else n for i, n in enumerate(sizes)
            )
            for axes in sets
        )
        for k, noise in enumerate(("laplace", "gaussian")):
            unit, plain = scale(noise), norm if noise == "laplace" else math.sqrt(norm)
            yield f"{name}, {noise}", "identity", printed[2 * k], unit * math.sqrt(trace / count)
            yield f"{name}, {noise}", "noise on the workload", printed[2 * k + 1], unit * plain


def ranges(quick: bool) -> Iterator[Line]:
    """Yield example 3.1 and figure 3: total errors on all ranges over the singular value bound."""
    line, square = family("range").gram((1024,)), family("range").gram((32,))
    # the ranges that contain the middle cell have 512 starts and 513 ends
    worst = {1: 512 * 513, 2: (16 * 17) ** 2}
    grid = np.kron(square, square)
    bound_1, bound_2 = svd_bound(line), svd_bound(grid)
    yield "AllRange(1024)", "SVD bound (example 3.1)", 5.32e6, bound_1
    yield (
        "AllRange(1024)",
        "SVD bound (HDMM table 5)",
        (14.75 / scale("gaussian")) ** 2 * 524_800,
        bound_1,
    )
    for words, paper, ours in (
        ("workload", 50.58, worst[1] * 1024),
        ("identity", 33.75, float(np.trace(line))),
        ("hierarchical", 2.14, error(hierarchy(1024), line, "gaussian")),
        ("wavelet", 1.84, error(wavelet(1024), line, "gaussian")),
    ):
        yield "AllRange(1024) / printed 5.32e6", words, paper, ours / 5.32e6
        figure = {"hierarchical": 1.78, "wavelet": 1.53}.get(words)
        if figure is not None:
            yield "AllRange(1024) / bound (figure 3)", words, figure, ours / bound_1
    yield "AllRange(32, 32)", "SVD bound", 4.39e6, bound_2
    for words, paper, ours in (
        ("workload", 17.25, float(worst[2] * 1024)),
        ("identity", 8.15, float(np.trace(grid))),
        ("hierarchical, quadtree", 2.92, error(quadtree((32, 32)), grid, "gaussian")),
        ("hierarchical, product", 2.92, error(hierarchy(32), square, "gaussian") ** 2),
        ("wavelet, product", 2.23, error(wavelet(32), square, "gaussian") ** 2),
    ):
        yield "AllRange(32, 32) / bound", words, paper, ours / bound_2
    if not quick:
        for words, gram, sizes, levels, printed in (
            ("AllRange(1024) / bound", line, (1024,), 60, 1.26),
            ("AllRange(32, 32) / bound", grid, (32, 32), 100, 1.08),
        ):
            published, patient = select_levels(gram, sizes, levels)
            yield words, "level selection", printed, published
            yield words, f"patient, {levels} levels", printed, patient


def all_predicate_gram(n: int) -> np.ndarray:
    """Return the Gram matrix of all 2^n predicates on n cells, divided by 2^(n - 2)."""
    return np.eye(n) + 1.0


def all_predicates() -> Iterator[Line]:
    """Yield corollary C.1: the optimal total error on all predicates, in units of 2^(n - 2)."""
    for n in (8, 64, 256, 1024):
        gram, printed = all_predicate_gram(n), (n - 1 + math.sqrt(n + 1)) ** 2 / n
        solution = gaussian_strategy(gram)
        yield f"AllPredicate({n}) / 2^{n - 2}", "SVD bound", printed, svd_bound(gram)
        yield f"AllPredicate({n}) / 2^{n - 2}", "certified bound", printed, solution.bound
        yield f"AllPredicate({n}) / 2^{n - 2}", "optimum", printed, solution.value


def sample_ranges(
    sizes: tuple[int, ...],
    count: int,
    low: float = 0.0,
    high: float = 1.0,
    rate: float = 0.0,
) -> np.ndarray:
    """Return distinct ranges, drawn from those with a coverage in (low, high].

    Coverage is the share of the cells that a range covers. The rows have shape (count, cells). The
    probability of a range is proportional to exp(rate * distance), with distance 0 at the center of
    the domain and 1 at its corners; rate 0 draws uniformly.
    """
    bounds = [Range().bounds(n) for n in sizes]
    lengths = [end - first for first, end in bounds]
    coverage = reduce(np.multiply.outer, lengths).ravel() / math.prod(sizes)
    candidates = np.flatnonzero((coverage > low) & (coverage <= high))
    # squared distance of the center of a range from the center of the domain, 1 at the end of an axis
    squares = [
        ((first + end) / n - 1.0) ** 2 for (first, end), n in zip(bounds, sizes, strict=True)
    ]
    distance = np.sqrt(reduce(np.add.outer, squares).ravel()[candidates] / len(sizes))
    probability = np.exp(rate * distance)
    probability = None if rate == 0.0 else probability / probability.sum()
    chosen = np.random.default_rng(0).choice(candidates, count, replace=False, p=probability)
    rows = np.ones((count, 1))
    for index, n, (first, end) in zip(
        np.unravel_index(chosen, [len(axis) for axis in lengths]), sizes, bounds, strict=True
    ):
        cell = np.arange(n)
        inside = (cell >= first[index, None]) & (cell < end[index, None])
        rows = (rows[:, :, None] * inside[:, None, :]).reshape(count, -1)
    return rows


def level_figures(quick: bool) -> Iterator[Line]:
    """Yield figures 2 and 3 of Li and Miklau: sampled ranges, level selection and wavelets."""
    for words, (sizes, printed_wavelet, printed) in DOMAINS.items():
        axes = [Range().gram((n,)) for n in sizes]
        bound, queries = svd_bound(*axes), math.prod(n * (n + 1) // 2 for n in sizes)
        for kind, rate in BIASES.items():
            for count in SAMPLES:
                rows = sample_ranges(sizes, count, rate=rate)
                printed_ratio = 1.0 if kind == "uniform" and count == SAMPLE else math.nan
                ratio = svd_bound(rows.T @ rows) / count / (bound / queries)
                yield words, f"{kind} {count:,} / all", printed_ratio, ratio
        if len(sizes) > 2:  # `ranges` has the others
            errors = [
                error(wavelet(n), gram, "gaussian") for n, gram in zip(sizes, axes, strict=True)
            ]
            yield f"{words} / bound", "wavelet", printed_wavelet, math.prod(errors) / bound
            if not quick:
                gram = reduce(np.kron, axes)
                selection = level_selection(gram, sizes, replace(PUBLISHED, levels=100))
                yield (
                    f"{words} / bound",
                    "level selection",
                    printed,
                    selection.error / selection.bound,
                )
    product = np.kron(wavelet(32), wavelet(32))
    for low, high in () if quick else itertools.pairwise(COVERAGES):
        rows = sample_ranges((32, 32), SAMPLE, low, high)
        gram = rows.T @ rows
        words = f"ranges, {rows.mean():.1%} covered / bound"
        bound = svd_bound(gram)
        yield words, "wavelet", math.nan, error(product, gram, "gaussian") / bound
        selection = level_selection(gram, (32, 32), replace(PUBLISHED, levels=40))
        yield words, "level selection", math.nan, selection.error / bound


def select_levels(gram: np.ndarray, sizes: tuple[int, ...], levels: int) -> tuple[float, float]:
    """Return the ratio of error to bound of level selection, as published and with patience 1.

    The published search stops at the first level that does not reduce the error; with patience 1
    it tries one more level.
    """
    gaps: list[float] = []
    patient = replace(PUBLISHED, patience=1, levels=levels, watch=lambda _, gap: gaps.append(gap))
    selection = level_selection(gram, sizes, patient)
    # both searches are equal up to the first level without an improvement, so one search suffices
    stop = next((gap for gap, after in itertools.pairwise(gaps) if after == gap), gaps[-1])
    return (1.0 + stop) ** 2, selection.error / selection.bound


def main(arguments: list[str] | None = None) -> int:
    """Print the table; a ratio above 1 is a larger error than the published one."""
    parser = options(__file__, __doc__)
    parser.add_argument(
        "--quick", action="store_true", help="leave out 4,096 cells and level selection"
    )
    args = parser.parse_args(arguments)
    with table(__file__, write=args.write) as show:
        show(HEAD)
        tables: tuple[Callable[[], Iterator[Line]], ...] = (
            lambda: one_attribute(args.quick),
            marginals,
            prefix_marginals,
            lambda: ranges(args.quick),
            all_predicates,
            lambda: level_figures(args.quick),
        )
        start = time.process_time()
        for make in tables:
            for workload, strategy, paper, ours in make():
                seconds, start = time.process_time() - start, time.process_time()
                shown = f"{'-':>17}" if math.isnan(paper) else f"{paper:>17,.2f}"
                ratio = f"{'-':>8}" if math.isnan(paper) else f"{ours / paper:>8.4f}"
                show(f"{workload:<39}{strategy:<26}{shown}{ours:>17,.2f}{ratio}{seconds:>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
