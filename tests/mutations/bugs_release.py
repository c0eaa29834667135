"""Bugs of drawing and measuring."""

from tests.mutations.planting import bug

NOISE, GRID = "engine/release/noise.py", "engine/release/answers_on_grid.py"
MEASURE, INTAKE = "engine/release/measure.py", "engine/release/intake.py"
LAW, DRAW = "tests/release/test_noise.py", "tests/release/test_draw.py"
RELEASE, PROCEDURE = "tests/release/test_release.py", "tests/release/test_procedure.py"
IMPORTS = "tests/release/test_imports.py"
GAUSSIAN = """    envelope = _envelope(power=2, rate=1 / (2 * exact), floor_scale=isqrt(int(exact)))
    return _draw(envelope, size=_checked_size(size), entropy=entropy or os.urandom)"""
DRAWN = "            noise = discrete_gaussian(variance=block.grid_noise**2, size=block.measurements, **bits)\n"
SPENT = """        receipt = spend()
        if not receipt.fresh and not taken_up:
            own.remove()
            return False
"""

BUGS = (
    # the law of the noise
    bug(
        "noise from a fixed seed",
        NOISE,
        GAUSSIAN,
        GAUSSIAN.replace("entropy or os.urandom", "np.random.default_rng(7).bytes"),
        f"{LAW}::test_no_seed_and_no_other_randomness",
    ),
    bug(
        "noise of a generator that is seeded from the clock",
        NOISE,
        GAUSSIAN,
        GAUSSIAN.replace(
            "entropy or os.urandom", "__import__('random').Random(__import__('time').time_ns()).randbytes"
        ),
        f"{LAW}::test_no_seed_and_no_other_randomness",
        IMPORTS,
    ),
    bug(
        "gaussian scale wrong by one percent",
        NOISE,
        "envelope = _envelope(power=2, rate=1 / (2 * exact)",
        "envelope = _envelope(power=2, rate=Fraction(10000, 9801) / (2 * exact)",
        f"{LAW}::test_gaussian_law",
    ),
    bug(
        "laplace scale wrong by two percent",
        NOISE,
        "envelope = _envelope(power=1, rate=1 / exact",
        "envelope = _envelope(power=1, rate=Fraction(100, 98) / exact",
        f"{LAW}::test_laplace_law",
    ),
    bug(
        "minus zero is kept",
        NOISE,
        "kept &= ~(negative & (values == 0))",
        "kept &= ~(negative & (values < 0))",
        f"{LAW}::test_float_filter_decides_as_integers_do",
    ),
    bug(
        "the tail is cut off",
        NOISE,
        "for i in np.flatnonzero(tail | ~(kept | (gap <= -slack))):",
        "for i in np.flatnonzero(~tail & ~(kept | (gap <= -slack))):",
        f"{LAW}::test_law_past_the_bins",
    ),
    bug(
        "the tail ends after its first piece",
        NOISE,
        "    while _random_bits(1, entropy=entropy):\n",
        "    while level < 0:\n",
        f"{LAW}::test_law_past_the_bins",
    ),
    bug(
        "the sign is a bit of the bin",
        NOISE,
        "negative = (signed & ENTRIES) != 0",
        "negative = (signed & (ENTRIES >> 1)) != 0",
        f"{LAW}::test_float_filter_decides_as_integers_do",
    ),
    bug(
        "floats decide what only integers can",
        NOISE,
        "    slack = margin * 2.0**head_bits\n",
        "    slack = 0.0\n",
        f"{LAW}::test_what_floats_cannot_tell_is_left_to_integers",
    ),
    bug(
        "a close decision starts its uniform anew",
        NOISE,
        "head, head_bits = (head << 32) | _random_bits(32, entropy=entropy), head_bits + 32",
        "head, head_bits = _random_bits(32, entropy=entropy), 32",
        f"{LAW}::test_integers_go_on_from_the_bits_already_drawn",
    ),
    bug(
        "the envelope dips below the law",
        NOISE,
        "counts = np.ceil(upper[:bins]).astype(np.int64)",
        "counts = np.maximum(1, np.floor(upper[:bins])).astype(np.int64)",
        f"{LAW}::test_envelope_lies_above_the_law",
    ),
    bug(
        "a chunk of random words is used twice",
        NOISE,
        "        found = values[kept][:missing]\n",
        "        found = np.tile(values[kept], 2)[:missing]\n",
        f"{LAW}::test_every_bit_is_used_and_draws_do_not_repeat",
    ),
    # drawing
    bug(
        "a float is drawn",
        GRID,
        DRAWN,
        "            noise = np.rint(np.random.normal(0, block.grid_noise, block.measurements)).astype(np.int64)\n",
        IMPORTS,
    ),
    bug(
        "noise scale of a release wrong by one percent",
        GRID,
        "variance=block.grid_noise**2",
        "variance=(99 * block.grid_noise // 100) ** 2",
        f"{DRAW}::test_noise_is_asked_for_at_the_scale_of_every_block",
    ),
    bug(
        "noise scale halved",
        GRID,
        "variance=block.grid_noise**2",
        "variance=block.grid_noise**2 // 4",
        "tests/audit/test_audit.py",
    ),
    bug(
        "laplace blocks get gaussian noise",
        GRID,
        'if block.law == "laplace":',
        'if block.law == "none":',
        f"{DRAW}::test_noise_is_asked_for_at_the_scale_of_every_block",
    ),
    bug(
        "one block has no noise",
        GRID,
        "yield space, exact + noise",
        "yield space, exact + (noise if i else 0)",
        f"{DRAW}::test_every_block_has_noise_of_its_own",
    ),
    bug(
        "blocks of one shape share their noise",
        GRID,
        DRAWN,
        "            noise = vars(counts).setdefault(('noise', block.measurements), discrete_gaussian(\n"
        "                variance=block.grid_noise**2, size=block.measurements))\n",
        f"{DRAW}::test_every_block_has_noise_of_its_own",
    ),
    bug(
        "the noise of a rehearsal is used by the next release",
        GRID,
        DRAWN,
        "            noise = vars(draw).setdefault((part.max_records, space), discrete_gaussian(\n"
        "                variance=block.grid_noise**2, size=block.measurements))\n",
        f"{DRAW}::test_noise_is_drawn_anew_for_every_release",
    ),
    bug(
        "noise once per answer pair",
        GRID,
        DRAWN,
        "            half = discrete_gaussian(variance=block.grid_noise**2, size=block.measurements // 2 + 1)\n"
        "            noise = np.resize(half, block.measurements)\n",
        f"{DRAW}::test_every_block_has_noise_of_its_own",
    ),
    bug(
        "a block of the same shape is given the first table",
        GRID,
        "_on_grid(block, tables[block.attributes], ",
        "_on_grid(block, next(t for t in tables.values() if t.shape == tables[block.attributes].shape), ",
        f"{DRAW}::test_every_block_measures_its_own_table",
    ),
    bug(
        "floats measure more records than the plan charged for",
        GRID,
        "counts.records <= part.max_records)",
        "True)",
        f"{PROCEDURE}::test_more_records_than_the_plan_was_made_for_are_measured_exactly",
        f"{DRAW}::test_more_records_than_were_charged_for_are_measured_in_whole_numbers",
    ),
    bug(
        "answers past 62 bits wrap",
        GRID,
        "max(-limit, min(limit, _halved(int(z), down)))",
        "(_halved(int(z), down) + 2**63) % 2**64 - 2**63",
        f"{PROCEDURE}::test_more_records_than_the_plan_was_made_for_are_measured_exactly",
    ),
    # measuring
    bug(
        "fresh is not asked",
        MEASURE,
        SPENT,
        "        receipt = spend()\n",
        f"{PROCEDURE}::test_of_two_runs_under_one_key_only_one_draws",
    ),
    bug(
        "drawn before the spend",
        MEASURE,
        "        receipt = spend()\n",
        "        early = dict(draw(part, counts, _silent))\n        receipt = spend()\n",
        f"{RELEASE}::test_a_crash_between_spend_and_save_never_draws_again",
    ),
    bug(
        "all answers are drawn before one is written",
        MEASURE,
        "write(file, receipt, drawn(bits()))",
        "write(file, receipt, list(drawn(bits())))",
        f"{DRAW}::test_a_release_holds_the_answers_of_one_block_at_a_time",
    ),
    bug(
        "estimates are made of other answers than those of their block",
        "engine/release/archive.py",
        "file.tell() - array.nbytes, array.nbytes",
        "file.tell() - array.nbytes - 8, array.nbytes",
        f"{DRAW}::test_a_file_is_the_same_whether_its_estimates_come_or_are_made_of_what_was_written",
    ),
    bug(
        "no room is taken before the spend",
        MEASURE,
        "room_for(lambda file: write(file, _BLANK, blank())) as room, unbroken(), own",
        "room_for(b'') as room, unbroken(), own",
        f"{PROCEDURE}::test_the_space_of_a_result_is_taken_before_the_spend",
    ),
    bug(
        "Ctrl-C after the spend loses the answers",
        MEASURE,
        " as room, unbroken(), own",
        " as room, own",
        "tests/commands/test_progress.py::test_ctrl_c_between_the_spend_and_its_answers_waits_until_they_are_saved",
    ),
    bug(
        "half the cost is spent",
        MEASURE,
        '"pcost": plan.pcost,',
        '"pcost": plan.pcost / 2,',
        f"{RELEASE}::test_release_spends_once_and_the_same_key_returns_the_same_answers",
    ),
    bug(
        "the cost of one row is spent for a person of many",
        MEASURE,
        '"pcost": plan.pcost,',
        '"pcost": plan.pcost / plan.budget.rows_per_person**2,',
        f"{PROCEDURE}::test_a_total_for_people_takes_only_what_protects_them",
    ),
    bug(
        "pure epsilon is counted as zCDP",
        MEASURE,
        '"pure_epsilon": plan.budget.pure_epsilon}',
        '"pure_epsilon": None}',
        f"{PROCEDURE}::test_a_pure_total_sums_epsilon_and_takes_no_gaussian_noise",
    ),
    bug(
        "the unit of a total is not asked",
        MEASURE,
        "    book.status(dataset).definition.check_unit(plan.budget)\n",
        "",
        f"{PROCEDURE}::test_a_total_for_people_takes_only_what_protects_them",
    ),
    bug(
        "the cap of rows is not that of the budget",
        INTAKE,
        "rows_per_person=plan.budget.rows_per_person,",
        "rows_per_person=10**6,",
        "tests/release/records/test_people.py::test_a_release_counts_at_most_the_rows_that_its_budget_protects",
    ),
    bug(
        "a release refuses a table because of its rows",
        MEASURE,
        "    counts = counted_for(plan, data, **of_rows)",
        '    counts = counted_for(plan, data, on_refused="error", **of_rows)',
        f"{RELEASE}::test_bad_records_spend_nothing",
    ),
    bug(
        "a rehearsal is not marked",
        MEASURE,
        'dataset="", key="", utc="", rehearsal=True)\n    if not dataset',
        'dataset="", key="", utc="", rehearsal=False)\n    if not dataset',
        f"{RELEASE}::test_files_hold_every_answer",
    ),
    bug(
        "a kept rehearsal is not marked",
        MEASURE,
        'plan=plan, dataset="", key="", utc="", rehearsal=True, answers_on_grid=answers, estimates=estimates',
        'plan=plan, dataset="", key="", utc="", rehearsal=False, answers_on_grid=answers, estimates=estimates',
        f"{RELEASE}::test_a_kept_rehearsal_is_the_same_and_takes_memory_only_where_it_is_looked_at",
    ),
    bug(
        "a rehearsal runs on a ledger's dataset",
        MEASURE,
        "        if dataset or ledger is not None:\n",
        "        if False:\n",
        f"{RELEASE}::test_a_release_names_its_dataset_and_ledger",
    ),
    bug(
        "public records may be those of a release",
        INTAKE,
        "        if row.kind != REHEARSED:\n",
        "        if False:\n",
        f"{PROCEDURE}::test_public_records_are_noted_and_confidential_ones_are_not_public",
    ),
    bug(
        "two names for one table are not told",
        INTAKE,
        "    warnings = [_warning(row) for row in book.same_records(found, dataset=dataset)]\n",
        "    warnings: list[str] = []\n",
        f"{PROCEDURE}::test_two_names_for_one_table_are_told_before_the_spend",
    ),
    bug(
        "rows that do not fit an attribute of one cell are counted",
        INTAKE,
        "        sets += [(name,) for name in checked]\n",
        "        pass\n",
        f"{RELEASE}::test_an_attribute_of_one_cell_is_checked_like_any_other",
    ),
)
