"""Shared parts of the studies: options, a loop over cases, tables and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer

from ivvi.cli.terminal import check_json_target, emit_json, progress, run_app, say
from ivvi.errors import InputError
from ivvi.logs.log import Progress

Logs = Annotated[int, typer.Option(help="Logs of each design.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Json = Annotated[str | None, typer.Option("--json", help="Write JSON; - is stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")]
Plot = Annotated[str | None, typer.Option(help="Draw to this file, png, svg or pdf.")]
Case = TypeVar("Case")
Measured = TypeVar("Measured")


def no_bar(_: int) -> None:
    """Report no progress."""


def check(json: str | None, force: bool, **numbers: int) -> None:
    """Raise an error for a file that cannot be written or a number below 1, before the work."""
    check_json_target(json, force=force)
    for name, value in numbers.items():
        if value < 1:
            raise InputError(f"--{name} is {value}; expected at least 1")


def measure_each(
    label: str, cases: Sequence[Case], measure: Callable[[Case], Measured]
) -> list[Measured]:
    """Return the measurements of the cases, made one after another with a progress bar."""
    records = []
    with progress(label, len(cases)) as bar:
        for case in cases:
            records.append(measure(case))
            bar(1)
    return records


def binomial_deviation(logs: int, level: float = 0.95) -> float:
    """Return one standard deviation of the share of `logs` intervals that hold the truth."""
    return math.sqrt(level * (1 - level) / logs)


def coverage_cell(share: float, logs: int, width: int, level: float = 0.95) -> str:
    """Return a coverage as text; * marks one beyond three deviations of its level."""
    off = abs(share - level) > 3 * binomial_deviation(logs, level)
    return f"{share:>{width - 1}.1%}{'*' if off else ' '}"


def coverage_table(head: str, lines: Sequence[str], logs: int, size: str) -> str:
    """Return lines of coverages below their head, with a note on what they should be.

    `size` describes one log, such as "80 episodes of 50 steps".
    """
    foot = (
        f"{logs} logs each of {size}; a 95% interval should stand at 95% +- "
        f"{3 * binomial_deviation(logs):.1%} (three standard deviations), * does not"
    )
    return "\n".join([head, "-" * len(head), *lines, foot])


def tell(table: str, records: Iterable[Any], json: str | None, force: bool) -> None:
    """Print a table for people, or write the records (dataclasses, or dicts) as JSON."""
    say(table, quiet=json == "-")
    described = [r if isinstance(r, dict) else asdict(r) for r in records]
    emit_json(described, json, force=force)


def each_log(
    cases: Sequence[Case],
    measure: Callable[[Case, int, int, Progress], Measured | list[Measured]],
    logs: int,
    seed: int,
) -> list[Measured]:
    """Measure `logs` logs of each case behind a bar that counts logs.

    `measure` takes a case, the number of logs, a seed and the bar; it returns a record, or several.
    """
    records: list[Measured] = []
    with progress("logs", logs * len(cases)) as bar:
        for case in cases:
            measured = measure(case, logs, seed, bar)
            records += measured if isinstance(measured, list) else [measured]
    return records


def with_heading(table: str, logs: int, seed: int) -> str:
    """Return a table with the number of logs above it."""
    return f"{logs:,} logs of each design, seed {seed}\n{table}"


def logs_command(
    about: str,
    cases: Sequence[Case],
    measure: Callable[[Case, int, int, Progress], Measured | list[Measured]],
    table: Callable[[list[Measured]], str],
    default: int,
    *,
    heading: bool = False,
) -> Callable[..., None]:
    """Return the command of a study that draws `--logs` logs of each case; `about` is its help."""

    def command(
        logs: Logs = default, seed: Seed = 0, json: Json = None, force: Force = False
    ) -> None:
        check(json, force, logs=logs)
        records = each_log(cases, measure, logs, seed)
        text = table(records)
        tell(with_heading(text, logs, seed) if heading else text, records, json, force)

    command.__doc__ = about
    return command


def run_study(command: Callable[..., None]) -> None:
    """Run a study's command line."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    app.command()(command)
    run_app(app)
