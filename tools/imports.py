"""The map of the package, drawn from its real imports (docs/images/architecture.svg).

A box is a module or a package; its height is the layer that `.importlinter` gives it, so that
all imports lead down. An import that follows from others (a imports b, b imports c, and a also
imports c) is not drawn, nor are the modules that everything imports.
"""

from __future__ import annotations

import configparser
from pathlib import Path

import grimp

from drawing import GREY, INK, box, card, text

ROOT = Path(__file__).parents[1]
STEP, ROW, WIDE, HIGH, TOP = 152, 29, 124, 22, 74
EVERYWHERE = {"errors", "_io", "version"}
COLUMNS = {
    "data": "logs features moments _io errors version categories option_values",
    "learning": "",  # all that is named in no other column
    "planning": "actions rewards dynamics planning policy",
    "the truth": "simulators",
    "showing": "reporting cli",
}
FILLS = ("#bbf7d0", "#bfdbfe", "#ddd6fe", "#fecaca", "#fde68a")


def read_layers() -> list[list[str]]:
    """Return the layers of the contract, highest first, each a list of module names."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter")
    lines = config["importlinter:contract:flow"]["layers"].split("\n")
    layers = [[part.strip().removeprefix("ivvi.") for part in line.split("|")] for line in lines]
    return [layer for layer in layers if layer != [""]]


def find_imports() -> dict[str, set[str]]:
    """Return, for each top-level module or package, the others that it imports."""
    graph = grimp.build_graph("ivvi", cache_dir=None)
    imports: dict[str, set[str]] = {}
    for module in graph.modules:
        top = _top(module)
        for other in graph.find_modules_directly_imported_by(module):
            if top and _top(other) and _top(other) != top:
                imports.setdefault(top, set()).add(_top(other))
    return imports


def reduced(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports that do not follow from others (transitive reduction)."""

    def reach(name: str) -> set[str]:
        return {name}.union(*(reach(other) for other in imports.get(name, ())))

    return {
        name: {o for o in others if not any(o in reach(p) for p in others - {o})}
        for name, others in imports.items()
    }


def draw_map() -> str:
    """Draw the layers from top to bottom, with a line for every import that is kept."""
    layers, imports = read_layers(), reduced(find_imports())
    names = [name for layer in layers for name in layer]
    places = {name: (22 + _column(name) * STEP, TOP + i * ROW) for i, name in enumerate(names)}
    width, height = 44 + STEP * len(COLUMNS) - (STEP - WIDE), TOP + ROW * len(names) + 40
    lines = [
        _line(places[name], places[other])
        for name in sorted(places)
        for other in sorted(imports.get(name, set()) - EVERYWHERE)
        if other in places
    ]
    boxes = [
        box(x, y, WIDE, HIGH, name + "/" * _is_package(name), fill=FILLS[_column(name)])
        for name, (x, y) in places.items()
    ]
    title = "Every module imports only what stands below it"
    texts = [text(22, 30, title, size=16, bold=True, anchor="start")]
    for i, word in enumerate(COLUMNS):
        texts.append(text(22 + i * STEP + WIDE / 2, 58, word, size=13, colour=GREY))
    note = "Not drawn: imports that follow from others; errors and _io, which all may import."
    texts.append(text(22, height - 14, note, size=12, colour=GREY, anchor="start"))
    return card(width, height, [*texts, *lines, *boxes], title)


def _column(name: str) -> int:
    for i, names in enumerate(COLUMNS.values()):
        if name in names.split():
            return i
    return list(COLUMNS).index("learning")


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    x0, y0 = start[0] + WIDE / 2, start[1] + HIGH
    x1, y1 = end[0] + WIDE / 2, end[1] - 1
    if x0 == x1 and y1 - y0 > ROW:  # past the boxes of the same column, not behind them
        side = x0 - WIDE / 2 - 12
        path = f"M{x0 - 30:g} {y0:g}C{side:g} {y0 + 25:g} {side:g} {y1 - 25:g} {x1 - 30:g} {y1:g}"
    else:
        middle = (y0 + y1) / 2
        path = f"M{x0:g} {y0:g}C{x0:g} {middle:g} {x1:g} {middle:g} {x1:g} {y1:g}"
    return (
        f"<path d='{path}' fill='none' stroke='{INK}' stroke-width='1' stroke-opacity='0.5' "
        "marker-end='url(#grey)'/>"
    )


def _top(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def _is_package(name: str) -> bool:
    return (ROOT / "src" / "ivvi" / name).is_dir()
