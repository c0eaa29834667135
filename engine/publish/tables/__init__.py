"""Published tables: numbers >= 0, whole where asked, that agree with each other, from a measurement alone.

To touch: what tables teach each other is in `borrow`, how far one moves from its reference in `entropic`, the order of
both in `shrunk`, how well directions are known in `metric`; `joint` makes all agree without negative cells, `people`
draws records near them, `facts` keeps what is public, `acceptance` judges, `bootstrap` finds errors, `quality` flags.
"""

from engine.publish.tables.acceptance import AcceptanceRule, acceptance, acceptance_by_release, acceptance_on_records
from engine.publish.tables.bootstrap import simulated
from engine.publish.tables.entropic import reference
from engine.publish.tables.facts import keeping_facts
from engine.publish.tables.published import FITS, Published, PublishForecast, publish, publish_forecast
from engine.publish.tables.quality import REASONS, QualityRule
from engine.publish.tables.uncertainty import DRAWS, Uncertainty, uncertainty

__all__ = [
    "DRAWS",
    "FITS",
    "REASONS",
    "AcceptanceRule",
    "PublishForecast",
    "Published",
    "QualityRule",
    "Uncertainty",
    "acceptance",
    "acceptance_by_release",
    "acceptance_on_records",
    "keeping_facts",
    "publish",
    "publish_forecast",
    "reference",
    "simulated",
    "uncertainty",
]
