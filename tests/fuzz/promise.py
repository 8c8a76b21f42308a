"""What every command promises, whatever it is given; `keeps_its_promise` checks all of it.

Exit code 0, 1 or 2 (130 or 143 when a signal ends it), one sentence when it refuses, no traceback,
no warning of NumPy, no new name unless it succeeds, nothing temporary left, no process left, and
memory below a limit. The limit is what the command is told that the machine has, so that sizes
must be computed before memory is taken.
"""

import contextlib
import io
import os
import re
import signal
import sys
import time
import warnings
from pathlib import Path

from helpers import run
from ivvi._io import memory

CODES = {0, 1, 2}
ROOM = 1 << 29
"""Bytes that a command is told it may take."""
PEAK = 3 << 28
"""Bytes that it may really add: the room, and what libraries take when they are loaded."""
LONGEST = 180
"""Seconds of processor time after which a command is taken for one that never ends."""
LINES = '{"state": [0.5, 1]}\n{"states": [[1, 2], [3]]}\n{\n'
"""What a command finds on its standard input."""


def keeps_its_promise(place, *arguments):
    """Run a command in the folder `place` and check the whole promise; return how it ended."""
    before = names(place)
    with limited() as peak, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = run(*arguments)
    case = (arguments, result)
    assert result.code in CODES, case
    assert "Traceback" not in result.err, case
    if result.code:
        assert is_one_sentence(result.err), case
    numpy = [str(one.message) for one in said if issubclass(one.category, RuntimeWarning)]
    assert numpy == [], case
    new = names(place) - before
    hidden = {name for name in new if name.startswith(".")}
    assert hidden <= set(map(str, arguments)), (case, new)
    assert result.code == 0 or not new, (case, new)
    assert children() == set(), case
    assert peak() < PEAK, (case, peak())
    return result


def names(place):
    """Return the names in a folder."""
    return {path.name for path in place.iterdir()}


def is_one_sentence(err):
    """Whether standard error ends with one line that refuses, after warnings and notes at most."""
    *before, last = err.splitlines() or [""]
    told = re.compile(r"ivvi: (warning|note): ")
    return last.startswith("ivvi: ") and all(told.match(line) for line in before)


@contextlib.contextmanager
def limited():
    """Tell commands that there is little memory, give them lines to read, and stop endless ones.

    Yields a function that returns the bytes by which memory was exceeded at most.
    """
    available, stdin = memory.available_memory, sys.stdin
    memory.available_memory = lambda: min(ROOM, available())
    sys.stdin = io.TextIOWrapper(io.BytesIO(LINES.encode()))
    reset_peak()
    start = status("VmRSS")

    def endless(*_):
        raise AssertionError(f"the command took more than {LONGEST} seconds of processor time")

    handler = signal.signal(signal.SIGPROF, endless)
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        yield lambda: status("VmHWM") - start
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        memory.available_memory, sys.stdin = available, stdin


def status(word):
    """Return a number of bytes from what Linux tells of this process; 0 elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(word):
                return 1024 * int(line.split()[1])
    return 0


def reset_peak():
    """Let the most memory that this process had be what it has now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def children():
    """Return the processes that this one has started and that are still there."""
    with contextlib.suppress(OSError):
        for _ in range(50):
            listed = [p.read_text().split() for p in Path("/proc/self/task").glob("*/children")]
            living = {int(one) for some in listed for one in some} - {tracker()}
            if not living:
                return set()
            time.sleep(0.1)  # Dask's last worker is on its way out
        return living
    return set()


def tracker():
    """Return the process that Python itself keeps for shared memory, if there is one."""
    from multiprocessing import resource_tracker

    return resource_tracker._resource_tracker._pid


def processor_time():
    """Return the seconds of processor time of this process and of those it waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
