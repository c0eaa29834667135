"""Common parts of plans, compared with the dense common mechanism."""

import itertools
import math

import numpy as np
import pytest

import engine.common_mechanism.common_plan
from demo_data import schemas
from engine.common_mechanism import CommonPlan, workloads_by_level
from engine.common_mechanism.common_mechanism import CommonMechanism, LinearMechanism, residual
from engine.common_mechanism.common_plan import block_residual, coarse_or_fine, nested_choices
from engine.errors import LimitExceeded, PlanError
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.release.measurement import estimate, strategy_answers
from engine.workload import Attribute, Custom, Schema, Workload
from tests import code_lists
from tests.common_mechanism.matrices import assert_close, assert_maximal, exact
from tests.common_mechanism.plans import RECORDS, cost_of, make_plan, rows_of, ways
from tests.oracles import workload_rows
from tests.shapes import SHAPES, numeric


def plan_without_unions(workload, **options):
    """Plan with tuned centers and one strategy per residual space, as on larger domains."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("engine.residuals.tuning.unions.MAX_STEP_MULTIPLICATIONS", 0)
        patch.setattr("engine.residuals.tuning.unions.MAX_FULL_DOMAIN_MULTIPLICATIONS", 0)
        return make_plan(workload, centers="tuned", **options)


def cuts(*edges):
    """Return queries that count the cells between edges, shape (len(edges) - 1, cells)."""
    return np.repeat(np.eye(len(edges) - 1), np.diff(edges), axis=1)


def by_sex(*edges):
    return Workload(numeric(edges[-1], 2)).add(
        ("a", "b"), {"a": Custom(matrix=cuts(*edges)), "b": "marginal"}
    )


def by_level(*levels):
    """Return one plan per level of the attribute "place".

    Each plan counts the areas of its level in two groups of queries: by sex and prefixes of age,
    and by age.
    """
    schema = Schema(
        [code_lists.SCHEMA["sex"], code_lists.SCHEMA["place"], code_lists.SCHEMA["age"]]
    )
    families = {"sex": "marginal", "place": "marginal", "age": "prefix"}
    workload = Workload(schema).add(("sex", "place", "age"), families).add(("place", "age"))
    return [make_plan(w) for w in workloads_by_level(workload, "place", levels).values()]


def cases():
    """Yield pairs (name, plans that are options of one common plan)."""
    small = (3, 2, 4)
    yield "marginals", [make_plan(ways(small, k)) for k in (1, 2)]
    yield "marginals of three sizes", [make_plan(ways(small, k)) for k in (1, 2, 3)]
    yield "prefixes", [make_plan(ways(small, k, "prefix")) for k in ((0, 1), (1, 2))]
    yield (
        "another family",
        [make_plan(ways(small, 2, "prefix")), make_plan(ways(small, 2, "marginal"))],
    )
    yield (
        "another mechanism",
        [make_plan(ways(small, 2, "range")), make_plan(ways(small, 2, "range"), mechanism="wff")],
    )
    yield "another budget", [make_plan(ways(small, 2)), make_plan(ways(small, 2), pcost=0.25)]
    yield (
        "joint queries",
        [
            make_plan(Workload(numeric(4, 3)).add(("a", "b"), "affine")),
            make_plan(Workload(numeric(4, 3)).add(("a", "b"), "prefix").add(("a",), "range")),
        ],
    )
    yield (
        "three families",
        [make_plan(ways((3, 4), 2, name)) for name in ("prefix", "marginal", "circular")],
    )
    yield (
        "nested cuts",
        [make_plan(by_sex(*edges)) for edges in ((0, 6), (0, 2, 6), (0, 2, 3, 6), range(7))],
    )
    yield "levels", by_level("region", "place")
    yield (
        "levels and another family",
        [
            by_level("region", "county")[0],
            make_plan(
                Workload(by_level("region", "county")[0].schema).add(
                    ("place", "age"), {"place": "marginal", "age": "range"}
                )
            ),
        ],
    )
    yield (
        "only the total",
        [make_plan(Workload(numeric(3, 4)).add((name,), "marginal")) for name in "ab"],
    )
    bins, pair = Custom(matrix=cuts(0, 2, 4, 5)), Workload(numeric(5, 4))
    yield (
        "weighted look on a subspace",
        [
            make_plan(pair.add(("a", "b"), {"a": bins, "b": "prefix"})),
            make_plan(pair.add(("a", "b"), {"a": "range", "b": "marginal"})),
        ],
    )
    both_attributes = Workload(numeric(6, 3)).add(("a",), "prefix").add(("b",), "marginal")
    yield (
        "tuned centers of one attribute",
        [
            plan_without_unions(Workload(numeric(6, 3)).add(("a",), "prefix")),
            plan_without_unions(Workload(numeric(6, 3)).add(("b",), "marginal")),
        ],
    )
    yield (
        "the same tuned centers",
        [plan_without_unions(both_attributes, pcost=p) for p in (1.0, 0.5)],
    )


CASES = dict(cases())


@pytest.fixture(scope="module", params=list(CASES))
def common(request):
    return coarse_or_fine(*CASES[request.param])


# --- the identities of the common mechanism ---


def test_look_and_residual_costs_sum_to_plan_cost(common):
    assert common.stretch - 1.0 < 1e-10
    for option, second_stage in zip(common.options, common.residuals, strict=True):
        look_cost = cost_of(option.schema, common.look.blocks)
        residual_cost = cost_of(option.schema, second_stage.blocks)
        assert_close(look_cost + residual_cost, cost_of(option.schema, option.blocks))


def test_look_equals_dense_common_mechanism(common):
    shared = common.options[0].schema
    look = cost_of(shared, common.look.blocks)
    dense = CommonMechanism(*(LinearMechanism(rows_of(shared, p.blocks)) for p in common.options))
    assert common.maximal
    for option in common.options:
        total_cost = cost_of(shared, option.blocks)
        assert np.linalg.eigvalsh(total_cost - look)[0] > -1e-9 * np.abs(total_cost).max()
    # For three covariances that do not commute, several mechanisms have the smallest trace.  Which
    # one is computed depends on the coordinates, so only a difference of 20% is tested.
    is_unique = len(common.options) == 2 or set(common.matches.values()) == {"closed form"}
    assert_close(look, cost_of_dense(dense), share=1e-8 if is_unique else 0.2)


def cost_of_dense(dense):
    return dense.common.B.T @ dense.common.B


def test_look_is_maximal(common):
    shared = common.options[0].schema
    # The strategy rows may be linearly dependent.  `standard_rows` are independent.
    look = LinearMechanism(rows_of(shared, common.look.blocks)).standard_rows
    assert_maximal(look, [LinearMechanism(rows_of(shared, p.blocks)) for p in common.options])


def test_spends_sum_to_plan_cost_and_cover_release(common):
    shared = common.options[0].schema
    look = cost_of(shared, common.look.blocks)
    assert np.diag(look).max() <= common.look.pcost <= common.look.budget.pcost
    for option, second_stage, (first, second) in zip(
        common.options, common.residuals, common.spends, strict=True
    ):
        assert exact(first) + exact(second) == exact(option.pcost)
        joint_cost = np.diag(look + cost_of(shared, second_stage.blocks)).max()
        assert joint_cost <= option.pcost
        assert second > 0 or not second_stage.blocks


def estimates(common, i, look_answers, answers):
    """Return the estimates of option ``i`` from both stages, as coordinates per residual space.

    ``look_answers`` are the answers of the first stage, ``answers`` those of the second.
    """
    look_estimates = {
        space: estimate(b, look_answers[space] / b.grid) for space, b in common.look.blocks.items()
    }
    return common.combine(i, look_estimates, answers)


def shapes(blocks):
    return {space: tuple(len(s.rows) for _, s in b.factors) for space, b in blocks.items()}


def test_combined_answers_are_unbiased_with_plan_variances(common):
    for i, option in enumerate(common.options):
        blocks = {"look": common.look.blocks, "rest": common.residuals[i].blocks}
        zero = {
            part: {s: np.zeros(shape) for s, shape in shapes(part_blocks).items()}
            for part, part_blocks in blocks.items()
        }
        # Estimates are linear in the strategy answers.  The variance of a query is therefore a sum
        # over all strategy answers: the squared change of the query's estimate if this answer grows
        # by one standard deviation of its noise.
        variances = [np.zeros(g.count) for g in option.workload.groups]
        coefficients = [coefficients_by_space(option, g) for g in option.workload.groups]
        for part, part_blocks in blocks.items():
            for space, block in part_blocks.items():
                for position in np.ndindex(*shapes(part_blocks)[space]):
                    noise = np.zeros(shapes(part_blocks)[space])
                    noise[position] = block.noise
                    noisy = {name: dict(answers) for name, answers in zero.items()}
                    noisy[part][space] = noise
                    coordinates = estimates(common, i, noisy["look"], noisy["rest"])
                    for group_variances, rows in zip(variances, coefficients, strict=True):
                        if space in rows:
                            group_variances += (rows[space] @ coordinates[space].ravel()) ** 2
        for g, group_variances in enumerate(variances):
            np.testing.assert_allclose(group_variances, option.variances(g), rtol=1e-9)
        table = np.random.default_rng(1).integers(
            0, 50, tuple(a.size for a in option.schema.attributes)
        )
        noiseless = {
            part: exact_answers(option.schema, part_blocks, table)
            for part, part_blocks in blocks.items()
        }
        coordinates = estimates(common, i, noiseless["look"], noiseless["rest"])
        for residual_rows, rows in zip(coefficients, workload_rows(option.workload), strict=True):
            answers = sum(
                residual_rows[space] @ values.ravel()
                for space, values in coordinates.items()
                if space in residual_rows
            )
            np.testing.assert_allclose(answers, rows @ table.ravel(), rtol=1e-9, atol=1e-6)


def coefficients_by_space(option, group):
    """Return the coefficients of the queries of a group, as one array per residual space.

    Each array has the shape (queries, coordinates of the space).
    """
    by_query = [
        option.query_pieces(group.attributes, row.reshape(group.sizes)) for row in query_rows(group)
    ]
    return {
        space: np.array([pieces[space].ravel() for pieces in by_query]) for space in by_query[0]
    }


def query_rows(group):
    """Return the query rows of a group on the cells of its attributes, shape (queries, cells)."""
    rows, order = np.ones((1, 1)), []
    for part in group.parts:
        rows = np.kron(rows, part.family.rows(part.sizes))
        order += part.axes
    # the Kronecker product has the axes in the order of the query families
    tensors = rows.reshape(len(rows), *(group.sizes[axis] for axis in order))
    by_attribute = tensors.transpose(0, *(1 + order.index(axis) for axis in range(len(order))))
    return by_attribute.reshape(len(rows), -1)


def exact_answers(plan_schema, blocks, table):
    """Return the answers of each block without noise, for a table of counts of all cells."""
    names, out = list(plan_schema.names), {}
    for space, block in blocks.items():
        away = tuple(i for i, name in enumerate(names) if name not in space)
        out[space] = strategy_answers(block, table.sum(axis=away))
    return out


def test_look_variances_match_brute_force(common):
    dense_look = LinearMechanism(rows_of(common.look.schema, common.look.blocks))
    for g, rows in enumerate(workload_rows(common.look.workload)):
        np.testing.assert_allclose(
            common.look.variances(g), np.diag(dense_look.covariance(rows)), rtol=1e-7
        )


PAIRED = ("querysmasher", "residualplanner+", "residualplanner", "wff")


@pytest.mark.parametrize("all_pairs", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("shape", SHAPES)
def test_any_mechanism_pair_splits_on_every_shape(shape, all_pairs):
    """Full runs test all pairs of mechanisms on each shape, ordinary runs test a third of the pairs.

    The third changes from shape to shape, so that each pair is tested on many shapes.
    """
    workload = SHAPES[shape]()
    options = [make_plan(workload, pcost=1.0 / i, mechanism=m) for i, m in enumerate(PAIRED, 1)]
    pairs = list(itertools.combinations(options, 2))
    if not all_pairs:
        pairs = pairs[list(SHAPES).index(shape) % 3 :: 3]
    for pair in pairs:
        common = coarse_or_fine(*pair)
        test_look_and_residual_costs_sum_to_plan_cost(common)
        test_spends_sum_to_plan_cost_and_cover_release(common)


def test_plan_paired_with_itself_has_no_residual():
    option = CASES["prefixes"][0]
    common = coarse_or_fine(option, option)
    assert common.spends == ((option.pcost, 0.0),) * 2
    assert not any(second_stage.blocks for second_stage in common.residuals)


def test_look_can_be_an_option():
    common = coarse_or_fine(*CASES["another mechanism"])
    assert any(b.weights is not None for b in common.look.blocks.values())
    with_look = coarse_or_fine(common.look, common.options[0])
    assert not with_look.residuals[0].blocks
    test_look_and_residual_costs_sum_to_plan_cost(with_look)


# --- chains, sizes, limits ---


def test_looks_of_nested_analyses_are_nested():
    chain = [make_plan(by_sex(*edges)) for edges in ((0, 8), (0, 4, 8), (0, 2, 4, 6, 8), range(9))]
    looks = [coarse_or_fine(*chain[k:]).look for k in range(3)]
    costs = [cost_of(chain[0].schema, look.blocks) for look in looks]
    for k, (coarse, fine) in enumerate(itertools.pairwise(costs)):
        assert np.linalg.eigvalsh(fine - coarse)[0] > -1e-9 * np.abs(fine).max()
        # `looks[k + 1]` (first stage of choice k + 1) is the common part of fewer analyses than
        # `looks[k]`, so it costs more. The difference is the cost of the residual mechanism between
        # both looks.
        look, next_look = (
            LinearMechanism(rows_of(chain[0].schema, looks[i].blocks)) for i in (k, k + 1)
        )
        step = residual(next_look, look)
        assert_close(coarse + step.B.T @ step.B, fine, share=1e-8)
    assert [np.linalg.matrix_rank(cost) for cost in costs] == [2, 4, 8]


def test_products_of_nested_levels_need_no_dense_matrices():
    for levels in itertools.combinations(("region", "county", "place"), 2):
        common = coarse_or_fine(*by_level(*levels))
        assert set(common.matches.values()) == {"closed form"}
    chain = nested_choices(*by_level("region", "county", "place"))
    while chain is not None:
        assert chain.maximal
        chain = chain.following


def test_adult_plans_split_without_full_domain():
    adult = Schema.from_json(schemas()["adult"].read_text())
    options = [plan(Workload.all_ways(adult, ways=k), Budget(pcost=1.0)) for k in (1, 2, 3)]
    common = coarse_or_fine(*options, names=["1-way", "2-way", "3-way"])
    assert common.maximal
    assert common.stretch == 1.0
    assert len(common.look.blocks) == 1 + 14  # the total and 14 attributes
    for option, second_stage, (first, second) in zip(
        options, common.residuals, common.spends, strict=True
    ):
        assert exact(first) + exact(second) == exact(option.pcost)
        assert second_stage.pcost <= second
        for space, block in option.blocks.items():
            parts = [b[space] for b in (common.look.blocks, second_stage.blocks) if space in b]
            assert sum(1 / b.noise**2 for b in parts) == pytest.approx(1 / block.noise**2, rel=1e-9)
    common = coarse_or_fine(
        *(plan(Workload.all_ways(adult, ways=k), Budget(pcost=1.0)) for k in ((1, 2), (1, 2, 3)))
    )
    assert len(common.look.blocks) == 1 + 14 + math.comb(14, 2)
    assert common.look.blocks["capital-gain", "capital-loss"].measurements == 99 * 99


def test_common_part_above_dense_limit_is_valid(monkeypatch):
    options = CASES["three families"]
    maximal = coarse_or_fine(*options)
    monkeypatch.setattr(
        engine.common_mechanism.common_plan, "MAX_DENSE_COORDINATES", {2: 2_000, 3: 1}
    )
    common = coarse_or_fine(*options)
    assert not common.maximal
    assert "not the largest" in " ".join(common.matches.values())
    assert common.saved <= maximal.saved
    test_look_and_residual_costs_sum_to_plan_cost(common)
    test_spends_sum_to_plan_cost_and_cover_release(common)


def test_large_blocks_of_different_products_share_nothing(monkeypatch):
    monkeypatch.setattr(engine.common_mechanism.common_plan, "MAX_DENSE_COORDINATES", {2: 2, 3: 2})
    prefixes = Workload(numeric(4, 3)).add(("a", "b"), "prefix")
    options = make_plan(prefixes), make_plan(prefixes.add(("a", "b"), "affine"))
    common = coarse_or_fine(*options)
    assert common.matches["a", "b"] == "nothing: too large to compare"
    assert not common.maximal
    assert ("a", "b") not in common.look.blocks
    test_look_and_residual_costs_sum_to_plan_cost(common)
    with pytest.raises(LimitExceeded, match="6 columns"):
        block_residual(options[0].blocks["a", "b"], options[1].blocks["a", "b"], RECORDS)


# --- errors and files ---


def test_incompatible_plans_are_refused():
    one_way, two_way = CASES["marginals"]
    other_schema = make_plan(ways((3, 2), 1))
    prefixes = Workload(numeric(3, 2, 4)).add(("c",), "prefix")
    tuned, united = plan_without_unions(prefixes), make_plan(prefixes, centers="tuned")
    assert tuned.split.centers
    assert united.split.unions
    differences = Custom(matrix=[[1, -1, 0], [0, 1, -1]])
    disjoint = [make_plan(Workload(numeric(3, 3)).add((name,), differences)) for name in "ab"]
    for options, names, words in (
        ((one_way,), None, "but are Plan"),
        ((one_way, "no plan"), None, "at least two plans"),
        ((one_way, other_schema), None, "different schemas"),
        ((one_way, tuned), None, "different centers"),
        ((one_way, united), None, "several residual spaces with one strategy"),
        (disjoint, None, "no common part"),
        ((one_way, two_way), ["a"], "1 names"),
        ((one_way, two_way), ["a", "a"], "different texts"),
        ((one_way, two_way), ["a", "stop"], "none of them 'stop'"),
    ):
        with pytest.raises(PlanError, match=words):
            coarse_or_fine(*options, names=names)


def test_common_plan_json_round_trips():
    common = coarse_or_fine(*CASES["another family"], names=["coarse", "fine"])
    loaded = CommonPlan.from_json(common.to_json())
    assert loaded.hash == common.hash
    assert loaded.names == common.names
    assert loaded.spends == common.spends
    assert loaded.hash != coarse_or_fine(*reversed(CASES["another family"])).hash


def test_common_plan_from_other_json_is_refused():
    common = coarse_or_fine(*CASES["another family"], names=["coarse", "fine"])
    for text in ("[]", "{", common.to_json().replace('"coarse-or-fine/1"', '"plan/1"')):
        with pytest.raises(PlanError, match="common plan"):
            CommonPlan.from_json(text)


def test_common_plan_position_accepts_names_and_numbers():
    common = coarse_or_fine(*CASES["another family"], names=["coarse", "fine"])
    assert common.position("fine") == 1
    assert common.position(0) == 0
    for option in ("none", 2, True):
        with pytest.raises(PlanError, match="no option"):
            common.position(option)


def test_budget_shares_sum_to_plan_costs():
    common = coarse_or_fine(*CASES["marginals"], names=["one", "two"])
    shares = common.budget_shares()
    assert list(shares.columns) == ["option", "shared", "own", "total"]
    assert (shares["shared"] + shares["own"]).tolist() == pytest.approx(
        shares["total"].tolist(), rel=1e-12
    )
    spaces = common.by_space()
    for name, option in zip(common.names, common.options, strict=True):
        rows = spaces[spaces["option"] == name]
        assert rows["total"].sum() == pytest.approx(option.pcost, rel=1e-9)
        assert rows["shared"].sum() == pytest.approx(common.look.pcost, rel=1e-9)


def test_common_part_on_wide_attribute_is_refused() -> None:
    schema = Schema(
        [Attribute.of_size("zip", 1_000, kind="categorical"), Attribute.of_size("a", 2)]
    )
    plans = [plan(Workload.all_ways(schema, way, "marginal"), Budget(pcost=1.0)) for way in (1, 2)]
    with pytest.raises(LimitExceeded, match="zip"):
        coarse_or_fine(*plans, names=["one-way", "two-way"])
