"""Output of the command line: progress on a terminal, results, one-sentence errors."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shlex
import shutil
import sys
import textwrap
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer

from ivvi._io.signals import end_on_signals
from ivvi.errors import FileError, InputError, IvviWarning

BAD_NAMES = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOENT)
"""System error codes for an invalid path."""
MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
"""System error codes for failures of the system itself."""
NO_ROOM = ("failed to map segment", "cannot allocate memory")
"""Messages of the system's loader when a library does not fit into memory."""
BEAT = 30.0
"""Seconds between two progress lines, where no progress bar can be shown."""
LONGEST_WORD = 300
"""Most characters of a word, such as a path, that are printed in full."""
OPTIONAL = ("jax", "gymnasium", "matplotlib", "jinja2")
"""Libraries without which diagnose, check, fit and interval still work."""
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""Base class of errors about options: Typer's own or click's, depending on its version."""


@contextlib.contextmanager
def progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar that counts rows on standard error, or a line every 30 s without a terminal.

    `total` is the number of rows of one pass; each further pass counts from 0 again.
    """
    if not sys.stderr.isatty():
        with _lines(label, total) as count:
            yield count
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    what_runs = TextColumn("{task.description}")
    left = TimeRemainingColumn()  # the spinner and the clock move even before anything is counted
    columns = (
        SpinnerColumn(),
        what_runs,
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        left,
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        passes = 1

        def advance(rows: int) -> None:
            nonlocal passes
            if total is not None and bar.tasks[0].completed + rows > total:
                passes += 1
                bar.reset(task, description=f"{label}, pass {passes}")
            bar.advance(task, rows)

        yield advance


@contextlib.contextmanager
def _lines(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Print the progress from time to time, from a thread: also while nothing is counted."""
    rows, began, ended = 0, time.monotonic(), threading.Event()

    def count(more: int) -> None:
        nonlocal rows
        rows += more

    def say_how_far() -> None:
        while not ended.wait(BEAT):
            seconds = f"{time.monotonic() - began:.0f} s"
            far = f"{rows:,} of {total:,} after {seconds}" if total else f"{seconds} so far"
            if total and rows > total:
                passes, done = divmod(rows - 1, total)
                far = f"pass {passes + 1}, {done + 1:,} of {total:,} after {seconds}"
            print(f"ivvi: {label}: {far}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=say_how_far, daemon=True)
    thread.start()
    try:
        yield count
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def steps_shown() -> Iterator[logging.Logger]:
    """Print the package's log messages on standard error, with the seconds since the start."""
    logger = logging.getLogger("ivvi")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Seconds())
    handler.addFilter(lambda record: record.levelno < logging.WARNING)  # others are shown anyway
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield logger
    except (InputError, OSError):
        traceback.print_exc()
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextlib.contextmanager
def notes_shown() -> Iterator[None]:
    """Print the package's log warnings, such as that it waits for another run."""
    logger, handler = logging.getLogger("ivvi"), logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("ivvi: note: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _Seconds(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"ivvi: {record.relativeCreated / 1000:7.2f} s  {record.getMessage()}"


def program_name() -> str:
    """Return the command that the user types to run ``ivvi``."""
    if command := os.environ.get("IVVI_COMMAND"):  # set by ./run
        return shlex.quote(command)
    typed = sys.argv[0] if sys.argv else ""
    if Path(typed).name == "__main__.py":
        return f"{Path(sys.executable).name} -m ivvi"
    if Path(typed).name == "ivvi" and shutil.which("ivvi") != typed:
        return shlex.quote(typed)
    return "ivvi"


def peak_memory() -> str:
    """Return the peak memory of the process, in words, where the system reports it."""
    try:
        import resource
    except ImportError:  # not on Windows
        return ""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f", {peak / (1024 if sys.platform != 'darwin' else 1024**2):,.0f} MiB at most"


def say(text: str, *, quiet: bool = False, aside: bool = False) -> None:
    """Print a line for people; commands in it begin with their own command, such as ``./run``.

    An aside goes to standard error, where standard output is a table for programs.
    """
    if not quiet:
        if "IVVI_COMMAND" in os.environ:
            text = text.replace("`ivvi ", f"`{program_name()} ")
        print(text, file=sys.stderr if aside else sys.stdout)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    _complain(f"ivvi: warning: {text}")


def note(text: str) -> None:
    """Print a note on the results on standard error."""
    _complain(f"ivvi: note: {text}")


def _complain(sentence: str) -> None:
    """Print a sentence on standard error: one line, or folded to the width of a terminal."""
    if sys.stderr.isatty():
        width = max(20, shutil.get_terminal_size().columns)
        sentence = textwrap.fill(
            sentence, width, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
    print(sentence, file=sys.stderr)


def check_json_target(
    target: str | None, *, force: bool, out: Path | None = None, checkpoint: Path | None = None
) -> None:
    """Raise an error if the JSON file is also another output, before the work starts."""
    from ivvi._io.files import checked_file  # imports NumPy

    if target is None or target == "-":
        return
    checked_file(target, force=force)
    for option, other in (("--out", out), ("--checkpoint", checkpoint)):
        if other is not None and Path(target).resolve() == other.resolve():
            raise FileError(f"{option} and --json both name {target}; give two different files")


def emit_json(value: Any, target: str | None, *, force: bool, **more: Any) -> None:
    """Write JSON values to the file `target`, or to standard output for ``-``; None writes nothing.

    For a result, its `to_json` is called, but only if needed; `more` is added to the values.
    """
    from ivvi._io.files import write_json

    if target is None:
        return
    document = value.to_json() if hasattr(value, "to_json") else value
    document = {**document, **more} if more else document
    if target == "-":
        print(json.dumps(document, indent=2, allow_nan=False))
    else:
        write_json(target, document, force=force)


def run_app(app: typer.Typer, arguments: list[str] | None = None) -> None:
    """Run a command line; invalid input ends it with one sentence and exit code 2."""
    warnings.simplefilter("ignore", IvviWarning)  # the commands print them themselves
    _open_streams()
    if arguments is None:  # a process of its own
        end_on_signals()
    try:
        with notes_shown():
            code = app(args=arguments, standalone_mode=False)
        sys.stdout.flush()
    except InputError as error:
        _stop(str(error), 1 if _is_machine(error.__cause__) else 2)
    except ImportError as error:
        _stop(*_not_loaded(error))
    except UsageError as error:
        _stop(error.format_message(), 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        _stop("interrupted", 130)
    except MemoryError:
        _stop("out of memory", 1)
    except BrokenPipeError:  # the reader has gone, as head does; drop the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except OSError as error:
        _stop(str(error), 2 if error.errno in BAD_NAMES else 1)
    if code == 130:  # newer versions of Typer return this where older ones raise Abort
        _stop("interrupted", 130)
    raise SystemExit(code if isinstance(code, int) else 0)


def _not_loaded(error: ImportError) -> tuple[str, int]:
    """Return the message and exit code for a missing library or no memory; else it is a bug."""
    if any(words in str(error) for words in NO_ROOM):
        return "out of memory", 1
    name = (error.name or "").partition(".")[0]
    if name not in OPTIONAL or not isinstance(error, ModuleNotFoundError):
        raise error
    return f"this needs {name}, which is not installed: pip install {name}", 2


def _open_streams() -> None:
    """Redirect streams that were closed (``>&-``) to the null device.

    Python has None for such a stream, and the next file that is opened would get its number.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115


def _is_machine(cause: BaseException | None) -> bool:
    """Return whether the machine failed, such as a full or broken disk, and not the input."""
    if isinstance(cause, OSError) and cause.errno in MACHINE:
        return True
    return cause is not None and "No space left on device" in str(cause)


def _stop(sentence: str, code: int) -> None:
    words = (w if len(w) <= LONGEST_WORD else f"{w[:60]}...{w[-20:]}" for w in sentence.split())
    _complain(f"ivvi: {' '.join(words)}")
    raise SystemExit(code)
