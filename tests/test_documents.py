"""README, docs and examples are executed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = {page.name: re.findall(r"```python\n(.*?)```", page.read_text(), re.S) for page in PAGES}


@pytest.mark.parametrize("page", [name for name, snippets in SNIPPETS.items() if snippets])
def test_snippets_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "snippet"}
    for i, code in enumerate(SNIPPETS[page]):
        exec(compile(code, f"{page}, snippet {i + 1}", "exec"), names)


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(script, tmp_path):
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert os.listdir(tmp_path) == []


def test_links_between_documents_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} -> {target}"


def test_readme_has_exactly_two_commands_that_exist():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    commands = [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]
    assert commands == ["./run demo", "./run test"]
    assert os.access(ROOT / "run", os.X_OK)
