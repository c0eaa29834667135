"""Release: count, spend, draw noise, save; answers with intervals."""

from engine.release.ingest import Intake
from engine.release.measure import load_measurement, measure
from engine.release.measurement import Measurement, apply_group, quantile
from engine.release.noise import discrete_gaussian

__all__ = [
    "Intake",
    "Measurement",
    "apply_group",
    "discrete_gaussian",
    "load_measurement",
    "measure",
    "quantile",
]
