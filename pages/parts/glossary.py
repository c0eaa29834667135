"""Terms of the app with one-sentence explanations, for tooltips and the glossary of Learn."""

from __future__ import annotations

from pages.parts.shell.budgets import APPROX, MU, PCOST, PURE, RHO, UNITS

TERMS = {
    "Attribute": "A column of the records with a known list of values, such as sex or age in years.",
    "Bound": "An error that no matrix mechanism of the same cost can be below, whatever it measures.",
    "Budget": "How much a release may reveal about one person; it is stated in one of several units.",
    "Cell": "One value of an attribute, or one combination of values of several attributes.",
    "Center": "Weights with sum 1 that divide a query between a table and its smaller tables.",
    "Cumulative table": "Counts of the records up to each value, such as age below 20, 30 and 40.",
    "Epsilon, delta": UNITS[APPROX],
    "Gap": "How much an error exceeds the bound, in percent: the most that could still be improved.",
    "Interval": "A range that contains the true count in a stated share of releases, usually 95%.",
    "Largest error": "Standard error of the least accurate query, in counts.",
    "Ledger": "A file that records every budget and everything that was spent of it.",
    "Look": "The first measurement of a two-stage release, which all options share.",
    "Mechanism": "A method that decides what is measured and how much noise is added.",
    "mu": UNITS[MU],
    "pcost": UNITS[PCOST],
    "Pure epsilon": UNITS[PURE],
    "Query": "A number that is counted from the records, such as the women aged 20 to 29.",
    "Rehearsal": "A release of simulated or public records: free, and not for publication.",
    "Release": "One random draw of all noisy answers, paid from the budget of a dataset.",
    "Remainder": "The second measurement of a two-stage release, which completes the chosen option.",
    "rho": UNITS[RHO],
    "Schema": "The attributes and their values. It is public; records are not read for it.",
    "Standard error": "Typical size of the noise in an answer, in counts.",
    "Strategy": "The numbers that are measured with noise; the answers are computed from them.",
    "Table": "A set of attributes with its queries.",
    "Typical error": "Root of the mean squared standard error over all queries (RMSE), in counts.",
    "Unit of privacy": "What the noise hides: one row, or all rows of a person up to a maximum.",
    "Workload": "All tables to be published, with their weights.",
}


def meaning(term: str) -> str:
    """Return the explanation of a term.

    >>> meaning("Workload")
    'All tables to be published, with their weights.'
    """
    return TERMS[term]
