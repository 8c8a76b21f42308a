"""What is shipped: a wheel and an sdist that install and work, with one version everywhere."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import ivvi
from helpers import ROOT
from ivvi.cli.main import VERBS


def test_the_version_stands_in_one_place_and_is_repeated_faithfully():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/ivvi/version.py"
    assert f"\nversion: {ivvi.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    changes = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert changes[0] == ivvi.__version__
    beside = tomllib.loads((ROOT / "reproduction/pyproject.toml").read_text())
    assert beside["project"]["version"] == ivvi.__version__


def test_the_changelog_names_all_that_users_see_and_nothing_that_is_gone():
    named = " ".join(re.findall(r"`([^`]+)`", (ROOT / "CHANGELOG.md").read_text()))
    seen = [
        *ivvi.__all__,
        *(f"ivvi {verb.__name__}" for verb in VERBS),
        *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")),
    ]
    assert [name for name in seen if not re.search(rf"\b{re.escape(name)}\b", named)] == []
    files = re.findall(r"(?:docs|examples|benchmarks|tools)/\w+\.\w+", named)
    assert [name for name in files if not (ROOT / name).exists()] == []


def test_no_dependency_has_a_ceiling():
    """A ceiling blocks the upgrades of others; lower bounds are enough."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    bounds = [*project["dependencies"], *(name for extra in extras for name in extra)]
    assert [name for name in bounds if re.search(r"[<~!]|==", name)] == []


def test_the_package_is_typed():
    assert (Path(ivvi.__file__).parent / "py.typed").is_file()


@pytest.mark.thorough
def test_wheel_and_sdist_are_built_clean_and_work(tmp_path):
    """About 15 s: built, looked into, installed into an empty folder, tried."""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "package.py", tmp_path / "dist"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("installed and tested: no faults\n")
    assert {path.name for path in (tmp_path / "dist").iterdir()} == {
        f"ivvi-{ivvi.__version__}-py3-none-any.whl",
        f"ivvi-{ivvi.__version__}.tar.gz",
    }


def test_the_wheel_holds_the_library_alone_without_specs_or_records(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        files = {Path(name) for name in archive.namelist() if name.startswith("ivvi/")}
    source = Path(ivvi.__file__).parent
    packed = {path.relative_to(source.parent) for path in source.rglob("*") if path.is_file()}
    assert files == {path for path in packed if "__pycache__" not in path.parts}
    assert {path.suffix for path in files} <= {".py", ".pyi", ".typed", ".html", ".css", ".js"}
