"""What the numbers of a record may depend on: versions of libraries, the commit of the source."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from functools import lru_cache
from pathlib import Path

from ivvi.version import __version__

LIBRARIES = ("numpy", "scipy", "jax")


def versions() -> dict[str, str]:
    """Return the versions that numbers may depend on."""
    found = {name: importlib.metadata.version(name) for name in LIBRARIES}
    return {"ivvi": __version__, "python": platform.python_version(), **found}


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Return the commit of the source, None outside of a repository."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
