"""A live table of a long run: what is running, what is done, the time left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from ivvi.experiments.lanes import Board


@contextlib.contextmanager
def showing() -> Iterator[Callable[[Board], None]]:
    """Show the board on standard error: live on a terminal, else a line when something ends."""
    if not sys.stderr.isatty():
        yield _Lines().look
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=2) as live:
        yield lambda board: live.update(draw(board))


def draw(board: Board) -> Any:
    """Return the table of what each lane is doing."""
    from rich.table import Table

    title = f"{board.done} of {board.total} done, about {duration(board.seconds_left)} left"
    table = Table(title=title, title_justify="left")
    table.add_column("process", justify="right")
    table.add_column("works on")
    table.add_column("for", justify="right")
    now = time.monotonic()
    for lane in range(board.lanes):
        unit, began = board.running.get(lane, ("nothing", now))
        table.add_row(str(lane + 1), str(unit), duration(now - began))
    return table


class _Lines:
    """Print a line whenever a piece of work has ended."""

    def __init__(self) -> None:
        self.done = 0

    def look(self, board: Board) -> None:
        if board.done > self.done:
            self.done = board.done
            left = duration(board.seconds_left)
            print(f"{board.done} of {board.total} done, about {left} left", file=sys.stderr)


def duration(seconds: float) -> str:
    """Write a duration: 42 s, 3 min, 1 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
