"""Write the schema files of the papers' datasets: `python -m demo_data.make_schemas`.

Only the sizes and kinds come from the papers.  The labels were written by hand after what is public
about the UCI repository's Adult, the March supplement of the Current Population Survey until 2002,
and LendingClub, whose statuses are merged to the five of the papers, with a cell for what is
missing where the papers count one value more; the README beside this module tells what they were
compared with.  The steps of the numbers, and the names of the CPS and Loans attributes, are chosen
here to be readable; what lies outside goes into the first or the last step.
"""

from demo_data import schemas
from engine.workload import Attribute, Schema

MISSING = "Not given"
ADULT = {
    "workclass": (
        "? Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov"
        " Without-pay"
    ),
    "marital-status": (
        "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married"
        " Separated Widowed"
    ),
    "occupation": (
        "? Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners"
        " Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales"
        " Tech-support Transport-moving"
    ),
    "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    "sex": "Female Male",
    "native-country": (
        "? Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England"
        " France Germany Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran"
        " Ireland Italy Jamaica Japan Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru"
        " Philippines Poland Portugal Puerto-Rico Scotland South Taiwan Thailand Trinadad&Tobago"
        " United-States Vietnam Yugoslavia"
    ),
    "income>50K": "<=50K >50K",
}
MARITAL = [
    "Married, spouse present",
    "Married, spouse in the Armed Forces",
    "Married, spouse absent",
    "Widowed",
    "Divorced",
    "Separated",
    "Never married",
]
RACE = ["White", "Black", "American Indian, Aleut or Eskimo", "Asian or Pacific Islander"]
STATES = (
    "AL AK AZ AR CA CO CT DE DC FL GA HI ID IL IN IA KS KY LA ME MD MA MI MN MS MO MT NE NV NH NJ"
    " NM NY NC ND OH OK OR PA RI SC SD TN TX UT VT VA WA WV WI WY"
)
PURPOSES = (
    "car credit_card debt_consolidation educational home_improvement house major_purchase medical"
    " moving other renewable_energy small_business vacation wedding"
)
GRADES = "ABCDEFG"
STATUSES = ["Current", "Fully Paid", "Late", "Default", "Charged Off"]


def papers_schemas() -> dict[str, Schema]:
    """The four schemas by name, in the order of `demo_data.schemas`."""
    return {
        "adult": Schema(
            [
                _steps("age", 17, 102, 1),
                _words("workclass"),
                _steps("fnlwgt", 0, 1_500_000, 15_000),
                Attribute.categorical("education-num", [str(years) for years in range(1, 17)]),
                *map(_words, ("marital-status", "occupation", "relationship", "race", "sex")),
                _steps("capital-gain", 0, 100_000, 1_000),
                _steps("capital-loss", 0, 5_000, 50),
                _steps("hours-per-week", 1, 100, 1),
                *map(_words, ("native-country", "income>50K")),
            ]
        ),
        "cps": Schema(
            [
                _steps("income", 0, 100_000, 1_000),
                _steps("age", 0, 100, 2),
                Attribute.categorical("marital", MARITAL),
                Attribute.categorical("race", RACE),
                Attribute.categorical("sex", ["Male", "Female"]),
            ]
        ),
        "loans": Schema(
            [
                _steps("loan_amount", 0, 40_400, 400),
                _steps("interest_rate", 0, 50.5, 0.5),
                _steps("annual_income", 0, 202_000, 2_000),
                _steps("debt_to_income", 0, 101, 1),
                Attribute.categorical("state", STATES.split()),
                Attribute.categorical(
                    "sub_grade", [f"{g}{i}" for g in GRADES for i in range(1, 6)], missing=MISSING
                ),
                Attribute.categorical("purpose", PURPOSES.split(), missing=MISSING),
                Attribute.categorical("grade", list(GRADES), missing=MISSING),
                Attribute.categorical(
                    "home_ownership", ["RENT", "OWN", "MORTGAGE", "OTHER", "NONE", "ANY"]
                ),
                Attribute.categorical("loan_status", STATUSES),
                Attribute.categorical(
                    "verification", ["Verified", "Source Verified", "Not Verified"], missing=MISSING
                ),
                Attribute.categorical("term", ["36 months", "60 months"], missing=MISSING),
            ]
        ),
        "census": Schema(
            [
                # Single years up to 99, then 100-104, 105-109 and 110 or more: the 103 rows of
                # census table PCT12.
                Attribute.numeric("age", [*range(101), 105, 110, 130]),
                Attribute.categorical("sex", ["Male", "Female"]),
            ]
        ),
    }


def _steps(name: str, low: float, high: float, width: float) -> Attribute:
    """Bins of one width; what lies outside goes into the first or the last."""
    count = round((high - low) / width)
    return Attribute.numeric(name, [low + width * i for i in range(count + 1)], clip=True)


def _words(name: str) -> Attribute:
    return Attribute.categorical(name, ADULT[name].split())


def main() -> None:
    """Write one JSON file per schema next to this module."""
    for name, schema in papers_schemas().items():
        schemas()[name].write_text(schema.to_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
