"""Undo and redo over long random sessions, and default centers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from engine.mechanisms import plan
from engine.privacy import Budget
from engine.workload import Attribute, Custom, Group, Schema, Width, Workload
from engine.workload.conditions import box_workload
from engine.workload.families import Random as RandomSets
from engine.workload.sql import workload_from_sql
from engine.workload.workload import make_group
from pages.parts.shell import permalink
from pages.parts.shell.history import MAX_UNDO_STEPS, History, RequestState
from tests.app.session import Session, open_demo_schema

SCHEMA = Schema(
    [
        Attribute.numeric("age", [0, 18, 65, 90]),
        Attribute.categorical("sex", ["F", "M"]),
        Attribute.of_size("code", 4),
        Attribute.of_size("rank", 3),
    ]
)
FAMILIES = (
    "marginal",
    "prefix",
    "range",
    "circular",
    "total",
    Width(2),
    RandomSets(p=0.4, count=3, seed=2),
)
SQL = (
    "SELECT age, sex, COUNT(*) FROM t GROUP BY CUBE (age, sex)",
    "SELECT COUNT(*) FROM t WHERE age >= 18 OR sex = 'F'",
    "SELECT code, COUNT(*) FROM t WHERE code + rank <= 3 GROUP BY code",
)


def with_groups(studio: RequestState, groups: tuple[Group, ...]) -> RequestState:
    return replace(studio, workload=Workload(SCHEMA, groups))


def add_groups(studio: RequestState, draw: Random) -> RequestState:
    ways = [
        lambda: Workload(SCHEMA).add(
            ("code", "rank"), draw.choice(["affine", "abs", "marginal", *FAMILIES[1:]])
        ),
        lambda: Workload(SCHEMA).add(
            "age", Custom(predicates=[f"age >= {draw.choice([18, 65])}"]), 0.1 * draw.random()
        ),
        lambda: Workload(SCHEMA).add(
            "rank", Custom(matrix=[[draw.random(), 0, -1]], labels=["mine"])
        ),
        lambda: Workload(SCHEMA).add("rank", "marginal", 1.0, [draw.random() for _ in range(3)]),
        lambda: workload_from_sql(SCHEMA, draw.choice(SQL)),
        lambda: box_workload(
            SCHEMA, {"age": (0, draw.randrange(3)), "code": (1, draw.randrange(1, 4))}
        ),
        lambda: Workload.all_ways(SCHEMA, (draw.choice([1, 2, 3]),)),
    ]
    return with_groups(studio, (*studio.workload.groups, *draw.choice(ways)().groups))


def remove_groups(studio: RequestState, draw: Random) -> RequestState:
    return with_groups(studio, tuple(g for g in studio.workload.groups if draw.random() < 0.7))


def reweigh(studio: RequestState, draw: Random) -> RequestState:
    weight = draw.choice([0.0, 0.1, 1 / 3, 1e-7, 2.5])
    return with_groups(
        studio,
        tuple(
            replace(g, weight=weight) if draw.random() < 0.5 else g for g in studio.workload.groups
        ),
    )


def change_family(studio: RequestState, draw: Random) -> RequestState:
    groups = list(studio.workload.groups)
    if groups:
        i = draw.randrange(len(groups))
        names = groups[i].attributes
        family = draw.choice(["marginal", "total", Width(1)]) if "sex" not in names else "marginal"
        groups[i] = make_group(SCHEMA, names, family if names else "total", groups[i].weight)
    return with_groups(studio, tuple(groups))


def change_budget(studio: RequestState, draw: Random) -> RequestState:
    ways: list[Callable[[], Budget]] = [
        lambda: Budget(pcost=draw.random()),
        lambda: Budget.zcdp(0.1 * draw.randint(1, 9)),
        lambda: Budget.gdp(draw.random()),
        lambda: Budget.approx(draw.choice([0.1, 1.0, 3.0]), 1e-6),
    ]
    return replace(studio, budget=draw.choice(ways)())


def change_mechanism(studio: RequestState, draw: Random) -> RequestState:
    name = draw.choice(["querysmasher", "residualplanner+", "identity"])
    options = {
        "querysmasher": [{}, {"solver": "fourier"}],
        "residualplanner+": [{"base": "prefix"}],
    }.get(name, [{}])
    return replace(studio, mechanism=name, options=draw.choice(options))


EDITS = (add_groups, remove_groups, reweigh, change_family, change_budget, change_mechanism)


@pytest.mark.parametrize("seed", range(12))
def test_random_edits_are_undone_and_redone(seed: int) -> None:
    draw = Random(seed)
    history = History(present=RequestState(workload=Workload(SCHEMA)))
    texts = [history.present.to_json()]
    for _ in range(30):
        edit = draw.choice(EDITS)
        before, studio = history, edit(history.present, draw)
        history = history.push(studio, redraw=draw.random() < 0.5)
        assert (history is before) == (studio.to_json() == texts[-1])
        if history is not before:
            texts.append(history.present.to_json())
            # A request that was saved in a file or an address is restored unchanged.
            assert RequestState.from_json(texts[-1]).to_json() == texts[-1]
            assert permalink.unpacked(permalink.packed(history.present)).to_json() == texts[-1]
    assert len(texts) > 10
    for _ in range(draw.randrange(5)):
        history = history.undo().undo().redo().redo()
    seen = [history.present.to_json()]
    while history.past:
        history = history.undo()
        seen.append(history.present.to_json())
    assert seen == texts[::-1]
    while history.future:
        history = history.redo()
    assert history.redo() is history
    assert history.present.to_json() == texts[-1]
    assert len(history.past) == len(texts) - 1


def test_history_keeps_limited_number_of_steps() -> None:
    history = History(present=RequestState(workload=Workload(SCHEMA)))
    for k in range(MAX_UNDO_STEPS + 20):
        history = history.push(replace(history.present, budget=Budget(pcost=1.0 + k)), redraw=False)
    assert len(history.past) == MAX_UNDO_STEPS
    for _ in range(MAX_UNDO_STEPS + 20):
        history = history.undo()
    assert history.present.budget == Budget(pcost=20.0)


def press_if_enabled(session: Session, key: str) -> None:
    """Press a button unless it is disabled, as when its tables are already in the workload."""
    if not next(b for b in session.app.button if b.key == key).disabled:
        session.press(key)


def test_session_edits_can_be_undone_and_redone() -> None:
    draw = Random(3)
    session = open_demo_schema("census").press("next")
    texts = [session.studio.to_json()]
    for _ in range(9):
        groups = len(session.studio.workload.groups)
        step = draw.choice(
            ["ways", "range", "sql", "remove", "weigh"] if groups else ["ways", "range", "sql"]
        )
        if step == "ways":
            session.set(add_how="All combinations", ways=[1, 2])
            press_if_enabled(session, "add_ways")
        elif step == "range":
            session.set(add_how="Pick a range")
            press_if_enabled(session, "add_range")
        elif step == "sql":
            session.set(
                add_how="Write SQL",
                sql_text="SELECT sex, COUNT(*) FROM t WHERE age < 40 GROUP BY sex",
            )
            press_if_enabled(session, "add_sql")
        else:
            key = f"chosen_{session.app.session_state['history'].version}"
            session.set(
                new_weight=draw.choice([0.5, 2.0, 3.0]), **{key: [draw.randrange(groups)]}
            ).press(step)
        if session.studio.to_json() != texts[-1]:
            texts.append(session.studio.to_json())
    assert len(texts) > 7
    for text in texts[-2::-1]:
        assert session.press("undo").studio.to_json() == text
    for text in texts[1:]:
        assert session.press("redo").studio.to_json() == text


def restore_from_link(studio: RequestState) -> RequestState:
    return permalink.unpacked(permalink.packed(studio))


def test_links_restore_default_centers_of_their_version() -> None:
    small = RequestState(workload=Workload.all_ways(SCHEMA, (1, 2)))
    assert (small.options_without_defaults, small.centers_are_open) == ({"centers": "tuned"}, True)
    assert restore_from_link(small).request_json == small.request_json
    assert restore_from_link(small).centers_are_open
    # A file of a version in which uniform centers were the default does not name centers.
    old = small.request_json.replace('"centers": "tuned"', "")
    opened = RequestState.from_json(
        f'{{"budget": {json.dumps(small.budget.to_dict())}, "question": {old}}}'
    )
    assert (opened.options_without_defaults, opened.options) == ({}, {"centers": "uniform"})
    assert (
        plan(opened.required_workload, opened.budget, **opened.options_without_defaults).options[
            "centers"
        ]
        == "uniform"
    )
    assert restore_from_link(opened).options_without_defaults == {}
    assert opened.request_key != small.request_key
    back = opened.with_options({"centers": "tuned"})
    assert (back.options, back.request_json) == ({}, small.request_json)


def test_changed_workload_keeps_default_options() -> None:
    here = RequestState(workload=Workload.all_ways(SCHEMA, (1, 2)))
    fewer = replace(here.request, workload=Workload.all_ways(SCHEMA, (1,)))
    assert here.with_request(fewer).centers_are_open
    uniform = here.with_request(replace(fewer, options={}))
    assert (uniform.centers_are_open, uniform.options_without_defaults) == (False, {})
    limited = here.with_options({"centers": "tuned", "keep": 0.0})
    assert (limited.options, limited.options_without_defaults) == (
        {"keep": 0.0},
        {"centers": "tuned", "keep": 0.0},
    )
    assert restore_from_link(limited).options_without_defaults == limited.options_without_defaults


def test_with_uniform_centers_keeps_chosen_centers_and_other_mechanisms() -> None:
    here = RequestState(workload=Workload(SCHEMA))
    # Uniform centers are the default of plans, so no option is stored.
    assert (
        replace(
            here.with_uniform_centers, workload=Workload.all_ways(SCHEMA, (1,))
        ).options_without_defaults
        == {}
    )
    chosen = replace(here, options={"centers": "tuned"})
    assert chosen.with_uniform_centers is chosen
    other = replace(here, mechanism="identity")
    assert other.with_uniform_centers is other


def test_history_stores_no_long_texts() -> None:
    history = History()
    for pcost in (1.0, 2.0, 2.0, 3.0):
        history = history.push(
            RequestState(workload=Workload.all_ways(SCHEMA, (1, 2)), budget=Budget(pcost=pcost)),
            redraw=False,
        )
        permalink.packed(history.present)
    assert len(history.past) == 3  # the empty state and two budgets
    texts = [
        value for studio in (*history.past, history.present) for value in vars(studio).values()
    ]
    assert all(len(text) < 1_000 for text in texts if isinstance(text, str))
