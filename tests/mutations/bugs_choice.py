"""Bugs of choices in steps."""

from tests.mutations.planting import bug

STEPWISE, RECORDS = "engine/choice/stepwise.py", "engine/choice/step_records.py"
COMMON, SPENDS = "engine/choice/common_plan.py", "engine/choice/spends.py"
SAME, STEPS, SPLIT, SPENT = (
    "tests/choice/test_same_records.py",
    "tests/choice/test_stepwise.py",
    "tests/choice/test_common_plan.py",
    "tests/choice/test_spends.py",
)

BUGS = (
    bug(
        "another machine takes its own last digits for those that were paid",
        "engine/choice/step_files.py",
        "    return Paid(spent, tuple(told))\n",
        "    return Paid(spent, tuple(prices))\n",
        f"{STEPS}::test_the_prices_are_those_of_the_machine_that_looked",
    ),
    bug(
        "the prices in the file of a look are taken as they are",
        "engine/choice/step_files.py",
        "    if not np.allclose([float(one) for one in told]",
        "    if False and not np.allclose([float(one) for one in told]",
        f"{STEPS}::test_a_file_of_a_look_with_other_prices_is_refused",
    ),
    bug(
        "a lost last step is recharged too little",
        STEPWISE,
        "return left if attempt == 1 else max(left, common.residuals[i].pcost)",
        "return left",
        f"{SAME}::test_a_lost_last_step_is_repeated_at_its_full_cost",
    ),
    bug(
        "other records pass for those of the look",
        RECORDS,
        'return "" if same else "These are not',
        'return "" if True else "These are not',
        SAME,
    ),
    bug(
        "a look without a digest passes for the same records",
        RECORDS,
        '        return "The look was taken before',
        '        return "" and "The look was taken before',
        SAME,
    ),
    bug(
        "other records pay the joint cost",
        STEPWISE,
        "            cost = max(cost, left.pcost)\n",
        "            cost = cost\n",
        SAME,
    ),
    bug(
        "a closer look on other records is not remembered",
        STEPWISE,
        '            records = replace(records, tables=f"{OTHER}{records.tables}")\n',
        "            records = records\n",
        SAME,
    ),
    bug(
        "steps count other rows",
        RECORDS,
        "        step_sets(common),\n        person=person,",
        "        [],\n        person=person,",
        SAME,
    ),
    bug(
        "look and rest may pass the plan",
        COMMON,
        "        if max(costs) <= 1.0:\n",
        "        if max(costs) <= 2.0:\n",
        f"{SPLIT}::test_what_is_spent_is_what_the_plan_costs_and_covers_what_is_released",
        f"{SPENT}::test_look_and_rest_are_checked_against_the_plan",
    ),
    bug(
        "a chain may pass its end",
        COMMON,
        "            if cost > price(option):\n",
        "            if False:\n",
        f"{SPENT}::test_a_chain_that_rounds_past_its_end_is_refused",
    ),
    bug(
        "look and rest are charged for one row",
        COMMON,
        "unit.of_person(joint_pcost([look, part], max_records)) / price(p)",
        "joint_pcost([look, part], max_records) / price(p)",
        f"{SPENT}::test_look_and_rest_are_checked_against_the_plan",
    ),
    bug(
        "the look is charged for one row",
        COMMON,
        "        unit.of_person(total_pcost(look, max_records)), [price(p)",
        "        total_pcost(look, max_records), [price(p)",
        "tests/plans/test_neighbours.py::test_a_choice_is_made_for_persons_too",
    ),
    bug(
        "the look is rounded down",
        SPENDS,
        "first = cost.quantize(step, ROUND_CEILING)",
        "first = cost.quantize(step, 'ROUND_FLOOR')",
        f"{SPENT}::test_spends_are_shown_as_they_add_up",
        f"{SPLIT}::test_what_is_spent_is_what_the_plan_costs_and_covers_what_is_released",
    ),
    bug(
        "plans that protect differently are mixed",
        COMMON,
        "(p.budget.rows_per_person, p.budget.neighbours) != (unit.rows_per_person, unit.neighbours) for p in",
        "False for p in",
        "tests/plans/test_neighbours.py::test_a_choice_is_made_for_persons_too",
    ),
    bug(
        "two looks share one last step",
        STEPWISE,
        'plan_hash=f"{REST}{i}:{looked}:{common.hash}"',
        'plan_hash=f"{REST}{i}:{common.hash}"',
        f"{STEPS}::test_two_looks_of_a_chain_never_share_a_closer_look",
    ),
    bug(
        "a choice can be taken back",
        STEPWISE,
        "    if steps.choice is not None and steps.choice.option != STOP:\n",
        "    if False:\n",
        f"{STEPS}::test_a_decision_needs_a_look_and_is_final",
    ),
    bug(
        "of two decisions both hold",
        STEPWISE,
        "text=text, key=key, earlier=len(steps.choices))",
        "text=text, key=key)",
        f"{STEPS}::test_of_decisions_at_the_same_time_one_holds",
    ),
    bug(
        "a released look is finished as a rehearsal",
        STEPWISE,
        "    if not looked.rehearsal:\n",
        "    if False:\n",
        f"{STEPS}::test_steps_without_a_ledger_or_with_a_rehearsal_are_kept_apart",
    ),
    bug(
        "a rehearsed look is not marked",
        STEPWISE,
        'look_measurement(common, answers, key="", dataset="", utc="", rehearsal=True)',
        'look_measurement(common, answers, key="", dataset="", utc="", rehearsal=False)',
        f"{STEPS}::test_rehearsed_steps_are_unbiased_with_the_variances_of_the_plan_alone",
    ),
    bug(
        "a rehearsed choice is not marked",
        "engine/choice/step_files.py",
        "        rehearsal=looked.rehearsal,\n",
        "        rehearsal=False,\n",
        f"{STEPS}::test_rehearsed_steps_are_unbiased_with_the_variances_of_the_plan_alone",
    ),
    bug(
        "the unit of a total is not asked by a look",
        STEPWISE,
        "    book.status(dataset).definition.check_unit(common.look.budget)\n",
        "",
        f"{STEPS}::test_a_total_of_another_unit_takes_no_look",
    ),
)
