"""Decompositions, strategies and texts of the lessons, against dense linear algebra."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import ndtr

from engine._format import percent_rounded_up
from engine.errors import PlanError, WorkloadError
from engine.lessons import examples as lessons
from engine.lessons import figures as lesson_figures
from engine.lessons import figures as strategy_figures
from engine.lessons.examples import FAMILIES, SIZES, contest, fourier_rows, tree_rows, wavelet_rows
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests import oracles
from tests.figures.example import check_picture

PAPER = Schema(
    [Attribute.categorical("A1", ["yes", "no"]), Attribute.categorical("A2", ["a", "b", "c"])]
)
QUERY = [[0, 1, 1], [0, 0, 1]]
SIXTH, THIRD, HALF = 1 / 6, 1 / 3, 1 / 2


def test_decompose_query_matches_paper() -> None:
    # coefficients in the figure of the paper that decomposes its example query (section 6)
    printed = {
        (): HALF,
        ("A1",): [SIXTH, -SIXTH],
        ("A2",): [-HALF, 0, HALF],
        ("A1", "A2"): [[-SIXTH, THIRD, -SIXTH], [SIXTH, -THIRD, SIXTH]],
    }
    decomposition = lessons.decompose_query(PAPER, QUERY)
    assert [p.attributes for p in decomposition.pieces] == list(printed)
    for piece in decomposition.pieces:
        np.testing.assert_allclose(piece.table, printed[piece.attributes], atol=1e-14)
    assert [p.name for p in decomposition.pieces] == ["total", "A1", "A2", "A1 × A2"]


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (4, 5), (2, 3, 4), (1, 3)])
def test_decompose_query_returns_orthogonal_projections(sizes: tuple[int, ...]) -> None:
    schema = Schema([Attribute.of_size(f"x{i}", n) for i, n in enumerate(sizes)])
    query = np.random.default_rng(len(sizes)).integers(-3, 4, sizes).astype(float)
    query.flat[0] = 1.0
    decomposition = lessons.decompose_query(schema, query)
    assert len(decomposition.pieces) == 2 ** len(sizes)
    for piece in decomposition.pieces:
        inside = {schema.names.index(name) for name in piece.attributes}
        expected = oracles.residual_projector(sizes, inside) @ query.ravel()
        np.testing.assert_allclose(piece.spread.ravel(), expected, atol=1e-13)
        assert piece.table.shape == tuple(sizes[i] for i in sorted(inside))
        assert piece.cost == pytest.approx(np.max(expected**2), abs=1e-13)
    for a, b in itertools.combinations(decomposition.pieces, 2):
        assert abs(np.sum(a.spread * b.spread)) < 1e-12
    np.testing.assert_allclose(decomposition.added(), query, atol=1e-13)
    assert decomposition.misfit < 1e-13
    np.testing.assert_array_equal(decomposition.added(0), np.zeros(sizes))


@pytest.mark.parametrize(
    "query", [np.ones((3, 2)), [[1, 2], [3]], [["a"] * 3] * 2, [[np.nan] * 3] * 2, None]
)
def test_decompose_query_with_invalid_query_is_refused(query: object) -> None:
    with pytest.raises(WorkloadError, match="array of finite numbers"):
        lessons.decompose_query(PAPER, query)


def test_decompose_query_of_zeros_is_refused() -> None:
    with pytest.raises(WorkloadError, match="Choose at least one cell"):
        lessons.decompose_query(PAPER, np.zeros((2, 3)))


def test_total_of_four_of_twelve_cells_is_third() -> None:
    schema = Schema([Attribute.of_size("x", 3), Attribute.of_size("y", 4)])
    # every 37th of the 495 sets of four cells
    for cells in itertools.islice(itertools.combinations(range(12), 4), 0, 495, 37):
        query = np.isin(np.arange(12), cells).reshape(3, 4)
        assert lessons.decompose_query(schema, query).pieces[0].table == pytest.approx(1 / 3)


def test_overlaps_of_residual_spaces_are_zero() -> None:
    tables = lessons.overlaps(PAPER, split=False)
    spaces = lessons.overlaps(PAPER, split=True)
    cell_labels = [f"{reply} {letter}" for reply in ("yes", "no") for letter in "abc"]
    labels = ["all", "yes", "no", "a", "b", "c", *cell_labels]
    assert list(tables.labels) == list(spaces.labels) == labels

    total, by_first, by_second = np.ones((1, 3)), np.eye(2), np.eye(3)
    queries_by_axes = {
        (): np.kron(np.ones((1, 2)), total),
        (0,): np.kron(by_first, total),
        (1,): np.kron(np.ones((1, 2)), by_second),
        (0, 1): np.eye(6),
    }

    def cosines(rows: list[np.ndarray]) -> np.ndarray:
        unit = np.vstack(rows) / np.linalg.norm(np.vstack(rows), axis=1, keepdims=True)
        return unit @ unit.T

    queries = list(queries_by_axes.values())
    np.testing.assert_allclose(tables.cosines, cosines(queries), atol=1e-14)
    residual_parts = [
        rows @ oracles.residual_projector((2, 3), axes) for axes, rows in queries_by_axes.items()
    ]
    np.testing.assert_allclose(spaces.cosines, cosines(residual_parts), atol=1e-13)
    assert spaces.largest < 1e-13
    assert tables.largest == pytest.approx(1 / np.sqrt(2))


def test_overlaps_of_large_schema_are_refused() -> None:
    with pytest.raises(WorkloadError, match="fewer cells"):
        lessons.overlaps(Schema([Attribute.of_size("x", 600)]), split=True)


@pytest.mark.parametrize("cells", SIZES)
@pytest.mark.parametrize("name", FAMILIES)
def test_contest_errors_match_least_squares(name: str, cells: int) -> None:
    outcome = contest(name, cells)
    schema = Schema([Attribute.of_size("x", cells)])
    (queries,) = oracles.workload_rows(Workload(schema).add(["x"], name))
    assert outcome.queries == len(queries)
    for result in outcome.results:
        assert np.max(np.sum(result.rows**2, axis=0)) == pytest.approx(1.0)
        variances = np.sum((queries @ np.linalg.pinv(result.rows)) ** 2, axis=1)
        np.testing.assert_allclose(result.errors, np.sqrt(variances), rtol=1e-7)
        assert result.rmse == pytest.approx(np.sqrt(variances.mean()))
        assert result.rmse >= outcome.bound() * (1 - 1e-9)


@pytest.mark.parametrize("name", FAMILIES)
def test_contest_bounds_increase_to_optimum(name: str) -> None:
    outcome = contest(name, 8)
    workload = Workload(Schema([Attribute.of_size("x", 8)])).add(["x"], name)
    assert outcome.bound(0.0) == pytest.approx(oracles.svd_bound(workload, 1.0))
    bounds = [outcome.bound(share) for share in np.linspace(0, 1, 11)]
    assert all(b >= a * (1 - 1e-12) for a, b in itertools.pairwise(bounds))
    optimal = outcome.results[-1]
    assert optimal.rmse == pytest.approx(outcome.bound(), rel=1e-7)
    low, high = oracles.optimum(oracles.weighted_gram(workload))
    squared_error = optimal.rmse**2 * outcome.queries
    assert low * (1 - 1e-6) <= squared_error <= high * (1 + 1e-6)
    assert outcome.weights.sum() == pytest.approx(1.0)


def test_strategy_answers_of_lesson_are_correct() -> None:
    small, large = (
        {result.name: result.rmse for result in contest("range", cells).results}
        for cells in (4, 32)
    )
    assert small["Hierarchical"] > small["Identity"]
    assert large["Hierarchical"] < large["Identity"]
    circle = contest("circular", 8)
    assert circle.bound(0.0) == pytest.approx(circle.results[-1].rmse, rel=1e-9)
    ranges = contest("range", 8)
    # no strategy attains the singular value bound
    assert ranges.bound(0.0) < 0.995 * ranges.results[-1].rmse


def test_strategy_rows_match_definitions() -> None:
    tree = tree_rows(8)
    assert tree.shape == (15, 8)
    # every record is counted on every level
    assert tree.sum(axis=0).tolist() == [4.0] * 8
    haar = wavelet_rows(8)
    np.testing.assert_array_equal(haar @ haar.T, np.diag(np.diag(haar @ haar.T)))
    # the squared weight of a Fourier vector is the square root of its share in the Gram matrix
    gram = contest("range", 8).family.gram((8,))
    fourier = np.fft.fft(np.eye(8)) / np.sqrt(8)
    squared_weights = np.sqrt(np.diag(fourier.conj() @ gram @ fourier.T).real)
    expected = (fourier.conj().T * squared_weights) @ fourier
    rows = fourier_rows(gram)
    np.testing.assert_allclose(rows.T @ rows, expected.real, atol=1e-9)


@pytest.mark.parametrize(("name", "cells"), [("range", 7), ("affine", 8)])
def test_contest_with_unknown_size_or_family_is_refused(name: str, cells: int) -> None:
    with pytest.raises(PlanError, match="The lessons have"):
        contest(name, cells)


@pytest.mark.parametrize("pcost", [0.01, 1.0, 10.0])
def test_draw_releases_has_budget_noise(pcost: float) -> None:
    counts = [5, 100, 7]
    releases = lessons.draw_releases(counts, Budget(pcost=pcost), 4000)
    noise = (releases - counts) * np.sqrt(pcost)  # in standard deviations
    assert noise.shape == (4000, 3)
    # six standard errors of mean, variance and the share inside one standard deviation
    assert abs(noise.mean()) < 6 / np.sqrt(noise.size)
    assert abs(noise.var() - 1) < 6 * np.sqrt(2 / noise.size)
    inside = ndtr(1) - ndtr(-1)
    assert abs((np.abs(noise) < 1).mean() - inside) < 6 * np.sqrt(
        inside * (1 - inside) / noise.size
    )
    other_releases = lessons.draw_releases(counts, Budget(pcost=pcost), 4000)
    assert (other_releases != releases).any()


@pytest.mark.parametrize("pcost", [0.01, 0.5, 10.0])
def test_best_guess_matches_overlap_of_distributions(pcost: float) -> None:
    outputs = lessons.neighbours(Budget(pcost=pcost), points=20_001)
    step = outputs.values[1] - outputs.values[0]
    for density in (outputs.without, outputs.with_one):
        assert np.sum(density) * step == pytest.approx(1.0, abs=2e-4)
    # the best guess chooses the more likely dataset
    right = np.sum(np.maximum(outputs.without, outputs.with_one)) * step / 2
    assert right == pytest.approx(outputs.guess, abs=2e-4)
    table = lessons.budget_table(Budget(pcost=pcost))
    percent_rounded_to_tenth = f"{np.ceil(1000 * outputs.guess) / 10:g}%"
    assert percent_rounded_to_tenth in table["in words"][2]
    assert percent_rounded_to_tenth in Budget(pcost=pcost).describe()
    assert [float(value) for value in table["value"][:2]] == [pcost, pcost / 2]  # pcost and rho


def test_half_error_costs_four_times_budget() -> None:
    schema = Schema([Attribute.categorical("age", list(lessons.INVENTED))])
    workload = Workload(schema).add(["age"], "marginal")
    rmse = plan(workload, Budget(pcost=0.5)).rmse
    assert plan(workload, Budget(pcost=2.0)).rmse == pytest.approx(rmse / 2)
    # the plan has the noise that the lesson states
    assert rmse == pytest.approx(1 / Budget(pcost=0.5).mu)


@pytest.mark.parametrize(
    ("attributes", "fine", "saved"),
    [(7, 2, Fraction(3, 4)), (7, 7, Fraction(1, 16)), (3, 2, Fraction(3, 4))],
)
def test_two_analyses_share_budget_of_paper(attributes: int, fine: int, saved: Fraction) -> None:
    analyses = lessons.two_analyses(attributes, fine_ways=fine, budget=Budget(pcost=0.5))
    assert analyses.coarse.pcost == analyses.fine.pcost == 0.5
    assert analyses.shared.saved == pytest.approx(float(saved))
    table = analyses.spends()
    look_cost = 0.5 * float(saved)
    shared, separate = table[0::2], table[1::2]  # first measurements, then coarse or fine
    assert table["first measurement"].to_numpy() == pytest.approx(look_cost)
    assert shared["total"].to_numpy() == pytest.approx(0.5)
    assert separate["total"].to_numpy() == pytest.approx(0.5 + look_cost)
    assert analyses.fine.answers(analyses.shared.common)
    assert analyses.coarse.answers(analyses.shared.common)
    check_picture(lesson_figures.spends_picture(analyses))


@pytest.mark.parametrize(("attributes", "fine"), [(1, 1), (3, 4), (8, 2), (3, 1)])
def test_two_analyses_with_invalid_sizes_is_refused(attributes: int, fine: int) -> None:
    with pytest.raises(PlanError, match="attributes"):
        lessons.two_analyses(attributes, fine_ways=fine, budget=Budget(pcost=1.0))


def test_decomposition_picture_adds_pieces_stepwise() -> None:
    decomposition = lessons.decompose_query(PAPER, QUERY)
    last = check_picture(lesson_figures.decomposition_picture(decomposition, 4))
    assert last.table["query"].tolist() == ["0", "1", "1", "0", "0", "1"]
    assert last.table["added up"].tolist() == last.table["query"].tolist()
    assert last.table["piece A1"].tolist() == ["1/6"] * 3 + ["−1/6"] * 3
    assert "their sum is the query" in last.alt
    first = check_picture(lesson_figures.decomposition_picture(decomposition, 1))
    assert first.table["added up"].tolist() == ["1/2"] * 6
    assert "by up to 1/2" in first.alt
    panels = [trace.z.tolist() for trace in first.figure.data if trace.type == "heatmap"]
    assert panels == [QUERY, [[0.5]], [[0.5] * 3] * 2]
    first_labels = [trace.text[0] for trace in first.figure.data if trace.type == "scatter"]
    assert first_labels == ["0", "1/2", "1/2"]
    query_only = check_picture(lesson_figures.decomposition_picture(decomposition, 0))
    assert len(query_only.figure.data) == 2  # a panel and its labels


def test_overlap_picture_states_largest_cosine() -> None:
    spaces = check_picture(lesson_figures.overlap_picture(lessons.overlaps(PAPER, split=True)))
    assert "every cosine between different tables is 0" in spaces.alt
    tables = check_picture(lesson_figures.overlap_picture(lessons.overlaps(PAPER, split=False)))
    assert "reach 0.71" in tables.alt


def test_cost_picture_has_cost_of_each_piece() -> None:
    costs = check_picture(lesson_figures.cost_picture(lessons.decompose_query(PAPER, QUERY)))
    assert costs.table["pcost"].tolist() == pytest.approx([1 / 4, 1 / 36, 1 / 4, 1 / 9])


def test_strategy_pictures_show_rows_and_errors_of_ranges() -> None:
    outcome = contest("range", 8)
    schema = Schema([Attribute.of_size("x", 8)])
    (ranges,) = oracles.workload_rows(Workload(schema).add(["x"], "range"))
    for i, result in enumerate(outcome.results):
        heatmap = check_picture(strategy_figures.strategy_picture(result)).figure.data[0]
        np.testing.assert_array_equal(heatmap.z, result.rows)
        errors = check_picture(strategy_figures.range_errors_picture(outcome, i))
        for (first, last, _), row in zip(errors.table.itertuples(index=False), ranges, strict=True):
            assert row.nonzero()[0].tolist() == list(range(first, last + 1))


def test_contest_picture_and_proof_show_errors_and_gap() -> None:
    outcome = contest("range", 8)
    picture = check_picture(
        strategy_figures.contest_picture(outcome, {"one": 1.0, "two": 1.2}, "Wavelet")
    )
    assert picture.alt.startswith("Optimal has the smallest RMSE")
    assert picture.table["RMSE"].tolist() == [*(t.rmse for t in outcome.results), 1.0, 1.2]
    assert "are equal" in strategy_figures.proof_text(outcome, 1.0)
    gap = outcome.results[-1].rmse / outcome.bound(0.0) - 1
    assert percent_rounded_up(gap, 2) in strategy_figures.proof_text(outcome, 0.0)


def test_outcomes_picture_shows_each_drawn_release() -> None:
    releases = lessons.draw_releases([5, 7], Budget(pcost=1.0), 6)
    picture = check_picture(lesson_figures.outcomes_picture(["a", "b"], [5, 7], releases))
    for i, release in enumerate(releases, start=1):
        assert picture.table[f"release {i}"].tolist() == release.tolist()


def test_neighbours_picture_states_best_guess() -> None:
    outputs = lessons.neighbours(Budget(pcost=1.0))
    assert "69.2%" in check_picture(lesson_figures.neighbours_picture(outputs)).alt
