"""Pictures as inline SVG that follow the colours of the page, light and dark.

They are drawn with matplotlib in a few stand-in colours, which become the style sheet's
variables; text stays text, in the page's font. A picture is about as wide as a phone's
screen, so that several fit side by side on a large one and none shrinks on a small one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np

from ivvi._io.plotting import IV, LS, MUTED, OTHERS, new_figure
from ivvi.reporting.page import Picture

INK, GRID = "#111213", "#dadbdc"
EXTRA = (*OTHERS, "#6b7280", "#a8447b", "#4d7c0f")
"""Further colours, for anything besides the instrument and least squares."""
VARIABLES = {
    INK: "currentColor",
    MUTED: "var(--muted)",
    GRID: "var(--grid)",
    IV: "var(--iv)",
    LS: "var(--ls)",
    **{colour: f"var(--c{i})" for i, colour in enumerate(EXTRA)},
}
PIXELS = 72.0
"""Units of SVG in an inch of matplotlib."""
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 11.0,
    "axes.labelsize": 11.0,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "lines.solid_capstyle": "round",
    "path.simplify": False,
}
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
REFERENCE = re.compile(r"url\(#([^)]+)\)")
FONT, FAMILY = re.compile(r"font: [^;]*?([\d.]+px)[^;]*;"), re.compile(r"font-family: [^;]*;\s*")
NO_TURN, LONG = re.compile(r"rotate\(-?0 [^)]*\)"), re.compile(r"-?\d+\.\d{3,}")


def draw(
    name: str,
    alt: str,
    paint: Callable[[Any], None],
    *,
    title: str = "",
    width: float = 350,
    height: float = 250,
) -> Picture:
    """Return the picture that `paint` draws on axes of this size in pixels.

    Parameters
    ----------
    name
        Unique on the page: ids inside the picture begin with it.
    alt
        A description of the picture, for readers who cannot see it.
    title
        The title that the page writes above it.
    """
    from matplotlib import rc_context

    with rc_context({**STYLE, "svg.hashsalt": name}):
        figure = new_figure(width / PIXELS, height / PIXELS)
        axes = figure.subplots()
        paint(axes)
        for axis in (axes.xaxis, axes.yaxis):
            if axis.get_scale() == "log":  # matplotlib's own labels are formulas
                axis.set_major_formatter(lambda value, _: power(value))
                axis.set_minor_formatter(lambda *_: "")
        buffer = io.BytesIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return Picture(_inline(buffer.getvalue(), name, alt), title)


def sparkline(values: np.ndarray, bins: int = 18) -> Picture:
    """Return a histogram as small as a word."""
    finite = values[np.isfinite(values)]
    counts = np.histogram(finite, bins=bins)[0] if len(finite) else np.zeros(bins)
    heights = 18 * counts / max(1, counts.max())
    bars = "".join(
        f'<rect x="{4 * i}" y="{18 - h:.1f}" width="3.2" height="{h:.1f}"/>'
        for i, h in enumerate(heights)
        if h > 0
    )
    size = f'viewBox="0 0 {4 * bins} 18" width="{4 * bins}" height="18"'
    return Picture(f'<svg class="spark" {size} aria-hidden="true">{bars}</svg>')


def power(value: float) -> str:
    """Return a power of ten as text: 0.01, 1, 100, then 10⁴ and so on."""
    size = round(np.log10(value))
    if -2 <= size <= 3:
        return f"{value:g}"
    return "10" + str(size).translate(SUPERSCRIPT)


def _inline(svg: bytes, name: str, alt: str) -> str:
    """Return the parts of matplotlib's SVG that a page needs, with unique ids."""
    root = ElementTree.fromstring(svg)
    used = {node.get(LINK, "#")[1:] for node in root.iter()} - {""}
    used |= {m for node in root.iter() for v in node.attrib.values() for m in REFERENCE.findall(v)}
    for node in root.iter():
        node.tag = node.tag.removeprefix(SVG)
        node.text, node.tail = (_trimmed(text) for text in (node.text, node.tail))
        attributes = {key: value for key, value in node.attrib.items() if key not in ("id", LINK)}
        node_id, target = node.get("id", ""), node.get(LINK)
        node.attrib = {key: _restyled(value, name) for key, value in attributes.items()}
        if node_id.startswith("walk-"):
            node.set("class", node_id)
        if node_id in used:
            node.set("id", f"{name}-{node_id}")
        if target is not None:
            node.set("href", f"#{name}-{target[1:]}")
    for group in root.iter("g"):
        _share_style(group)
    for part in (*root.findall("metadata"), *root.findall("defs/style/..")):
        root.remove(part)
    root.attrib = {"viewBox": root.get("viewBox", ""), "role": "img", "aria-label": alt}
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=False)


def _share_style(group: ElementTree.Element) -> None:
    """Move the style shared by many marks into one place."""
    styles = {node.get("style") for node in group if node.tag == "use"}
    if len(group) > 1 and len(styles) == 1 and all(node.tag == "use" for node in group):
        group.set("style", styles.pop() or "")
        for node in group:
            node.attrib.pop("style", None)


def _trimmed(text: str | None) -> str | None:
    """Return the text without white space between tags; keep that of labels."""
    return text if text is None or text.strip() else None


def _restyled(value: str, name: str) -> str:
    """Replace matplotlib's colours and font by the page's, and round to visible digits."""
    for colour, variable in VARIABLES.items():
        value = value.replace(colour, variable)
    value = REFERENCE.sub(rf"url(#{name}-\1)", value)
    value = FONT.sub(lambda match: f"font-size: {match[1]};", value)  # older matplotlib
    value = FAMILY.sub("", value).replace("; ", ";").replace(": ", ":").replace("\n", "")
    value = NO_TURN.sub("", value)
    return LONG.sub(lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), value)
