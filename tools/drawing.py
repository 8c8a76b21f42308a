"""A few shapes as SVG: discs, boxes and arrows on a light card, without any library."""

from __future__ import annotations

import math
from collections.abc import Iterable
from html import escape

INK, GREY, BLUE, RED = "#1f2937", "#6b7280", "#1d4ed8", "#b91c1c"
FONT = "font-family='Helvetica, Arial, sans-serif'"


def card(width: float, height: float, parts: Iterable[str], title: str) -> str:
    """Return an SVG file: a white card with the parts on it, readable in light and dark."""
    heads = "".join(
        f"<marker id='{name}' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' "
        f"markerHeight='7' orient='auto-start-reverse'>"
        f"<path d='M0 0.8 10 5 0 9.2z' fill='{colour}'/></marker>"
        for name, colour in (("ink", INK), ("red", RED), ("grey", GREY))
    )
    body = "\n".join(parts)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:g} {height:g}' "
        f"width='{width:g}' height='{height:g}' role='img' {FONT}>\n"
        f"<title>{escape(title)}</title>\n<defs>{heads}</defs>\n"
        f"<rect width='{width:g}' height='{height:g}' rx='10' fill='#ffffff'/>\n{body}\n</svg>\n"
    )


def text(
    x: float,
    y: float,
    content: str,
    *,
    size: float = 14,
    colour: str = INK,
    anchor: str = "middle",
    bold: bool = False,
) -> str:
    """Return a line of text, centred at (x, y) or with another `anchor` there."""
    weight = " font-weight='bold'" if bold else ""
    return (
        f"<text x='{x:g}' y='{y:g}' font-size='{size:g}' fill='{colour}' "
        f"text-anchor='{anchor}'{weight}>{escape(content)}</text>"
    )


def disc(x: float, y: float, content: str, *, hidden: bool = False, radius: float = 21) -> str:
    """Return a variable: a full disc when it is in the log, a dashed ring when it is not."""
    style = f"fill='#ffffff' stroke='{RED}' stroke-dasharray='4 3'" if hidden else f"fill='{BLUE}'"
    colour = RED if hidden else "#ffffff"
    shape = f"<circle cx='{x:g}' cy='{y:g}' r='{radius:g}' {style} stroke-width='1.6'/>"
    return shape + text(x, y + 5, content, size=15, colour=colour, bold=True)


def box(
    x: float, y: float, width: float, height: float, content: str, *, fill: str, size: float = 12
) -> str:
    """Return a labelled box with its upper left corner at (x, y)."""
    shape = (
        f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' rx='5' fill='{fill}' "
        f"stroke='{GREY}' stroke-width='0.7'/>"
    )
    return shape + text(x + width / 2, y + height / 2 + size / 3, content, size=size)


def arrow(
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    gap: float = 24,
    bend: float = 0,
    hidden: bool = False,
) -> str:
    """Return an arrow between two discs; `bend` pushes its middle aside, `hidden` dashes it."""
    (x0, y0), (x1, y1) = start, end
    length = math.hypot(x1 - x0, y1 - y0)
    ux, uy = (x1 - x0) / length, (y1 - y0) / length
    cx, cy = (x0 + x1) / 2 - uy * bend, (y0 + y1) / 2 + ux * bend
    ax, ay = _towards((x0, y0), (cx, cy) if bend else (x1, y1), gap)
    bx, by = _towards((x1, y1), (cx, cy) if bend else (x0, y0), gap)
    path = (
        f"M{ax:.1f} {ay:.1f}Q{cx:.1f} {cy:.1f} {bx:.1f} {by:.1f}"
        if bend
        else (f"M{ax:.1f} {ay:.1f}L{bx:.1f} {by:.1f}")
    )
    colour, name = (RED, "red") if hidden else (INK, "ink")
    dash = " stroke-dasharray='5 4'" if hidden else ""
    return (
        f"<path d='{path}' fill='none' stroke='{colour}' stroke-width='1.7'{dash} "
        f"marker-end='url(#{name})'/>"
    )


def _towards(
    point: tuple[float, float], other: tuple[float, float], distance: float
) -> tuple[float, float]:
    length = math.hypot(other[0] - point[0], other[1] - point[1])
    share = distance / length
    return point[0] + share * (other[0] - point[0]), point[1] + share * (other[1] - point[1])
