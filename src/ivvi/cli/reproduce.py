"""`ivvi reproduce`: passes its arguments to the package `ivvi_reproduction`, if installed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import typer

from ivvi.cli.options import as_command
from ivvi.errors import InputError

PACKAGE = "ivvi_reproduction"
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Settings of a command that forwards all options, even ``--help``, to another program."""


def reproduce(context: typer.Context) -> None:
    """Reproduce the paper's tables and figures, as the paper computed them and at our best."""
    reproduction_app()(args=context.args, prog_name="ivvi reproduce", standalone_mode=False)


def reproduction_app() -> typer.Typer:
    """Return the command with the options that the package defines."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(as_command(import_reproduction("cli").reproduce))
    return app


def import_reproduction(module: str) -> Any:
    """Return a module of the paper's package, or raise an error that says how to install it."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise InputError(
            "reproducing the paper needs the package ivvi-reproduction, which is not installed; "
            "run `pip install ./reproduction` in a copy of ivvi's source"
        )
    return importlib.import_module(f"{PACKAGE}.{module}")
