"""Write states.csv and states.json: simulated persons in the 51 states, with a code list of levels.

Run `python -m demo_data.make_states`; the same program writes the same files. The code list is
public: the regions and divisions of the Census Bureau, the postal codes of the states and the
District of Columbia. The records are simulated from `SEED`: a state by its share of the population
in 2020, rounded to 0.1 million, and a sex and an age by rough national shares. No person was asked.
"""

import numpy as np
import pandas as pd

from demo_data import schemas, tables
from engine.workload import Attribute, CodeList, Schema

SEED, PEOPLE = 20_260_401, 3_000
# region -> division -> state -> inhabitants in millions
STATES = {
    "Northeast": {
        "New England": {"CT": 3.6, "MA": 7.0, "ME": 1.4, "NH": 1.4, "RI": 1.1, "VT": 0.6},
        "Middle Atlantic": {"NJ": 9.3, "NY": 20.2, "PA": 13.0},
    },
    "Midwest": {
        "East North Central": {"IL": 12.8, "IN": 6.8, "MI": 10.1, "OH": 11.8, "WI": 5.9},
        "West North Central": {
            "IA": 3.2,
            "KS": 2.9,
            "MN": 5.7,
            "MO": 6.2,
            "ND": 0.8,
            "NE": 2.0,
            "SD": 0.9,
        },
    },
    "South": {
        "South Atlantic": {
            "DC": 0.7,
            "DE": 1.0,
            "FL": 21.5,
            "GA": 10.7,
            "MD": 6.2,
            "NC": 10.4,
            "SC": 5.1,
            "VA": 8.6,
            "WV": 1.8,
        },
        "East South Central": {"AL": 5.0, "KY": 4.5, "MS": 3.0, "TN": 6.9},
        "West South Central": {"AR": 3.0, "LA": 4.7, "OK": 4.0, "TX": 29.1},
    },
    "West": {
        "Mountain": {
            "AZ": 7.2,
            "CO": 5.8,
            "ID": 1.8,
            "MT": 1.1,
            "NM": 2.1,
            "NV": 3.1,
            "UT": 3.3,
            "WY": 0.6,
        },
        "Pacific": {"AK": 0.7, "CA": 39.5, "HI": 1.5, "OR": 4.2, "WA": 7.7},
    },
}
# youngest age of every age class of table P12 of the census, and the end of the last class
AGES = (
    *(0, 5, 10, 15, 18, 20, 21, 22, 25, 30, 35, 40, 45, 50, 55, 60, 62, 65, 67, 70, 75, 80, 85),
    110,
)
# rough share of the persons by the first year of an age class of about twenty years
AGE_SHARES = {0: 0.25, 20: 0.27, 40: 0.25, 60: 0.19, 80: 0.04}


def states_list() -> CodeList:
    """Return the code list of regions, divisions and states."""
    tree = {
        region: {division: list(states) for division, states in divisions.items()}
        for region, divisions in STATES.items()
    }
    return CodeList.from_labels(tree, name="geography", levels=["region", "division"])


def states_schema() -> Schema:
    """Return the public domain: the code list, sex, and the ages of table P12."""
    return Schema(
        [
            Attribute.hierarchy("state", states_list()),
            Attribute.categorical("sex", ["Female", "Male"]),
            Attribute.numeric("age", AGES, clip=True, integer=True),
        ]
    )


def states_records() -> pd.DataFrame:
    """Return simulated persons, one per row."""
    rng = np.random.default_rng(SEED)
    sizes = {
        state: size
        for divisions in STATES.values()
        for states in divisions.values()
        for state, size in states.items()
    }
    shares = np.array(list(sizes.values()))
    first = rng.choice(list(AGE_SHARES), PEOPLE, p=list(AGE_SHARES.values()))
    return pd.DataFrame(
        {
            "state": rng.choice(list(sizes), PEOPLE, p=shares / shares.sum()),
            "sex": rng.choice(["Female", "Male"], PEOPLE),
            "age": first + rng.integers(0, 20, PEOPLE),
        }
    )


def main() -> None:
    """Write both files next to this module."""
    states_records().to_csv(tables()["states"], index=False, lineterminator="\n")
    schemas()["states"].write_text(states_schema().to_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
