"""Ready schemas, a public survey and a simulated panel, so that every page has something to start from.

    name      what it is                                              records
    adult     UCI Adult, the attribute sizes of the papers            none (make synthetic ones)
    cps       Current Population Survey, the sizes of the papers      none
    loans     personal loans, the sizes of the papers                 none
    census    single years of age by sex, as in a census table        none
    survey    944 voters of 1996, a public-domain survey              survey.csv
    panel     800 persons in one to eight waves, simulated            panel.csv; its schema declares whose rows

`make_schemas` writes the schema files, `make_survey` the survey, `make_panel` the panel, `make_synthetic` a table for
any schema.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent

TITLES = {
    "adult": "Adult (14 attributes)",
    "cps": "Current Population Survey (5 attributes)",
    "loans": "Loans (12 attributes)",
    "census": "Census age by sex",
    "survey": "Election survey 1996 (944 public records)",
    "panel": "Panel of 800 simulated persons, 1 to 8 rows each",
}


def schemas() -> dict[str, Path]:
    """Schema files by name, each readable by `Schema.from_json`.

    >>> list(schemas())
    ['adult', 'cps', 'loans', 'census', 'survey', 'panel']
    """
    return {name: _HERE / f"{name}.json" for name in TITLES}


def tables() -> dict[str, Path]:
    """CSV files of public or simulated records by the name of the schema they fit.

    >>> [(name, path.name) for name, path in tables().items()]
    [('survey', 'survey.csv'), ('panel', 'panel.csv')]
    """
    return {name: _HERE / f"{name}.csv" for name in ("survey", "panel")}
