"""Common mistakes raise engine errors whose messages contain certain words."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from engine.analysis import condition_query, parse_query, tolerance_for
from engine.analysis.ad_hoc_queries import further_answers
from engine.analysis.compare import compare
from engine.analysis.error_targets import share_within
from engine.common_mechanism import NestedPlanRule, stepwise
from engine.common_mechanism.common_mechanism import LinearMechanism
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.errors import EngineError
from engine.ledger import Ledger
from engine.mechanisms import forecast, load_plan, plan
from engine.privacy import Budget
from engine.records import count_marginals
from engine.release import measure
from engine.release.measure import load_measurement
from engine.workload import Attribute, Custom, Schema, Width, Workload
from engine.workload.families import Random
from engine.workload.sql import workload_from_sql

S = Schema([Attribute.of_size("age", 4), Attribute.categorical("sex", ["F", "M"])])
W = Workload.all_ways(S, ways=(1, 2))
B = Budget(pcost=1.0)
P = plan(W, B)
D = pd.DataFrame({"age": [0, 1, 1, 3], "sex": ["F", "M", "M", "F"]})
M = measure(P, D, rehearsal=True)
C = coarse_or_fine(plan(Workload.all_ways(S, 1), B), plan(Workload.all_ways(S, 2), B))
TOTALS = measure(plan(Workload(S).add("age"), B), D, rehearsal=True)


def new_ledger() -> Ledger:
    """Return a new ledger; its temporary folder has already been deleted."""
    with tempfile.TemporaryDirectory() as folder:
        return Ledger.create(Path(folder) / "ledger")


# mistake -> (call that makes it, texts that its message must contain, separated by |)
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "an attribute that is not there": (lambda: M.marginal(["foo"]), "'foo'|2 attributes"),
    "a misspelt attribute": (lambda: M.marginal(["agee"]), "'agee'|'age'"),
    "a number for a name": (lambda: M.marginal(3), "int|Give a name, or a list"),
    "numbers for names": (lambda: M.marginal([3]), "int|schema"),
    "a name twice": (lambda: M.marginal(["age", "age"]), "age, age|once"),
    "a table that was not measured": (lambda: TOTALS.marginal(["sex"]), "sex|answer()|marginal"),
    "a query on an unknown attribute": (lambda: M.answer(["foo"], [1, 2]), "'foo'|schema"),
    "a query of another shape": (lambda: M.answer(["age"], [1, 2]), "(2,)|(4,)"),
    "a text for a query": (lambda: M.answer(["age"], "x"), "numbers|(4,)"),
    "a query that is no pair": (lambda: P.covariance([3]), "int|pair (attributes, table)"),
    "coefficients of another number": (
        lambda: M.combination([("age", [1, 0, 0, 0])], [1, 2]),
        "(2,)|per query",
    ),
    "a coefficient that is none": (
        lambda: M.combination([("age", [1, 0, 0, 0])], [math.nan]),
        "finite|per query",
    ),
    "a name for a group": (lambda: M.answers("age"), "'age'|0 to 2"),
    "a group that is not there": (lambda: P.variances(99), "99|0 to 2"),
    "a confidence in percent": (lambda: M.answers(0, confidence=95), "95|below 1"),
    "a text for a first query": (lambda: M.answers(0, start="a"), "'a'|to 4"),
    "half a query": (lambda: P.variances(0, stop=2.5), "2.5|to 4"),
    "a misspelt mechanism": (
        lambda: plan(W, B, "querysmasherr"),
        "'querysmasherr'|'querysmasher'|Choose",
    ),
    "a misspelt option": (lambda: plan(W, B, center="tuned"), "center|'centers'|time_limit"),
    "a misspelt limit": (lambda: plan(W, B, timelimit=3), "timelimit|'time_limit'"),
    "a class attribute for an option": (lambda: plan(W, B, name="x"), "no option name|objective"),
    "an option of another mechanism": (
        lambda: plan(W, B, "identity", centers="tuned"),
        "centers|objective",
    ),
    "a misspelt choice": (
        lambda: plan(W, B, centers="tuend"),
        "'tuend'|close names: 'tuned'|'uniform', 'tuned'",
    ),
    "an objective that is none": (
        lambda: plan(W, B, objective="mean"),
        "'mean'|'sum', 'max', 'lp'",
    ),
    "budget before workload": (lambda: plan(B, W), "Workload|Budget"),
    "a number for a budget": (lambda: plan(W, 1.0), "Workload|Budget"),
    "a workload without queries": (lambda: plan(Workload(S), B), "no queries|Add"),
    "a negative time limit": (lambda: plan(W, B, time_limit=-1), "-1|above 0"),
    "a limit as text": (lambda: plan(W, B, memory_limit="4GB"), "'4GB'|above 0"),
    "a number for progress": (lambda: plan(W, B, progress=3), "3|function|True"),
    "targets without their objective": (lambda: plan(W, B, targets=3), "3|'max'"),
    "a forecast of nothing": (lambda: forecast(3), "int|Workload"),
    "no budget at all": (lambda: Budget(pcost=0), "0|above 0"),
    "a budget as text": (lambda: Budget(pcost="1"), "str|1.0"),
    "delta above 1": (lambda: Budget.approx(1.0, 2.0), "2.0|between 0 and 1"),
    "delta zero": (lambda: Budget.approx(epsilon=1.0, delta=0), "0|between 0 and 1"),
    "no rows of a person": (lambda: Budget(pcost=1.0, rows_per_person=0), "0|from 1"),
    "unknown neighbours": (lambda: Budget(pcost=1.0, neighbours="x"), "'x'|add_remove"),
    "no labels": (lambda: Attribute.categorical("sex", []), "'sex'|at least one"),
    "a label twice": (
        lambda: Attribute.categorical("sex", ["F", "F"]),
        "'F' more than once|each label once",
    ),
    "labels in one text": (lambda: Attribute.categorical("sex", "FM"), "str|list"),
    "one edge": (lambda: Attribute.numeric("age", [1]), "1 edge|at least two"),
    "edges backwards": (lambda: Attribute.numeric("age", [3, 2]), "2 after 3|sort"),
    "half a cell": (lambda: Attribute.of_size("age", 2.5), "float|whole number"),
    "names for a schema": (lambda: Schema(["age"]), "str|Attribute"),
    "an attribute twice": (lambda: Schema([Attribute.of_size("a", 2)] * 2), "'a'|rename"),
    "broken JSON": (lambda: Schema.from_json("{"), "line 1|correct"),
    "a workload of no schema": (lambda: Workload("x"), "str|Schema("),
    "all ways of no schema": (lambda: Workload.all_ways(None), "NoneType|Schema("),
    "no ways": (lambda: Workload.all_ways(S, ways=None), "NoneType|(1, 2)"),
    "more ways than attributes": (lambda: Workload.all_ways(S, ways=5), "5|0 to 2"),
    "a group on an unknown attribute": (lambda: Workload(S).add("agee"), "'agee'|'age'"),
    "a group on a number": (lambda: Workload(S).add(3), "int|name"),
    "a misspelt family": (lambda: Workload(S).add("age", "rangee"), "'rangee'|'range'|Choose"),
    "a family for one of two": (
        lambda: Workload(S).add(("age", "sex"), {"age": "prefix"}),
        "age, sex|each",
    ),
    "a joint family on one": (lambda: Workload(S).add("age", "affine"), "1 (age)|2 attributes"),
    "a negative weight": (lambda: Workload(S).add("age", weight=-1), "-1|1e-100"),
    "too few query weights": (lambda: Workload(S).add("age", query_weights=[1, 2]), "(2,)|4"),
    "a width that is too large": (lambda: Workload(S).add("age", Width(9)), "9|1 to 4"),
    "a probability above 1": (lambda: Random(p=2, count=3), "2|below 1"),
    "a matrix of other cells": (
        lambda: Workload(S).add("age", Custom([[1, 2]])),
        "2 columns|4 cells",
    ),
    "a file name for a workload": (
        lambda: Workload.from_json("w.json"),
        "JSON|not the name of the file",
    ),
    "nothing for a workload": (lambda: Workload.from_json(None), "JSON|to_json"),
    "a query that is not there": (lambda: W.describe(999), "999|0 to 13"),
    "a file name for a plan": (lambda: load_plan("plan.json"), "JSON|not the name of"),
    "nothing for a plan": (lambda: load_plan(None), "JSON|to_json"),
    "a release without a ledger": (lambda: measure(P, D), "ledger|rehearsal=True"),
    "a ledger that is not there": (
        lambda: measure(P, D, dataset="x", ledger="/nofile"),
        "/nofile|new ledger",
    ),
    "a ledger that is none": (lambda: Ledger(None), "NoneType|path"),
    "a result of no ledger": (lambda: load_measurement(None, "key"), "NoneType|path"),
    "a workload for a plan": (lambda: measure(W, D, rehearsal=True), "Workload|plan()"),
    "a spreadsheet": (lambda: measure(P, "a.xlsx", rehearsal=True), "'a.xlsx'|.parquet"),
    "a file that is not there": (lambda: measure(P, "a.csv", rehearsal=True), "'a.csv'|path"),
    "lists for records": (lambda: measure(P, [[1, 2]], rehearsal=True), "list|DataFrame"),
    "a column that is missing": (
        lambda: measure(P, D[["age"]], rehearsal=True),
        "'sex'|add the column",
    ),
    "values outside the domain": (
        lambda: measure(P, D.assign(age=9), rehearsal=True),
        "4 of 4|on_refused='drop'",
    ),
    "a person column that is not there": (
        lambda: measure(P, D, rehearsal=True, person="pid"),
        "'pid'|add the column",
    ),
    "a counted table": (
        lambda: measure(P, D.assign(n=2), rehearsal=True),
        "'n'|count_column='n'|ignore=['n']",
    ),
    "an attribute set as text": (lambda: count_marginals(D, S, ["age"]), "'age'|('age',)"),
    "counts by no schema": (lambda: count_marginals(D, None, [("age",)]), "NoneType|Schema"),
    "no attribute sets": (lambda: count_marginals(D, S, None), "NoneType|('age',)"),
    "a comparison the wrong way round": (lambda: compare(B, W), "Workload|Budget"),
    "a number for mechanisms": (lambda: compare(W, B, [3]), "int|'wff'"),
    "options that are none": (lambda: compare(W, B, [("wff", "x")]), "tuple|'centers'"),
    "a limit for one mechanism": (
        lambda: compare(W, B, [("wff", {"time_limit": 3})]),
        "'wff'|time_limit|compare()",
    ),
    "a family for its name": (
        lambda: compare(W, B, [("residualplanner+", {"base": {"age": Width(2)}})]),
        "base|texts",
    ),
    "no time": (lambda: compare(W, B, ["wff"], time_limit=0), "0|above 0"),
    "fewer than no jobs": (lambda: compare(W, B, ["wff"], jobs=-1), "-1|from 1"),
    "a workload for its plan": (lambda: tolerance_for(W), "Workload|plan()"),
    "a negative tolerance": (lambda: share_within(P, -1), "-1|Give"),
    "a set of labels": (lambda: Attribute.categorical("sex", {"F", "M"}), "set|list"),
    "one column to ignore": (lambda: measure(P, D, rehearsal=True, ignore="n"), "str|['n']"),
    "no columns to ignore": (lambda: measure(P, D, rehearsal=True, ignore=3), "int|['n']"),
    "a limit of memory in words": (
        lambda: measure(P, D, rehearsal=True, memory_limit="1GB"),
        "'1GB'|above 0",
    ),
    "a number for intake": (lambda: measure(P, D, rehearsal=True, intake=3), "int|function"),
    "texts for coefficients": (
        lambda: M.combination([("age", [1, 0, 0, 0])], ["a"]),
        "list|one number per query",
    ),
    "a folder for a measurement": (lambda: M.save("."), ".|name of a file"),
    "no file for a measurement": (lambda: M.save(None), "NoneType|path"),
    "nothing for a saved measurement": (lambda: M.load(None), "NoneType|path"),
    "a share within no plan": (lambda: share_within(None, 3), "NoneType|plan()"),
    "a number for a total": (
        lambda: new_ledger().add_dataset("e", total=1.0),
        "float|Budget(pcost=1.0)",
    ),
    "a number for names of analyses": (lambda: coarse_or_fine(P, P, names=3), "int|list of texts"),
    "one analysis": (lambda: coarse_or_fine(P), "are Plan|two or more Plan"),
    "a rule on a plan": (
        lambda: NestedPlanRule(common=P, share=0.5, snr=5),
        "Plan|coarse_or_fine()",
    ),
    "a rule on no look": (
        lambda: NestedPlanRule(common=C, share=0.5, snr=5).decide(None),
        "NoneType|stepwise.look()",
    ),
    "a share in percent": (lambda: NestedPlanRule(common=C, share=50, snr=5), "50|at most 1"),
    "an analysis that is not there": (
        lambda: NestedPlanRule(common=C, primary="x", share=0.5, snr=5),
        "'x'|option 1",
    ),
    "a look at a plan": (lambda: stepwise.look(P, D, rehearsal=True), "Plan|coarse_or_fine()"),
    "a finish without a look": (lambda: stepwise.finish(None, "key", D), "NoneType|path"),
    "SQL without a schema": (
        lambda: workload_from_sql(None, "SELECT COUNT(*) FROM t"),
        "NoneType|Schema",
    ),
    "a condition without a schema": (
        lambda: parse_query(None, ["age"], "age > 1"),
        "NoneType|Schema",
    ),
    "a condition on no attributes": (lambda: parse_query(S, None, "age > 1"), "NoneType|name"),
    "a misspelt condition": (lambda: condition_query(S, "agee > 1"), "'agee'|'age'|Example"),
    "no condition": (lambda: condition_query(S, None), "NoneType|words"),
    "further answers to nothing": (lambda: further_answers(M, None), "NoneType|Workload"),
    "further answers from nothing": (lambda: further_answers(None, W), "NoneType|measure()"),
    "a power as text": (lambda: plan(W, B, objective="lp", power="2"), "'2'|1 to 100"),
    "targets for other groups": (lambda: plan(W, B, objective="max", targets=[1, 2]), "2|3"),
    "a misspelt base": (
        lambda: plan(W, B, "residualplanner+", base={"age": "rnge"}),
        "'rnge'|'range'",
    ),
    "a misspelt branching": (lambda: plan(W, B, "hierarchical", branching="bst"), "'bst'|'best'"),
    "numbers for a mechanism": (lambda: LinearMechanism(1, 2), "()|matrix"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_common_mistake_raises_helpful_error(mistake: str) -> None:
    call, words = MISTAKES[mistake]
    with pytest.raises(EngineError) as error:
        call()
    message = str(error.value)
    assert 20 <= len(message) <= 500
    for word in words.split("|"):
        assert word in message, message
