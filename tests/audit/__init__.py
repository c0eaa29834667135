"""Black-box audit of releases: a lower bound on rho from their answers.

    python -m tests.audit [--runs 2000]

A plan is released many times from a table and from its neighbour with one more record, each time
with fresh noise and a row in a ledger.  Half of the answers train a linear test that distinguishes
the tables; the other half estimate its errors.  With exact (Clopper-Pearson) bounds on the power
and the false alarms of the test,

    mu >= Phi^-1(lower bound of power) - Phi^-1(upper bound of false alarms),        rho >= mu^2 / 2.

The bound exceeds the stated rho in at most one of a thousand audits of a correct release.  (The
grid of the noise is so fine that the audit cannot detect it.)  For releases with a planted bug, the
bound must exceed the stated rho.
"""
