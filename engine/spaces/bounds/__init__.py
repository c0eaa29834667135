"""Lower bounds that hold for every matrix mechanism whatsoever, not only for those of one class.

`independent` alone is for one class: plans that measure residual spaces independently.

To touch: `best` is the entrance and says how; `links` reads what is asked, `excitations` and `alike` value it;
`compositions` and `shares` are for attributes that are all asked alike.
"""

from engine.spaces.bounds.best import best_bound, global_bound
from engine.spaces.bounds.independent import independent_bound
from engine.spaces.bounds.whole import domain_gram, exact_bound, small_domain, whole_problem

__all__ = [
    "best_bound",
    "domain_gram",
    "exact_bound",
    "global_bound",
    "independent_bound",
    "small_domain",
    "whole_problem",
]
