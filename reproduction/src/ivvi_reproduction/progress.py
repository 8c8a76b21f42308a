"""The progress of a long run on the terminal: what is running, what is done, the time left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from ivvi_reproduction.scheduler import JobQueue


@contextlib.contextmanager
def showing() -> Iterator[Callable[[JobQueue], None]]:
    """Show the queue on standard error: live on a terminal, else a line when something ends."""
    if not sys.stderr.isatty():
        yield _Lines().look
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=2) as live:
        yield lambda queue: live.update(draw(queue))


def draw(queue: JobQueue) -> Any:
    """Return the table of what each worker is doing."""
    from rich.table import Table

    title = f"{queue.done} of {queue.total} done, about {duration(queue.seconds_left)} left"
    table = Table(title=title, title_justify="left")
    table.add_column("process", justify="right")
    table.add_column("works on")
    table.add_column("for", justify="right")
    now = time.monotonic()
    for worker in range(queue.workers):
        job, began = queue.running.get(worker, ("nothing", now))
        table.add_row(str(worker + 1), str(job), duration(now - began))
    return table


class _Lines:
    """Print a line whenever a job has ended."""

    def __init__(self) -> None:
        self.done = 0

    def look(self, queue: JobQueue) -> None:
        if queue.done > self.done:
            self.done = queue.done
            left = duration(queue.seconds_left)
            print(f"{queue.done} of {queue.total} done, about {left} left", file=sys.stderr)


def duration(seconds: float) -> str:
    """Write a duration: 42 s, 3 min, 1 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
