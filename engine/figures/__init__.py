"""Pictures of engine results: pure functions that return a figure with its table, alt text and note.

To touch: shared looks are in `charts`; a picture on the page of that name is in `compare`, `choice`, `release`...
"""

from engine.figures.blocks import block_names, factor_names, gram_picture, on_one_scale, rows_picture
from engine.figures.charts import BLUE, GREEN, GREY, ORANGE, Picture, fitting, framed, heat_map
from engine.figures.choice import (
    group_text,
    least_total,
    receipt_text,
    rule_text,
    saved_text,
    shares_above_picture,
    shares_picture,
    snr_picture,
    space_table,
    spend_table,
)
from engine.figures.compare import (
    budgets_picture,
    costs,
    effort_picture,
    ranking_picture,
    ratio_picture,
    refused,
    spreads_picture,
    where_picture,
)
from engine.figures.comparison_page import comparison_page
from engine.figures.errors import error_picture, has_map, pairs_picture, spread_picture
from engine.figures.plans import (
    breakdown_picture,
    budget_picture,
    distance_picture,
    interval_picture,
    quality_picture,
)
from engine.figures.plot import plot
from engine.figures.questions import cells_in_box, domain_picture, family_picture, plane_picture, range_picture
from engine.figures.release import answers_picture, coverage_picture, published_picture, spending_picture
from engine.figures.standing import standing_picture

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "Picture",
    "answers_picture",
    "block_names",
    "breakdown_picture",
    "budget_picture",
    "budgets_picture",
    "cells_in_box",
    "comparison_page",
    "costs",
    "coverage_picture",
    "distance_picture",
    "domain_picture",
    "effort_picture",
    "error_picture",
    "factor_names",
    "family_picture",
    "fitting",
    "framed",
    "gram_picture",
    "group_text",
    "has_map",
    "heat_map",
    "interval_picture",
    "least_total",
    "on_one_scale",
    "pairs_picture",
    "plane_picture",
    "plot",
    "published_picture",
    "quality_picture",
    "range_picture",
    "ranking_picture",
    "ratio_picture",
    "receipt_text",
    "refused",
    "rows_picture",
    "rule_text",
    "saved_text",
    "shares_above_picture",
    "shares_picture",
    "snr_picture",
    "space_table",
    "spend_table",
    "spending_picture",
    "spread_picture",
    "spreads_picture",
    "standing_picture",
    "where_picture",
]
