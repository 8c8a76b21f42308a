"""The options of `ivvi reproduce`: the paper's experiments, its numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ivvi.cli.options import Force, Json
from ivvi.cli.terminal import check_json_target, emit_json, say


def reproduce(  # noqa: PLR0913
    experiment: Annotated[str, typer.Argument(help="linear, nonlinear, movielens or all.")] = "all",
    out: Annotated[
        Path, typer.Option(help="Folder of the records; a killed run continues from them.")
    ] = Path("ivvi-reproduction"),
    quick: Annotated[bool, typer.Option("--quick", help="One log per cell, few episodes.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Logs per cell. [default: 5, quick 1]")] = None,
    column: Annotated[
        str,
        typer.Option(
            help="paper (as the paper did), authors (their estimates), best (ours) or all."
        ),
    ] = "all",
    jobs: Annotated[int, typer.Option(help="Processes.")] = 2,
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler that does the work instead.")
    ] = None,
    ratings: Annotated[
        str | None, typer.Option(help="MovieLens 1M ratings. [default: a synthetic stand-in]")
    ] = None,
    specs: Annotated[
        str | None, typer.Option(help="Folder of specs to run instead of the paper's.")
    ] = None,
    json: Json = None,
    force: Force = False,
) -> None:
    """Reproduce the paper's tables and figures, as the paper computed them and at our best."""
    from ivvi.reporting.page import write_page
    from ivvi_reproduction.jobs import Options
    from ivvi_reproduction.report_page import report_page
    from ivvi_reproduction.reproduce import reproduce as run
    from ivvi_reproduction.results import as_json, as_text
    from ivvi_reproduction.scheduler import showing_progress
    from ivvi_reproduction.specs import chosen_columns

    check_json_target(json, force=force)
    with showing_progress() as look:
        results = run(
            out,
            experiment,
            options=Options(quick, ratings, specs),
            columns=chosen_columns(column),
            seeds=(1 if quick else 5) if seeds is None else seeds,
            jobs=jobs,
            scheduler=scheduler,
            force=force,
            look=look,
        )
    say(as_text(results), quiet=json == "-")
    page = write_page(report_page(results), out / "report.html", force=True)
    say(f"records in {out}, report in {page}", quiet=json == "-")
    emit_json(as_json(results), json, force=force)
