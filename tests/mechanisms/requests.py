"""Plans that are asked for, made once, and all checks on one of them.

A request is a mechanism with its options, a shape, and a setting: a budget, a cap on records, a limit.  Every run makes
the rows of a pairwise design: every mechanism meets every shape and setting, every shape every setting, and options
every setting; the options of one mechanism share the shapes.  ``python -m tests --full`` makes all requests.
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
    """The workload of a shape, or the marginals on the same attributes for a mechanism that serves marginals only."""
    found = workload_of(shape)
    if mechanism != "datacube":
        return found
    marginals = Workload(found.schema)
    for group in found.groups:
        importance = group.query_weights if math.prod(group.sizes) == group.count else None
        marginals = marginals.add(group.attributes, "marginal", weight=group.weight, query_weights=importance)
    return marginals


def rows_for(mechanism, shape):
    return oracles.workload_rows(workload_for(mechanism, shape))


@functools.cache
def optimum_of(shape):
    return oracles.class_optimum(workload_of(shape), 1.0)


def budget_for(mechanism, pcost=1.0):
    """A budget of the kind whose noise the mechanism draws."""
    laws = {m.name: m.laws for m in SUITE}[mechanism]
    return Budget(pcost=pcost) if "gaussian" in laws else Budget.pure(math.sqrt(pcost))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What is asked of a plan beside its mechanism and its workload."""

    pcost: float = 1.0
    max_records: int | None = None
    time_limit: float | None = None
    memory_limit: float | None = None

    def plan(self, mechanism, options, shape):
        """The plan, or an EngineError."""
        more = {name: v for name, v in dataclasses.asdict(self).items() if name != "pcost" and v is not None}
        if self.time_limit is not None:
            more["cache"] = False  # what is found on file needs no time
        return plan(workload_for(mechanism, shape), budget_for(mechanism, self.pcost), mechanism, **options, **more)


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
    """What meets every shape: every mechanism, and the other solvers of the first."""
    return "other solvers" if mechanism == "querysmasher" and options else mechanism


def designed():
    """Rows (number of a case, shape, setting): one for every kind and shape, more for pairs that found no place."""
    kinds, rows, met = {}, [], Counter()

    def put(k, shape, setting):
        rows.append((k, shape, setting))
        met.update([k, (k, setting), (shape, setting)])

    for k, case in enumerate(CASES):
        kinds.setdefault(kind_of(*case.values), []).append(k)
    for kind, shape in itertools.product(kinds.values(), SHAPES):
        choices = itertools.product(kind, SETTINGS)
        put(*min(((k, shape, s) for k, s in choices), key=lambda r: ((r[::2] in met) + (r[1:] in met), met[r[0]])))
    for setting in SETTINGS:
        for k in [k for k in range(len(CASES)) if not met[k, setting]]:
            put(k, min(SHAPES, key=lambda shape, setting=setting: met[shape, setting]), setting)
        for shape in [shape for shape in SHAPES if not met[shape, setting]]:
            put(0, shape, setting)
    return sorted(rows, key=lambda row: list(SHAPES).index(row[1]))  # what is known of a workload serves all on it


DESIGN = designed()


@functools.cache
def planned_once(mechanism, options, shape, setting):
    try:
        made = SETTINGS[setting].plan(mechanism, dict(options), shape)
    except (NotApplicable, LimitExceeded) as reason:
        return reason, None
    return made, oracles.explicit(made)


def planned(mechanism, options, shape, setting="plain"):
    """The plan with its explicit matrix; (reason, None) when the mechanism says that it does not apply."""
    return planned_once(mechanism, tuple(sorted(options.items())), shape, setting)


def class_of(made, shape):
    """The optimum of plans that measure the residual spaces of uniform centers on their own, where that is known."""
    if made.mechanism not in RESIDUAL or made.split.centers or made.split.unions or shape == "wide":
        return None
    return tuple(end / math.sqrt(made.budget.pcost) for end in optimum_of(shape))


def check_request_of(mechanism, options, shape, setting):
    """All checks on the plan of one request; on the plain one, where the setting leaves no plan."""
    asked, rows = SETTINGS[setting], rows_for(mechanism, shape)
    made, explicit = planned(mechanism, options, shape, setting)
    if isinstance(made, LimitExceeded):
        assert asked.memory_limit is not None
        assert "memory" in str(made)
        made, explicit = planned(mechanism, options, shape)
    if isinstance(made, NotApplicable):
        assert len(str(made)) > 20  # a reason in words
        return
    assert explicit.pcost <= made.pcost <= asked.pcost
    if setting != "any number of records":  # there the price of rounding shows
        check_privacy(made, explicit)
    if setting not in ("any number of records", "hardly any budget", "no time"):  # a stopped search need not be tight
        check_tight(made, explicit)
    check_summary(made, check_variances(made, explicit, rows))
    check_certificate(made, class_of(made, shape))
    check_any_query(made, explicit, rows)
    check_round_trip(made)
    if setting == "four budgets":
        plain, _ = planned(mechanism, options, shape)
        assert made.weighted_rmse == pytest.approx(plain.weighted_rmse / 2, rel=SLACK)
        assert made.max_variance == pytest.approx(plain.max_variance / 4, rel=2 * SLACK)
