"""Options that several commands share, and the log that the column options describe."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ivvi.errors import InputError


def words(*known: str) -> Callable[[str], list[str]]:
    """Return a completion of these words for the shell."""
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


Json = Annotated[str | None, typer.Option("--json", help="Write JSON to this file; - is stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
UNTOLD = ("json", "force", "report")
"""Options that change where results go, not what they are."""
SOURCES = "Parquet (file, folder, glob), CSV, Arrow, or minari:NAME."
Source = Annotated[str, typer.Argument(help=SOURCES)]
OptionalSource = Annotated[str | None, typer.Argument(help=SOURCES)]
State = Annotated[
    str | None, typer.Option(help="State columns: names, globs (x*) or ranges (x0:x4).")
]
Action = Annotated[str | None, typer.Option(help="Action columns.")]
Instrument = Annotated[str | None, typer.Option(help="Instrument columns.")]
NextState = Annotated[
    str | None, typer.Option(help="Next-state columns; else the next row's state.")
]
Reward = Annotated[str | None, typer.Option(help="Reward column, learned as one more output.")]
Episode = Annotated[str | None, typer.Option(help="Episode column. [default: episode, if present]")]
Step = Annotated[str | None, typer.Option(help="Step column. [default: step, if present]")]
Weight = Annotated[str | None, typer.Option(help="Column of row weights.")]
DropMissing = Annotated[bool, typer.Option(help="Drop rows with missing or infinite values.")]
Features = Annotated[
    str,
    typer.Option(
        help="linear, poly2, poly2:cross, spline:5, fourier:200.",
        autocompletion=words("linear", "poly2", "poly2:cross", "spline:5", "fourier:200"),
    ),
]
Se = Annotated[
    str,
    typer.Option(
        help="Standard errors: auto, unadjusted, robust, clustered or hac.",
        autocompletion=words("auto", "unadjusted", "robust", "clustered", "hac"),
    ),
]
Cluster = Annotated[
    str | None, typer.Option(help="One or two columns to cluster by. [default: the episode]")
]
Debiased = Annotated[bool, typer.Option(help="Small-sample correction of variances.")]
Bandwidth = Annotated[int | None, typer.Option(help="Largest lag of hac.")]
Phi = Annotated[str | None, typer.Option(help="Feature word for phi(x, a) alone.")]
Psi = Annotated[str | None, typer.Option(help="Feature word for psi(x, z) alone.")]
Unidentified = Annotated[
    bool, typer.Option("--allow-unidentified", help="Accept the minimum-norm solution.")
]
Scheduler = Annotated[
    str | None,
    typer.Option(help="Address of a Dask scheduler that reads the log, tcp://host:8786."),
]
Workers = Annotated[int | None, typer.Option(help="Read the log with this many processes (Dask).")]


def command_line(context: typer.Context) -> str:
    """Return a command as it can be typed again: what was said, without the defaults."""
    words = ["ivvi", str(context.info_name)]
    place = {"argument": 0, "out": 2}  # the log first, where it goes last
    options = context.command.params
    for option in sorted(options, key=lambda o: place.get(o.param_type_name, place.get(o.name, 1))):
        name, value = str(option.name), context.params.get(str(option.name))
        if value is None or value == option.default or name in UNTOLD:
            continue
        if option.param_type_name == "argument":
            words.append(str(value))
        elif value is True:
            words.append(option.opts[0])
        else:
            words += [option.opts[0], str(value)]
    return shlex.join(words)


def chosen_cluster(scheduler: str | None, workers: int | None) -> str | int | None:
    """Return the cluster that the options ask for."""
    if scheduler is not None and workers is not None:
        raise InputError("--scheduler and --workers exclude each other; one is wanted")
    return scheduler if workers is None else workers


def standard_errors(options: dict[str, Any]) -> Any:
    """Return the standard errors that the options of a command ask for."""
    from ivvi.estimators import StandardErrors

    return StandardErrors(
        options["se"],
        options["cluster"] or (),
        options["debiased"],
        bandwidth=options["bandwidth"],
    )


def rows_to_read(log: Any, errors: Any) -> int | None:
    """Return the rows that a progress bar counts: standard errors read them a second time."""
    rows = getattr(log, "num_rows", None)  # sums have none
    return None if rows is None else int(rows) * (1 if errors.kind == "unadjusted" else 2)


def open_log(log: str, options: dict[str, Any]) -> Any:
    """Open the log with the column options of a command."""
    from ivvi.logs import read_logs

    names = ("reward", "episode", "step", "weight")
    return read_logs(
        log,
        state=options["state"],
        action=options["action"],
        instrument=options["instrument"],
        next_state=options["next_state"] or (),
        drop_missing=options["drop_missing"],
        **{name: options[name] for name in names},
    )
