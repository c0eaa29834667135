"""Ready schemas, a public survey and a simulated panel, so that every page has something to start
from.

    name      what it is                                              records
    adult     UCI Adult, the attribute sizes of the papers            none (make synthetic ones)
    cps       Current Population Survey, the sizes of the papers      none
    loans     personal loans, the sizes of the papers                 none
    census    single years of age by sex, as in a census table        none
    survey    944 voters of 1996, a public-domain survey              survey.csv
    panel     800 persons in one to eight waves, simulated            panel.csv; its schema declares whose rows
    states    states in regions, by sex and age, simulated            states.csv; its schema has a code list

`make_schemas` writes the schema files, `make_survey` the survey, `make_panel` the panel, `make_states`
the states, `make_synthetic` a table for any schema.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent

TITLES = {
    "adult": "Adult",
    "cps": "Population survey (CPS)",
    "loans": "Loans",
    "census": "Census age by sex",
    "survey": "Election survey 1996",
    "panel": "Panel, many rows each",
    "states": "States in regions",
}
WORDS = {
    "adult": "14 attributes of the UCI repository's Adult file",
    "cps": "5 attributes of the Current Population Survey",
    "loans": "12 attributes of personal loans",
    "census": "103 ages by sex, as in a census table",
    "survey": "10 attributes and 944 public records",
    "panel": "5 attributes of 800 simulated persons, one to eight rows each",
    "states": "3 attributes of 3,000 simulated persons in 51 states, 9 divisions and 4 regions",
}


def schemas() -> dict[str, Path]:
    """Schema files by name, each readable by `Schema.from_json`.

    >>> list(schemas())
    ['adult', 'cps', 'loans', 'census', 'survey', 'panel', 'states']
    """
    return {name: _HERE / f"{name}.json" for name in TITLES}


def tables() -> dict[str, Path]:
    """CSV files of public or simulated records by the name of the schema they fit.

    >>> [(name, path.name) for name, path in tables().items()]
    [('survey', 'survey.csv'), ('panel', 'panel.csv'), ('states', 'states.csv')]
    """
    return {name: _HERE / f"{name}.csv" for name in ("survey", "panel", "states")}
