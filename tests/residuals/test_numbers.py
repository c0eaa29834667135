"""Published numbers, reproduced or beaten, each with a certificate; and the worked example of the paper."""

import math

import numpy as np
import pytest

from benchmarks.published import ROWS, SCHEMAS, line, measure
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.residuals import basis
from engine.workload import Attribute, Schema, Workload

# sizes between the least and the largest of a family take the same steps
BETWEEN = ("[20]", "[30]", "[40]")


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=str(row), marks=[pytest.mark.full] * row.schema.startswith(BETWEEN)) for row in ROWS]
)
def test_certified_optimum(row):
    made = plan(row.workload(), Budget(pcost=1.0))
    gap = 5e-4 if row.asked == "abs" and row.schema == "[50]^40" else 1e-4
    assert made.rmse == pytest.approx(row.optimum, rel=max(2e-4, gap))
    assert 0 <= made.certificate.gap <= gap
    assert made.certificate.lower_bound <= row.optimum * (1 + 2e-4)
    assert made.rmse <= row.printed * (1 + 5e-4)  # never worse than the paper prints, to its digits
    assert made.pcost <= 1.0


def test_rows_cover_both_tables_with_the_printed_numbers_of_queries():
    queries = {str(row): row.workload().queries for row in ROWS}
    assert len(queries) == len(ROWS) == 42
    assert queries["Adult <=3-way"] == 21_043_261
    assert queries["CPS <=3-way"] == 79_719
    assert queries["Loans <=3-way"] == 14_659_028
    assert queries["[10]^40 affine"] == 15_220
    assert queries["[10]^40 abs"] == 8_200
    assert queries["[50]^40 range"] == 1_268_038_500
    assert queries["[50]^40 circular"] == 4_875_100_000
    assert [sum(map(len, SCHEMAS[name])) for name in ("Adult", "CPS", "Loans")] == [14, 5, 12]


@pytest.mark.parametrize("n", [10, 20, 30, 40, 50])
def test_marginals_have_a_closed_form(n):
    """Equal noise within a residual space is optimal for marginals, so every number can be written down."""
    total = 40 / n + 780 / n**2
    single = (1 + 39 / n) * (n - 1) ** 2 / n
    double = ((n - 1) ** 2 / n) ** 2
    roots = math.sqrt(total) + 40 * math.sqrt(single) + 780 * math.sqrt(double)
    schema = Schema([Attribute.of_size(f"x{i}", n) for i in range(40)])
    workload = Workload.all_ways(schema, (1, 2), "marginal")
    made = plan(workload, Budget(pcost=1.0))
    assert made.rmse == pytest.approx(roots / math.sqrt(40 * n + 780 * n * n), rel=1e-5)


def test_decomposition_of_the_paper_s_example():
    """Figures 1 and 2: yes x {b, c} or no x {c}, split over the four residual spaces of a 2 x 3 table."""
    schema = Schema([Attribute.categorical("answer", ["yes", "no"]), Attribute.categorical("letter", ["a", "b", "c"])])
    query = [[0, 1, 1], [0, 0, 1]]
    made = plan(Workload(schema).add(("answer", "letter")), Budget(pcost=1.0))
    pieces = made.class_pieces(("answer", "letter"), query)
    assert set(pieces) == {(), ("answer",), ("letter",), ("answer", "letter")}
    N, M = basis(2), basis(3)
    assert float(pieces[()]) == pytest.approx(1 / 2)
    np.testing.assert_allclose(N @ pieces[("answer",)], [1 / 6, -1 / 6], atol=1e-14)
    np.testing.assert_allclose(M @ pieces[("letter",)], [-1 / 2, 0, 1 / 2], atol=1e-14)
    both = N @ pieces[("answer", "letter")] @ M.T
    np.testing.assert_allclose(both, [[-1 / 6, 1 / 3, -1 / 6], [1 / 6, -1 / 3, 1 / 6]], atol=1e-14)
    turned = made.class_pieces(("letter", "answer"), np.transpose(query))
    np.testing.assert_allclose(turned[("answer", "letter")], pieces[("answer", "letter")], atol=1e-14)


def test_one_attribute_identity_needs_noise_one():
    """n disjoint counts: at privacy cost 1 every count has variance 1 when the total is split off, and no less."""
    made = plan(Workload(Schema([Attribute.of_size("a", 7)])).add("a", "marginal"), Budget(pcost=1.0))
    np.testing.assert_allclose(made.variances(0), 1.0, rtol=1e-6)
    assert made.max_variance == pytest.approx(1.0, rel=1e-6)


def test_total_alone_costs_one_over_the_budget():
    schema = Schema([Attribute.of_size("a", 7), Attribute.of_size("b", 3)])
    made = plan(Workload(schema).add(()), Budget(pcost=0.25))
    assert made.rmse == pytest.approx(2.0, rel=1e-6)
    assert list(made.blocks) == [()]


def test_benchmark_measures_what_it_prints():
    row = next(r for r in ROWS if str(r) == "CPS <=3-way")
    found = measure(row)
    assert found["queries"] == 79_719
    assert found["ours"] == pytest.approx(row.optimum, rel=2e-4)
    assert found["bound"] <= found["ours"]
    assert found["megabytes"] > 10
    assert line(row, found).split()[:5] == ["CPS", "<=3-way", "79,719", "8.140", f"{found['bound']:.4f}"]
