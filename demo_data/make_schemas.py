"""Write the schema files of the papers' datasets: `python -m demo_data.make_schemas`.

Only the sizes and kinds come from the papers; the names and the labels of the Adult attributes are those of the UCI
repository, as its file `adult.names` lists them, with "?" for what is missing.  The names of the CPS and Loans
attributes are chosen to be readable.  What has no labels has codes 0 .. size - 1.
"""

from demo_data import schemas
from engine.workload import Attribute, Schema

ADULT = {
    "workclass": "? Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay",
    "marital-status": "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated "
    "Widowed",
    "occupation": "? Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners "
    "Machine-op-inspct Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support "
    "Transport-moving",
    "relationship": "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    "race": "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    "sex": "Female Male",
    "native-country": "? Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France "
    "Germany Greece Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan "
    "Laos Mexico Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South "
    "Taiwan Thailand Trinadad&Tobago United-States Vietnam Yugoslavia",
    "income>50K": "<=50K >50K",
}


def papers_schemas() -> dict[str, Schema]:
    """The four schemas by name, in the order of `demo_data.schemas`."""
    adult = {"age": 85, "workclass": 9, "fnlwgt": 100, "education-num": 16, "marital-status": 7, "occupation": 15}
    adult |= {"relationship": 6, "race": 5, "sex": 2, "capital-gain": 100, "capital-loss": 100, "hours-per-week": 99}
    adult |= {"native-country": 42, "income>50K": 2}
    cps = {"income": 100, "age": 50, "marital": 7, "race": 4, "sex": 2}
    loans = {"loan_amount": 101, "interest_rate": 101, "annual_income": 101, "debt_to_income": 101, "state": 51}
    loans |= {"sub_grade": 36, "purpose": 15, "grade": 8, "home_ownership": 6, "loan_status": 5, "verification": 4}
    loans |= {"term": 3}
    return {
        "adult": _labelled(
            _codes(adult, numeric={"age", "fnlwgt", "capital-gain", "capital-loss", "hours-per-week"}), ADULT
        ),
        "cps": _codes(cps, numeric={"income", "age"}),
        "loans": _codes(loans, numeric={"loan_amount", "interest_rate", "annual_income", "debt_to_income"}),
        "census": Schema(
            [
                # Single years up to 99, then 100-104, 105-109 and 110 or more: the 103 rows of census table PCT12.
                Attribute.numeric("age", [*range(101), 105, 110, 130]),
                Attribute.categorical("sex", ["Male", "Female"]),
            ]
        ),
    }


def _codes(sizes: dict[str, int], numeric: set[str]) -> Schema:
    kinds = {name: "numeric" if name in numeric else "categorical" for name in sizes}
    return Schema([Attribute.of_size(name, size, kind=kinds[name]) for name, size in sizes.items()])


def _labelled(schema: Schema, labels: dict[str, str]) -> Schema:
    named = (
        Attribute.categorical(a.name, labels[a.name].split()) if a.name in labels else a for a in schema.attributes
    )
    return Schema(list(named))


def main() -> None:
    """Write one JSON file per schema next to this module."""
    for name, schema in papers_schemas().items():
        schemas()[name].write_text(schema.to_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
