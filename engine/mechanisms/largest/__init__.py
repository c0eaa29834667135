"""Plans for the largest variance where queries are products over single attributes.

To touch: `asked` says what every kind of group asks, `lines` has strategies on one attribute, `search` balances the
weights of all queries, `made` turns what it found into a plan with its proof, the same way after a search and from a
file.
"""

from engine.mechanisms.largest.asked import fits
from engine.mechanisms.largest.made import rebuilt
from engine.mechanisms.largest.search import Balanced, balanced, rounds

__all__ = ["Balanced", "balanced", "fits", "rebuilt", "rounds"]
