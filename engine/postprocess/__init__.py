"""Post-processing: consistent non-negative tables, uncertainty and synthetic records."""

from engine.postprocess.published_tables import publish
from engine.postprocess.uncertainty import AcceptanceRule, QualityRule, acceptance, uncertainty

__all__ = [
    "AcceptanceRule",
    "QualityRule",
    "acceptance",
    "publish",
    "uncertainty",
]
