"""`ivvi respond`: how long an effect lasts, and whether the model agrees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ivvi.cli.options import (
    ClusterOption,
    ColumnOptions,
    Force,
    Json,
    Seed,
    SourceArgument,
    completing,
)
from ivvi.cli.terminal import check_json_target, emit_json, progress, say
from ivvi.errors import InputError
from ivvi.option_values import RESPONSE_ERRORS, listed


def respond(  # noqa: PLR0913
    log: SourceArgument,
    *,
    columns: ColumnOptions,
    of: Annotated[
        str | None, typer.Option(help="Action whose effect is traced. [default: the only one]")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="What responds. [default: the reward, or the first output]")
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            help="Number of horizons, h = 0, 1, ... [default: 8, or as many as the episodes reach]"
        ),
    ] = None,
    later: Annotated[
        str,
        typer.Option(
            help="Later actions are held (fixed) or follow (react to the state, as in the log).",
            autocompletion=completing("held", "follow"),
        ),
    ] = "held",
    se: Annotated[
        str,
        typer.Option(
            help=f"Standard errors: {listed(RESPONSE_ERRORS)}.",
            autocompletion=completing(*RESPONSE_ERRORS),
        ),
    ] = "auto",
    cluster: ClusterOption = None,
    level: Annotated[float, typer.Option(help="Confidence level of intervals and bands.")] = 0.95,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the response into this file (svg, png or pdf).")
    ] = None,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Show how long an action's effect lasts, with bands, and what the fitted model implies."""
    from ivvi._io.plotting import check_figure
    from ivvi.fitting.impulse_response.respond import respond as find_response

    check_json_target(json, force=force)
    check_figure(plot, force=force)
    logs = columns.open(log)
    actions = logs.roles.action
    if of is None and len(actions) > 1:
        raise InputError(f"there are {len(actions)} actions; choose one with --of")
    with progress("reading", logs.num_rows) as bar:
        result = find_response(
            logs,
            of or actions[0],
            output,
            horizon,
            later=later,
            level=level,
            se=se,
            cluster=cluster or (),
            seed=seed,
            progress=bar,
        )
    say(result.summary(), quiet=json == "-")
    if plot is not None:
        result.plot(plot, force=force)
        say(f"figure: {plot}", quiet=json == "-")
    emit_json(result, json, force=force)
