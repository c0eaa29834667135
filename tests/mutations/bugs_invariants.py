"""Bugs of exact totals: what they cost, that they are kept, who may disagree, and how the guarantee is named."""

from tests.mutations.planting import bug

TABLES = "engine/publish/tables"
READ, RELEASED, PUBLISHED = (f"tests/{room}/test_invariants.py" for room in ("workload", "release", "publish"))
FITS = f"{PUBLISHED}::test_fits_and_records_keep_exact_totals"
NOTHING = f"{RELEASED}::test_what_is_exact_costs_nothing_and_has_no_variance"
DIGIT = f"{RELEASED}::test_releases_keep_exact_totals_to_the_digit"
NAMED = f"{PUBLISHED}::test_certificate_report_and_check_name_the_weaker_guarantee"
LEDGER = f"{RELEASED}::test_the_ledger_names_the_guarantee_of_all_releases_together"
REFUSED = f"{RELEASED}::test_records_that_disagree_are_refused_before_anything_is_spent"

BUGS = (
    bug(
        "budget is spent on what is exact",
        "engine/spaces/decomposition.py",
        "in asked_spaces(spreading, looks, schema.exact_places):",
        "in asked_spaces(spreading, looks):",
        NOTHING,
    ),
    bug(
        "a table is exact as soon as it shares an attribute with an exact one",
        "engine/workload/schema.py",
        "return any(asked <= own for own in self._exact)",
        "return any(asked & own for own in self._exact)",
        f"{READ}::test_exact_totals_come_back_from_every_file",
        f"{RELEASED}::test_nothing_beyond_exact_totals_is_told",
    ),
    bug(
        "exact totals come back with the rounding of their pieces",
        "engine/plans/answers.py",
        "        if schema.is_exact(attributes):\n            return schema.exact_table",
        "        if False:\n            return schema.exact_table",
        DIGIT,
    ),
    bug(
        "larger tables do without what is exact",
        "engine/plans/answers.py",
        "        for space in schema.exact_spaces:\n",
        "        for space in ():\n",
        DIGIT,
    ),
    bug(
        "records that disagree with exact totals are released",
        "engine/release/measure.py",
        "    check_invariants(counts, plan.schema)\n    records",
        "    records",
        REFUSED,
    ),
    bug(
        "records that disagree are rehearsed",
        "engine/release/measure.py",
        "        check_invariants(counts, plan.schema)\n        if intake",
        "        if intake",
        REFUSED,
    ),
    bug(
        "only the first exact table is compared with the records",
        "engine/release/intake.py",
        "wrong = [names for names in told if not",
        "wrong = [names for names in told[1:] if not",
        REFUSED,
    ),
    bug(
        "the ledger does not hear of exact totals",
        "engine/release/measure.py",
        "    if (exact := plan.schema.exact_text) and not book.notes(kind=kind, key=key):\n        book.note",
        "    if False and (exact := plan.schema.exact_text):\n        book.note",
        LEDGER,
    ),
    bug(
        "exact totals of one dataset are told of all",
        "engine/release/ledger/balance.py",
        "exact=self.exact.get(dataset, ()),",
        "exact=tuple(text for own in self.exact.values() for text in own),",
        LEDGER,
    ),
    bug(
        "the certificate gives the plain meaning",
        "engine/publish/package.py",
        '"meaning": plan.schema.meaning(budget),',
        '"meaning": budget.describe(),',
        NAMED,
    ),
    bug(
        "the report gives the plain promise",
        "engine/publish/package.py",
        "html.escape(plan.schema.promise(plan.budget))",
        "html.escape(plan.budget.promise)",
        NAMED,
    ),
    bug(
        "the promise beside exact totals is that of rows that come or go",
        "engine/workload/invariants.py",
        "budget.at(budget.replace_one_pcost)",
        "budget.at(budget.pcost)",
        f"{READ}::test_the_plain_promise_is_not_given_beside_exact_totals",
    ),
    bug(
        "a bound for mechanisms without exact totals is told beside them",
        "engine/plans/solved.py",
        "        elif exact:\n",
        "        elif False:\n",
        NOTHING,
    ),
    bug(
        "mechanisms of whole tables leave exact totals out in silence",
        "engine/mechanisms/base.py",
        "if workload.schema.invariants and not self.keeps_invariants:",
        "if False:",
        f"{RELEASED}::test_mechanisms_keep_exact_totals_or_say_why_not",
    ),
    bug(
        "totals that agree in pairs are taken to agree together",
        "engine/workload/invariants.py",
        "    if found.x is None:\n        raise _contradiction(names)",
        "    if found.x is None:\n        return np.ones(possible.shape)",
        f"{READ}::test_totals_that_agree_in_pairs_and_not_together_are_refused",
    ),
    bug(
        "fits move exact contrasts",
        f"{TABLES}/joint.py",
        "free = inside in sums and inside not in exact",
        "free = inside in sums",
        FITS,
    ),
    bug(
        "even tables do not keep exact totals",
        f"{TABLES}/evidence.py",
        "plan.schema.even_share(own)",
        "plan.schema.possible_share(own)",
        FITS,
    ),
    bug(
        "whole records come near exact totals only",
        f"{TABLES}/facts.py",
        "        if margins and int(margins[0][1].sum()) == people:\n",
        "        if False:\n",
        FITS,
    ),
    bug(
        "the open form leaves exact totals out",
        "engine/publish/open_form.py",
        "for number, space in enumerate(exact, start=len(told) + 1):",
        "for number, space in enumerate((), start=len(told) + 1):",
        f"{PUBLISHED}::test_the_open_form_holds_exact_totals",
    ),
)
