"""Options that several commands share, one by one and in groups.

An argument of a verb may be a group: a dataclass whose fields are options. Typer supports only
single options. So `as_command` gives it the fields of each group as options, and passes the group
itself to the verb. It also adds ``--verbose``.
"""

from __future__ import annotations

import functools
import inspect
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ivvi.cli.overwrite_guard import check_inputs_are_kept
from ivvi.cli.terminal import peak_memory, steps_shown
from ivvi.errors import InputError, check_seed
from ivvi.option_values import FEATURES, STANDARD_ERRORS, listed

Verbose = Annotated[
    bool, typer.Option("--verbose", help="Log each step to stderr; show tracebacks.")
]
_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def completing(*known: str) -> Callable[[str], list[str]]:
    """Return a shell completion for these words."""
    return lambda incomplete: [word for word in known if word.startswith(incomplete)]


Json = Annotated[str | None, typer.Option("--json", help="Write JSON to this file; - is stdout.")]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="Up to three columns to cluster by. "
        "[default: chosen from the log, usually the episode]"
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
OUTPUT_OPTIONS = ("json", "force", "report")
"""Options that change where results are written, not the results."""
SOURCES = "Parquet (file, folder, glob), CSV, Arrow, or minari:NAME."
SourceArgument = Annotated[str, typer.Argument(help=SOURCES)]
SourceOrModel = Annotated[
    str, typer.Argument(help=f"{SOURCES[:-1]}; or the folder of a model that `ivvi fit` saved.")
]
OptionalSource = Annotated[str | None, typer.Argument(help=SOURCES)]
DropMissing = Annotated[bool, typer.Option(help="Drop rows with missing or infinite values.")]
Where = Annotated[
    str | None,
    typer.Option(help="Keep only these rows: \"age >= 18 and ward != 'ICU'\"."),
]
TrustOption = Annotated[
    str,
    typer.Option(
        "--trust",
        help="Packages from which saved models and policies may import, comma-separated.",
    ),
]
Unidentified = Annotated[
    bool, typer.Option("--allow-unidentified", help="Accept the minimum-norm solution.")
]
Absorb = Annotated[
    str | None,
    typer.Option(help="Columns whose fixed effects are absorbed, such as id or id,year."),
]
Unit = Annotated[
    str,
    typer.Option(help="Unit whose absorbed effects are used, such as id=7. [default: average]"),
]


def of_unit(fit: Any, text: str) -> Any:
    """Return a fit for the unit that ``--unit`` names, or the fit unchanged."""
    if not text:
        return fit
    pairs = [part.partition("=") for part in text.split(",")]
    for name, sign, value in pairs:
        if not (name.strip() and sign and value.strip()):
            raise InputError(f"--unit is {text!r}; expected COLUMN=VALUE, as in id=7")
    return fit.of_unit(**{name.strip(): value.strip() for name, _, value in pairs})


def trusted(text: str) -> tuple[str, ...]:
    """Return the packages that ``--trust`` names."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def command_line(context: typer.Context) -> str:
    """Return the command line as it was typed, without default options."""
    words = ["ivvi", str(context.info_name)]
    place = {"argument": 0, "out": 2}  # the log first, where it goes last
    options = context.command.params
    for option in sorted(options, key=lambda o: place.get(o.param_type_name, place.get(o.name, 1))):
        name, value = str(option.name), context.params.get(str(option.name))
        if value is None or value == option.default or name in OUTPUT_OPTIONS:
            continue
        if option.param_type_name == "argument":
            words.append(str(value))
        elif value is True:
            words.append(option.opts[0])
        else:
            words += [option.opts[0], str(value)]
    return shlex.join(words)


def folder_names(folders: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Return the last part of each path; the whole path where that part is not unique."""
    last = [Path(folder).name for folder in folders]
    pairs = zip(last, folders, strict=True)
    return [n if n and last.count(n) == 1 and n not in taken else f for n, f in pairs]


def refuse_given(
    group: Any, reason: str, but: tuple[str, ...] = (), context: typer.Context | None = None
) -> None:
    """Raise an error for options of a group that are given but would have no effect.

    With the `context` of the command, also for options that are given with their default value.
    """
    for option in fields(group):
        source = None if context is None else context.get_parameter_source(option.name)
        typed = source is not None and source.name == "COMMANDLINE"
        if option.name not in but and (typed or getattr(group, option.name) != option.default):
            raise InputError(f"--{option.name.replace('_', '-')} {reason}")


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """The roles of the columns of a log."""

    state: Annotated[
        str | None, typer.Option(help="State columns: names, globs (x*) or ranges (x0:x4).")
    ] = None
    action: Annotated[str | None, typer.Option(help="Action columns.")] = None
    instrument: Annotated[
        str | None,
        typer.Option(
            help="Instrument columns; loo:doctor is the doctor's mean action in all other episodes."
        ),
    ] = None
    next_state: Annotated[
        str | None, typer.Option(help="Next-state columns. [default: the state of the next row]")
    ] = None
    formula: Annotated[
        str | None,
        typer.Option(
            help="All columns at once: 'next_x ~ x + C(ward) + x:age | absorbed | dose ~ doctor'."
        ),
    ] = None
    reward: Annotated[
        str | None, typer.Option(help="Reward column, learned as one more output.")
    ] = None
    episode: Annotated[
        str | None,
        typer.Option(
            help="Episode column, or several whose combinations are the episodes (store,brand). "
            "[default: episode, if present]"
        ),
    ] = None
    step: Annotated[
        str | None, typer.Option(help="Step column: numbers or dates. [default: step, if present]")
    ] = None
    context: Annotated[
        str,
        typer.Option(help="Columns used for prediction but not predicted themselves (age, ward)."),
    ] = ""
    categorical: Annotated[
        str, typer.Option(help="Numeric columns that are categories; text columns always are.")
    ] = ""
    lags: Annotated[
        int,
        typer.Option(
            help="Number of lags: earlier rows whose states and actions are added to the state."
        ),
    ] = 0
    lag_padding: Annotated[
        str,
        typer.Option(
            help="First rows, which have no lags: drop, or first (repeat the first state).",
            autocompletion=completing("drop", "first"),
        ),
    ] = "drop"
    every: Annotated[
        str | None,
        typer.Option(
            help="Time between consecutive steps, such as 12h, 7d or 1mo; rows further apart are "
            "not joined."
        ),
    ] = None
    date_format: Annotated[
        str | None,
        typer.Option(
            help="Format of the dates in --step, such as %d.%m.%Y; semicolons separate several."
        ),
    ] = None
    seen: Annotated[
        str,
        typer.Option(
            help="When the states of a row were seen: before its action, or after it.",
            autocompletion=completing("before", "after"),
        ),
    ] = "before"
    terminal: Annotated[
        str | None,
        typer.Option(
            help="Column that is true where the episode ended for good, or names how (died, "
            "discharged) and is empty elsewhere; or a true/false column for each kind of end."
        ),
    ] = None
    weight: Annotated[str | None, typer.Option(help="Column of row weights.")] = None
    weight_kind: Annotated[
        str,
        typer.Option(
            help="probability (survey weights) or frequency (how many rows each row stands for).",
            autocompletion=completing("probability", "frequency"),
        ),
    ] = "probability"
    where: Where = None
    missing: Annotated[str, typer.Option(help="Values that mean missing, such as -9,999.")] = ""
    drop_missing: DropMissing = False

    def open(self, log: str) -> Any:
        """Open a log with these columns."""
        from ivvi.logs import read_logs

        return read_logs(
            log,
            state=self.state,
            action=self.action,
            instrument=self.instrument,
            next_state=self.next_state or (),
            missing=self.missing,
            drop_missing=self.drop_missing,
            reward=self.reward,
            episode=self.episode,
            formula=self.formula,
            where=self.where,
            step=self.step,
            weight=self.weight,
            weight_kind=self.weight_kind,
            context=self.context,
            categorical=self.categorical,
            lags=self.lags,
            lag_padding=self.lag_padding,
            every=self.every,
            date_format=self.date_format,
            seen=self.seen,
            terminal=self.terminal or (),
        )


@dataclass(frozen=True, slots=True)
class FeatureOptions:
    """The words of phi and psi."""

    features: Annotated[
        str,
        typer.Option(
            help=f"{listed(FEATURES)}; with auto the data choose.",
            autocompletion=completing(*FEATURES),
        ),
    ] = "linear"
    phi: Annotated[
        str | None, typer.Option(help="Features of state and action only, overriding --features.")
    ] = None
    psi: Annotated[
        str | None,
        typer.Option(help="Features of state and instrument only, overriding --features."),
    ] = None

    @property
    def both(self) -> tuple[str, str]:
        """The word of phi(x, a) and that of psi(x, z)."""
        return self.phi or self.features, self.psi or self.features


@dataclass(frozen=True, slots=True)
class ErrorOptions:
    """The standard errors."""

    se: Annotated[
        str,
        typer.Option(
            help=f"Standard errors: {listed(STANDARD_ERRORS)} (liml with many instruments).",
            autocompletion=completing(*STANDARD_ERRORS),
        ),
    ] = "auto"
    cluster: ClusterOption = None
    debiased: Annotated[
        bool | None,
        typer.Option(help="Correct variances for small samples. [default: only clustered ones]"),
    ] = None
    bandwidth: Annotated[int | None, typer.Option(help="Largest lag for hac.")] = None
    draws: Annotated[int, typer.Option(help="Draws of the wild bootstrap.")] = 9999

    @property
    def requested(self) -> Any:
        """The requested standard errors."""
        from ivvi.estimators import StandardErrors

        columns = self.cluster or ()
        return StandardErrors(
            self.se, columns, self.debiased, bandwidth=self.bandwidth, draws=self.draws
        )


@dataclass(frozen=True, slots=True)
class DaskOptions:
    """The processes that read a log."""

    scheduler: Annotated[
        str | None,
        typer.Option(help="Address of a Dask scheduler that reads the log, tcp://host:8786."),
    ] = None
    workers: Annotated[
        int | None, typer.Option(help="Read the log with this many processes (Dask).")
    ] = None

    @property
    def client(self) -> str | int | None:
        """The requested cluster."""
        if self.scheduler is not None and self.workers is not None:
            raise InputError("--scheduler and --workers exclude each other; expected one")
        return self.scheduler if self.workers is None else self.workers


def as_command(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with the options of its groups as its own options, and ``--verbose``."""
    arguments = inspect.signature(verb, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: argument.annotation
        for name, argument in arguments.items()
        if is_dataclass(argument.annotation)
    }

    @functools.wraps(verb)
    def run(*, verbose: bool = False, **options: Any) -> None:
        _check_numbers(options)
        check_inputs_are_kept(verb.__name__, options)
        for name, group in groups.items():
            options[name] = group(**{f.name: options.pop(f.name) for f in fields(group)})
        if not verbose:
            return verb(**options)
        with steps_shown() as logger:
            verb(**options)
            logger.info("done%s", peak_memory())

    shell_parameters: list[inspect.Parameter] = []
    for name, argument in arguments.items():
        single = [argument.replace(kind=_BY_NAME)]
        shell_parameters += _options(groups[name]) if name in groups else single
    shell_parameters.append(
        inspect.Parameter("verbose", _BY_NAME, default=False, annotation=Verbose)
    )
    run.__signature__ = inspect.Signature(shell_parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in shell_parameters}
    return run


def _check_numbers(options: Mapping[str, Any]) -> None:
    """Raise an error for numbers that are not finite or too large for a machine integer."""
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{option} is {value}; expected a finite number")
        if isinstance(value, int) and abs(value) >= 2**63:
            raise InputError(f"{option} is a number of more than 18 digits; expected a smaller one")
    check_seed(options.get("seed", 0))


def _options(group: Any) -> Iterator[inspect.Parameter]:
    """Yield the fields of a group as arguments."""
    hints = get_type_hints(group, include_extras=True)
    for field in fields(group):
        yield inspect.Parameter(
            field.name, _BY_NAME, default=field.default, annotation=hints[field.name]
        )
