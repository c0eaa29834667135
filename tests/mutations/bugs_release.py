"""Bugs of drawing, measuring and counting."""

from tests.mutations.planting import bug

NOISE, GRID = "engine/release/noise.py", "engine/release/answers_on_grid.py"
MEASURE, INTAKE = "engine/release/measure.py", "engine/release/intake.py"
PEOPLE, TABLES = "engine/release/records/people.py", "engine/release/records/tables.py"
DIGEST, ENCODING = "engine/release/records/digest.py", "engine/release/records/encoding.py"
LAW, DRAW = "tests/release/test_noise.py", "tests/release/test_draw.py"
RELEASE, PROCEDURE = "tests/release/test_release.py", "tests/release/test_procedure.py"
IMPORTS, PARTS = "tests/release/test_imports.py", "tests/release/test_parts.py"
COUNTS = "engine/release/records/counts.py"
GAUSSIAN = """    envelope = _envelope(power=2, rate=1 / (2 * exact), floor_scale=isqrt(int(exact)))
    return _draw(envelope, size=_checked_size(size), entropy=entropy or os.urandom)"""
DRAWN = "            noise = discrete_gaussian(variance=block.grid_noise**2, size=block.measurements, **bits)\n"
SPENT = """        receipt = spend()
        if not receipt.fresh and not taken_up:
            own.remove()
            return None
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
        "released[space] = exact + noise",
        "released[space] = exact + (noise if i else 0)",
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
        "        early = draw(part, counts, _silent)\n        receipt = spend()\n",
        f"{RELEASE}::test_a_crash_between_spend_and_save_never_draws_again",
    ),
    bug(
        "no room is taken before the spend",
        MEASURE,
        "room_for(lambda file: write(file, _BLANK, blank)) as room, unbroken(), own",
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
        "tests/release/test_people.py::test_a_release_counts_at_most_the_rows_that_its_budget_protects",
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
    # counting
    bug(
        "the cap of rows is off by one",
        PEOPLE,
        "return [column[self._place < self.rows] for",
        "return [column[self._place <= self.rows] for",
        "tests/release/test_people.py::test_every_person_counts_up_to_the_cap",
    ),
    bug(
        "the cap goes by the order of rows",
        PEOPLE,
        "order = np.lexsort(marks[::-1])",
        "order = np.lexsort(marks[1::-1])",
        "tests/release/test_people.py::test_the_order_of_rows_and_the_columns_asked_for_change_nothing",
    ),
    bug(
        "the cap prefers low values",
        PEOPLE,
        "        self._marks.append(np.stack([one, two, order])[:, known])",
        "        self._marks.append(np.stack([one, two, codes[0].astype(np.uint64)])[:, known])",
        "tests/release/test_people.py::test_no_value_is_preferred",
    ),
    bug(
        "who has long identifiers is told by their beginning",
        PEOPLE,
        'texts = np.asarray(persons.cast(pa.string()).fill_null(""), dtype=object)',
        'texts = np.asarray(pc.utf8_slice_codeunits(persons.cast(pa.string()).fill_null(""), 0, 99), dtype=object)',
        "tests/release/test_people.py::test_long_identifiers_that_differ_at_the_end_are_two_people",
    ),
    bug(
        "rows without a person are counted",
        PEOPLE,
        '        known &= texts != ""\n',
        "        known |= True\n",
        "tests/release/test_people.py::test_rows_without_a_person_are_refused_and_named",
    ),
    bug(
        "the cap is not that of all batches together",
        PEOPLE,
        "        self._marks, self._codes = [marks[:, first]], [[column[order[first]] for column in codes]]\n",
        "        self._marks, self._codes = [marks[:, first] + np.uint64(1)], "
        "[[column[order[first]] for column in codes]]\n",
        "tests/release/test_people.py::test_every_person_counts_up_to_the_cap",
    ),
    bug(
        "a record is counted twice",
        TABLES,
        "            np.add.at(flat, index, 1)\n",
        "            np.add.at(flat, index, 2)\n",
        "tests/release/test_counts.py::test_tables_at_the_ends_of_integer_types",
    ),
    bug(
        "rows past a full chunk are counted twice",
        TABLES,
        "self.filled, start = self.filled + count, start + count",
        "self.filled, start = self.filled + count, start + max(1, count - (self.filled + count == self.room))",
        "tests/release/test_counts.py::test_chunks_and_batches_of_any_size_add_up",
    ),
    bug(
        "a code past the domain lands in the next cell",
        ENCODING,
        "(self.dtype)\n        if not inside.all():\n            codes[~inside] = OUTSIDE\n",
        "(self.dtype) % self.attribute.size\n",
        "tests/release/test_counts.py",
    ),
    bug(
        "the digest of tables has no key",
        DIGEST,
        "found = hmac.new(key, digestmod=hashlib.sha256)",
        'found = hmac.new(b"", digestmod=hashlib.sha256)',
        f"{PROCEDURE}::test_digests_need_the_key_of_the_ledger_and_are_in_no_result",
    ),
    bug(
        "the digest of columns has no key",
        DIGEST,
        "            key, _table(counts.schema, (name,), tables[name,]), hashlib.sha256\n",
        '            b"", _table(counts.schema, (name,), tables[name,]), hashlib.sha256\n',
        f"{PROCEDURE}::test_digests_need_the_key_of_the_ledger_and_are_in_no_result",
    ),
    bug(
        "an error shows a value of the records",
        ENCODING,
        "    except ValueError:\n        return None",
        '    except ValueError:\n        raise ValueError(f"{text!r} is no number") from None',
        "tests/release/test_counts.py::test_no_error_shows_a_value",
    ),
    bug(
        "a complaint shows an identifier",
        PEOPLE,
        'raise DataError(f"{what} has numbers that are not whole; give identifiers as text")',
        'raise DataError(f"{what} has numbers that are not whole, such as {numbers[0]}")',
        "tests/release/test_counts.py::test_no_error_shows_a_value",
    ),
    # counts of parts
    bug(
        "a part is added twice",
        COUNTS,
        "            if again := set(one.shards) & set(two.shards):\n",
        "            if again := set():\n",
        f"{PARTS}::test_no_part_is_added_twice",
    ),
    bug(
        "a cap of rows per person spans parts",
        COUNTS,
        "        if self.cap is not None and not split_by_person:\n",
        "        if False:\n",
        f"{PARTS}::test_a_cap_spans_parts_only_where_they_are_split_by_person",
    ),
    bug(
        "a file of counts may be read by others",
        "engine/release/records/counts_file.py",
        "error=DataError, mode=0o600)",
        "error=DataError)",
        f"{PARTS}::test_a_file_is_for_its_owner_alone_and_replaces_nothing",
    ),
    bug(
        "tables of different records are taken from a file",
        "engine/release/records/counts_file.py",
        "int(table.sum()) != records or not agree",
        "False",
        f"{PARTS}::test_files_of_counts_that_are_wrong_are_refused",
    ),
    bug(
        "only the first of many files is asked for its columns",
        "engine/release/records/files.py",
        "    for file in _found(path):\n",
        "    for file in _found(path)[:1]:\n",
        "tests/release/test_counted.py",
    ),
    bug(
        "a column of counts is counted row by row",
        "engine/release/records/counted.py",
        "    if unknown:\n",
        "    if False:\n",
        "tests/release/test_counted.py",
    ),
    bug(
        "row groups are read together",
        "engine/release/records/parquet.py",
        "row_groups=[group], columns=list(names))\n            for group in range(metadata.num_row_groups)\n",
        "columns=list(names))\n            for _ in range(1)\n",
        "tests/release/test_sources.py::test_row_groups_are_read_one_after_the_other",
    ),
    bug(
        "packed batches of any size are unfolded",
        "engine/release/records/packed.py",
        "        if held + unfolded > UNFOLDED_BYTES:\n",
        "        if False:\n",
        "tests/release/test_sources.py::test_arrow_files_that_unfold_to_too_much_are_refused_before_they_do",
    ),
    bug(
        "what is collected passes for known in the curator's check",
        "engine/release/fit.py",
        "replace(attribute, other=None, missing=None, clip=False)",
        "attribute",
        "tests/databases/test_fit.py::test_what_is_collected_is_not_known",
    ),
    bug(
        "Arrow datasets are unfolded unseen",
        "engine/release/records/sources.py",
        "isinstance(fragment.format, IpcFileFormat)",
        "False",
        "tests/release/test_sources.py::test_arrow_files_that_unfold_to_too_much_are_refused_before_they_do",
    ),
    bug(
        "batches are read from wherever an Arrow file's end says",
        "engine/release/records/packed.py",
        "_listed(bytes_of, name) if is_arrow_file(file) else _streamed(bytes_of)",
        "_streamed(bytes_of)",
        "tests/release/test_sources.py::test_an_arrow_file_whose_end_names_batches_that_were_not_looked_at_is_refused",
    ),
    bug(
        "a decimal with zeros at its end meets no label",
        "engine/release/records/encoding.py",
        '        return shortest if "." in digits and Decimal(shortest) == value else digits\n',
        "        return str(value)\n",
        "tests/release/test_counts.py::test_a_decimal_meets_the_label_of_the_same_number",
    ),
    bug(
        "a database takes texts for equal that are not",
        "engine/release/records/database/recoding.py",
        "_chosen(in_bytes(column), {text.encode().hex().upper(): code for",
        "_chosen(column, {text: code for",
        "tests/databases/test_duckdb.py::test_texts_are_the_same_there_only_when_their_bytes_are",
    ),
    bug(
        "a database counts refused rows",
        "engine/release/records/database/grouped.py",
        "    good = table.filter(table[_GOOD]) if tally.rows_refused else table\n",
        "    good = table\n",
        "tests/databases/test_duckdb.py::test_all_tables_are_those_that_are_counted_here",
    ),
    bug(
        "rows of Spark travel through pandas",
        "engine/release/records/sources.py",
        "    if is_spark_table(data):\n",
        "    if False:\n",
        "tests/databases/test_spark.py::test_rows_that_no_rule_there_fits_travel_as_they_are",
    ),
    bug(
        "a database keeps all rows of a person",
        "engine/release/records/database/grouped.py",
        "    light = sized.filter(sized[_ROWS] <= cap.rows)\n",
        "    light = sized\n",
        "tests/databases/test_duckdb.py::test_the_cap_of_rows_per_person_keeps_the_same_rows",
    ),
)
