"""Parallel processes, each on jobs that share compiled programs, and their progress.

A worker is an executor of one process (or of one Dask worker) that does one job at a time.
It is given jobs of the group that it has compiled for, as long as there are any.
`showing_progress` prints what is running, what is done and the time left.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
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


class Schedulable(Protocol):
    """The properties of a job that the scheduler needs."""

    @property
    def group(self) -> Any:
        """Jobs of one group share compiled programs."""
        ...

    @property
    def seconds(self) -> float:
        """Expected duration."""
        ...


@dataclass
class JobQueue:
    """The waiting jobs, the running ones by worker, and the remaining time."""

    waiting: list[Any]
    workers: int
    running: dict[int, tuple[Any, float]] = field(default_factory=dict)
    done: int = 0
    spent: float = 0.0
    expected: float = 0.0

    @property
    def total(self) -> int:
        """Number of jobs in all."""
        return self.done + len(self.running) + len(self.waiting)

    @property
    def seconds_left(self) -> float:
        """Expected seconds of the remaining jobs, scaled by those of the finished ones."""
        scale = self.spent / self.expected if self.expected else 1.0
        now = time.monotonic()
        rest = sum(scale * float(job.seconds) for job in self.waiting)
        rest += sum(
            max(0.0, scale * float(job.seconds) - (now - t)) for job, t in self.running.values()
        )
        return rest / max(1, min(self.workers, len(self.running) + len(self.waiting)))

    def take(self, worker: int, last: Any) -> Any:
        """Return a worker's next job: of its own group, else of the longest free group."""
        if not self.waiting:
            return None
        taken = {job.group for job, _ in self.running.values()}
        left: dict[Any, float] = {}
        for job in self.waiting:
            left[job.group] = left.get(job.group, 0.0) + job.seconds
        group = max(left, key=lambda g: (g == last, g not in taken, left[g]))
        job = next(job for job in self.waiting if job.group == group)
        self.waiting.remove(job)
        self.running[worker] = (job, time.monotonic())
        return job

    def finish(self, worker: int) -> Any:
        """Count a worker's job as done."""
        job, began = self.running.pop(worker)
        self.done += 1
        self.spent += time.monotonic() - began
        self.expected += job.seconds
        return job


def run_jobs(
    jobs: Sequence[Schedulable],
    workers: Sequence[Executor],
    run: Callable[[Any], Any],
    keep: Callable[[Any, Any], None],
    look: Callable[[JobQueue], None] | None = None,
) -> None:
    """Run all jobs; `keep` receives each with its outcome, `look` shows the queue."""
    queue = JobQueue(list(jobs), len(workers))
    last: dict[int, Any] = {}
    futures: dict[Future[Any], int] = {}

    def start(worker: int) -> None:
        job = queue.take(worker, last.get(worker))
        if job is not None:
            last[worker] = job.group
            futures[workers[worker].submit(run, job)] = worker

    for worker in range(len(workers)):
        start(worker)
    while futures:
        if look:
            look(queue)
        finished, _ = wait(futures, timeout=TICK, return_when=FIRST_COMPLETED)
        for future in finished:
            worker = futures.pop(future)
            job = queue.finish(worker)
            keep(job, _outcome(future, job))
            start(worker)
    if look:
        look(queue)


@contextmanager
def local_workers(count: int) -> Iterator[list[Executor]]:
    """Start processes that end together with this one, even if it is killed.

    A single worker is a thread of this process.
    """
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        workers: list[Executor] = []
        for _ in range(count):
            if count == 1:
                workers.append(ThreadPoolExecutor(1))
            else:
                workers.append(ProcessPoolExecutor(1, context, initializer=_attend))
            stack.enter_context(_stopping(workers[-1]))
        yield workers


@contextmanager
def dask_workers(address: str) -> Iterator[list[Executor]]:
    """Use the workers of a Dask cluster, one job at a time for each of their threads."""
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
                "worker after worker died; give each more memory, and run the same command again "
                "to go on"
            ) from error
        except CancelledError as error:
            raise InputError(
                "the Dask scheduler went away before the work was done; run the same command again "
                "to go on"
            ) from error


@contextmanager
def showing_progress() -> Iterator[Callable[[JobQueue], None]]:
    """Show the queue on standard error: live on a terminal, else a line when something ends."""
    if not sys.stderr.isatty():
        yield _Lines().look
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), transient=True, refresh_per_second=2) as live:
        yield lambda queue: live.update(progress_table(queue))


def progress_table(queue: JobQueue) -> Any:
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


def duration(seconds: float) -> str:
    """Return a duration as text: 42 s, 3 min, 1 h 20 min."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"


def _outcome(future: Future[Any], job: Any) -> Any:
    try:
        return future.result()
    except BrokenExecutor as error:
        raise InputError(
            f"a process died while it worked on {job}; fewer --jobs need less memory, and the "
            "same command goes on from here"
        ) from error


@contextmanager
def _stopping(executor: Executor) -> Iterator[Executor]:
    """Do not wait for jobs that are no longer needed."""
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


class _Lines:
    """Print a line whenever a job has ended."""

    def __init__(self) -> None:
        self.done = 0

    def look(self, queue: JobQueue) -> None:
        if queue.done > self.done:
            self.done = queue.done
            left = duration(queue.seconds_left)
            print(f"{queue.done} of {queue.total} done, about {left} left", file=sys.stderr)
