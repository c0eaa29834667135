"""Reconstruction attack, contribution bounds, clipping and tuned centers, against brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import scipy
from scipy.integrate import quad

from engine._format import percent_rounded_up
from engine.analysis import mechanism_bound
from engine.errors import PlanError
from engine.lessons import (
    attack_picture,
    caps_picture,
    centers_example_picture,
    centers_picture,
    clipping_picture,
    contest_picture,
    decomposition_picture,
    gap_text,
    group_questions,
)
from engine.lessons.examples import (
    CAPS,
    PERSONS,
    QUERY_KINDS,
    SECRETS,
    SPARSE,
    VISITS,
    WIDTHS,
    best_cap,
    bin_counts,
    caps_table,
    centered_pairs,
    clipping_example,
    contest,
    decompose_query,
    neighbours,
    pairs_workload,
    person_budget,
    published_answers,
    reconstruct_replies,
    rows_in_all,
    spread_of_answers,
    yes_or_no,
)
from engine.lessons.figures import (
    HandoutChapter,
    chapters_html,
    handout_html,
    with_room_for_axes,
)
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Schema, Workload


def test_reconstruction_from_determined_exact_answers_is_complete() -> None:
    replies = np.array(list(itertools.product((0, 1), repeat=PERSONS)))
    for count in (4, 12, 15, 16):
        questions = group_questions(count)
        fitting = np.flatnonzero((replies @ questions.T == published_answers(count)).all(axis=1))
        attack = reconstruct_replies(published_answers(count))
        assert (attack.right == PERSONS) == (len(fitting) == 1)
        np.testing.assert_allclose(questions @ attack.estimate, published_answers(count), atol=1e-9)
    assert published_answers(16).tolist() == (group_questions(16) @ SECRETS).tolist()


def test_reconstruction_from_noisy_answers_fails() -> None:
    # a fixed error of two standard errors at this budget, with varying sign
    exact = published_answers(16)
    signs = np.where(np.arange(16) % 3, 1.0, -1.0)
    error = 2 * spread_of_answers(16, Budget(pcost=1.0)) * signs
    assert reconstruct_replies(exact + error).right < PERSONS
    assert reconstruct_replies(exact + 1e-4 * error).right == PERSONS
    noise = published_answers(16, Budget(pcost=1e-6)) - exact
    # the standard error of each of the sixteen answers is 4,000
    assert np.abs(noise).max() > 10
    assert published_answers(3, Budget(pcost=1.0)).shape == (3,)


@pytest.mark.parametrize("count", [2, 7, 16])
def test_attack_answers_have_declared_privacy_cost(count: int) -> None:
    budget = Budget(pcost=0.7)
    workload = Workload(Schema([Attribute.of_size("person", PERSONS)])).add(
        ["person"], Custom(group_questions(count).astype(int).tolist())
    )
    sensitivity = np.sqrt((group_questions(count) ** 2).sum(axis=0).max())
    assert (sensitivity / spread_of_answers(count, budget)) ** 2 == pytest.approx(budget.pcost)
    assert plan(workload, budget).rmse <= spread_of_answers(count, budget) * (1 + 1e-6)


@pytest.mark.parametrize("count", [0, 17, 2.5])
def test_group_questions_with_invalid_count_is_refused(count: float) -> None:
    with pytest.raises(PlanError):
        group_questions(count)  # type: ignore[arg-type]


def test_budget_of_person_scales_with_rows() -> None:
    person = person_budget(Budget(pcost=0.01), 20)
    # the value in a question of the lesson
    assert person.pcost == pytest.approx(4.0)
    assert neighbours(person).guess == pytest.approx(neighbours(Budget(pcost=0.01), rows=20).guess)
    # protecting three rows per person triples the error
    workload = Workload(Schema([Attribute.of_size("month", 12)])).add(["month"], "marginal")
    rmse = {rows: plan(workload, Budget(pcost=0.5, rows_per_person=rows)).rmse for rows in (1, 3)}
    assert rmse[3] == pytest.approx(3 * rmse[1])
    table = caps_table(Budget(pcost=0.5)).set_index("cap")
    assert table.loc[3, "standard error"] == pytest.approx(3 * table.loc[1, "standard error"])


def test_person_budget_with_too_many_rows_is_refused() -> None:
    with pytest.raises(PlanError):
        person_budget(Budget(pcost=1.0), 21)


@pytest.mark.parametrize("pcost", [0.001, 0.01, 1.0])
def test_caps_table_trades_lost_rows_and_noise(pcost: float) -> None:
    table = caps_table(Budget(pcost=pcost)).set_index("cap")
    assert sum(rows * persons for rows, persons in VISITS.items()) == rows_in_all()
    for cap in CAPS:
        lost = sum(max(0, rows - cap) * persons for rows, persons in VISITS.items())
        assert table.loc[cap, "rows lost"] == lost
        assert table.loc[cap, "error"] == pytest.approx(np.hypot(lost, cap / np.sqrt(pcost)))
    best = best_cap(Budget(pcost=pcost))
    assert table["error"].min() == table.loc[best, "error"]
    assert f"smallest at a cap of {best}:" in caps_picture(Budget(pcost=pcost), 3).alt


@pytest.mark.parametrize(("count", "std"), [(0.0, 1.0), (0.0, 10.0), (3.0, 2.0), (40.0, 1.5)])
def test_clipping_example_matches_numerical_integration(count: float, std: float) -> None:
    noisy_count = scipy.stats.norm(count, std)
    low, high = max(0.0, count - 12 * std), count + 12 * std
    mean, _ = quad(lambda x: x * noisy_count.pdf(x), low, high, limit=200)
    error, _ = quad(lambda x: (x - count) ** 2 * noisy_count.pdf(x), low, high, limit=200)
    error += count**2 * noisy_count.cdf(0.0)  # negative answers are published as 0
    example = clipping_example([count], std)
    assert example.means[0] == pytest.approx(mean, abs=1e-8)
    assert example.errors[0] ** 2 == pytest.approx(error, rel=1e-6)
    assert example.rmse <= std


def test_clipping_answers_of_lesson_are_correct() -> None:
    assert round(clipping_example([0.0], 10.0).bias) == 4
    assert round(clipping_example(np.zeros(1000), 1.0).bias, -1) == 400
    assert round(clipping_example(np.zeros(1000), 1.0).std_of_sum) == 32
    biases = [clipping_example(bin_counts(width), 1.0).bias for width in WIDTHS]
    assert biases == sorted(biases, reverse=True)
    assert all(bin_counts(width).sum() == sum(SPARSE) for width in WIDTHS)


def test_clipping_with_invalid_width_or_noise_is_refused() -> None:
    with pytest.raises(PlanError):
        bin_counts(3)
    with pytest.raises(PlanError):
        clipping_example([1.0], 0.0)


def test_tuned_centers_error_lies_above_bound() -> None:
    for kind in QUERY_KINDS:
        pairs = centered_pairs(kind, 4)
        assert pairs.bound <= pairs.tuned.weighted_rmse < pairs.equal.weighted_rmse
        assert pairs.bound == mechanism_bound(pairs_workload(kind, 4)).rmse(pairs.tuned)
        assert pairs.gain == pytest.approx(
            1 - pairs.tuned.weighted_rmse / pairs.equal.weighted_rmse
        )
        assert "Plan and bound are equal" in gap_text(pairs)
    large = centered_pairs("prefix", 10)
    # this example has the remaining gap that the text of the lesson is about
    assert 1e-4 < large.gap < 0.02
    assert percent_rounded_up(large.gap, 2) in gap_text(large)
    assert all(center.sum() == pytest.approx(1.0) for center in large.centers().values())
    assert max(np.ptp(center) for center in large.centers().values()) > 0.01


def test_workload_of_pairs_outside_lesson_choices_is_refused() -> None:
    with pytest.raises(PlanError):
        pairs_workload("affine", 4)
    with pytest.raises(PlanError):
        pairs_workload("range", 5)


def test_equal_centers_are_optimal_for_marginals() -> None:
    schema = Schema(
        [Attribute.categorical("sex", ["f", "m"]), Attribute.categorical("region", list("abcd"))]
    )
    workload = Workload.all_ways(schema, (1, 2))
    result = plan(workload, Budget(pcost=1.0))
    assert result.weighted_rmse == pytest.approx(mechanism_bound(workload).rmse(result), rel=1e-5)


def test_further_lesson_pictures_match_their_numbers() -> None:
    picture = attack_picture(reconstruct_replies(published_answers(16)))
    assert "finds 16 of 16 replies" in picture.alt
    assert picture.table["right"].all()
    picture = attack_picture(reconstruct_replies(published_answers(2)))
    wrong_replies = picture.figure.data[2]
    assert len(wrong_replies.x) == (~picture.table["right"]).sum() > 0
    numbers = clipping_example(bin_counts(2), 3.0)
    assert f"{len(numbers.counts)} counts" in clipping_picture(numbers, 2).alt
    pairs = centered_pairs("range", 4)
    errors = [pairs.equal.weighted_rmse, pairs.tuned.weighted_rmse, pairs.bound]
    assert centers_example_picture(pairs).table["RMSE"].tolist() == errors
    assert centers_picture(pairs, "age").table["tuned"].sum() == pytest.approx(1.0)


def test_handout_leaves_room_for_labels_of_axes() -> None:
    picture = centers_picture(centered_pairs("range", 4), "age")
    # this template does not widen margins for labels automatically
    picture.figure.update_layout(template="none")
    page = handout_html("Noise", [], [picture], [])
    assert page.rpartition("Plotly.newPlot(")[2].count('"automargin":true') >= 2


def test_handout_is_self_contained() -> None:
    picture = centers_picture(centered_pairs("range", 4), "age")
    page = handout_html(
        "A <lesson>", ["plain **bold** & <b>"], [picture, picture], [("Say", "- `x` *y*")]
    )
    assert "A &lt;lesson&gt;" in page
    assert "plain <b>bold</b> &amp; &lt;b&gt;" in page
    assert "<li><code>x</code> <i>y</i></li>" in page
    assert 'src="http' not in page
    assert "<link" not in page.split("<script", 1)[0]
    assert page.count('class="plotly-graph-div"') == 2
    assert page.count("Plotly.newPlot(") >= 2


def test_handout_figures_have_room_for_their_axes() -> None:
    pictures = [
        attack_picture(reconstruct_replies(published_answers(16))),
        caps_picture(Budget(pcost=0.01), 3),
        decomposition_picture(decompose_query(yes_or_no(2), [[1, 0], [0, 0]]), 4),
        contest_picture(contest("range", 8), {"bound": 1.0}),
    ]
    for picture in pictures:
        figure = with_room_for_axes(picture.figure)
        axes = [*figure.select_xaxes(), *figure.select_yaxes()]
        assert len(axes) >= 2
        assert all(axis.automargin for axis in axes)
        assert picture.figure.layout.yaxis.title == figure.layout.yaxis.title


def test_handout_has_the_first_rows_of_the_tables() -> None:
    picture = attack_picture(reconstruct_replies(published_answers(16)))
    table = pd.DataFrame({"<reply>": range(18), "share": [0.123456] * 18})
    page = handout_html("Attack", [], [replace(picture, table=table)], [])
    assert page.count("<tr") == 1 + 16
    assert "&lt;reply&gt;" in page
    assert "0.1235" in page
    assert "The app shows 2 more rows." in page
    empty = handout_html("Attack", [], [replace(picture, table=table.head(0))], [])
    assert "<table" not in empty


def test_handout_of_several_lessons_contains_plotly_once() -> None:
    picture = attack_picture(reconstruct_replies(published_answers(16)))
    chapter = HandoutChapter(title="One", words=["text"], pictures=[picture])
    one_chapter = chapters_html("Path", [chapter])
    two_chapters = chapters_html("Path", [chapter, chapter])
    assert two_chapters.count('class="plotly-graph-div"') == 2
    assert len(two_chapters) < 1.1 * len(one_chapter)


def test_error_bars_of_clipped_counts_end_at_zero() -> None:
    picture = clipping_picture(clipping_example(bin_counts(1), 4.0), 1)
    means = picture.figure.data[1]
    above, below = means.error_y.array, means.error_y.arrayminus
    assert (np.subtract(means.y, below) >= 0).all()
    # the first cell has no records, so its lower error bar is cut at zero
    assert above[0] > below[0]


def test_axis_of_caps_picture_covers_all_caps() -> None:
    low, high = caps_picture(Budget(pcost=0.01), 3).figure.layout.xaxis.range
    assert CAPS[0] - 1 < low < CAPS[0]
    assert CAPS[-1] < high < CAPS[-1] + 1


def test_contest_picture_rounds_to_chosen_decimals() -> None:
    result = contest("range", 8)
    picture = contest_picture(result, {"lower bound": result.bound()}, decimals=2)
    assert picture.figure.data[0].text[0] == f"  {result.results[0].rmse:.2f}"
    assert f"{result.bound():.2f}." in picture.alt
