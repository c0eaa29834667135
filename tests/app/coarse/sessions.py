"""Sessions on the page "Coarse or fine" with a small schema."""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from pathlib import Path

from engine.common_mechanism import CommonPlan
from engine.common_mechanism import selection_rule as analyses
from engine.common_mechanism.common_plan import coarse_or_fine
from engine.ledger import Ledger
from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Schema, Workload
from pages.parts.shell import permalink
from pages.parts.shell.history import RequestState
from tests.app.session import Session, wait

SCHEMA = Schema(
    [Attribute.of_size("a", 4), Attribute.of_size("b", 3), Attribute.categorical("c", ["x", "y"])]
)
ANALYSES = "1. Analyses"
RULE = "2. Rule"
REHEARSE = "3. Rehearse"
FILE = "4. File"
PAYER = "5. Who pays"
LOOK = "6. Measure"
PAST = "Past measurements"


@cache
def build_common_plan(pcost: float = 0.4) -> CommonPlan:
    workloads = analyses.workloads_by_way(SCHEMA, (1, 2))
    return coarse_or_fine(
        *(plan(w, Budget(pcost=pcost)) for w in workloads.values()), names=list(workloads)
    )


def open_page(pcost: float = 0.4, **fields: object) -> Session:
    """Open the page with a small schema and with these values of its fields."""
    studio = RequestState(workload=Workload(SCHEMA), budget=Budget(pcost=pcost))
    return Session(plan=permalink.packed(studio)).go("coarse", **fields)


def open_look_step(
    ledger: Ledger, records: Path, pcost: float = 0.4, confirmation: str = "", **rule: float
) -> Session:
    """Open the step of the first measurement (the look) with ledger, records and dataset chosen.

    ``rule`` sets fields of the selection rule.  A non-empty ``confirmation`` is typed into its
    field.  The page is run until no job is left.
    """
    chosen = {f"coarse_{name}": value for name, value in rule.items()}
    place = {"coarse_step": PAYER, "ledger_path": str(ledger.path), "records_path": str(records)}
    session = open_page(pcost, **chosen, **place).set(dataset="office").set(coarse_step=LOOK)
    return wait(session.set(coarse_confirmation=confirmation) if confirmation else session)


def run_look(ledger: Ledger, records: Path, pcost: float = 0.4, **rule: float) -> Session:
    return wait(open_look_step(ledger, records, pcost, "office", **rule).press("coarse_look"))


def show_look(session: Session) -> Session:
    """Wait for jobs, then press the button that opens the stored first measurement (the look)."""
    return wait(session).press("coarse_show")


def find_button(session: Session, start: str) -> object:
    return next(b for b in session.app.button if (b.key or "").startswith(start))


def find_decision(session: Session) -> object:
    return next(r for r in session.app.radio if (r.key or "").startswith("coarse_decision_"))


def enter_override(session: Session, option: str, by: str, reason: str) -> Session:
    session.run(find_decision(session).set_value(option))
    boxes = {t.key: t for t in session.app.text_input if t.key}
    typed = {"coarse_by_": by, "coarse_reason_": reason}
    return session.set(
        **{key: text for start, text in typed.items() for key in boxes if key.startswith(start)}
    )


def record_decision(session: Session) -> Session:
    return session.run(find_button(session, "coarse_record_").click())


def run_finish(session: Session) -> Session:
    session.set(coarse_confirm_finish="office")
    return wait(session.press("coarse_finish"))


def row_kinds(ledger: Ledger) -> list[str]:
    return [row.kind for row in Ledger(ledger.path).rows()][2:]


def spent_pcosts(ledger: Ledger) -> list[Decimal]:
    return [Decimal(row.pcost) for row in Ledger(ledger.path).rows() if row.kind == "spend"]
