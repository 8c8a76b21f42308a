"""Who is told of the steps of a plan: `plan` says it once, and the loops of planners tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Progress = Callable[[int], object]

_told: ContextVar[Progress | None] = ContextVar("told", default=None)


@contextmanager
def telling(progress: Progress | None) -> Iterator[None]:
    """Call `progress` with the number of steps that planners have just done, inside the block."""
    before = _told.set(progress)
    try:
        yield
    finally:
        _told.reset(before)


def step_done() -> None:
    """Say that one more step is done; nobody is told outside of `telling`."""
    progress = _told.get()
    if progress is not None:
        progress(1)
