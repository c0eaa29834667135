"""Terms of the app with short explanations, for tooltips and the glossary of Learn."""

from __future__ import annotations

from pages.parts.shell.budgets import APPROX, MU, PCOST, PURE, RHO, UNITS

TERMS = {
    "Attribute": "A column of the records with a known list of values, such as sex or age in years.",
    "Bias": "Mean error of published numbers over many releases; unbiased answers have none.",
    "Bound": "Lower limit of the error of any method that adds noise to sums of counts at this budget.",
    "Budget": "How much published numbers may reveal about one person. More budget means less noise.",
    "Cap": "Largest number of rows of one person that are counted; further rows are dropped.",
    "Cell": "One value of an attribute, or one combination of values of several attributes.",
    "Center": "Weights of the values of an attribute, with sum 1, by which a total is split over them.",
    "Clipping": "Setting negative counts to zero, or numbers outside to the first or last bin.",
    "Cumulative table": "Counts of the records up to each value, such as age below 20, 30 and 40.",
    "Differential privacy": "A release is almost as likely with any one person's data as without.",
    "Epsilon, delta": UNITS[APPROX],
    "Gap": "How much an error exceeds the bound, in percent, rounded up: the most that could be improved.",
    "CV": "Coefficient of variation: standard error of a number divided by the number.",
    "Dataset": "A name in the ledger for one set of confidential records, which has a total budget.",
    "First measurement": "First of two: the noisy numbers that a coarse and a fine analysis share.",
    "Fourier": "A strategy of waves: weighted sums of all cells that rise and fall periodically.",
    "Identity": "The strategy that measures every cell once.",
    "Interval": "A range that contains the true count in a stated share of releases, usually 95%.",
    "Largest error": "Standard error of the least accurate query, in counts.",
    "Ledger": "A file with the total budget of every set of records and each amount spent from it.",
    "Mechanism": "A method that decides which numbers are measured and how much noise each one gets.",
    "mu": UNITS[MU],
    "Noise": "Random numbers added to counts, so that they reveal little about any one person.",
    "Piece": "The part of a query that a set of attributes adds to those of its smaller sets.",
    "pcost": UNITS[PCOST],
    "Optimal": "The strategy with the smallest typical error for the workload.",
    "Pure epsilon": UNITS[PURE],
    "Query": "A question with a count as its answer, such as the number of women aged 20 to 29.",
    "Rehearsal": "A test run on simulated or public records. It spends no budget.",
    "Residual space": "What a table adds to all tables of fewer of its attributes.",
    "Release": "One run on the confidential records, which draws the noise and spends budget.",
    "Remainder": "Second of two measurements: what the chosen analysis needs in addition to the first.",
    "rho": UNITS[RHO],
    "Schema": "The columns of the records and the values that each can have. It is always public.",
    "Standard error": "Standard deviation of the noise in an answer, in counts.",
    "Strategy": "The numbers that are measured with noise; the answers are computed from them.",
    "Table": "Counts by a set of attributes, such as sex by age: one number per combination of values.",
    "Tree": "The hierarchical strategy: it counts all records, then halves, quarters and so on, down to cells.",
    "Typical error": "Root of the mean squared standard error over all queries (RMSE), in counts.",
    "Unit of privacy": "What the noise hides: one row, or all rows of a person up to a maximum.",
    "Wavelet": "A strategy of the total and the differences between halves, quarters and so on.",
    "Weight": "Importance of a table when the budget is shared out: more weight, less noise.",
    "Workload": "The list of tables that will be published. A table can also count ranges.",
}


def meaning(term: str) -> str:
    """Return the explanation of a term.

    >>> meaning("Workload")
    'The list of tables that will be published. A table can also count ranges.'
    """
    return TERMS[term]
