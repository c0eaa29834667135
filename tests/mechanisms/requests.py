"""Cached plans of a pairwise design of requests, and all checks of one plan.

A request combines a case (a mechanism with options), a shape (a named workload of `tests.shapes`)
and a setting (budget, maximum of records or limits). The design covers every pair of mechanism and
shape, of case and setting, and of shape and setting. ``python -m tests --full`` plans all requests.
"""

import dataclasses
import functools
import itertools
import math
from collections import Counter

import pytest

from engine.errors import LimitExceeded, NotApplicable
from engine.mechanisms import plan
from engine.mechanisms.registry import MECHANISMS
from engine.mechanisms.residual_base import ResidualMechanism
from engine.privacy import Budget
from engine.workload import Workload
from tests import oracles
from tests.mechanisms.checks import (
    SLACK,
    check_any_query,
    check_certificate,
    check_privacy,
    check_round_trip,
    check_summary,
    check_tight,
    check_variances,
)
from tests.mechanisms.toy import ResidualIdentity
from tests.shapes import SHAPES

MORE_VARIANTS = {"querysmasher": [{"solver": "fourier"}, {"solver": "eigenbasis"}]}
SUITE = (*MECHANISMS, ResidualIdentity)
CASES = [
    pytest.param(m.name, options, id="-".join([m.name, *map(str, options.values())]))
    for m in SUITE
    for options in (*m.variants, *MORE_VARIANTS.get(m.name, []))
]
RESIDUAL = {m.name for m in SUITE if issubclass(m, (ResidualMechanism, ResidualIdentity))}
every_case = pytest.mark.parametrize(("mechanism", "options"), CASES)
every_shape = pytest.mark.parametrize("shape", SHAPES)


@functools.cache
def workload_of(shape):
    return SHAPES[shape]()


def rows_of(shape):
    return oracles.workload_rows(workload_of(shape))


@functools.cache
def workload_for(mechanism, shape):
    """Return the workload of a shape; for a data cube, the marginals on the same attributes."""
    workload = workload_of(shape)
    if mechanism != "datacube":
        return workload
    marginals = Workload(workload.schema)
    for group in workload.groups:
        importance = group.query_weights if math.prod(group.sizes) == group.count else None
        marginals = marginals.add(
            group.attributes, "marginal", weight=group.weight, query_weights=importance
        )
    return marginals


def rows_for(mechanism, shape):
    return oracles.workload_rows(workload_for(mechanism, shape))


@functools.cache
def optimum_of(shape):
    return oracles.class_optimum(workload_of(shape), 1.0)


def budget_for(mechanism, pcost=1.0):
    """Return a budget with a noise law that the mechanism supports."""
    laws = {m.name: m.laws for m in SUITE}[mechanism]
    return Budget(pcost=pcost) if "gaussian" in laws else Budget.pure(math.sqrt(pcost))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Budget and limits of a request."""

    pcost: float = 1.0
    max_records: int | None = None
    time_limit: float | None = None
    memory_limit: float | None = None

    def plan(self, mechanism, options, shape):
        """Plan the workload of a shape by a mechanism, within the limits of this request."""
        more = {
            name: v
            for name, v in dataclasses.asdict(self).items()
            if name != "pcost" and v is not None
        }
        if self.time_limit is not None:
            # Without this option, a cached plan would be returned, whatever the time limit is.
            more["cache"] = False
        return plan(
            workload_for(mechanism, shape),
            budget_for(mechanism, self.pcost),
            mechanism,
            **options,
            **more,
        )


SETTINGS = {
    "plain": Setting(),
    "four budgets": Setting(pcost=4.0),
    "a third of the budget": Setting(pcost=0.37),
    "hardly any budget": Setting(pcost=1e-6),
    "plenty of budget": Setting(pcost=1e9),
    "one record": Setting(max_records=1),
    "a thousand records": Setting(max_records=10**3),
    "any number of records": Setting(max_records=10**12),
    "no time": Setting(time_limit=1e-9),
    "no memory": Setting(memory_limit=1.0),
    "little memory": Setting(memory_limit=30_000.0),
}


def kind_of(mechanism, options):
    """Return the label under which a case (a mechanism with options) counts in `DESIGN`.

    It is the name of the mechanism, except for "querysmasher" with options.  `DESIGN` combines
    every label with every shape.
    """
    return "other solvers" if mechanism == "querysmasher" and options else mechanism


def pairwise_design():
    """Return triples (case number, shape, setting).

    The case number is an index of `CASES`.  Every label of `kind_of` occurs with every shape, every
    case with every setting, and every shape with every setting.
    """
    # ``covered`` counts the rows with each case, and with each pair of a setting and a case or
    # shape
    cases_of_kind, rows, covered = {}, [], Counter()

    def add_row(case, shape, setting):
        rows.append((case, shape, setting))
        covered.update([case, (case, setting), (shape, setting)])

    def covered_counts(row):
        """Return how many of the row's two pairs are covered, and how many rows have its case."""
        case, shape, setting = row
        covered_pairs = [pair for pair in ((case, setting), (shape, setting)) if pair in covered]
        return len(covered_pairs), covered[case]

    for number, case in enumerate(CASES):
        cases_of_kind.setdefault(kind_of(*case.values), []).append(number)
    for cases, shape in itertools.product(cases_of_kind.values(), SHAPES):
        choices = [(case, shape, setting) for case in cases for setting in SETTINGS]
        add_row(*min(choices, key=covered_counts))
    # add rows for the pairs of case and setting, and of shape and setting, that are still missing
    for setting in SETTINGS:
        for case in [case for case in range(len(CASES)) if not covered[case, setting]]:
            rarest = min(SHAPES, key=lambda shape, setting=setting: covered[shape, setting])
            add_row(case, rarest, setting)
        for shape in [shape for shape in SHAPES if not covered[shape, setting]]:
            add_row(0, shape, setting)
    # requests on one workload follow each other, so that they share its cached values
    return sorted(rows, key=lambda row: list(SHAPES).index(row[1]))


DESIGN = pairwise_design()


@functools.cache
def planned_once(mechanism, options, shape, setting):
    try:
        result = SETTINGS[setting].plan(mechanism, dict(options), shape)
    except (NotApplicable, LimitExceeded) as error:
        return error, None
    return result, oracles.explicit(result)


def planned(mechanism, options, shape, setting="plain"):
    """Return a plan and its explicit matrices, or (error, None) if planning is refused.

    It is refused if the mechanism is not applicable or a limit is exceeded.
    """
    return planned_once(mechanism, tuple(sorted(options.items())), shape, setting)


def class_optimum(result, shape):
    """Return bounds (low, high) on the least RMSE of all plans of the same class, or None.

    The bounds are known for the plans with uniform centers and one strategy per residual space,
    except for the shape "wide"; for all other plans the function returns None.
    """
    if (
        result.mechanism not in RESIDUAL
        or result.split.centers
        or result.split.unions
        or shape == "wide"
    ):
        return None
    return tuple(end / math.sqrt(result.budget.pcost) for end in optimum_of(shape))


def check_request_of(mechanism, options, shape, setting):
    """Run all checks on the plan of a request.

    If its memory limit is exceeded, the plan without limits is checked.  If the mechanism is not
    applicable, only the error message is checked.
    """
    limits = SETTINGS[setting]
    rows = rows_for(mechanism, shape)
    result, explicit = planned(mechanism, options, shape, setting)
    if isinstance(result, LimitExceeded):
        assert limits.memory_limit is not None
        assert "memory" in str(result)
        result, explicit = planned(mechanism, options, shape)
    if isinstance(result, NotApplicable):
        assert len(str(result)) > 20
        return
    assert explicit.pcost <= result.pcost <= limits.pcost
    # With so many records, rounding to a coarse grid costs more than SLACK.
    if setting != "any number of records":
        check_privacy(result, explicit)
    # In these three settings the costliest cell may cost less than the plan.
    if setting not in ("any number of records", "hardly any budget", "no time"):
        check_tight(result, explicit)
    check_summary(result, check_variances(result, explicit, rows))
    check_certificate(result, class_optimum(result, shape))
    check_any_query(result, explicit, rows)
    check_round_trip(result)
    if setting == "four budgets":
        plain, _ = planned(mechanism, options, shape)
        assert result.weighted_rmse == pytest.approx(plain.weighted_rmse / 2, rel=SLACK)
        assert result.max_variance == pytest.approx(plain.max_variance / 4, rel=2 * SLACK)
