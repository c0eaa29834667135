"""A picture of ways to publish, side by side at several budgets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from engine.figures.charts import GREY, Picture, fitting, framed, in_pcost
from engine.figures.looks import SYMBOLS, mechanism_look
from engine.privacy import Budget

OPEN = "-open"  # unbiased, in plotly's words for a mark that is not filled


def standing_picture(
    rows: pd.DataFrame,
    turns: pd.DataFrame,
    words: Sequence[str],
    budget: Budget,
    say: Callable[[Budget], str] = in_pcost,
) -> Picture:
    """Errors of ways to publish at several budgets, a line each; crosses where the order changes.

    ``rows``, ``turns`` and ``words`` are those of a `PublishedComparison`.
    """
    done = rows[rows["status"] == "ok"]
    pcosts = sorted(set(done["pcost"]))
    said = {pcost: say(budget.at(pcost)) for pcost in pcosts}
    figure, table, lines = go.Figure(), pd.DataFrame({"budget": [said[p] for p in pcosts]}), {}
    for place, (way, own) in enumerate(done.groupby("way", sort=False)):
        label, kind = str(own["label"].iloc[0]), str(own["kind"].iloc[0])
        seen, text = mechanism_look(label), fitting([str(way)])[0]
        color, symbol = (seen.color, seen.symbol) if label else (GREY, SYMBOLS[place % len(SYMBOLS)])
        own = own.set_index("pcost").sort_index()
        lines[way] = own["error"]
        table[f"{way} ({kind})"] = [float(own["error"].get(p, np.nan)) for p in pcosts]
        figure.add_scatter(
            x=list(own.index),
            y=own["error"],
            error_y={"type": "data", "array": own["spread"], "thickness": 1},
            mode="lines+markers",
            name=f"{text} ({kind})",
            line={"color": color, "dash": "solid" if label and kind != "unbiased" else "dot"},
            marker={"color": color, "symbol": symbol + (OPEN if kind == "unbiased" else ""), "size": 9},
            customdata=[said[p] for p in own.index],
            hovertemplate=f"{text} ({kind})<br>%{{customdata}}: %{{y:.2%}} of the counts<extra></extra>",
        )
    if len(turns):
        at = [
            np.exp(np.interp(np.log(t["pcost"]), np.log(lines[t["below"]].index), np.log(lines[t["below"]])))
            for _, t in turns.iterrows()
        ]
        figure.add_scatter(
            x=turns["pcost"],
            y=at,
            mode="markers",
            name="the order changes",
            marker={"symbol": "x-thin", "size": 12, "line": {"width": 2, "color": "black"}},
            hovertext=[f"{t['below']} below, {t['above']} above" for _, t in turns.iterrows()],
            hoverinfo="text",
        )
    figure.update_xaxes(title="budget", type="log", tickvals=pcosts, ticktext=[said[p] for p in pcosts])
    figure.update_yaxes(title="share of the counts that is missed", type="log", tickformat=".2%")
    figure.update_layout(height=440, legend={"orientation": "h", "y": -0.25})
    return Picture(
        title="Published error, simulated",
        figure=framed(figure),
        table=table,
        alt=words[0] if words else "At all these budgets the order is the same, or too close to call.",
        note="Means of rehearsals on the reference, with their standard errors: other records have other errors. Those "
        "of unbiased answers alone are proven; what is fitted is biased.",
    )
