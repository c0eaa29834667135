"""Write survey.csv and survey.json from the 1996 election survey that ships with statsmodels.

Run `python -m demo_data.make_survey` where statsmodels is installed; the files it writes are part
of the project, so nothing else needs statsmodels.  README.md in this folder tells where the records
come from and what was changed.
"""

import pandas as pd

from demo_data import schemas, tables
from engine.workload import Attribute, Schema

PLACEMENT = (
    "Extremely liberal",
    "Liberal",
    "Slightly liberal",
    "Moderate",
    "Slightly conservative",
    "Conservative",
    "Extremely conservative",
)
PARTY = (
    "Strong Democrat",
    "Weak Democrat",
    "Independent-Democrat",
    "Independent-Independent",
    "Independent-Republican",
    "Weak Republican",
    "Strong Republican",
)
# Codes 5, 6 and 7 follow the study's codebook (junior or community college, bachelor's, advanced
# degree); statsmodels calls them "College degree", "Master's degree" and "PhD", one step too high.
EDUCATION = (
    "8 grades or less",
    "Some high school",
    "High school graduate",
    "Some college, no degree",
    "Community college degree",
    "Bachelor's degree",
    "Advanced degree",
)
VOTE = ("Democratic candidate", "Republican candidate")
# Lower ends of the 24 income brackets on the study's card, in dollars; the last bracket has no
# upper end.
_THOUSANDS = (
    0,
    3,
    5,
    7,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    17,
    20,
    22,
    25,
    30,
    35,
    40,
    45,
    50,
    60,
    75,
    90,
    105,
)
INCOME_FROM = tuple(1_000 * thousands for thousands in _THOUSANDS)
INCOME_END = 1_000_000
PLACE_EDGES = [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 10_000]


def survey_schema() -> Schema:
    """Public domain of the survey: answer cards, whole years of adult age, and round place sizes."""
    return Schema(
        [
            Attribute.numeric("age", [*range(18, 100), 99], integer=True),
            Attribute.categorical("education", EDUCATION),
            Attribute.numeric("household_income", [*INCOME_FROM, INCOME_END], integer=True),
            Attribute.numeric("place_population_thousands", PLACE_EDGES, integer=True),
            Attribute.of_size("tv_news_days", 8),
            Attribute.categorical("party", PARTY),
            Attribute.categorical("own_placement", PLACEMENT),
            Attribute.categorical("democrat_placement", PLACEMENT),
            Attribute.categorical("republican_placement", PLACEMENT),
            Attribute.categorical("vote", VOTE),
        ]
    )


def decoded(codes: pd.DataFrame) -> pd.DataFrame:
    """Turn the coded answers of statsmodels' `anes96` into the columns of `survey_schema`."""
    codes_int = codes.astype(int)
    if not (codes_int == codes[codes_int.columns]).all(axis=None):
        raise ValueError(
            "the survey holds answers that are no whole numbers; its format has changed"
        )
    return pd.DataFrame(
        {
            "age": codes_int["age"],
            "education": _texts(codes_int["educ"], EDUCATION, first=1),
            "household_income": _texts(codes_int["income"], INCOME_FROM, first=1),
            "place_population_thousands": codes_int["popul"],
            "tv_news_days": codes_int["TVnews"],
            "party": _texts(codes_int["PID"], PARTY, first=0),
            "own_placement": _texts(codes_int["selfLR"], PLACEMENT, first=1),
            "democrat_placement": _texts(codes_int["ClinLR"], PLACEMENT, first=1),
            "republican_placement": _texts(codes_int["DoleLR"], PLACEMENT, first=1),
            "vote": _texts(codes_int["vote"], VOTE, first=0),
        }
    )


def _texts(codes: pd.Series, meaning: tuple[object, ...], first: int) -> pd.Series:
    texts = codes.map(dict(enumerate(meaning, start=first)))
    if texts.isna().any():
        raise ValueError(
            f"the survey's column {codes.name} holds a code outside"
            f" {first}..{first + len(meaning) - 1}"
        )
    return texts


def main() -> None:
    """Write both files next to this module."""
    from statsmodels.datasets import anes96

    records = decoded(anes96.load_pandas().data.drop(columns="logpopul"))
    records.to_csv(tables()["survey"], index=False, lineterminator="\n")
    schemas()["survey"].write_text(survey_schema().to_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
