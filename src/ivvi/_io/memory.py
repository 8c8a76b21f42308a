"""The available memory and disk space, checked before something large is created."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from ivvi.errors import InputError

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]


def available_memory() -> float:
    """Return the bytes of memory available to this process; infinity where unknown."""
    free = float("inf")
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = 1024.0 * next(int(line.split()[1]) for line in lines if "MemAvailable" in line)
    return min(free, allowed_memory())


def allowed_memory() -> float:
    """Return the bytes that a limit (``ulimit -v``) leaves for this process."""
    if resource is None:
        return float("inf")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return float("inf")
    with contextlib.suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        limit -= pages * os.sysconf("SC_PAGE_SIZE")
    return float(max(limit, 0))


def check_memory(needed: float, label: str) -> None:
    """Raise an error if `needed` bytes of memory are not available."""
    free = available_memory()
    if needed > free:
        raise InputError(
            f"{label} would take {_size(needed)} of memory; {_size(free)} are available"
        )


def check_disk(needed: float, path: str | os.PathLike[str], label: str) -> None:
    """Raise an error if `needed` bytes of disk space are not free at `path`."""
    free = shutil.disk_usage(Path(path).resolve().parent).free
    if needed > free:
        raise InputError(f"{label} would take {_size(needed)} of disk; {_size(free)} are free")


def _size(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.3g} GiB"
