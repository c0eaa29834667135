"""Code lists with levels: a small one with two hierarchies, and one with thousands of counties."""

from __future__ import annotations

from functools import cache

from engine.workload import Attribute, CodeList, Levels, Schema, Workload

PLACES = {"north": {"A": ["a1", "a2"], "B": ["b1"]}, "south": {"C": ["c1", "c2", "c3"]}}
CODES = CodeList.from_labels(PLACES, name="geography", levels=["region", "county"])
KINDS = CodeList.from_labels(
    {"town": ["a1", "b1", "c1"], "land": ["a2", "c2", "c3"]}, name="type", levels=["kind"]
)
SCHEMA = Schema(
    [
        Attribute.categorical("sex", ["F", "M"]),
        Attribute.hierarchy("place", CODES).with_hierarchy(KINDS),
        Attribute.of_size("age", 3, kind="numeric"),
        Attribute.hierarchy("work", CODES),
    ]
)
WORKLOAD = Workload(SCHEMA).add(
    ("sex", "place", "age"),
    {
        "sex": "marginal",
        "place": Levels(["county", "place", "region"], weights=[1, 2, 3]),
        "age": "prefix",
    },
)
N_STATES, N_COUNTIES = 51, 3_143


def counties_csv() -> str:
    """Return an invented code list of `N_COUNTIES` counties in `N_STATES` states as CSV."""
    rows = [f"{s:02},State {s:02},,state" for s in range(N_STATES)]
    rows += [f"{i % N_STATES:02}{i:04},County {i},{i % N_STATES:02}," for i in range(N_COUNTIES)]
    return "\n".join(["code,label,parent,level", *rows])


@cache
def counties_schema() -> Schema:
    """Return a schema with the counties, sex and 18 classes of age."""
    return Schema(
        [
            Attribute.hierarchy("county", CodeList.from_csv(counties_csv(), name="geography")),
            Attribute.categorical("sex", ["F", "M"]),
            Attribute.numeric("age", range(0, 95, 5)),
        ]
    )


@cache
def counties_workload() -> Workload:
    """Return the counts of every state and every county by sex and age."""
    families = {"county": Levels(["state", "county"]), "sex": "marginal", "age": "marginal"}
    return Workload(counties_schema()).add(("county", "sex", "age"), families)
