"""A handout of a lesson as one HTML file that prints well and asks nothing of another machine."""

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
    """Plain words with ``**bold**``, *italic*, `code` and lists in dashes as HTML; nothing else is markup.

    >>> in_html("a **b** <c>")
    '<p>a <b>b</b> &lt;c&gt;</p>'
    """
    found = html.escape(text, quote=False)
    for mark, tag in ((r"\*\*(.+?)\*\*", "b"), (r"`(.+?)`", "code"), (r"\*(.+?)\*", "i")):
        found = re.sub(mark, rf"<{tag}>\1</{tag}>", found)
    lines = [
        f"<li>{line[2:]}</li>" if line.startswith("- ") else f"<p>{line}</p>" for line in found.split("\n") if line
    ]
    return "\n".join(lines)


def handout_html(
    title: str, words: Sequence[str], pictures: Sequence[Picture], sections: Sequence[tuple[str, str]]
) -> str:
    """Return a whole page: a title, words, pictures with what they show in words, and titled sections of words.

    >>> page = handout_html("Noise", ["One draw."], [], [("Questions", "- Why?")])
    >>> page.startswith("<!doctype html>"), "<li>Why?</li>" in page
    (True, True)
    """
    parts = [f"<h1>{html.escape(title)}</h1>", *map(in_html, words)]
    for number, found in enumerate(pictures):
        # the first picture brings the program that draws all of them
        drawn = found.figure.to_html(
            full_html=False, include_plotlyjs=number == 0, config={"staticPlot": True}, default_width="46rem"
        )
        caption = in_html(f"**{found.title}.** {found.alt} {found.note}")
        parts.append(f"<figure>{drawn}<figcaption>{caption}</figcaption></figure>")
    parts += [f"<section><h2>{html.escape(head)}</h2>{in_html(body)}</section>" for head, body in sections]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )
