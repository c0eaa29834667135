"""Published tables: numbers >= 0, whole where asked, that agree with each other, from a measurement alone.

To touch: what tables teach each other is in `borrow`, how far one moves from its reference in `entropic`, the order of
both in `shrunk`; `joint` makes all of them agree without negative cells.  No record is read here.
"""

from engine.publish.tables.published import FITS, Published, publish
from engine.publish.tables.simulate import simulated

__all__ = ["FITS", "Published", "publish", "simulated"]
