"""Verbs as the shell sees them: groups of options spread out, and ``--verbose`` added.

An argument of a verb may be a group: a dataclass whose fields are options. Typer knows single
options only; `as_command` gives it the fields of a group in the group's place, and the verb the
group again.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from ivvi.cli.terminal import peak_memory, steps_shown
from ivvi.errors import InputError, check_seed

Verbose = Annotated[
    bool, typer.Option("--verbose", help="Log each step to stderr; show tracebacks.")
]
_BY_NAME = inspect.Parameter.KEYWORD_ONLY


def as_command(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the verb with the options of its groups as its own, and with ``--verbose``."""
    arguments = inspect.signature(verb, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: argument.annotation
        for name, argument in arguments.items()
        if is_dataclass(argument.annotation)
    }

    @functools.wraps(verb)
    def run(*, verbose: bool = False, **options: Any) -> None:
        _check_numbers(options)
        for name, group in groups.items():
            options[name] = group(**{f.name: options.pop(f.name) for f in fields(group)})
        if not verbose:
            return verb(**options)
        with steps_shown() as logger:
            verb(**options)
            logger.info("done%s", peak_memory())

    shell_parameters: list[inspect.Parameter] = []
    for name, argument in arguments.items():
        alone = [argument.replace(kind=_BY_NAME)]
        shell_parameters += _options(groups[name]) if name in groups else alone
    shell_parameters.append(
        inspect.Parameter("verbose", _BY_NAME, default=False, annotation=Verbose)
    )
    run.__signature__ = inspect.Signature(shell_parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in shell_parameters}
    return run


def _check_numbers(options: Mapping[str, Any]) -> None:
    """Refuse numbers that no verb can use: not finite, or larger than the machine's own."""
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
