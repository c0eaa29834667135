"""Schemas drafted from data dictionaries, and records passed in place of a schema."""

from __future__ import annotations

import pytest

import demo_data
from engine.errors import SchemaError
from engine.workload import Attribute, Schema
from engine.workload.schema_tables import (
    columns_of_json_records,
    columns_of_records,
    draft_from_dictionary,
    is_dictionary,
)

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
def test_draft_reads_several_dictionary_formats(text: str | bytes) -> None:
    assert is_dictionary(text)
    assert draft_from_dictionary(text).schema.attributes == (SEX,)
    assert draft_from_dictionary(text, hold="codes").schema.attributes == (CODED,)


def test_draft_reads_values_and_ranges() -> None:
    draft = draft_from_dictionary(
        "name,values\ncolour,red|green\nage,0-99\nincome,0 to 99999\nfloor,-2..3\n"
    )
    colour, age, income, floor = draft.schema.attributes
    assert colour.labels == ("red", "green")
    assert age.edges is not None
    assert (age.size, age.edges[0], age.edges[-1]) == (100, 0, 99)
    assert income.size == 50
    assert income.edges is not None
    assert income.edges[-1] == 99_999
    assert (floor.size, floor.kind) == (6, "numeric")


@pytest.mark.parametrize(
    "text",
    [
        "name,kind\nsex,categorical\n",
        "age,sex\n31,F\n",
        "name,value\n,1\n",
        # records with the column names of a dictionary
        "name,value\nAlice,7\nBob,9\n",
        "name,value\nsex,1,Female\n",
        b"\xff\xfe",
        "",
        "name,value\nsex,1\nsex,1\n",
    ],
)
def test_draft_of_other_text_is_refused_without_values(text: str | bytes) -> None:
    with pytest.raises(SchemaError) as caught:
        draft_from_dictionary(text)
    assert not any(value in str(caught.value) for value in ("Alice", "Bob", "31", "Female"))


def test_columns_of_records_reads_only_header() -> None:
    survey = demo_data.tables()["survey"].read_bytes()
    names = Schema.from_json(demo_data.schemas()["survey"].read_bytes()).names
    assert set(names) <= set(columns_of_records(survey))
    # the rest of the file need not be valid CSV
    assert columns_of_records('age,sex\n"' * 2) == ("age", "sex")
    no_header = ("31,F\n42,M\n", "a,a\n", "a,,\n", "")
    schema_or_dictionary = ("name,kind\n", "name,size\n", "name,value\n")
    for text in (*no_header, *schema_or_dictionary):
        assert columns_of_records(text) == ()


def test_columns_of_records_skips_columns_without_name() -> None:
    assert columns_of_records('"","sex","age"\n"1","F",31\n') == ("sex", "age")
    assert columns_of_records("sex,age,\nF,31\n") == ("sex", "age")
    assert columns_of_records('sep=;\n"age\n(years)";sex\n') == ("age (years)", "sex")
    assert columns_of_records("sex;age\rF;31\r") == ("sex", "age")


BAD = """name,values
sex,F|M
age,0-99; 999 = missing
job,1 = clerk; cashier | 2 = farmer
note,free text
years,0-85+
height,10.0-60.0
income,"0-100,000"
wrong,1,2,3
mixed,1 = a; b; 2 = c
grade,0-10; 11 = eleven
"""


def test_invalid_dictionary_lines_are_named_and_skipped() -> None:
    draft = draft_from_dictionary(BAD)
    schema = draft.schema
    assert schema.names == ("sex", "age", "job", "height", "income")
    assert (schema["age"].size, schema["job"].labels) == (100, ("clerk; cashier", "farmer"))
    assert (schema["height"].edges or ())[::10] == (10.0, 60.0)
    assert (schema["income"].edges or ())[-1] >= 100_000
    lines = {name: reason.partition(":")[0] for name, reason in draft.reasons.items()}
    assert lines == {
        "note": "line 5",
        "years": "line 6",
        "wrong": "line 9",
        "mixed": "line 10",
        "grade": "line 11",
    }
    assert [note.partition(":")[0] for note in draft.notes] == ["age, line 3", "income, line 8"]


def test_dictionary_unclosed_quote_is_named() -> None:
    draft = draft_from_dictionary('name,value\nsex,F\n,M\nage,"0-9\njob,1\n')
    assert draft.schema.names == ("sex",)
    assert [note.partition(":")[0] for note in draft.notes] == ["line 4"]


def test_columns_of_json_records_ignores_other_json() -> None:
    for text in (
        "",
        "[]",
        "[1, 2]",
        "{",
        '{"age": 85}',
        '[{"name": "age", "kind": "numeric", "size": 3}]',
        "[" * 200_000,
        '[{"name": "sex", "value": 1, "label": "F"}]',
        '[{"a": ' + "9" * 5_000 + "}]",
        '[{"31": 1}]',
        "[{}]",
        b'\xff[{"age": 1}]',
    ):
        assert columns_of_json_records(text) == ()
    # only the first record is read
    assert columns_of_json_records('[{"age": 1}, no JSON') == ("age",)
    assert columns_of_json_records('{"age": 1} {"age": 2}'.encode("utf-16")) == ("age",)
