"""Differentially private query answering for people.

The pipeline, each stage a pure function between frozen values:

    Schema --> Workload --> plan() --> Plan --> measure() --> Measurement --> answers
    public     queries,     choose     no data  the only      noisy strategy  with standard
    domains    weights      noise               step that     answers, saved  errors and
                                                reads records                 intervals

    schema, families, workload     what may be asked
    privacy                        budgets and their conversions, rounded towards privacy
    decomposition, solvers         one Gram matrix per residual space, its optimal strategy with a certified gap
    centers, complements, unions   how queries split over residual spaces, and which spaces are measured together
    mechanisms, plan               how a workload is measured; variances of every query in closed form
    objectives, shares, targets    largest variance and norms between, best shares, fitness for use
    counts, noise, ledger          exact tables, exact discrete noise, the durable budget
    linear, common, decide         what analyses share, and the choice between coarse and fine, on small domains
    shared_plan, decide_plan       the same for plans, residual space by residual space
    measure, reconstruct, report   spend, draw, save; then everything that follows from the noisy answers for free
    stepwise                       look at what plans share, decide, finish: three steps on the ledger

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

from engine import stepwise
from engine.common import CommonMechanism
from engine.compare import compare
from engine.decide_plan import NestedPlanRule
from engine.families import FAMILIES
from engine.linear import LinearMechanism
from engine.measure import measure
from engine.mechanisms import MECHANISMS, forecast, load_plan, plan
from engine.plan import Plan
from engine.privacy import Budget
from engine.reconstruct import Measurement
from engine.schema import Attribute, Schema
from engine.shared_plan import CommonPlan, coarse_or_fine, nested_choices
from engine.targets import budget_for, share_within, tolerance_for
from engine.workload import Workload

__all__ = [
    "FAMILIES",
    "MECHANISMS",
    "Attribute",
    "Budget",
    "CommonMechanism",
    "CommonPlan",
    "LinearMechanism",
    "Measurement",
    "NestedPlanRule",
    "Plan",
    "Schema",
    "Workload",
    "budget_for",
    "coarse_or_fine",
    "compare",
    "forecast",
    "load_plan",
    "measure",
    "nested_choices",
    "plan",
    "share_within",
    "stepwise",
    "tolerance_for",
]
