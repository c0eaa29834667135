"""Bins of integers as texts for the screen."""

from __future__ import annotations

from engine.workload import Attribute
from engine.workload.attribute import cell_text, query_texts

AGE = Attribute.numeric("age", [0, 10, 11, 120], integer=True)
# bins of numbers that need not be integers
INCOME = Attribute.numeric("age of income", [0, 10, 20])


def test_cell_text_of_other_attributes_is_their_label() -> None:
    for attribute in (INCOME, Attribute.categorical("sex", ["F", "M"])):
        assert cell_text(attribute, 0) == attribute.label(0)


def test_query_texts_change_only_intervals_of_integer_attributes() -> None:
    texts = [
        AGE.condition(0),
        AGE.condition(2),
        f"{AGE.condition(1)} and {INCOME.condition(0)}",
        "age = [0, 10)",
        f"({AGE.condition(0, 1)}) minus (sex = in [1, 2))",
    ]
    assert query_texts([AGE, INCOME], texts) == [
        "age in 0–9",
        "age in 11–120",
        "age = 10 and age of income in [0, 10)",
        "age in 0–9",
        "(age in 0–10) minus (sex = in [1, 2))",
    ]


def test_query_texts_of_negative_integers() -> None:
    debt = Attribute.numeric("debt", [-20, -10, 0], integer=True)
    assert query_texts([debt], [debt.condition(0)]) == ["debt in -20 to -11"]
