"""`ivvi value`: the value of a policy from a log, with an interval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi.cli.options import (
    Force,
    Json,
    Seed,
    TrustOption,
    Unit,
    completing,
    folder_names,
    of_unit,
    trusted,
)
from ivvi.cli.read_numbers import end_rewards, named_values, read_states
from ivvi.cli.terminal import check_json_target, emit_json, progress, say
from ivvi.option_values import DRAW_METHODS, RIVALS, listed


def value(  # noqa: PLR0913
    policy: Annotated[
        str,
        typer.Argument(help="Folder that `ivvi plan` saved, or a rival's name."),
    ],
    model: Annotated[Path, typer.Option(help="Folder of the model that `ivvi fit` saved.")],
    against: Annotated[
        str | None,
        typer.Option(
            help=f"Rivals: {listed(RIVALS)}; or folders of policies. "
            "[default: behaviour, least-squares, and zero if it lies within the log's actions, "
            "otherwise lowest and highest]"
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help=f"{listed(DRAW_METHODS)}; bootstrap and wild need fit --keep-episodes.",
            autocompletion=completing(*DRAW_METHODS),
        ),
    ] = "auto",
    draws: Annotated[
        int | None,
        typer.Option(help="Number of models to draw. [default: 500, or as many as it takes]"),
    ] = None,
    replan: Annotated[
        bool,
        typer.Option(
            "--replan",
            help="Plan again in every drawn model, and subtract the optimism of the plan.",
        ),
    ] = False,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    reward: Annotated[str | None, typer.Option(help="As for plan. [default: the policy's]")] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            help="Steps. [default: the policy's, else the usual length of the log's episodes]"
        ),
    ] = None,
    discount: Annotated[
        float | None,
        typer.Option(help="Weight of each later step, as for plan. [default: the policy's]"),
    ] = None,
    reward_at_end: Annotated[
        str | None,
        typer.Option(help="Reward for ending for good, as for plan. [default: the policy's]"),
    ] = None,
    instrument: Annotated[
        str | None,
        typer.Option(help="Value of the instrument, as for plan: cost=6. [default: the policy's]"),
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="One first state: comma-separated values.")
    ] = None,
    starts: Annotated[
        Path | None, typer.Option(help="Table of first states. [default: those of the log]")
    ] = None,
    log: Annotated[
        str | None, typer.Option(help="The log, to also show the return recorded in it.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Columns to cluster by, from the log. [default: those of the fit]"),
    ] = None,
    seed: Seed = 0,
    unit: Unit = "",
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Estimate what a policy earns, and what it gains over others, with intervals."""
    from ivvi.evaluation import value as value_policy
    from ivvi.evaluation.value_inputs import ValueInputs
    from ivvi.evaluation.value_policy import FIRST_DRAWS, default_rivals
    from ivvi.fitting import load_fit
    from ivvi.fitting.incremental.saved_moments import open_like

    check_json_target(json, force=force)
    fit = of_unit(load_fit(model, trust=trusted(trust)), unit)
    valued = _policy(policy, trusted(trust))
    source = ValueInputs.of(fit)
    words = default_rivals(source) if against is None else against.split(",")
    named = [word for word in words if word]
    names = folder_names(named, ("policy",))
    rivals = {name: _policy(word, trusted(trust)) for name, word in zip(names, named, strict=True)}
    first = read_states(fit.model, start, starts, "--start")
    own_log = None
    if log is not None:
        own_log = open_like(log, fit.roles, drop_missing=fit.counts.missing > 0)
    models = (draws or FIRST_DRAWS) * (1 + len(rivals) + replan)
    with progress("simulating models", models) as bar:
        valuation = value_policy(
            valued,
            source,
            reward=reward,
            horizon=horizon,
            discount=discount,
            reward_at_end=None if reward_at_end is None else end_rewards(reward_at_end),
            instrument=named_values(instrument),
            against=rivals,
            method=method,
            draws=draws,
            replan=replan,
            level=level,
            starts=first,
            log=own_log,
            cluster=cluster or (),
            seed=seed,
            progress=bar,
        )
    say(valuation.summary(), quiet=json == "-")
    emit_json(valuation, json, force=force)


def _policy(word: str, trust: tuple[str, ...]) -> Any:
    """Return a policy from its folder, or a rival's word."""
    from ivvi.policy.saved_policy import load_policy

    return word if word in RIVALS else load_policy(word, trust=trust)
