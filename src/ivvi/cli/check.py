"""`ivvi check`: tests of the instrument that use the order of a log's rows."""

from __future__ import annotations

from typing import Annotated

import typer

from ivvi.cli.options import (
    ClusterOption,
    ColumnOptions,
    FeatureOptions,
    Force,
    Json,
    Seed,
    SourceArgument,
)
from ivvi.cli.terminal import check_json_target, emit_json, progress, say


def check(  # noqa: PLR0913
    log: SourceArgument,
    *,
    columns: ColumnOptions,
    features: FeatureOptions,
    richer: Annotated[
        str | None, typer.Option(help="Features to compare with. [default: one step richer]")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            help="Column of numbers or dates; also check that effects are stable along it."
        ),
    ] = None,
    cluster: ClusterOption = None,
    level: Annotated[float, typer.Option(help="p-value below which a check fails.")] = 0.01,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Check that the instrument does not depend on the past and that one model holds throughout."""
    from ivvi.sequence.check import check as check_log

    check_json_target(json, force=force)
    logs = columns.open(log)
    with progress("reading", logs.num_rows) as bar:
        result = check_log(
            logs,
            *features.both,
            richer=richer,
            time=time,
            cluster=cluster or (),
            level=level,
            seed=seed,
            progress=bar,
        )
    say(str(result), quiet=json == "-")
    emit_json(result, json, force=force)
