"""Post-processing: consistent non-negative tables, uncertainty and synthetic records."""

from engine.postprocess.published_tables import publish
from engine.postprocess.uncertainty import QualityRule, uncertainty

__all__ = [
    "QualityRule",
    "publish",
    "uncertainty",
]
