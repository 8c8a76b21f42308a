"""End at once on a signal: one line on stderr, temporary files removed, exit code 130 or 143.

An exception from a signal handler waits for compiled code to return, can be swallowed by a callback
and can interrupt C++ code halfway. But Python writes to its wake-up pipe as soon as a signal
arrives, no matter what is running. A thread reads the pipe, removes temporary files and ends the
process. Final names are never half-written (`ivvi._io.files`), so nothing else needs to be undone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143}
WORDS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "hung up"}
_TEMPORARY: set[Path] = set()
_SHOW_CURSOR = "\x1b[?25h"


def remove_on_signal(path: Path) -> None:
    """Remove a file or folder if a signal ends the process at any later time."""
    _TEMPORARY.add(path)


@contextlib.contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Remove a file or folder if a signal ends the process inside the block."""
    _TEMPORARY.add(path)
    try:
        yield path
    finally:
        _TEMPORARY.discard(path)


def end_on_signals() -> None:
    """End this process as soon as it is interrupted; ignored signals stay ignored.

    A second call changes nothing.
    """
    names = {getattr(signal, name): name for name in CODES if hasattr(signal, name)}
    handled = (signal.SIG_IGN, _leave_to_reader)
    caught = {n: name for n, name in names.items() if signal.getsignal(n) not in handled}
    if threading.current_thread() is not threading.main_thread() or not caught:
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in caught:
        signal.signal(number, _leave_to_reader)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(reader, caught), daemon=True).start()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _forget(tuple(caught)))


def ignore_signals() -> None:
    """Ignore signals from now on: the work is done, and the exit code is decided.

    While Python shuts down, its handlers are gone, and a signal would still change the exit code.
    """
    if threading.current_thread() is threading.main_thread():
        for name in CODES:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_IGN)


def _leave_to_reader(*_: object) -> None:
    """Do nothing: the reader of the pipe ends the process."""


def _forget(numbers: tuple[int, ...]) -> None:
    """Restore the default handling of signals in a forked child."""
    signal.set_wakeup_fd(-1)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)


def _wait(reader: int, caught: dict[int, str]) -> None:
    while True:
        name = caught.get(os.read(reader, 1)[0])
        if name is not None:
            _end(name)


def _end(name: str) -> None:
    try:
        for process in _children():
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGTERM)
        for path in list(_TEMPORARY):
            _remove(path)
        cursor = _SHOW_CURSOR if sys.stderr.isatty() else ""
        os.write(2, f"{cursor}ivvi: {WORDS[name]}\n".encode())
    finally:
        os._exit(CODES[name])


def _remove(path: Path) -> None:
    """Remove a file or folder to which another thread may still write."""
    for _ in range(3):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        if not path.exists():
            return


def _children() -> list[int]:
    """Return the child processes of this process, where the system reports them."""
    children: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for listed in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
            children += map(int, listed.read_bytes().split())  # text could wait for an import
    return children
