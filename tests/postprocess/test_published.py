"""Published tables: no negative cells, one set of numbers that agree, no worse than what they are made of."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from engine.errors import Cancelled, LimitExceeded, NotAnswerable, NotApplicable, PlanError
from engine.mechanisms import plan
from engine.postprocess import publish
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from tests.pairs import pairwise
from tests.publish.measured import FITS, SCHEMA, check, measured_on, sets
from tests.shapes import SHAPES

ASKED = ((1,), (1, 2), (1, 2, 3), (4,)), FITS, (1e-4, 0.05, 50.0)
FEW = pairwise(*ASKED)


@pytest.mark.parametrize(
    ("ways", "fit", "pcost"),
    [pytest.param(*row, marks=() if row in FEW else pytest.mark.full) for row in itertools.product(*ASKED)],
)
def test_tables_agree_and_have_no_negative_cells(ways, fit, pcost):
    workload = Workload.all_ways(SCHEMA, ways, family="marginal")
    found, _ = measured_on(workload, Budget(pcost=pcost))
    check(found.publish(fit), workload)


@pytest.mark.parametrize(
    ("shape", "mechanism", "options"),
    [
        ("nested", "querysmasher", {"centers": "tuned"}),
        ("cyclic", "querysmasher", {"centers": "tuned"}),
        ("same_size", "querysmasher", {"centers": "uniform"}),
        ("single_value", "residualplanner+", {}),
        ("weights_ratio", "querysmasher", {"centers": "tuned"}),
        ("total_only", "querysmasher", {}),
        ("custom_matrix", "querysmasher", {}),
        ("circular", "wff", {}),
        ("zero_weight_uncovered", "querysmasher", {}),
    ],
)
@pytest.mark.parametrize("fit", FITS)
def test_every_plan_of_residual_spaces_is_published(shape, mechanism, options, fit):
    workload = SHAPES[shape]()
    found, _ = measured_on(workload, Budget(pcost=1.0), records=50, mechanism=mechanism, **options)
    published = found.publish(fit)
    check(published, workload)
    for number, group in enumerate(workload.groups):
        assert published.answers(number).shape == (group.count, 6)


def test_the_plans_of_these_tests_have_centers_complements_and_unions():
    tuned = [plan(SHAPES[shape](), Budget(pcost=1.0), centers="tuned") for shape in ("cyclic", "weights_ratio")]
    assert any(b.union for b in tuned[0].blocks.values())
    assert tuned[1].split.centers
    assert tuned[1].split.complements


@pytest.mark.parametrize("centers", ["uniform", "tuned"])
def test_without_a_fit_the_answers_are_the_unbiased_ones(centers):
    workload = SHAPES["nested"]().add(("a", "b"), {"a": "prefix", "b": "range"})
    found, _ = measured_on(workload, Budget(pcost=1.0), mechanism="querysmasher", centers=centers)
    published = found.publish("none")
    for number in range(len(workload.groups)):
        np.testing.assert_allclose(published.values(number), found.values(number), atol=1e-9)


def test_much_budget_leaves_true_tables_as_they_are():
    workload = Workload.all_ways(SCHEMA, (1, 2, 3), family="marginal")
    found, table = measured_on(workload, Budget(pcost=1e6))
    for fit, most in (("shrunk", 0.02), ("nonnegative", 1.0)):  # cutting noise off zeros lifts the sums above them
        published = found.publish(fit)
        for names in sets(SCHEMA, (1, 2, 3)):
            np.testing.assert_allclose(published.table(names), table(names), atol=most)


@pytest.mark.parametrize("pcost", [1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0])
def test_published_tables_are_no_worse_than_unbiased_ones_or_those_clipped_and_rescaled(pcost):
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    errors = {"unbiased": 0.0, "clipped": 0.0, "shrunk": 0.0}
    for seed in range(4):
        found, table = measured_on(workload, Budget(pcost=pcost), seed=seed)
        published = found.publish()
        total = max(0.0, float(found.marginal([])))
        for names in sets(SCHEMA, (2,)):
            unbiased = found.marginal(names)
            clipped = np.maximum(unbiased, 0.0)
            clipped *= total / clipped.sum()
            made = {"unbiased": unbiased, "clipped": clipped, "shrunk": published.table(names)}
            for name, values in made.items():
                errors[name] += float(np.abs(values - table(names)).sum())
    assert errors["shrunk"] <= 1.02 * min(errors["unbiased"], errors["clipped"])
    if pcost <= 1e-2:
        assert errors["shrunk"] <= 0.8 * errors["clipped"]


def test_the_same_measurement_gives_the_same_tables():
    workload = Workload.all_ways(SCHEMA, (1, 2, 3), family="marginal")
    found, _ = measured_on(workload)
    one, other = found.publish(), publish(found)
    assert all((one.contrasts[axes] == other.contrasts[axes]).all() for axes in one.contrasts)


def test_axes_and_one_cell_attributes_stand_where_they_were_asked():
    schema = Schema([Attribute.of_size("one", 1), *SCHEMA.attributes])
    workload = Workload(schema).add(("b", "one", "a"), "marginal")
    found, _ = measured_on(workload)
    published = found.publish()
    assert published.table(["b", "one", "a"]).shape == (7, 1, 9)
    np.testing.assert_array_equal(published.table(["a", "b"]), published.table(["b", "one", "a"])[:, 0].T)
    assert published.table(["one"]).tolist() == [published.total]


def test_prefix_answers_never_fall_and_stand_beside_the_unbiased_ones():
    workload = Workload(SCHEMA).add(("a",), "prefix").add(("b", "a"), {"a": "prefix", "b": "marginal"})
    found, _ = measured_on(workload, Budget(pcost=1e-4), mechanism="querysmasher")
    rows = found.publish().answers(0)
    assert list(rows) == ["query", "published", "answer", "std", "low", "high"]
    assert (np.diff(rows["published"]) >= -1e-9).all()
    assert (np.diff(rows["answer"]) < 0).any()
    assert (np.diff(found.publish().values(1).reshape(7, 9), axis=1) >= -1e-9).all()
    np.testing.assert_array_equal(rows["answer"], found.values(0))


def test_a_total_below_its_noise_is_published_as_nothing():
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    found = [measured_on(workload, Budget(pcost=1e-6), records=5, seed=seed)[0] for seed in range(8)]
    below = [f for f in found if f.marginal([]) < 0]
    assert below
    for fit in FITS:
        published = below[0].publish(fit)
        assert published.total == 0.0
        assert not published.table(["a", "b"]).any()


def test_what_cannot_be_published_is_refused_by_name():
    workload = Workload.all_ways(SCHEMA, (1, 2), family="marginal")
    with pytest.raises(NotApplicable, match="identity"):
        measured_on(workload, mechanism="identity")[0].publish()
    with pytest.raises(NotAnswerable, match="number of records"):
        measured_on(SHAPES["contrasts_only"](), mechanism="querysmasher")[0].publish()
    found, _ = measured_on(workload)
    with pytest.raises(PlanError, match="fit"):
        found.publish("best")
    with pytest.raises(LimitExceeded, match="GB"):
        found.publish(memory_limit=1_000)
    with pytest.raises(Cancelled):
        found.publish(progress=lambda share, words: False)
    with pytest.raises(NotAnswerable, match="a × b × c"):
        found.publish().table(["a", "b", "c"])


def test_progress_goes_up_to_the_end():
    found, _ = measured_on(Workload.all_ways(SCHEMA, (1, 2, 3), family="marginal"))
    told = []
    found.publish(progress=lambda share, words: told.append(share))
    assert told == sorted(told)
    assert told[-1] == 1.0


@pytest.mark.parametrize("fit", FITS)
def test_published_prefixes_never_fall_and_no_range_is_below_a_smaller_one(fit):
    workload = Workload(SCHEMA).add(("a", "b"), "prefix").add(("a", "d"), {"a": "prefix", "d": "marginal"})
    workload = workload.add(("b",), "range")
    found, _ = measured_on(workload, Budget(pcost=1e-4), mechanism="querysmasher")
    published = found.publish(fit)
    cells, ranges = published.table(["b"]), published.values(2)
    assert ranges.min() >= -1e-9
    sums = [cells[first:last].sum() for first, last in itertools.combinations(range(len(cells) + 1), 2)]
    np.testing.assert_allclose(np.sort(ranges), np.sort(sums), atol=1e-9)
    for number, group in enumerate(workload.groups[:2]):
        sizes = [part.count for part in group.parts]
        told, unbiased = (
            x.reshape(sizes) for x in (published.values(number), found.answers(number)["answer"].to_numpy())
        )
        assert np.diff(told, axis=0).min() >= -1e-9
        assert np.diff(unbiased.reshape(sizes), axis=0).min() < 0.0
