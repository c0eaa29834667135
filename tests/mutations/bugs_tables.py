"""Bugs of published tables: how they are fitted, made to agree, flagged, judged and written."""

from tests.mutations.planting import bug

FOLDER = "engine/publish/tables"
BORROW, ENTROPIC, METRIC = f"{FOLDER}/borrow.py", f"{FOLDER}/entropic.py", f"{FOLDER}/metric.py"
JOINT, PUBLISHED, EVIDENCE = f"{FOLDER}/joint.py", f"{FOLDER}/published.py", f"{FOLDER}/evidence.py"
QUALITY, UNCERTAIN, ACCEPTANCE = f"{FOLDER}/quality.py", f"{FOLDER}/uncertainty.py", f"{FOLDER}/acceptance.py"
FILE, PACKAGE = "engine/publish/published_file.py", "engine/publish/tables_package.py"
OPEN, FACTS = "engine/publish/open_form.py", f"{FOLDER}/facts.py"
TESTS, PACKED = "tests/publish/tables", "tests/publish/test_tables_package.py"
TABLES, FITTED, ERRORS = (f"{TESTS}/test_{name}.py" for name in ("published", "fits", "uncertainty"))
SUMS, FILES = f"{TESTS}/test_metric.py", "tests/publish/test_published_file.py"
OPENED = f"{PACKED}::test_estimates_errors_and_covariances_follow_from_the_open_form_alone"

IMPOSSIBLE, RULED = f"{TESTS}/test_impossible.py", "tests/workload/test_impossible.py"
RULES, COUNTED = "engine/workload/impossible.py", "tests/release/records/test_people.py"

TOTALS, RESUMED = f"{TESTS}/test_total.py", f"{TESTS}/test_resume.py"
CRITERIA = f"{TESTS}/test_acceptance.py"
STOPPED = f"{RESUMED}::test_a_fit_that_is_stopped_again_and_again_ends_at_the_same_numbers"

BUGS = (
    bug(
        "a criterion that reads records is called free",
        ACCEPTANCE,
        "cost = value <= asked.contradiction, 0.0 if found.rehearsal or number else found.plan.pcost",
        "cost = value <= asked.contradiction, 0.0",
        f"{CRITERIA}::test_a_criterion_that_reads_records_is_booked_and_tells_what_no_published_table_does",
    ),
    bug(
        "records of another number are judged unscaled",
        ACCEPTANCE,
        "        table = np.asarray(scale * table_of(records[",
        "        table = np.asarray(table_of(records[",
        f"{CRITERIA}::test_counts_are_scaled_to_the_total_of_the_tables",
    ),
    bug(
        "attributes that are not there are noticed after the spend",
        ACCEPTANCE,
        "    _check_attributes(records, plan)\n    return",
        "    return",
        f"{CRITERIA}::test_nothing_is_spent_beyond_the_budget_or_on_attributes_that_are_not_there",
    ),
    bug(
        "residuals tell nothing of the total",
        PUBLISHED,
        '    seen = borrowed_total(found) if fit == "shrunk" else (found.total, found.total_variance)\n',
        "    seen = found.total, found.total_variance\n",
        f"{TOTALS}::test_all_published_tables_sum_to_the_total_that_was_borrowed_for",
    ),
    bug(
        "a total that is known well is borrowed for",
        BORROW,
        " or found.total_variance <= (PRECISE * found.total) ** 2:",
        ":",
        f"{TOTALS}::test_a_total_that_is_known_well_stays_as_it_was_measured",
    ),
    bug(
        "a fit that goes on takes its multipliers from nothing",
        JOINT,
        "        own.cells, own.values, own.point = (state",
        "        _ = (state",
        STOPPED,
    ),
    bug(
        "records that go on are drawn with other luck",
        f"{FOLDER}/people.py",
        '        set_state(generator, done["generator"])\n',
        "",
        f"{RESUMED}::test_records_that_are_stopped_again_and_again_are_the_same",
    ),
    bug(
        "rehearsals that go on are drawn with other luck",
        UNCERTAIN,
        '            set_state(generator, done["generator"])\n',
        "",
        f"{RESUMED}::test_errors_that_are_stopped_again_and_again_are_the_same",
    ),
    bug(
        "a fit goes on with what other code has left",
        f"{FOLDER}/resume.py",
        "json.dumps([_code(), *follows])",
        "json.dumps([*follows])",
        f"{RESUMED}::test_other_code_does_not_go_on_with_a_state",
    ),
    bug(
        "a fit that goes on fits all tables again",
        f"{FOLDER}/shrunk.py",
        '            done = steps.taken(name := f"fit {number}")\n',
        '            done, name = None, f"fit {number}"\n',
        f"{RESUMED}::test_no_table_is_fitted_twice",
    ),
    bug(
        "tables that no scaling brings to their margins are left to the even share",
        f"{FOLDER}/shrunk.py",
        "            if -float(assembled(contrasts, axes).min()) * table.size > enough * total:\n",
        "            if False:\n",
        f"{FITTED}::test_only_tables_whose_margins_contradict_each_other_are_projected_together",
    ),
    bug(
        "every table hides what it alone might hide",
        f"{FOLDER}/bootstrap.py",
        "            law = (odds.sum(axis=0) + even) / (len(own) + 1)",
        "            law = even",
        f"{ERRORS}::test_what_attributes_have_in_common_is_learned_from_all_tables_together",
    ),
    bug(
        "what impossible cells still hold is cut off in silence",
        JOINT,
        "    if possible:\n        made = emptied(",
        "    if False:\n        made = emptied(",
        f"{IMPOSSIBLE}::test_impossible_cells_are_empty_and_all_tables_agree",
    ),
    bug(
        "the share of even tables fills impossible cells",
        JOINT,
        "                if axes in even:\n",
        "                if False:\n",
        f"{IMPOSSIBLE}::test_impossible_cells_are_empty_and_all_tables_agree",
    ),
    bug(
        "emptying cells moves the total",
        JOINT,
        "        lower = moved | {(): lower[()]}\n",
        "        lower = moved\n",
        f"{IMPOSSIBLE}::test_unbiased_tables_stay_unbiased_and_keep_their_total",
    ),
    bug(
        "records are not mended",
        FACTS,
        "        mend_people(records, [(list(range(len(names))), possible)], generator)\n",
        "",
        f"{IMPOSSIBLE}::test_whole_records_keep_every_rule",
    ),
    bug(
        "a cell is impossible as soon as one below it is",
        RULES,
        "        kept = self.share.sum(",
        "        kept = self.share.prod(",
        f"{RULED}::test_cells_are_impossible_where_everything_below_them_is",
    ),
    bug(
        "rules that share attributes are read alone",
        RULES,
        "[found for found in together if found[0] & own]",
        "[found for found in together if found[0] == own]",
        f"{RULED}::test_cells_are_impossible_where_everything_below_them_is",
    ),
    bug(
        "rows that break a rule count",
        "engine/release/records/tables.py",
        "                columns = self._without(columns, broken)\n",
        "",
        f"{COUNTED}::test_rows_whose_counted_values_are_impossible_together_count_nowhere",
    ),
    bug(
        "a database counts without the rules",
        "engine/release/records/tables.py",
        "if is_table(data) and not self.rules and count_there",
        "if is_table(data) and count_there",
        f"{COUNTED}::test_rules_hold_for_persons_weights_and_databases_alike",
    ),
    bug(
        "counts made under other rules are taken",
        "engine/release/records/tables.py",
        "    if held.schema.impossible != schema.impossible:\n",
        "    if False:\n",
        f"{COUNTED}::test_counts_made_without_the_rules_are_refused",
    ),
    bug(
        "even tables are not mixed in where cells are negative",
        JOINT,
        "    if worst > 0.0:\n        kept",
        "    if False:\n        kept",
        TABLES,
    ),
    bug(
        "noise of prefix answers taken for alike in all directions",
        METRIC,
        " if uneven else None",
        " if False else None",
        f"{SUMS}::test_published_sums_are_as_exact_as_the_unbiased_ones",
    ),
    bug(
        "a metric of covariances in place of their inverses",
        METRIC,
        "(lifted / values) @ lifted.T",
        "(lifted * values) @ lifted.T",
        f"{SUMS}::test_a_metric_tells_apart_what_the_rows_of_the_strategy_tell_apart",
    ),
    bug(
        "a metric without the scale of the noise",
        METRIC,
        "scale=1.0 / block.noise**2",
        "scale=1.0 / block.noise",
        f"{SUMS}::test_a_metric_tells_apart_what_the_rows_of_the_strategy_tell_apart",
    ),
    bug(
        "the search in a metric stops at once",
        BORROW,
        "        if moved <= SETTLED * math.sqrt(seen.variance):\n",
        "        if True:\n",
        f"{SUMS}::test_a_table_of_one_attribute_is_the_nearest_in_standard_errors",
    ),
    bug(
        "a fit in a metric stays at its reference",
        ENTROPIC,
        "        made = _moved(table, point - step * slope, step / tau, axes, margins, MISSED)\n",
        "        made = _moved(table, point + 0.0 * slope, step / tau, axes, margins, MISSED)\n",
        f"{SUMS}::test_a_fit_in_a_metric_follows_what_is_known_well_and_not_what_is_not",
    ),
    bug(
        "a doubtful number passes for publishable",
        QUALITY,
        "errors > self.doubtful_cv * values",
        "errors > self.suppressed_cv * values",
        f"{ERRORS}::test_a_rule_marks_numbers_with_its_gravest_reason",
    ),
    bug(
        "suppressed numbers are shown",
        UNCERTAIN,
        '        found["published"] = np.where(shown, values, np.nan)\n',
        '        found["published"] = values\n',
        f"{ERRORS}::test_suppressed_cells_are_not_shown_and_stay_in_the_sums",
    ),
    bug(
        "errors without those of rounding to whole people",
        UNCERTAIN,
        "np.sqrt(squares + self._rounding(attributes) ** 2)",
        "np.sqrt(squares)",
        f"{ERRORS}::test_whole_tables_have_the_errors_of_their_rounding_too",
    ),
    bug(
        "answers below zero are counted with those at it",
        UNCERTAIN,
        'negative = found["answer"].to_numpy() < 0.0',
        'negative = found["answer"].to_numpy() < 10.0',
        f"{FILES}::test_a_summary_counts_what_was_below_zero_and_what_is_published_there",
    ),
    bug(
        "records far from the tables are accepted",
        ACCEPTANCE,
        "        met = value >= limit",
        "        met = True or value >= limit",
        f"{FILES}::test_records_near_the_tables_are_accepted_and_others_are_not",
    ),
    bug(
        "more records than the tables sum to are taken for far",
        ACCEPTANCE,
        "    scale = published.total / len(codes) if len(codes) else 0.0\n",
        "    scale = 1.0\n",
        f"{FILES}::test_records_near_the_tables_are_accepted_and_others_are_not",
    ),
    bug(
        "a file of a rehearsal is not marked",
        FILE,
        'pa.array(["REHEARSAL"] * len(rows), pa.string())',
        'pa.array(["release"] * len(rows), pa.string())',
        f"{FILES}::test_a_rehearsal_is_marked_in_every_row_of_every_file",
    ),
    bug(
        "a page of a group begins in another one",
        FILE,
        "    before = sum(g.count for g in plan.workload.groups[:group])\n",
        "    before = sum(g.count for g in plan.workload.groups[: group + 1])\n",
        f"{FILES}::test_a_file_gives_back_every_page_of_every_group",
    ),
    bug(
        "labels of records may be formulas",
        FILE,
        "pyarrow.csv.write_csv(escaped(table), partial)",
        "pyarrow.csv.write_csv(table, partial)",
        f"{FILES}::test_records_have_the_labels_of_their_cells_and_no_formulas",
    ),
    bug(
        "a forecast counts every cell once",
        PUBLISHED,
        "bytes_needed=8 * (COPIES * sum(cells) + WORKING * max(cells))",
        "bytes_needed=8 * sum(cells)",
        f"{FILES}::test_a_forecast_says_what_publishing_takes_and_what_it_refuses",
    ),
    bug(
        "codes of a table in another order than its answers",
        PACKAGE,
        "np.unravel_index(np.arange(group.count), schema.sizes(group.attributes))",
        'np.unravel_index(np.arange(group.count), schema.sizes(group.attributes), order="F")',
        f"{PACKED}::test_every_query_has_its_row_with_codes_labels_and_both_numbers",
    ),
    bug(
        "the open form tells the grid for the noise",
        OPEN,
        "repr(block.grid), repr(block.noise)]",
        "repr(block.grid), repr(block.grid)]",
        OPENED,
    ),
    bug(
        "the draws of published tables come from the system",
        PUBLISHED,
        '    return [int(word) for word in np.frombuffer(made.digest(), "<u4")]\n',
        "    import os\n\n    return list(os.urandom(8))\n",
        f"{ERRORS}::test_the_same_tables_have_the_same_errors_and_others_have_others",
    ),
    bug(
        "the total of the tables is the noisy one as it is",
        PUBLISHED,
        'total = found.total if fit == "none" else shrunk_total(*seen)',
        "total = found.total",
        f"{FITTED}::test_a_total_is_drawn_towards_nothing_as_far_as_noise_may_have_made_it",
    ),
)
