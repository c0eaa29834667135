"""Figures of published answers."""

from __future__ import annotations

import pandas as pd

from engine.figures import published_picture
from tests.figures.example import check_picture


def test_published_picture_marks_mostly_predicted_answers() -> None:
    answers = pd.DataFrame(
        {
            "query": ["age < 1", "age < 2", "age < 3"],
            "published": [5.0, 8.0, float("nan")],
            "error": [1.0, 1.0, float("nan")],
            "published_low": [3.0, 6.0, float("nan")],
            "published_high": [7.0, 10.0, float("nan")],
            "measured": [0.2, 0.9, 0.1],
            "answer": [-1.0, 9.0, 0.5],
            "std": [2.0, 2.0, 2.0],
            "low": [-5.0, 5.0, -3.0],
            "high": [3.0, 13.0, 4.0],
        }
    )
    picture = check_picture(published_picture(answers, rehearsal=False))
    published = picture.figure.data[-1]
    assert list(published.marker.symbol) == ["diamond-open", "diamond", "diamond"]
    assert "1 published answer with open markers" in picture.alt
    measured = answers.assign(measured=1.0)
    picture = check_picture(published_picture(measured, rehearsal=False))
    assert picture.figure.data[-1].marker.symbol == "diamond"
    assert "open markers" not in picture.alt


def test_published_heat_map_mentions_no_markers() -> None:
    queries = [f"a = {i} and b = {j}" for i in range(20) for j in range(20)]
    columns = ["published", "error", "published_low", "published_high", "answer", "std"]
    answers = pd.DataFrame({"query": queries} | dict.fromkeys([*columns, "low", "high"], 5.0))
    picture = check_picture(published_picture(answers.assign(measured=0.2), rehearsal=False))
    assert picture.figure.data[0].type == "heatmap"
    assert "markers" not in picture.alt
    assert "The heat map shows the published answers" in picture.alt
