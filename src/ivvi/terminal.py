"""What the command line shows: progress on a terminal, results, one-sentence errors."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ivvi.files import checked_output, write_json


@contextlib.contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """Show a bar that counts rows on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda rows: bar.advance(task, rows)


def say(text: str, *, quiet: bool = False) -> None:
    """Print a line for people."""
    if not quiet:
        print(text)


def warn(text: str) -> None:
    """Print a warning on standard error."""
    print(f"ivvi: warning: {text}", file=sys.stderr)


def check_json_target(target: str | None, *, force: bool) -> None:
    """Refuse a JSON file that cannot be written, before the work starts."""
    if target not in (None, "-"):
        checked_output(str(target), force=force)


def emit_json(value: Any, target: str | None, *, force: bool) -> None:
    """Write `value` to the file `target`, to standard output for ``-``, nowhere for None."""
    if target == "-":
        print(json.dumps(value, indent=2, allow_nan=False))
    elif target is not None:
        write_json(target, value, force=force)
