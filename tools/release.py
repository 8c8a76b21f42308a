"""The checklist of a release: check, build, test, and print what an upload would send.

python tools/release.py            all of it but the upload
python tools/release.py --quick    without the environment of its own (minutes)

Nothing is uploaded. Every point must hold; the first that fails ends the program with code 1. The
steps for a person are listed at the end.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
BY_HAND = """\
By hand, in this order:
  ./run test --all                          on a quiet machine
  ./run docs                                and look at the pages that changed
  git tag v{version} && git push --tags
  python -m twine upload DIST/*             with the two files above
  pip install ivvi=={version} in a new environment, then ivvi demo"""


def version() -> str:
    """Return the version of the package."""
    text = (ROOT / "src/ivvi/version.py").read_text(encoding="utf-8")
    return re.findall(r'__version__ = "([^"]+)"', text)[0]


def check_tree() -> str:
    """Nothing may be changed or untracked."""
    command = ["git", "status", "--porcelain"]
    changed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if changed:
        raise SystemExit(f"the tree is not clean:\n{changed}")
    return "the tree is clean"


def check_versions() -> str:
    """One version in the package, the citation, the change log and the paper's package."""
    patterns = {
        "CITATION.cff": rf"^version: {re.escape(version())}$",
        "CHANGELOG.md": rf"^## {re.escape(version())}\b",
        "reproduction/pyproject.toml": rf'^version = "{re.escape(version())}"$',
    }
    for name, pattern in patterns.items():
        if not re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.M):
            raise SystemExit(f"{name} does not name version {version()}")
    return f"all places name version {version()}"


def check_pages() -> str:
    """Pages made from the code are current."""
    command = [sys.executable, "tools/pages.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return "pages made from the code are current"


def check_bounds() -> str:
    """No dependency has a ceiling."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for extra in project["optional-dependencies"].values() for name in extra]
    capped = [name for name in [*project["dependencies"], *extras] if re.search(r"[<~!]|==", name)]
    if capped:
        raise SystemExit(f"these have a ceiling: {', '.join(capped)}")
    return "no dependency has a ceiling"


def build(dist: Path, *, clean: bool) -> str:
    """Build, install and test; then return what an upload would send."""
    command = [sys.executable, "tools/package.py", str(dist), *(["--clean"] if clean else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    lines = ["built, installed and tested; an upload would send"]
    for path in sorted(dist.iterdir()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"    {path.name}  {path.stat().st_size:,} bytes  sha256 {digest[:16]}...")
    return "\n".join(lines)


def main() -> None:
    """Check all points of the list."""
    quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        points: tuple[Callable[[], str], ...] = (
            *(check_tree, check_versions, check_bounds, check_pages),
            lambda: build(Path(folder) / "dist", clean=not quick),
        )
        for point in points:
            print(f"ok  {point()}", flush=True)
    print(BY_HAND.format(version=version()))


if __name__ == "__main__":
    main()
