"""A black-box audit of releases: how much do their answers alone tell of one record?

    python -m tests.audit [--runs 2000]

A plan is released many times, each time with noise of its own and a row on a ledger, from a table and from its
neighbour, which has one record more.  Half of the answers teach a linear test which table they are from; the other half
say how often it errs.  With exact (Clopper-Pearson) bounds on the power and the false alarms of the test,

    mu >= Phi^-1(power, from below) - Phi^-1(false alarms, from above),        rho >= mu^2 / 2,

which passes the stated rho at most once in a thousand audits: noise on a grid of 2^-30 of its scale is Gaussian to far
less than so many releases tell.  Of releases with a planted bug, the audit has to find more than was stated.
"""
