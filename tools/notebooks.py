"""Run the notebooks of examples/notebooks, cell by cell, and keep their last picture.

python tools/notebooks.py                       run all, say what each took
python tools/notebooks.py hospital pricing      some of them
python tools/notebooks.py --pictures            and write docs/images/notebook-NAME.png
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ivvi._io.program_cache import keep_programs

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "notebooks"


def read_cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook."""
    cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return cells


def run_notebook(path: Path) -> list[Any]:
    """Execute the code cells in order, in an empty folder; return what each displays.

    The value of a cell's last line is shown the way a notebook does it: by `_repr_png_`,
    `_repr_html_` or `repr`.
    """
    names: dict[str, Any] = {"__name__": "__main__"}
    shown, before = [], Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for i, cell in enumerate(read_cells(path)):
                if cell["cell_type"] == "code":
                    shown.append(_run_cell("".join(cell["source"]), f"{path.name}[{i}]", names))
        finally:
            os.chdir(before)
    return shown


def _run_cell(source: str, name: str, names: dict[str, Any]) -> Any:
    tree = ast.parse(source, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    for method in ("_repr_png_", "_repr_html_"):
        if hasattr(value, method) and not isinstance(value, type):
            return getattr(value, method)()
    return None if value is None else repr(value)


def main() -> None:
    """Run the notebooks named on the command line, or all."""
    keep_programs()  # as commands do: programs are compiled once
    asked = [word for word in sys.argv[1:] if not word.startswith("--")]
    for path in sorted(FOLDER.glob("*.ipynb")):
        if asked and path.stem not in asked:
            continue
        begun = time.process_time()
        pictures = [part for part in run_notebook(path) if isinstance(part, bytes)]
        print(f"{path.stem}: {time.process_time() - begun:.1f} CPU s, {len(pictures)} pictures")
        if "--pictures" in sys.argv and pictures:
            (ROOT / "docs" / "images" / f"notebook-{path.stem}.png").write_bytes(pictures[-1])


if __name__ == "__main__":
    main()
