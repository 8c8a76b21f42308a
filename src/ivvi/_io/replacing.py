"""Replace a folder in one step, one run at a time, and clean up after runs that died.

`locked` holds a lock next to a folder, which the system releases when the process dies.
`put_in_place` exchanges two folders in one system call if the system has it. Otherwise the old
folder is moved aside under a fixed name for a moment, and `recover` puts it back if the run died in
between. Temporary names (`temporary_prefix`) contain the number of the process that made them, so
that `remove_leftovers` recognises those of dead processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import logging
import os
import re
import shutil
import socket
import time
import zlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from ivvi._io.signals import temporary
from ivvi.errors import FileError

try:
    import fcntl
except ImportError:  # not on Windows, where the version that was read is compared alone
    fcntl = None  # type: ignore[assignment]

WAIT = 600.0
"""Seconds to wait for another run that has locked a folder."""
PAUSE = 0.05
"""Seconds between two attempts to take a lock."""
AT_FDCWD, RENAME_EXCHANGE = -100, 2
UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)
"""Error codes of a file system that cannot exchange two names."""
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Error codes of a file system without locks."""
_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())
logger = logging.getLogger(__name__)


@contextlib.contextmanager
def locked(path: str | os.PathLike[str], *, wait: float = WAIT) -> Iterator[None]:
    """Lock the folder `path` against other runs, waiting for them at most `wait` seconds.

    A run that already holds the lock may lock again. Where the file system has no locks, nothing
    is locked.
    """
    target = Path(path).resolve()
    if fcntl is None or target in _HELD.get():
        yield
        return
    lock = target.with_name(f".{target.name}.ivvi-lock")
    handle = _acquire(target, lock, wait)
    token = _HELD.set(_HELD.get() | {target})
    try:
        with temporary(lock):
            yield
    finally:
        _HELD.reset(token)
        with contextlib.suppress(OSError):
            lock.unlink()  # before it is released: `_acquire` notices a file that is gone
        os.close(handle)


def _acquire(target: Path, lock: Path, wait: float) -> int:
    """Return the open lock file once this run has the lock."""
    until, announced = time.monotonic() + wait, False
    while True:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            reason = error.strerror or error
            raise FileError(f"{target} cannot be locked: {lock.name}: {reason}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(handle, lock):
                return handle
            os.close(handle)
            continue
        except OSError as error:
            if error.errno in NO_LOCKS:
                return handle
            os.close(handle)
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        except BaseException:
            os.close(handle)
            raise
        if not time.monotonic() < until:
            raise FileError(
                f"{target} is being replaced by another run; waited {wait:g} seconds for it"
            )
        if not announced:
            logger.warning("waiting for another run that is replacing %s", target)
            announced = True
        time.sleep(PAUSE)


def _is_same(handle: int, path: Path) -> bool:
    """Return whether an open file is still the file at `path`."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def put_in_place(
    folder: Path, target: Path, check: Callable[[Path], None] = lambda _: None
) -> None:
    """Replace the folder `target` by `folder`, or change nothing.

    `check` raises if the folder that is replaced is not the one that was expected.
    """
    check(target)
    if exchange(folder, target):
        try:
            check(folder)  # another run without a lock was faster
        except BaseException:
            exchange(folder, target)
            raise
        shutil.rmtree(folder, ignore_errors=True)
        return
    aside = _aside(target)
    os.replace(target, aside)
    try:
        os.replace(folder, target)
    except BaseException:
        os.replace(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; return False where the system cannot."""
    call = renameat2()
    if call is None:
        return False
    if call(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(second))


@functools.cache
def renameat2() -> Callable[..., int] | None:
    """Return the system call that exchanges two folders; None where there is none."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    call.restype = ctypes.c_int
    typed_call: Callable[..., int] = call
    return typed_call


def recover(path: str | os.PathLike[str]) -> None:
    """Put the old folder back if a run died while replacing it, with a logged warning."""
    target = Path(path)
    if target.exists() or not _aside(target).exists():
        return
    target = target.resolve()
    with locked(target), contextlib.suppress(FileNotFoundError):
        if not target.exists():  # no other run did it meanwhile
            os.replace(_aside(target), target)
            logger.warning("%s was put back: a run died while it replaced it", target)


def _aside(target: Path) -> Path:
    """Return the path of the old folder while it is replaced."""
    return target.with_name(f".{target.name}.ivvi-previous")


def temporary_prefix(target: Path) -> str:
    """Return the prefix of temporary names beside `target`."""
    return run_prefix(f".{target.name}.")


def run_prefix(lead: str) -> str:
    """Return the prefix of this process's temporary names; `lead` is such as ``ivvi-sort-``."""
    return f"{lead}{os.getpid()}-{_machine()}-"


@functools.cache
def _machine() -> str:
    """Return a short name of the machine and name space within which process numbers are unique."""
    space = ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    return f"{zlib.crc32(f'{socket.gethostname()} {space}'.encode()):08x}"


def remove_leftovers(target: Path) -> None:
    """Remove leftovers of dead runs beside `target`, whose lock this run holds."""
    for entry in _leftovers(target):
        _remove(entry, logging.WARNING)


def clear_up(path: str | os.PathLike[str]) -> None:
    """Remove leftovers of dead runs beside the folder `path`, unless it is locked."""
    target = Path(path).resolve()
    with contextlib.suppress(OSError, FileError):  # read-only, or being replaced
        if _leftovers(target):
            with locked(target, wait=0):
                remove_leftovers(target)


def _leftovers(target: Path) -> list[Path]:
    aside = [_aside(target)] if target.is_dir() and _aside(target).is_dir() else []
    return [*left_by_the_dead(target.parent, f".{target.name}."), *aside]


def left_by_the_dead(folder: Path, lead: str) -> list[Path]:
    """Return leftovers of dead processes of this machine in a folder (`run_prefix`)."""
    if fcntl is None:  # Windows cannot ask whether a process is alive without disturbing it
        return []
    name = re.compile(rf"{re.escape(lead)}(\d+)-{_machine()}-\w+")
    matches = [(entry, name.fullmatch(entry)) for entry in os.listdir(folder)]
    return [folder / entry for entry, match in matches if match and not _is_alive(int(match[1]))]


def remove_left_by_the_dead(folder: Path, lead: str) -> None:
    """Remove leftovers of dead processes of this machine in a folder."""
    with contextlib.suppress(OSError):
        for entry in left_by_the_dead(folder, lead):
            _remove(entry, logging.INFO)


def _remove(path: Path, level: int) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
    logger.log(level, "removed %s, which a run that died had left", path)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to another user
        return True
    return True
