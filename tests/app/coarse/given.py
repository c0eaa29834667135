"""Sessions on the page Coarse or fine with a small schema, and what they press."""

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
from pages.parts.shell import link
from pages.parts.shell.state import Studio
from tests.app.session import Session, wait

SCHEMA = Schema([Attribute.of_size("a", 4), Attribute.of_size("b", 3), Attribute.categorical("c", ["x", "y"])])
LOOK, EARLIER = "Look for real", "Earlier looks"


@cache
def common_of(pcost: float = 0.4) -> CommonPlan:
    workloads = analyses.workloads_by_way(SCHEMA, (1, 2))
    return coarse_or_fine(*(plan(w, Budget(pcost=pcost)) for w in workloads.values()), names=list(workloads))


def opened(pcost: float = 0.4, **left: object) -> Session:
    """A session with a small schema on the page, which may have been left with something filled in."""
    studio = Studio(workload=Workload(SCHEMA), budget=Budget(pcost=pcost))
    return Session(plan=link.packed(studio)).go("coarse", **left)


def ready(ledger: Ledger, records: Path, pcost: float = 0.4, typed: str = "", **rule: float) -> Session:
    """A session that only has to confirm the look, or has."""
    chosen = {f"coarse_{name}": value for name, value in rule.items()}
    place = {"coarse_step": LOOK, "ledger_path": str(ledger.path), "records_path": str(records)}
    return opened(pcost, **chosen, **place, **({"coarse_confirmation": typed} if typed else {}))


def looked(ledger: Ledger, records: Path, pcost: float = 0.4, **rule: float) -> Session:
    return wait(ready(ledger, records, pcost, "office", **rule).press("coarse_look"))


def button(session: Session, start: str) -> object:
    return next(b for b in session.app.button if (b.key or "").startswith(start))


def radio(session: Session) -> object:
    return next(r for r in session.app.radio if (r.key or "").startswith("coarse_decision_"))


def override(session: Session, option: str, by: str, reason: str) -> Session:
    session.run(radio(session).set_value(option))
    boxes = {t.key: t for t in session.app.text_input if t.key}
    typed = {"coarse_by_": by, "coarse_reason_": reason}
    return session.set(**{key: text for start, text in typed.items() for key in boxes if key.startswith(start)})


def decided(session: Session) -> Session:
    return session.run(button(session, "coarse_record_").click())


def finished(session: Session) -> Session:
    session.set(coarse_confirm_finish="office")
    return wait(session.press("coarse_finish"))


def kinds(ledger: Ledger) -> list[str]:
    return [row.kind for row in Ledger(ledger.path).rows()][2:]


def spent(ledger: Ledger) -> list[Decimal]:
    return [Decimal(row.pcost) for row in Ledger(ledger.path).rows() if row.kind == "spend"]
