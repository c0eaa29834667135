"""Post-processing: consistent non-negative tables, uncertainty and synthetic records."""

from engine.postprocess.published_tables import publish
from engine.postprocess.uncertainty import QualityRule, uncertainty
from engine.postprocess.utility_checks import AcceptanceRule, acceptance

__all__ = [
    "AcceptanceRule",
    "QualityRule",
    "acceptance",
    "publish",
    "uncertainty",
]
