"""Published results with certificates, and the worked example of the paper."""

import math

import numpy as np
import pytest

from benchmarks.published import ROWS, SCHEMAS, line, measure
from engine.analysis.certificates import JOINT_FAMILIES
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.residuals import basis
from engine.workload import Attribute, Schema, Workload

# Only full runs test the sizes between the smallest and the largest, and the large pairs.
BETWEEN = ("[20]", "[30]", "[40]")
LARGE_PAIRS = {f"{schema} {family}" for schema in ("Adult", "Loans") for family in JOINT_FAMILIES}


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(
            row,
            id=str(row),
            marks=[pytest.mark.full] * (row.schema.startswith(BETWEEN) or str(row) in LARGE_PAIRS),
        )
        for row in ROWS
    ],
)
def test_plan_reaches_certified_optimum(row):
    result = plan(row.workload(), Budget(pcost=1.0))
    gap = 5e-4 if row.queries == "abs" and row.schema == "[50]^40" else 1e-4
    assert result.rmse == pytest.approx(row.optimum, rel=max(2e-4, gap))
    assert 0 <= result.certificate.gap <= gap
    assert result.certificate.lower_bound <= row.optimum * (1 + 2e-4)
    assert result.rmse <= row.printed * (1 + 5e-4)  # printed with rounded digits
    assert result.pcost <= 1.0


def test_published_rows_have_printed_query_counts():
    queries = {str(row): row.workload().queries for row in ROWS}
    assert len(queries) == len(ROWS) == 48
    assert queries["Adult <=3-way"] == 21_043_261
    assert queries["CPS <=3-way"] == 79_719
    assert queries["Loans <=3-way"] == 14_659_028
    table_3 = [queries[str(row)] for row in ROWS if row.table == 3]
    assert table_3 == [805, 731, 99_830, 99_200, 66_318, 65_682]
    assert queries["[10]^40 affine"] == 15_220
    assert queries["[10]^40 abs"] == 8_200
    assert queries["[50]^40 range"] == 1_268_038_500
    assert queries["[50]^40 circular"] == 4_875_100_000
    attributes = {name: sum(map(len, SCHEMAS[name])) for name in ("Adult", "CPS", "Loans")}
    assert attributes == {"Adult": 14, "CPS": 5, "Loans": 12}


@pytest.mark.parametrize("n", [10, 20, 30, 40, 50])
def test_marginals_rmse_matches_closed_form(n):
    """Equal noise within a residual space is optimal for marginals."""
    pairs = math.comb(40, 2)
    # sums of the variances of all queries at unit noise, per residual space: the total, the space
    # of one attribute and the space of one pair
    total = 40 / n + pairs / n**2
    single = (1 + 39 / n) * (n - 1) ** 2 / n
    double = ((n - 1) ** 2 / n) ** 2
    sum_of_roots = math.sqrt(total) + 40 * math.sqrt(single) + pairs * math.sqrt(double)
    queries = 40 * n + pairs * n**2
    schema = Schema([Attribute.of_size(f"x{i}", n) for i in range(40)])
    workload = Workload.all_ways(schema, (1, 2), "marginal")
    result = plan(workload, Budget(pcost=1.0))
    assert result.rmse == pytest.approx(sum_of_roots / math.sqrt(queries), rel=1e-5)


def test_residual_pieces_match_example_of_paper():
    """Figures 1 and 2: yes x {b, c} or no x {c}, in the four residual spaces of a 2 x 3 table."""
    schema = Schema(
        [
            Attribute.categorical("answer", ["yes", "no"]),
            Attribute.categorical("letter", ["a", "b", "c"]),
        ]
    )
    query = [[0, 1, 1], [0, 0, 1]]
    result = plan(Workload(schema).add(("answer", "letter")), Budget(pcost=1.0))
    pieces = result.query_pieces(("answer", "letter"), query)
    assert set(pieces) == {(), ("answer",), ("letter",), ("answer", "letter")}
    answer_basis, letter_basis = basis(2), basis(3)
    assert float(pieces[()]) == pytest.approx(1 / 2)
    np.testing.assert_allclose(answer_basis @ pieces[("answer",)], [1 / 6, -1 / 6], atol=1e-14)
    np.testing.assert_allclose(letter_basis @ pieces[("letter",)], [-1 / 2, 0, 1 / 2], atol=1e-14)
    pair_piece = answer_basis @ pieces[("answer", "letter")] @ letter_basis.T
    np.testing.assert_allclose(
        pair_piece, [[-1 / 6, 1 / 3, -1 / 6], [1 / 6, -1 / 3, 1 / 6]], atol=1e-14
    )
    swapped = result.query_pieces(("letter", "answer"), np.transpose(query))
    pair = ("answer", "letter")
    np.testing.assert_allclose(swapped[pair], pieces[pair], atol=1e-14)


def test_marginal_of_one_attribute_has_unit_variances():
    result = plan(
        Workload(Schema([Attribute.of_size("a", 7)])).add("a", "marginal"), Budget(pcost=1.0)
    )
    np.testing.assert_allclose(result.variances(0), 1.0, rtol=1e-6)
    assert result.max_variance == pytest.approx(1.0, rel=1e-6)


def test_total_variance_is_inverse_budget():
    schema = Schema([Attribute.of_size("a", 7), Attribute.of_size("b", 3)])
    result = plan(Workload(schema).add(()), Budget(pcost=0.25))
    assert result.rmse == pytest.approx(2.0, rel=1e-6)
    assert list(result.blocks) == [()]


def test_benchmark_row_matches_published_numbers():
    (row,) = (r for r in ROWS if str(r) == "CPS <=3-way")
    result = measure(row)
    assert result["queries"] == 79_719
    assert result["ours"] == pytest.approx(row.optimum, rel=2e-4)
    assert result["bound"] <= result["ours"]
    assert result["megabytes"] > 10
    expected = ["CPS", "<=3-way", "79,719", "8.140", f"{result['bound']:.4f}"]
    assert line(row, result).split()[:5] == expected
