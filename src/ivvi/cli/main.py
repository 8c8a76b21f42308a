"""The command line: `ivvi VERB`, where each verb is a module of `ivvi.cli`.

Exit codes: 0 for success; 1 when the machine failed (a full disk, no memory, a closed pipe) or
`ivvi doctor` found a fault; 2 for input that cannot be used, with one sentence on standard error;
130 when interrupted, 143 when terminated or hung up. No file is ever left half-written.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ivvi._io.memory import allowed_memory
from ivvi._io.program_cache import keep_programs
from ivvi.cli.act import act
from ivvi.cli.check import check
from ivvi.cli.demo import demo
from ivvi.cli.diagnose import diagnose
from ivvi.cli.doctor import doctor
from ivvi.cli.effect import effect
from ivvi.cli.evaluate import evaluate
from ivvi.cli.fit import fit
from ivvi.cli.interval import interval
from ivvi.cli.moments import merge, moments
from ivvi.cli.options import as_command
from ivvi.cli.plan import plan
from ivvi.cli.report import report
from ivvi.cli.reproduce import PASS_ON, reproduce
from ivvi.cli.respond import respond
from ivvi.cli.sensitivity import sensitivity
from ivvi.cli.simulate import simulate
from ivvi.cli.table import table
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
    *(demo, simulate, diagnose, check, fit, effect, respond, interval, update, moments, merge),
    *(table, plan, act, evaluate, value, sensitivity, reproduce, report),
    doctor,
)
COMPILING = (
    *("demo", "simulate", "fit", "interval", "plan", "act", "evaluate", "value", "sensitivity"),
    *("reproduce", "report"),
)
"""Verbs that may compile programs, which are cached for the next command."""
WITHOUT_JAX = {"fit", "interval", "report"}
"""The verbs among these that usually do not compile."""
ROOM, ROOM_FOR_JAX, PLENTY = 5 << 27, 5 << 29, 1 << 32
"""With fewer bytes of address space than the first, libraries end the process or hang when they are
loaded. With fewer than the second, OpenBLAS gets only one thread, as each takes its own share."""
SHORT = {
    "demo": "Run the whole analysis on a simulated log, with a report.",
    "simulate": "Write a log of a simulated world with a hidden confounder.",
    "diagnose": "Is the instrument strong, and is the log confounded?",
    "check": "Does the order of rows cast doubt on the instrument?",
    "fit": "Estimate what the actions do, and save it as a model.",
    "effect": "How does an effect change with a state, and whom does it help?",
    "respond": "How long does an effect last, and does the model agree?",
    "interval": "A confidence set for one effect, valid with a weak instrument.",
    "update": "Add new rows to a model, without the old ones.",
    "moments": "Write the sums of a log, to share instead of its rows.",
    "merge": "Add up sums, as if all their rows were one log.",
    "table": "Print fits side by side, for a paper or a slide.",
    "plan": "Find the best actions in an estimated model.",
    "act": "Ask a policy what to do in one state or a table of states.",
    "evaluate": "Run policies in a simulated world, under the same noise.",
    "value": "What is a policy worth, by the log alone?",
    "sensitivity": "How invalid may the instrument be before the answer changes?",
    "reproduce": "Reproduce the paper's tables and figures.",
    "report": "Write one HTML file that shows a fit, a policy, its value.",
    "doctor": "Show versions, and check that everything works here.",
}
"""The line of `ivvi --help` for each verb, at most 80 columns wide."""
for verb in VERBS:
    short = SHORT.get(verb.__name__)
    if verb is reproduce:
        app.command(context_settings=PASS_ON, short_help=short)(verb)
    else:
        app.command(short_help=short)(as_command(verb))


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    _check_room(context.invoked_subcommand)
    if context.invoked_subcommand in COMPILING:
        keep_programs()
    if version:
        print(f"ivvi {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def _check_room(verb: str | None) -> None:
    """Exit with an error if a limit leaves too little memory, where libraries would crash."""
    compiling, allowed = verb in COMPILING and verb not in WITHOUT_JAX, allowed_memory()
    if allowed < PLENTY:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy is not loaded yet
    if verb and allowed < (ROOM_FOR_JAX if compiling else ROOM):
        raise MemoryError


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    run_app(app, arguments)


if __name__ == "__main__":
    main()
