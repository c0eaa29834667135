"""Printable handout of a lesson as one self-contained HTML file."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from engine.figures import Picture

STYLE = """
body { font: 11pt/1.45 Georgia, serif; color: #111; background: #fff; max-width: 46rem; margin: 2rem auto; }
h1 { font-size: 20pt; } h2 { font-size: 14pt; margin-top: 1.6em; }
table { border-collapse: collapse; margin: 0.8em 0; } th, td { border: 1px solid #999; padding: 0.15em 0.6em; }
code { font-size: 12pt; } figure { margin: 1em 0; break-inside: avoid; } section { break-inside: avoid; }
.line { border-bottom: 1px solid #999; height: 2em; }
@media print { body { margin: 0; } }
"""


def in_html(text: str) -> str:
    """Convert ``**bold**``, *italic*, `code` and dashed lists to HTML; all other text is escaped.

    >>> in_html("a **b** <c>")
    '<p>a <b>b</b> &lt;c&gt;</p>'
    """
    markup = html.escape(text, quote=False)
    for mark, tag in ((r"\*\*(.+?)\*\*", "b"), (r"`(.+?)`", "code"), (r"\*(.+?)\*", "i")):
        markup = re.sub(mark, rf"<{tag}>\1</{tag}>", markup)
    lines = [
        f"<li>{line[2:]}</li>" if line.startswith("- ") else f"<p>{line}</p>" for line in markup.split("\n") if line
    ]
    return "\n".join(lines)


def handout_html(
    title: str, words: Sequence[str], pictures: Sequence[Picture], sections: Sequence[tuple[str, str]]
) -> str:
    """Return an HTML page with a title, paragraphs, captioned figures and titled sections.

    >>> page = handout_html("Noise", ["One draw."], [], [("Questions", "- Why?")])
    >>> page.startswith("<!doctype html>"), "<li>Why?</li>" in page
    (True, True)
    """
    parts = [f"<h1>{html.escape(title)}</h1>", *map(in_html, words)]
    for number, picture in enumerate(pictures):
        # Only the first figure includes the plotly library.
        figure_html = picture.figure.to_html(
            full_html=False, include_plotlyjs=number == 0, config={"staticPlot": True}, default_width="46rem"
        )
        caption = in_html(f"**{picture.title}.** {picture.alt} {picture.note}")
        parts.append(f"<figure>{figure_html}<figcaption>{caption}</figcaption></figure>")
    parts += [f"<section><h2>{html.escape(head)}</h2>{in_html(body)}</section>" for head, body in sections]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )
