"""Schemas drafted from data dictionaries, and files of records that were given as a schema."""

from __future__ import annotations

import pytest

import demo_data
from engine import Attribute, Schema
from engine.errors import SchemaError
from engine.workload import columns_of_records, is_dictionary, schema_from_dictionary, schema_template

SEX = Attribute.categorical("sex", ["Female", "Male"])
CODED = Attribute.categorical("sex", ["1", "2"])


@pytest.mark.parametrize(
    "text",
    [
        "name,value,label\nsex,1,Female\nsex,2,Male\n",
        "Variable,Code,Value label\nsex,1,Female\n,2,Male\n",
        "column,values\nsex,1=Female; 2 = Male\n",
        "field,categories\nsex,1=Female|2=Male\n\n",
        "name;value;label\nsex;1;Female\n;2;Male\n",
        "name\tvalues\nsex\t1=Female|2=Male\n".encode("utf-16"),
        b"\xef\xbb\xbfname,value,label\r\nsex,1,Female\r\n,2,Male\r\n",
    ],
)
def test_dictionaries_of_several_kinds(text: str | bytes) -> None:
    assert is_dictionary(text)
    assert schema_from_dictionary(text).attributes == (SEX,)
    assert schema_from_dictionary(text, hold="codes").attributes == (CODED,)


def test_values_without_labels_and_ranges() -> None:
    found = schema_from_dictionary("name,values\ncolour,red|green\nage,0-99\nincome,0 to 99999\nfloor,-2..3\n")
    colour, age, income, floor = found.attributes
    assert colour.labels == ("red", "green")
    assert age.edges is not None
    assert (age.size, age.edges[0], age.edges[-1]) == (100, 0, 100)
    assert income.size == 50
    assert income.edges is not None
    assert income.edges[-1] >= 100_000
    assert (floor.size, floor.kind) == (6, "numeric")


@pytest.mark.parametrize(
    "text",
    [
        "name,kind\nsex,categorical\n",
        "age,sex\n31,F\n",
        "name,value\n,1\n",
        "name,value\nAlice,7\nBob,9\n",  # records whose columns happen to be called so
        "name,value\nsex,1,Female\n",
        b"\xff\xfe",
        "",
        "name,value\nsex,1\nsex,1\n",
    ],
)
def test_what_is_no_dictionary_is_refused_without_its_values(text: str | bytes) -> None:
    with pytest.raises(SchemaError) as caught:
        schema_from_dictionary(text)
    assert not any(value in str(caught.value) for value in ("Alice", "Bob", "31", "Female"))


def test_records_are_known_by_their_first_line_and_nothing_else_is_taken() -> None:
    survey = demo_data.tables()["survey"].read_bytes()
    names = Schema.from_json(demo_data.schemas()["survey"].read_bytes()).names
    assert set(names) <= set(columns_of_records(survey))
    assert columns_of_records('age,sex\n"' * 2) == ("age", "sex")  # what follows may be no CSV at all
    for other in ("31,F\n42,M\n", "a,a\n", "a,\n", "name,kind\n", "name,size\n", "name,value\n", ""):
        assert columns_of_records(other) == ()


def test_the_template_is_filled_in_to_a_schema() -> None:
    text = schema_template(["age", "sex, or none"])
    filled = text.replace("age,,,", "age,numeric,85,", 1).replace('none",,,', 'none",categorical,,F|M', 1)
    found = Schema.from_csv(filled)
    assert found.names == ("age", "sex, or none")
    assert found["sex, or none"].labels == ("F", "M")
