"""Differentially private query answering for people.

The pipeline, each stage a pure function between frozen values:

    Schema --> Workload --> plan() --> Plan --> measure() --> Measurement --> answers
    public     queries,     choose     no data  the only      noisy strategy  with standard
    domains    weights      noise               step that     answers, saved  errors and
                                                reads records                 intervals

Rooms, from the top; imports go down only, and a room is entered through its own page like this one:

    __main__     the door of the command line
    commands     the command line: a reply for people or for programs
    lessons      worked examples with small numbers, for the Learn page
    publish      what is handed out: published tables, answers as files, package, certificate, report
    figures      pictures of results, each with its table and its words for those who do not see it
    choice       coarse or fine: what analyses share, rules, look - decide - finish
    insight      plans read before release: from error to budget, what if, comparisons, as numbers and sentences
    release      the only room with private values: records in, budget spent, noise drawn, answers out
    mechanisms   workload and budget in, plan out
    plans        what will be measured, with noise, privacy cost and the variance of every query
    spaces       residual spaces and their best strategies, whatever the budget
    workload     what may be asked, and how it reads in words
    privacy      what a budget is and means
    gaussian     the privacy curve of Gaussian noise, bounded from above
    checks, untrusted, texts, values, arrays, progress, threads, errors   the ground
    counts, families, ledger, report         doors of a few lines, for other programs

What is changed where:

    a query family                       workload.families   one class, one name in FAMILIES
    ranges, and how they read in words   workload.runs       what asks for runs of cells: prefix, range, width, ...
    a schema from a data dictionary      workload.dictionary           from public records: release.public_draft
    calendar cells: years to days        workload.calendar    compared with a date: workload.dated
    numbers that files mean as dates     release.records.clocks            formats of Stata, SPSS and SAS
    hints why values do not fit          release.records.hints             for the curator: release.intake
    rules for impossible cells           workload.impossible           release.records.tables, publish.tables.joint
    exact totals that are public         workload.invariants           plans.answers, publish.tables.facts
    SQL that is understood               workload.sql
    budget conversions, whom it protects privacy             rho, mu, epsilon, delta; rows per person, neighbours
    replace-one neighbours               plans.neighbours    what a plan costs when rows are replaced
    the cap of rows per person           release.records.people       whose rows they are, and how many: workload.schema
    identifiers of persons               release.records.identifiers  one identity per identifier, whatever its type
    pieces of queries, class coordinates spaces.coordinates  one transform, held to its transpose by a dot test
    a solver, in float32 for example     spaces.solvers      one class, one name in spaces.search.PROBLEMS
    a lower bound                        spaces.bounds
    what the dearest of all cells costs  spaces.dearest
    an objective                         plans.objectives    shares of the budget: plans.shares; plan files: plans.file
    its search                           mechanisms.reweighted; the largest error of products: mechanisms.largest
    a mechanism                          mechanisms.known    one name in MECHANISMS, beside a file of its own
    products of strategies               mechanisms.products one strategy an attribute; for HDMM and for QuerySmasher
    a file format of records             release.records.files        a frame: release.records.sources
    counts of parts, and their file      release.records.counts       a value's cell: release.records.encoding
    how noise is drawn                   release.noise       when, and after which spend: release.measure
    answers, confidence intervals        release.reconstruct
    columns and hashes of the ledger     release.ledger.chain         its sums: release.ledger.balance
    how a declared total is changed      release.ledger.changes
    what `verify` checks                 release.ledger.ledger        of a package that was handed out: publish.verify
    tables without negative cells        publish.tables.shrunk    that they agree: publish.tables.joint
    whole records near published tables  publish.tables.people
    errors of published tables           publish.tables.bootstrap     flags: publish.tables.quality
    how a stopped fit goes on            publish.tables.resume
    published tables as plain text       publish.tables_package       and what R reads: publish.open_form, linear_form
    the same for spreadsheets            publish.workbook
    from an error to its budget          insight.fitness      targets of single groups, and locks: insight.locks
    the rule that chooses                choice.rules        on plans: choice.plan_rule
    a chart on the page Compare          figures.compare     other pages: figures.plans, figures.choice, figures.release
    a command, its options and keys      commands.planning, releasing, stepping, keeping; how it prints: commands.line
    how the app is started               commands.studio
    a lesson                             lessons.numbers     its handout: lessons.handout; LESSONS: pages/parts/lessons

Notation
--------
budget, privacy cost    pcost      largest diagonal entry of B^T Sigma^-1 B; rho = pcost / 2, mu = sqrt(pcost)
workload rows           W          one linear counting query a row
strategy rows           B          what is measured
center                  pi         vector with sum 1 that tells how a query passes its total down
class coordinates       N^T x      a residual space in the cosine basis N
pieces                  q M        what a query asks of every residual space; M^-1 x are all class coordinates
Gram                    G          N^T W^T W N, in counts^2
dual weights            mu         one per cell; they prove the lower bound
variance                Var        in counts^2; its root, the standard error, in counts
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engine.choice import (
    CommonMechanism,
    CommonPlan,
    LinearMechanism,
    NestedPlanRule,
    coarse_or_fine,
    nested_choices,
    stepwise,
)
from engine.insight import budget_for, compare, comparison, share_within, tolerance_for, written_query
from engine.mechanisms import MECHANISMS, forecast, load_plan, plan
from engine.plans import Plan
from engine.privacy import Budget
from engine.release import (
    Counts,
    Ledger,
    Measurement,
    SheetFile,
    TextFile,
    count_marginals,
    draft_schema,
    load_measurement,
    measure,
)
from engine.workload import FAMILIES, Attribute, Custom, Random, Schema, Suffix, Width, Workload

if TYPE_CHECKING:
    from engine.figures import plot

    __version__: str

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
    "SheetFile",
    "Suffix",
    "TextFile",
    "Width",
    "Workload",
    "budget_for",
    "coarse_or_fine",
    "compare",
    "comparison",
    "count_marginals",
    "draft_schema",
    "forecast",
    "load_measurement",
    "load_plan",
    "measure",
    "nested_choices",
    "plan",
    "plot",
    "share_within",
    "stepwise",
    "tolerance_for",
    "written_query",
]


def __getattr__(name: str) -> Any:
    """Fetch what draws, and the version, when they are asked for: most programs never do, and both take long."""
    if name == "__version__":
        return _version()
    if name == "plot":
        from engine.figures import plot

        return plot
    raise AttributeError(f"module 'engine' has no attribute {name!r}")


def _version() -> str:
    """The version that is installed; of a checkout that never was, the one that its pyproject.toml says."""
    import tomllib
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    try:
        return version("dp-query-workbench")
    except PackageNotFoundError:
        text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
        return str(tomllib.loads(text)["project"]["version"])
