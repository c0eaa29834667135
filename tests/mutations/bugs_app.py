"""Bugs of the running app: who may drive it, which files it touches, what sessions are told and leave behind."""

from tests.mutations.planting import bug

GUARD, SERVE, PLACES = "pages/parts/shell/guard.py", "pages/parts/jobs/serve.py", "pages/parts/shell/places.py"
WORK, PRIVATE, WATCH = "pages/parts/jobs/work.py", "pages/parts/jobs/private.py", "pages/parts/jobs/watch.py"
FOLDERS, DOWNLOAD = "pages/parts/release/folders.py", "pages/parts/release/download_view.py"
DATASET, KEPT, PLANS = "pages/parts/release/dataset_form.py", "pages/parts/jobs/kept.py", "pages/parts/jobs/plans.py"
ASKED, SESSIONS, FILES = "tests/server/test_guard.py", "tests/server/test_sessions.py", "tests/app/test_files.py"
JOBS, PLANNED, SERVED = (f"tests/app/jobs/test_{name}.py" for name in ("jobs", "plans", "serve"))
RELEASE, LEDGERS = (f"tests/app/release/test_{name}.py" for name in ("release", "ledgers"))
CLICKS = "tests/app/shell/test_clicks.py"
NO_KEY = f"{ASKED}::test_nothing_is_answered_without_the_key"
STRANGER = f"{ASKED}::test_another_host_or_origin_is_refused_even_with_the_key"
LINE = f"{ASKED}::test_the_websocket_opens_for_its_own_page_alone"
KINDS = 'scope["type"] not in ("http", "websocket"):'
GONE = f"{JOBS}::test_the_private_folder_is_for_its_owner_and_what_dead_servers_left_is_swept"

BUGS = (
    bug("the server has no guard", "app.py", "[Middleware(guard.Guard, token=token), ", "[", NO_KEY),
    bug("one page is open to everybody", GUARD, KINDS, f'{KINDS[:-1]} or scope.get("path") == "/guide":', NO_KEY),
    bug("the metrics are open to everybody", GUARD, KINDS, f'{KINDS[:-1]} or "metrics" in scope["path"]:', NO_KEY),
    bug("the line of a page has no guard", GUARD, KINDS, 'scope["type"] != "http":', LINE),
    bug("no key is asked for", GUARD, "if not reason and not self._knows(told):", "if False:", NO_KEY),
    bug(
        "any host is answered",
        GUARD,
        '    if name not in [known.lower() for known in config.get_option("server.allowedHosts")]:\n',
        "    if False:\n",
        STRANGER,
    ),
    bug("any port of this machine is answered", GUARD, "return port == ours or", "return True or", STRANGER),
    bug(
        "pages of other origins drive the app",
        GUARD,
        'origin.lower() != f"{urlsplit(origin).scheme}://{host}":',
        "False:",
        LINE,
    ),
    bug(
        "any https page drives the app",
        GUARD,
        'origin.lower() != f"{urlsplit(origin).scheme}://{host}":',
        'origin.lower() not in (f"{urlsplit(origin).scheme}://{host}", "https://localhost"):',
        STRANGER,
    ),
    bug(
        "a timer of a page that was left empties the next one",
        SERVE,
        "        timers.wait_for_rest()\n",
        "",
        f"{SESSIONS}::test_a_timer_of_the_page_that_was_left_is_not_heard",
    ),
    bug("a change needs no origin", GUARD, "        if not safe:\n", "        if False:\n", STRANGER),
    bug("pages in a frame of another site", GUARD, 'in ("cross-site", "same-site")', 'in ("cross-site",)', STRANGER),
    bug(
        "other sites may draw the app in a frame",
        GUARD,
        "frame-ancestors 'none'",
        "frame-ancestors *",
        f"{ASKED}::test_every_answer_forbids_frames_and_guessing",
    ),
    bug(
        "the cookie comes along from other sites",
        GUARD,
        'httponly=True, samesite="strict"',
        'httponly=True, samesite="lax"',
        f"{ASKED}::test_the_printed_address_is_exchanged_for_a_strict_cookie",
    ),
    bug(
        "the key stays in the address",
        GUARD,
        'for name, value in asked if name != "token"]',
        "for name, value in asked]",
        f"{ASKED}::test_the_printed_address_is_exchanged_for_a_strict_cookie",
    ),
    bug(
        "files anywhere may be touched",
        FOLDERS,
        "    if below is None:\n",
        "    if below is None:\n        return place\n    if below is None:\n",
        f"{FILES}::test_ledgers_are_made_below_the_folders_alone",
    ),
    bug(
        "hidden files may be touched",
        FOLDERS,
        'if any(part.startswith(".") for part in below.parts):',
        "if False:",
        f"{FILES}::test_ledgers_are_made_below_the_folders_alone",
    ),
    bug(
        "a link leads to records elsewhere",
        FOLDERS,
        "    if place.is_symlink():\n",
        "    if False:\n",
        f"{FILES}::test_records_are_read_below_the_folders_alone",
    ),
    bug(
        "answers are written over anything",
        "engine/publish/target.py",
        "    if not _is_answers(target):\n",
        "    if False:\n",
        f"{FILES}::test_nothing_that_is_there_can_be_written_over",
    ),
    bug(
        "answers are replaced without a word",
        DOWNLOAD,
        "return typed.strip() == place.name, True",
        "return True, True",
        f"{FILES}::test_answers_are_replaced_only_by_a_typed_name",
    ),
    bug(
        "a download that fails tells its path",
        DOWNLOAD,
        "    with _in_words(), tempfile.TemporaryDirectory() as folder:\n        return write_answers",
        "    with tempfile.TemporaryDirectory() as folder:\n        return write_answers",
        f"{FILES}::test_a_download_that_fails_says_so_without_a_path",
    ),
    bug(
        "logs tell the values of an error",
        SERVE,
        "            record.exc_info = record.exc_text = None\n",
        "",
        f"{SERVED}::test_logs_name_the_kind_and_the_place_of_an_error_and_no_value",
    ),
    bug(
        "rehearsals outlive their session",
        WATCH,
        'scope="session", on_release=work.leave, show',
        'scope="session", show',
        f"{SESSIONS}::test_a_rehearsal_goes_with_its_session",
    ),
    bug(
        "what a killed server left stays for good",
        SERVE,
        "        private.sweep()\n",
        "",
        f"{SESSIONS}::test_a_rehearsal_goes_with_its_session",
    ),
    bug("the folder of a living server is swept", PRIVATE, " and not _is_used(place):", ":", GONE),
    bug(
        "a click takes what was chosen before",
        "pages/parts/shell/clicks.py",
        "if any(now.get(name, value) != value for name, value in held.items()):",
        "if False:",
        f"{CLICKS}::test_a_rehearsal_has_the_size_typed_just_before",
    ),
    bug(
        "what is pressed before it was shown is spent",
        "pages/parts/shell/clicks.py",
        "        if spends:\n",
        "        if False:\n",
        f"{CLICKS}::test_nothing_is_spent_on_other_records_than_were_shown",
    ),
    bug(
        "a button that is gone does its work when it comes back",
        "pages/parts/shell/clicks.py",
        "        if drawn:\n",
        "        if False:\n",
        f"{CLICKS}::test_a_button_that_is_gone_has_nothing_to_do_when_it_comes_back",
    ),
    bug(
        "what memory ends is a damaged file",
        "engine/release/records/apart/asking.py",
        "    if code in ENDED:\n",
        "    if False:\n",
        "tests/release/records/apart/test_sheets.py::test_a_forgotten_cell_far_away_is_told_and_ends_nothing",
    ),
    bug(
        "an upload stays when its page is left",
        "pages/parts/shell/state.py",
        "            context.uploaded_file_mgr.remove_session_files(context.session_id)\n",
        "            pass\n",
        f"{SESSIONS}::test_an_upload_leaves_memory_with_its_page_and_with_its_session",
    ),
    bug(
        "copies of records stay when the work was killed",
        WORK,
        "        _remove(job.copies)\n",
        "",
        f"{JOBS}::test_copies_of_records_go_when_the_work_ends_however_it_ends",
    ),
    bug(
        "work without end",
        WORK,
        "        if busy and busy + job.share > WORKERS:\n            return\n",
        "",
        f"{JOBS}::test_as_many_workers_as_cores_and_the_rest_in_line",
    ),
    bug(
        "work that spends is killed",
        WORK,
        "job.process is not None and not job.status.spends and",
        "job.process is not None and",
        f"{JOBS}::test_work_that_spends_is_asked_and_never_killed",
    ),
    bug(
        "a job is done before its result is there",
        WORK,
        'self.status = replace(self.status, state="done", result=content[0])',
        'self.status = replace(self.status, state="done"); time.sleep(0.05); '
        "self.status = replace(self.status, result=content[0])",
        f"{JOBS}::test_a_job_is_done_only_together_with_its_result",
    ),
    bug(
        "what happened to the rows is told to all who come",
        WATCH,
        "    known = state.only_here().get(ROWS)\n"
        "    if known is None or known[0] != key:\n        return\n"
        "    found = work.find(key)\n"
        "    if found is not None and found.done:\n"
        '        known = state.only_here()[ROWS] = (key, found.result["rows"])\n'
        "        work.forget(key)\n",
        "    found = work.find(key)\n"
        "    if found is None or not found.done:\n        return\n"
        '    known = (key, found.result["rows"])\n',
        f"{RELEASE}::test_what_happened_to_the_rows_is_told_once_and_nobody_else",
    ),
    bug(
        "all browsers are one",
        PLACES,
        "hashlib.sha256(found.encode()).hexdigest()[:32] if",
        "hashlib.sha256(b'').hexdigest()[:32] if",
        f"{SESSIONS}::test_nothing_of_a_session_is_told_to_another",
    ),
    bug(
        "a total is changed in the name of nobody",
        DATASET,
        "by=form.total_by.strip()",
        'by=form.total_by.strip() or "somebody"',
        f"{LEDGERS}::test_a_total_is_changed_with_a_name_and_a_reason",
    ),
    bug(
        "every guide shows the last one",
        "pages/guide.py",
        "lambda text=text: draw",
        "lambda: draw",
        "tests/app/test_guide.py::test_every_guide_is_one_tab_away",
    ),
    bug(
        "another budget is searched again",
        PLANS,
        "if (searched := kept.known(_searched(studio))) is not None:",
        "if (searched := kept.known(_searched(studio))) is not None and False:",
        f"{PLANNED}::test_another_budget_of_a_long_plan_is_neither_searched_nor_asked_for",
    ),
    bug(
        "plans are charged with what they share",
        KEPT,
        "{like: size(like), found: size(found, like)}",
        "{found: size(found)}",
        f"{PLANNED}::test_what_plans_share_is_counted_once",
    ),
    bug(
        "weights of single queries take no room",
        KEPT,
        "[made, *parts.values(), weights]",
        "[made, *parts.values()]",
        f"{PLANNED}::test_what_single_groups_hold_counts_too",
    ),
    bug(
        "centers of cumulative counts are not tuned",
        "engine/spaces/splits/pairs.py",
        '("marginal", "circular", "total")',
        '("marginal", "circular", "total", "prefix", "range")',
        "tests/spaces/splits/test_centers.py::test_figures",
    ),
    bug(
        "another budget makes every block anew",
        "engine/mechanisms/residual.py",
        "self._calibrated(strategies_of(made.blocks), ",
        "self._calibrated({space: block.factors for space, block in made.blocks.items()}, ",
        f"{PLANNED}::test_many_plans_of_many_groups_share_what_is_asked",
    ),
)
