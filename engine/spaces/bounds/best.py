"""The best bound that a short search gives: on all cells where the domain is small, by product weights elsewhere.

For any probability weights mu on the cells of the whole domain, D = diag(mu), no strategy of privacy cost 1 has a
smaller weighted squared error than |W D^(1/2)|_*^2, the squared nuclear norm.  Here mu is a product of weights of the
attributes, or symmetric in them, and the norm is evaluated on no more than small matrices:

    whole        all cells at once, where the domain is small
    links        attributes whose best weights are uniform, in closed form; the others with what is asked of them
    frames       one attribute: some functions of its cells are looked at closely, the rest is a factor (a pinching)
    excitations  any workload: dense on sets of attributes that leave their mean
    alike        attributes that are asked alike: the symmetric group parts the matrix into small sectors
    products     products of any order of such attributes, which two states each part like spins
    climb        the search for the weights
    compositions attributes that are asked alike, under weights that are no product
    shares       the search for these, whose limit is the optimum of all matrix mechanisms
    norms        nuclear norms that rounding cannot lift

Dropping rows or blocks makes a nuclear norm smaller, so whatever is too large to look at counts as nothing, and the
bound holds however early a search ends.  Source: our own; the bound for one mu is the dual of the matrix mechanism.
"""

from __future__ import annotations

import time
from functools import lru_cache

from engine.errors import LimitExceeded
from engine.spaces.bounds.climb import best_norm
from engine.spaces.bounds.links import in_links
from engine.spaces.bounds.norms import proved
from engine.spaces.bounds.whole import exact_bound, small_domain
from engine.threads import threads_for
from engine.workload import Workload

SECONDS = 20.0  # what a search may take unless it is told otherwise
STEPS = 60
MOST_CELLS = 2_000  # of one attribute, up to which a bound is searched
KEPT = 64  # bounds of workloads


def global_bound(workload: Workload, law: str = "gaussian", *, seconds: float = SECONDS, steps: int = STEPS) -> float:
    """Return a weighted squared error, in counts^2 at privacy cost 1, that no matrix mechanism can go below.

    Guarantee: true in floating point, see `norms`; the best found in the time, which a last large matrix may stretch.

    Parameters
    ----------
    law : "gaussian", or "laplace" at epsilon 1.
    seconds : what the search may take; the best so far is returned.
    steps : of the search for weights; with 0 only some good weights are tried, always the same ones.

    >>> from engine.workload import Attribute, Schema
    >>> workload = Workload(Schema([Attribute.of_size("age", 3)])).add("age", "marginal")
    >>> round(global_bound(workload), 6)  # noise on every cell is optimal
    3.0
    """
    deadline = time.monotonic() + seconds
    with threads_for(1):  # many small products, except where the matrices are known to be large
        return proved(best_norm(in_links(workload), deadline, steps), law)


@lru_cache(maxsize=KEPT)
def best_bound(workload: Workload, law: str = "gaussian") -> tuple[float, str]:
    """Return the best such bound, and how it was found, in words; kept, because it takes seconds.

    Raises
    ------
    LimitExceeded : an attribute has too many cells to search a bound in short time.
    """
    if not any(g.is_weighted for g in workload.groups):
        return 0.0, "no query has a weight"
    largest = max((n for g in workload.groups for n in g.sizes), default=1)
    if largest > MOST_CELLS:
        raise LimitExceeded(
            f"An attribute has {largest:,} cells; a bound for all mechanisms is searched up to {MOST_CELLS:,}. Use "
            "coarser cells."
        )
    if small_domain(workload):
        return exact_bound(workload, law=law), "the dual of the problem on all cells at once"
    return global_bound(workload, law), "weights of the cells, from the dual of the problem"
