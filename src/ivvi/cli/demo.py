"""`ivvi demo`: the whole analysis on a simulated log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ivvi.cli.options import Force, Json, Seed
from ivvi.cli.terminal import check_json_target, emit_json, program_name, progress, say


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the log, the models, the pictures and the report.")
    ] = Path("ivvi-demo"),
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Run the whole analysis on a simulated log: what confounding does, how an instrument helps."""
    from ivvi.reporting.demo import run_demo

    check_json_target(json, force=force)
    with progress("running the demo", None):
        story = run_demo(out, seed=seed, force=force, program=program_name())
    say(story.text, quiet=json == "-")
    emit_json(story.facts, json, force=force)
