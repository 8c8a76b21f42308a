"""Report planners' progress to one callback: `plan` sets it, and the loops of planners call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

StepProgress = Callable[[int], object]

_told: ContextVar[StepProgress | None] = ContextVar("told", default=None)


@contextmanager
def report_steps_to(progress: StepProgress | None) -> Iterator[None]:
    """Call `progress` with the number of steps that planners have just done, inside the block."""
    before = _told.set(progress)
    try:
        yield
    finally:
        _told.reset(before)


def step_done() -> None:
    """Report one more finished step; does nothing outside `report_steps_to`."""
    progress = _told.get()
    if progress is not None:
        progress(1)
