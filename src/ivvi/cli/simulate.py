"""`ivvi simulate`: a confounded log from a simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ivvi.cli.options import Force, Json, Seed
from ivvi.cli.terminal import check_json_target, emit_json, progress, say
from ivvi.errors import InputError


def simulate(  # noqa: PLR0913
    name: Annotated[
        str,
        typer.Argument(help="linear, nonlinear, recommender, recommender-revised, nicu, sepsis."),
    ],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
    dim: Annotated[
        int | None, typer.Option(help="Number of states, for linear and nonlinear.")
    ] = None,
    setting: Annotated[str, typer.Option(help="Setting of the paper, I to VI.")] = "I",
    episodes: Annotated[int | None, typer.Option(help="Episodes. [default: the paper's]")] = None,
    horizon: Annotated[
        int | None, typer.Option(help="Steps per episode. [default: the paper's]")
    ] = None,
    ratings: Annotated[
        str | None, typer.Option(help="MovieLens ratings for the recommenders.")
    ] = None,
    signs: Annotated[
        str, typer.Option(help="Signs of the recommenders' singular vectors: largest or authors.")
    ] = "largest",
    download: Annotated[
        str | None, typer.Option(help="Download ml-1m, ml-100k or ml-latest-small and use it.")
    ] = None,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Write the log of a confounded behaviour policy; the confounder is not in it."""
    from ivvi._io.files import checked_output
    from ivvi.simulators.catalogue import make_env
    from ivvi.simulators.ratings import download as fetch

    if out.suffix not in ("", ".parquet"):
        raise InputError(f"--out {out} has an unknown file ending; expected .parquet")
    checked_output(out, force=force)
    check_json_target(json, force=force, out=out)
    if download is not None:
        ratings = str(fetch(download, out.resolve().parent))
    env = make_env(name, dim=dim, setting=setting, ratings=ratings, signs=signs)
    world = env.world
    total = (episodes or world.episodes) * (horizon or world.horizon)
    with progress("simulating", total) as bar:
        rows = env.write_log(out, episodes, horizon, seed, force=force, progress=bar)
    facts = {
        "log": str(out),
        "simulator": world.name,
        "data": world.label,
        "rows": rows,
        "episodes": episodes or world.episodes,
        "horizon": horizon or world.horizon,
        "seed": seed,
    }
    say(f"{out}: {rows:,} rows of {world.name} ({world.label})", quiet=json == "-")
    emit_json(facts, json, force=force)
