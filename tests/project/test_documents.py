"""README, docs, examples and docstrings are executed.

Of a page, ``python`` and ``sh`` blocks run in their order, in one folder that is empty at first;
``text`` blocks are shown only.
"""

import doctest
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from helpers import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.S | re.M)
SNIPPETS = {page.name: BLOCK.findall(page.read_text()) for page in PAGES}
SNIPPETS["README.md"] = [block for block in SNIPPETS["README.md"] if block[0] == "python"]
DOCUMENTED = sorted(
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in (ROOT / "src").rglob("*.py")
    if ">>> " in path.read_text()
)


QUICK = ("README.md",)
WITH_SNIPPETS = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough)
    for name, snippets in SNIPPETS.items()
    if snippets
]


@pytest.mark.parametrize("page", WITH_SNIPPETS)
def test_snippets_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "snippet"}
    with mock.patch.dict(os.environ):  # what a page sets ends with it
        for i, (kind, code) in enumerate(SNIPPETS[page]):
            if "__main__" in code:
                run_script(code, tmp_path)
            elif kind == "python":
                exec(compile(code, f"{page}, snippet {i + 1}", "exec"), names)
            else:
                run_in_shell(code, f"{page}, snippet {i + 1}")


def run_script(code, folder):
    """Run a block that is a script of its own, as one that starts processes must be."""
    script = folder / "script.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run_in_shell(code, where):
    """Run commands in bash with the `ivvi` of this Python; the first that fails ends them."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        [shutil.which("bash"), "-euo", "pipefail", "-c", code],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", DOCUMENTED)
def test_examples_in_docstrings_hold(module):
    """At least one each, because a module is listed for having one."""
    results = doctest.testmod(importlib.import_module(module))
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.thorough
@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_every_example_runs_to_its_end(script, tmp_path):
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert os.listdir(tmp_path) == []


NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.thorough
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_from_top_to_bottom_and_draw(notebook):
    """In a process of its own; a notebook that raises ends with a code that is not zero."""
    command = [sys.executable, ROOT / "tools" / "notebooks.py", notebook.stem]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(re.search(r"(\d+) pictures", done.stdout)[1]) >= 1
    assert "Warning" not in done.stderr


def test_notebooks_are_stored_without_outputs_and_end_with_what_may_be_wrong():
    assert len(NOTEBOOKS) >= 6
    gallery = (ROOT / "docs" / "index.md").read_text()
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text())["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert [cell for cell in code if cell["outputs"] or cell["execution_count"]] == []
        assert "".join(cells[-1]["source"]).startswith("## What may be wrong"), path.stem
        assert (ROOT / "docs" / "images" / f"notebook-{path.stem}.png").exists()
        assert f"images/notebook-{path.stem}.png" in gallery


def test_links_between_documents_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_the_page_on_architecture_describes_the_tree_that_is_there():
    page, root = (ROOT / "docs" / "architecture.md").read_text(), ROOT / "src" / "ivvi"
    table = page.split("## The packages")[1].split("## Three walks")[0]
    listed = re.findall(r"^\| `(\w+)/` \|", table, re.M)
    assert sorted(listed) == sorted(path.parent.name for path in root.glob("*/__init__.py"))
    beside = re.findall(r"`(\w+)`", table.split("beside them:")[1])
    loose = {path.stem for path in root.glob("*.py")} - {"__init__", "__main__"}
    assert set(beside) == loose
    for path in re.findall(r"`(\w+/[\w/]+\.py)`", page):
        assert (root / path).exists(), path


def test_readme_has_exactly_two_commands_that_exist():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    commands = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    assert commands == ["./run demo", "./run test"]
    assert os.access(ROOT / "run", os.X_OK)
