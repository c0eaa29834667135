"""Differentially private query answering for people.

The pipeline, each stage a pure function between frozen values:

    Schema --> Workload --> plan() --> Plan --> measure() --> Measurement --> answers
    public     queries,     choose     no data  the only      noisy strategy  with standard
    domains    weights      noise               step that     answers, saved  errors and
                                                reads records                 intervals

Rooms, from the top; imports go down only, and a room is entered through its own page like this one:

    __main__     command line
    lessons      worked examples with small numbers, for the Learn page
    publish      what is handed out: answers as files, package, certificate, report
    figures      pictures: charts in one look; on queries, plans, errors, comparison, choice, release
    choice       coarse or fine: what analyses share, rules, look - decide - finish on the ledger
    insight      plans read before release: fitness (error to budget and back), spread, differences, what if, compare
    release      private values: records (sources, encoding, counts), ledger (chain, what verify checks), noise drawn,
                 measure, reconstruct (estimates, covariances, intervals)
    mechanisms   one file a mechanism and one name in ``known.MECHANISMS``; searches of hdmm and trees
    plans        blocks with noise and privacy cost, variances of all queries, objectives, shares of the budget, files
    spaces       residual spaces: coordinates, Gram matrices, solvers with their precision, splits, lower bounds, cache
    workload     schema, families (one class, one name in ``FAMILIES``), runs of cells and their words, groups, SQL
    privacy      budgets, their conversions rounded towards privacy, and what neighbours are
    checks, texts, arrays, threads, errors   the ground: small validators, numbers as texts, names of arrays

Notation
--------
budget, privacy cost    pcost      largest diagonal entry of B^T Sigma^-1 B; rho = pcost / 2, mu = sqrt(pcost)
workload rows           W          one linear counting query a row
strategy rows           B          what is measured
center                  pi         vector with sum 1 that tells how a query passes its total down
class coordinates       N^T x      a residual space in the cosine basis N
Gram                    G          N^T W^T W N, in counts^2
dual weights            mu         one per cell; they prove the lower bound
variance                Var        in counts^2; its root, the standard error, in counts
"""

from engine.choice import (
    CommonMechanism,
    CommonPlan,
    LinearMechanism,
    NestedPlanRule,
    coarse_or_fine,
    nested_choices,
    stepwise,
)
from engine.insight import budget_for, compare, share_within, tolerance_for, written_query
from engine.mechanisms import MECHANISMS, forecast, load_plan, plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.release import Counts, Ledger, Measurement, count_marginals, load_measurement, measure
from engine.workload import FAMILIES, Attribute, Custom, Random, Schema, Suffix, Width, Workload

__all__ = [
    "FAMILIES",
    "MECHANISMS",
    "Attribute",
    "Budget",
    "CommonMechanism",
    "CommonPlan",
    "Counts",
    "Custom",
    "Ledger",
    "LinearMechanism",
    "Measurement",
    "NestedPlanRule",
    "Plan",
    "Random",
    "Schema",
    "Suffix",
    "Width",
    "Workload",
    "budget_for",
    "coarse_or_fine",
    "compare",
    "count_marginals",
    "forecast",
    "load_measurement",
    "load_plan",
    "measure",
    "nested_choices",
    "plan",
    "share_within",
    "stepwise",
    "tolerance_for",
    "written_query",
]
