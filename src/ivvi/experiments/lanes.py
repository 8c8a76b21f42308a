"""Processes that work side by side, each on units that share compiled programs.

A lane is an executor of one process (or of one Dask worker) that does one unit at a time.
It is given units of the group that it has compiled for, as long as there are any.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ivvi.errors import InputError

TICK = 0.5
"""Seconds between two looks at the clock while everything is running."""


class Work(Protocol):
    """What the scheduler must know of a piece of work."""

    @property
    def group(self) -> Any:
        """Pieces of one group share compiled programs."""
        ...

    @property
    def seconds(self) -> float:
        """What it takes, about."""
        ...


@dataclass
class Board:
    """What is going on: the pieces under way by lane, what is done and what is left."""

    waiting: list[Any]
    lanes: int
    running: dict[int, tuple[Any, float]] = field(default_factory=dict)
    done: int = 0
    spent: float = 0.0
    expected: float = 0.0

    @property
    def total(self) -> int:
        """Pieces in all."""
        return self.done + len(self.running) + len(self.waiting)

    @property
    def seconds_left(self) -> float:
        """Expected seconds of the rest, scaled by how the finished ones compared."""
        scale = self.spent / self.expected if self.expected else 1.0
        now = time.monotonic()
        rest = sum(scale * float(unit.seconds) for unit in self.waiting)
        rest += sum(
            max(0.0, scale * float(u.seconds) - (now - t)) for u, t in self.running.values()
        )
        return rest / max(1, min(self.lanes, len(self.running) + len(self.waiting)))

    def take(self, lane: int, last: Any) -> Any:
        """Give a lane its next piece: of its own group, else of the longest that nobody is on."""
        if not self.waiting:
            return None
        taken = {unit.group for unit, _ in self.running.values()}
        left: dict[Any, float] = {}
        for unit in self.waiting:
            left[unit.group] = left.get(unit.group, 0.0) + unit.seconds
        group = max(left, key=lambda g: (g == last, g not in taken, left[g]))
        unit = next(unit for unit in self.waiting if unit.group == group)
        self.waiting.remove(unit)
        self.running[lane] = (unit, time.monotonic())
        return unit

    def finish(self, lane: int) -> Any:
        """Count a lane's piece as done."""
        unit, began = self.running.pop(lane)
        self.done += 1
        self.spent += time.monotonic() - began
        self.expected += unit.seconds
        return unit


def run_all(
    units: Sequence[Work],
    lanes: Sequence[Executor],
    work: Callable[[Any], Any],
    keep: Callable[[Any, Any], None],
    look: Callable[[Board], None] | None = None,
) -> None:
    """Do all units; `keep` is given each with its outcome, `look` shows what is going on."""
    board = Board(list(units), len(lanes))
    last: dict[int, Any] = {}
    futures: dict[Future[Any], int] = {}

    def start(lane: int) -> None:
        unit = board.take(lane, last.get(lane))
        if unit is not None:
            last[lane] = unit.group
            futures[lanes[lane].submit(work, unit)] = lane

    for lane in range(len(lanes)):
        start(lane)
    while futures:
        if look:
            look(board)
        finished, _ = wait(futures, timeout=TICK, return_when=FIRST_COMPLETED)
        for future in finished:
            lane = futures.pop(future)
            unit = board.finish(lane)
            keep(unit, _outcome(future, unit))
            start(lane)
    if look:
        look(board)


def _outcome(future: Future[Any], unit: Any) -> Any:
    try:
        return future.result()
    except BrokenExecutor as error:
        raise InputError(
            f"a process died while it worked on {unit}; fewer --jobs need less memory, and the "
            "same command goes on"
        ) from error


@contextmanager
def local_lanes(jobs: int) -> Iterator[list[Executor]]:
    """Start processes of our own, which end when we do, even if we are killed.

    A single job runs in this process.
    """
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        lanes: list[Executor] = []
        for _ in range(jobs):
            if jobs == 1:
                lanes.append(ThreadPoolExecutor(1))
            else:
                lanes.append(ProcessPoolExecutor(1, context, initializer=_attend))
            stack.enter_context(_stopping(lanes[-1]))
        yield lanes


@contextmanager
def dask_lanes(address: str) -> Iterator[list[Executor]]:
    """Use the workers of a Dask cluster, one unit at a time for each of their threads."""
    from ivvi.logs.dask import connected

    with connected(address) as client:
        from distributed import CancelledError, KilledWorker

        try:
            yield [
                client.get_executor(workers=[worker], allow_other_workers=True)
                for worker, threads in client.nthreads().items()
                for _ in range(threads)
            ]
        except KilledWorker as error:
            raise InputError(
                "worker after worker died; more memory for each is wanted, and the same command "
                "goes on"
            ) from error
        except CancelledError as error:
            raise InputError(
                "the Dask scheduler went away before the work was done; the same command goes on"
            ) from error


@contextmanager
def _stopping(executor: Executor) -> Iterator[Executor]:
    """Do not wait for work that nobody wants any more."""
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _attend() -> None:
    """End this process when its parent does."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
