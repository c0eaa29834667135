"""How mechanisms look: one colour and one mark each across all pictures, and never colour alone."""

from __future__ import annotations

from dataclasses import dataclass

from engine.mechanisms import known, variants

COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f")  # Okabe-Ito without yellow
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", "x", ".", "-", "+")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")


@dataclass(frozen=True, kw_only=True)
class Look:
    """Colour and marks of one mechanism with its options, in plotly's words."""

    color: str
    dash: str
    pattern: str
    symbol: str


def mechanism_name(label: str) -> str:
    """Return the name of the mechanism in a label such as ``name (option=value)``.

    >>> mechanism_name("querysmasher (centers=tuned)")
    'querysmasher'
    """
    return label.split(" (", 1)[0]


def mechanism_look(label: str) -> Look:
    """Return the look of a label of a comparison; a mechanism has the same colour whatever its options.

    >>> mechanism_look("querysmasher").color == mechanism_look("querysmasher (centers=tuned)").color
    True
    >>> mechanism_look("querysmasher").dash == mechanism_look("querysmasher (centers=tuned)").dash
    False
    """
    names = [m.name for m in known.MECHANISMS]
    name = mechanism_name(label)
    place = names.index(name) if name in names else len(names)
    siblings = [other for other in variants() if mechanism_name(other) == name]
    within = siblings.index(label) if label in siblings else len(siblings)
    turn = place // len(COLORS) * 2 + within
    return Look(
        color=COLORS[place % len(COLORS)],
        dash=DASHES[turn % len(DASHES)],
        pattern=PATTERNS[turn % len(PATTERNS)],
        symbol=SYMBOLS[(place + within) % len(SYMBOLS)],
    )
