"""Plans of workloads with a wide attribute, by several mechanisms and options."""

from __future__ import annotations

from typing import Any

from engine import Budget, Plan, Workload, plan

# name of a case, which starts with the mechanism -> options
OPTIONS: dict[str, dict[str, Any]] = {
    "querysmasher": {},
    "querysmasher tuned": {"centers": "tuned"},
    "querysmasher largest": {"objective": "max"},
    "residualplanner": {},
    "residualplanner+": {},
    "wff": {},
    "identity": {},
    "gaussian": {},
    "datacube": {},
    "hdmm": {},
    "hdmm marginals": {"operator": "OPT_marginals"},
}


def plan_of(workload: Workload, case: str, **budget: Any) -> Plan:
    """Return the plan of a workload at privacy cost 1, with mechanism and options of a case.

    ``case`` is a key of `OPTIONS`; ``budget`` has further arguments of `Budget`.
    """
    mechanism, _, _ = case.partition(" ")
    return plan(
        workload, Budget(pcost=1.0, **budget), mechanism, cache=False, workers=1, **OPTIONS[case]
    )
