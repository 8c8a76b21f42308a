"""A cache of compiled programs on disk: later commands need not compile them again.

JAX can cache the programs that XLA compiles, but it writes them in place and, by default, without a
size limit. Here every process gets its own folder, with hard links to all cached programs. When it
ends, the programs that it compiled are moved to the cache, each file in one step and only if it is
complete. So parallel processes never see a half-written program, and a failure costs only time.

A program runs only on one kind of processor and version of XLA, and each of these has its own
folder. Later commands execute the programs, so the folder is accessible to its owner alone.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import platform
import shutil
import tempfile
import time
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ivvi._io.replacing import remove_left_by_the_dead, run_prefix
from ivvi._io.signals import remove_on_signal

MOST_BYTES = 512 * 1024**2
"""Total size above which the oldest programs are removed."""
STALE = 24 * 3600.0
"""Seconds after which the folder of a process on another machine is removed."""
OWN, SUFFIX = "process-", "-cache"
SETTINGS = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
}


@dataclass(frozen=True, slots=True)
class ProgramCache:
    """A folder of compiled programs."""

    folder: Path

    @classmethod
    def usual(cls) -> ProgramCache | None:
        """Return the user's cache, ``$XDG_CACHE_HOME/ivvi/xla``; None where IVVI_CACHE is ``off``.

        IVVI_CACHE may name another folder.
        """
        setting = os.environ.get("IVVI_CACHE", "")
        if setting.lower() in ("off", "0", "no"):
            return None
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = Path(setting) if setting else Path(home) / "ivvi" / "xla"
        return cls(folder.absolute() / _kind_of_machine())

    @property
    def programs(self) -> list[Path]:
        """The files, oldest first; none where the folder cannot be read."""
        files = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.name.endswith(SUFFIX):
                        files.append((entry.stat().st_mtime, Path(entry.path)))
        return [path for _, path in sorted(files)]

    @property
    def size(self) -> int:
        """Bytes of all programs."""
        return sum(map(_size, self.programs))

    def open(self) -> Path | None:
        """Return a new folder for this process with links to all programs; None if that fails."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder = Path(tempfile.mkdtemp(prefix=run_prefix(OWN), dir=self.folder))
        except OSError:
            return None
        for program in self.programs:
            with contextlib.suppress(OSError):  # it was just removed, or no links
                os.link(program, folder / program.name)
        return folder

    def close(self, folder: Path) -> None:
        """Move newly compiled programs from the process's `folder` to the cache, and prune it."""
        shared = {program.name for program in self.programs}
        for program in ProgramCache(folder).programs:
            if program.name not in shared and _is_whole(program):
                with contextlib.suppress(OSError):
                    os.replace(program, self.folder / program.name)
        shutil.rmtree(folder, ignore_errors=True)
        self.prune()

    def prune(self, most: int = MOST_BYTES) -> None:
        """Remove the oldest programs beyond `most` bytes, and the folders of killed processes."""
        programs = self.programs
        excess = sum(map(_size, programs)) - most
        for program in programs:
            if excess <= 0:
                break
            excess -= _size(program)
            with contextlib.suppress(OSError):
                program.unlink()
        remove_left_by_the_dead(self.folder, OWN)
        for left in self.folder.glob(f"{OWN}*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > STALE:
                    shutil.rmtree(left, ignore_errors=True)


def keep_programs() -> Callable[[], None] | None:
    """Let JAX, which is not imported yet, store compiled programs in the user's cache.

    A cache that the user has set up for JAX takes precedence. Returns a function that hands the
    programs to other processes, for callers whose process does not end in the usual way.
    """
    cache = ProgramCache.usual()
    if cache is None or "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    folder = cache.open()
    if folder is None:
        return None
    warnings.filterwarnings("ignore", "Error (read|writ)ing persistent compilation cache")
    remove_on_signal(folder)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    process = os.getpid()

    def finish() -> None:
        if os.getpid() == process and folder.exists():  # and not a process that was forked
            cache.close(folder)

    atexit.register(finish)
    return finish


def _is_whole(program: Path) -> bool:
    """Return whether a file is complete; for a zstd file only the header is checked."""
    try:
        packed = program.read_bytes()
        if not packed.startswith(b"\x28\xb5\x2f\xfd"):
            zlib.decompress(packed)
    except (OSError, zlib.error):
        return False
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _kind_of_machine() -> str:
    """Return a short name of the processor and the version of XLA, on which programs depend."""
    from importlib.metadata import version

    processor = platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        prefixes = ("flags", "Features", "model name")
        processor = "".join(sorted({line for line in lines if line.startswith(prefixes)}))
    description = f"{platform.system()} {platform.machine()} {processor} {version('jaxlib')}"
    return hashlib.sha256(description.encode()).hexdigest()[:12]
