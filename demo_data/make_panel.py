"""Write panel.csv and panel.json: a simulated panel of persons who were asked in one to eight
waves.

Run `python -m demo_data.make_panel`; the same program writes the same files.  No person was asked:
everybody draws a region, an age and a habit of work from `SEED`, is asked from some wave on for so
many waves in a row, and mostly goes on as before.  The schema declares the column that tells whose
row it is, and three rows of a person that count.
"""

import numpy as np
import pandas as pd

from demo_data import schemas, tables
from engine.workload import Attribute, Schema

SEED, PEOPLE, WAVES = 20_240_501, 800, 8
REGIONS = ("North", "East", "South", "West", "Capital")
STATUS = ("employed", "self-employed", "unemployed", "not in the labour force")
HOURS = [0, 1, 10, 20, 30, 35, 40, 45, 50, 60, 81]
USUAL = (38, 46, 0, 0)  # weekly hours by status


def panel_schema() -> Schema:
    """Public domain of the panel: its questionnaire, not its answers."""
    return Schema(
        [
            Attribute.numeric("wave", range(1, WAVES + 2)),
            Attribute.numeric("age", range(15, 95, 5)),
            Attribute.categorical("region", REGIONS),
            Attribute.categorical("status", STATUS),
            Attribute.numeric("weekly_hours", HOURS),
        ],
        person="person",
        rows_per_person=3,
    )


def panel_records() -> pd.DataFrame:
    """All rows, wave after wave; a person has as many as waves in which they were asked."""
    rng = np.random.default_rng(SEED)
    rows = []
    for number in range(PEOPLE):
        rows_of_person = int(rng.integers(1, WAVES + 1))
        first = int(rng.integers(1, WAVES + 2 - rows_of_person))
        age, region = int(rng.integers(15, 88)), int(rng.choice(5, p=(0.15, 0.2, 0.25, 0.15, 0.25)))
        status = int(rng.choice(4, p=(0.6, 0.12, 0.08, 0.2)))
        for wave in range(first, first + rows_of_person):
            if rng.random() < 0.15:
                status = int(rng.choice(4, p=(0.55, 0.1, 0.15, 0.2)))
            hours = int(np.clip(rng.normal(USUAL[status], 8), 1, 80)) if USUAL[status] else 0
            grown = age + (wave - first) // 2  # two waves a year
            rows.append((f"P{number:04d}", wave, grown, REGIONS[region], STATUS[status], hours))
    schema = panel_schema()
    columns = [str(schema.person), *schema.names]
    return pd.DataFrame(rows, columns=columns).sort_values(["wave", columns[0]], ignore_index=True)


def main() -> None:
    """Write both files next to this module."""
    panel_records().to_csv(tables()["panel"], index=False, lineterminator="\n")
    schemas()["panel"].write_text(panel_schema().to_json() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
