"""Bugs of crashes: what is on the disk before what, and how a release goes on that broke off."""

from tests.mutations.planting import bug

FOLDER = "engine/release/ledger"
CHAIN, LEDGER, RESULTS = f"{FOLDER}/chain.py", f"{FOLDER}/ledger.py", f"{FOLDER}/results.py"
KEYS, JOURNAL, MEASURE = f"{FOLDER}/keys.py", f"{FOLDER}/journal.py", "engine/release/measure.py"
CRASHES, KILLS = "tests/release/ledger/test_crashes.py", "tests/crashes/test_journal.py"

BUGS = (
    # power cuts
    bug(
        "commits do not wait for the disk",
        CHAIN,
        '"synchronous=EXTRA"',
        '"synchronous=OFF"',
        f"{CRASHES}::test_a_commit_waits_for_the_disk",
    ),
    bug(
        "a new ledger may be lost in a power cut",
        CHAIN,
        "    sync_folder(path.parent)\n",
        "",
        f"{CRASHES}::test_a_new_ledger_is_in_its_folder_after_a_power_cut",
    ),
    bug(
        "a result is not on the disk when it is named",
        RESULTS,
        "        os.fsync(self.file.fileno())\n",
        "",
        f"{CRASHES}::test_a_result_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_row",
    ),
    bug(
        "the name of a result is not on the disk",
        RESULTS,
        "        sync_folder(target.parent)\n",
        "",
        f"{CRASHES}::test_a_result_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_row",
    ),
    bug(
        "the folder of results is not on the disk",
        RESULTS,
        "        sync_folder(folder.parent)\n",
        "",
        f"{CRASHES}::test_a_result_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_row",
    ),
    bug(
        "a key is not on the disk when it is named",
        KEYS,
        "            os.fsync(new.fileno())\n",
        "",
        f"{CRASHES}::test_a_key_is_on_the_disk_before_it_has_its_name",
    ),
    # the journal of a release
    bug(
        "the key of the noise stays after the save",
        MEASURE,
        "        # with its key and the result anyone could take the noise away\n        own.remove()\n",
        "",
        f"{KILLS}::test_after_a_kill_the_same_call_ends_the_release_and_is_charged_once",
    ),
    bug(
        "a key that a crash left after the save stays",
        LEDGER,
        "        remove_ended(self.path, self.unfinished)\n",
        "",
        f"{KILLS}::test_what_was_kept_without_a_spend_goes_with_the_next_opening",
    ),
    bug(
        "the key of a run that waits for its result goes",
        LEDGER,
        "return set(book.spends) - set(book.saved)",
        "return set(book.saved)",
        f"{KILLS}::test_after_a_kill_the_same_call_ends_the_release_and_is_charged_once",
    ),
    bug(
        "other records end a release",
        JOURNAL,
        "if not hmac.compare_digest(self.digest, digest):",
        "if len(self.digest) != len(digest):",
        f"{KILLS}::test_other_records_do_not_end_a_release",
    ),
    bug(
        "every release has the same key",
        "engine/release/noise.py",
        "    return os.urandom(32)\n",
        "    return bytes(32)\n",
        f"{KILLS}::test_a_seed_is_new_for_every_release",
    ),
    bug(
        "a key that comes back makes the same noise for a second spend",
        JOURNAL,
        "self.place.name, self.digest, row_hash])",
        "self.place.name, self.digest])",
        f"{KILLS}::test_no_two_spends_share_their_bits",
    ),
    bug(
        "every request gets the same bits",
        JOURNAL,
        "            requests += 1\n",
        "            requests += 0\n",
        f"{KILLS}::test_no_two_spends_share_their_bits",
    ),
    bug(
        "what goes on after a crash draws from elsewhere",
        MEASURE,
        "write(file, receipt, drawn(bits()))",
        "write(file, receipt, drawn())",
        f"{KILLS}::test_the_noise_of_a_spend_is_the_same_however_often_its_run_is_killed",
    ),
    bug(
        "what goes on after a crash is charged again",
        MEASURE,
        "return book.spend(dataset=dataset, key=key,",
        "return book.spend(dataset=dataset, key=key + '|' * bool(book.find(key)),",
        f"{KILLS}::test_after_a_kill_the_same_call_ends_the_release_and_is_charged_once",
    ),
    bug(
        "a spend without its key gets a new one",
        JOURNAL,
        "        if spent():\n",
        "        if file is not None and spent():\n",
        f"{KILLS}::test_a_spend_without_a_journal_gets_no_new_one",
    ),
    bug(
        "a key may be lost in a power cut after the spend",
        JOURNAL,
        "            draft.path.unlink()\n            sync_folder(place.parent)\n",
        "            draft.path.unlink()\n",
        f"{KILLS}::test_a_journal_is_on_the_disk_before_the_spend",
    ),
    bug(
        "a living run is taken for a dead one",
        JOURNAL,
        "        if not locked(file):\n            raise _busy(place)\n",
        "",
        f"{KILLS}::test_a_run_at_work_is_left_alone_and_the_dead_one_is_not",
    ),
)
