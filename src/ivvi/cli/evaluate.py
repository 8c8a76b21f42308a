"""`ivvi evaluate`: the returns of policies in a simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ivvi.cli.options import Force, Json, Seed, TrustOption, folder_names, trusted
from ivvi.cli.terminal import check_json_target, emit_json, progress, say


def evaluate(  # noqa: PLR0913
    policies: Annotated[
        list[Path], typer.Argument(help="Folders of policies that `ivvi plan` saved.")
    ],
    env: Annotated[str, typer.Option(help="linear, nonlinear, recommender, nicu, sepsis.")],
    dim: Annotated[
        int | None, typer.Option(help="Number of states, for linear and nonlinear.")
    ] = None,
    setting: Annotated[str, typer.Option(help="Setting of the paper, I to VI.")] = "I",
    ratings: Annotated[
        str | None, typer.Option(help="MovieLens ratings for the recommenders.")
    ] = None,
    signs: Annotated[
        str, typer.Option(help="Signs of the recommenders' singular vectors: largest or authors.")
    ] = "largest",
    literal: Annotated[
        bool,
        typer.Option(
            "--literal", help="Score a recommender as the paper's authors did, starting from 0."
        ),
    ] = False,
    episodes: Annotated[int, typer.Option(help="Episodes.")] = 64,
    horizon: Annotated[
        int | None, typer.Option(help="Steps per episode. [default: the paper's]")
    ] = None,
    against: Annotated[
        str, typer.Option(help="Baselines: optimal, zero, random, behaviour.")
    ] = "optimal,zero,behaviour",
    plot: Annotated[
        Path | None, typer.Option(help="Draw the reward of each step with 95% bands (PNG, SVG).")
    ] = None,
    seed: Seed = 0,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Run policies in a simulator under the same noise and compare what they earn."""
    from ivvi._io.plotting import check_figure
    from ivvi.policy.saved_policy import load_policy
    from ivvi.simulators.catalogue import make_env
    from ivvi.simulators.evaluate import evaluate as evaluate_policies

    check_figure(plot, force=force)
    check_json_target(json, force=force, out=plot)
    baselines = tuple(filter(None, against.split(",")))
    names = folder_names(list(map(str, policies)), baselines)
    allowed = trusted(trust)
    pairs = zip(names, policies, strict=True)
    loaded = {name: load_policy(path, trust=allowed) for name, path in pairs}
    world = make_env(env, dim=dim, setting=setting, ratings=ratings, signs=signs, literal=literal)
    with progress("running", None):
        evaluation = evaluate_policies(
            loaded,
            world,
            against=baselines,
            episodes=episodes,
            horizon=horizon,
            seed=seed,
        )
    say(evaluation.summary(), quiet=json == "-")
    if plot is not None:
        evaluation.plot(plot, force=force)
        say(f"drawn in {plot}", quiet=json == "-")
    emit_json(evaluation, json, force=force)
