"""Write the pages and drawings that are made from the code; CI checks that they are current.

python tools/pages.py            write what has changed
python tools/pages.py --check    say what has changed, and end with code 1 if anything has
"""

from __future__ import annotations

import sys
from pathlib import Path

from api import api_reference
from commands import command_reference
from graphs import draw_graphs
from imports import draw_map

DOCS = Path(__file__).parents[1] / "docs"


def make_pages() -> dict[Path, str]:
    """Return the text of every generated file by path."""
    drawings = {"architecture.svg": draw_map(), **draw_graphs()}
    pages = {"api.md": api_reference(), "commands.md": command_reference()}
    return {DOCS / name: text for name, text in pages.items()} | {
        DOCS / "images" / name: svg for name, svg in drawings.items()
    }


def main() -> None:
    """Compare with the existing files; write what has changed, unless --check is given."""
    old = [
        (path, text)
        for path, text in make_pages().items()
        if not path.exists() or path.read_text() != text
    ]
    for path, text in old:
        print(f"{path.relative_to(DOCS.parent)} is not what the code says")
        if "--check" not in sys.argv:
            path.write_text(text)
    sys.exit(bool(old) and "--check" in sys.argv)


if __name__ == "__main__":
    main()
