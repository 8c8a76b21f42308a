"""The command line: `ivvi VERB`, where each verb is a module of `ivvi.cli`.

Exit codes: 0 when all went well; 1 when the machine failed (a full disk, no memory, a reader
that went away) or `ivvi doctor` found a fault; 2 for input that cannot be used, with one
sentence on standard error; 130 when interrupted. Nothing is ever left half-written.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ivvi._io.program_cache import keep_programs
from ivvi.cli.act import act
from ivvi.cli.check import check
from ivvi.cli.demo import demo
from ivvi.cli.diagnose import diagnose
from ivvi.cli.doctor import doctor
from ivvi.cli.evaluate import evaluate
from ivvi.cli.fit import fit
from ivvi.cli.interval import interval
from ivvi.cli.moments import merge, moments
from ivvi.cli.option_groups import as_command
from ivvi.cli.plan import plan
from ivvi.cli.report import report
from ivvi.cli.reproduce import PASS_ON, reproduce
from ivvi.cli.sensitivity import sensitivity
from ivvi.cli.simulate import simulate
from ivvi.cli.terminal import run_app
from ivvi.cli.update import update
from ivvi.cli.value import value
from ivvi.version import __version__

app = typer.Typer(
    name="ivvi",
    help="Learn decisions from logs that lie: instruments undo hidden confounding.",
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
VERBS = (
    *(demo, simulate, diagnose, check, fit, interval, update, moments, merge),
    *(plan, act, evaluate, value, sensitivity, reproduce, report),
    doctor,
)
COMPILING = (
    *("demo", "simulate", "fit", "interval", "plan", "act", "evaluate", "value", "sensitivity"),
    *("reproduce", "report"),
)
"""Verbs that may compile programs, which are kept for the next command."""
for verb in VERBS:
    if verb is reproduce:
        app.command(context_settings=PASS_ON)(verb)
    else:
        app.command()(as_command(verb))


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    if context.invoked_subcommand in COMPILING:
        keep_programs()
    if version:
        print(f"ivvi {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    run_app(app, arguments)


if __name__ == "__main__":
    main()
