"""Predicates: parsed without execution; hostile ones and odd attribute names."""

import pytest

from engine.analysis import condition_query
from engine.errors import WorkloadError
from engine.workload import Attribute, Custom, Schema, Workload
from engine.workload.predicates import evaluate, example
from tests.shapes import mixed
from tests.workload.refusals import check_refused

pytestmark = pytest.mark.usefixtures("quick")

HOSTILE_PREDICATES = [
    "__import__('os').system('true')",
    "__import__('os')",
    "open('/etc/passwd')",
    "().__class__.__bases__",
    "wave.__class__ == 1",
    "[x for x in (1, 2)]",
    "lambda: 1",
    "(wave := 1) == 1",
    "wave if wave else wave",
    "f'{wave}' == '1'",
    "wave[0] == 1",
    "{1: 2}",
    "exec('1')",
    "print(wave)",
    "abs(wave, 1) == 0",
    "abs(x=wave) == 0",
    "wave ** 9 ** 9 == 1",
    "9 ** 9 ** 9 ** 9 == wave",
    "wave / 0 == 1",
    "wave // 1 == 0",
    "wave % 2 == 0",
    "wave << 99999999 == 1",
    "wave | 1 == 1",
    "~wave == 1",
    "wave is 1",
    "wave",
    "1",
    "'F'",
    "",
    "   ",
    "and",
    "age >= 30 and",
    "age >= 30; age < 20",
    "import os",
    "age >= 30\n\nimport os",
    "\x00",
    "age >= 30 # \x00",
    "height >= 30",
    "True == wave",
    "wave == False",
    "sex == 'Q'",
    "sex == 1",
    "sex < 'M'",
    "sex in 'FM'",
    "sex in sex",
    "sex == sex",
    "age == 'old'",
    "age + 1 >= 30",
    "age >= 25",
    "age > 30",
    "age == 30",
    "25 <= age",
    "age in [30]",
    "wave + sex == 1",
    "wave == 1j",
    "wave + 1 <= 1" + "0" * 400,
    "wave * 1e999 <= 1",
    "wave + 1e999 - 1e999 <= 1",
    "wave == None",
    "wave == ...",
    "wave == b'1'",
    "(" * 300 + "wave == 1" + ")" * 300,
    "not " * 3000 + "wave == 1",
    "wave == " + "-" * 3000 + "1",
    "wave" + " + 1" * 2400 + " == 1",
    "wave == " + "1" * 9000,
    "wave == 1 or " * 100_000 + "wave == 0",
    "x" * 1_000_000,
    "(" * 9_999,
    "[" * 5_000 + "]" * 4_999,
    "ｗave >= 1 and ｗ == 2",
]
CELLS_OF_PREDICATES = {
    "wave == 1 or " * 700 + "wave == 0": 24,
    "(" * 40 + "wave == 1" + ")" * 40: 12,
    "age >= 30 and sex == 'F'": 4,
    "0 <= age <= 120": 24,
    "age < 20 or 65 <= age": 12,
    "20 <= age and not age >= 65": 12,
    "sex in ['F', 'X'] and wave not in (1,)": 8,
    "wave - 1 == -1": 12,
    "abs(wave - 1) + 2 * wave <= 1": 12,
    "True": 24,
    "False or wave == 0": 12,
    "age <= 120": 24,
    "age >= -5": 24,
    "age > 1e6": 0,
    "sex = 'F' and wave=1": 4,
    "30 ≤ age and age≥30 and sex ≠ 'F'": 8,
    "sex in ['F'] and not (1 = wave) and age >= 30": 2,
}


@pytest.mark.parametrize("predicate", HOSTILE_PREDICATES, ids=lambda text: repr(text[:30]))
def test_hostile_predicate_is_refused(predicate):
    names, family = ("age", "sex", "wave"), Custom(predicates=[predicate])
    check_refused(WorkloadError, ["predicate"], Workload(mixed()).add, names, family)


@pytest.mark.parametrize("text", CELLS_OF_PREDICATES, ids=lambda text: text[:30])
def test_valid_predicate_selects_expected_cells(text):
    workload = Workload(mixed()).add(("age", "sex", "wave"), Custom(predicates=[text]))
    (part,) = workload.groups[0].parts
    assert part.family.rows(part.sizes).sum() == CELLS_OF_PREDICATES[text]


def test_single_equals_inside_label_is_unchanged():
    schema = Schema([Attribute.categorical("grade", ["a=b", "a==b"])])
    workload = Workload(schema).add("grade", Custom(predicates=["grade = 'a=b'"]))
    assert workload.groups[0].parts[0].family.rows((2,)).tolist() == [[1, 0]]


def test_example_in_error_message_is_valid_for_schema():
    attributes = [
        Attribute.categorical("long", ["x" * 50, "y"]),
        Attribute.dates("visit day", "2023-01-01", "2023-12-31"),
        Attribute.numeric("height", [0.1, 0.25, 2.5]),
        Attribute.categorical("it's", ["it's", "other"]),
        Attribute.of_size("code", 9),
    ]
    for first in range(len(attributes)):
        schema = Schema(attributes[first:])
        text = example(schema.attributes)
        assert condition_query(schema, text).tensor.any()
        check_refused(WorkloadError, [text], condition_query, schema, "code <")


def test_attribute_name_with_hyphen_maps_to_underscore():
    schema = Schema(
        [Attribute.of_size("hours-per-week", 3), Attribute.of_size("hours per week", 2)]
    )
    workload = Workload(schema).add("hours-per-week", Custom(predicates=["hours_per_week <= 1"]))
    assert workload.groups[0].parts[0].family.rows((3,)).tolist() == [[1, 1, 0]]
    ambiguous = Custom(predicates=["hours_per_week <= 1"])
    check_refused(
        WorkloadError,
        ["hours_per_week", "backticks"],
        Workload(schema).add,
        schema.names,
        ambiguous,
    )


def schema_of_odd_names():
    """Return a schema whose names are no identifiers, except the last, whose labels are odd."""
    names = ["hours-per-week", "hours per week", "it's", 'a "b"', "größe (€)", "class"]
    return Schema(
        [Attribute.of_size(name, 3) for name in names]
        + [Attribute.categorical("c", ["`x`", "it's"])]
    )


def test_attribute_names_in_backticks_are_read():
    schema = schema_of_odd_names()
    names = schema.names[:-1]

    def count_cells(*attributes: str, where: str) -> int:
        part = Workload(schema).add(attributes, Custom(predicates=[where])).groups[0].parts[0]
        return int(part.family.rows(part.sizes).sum())

    for name in names:
        # The condition allows 2 of the 3 cells of one attribute.
        assert count_cells(name, where=f"`{name}` >= 1") == 2
        others = [other for other in names[:2] if other != name]
        expected = 2 * 3 ** len(others)
        assert count_cells(name, *others, where=f"`{name}` >= 1 and 0 <= `{name}`") == expected
    assert count_cells(*names[:2], where="`hours-per-week` + `hours per week` <= 1") == 3
    assert count_cells("c", where="c == '`x`'") == 1
    assert count_cells("c", where='c == "it\'s"') == 1
    assert count_cells("c", "it's", where="c == '`x`' and `it's`==0") == 1
    assert condition_query(schema, '`a "b"` == 1 and `class`==2').attributes == ('a "b"', "class")


def test_attribute_names_without_correct_backticks_are_refused():
    schema = schema_of_odd_names()
    names = ("hours-per-week", "hours per week", "it's")
    for predicate, words in {
        "`hours per weeks` == 1": ["hours per weeks", "hours per week"],
        "`hours-per-week == 1": ["cannot be read", "`hours-per-week` in backticks"],
        "hours per week == 1": ["cannot be read", "backticks"],
        "'hours per week' == 1": ["in quotes", "`hours per week`"],
        "`` == 1": ["name ''"],
        "`it's` == 'a' + `it's`": ["predicate"],
    }.items():
        family = Custom(predicates=[predicate])
        check_refused(WorkloadError, words, Workload(schema).add, names, family)


@pytest.mark.parametrize(
    ("wrong", "words", "proposed"),
    [
        ("age > 20", "[20, 40)", "age < 40"),
        ("age < 50", "[40, 90]", "age >= 40"),
        ("day >= '2024-02-10'", "2024-02", "day <= '2024-02'"),
        ("day == '2024-04-10'", "2024-04", "day >= '2024-04'"),
        ("day < 'unknown'", "missing values", "day = 'unknown'"),
        ("sex < 'F'", "no order", "sex != 'F'"),
        ("sex in 'F'", "square brackets", "sex in ['F']"),
    ],
)
def test_refused_comparison_proposes_exact_one(wrong: str, words: str, proposed: str) -> None:
    attributes = [
        Attribute.numeric("age", [0, 20, 40, 90]),
        Attribute.dates("day", "2024-01", "2024-04", missing="unknown"),
        Attribute.categorical("sex", ["F", "M"]),
    ]
    with pytest.raises(WorkloadError) as caught:
        evaluate(wrong, attributes)
    message = str(caught.value)
    assert words in message
    assert ".." not in message
    sign = proposed.split()[1]
    assert sign in message.partition(words)[2]
    assert 0 < evaluate(proposed, attributes).sum() < 3 * 5 * 2
