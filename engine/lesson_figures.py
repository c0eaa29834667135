"""Pictures of the lessons as pure functions: each returns a figure with its table, its caption and its alt text."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from engine.charts import BLUE, GREEN, GREY, ORANGE, Picture, amount, cost, fitting, framed, heat_map
from engine.family import Array
from engine.lesson_strategies import Contest, Tried
from engine.lessons import Neighbours, Overlaps, Smashed, TwoAnalyses
from engine.schema import Schema

PANELS = 3  # pictures side by side


def fraction(value: float, parts: int) -> str:
    """Text of a number that is a whole number of parts.

    >>> fraction(-1 / 6, 6), fraction(1e-17, 6), fraction(2.0, 6)
    ('−1/6', '0', '2')
    """
    return str(Fraction(value).limit_denominator(max(parts, 1))).replace("-", "−")


def smashed_picture(found: Smashed, pieces: int) -> Picture:
    """Show a query on two attributes, its first pieces, and what they add up to, all as small tables."""
    shown, added = found.pieces[:pieces], found.added(pieces)
    panels = [("the query", found.query, found.schema.names)]
    panels += [(f"piece: {p.name}", p.table, p.attributes) for p in shown]
    panels += [("pieces so far, added up", added, found.schema.names)] if pieces else []
    rows = -(-len(panels) // PANELS)
    titles = [html.escape(title) for title, _, _ in panels]
    figure = make_subplots(rows=rows, cols=PANELS, subplot_titles=titles, horizontal_spacing=0.09)
    sizes = dict(zip(found.schema.names, found.query.shape, strict=True))
    for number, (title, table, names) in enumerate(panels):
        place = {"row": number // PANELS + 1, "col": number % PANELS + 1}
        down, across = (n if name in names else 1 for name, n in sizes.items())
        grid = np.reshape(table, (down, across))
        figure.add_trace(
            go.Heatmap(
                z=grid,
                text=[[fraction(v, found.query.size) for v in row] for row in grid],
                texttemplate="%{text}",
                textfont={"size": 16},
                colorscale="Cividis",
                zmin=-1,
                zmax=1,
                showscale=False,
                xgap=2,
                ygap=2,
                hovertemplate=f"{html.escape(title)}<br>%{{text}}<extra></extra>",
            ),
            **place,
        )
        for axis, name, n in zip(("y", "x"), sizes, sizes.values(), strict=True):
            labels = _cells(found.schema, name) if name in names else []
            # every panel has room for the whole table, so that cells have one size
            ticks = {"tickvals": list(range(len(labels))), "ticktext": labels, "showgrid": False, "zeroline": False}
            extent = [n - 0.5, -0.5] if axis == "y" else [-0.5, n - 0.5]
            {"x": figure.update_xaxes, "y": figure.update_yaxes}[axis](**ticks, range=extent, **place)
    figure.update_layout(height=80 + rows * (70 + 44 * found.query.shape[0]))
    left = float(np.max(np.abs(added - found.query)))
    complete = pieces == len(found.pieces)
    words = (
        "they are the query again" if complete else f"a cell is still off by up to {fraction(left, found.query.size)}"
    )
    named = ", ".join(p.name for p in shown) or "none"
    return Picture(
        title="A query and its pieces",
        figure=framed(figure).update_layout(margin_t=40),
        table=_coefficients(found, pieces),
        alt=f"The query's table beside its pieces so far ({named}); added up, {words}.",
        note="Bright cells add, dark cells take away. A piece adds up to 0 along each of its attributes.",
    )


def overlap_picture(found: Overlaps) -> Picture:
    """Cosines between the cells of all tables as a heat map."""
    labels = [f"{table}: {label}" for table, label in zip(found.tables, found.labels, strict=True)]
    shown = np.where(np.abs(found.cosines) < 1e-12, 0.0, found.cosines)
    figure = heat_map(shown, [labels, labels], ["", ""], "%{y}<br>%{x}<br>cosine %{z:.3f}", "cosine")
    figure.update_traces(zmin=-1, zmax=1, xgap=1, ygap=1)
    figure.update_xaxes(nticks=len(labels))
    figure.update_yaxes(nticks=len(labels))
    tables = list(dict.fromkeys(found.tables))
    apart = found.largest < 1e-9
    words = (
        "every cosine between different tables is 0: the blocks on the diagonal stand alone"
        if apart
        else f"cosines between different tables reach {found.largest:.2f}: the tables repeat each other"
    )
    table = pd.DataFrame(shown, columns=labels)
    table.insert(0, "query", labels)
    return Picture(
        title="How much the queries of all tables overlap",
        figure=figure,
        table=table,
        alt=f"Heat map of {len(labels)} queries from {len(tables)} tables; {words}.",
        note="Cosine 1: the same question. 0: nothing in common. Every block on the diagonal is one table.",
    )


def cost_picture(found: Smashed) -> Picture:
    """Privacy cost of each piece of a query, answered alone with noise of standard deviation 1."""
    names, costs = [p.name for p in found.pieces], [p.cost for p in found.pieces]
    figure = _bars(names, costs, "privacy cost (pcost) at a standard error of 1 count", "%{x:.4g} pcost")
    dearest = max(found.pieces, key=lambda p: p.cost)
    return Picture(
        title="What each piece costs on its own",
        figure=figure,
        table=pd.DataFrame({"piece": names, "pcost": costs}),
        alt=f"Bars of the cost of {len(names)} pieces; the dearest is {dearest.name} with {cost(dearest.cost)} pcost.",
        note="The square of a piece's largest coefficient: how far one record can move its answer.",
    )


def strategy_picture(tried: Tried) -> Picture:
    """The rows of a strategy as a heat map."""
    m, n = tried.rows.shape
    labels = [[f"row {i + 1}" for i in range(m)], [str(i) for i in range(n)]]
    figure = heat_map(tried.rows, labels, ["what is measured", "cell"], "%{y}, cell %{x}<br>%{z:.3f}", "weight")
    figure.update_traces(zmin=-1, zmax=1, zmid=0)
    table = pd.DataFrame(tried.rows, columns=labels[1])
    table.insert(0, "row", labels[0])
    used = int(np.max(np.count_nonzero(np.abs(tried.rows) > 1e-9, axis=0)))
    return Picture(
        title=f"{tried.name}: what is measured",
        figure=figure,
        table=table,
        alt=f"{m} rows on {n} cells; a record moves up to {used} of the {m} measured numbers.",
        note="One row is one noisy number; its weights are scaled so that the whole strategy has privacy cost 1.",
    )


def range_errors_picture(found: Contest, number: int) -> Picture:
    """Standard error of every range under one strategy, on the colours of all strategies together."""
    tried, n = found.tried[number], found.cells
    first, last = np.triu_indices(n)
    grid = np.full((n, n), np.nan)
    grid[first, last] = tried.errors
    labels = [str(i) for i in range(n)]
    hover = "%{y} to %{x}<br>standard error %{z:.3f} counts"
    figure = heat_map(grid, [labels, labels], ["first cell", "last cell"], hover, "standard<br>error")
    figure.update_traces(zmin=0.0, zmax=max(float(t.errors.max()) for t in found.tried))
    worst = int(np.argmax(tried.errors))
    return Picture(
        title=f"{tried.name}: standard error of every range",
        figure=figure,
        table=pd.DataFrame({"first cell": first, "last cell": last, "standard error": tried.errors}),
        alt=f"{len(first):,} ranges; standard errors from {amount(float(tried.errors.min()))} to "
        f"{amount(float(tried.errors.max()))} counts, the largest for cells {first[worst]} to {last[worst]}.",
        note="The colours mean the same for every strategy, so that pictures can be compared.",
    )


def contest_picture(found: Contest, bounds: Mapping[str, float], chosen: str = "") -> Picture:
    """RMSE of every strategy as bars, and proven bounds as lines."""
    names = [t.name for t in found.tried]
    sizes = [t.rmse for t in found.tried]
    figure = _bars(names, sizes, "RMSE over all queries (counts)", "%{x:.4f} counts")
    figure.data[0].marker.pattern = {"shape": ["/" if name == chosen else "" for name in names]}
    for number, (name, bound) in enumerate(bounds.items()):
        dash, color = (("dash", ORANGE), ("dot", GREEN))[number % 2]
        figure.add_scatter(
            x=[bound, bound],
            y=[names[0], names[-1]],
            mode="lines",
            name=f"{name}: {bound:.4f}",
            line={"color": color, "dash": dash, "width": 3},
            hovertemplate=f"{html.escape(name)}: {bound:.4f} counts<extra></extra>",
        )
    figure.data[0].showlegend = False
    figure.update_layout(height=300, legend={"orientation": "h", "y": 1.15})
    best = min(found.tried, key=lambda t: t.rmse)
    table = pd.DataFrame({"strategy or bound": [*names, *bounds], "RMSE": [*sizes, *bounds.values()]})
    proof = max(bounds.values())
    return Picture(
        title=f"Who wins on all {found.asked.name} queries over {found.cells} cells",
        figure=framed(figure).update_layout(margin_t=40),
        table=table,
        alt=f"{best.name} has the smallest RMSE, {best.rmse:.4f} counts; no strategy can be below {proof:.4f}.",
        note="All strategies have privacy cost 1.",
    )


def proof_text(found: Contest, share: float) -> str:
    """What a bound with weights at ``share`` says about the best strategy, in words (Markdown)."""
    gap = found.tried[-1].rmse / found.bound(share) - 1.0
    if gap < 1e-6:
        return "**Strategy and bound meet:** these weights prove that the optimal strategy cannot be improved."
    return (
        f"The optimal strategy is **{gap:.2%}** above the bound that these weights prove. So far you only know that no "
        "strategy is better by more than that; move the weights to learn more."
    )


def outcomes_picture(names: Sequence[str], counts: Sequence[int], drawn: Array) -> Picture:
    """Releases that could come out, shape (draws, cells), as dots, the last one as a line, beside the true counts."""
    draws, texts = len(drawn), fitting(names)
    figure = go.Figure()
    figure.add_scatter(
        x=texts * draws,
        y=drawn.ravel(),
        mode="markers",
        name=f"{draws} releases that could come out",
        marker={"color": BLUE, "size": 7, "opacity": 0.45},
        hovertemplate="%{x}<br>%{y:.1f}<extra>one release</extra>",
    )
    figure.add_scatter(
        x=texts,
        y=drawn[-1],
        mode="lines+markers",
        name="one of them",
        line={"color": ORANGE, "width": 2, "dash": "dot"},
        marker={"size": 9, "symbol": "diamond"},
    )
    figure.add_scatter(
        x=texts,
        y=list(counts),
        mode="markers",
        name="true count (invented)",
        marker={"color": GREEN, "symbol": "line-ew-open", "size": 22, "line": {"width": 3}},
    )
    figure.update_xaxes(type="category", title="age")
    figure.update_yaxes(title="records (counts)")
    figure.update_layout(height=400, legend={"orientation": "h", "y": 1.15})
    table = pd.DataFrame(drawn.T, columns=[f"release {i + 1}" for i in range(draws)])
    table.insert(0, "true count", list(counts))
    table.insert(0, "age", list(names))
    off = np.abs(drawn - np.asarray(counts))
    return Picture(
        title="Releases that could come out",
        figure=framed(figure).update_layout(margin_t=40),
        table=table,
        alt=f"{draws} noisy histograms of {len(counts)} invented counts; half of the answers are off by less than "
        f"{amount(float(np.median(off)))}, the worst by {amount(float(off.max()))}.",
        note="Only one of them would ever be published, and nobody could tell which.",
    )


def neighbours_picture(found: Neighbours) -> Picture:
    """The laws of one noisy count without and with one person, overlapping."""
    figure = go.Figure()
    for name, law, color, dash in (
        ("without the person", found.without, BLUE, "solid"),
        ("with the person", found.with_one, ORANGE, "dash"),
    ):
        figure.add_scatter(
            x=found.values,
            y=law,
            mode="lines",
            name=name,
            fill="tozeroy",
            line={"color": color, "dash": dash, "width": 2.5},
            hovertemplate="%{x:.2f} counts from the true count<extra></extra>",
        )
    figure.update_xaxes(title="published count minus the true count without the person (counts)")
    figure.update_yaxes(title="how likely", showticklabels=False, rangemode="tozero")
    figure.update_layout(height=340, legend={"orientation": "h", "y": 1.15})
    table = pd.DataFrame(
        {"noisy count": found.values, "density without": found.without, "density with": found.with_one}
    )
    return Picture(
        title="The same release with and without one person",
        figure=framed(figure).update_layout(margin_t=40),
        table=table,
        alt=f"Two bell curves one count apart; whoever guesses from the answer whether the person is in the data is "
        f"right at most {guess_text(found)} of the time.",
        note="Where the curves overlap, the answer says nothing about the person.",
    )


def guess_text(found: Neighbours) -> str:
    """Text of the best guesser's share, rounded up.

    >>> from engine.lessons import neighbours
    >>> from engine.privacy import Budget
    >>> guess_text(neighbours(Budget(pcost=1.0)))
    '69.2%'
    """
    return f"{min(np.ceil(1000 * found.guess) / 10, 100.0):g}%"


def spends_picture(found: TwoAnalyses) -> Picture:
    """Cost of looking first and deciding then: with what both analyses share, and with a separate look."""
    table = found.spends()
    figure = go.Figure()
    for name, label, color, shape in (("look", "the look", ORANGE, "x"), ("rest", "the rest", BLUE, "")):
        figure.add_bar(
            x=table[name],
            y=table["path"],
            name=label,
            orientation="h",
            marker={"color": color, "pattern": {"shape": shape}},
            hovertemplate=f"{label}: %{{x:.4g}} pcost<extra></extra>",
        )
    budget = found.fine.pcost
    figure.add_shape(type="line", x0=budget, x1=budget, y0=0, y1=1, yref="paper", line={"color": GREY, "dash": "dash"})
    figure.add_annotation(
        x=budget, y=1.0, yref="paper", yanchor="bottom", showarrow=False, text=f"budget {cost(budget)}"
    )
    figure.update_layout(barmode="stack", height=300, legend={"orientation": "h", "y": 1.25})
    figure.update_xaxes(title="privacy cost (pcost)", rangemode="tozero")
    figure.update_yaxes(autorange="reversed", type="category", automargin=True)
    look = table["look"].iloc[0]
    return Picture(
        title="Look first, decide then",
        figure=framed(figure).update_layout(margin_t=60),
        table=table,
        alt=f"A shared look of {cost(look)} pcost and the rest make {cost(table['all'].iloc[0])}; a separate look as "
        f"exact as that would make {cost(table['all'].iloc[1])}, {found.shared.saved:.1%} of the budget more.",
    )


def _bars(names: Sequence[str], sizes: Sequence[float], axis: str, hover: str) -> go.Figure:
    bar = go.Bar(
        x=list(sizes),
        y=fitting(list(names)),
        orientation="h",
        marker_color=BLUE,
        text=[amount(size) for size in sizes],
        textposition="auto",
        hovertemplate=f"%{{y}}: {hover}<extra></extra>",
    )
    figure = go.Figure(bar)
    figure.update_layout(height=90 + 34 * len(names), bargap=0.3)
    figure.update_yaxes(autorange="reversed", type="category", automargin=True)
    figure.update_xaxes(title=axis)
    return framed(figure)


def _cells(schema: Schema, name: str) -> list[str]:
    return fitting([schema[name].label(i) for i in range(schema[name].size)])


def _coefficients(found: Smashed, pieces: int) -> pd.DataFrame:
    """One row a cell: the query, every piece shown so far, and their sum."""
    cells = [_cells(found.schema, name) for name in found.schema.names]
    index = np.indices(found.query.shape).reshape(len(cells), -1)
    columns = {name: [own[i] for i in along] for name, own, along in zip(found.schema.names, cells, index, strict=True)}
    size = found.query.size

    def texts(table: Array) -> list[str]:
        return [fraction(v, size) for v in table.ravel()]

    out = {**columns, "query": texts(found.query)}
    out |= {f"piece {p.name}": texts(p.spread) for p in found.pieces[:pieces]}
    return pd.DataFrame(out | {"added up": texts(found.added(pieces))})
