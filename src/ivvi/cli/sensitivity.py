"""`ivvi sensitivity`: what if the instrument is not quite valid?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi.cli.options import Force, Json, Seed, TrustOption, trusted
from ivvi.cli.read_numbers import read_states
from ivvi.cli.terminal import check_json_target, emit_json, progress, say
from ivvi.option_values import RIVALS, listed


def sensitivity(  # noqa: PLR0913
    policy: Annotated[Path, typer.Argument(help="Folder of a policy that `ivvi plan` saved.")],
    model: Annotated[
        Path, typer.Option(help="Folder of the model that the policy was planned with.")
    ],
    against: Annotated[
        str,
        typer.Option(help=f"Rivals, comma-separated: {listed(RIVALS)}; or folders of policies."),
    ] = "behaviour",
    violations: Annotated[
        str,
        typer.Option(
            help="Direct effects to try: worst, or those of an instrument (z0), on one output "
            "(z0:x1), of one sign (+z0:x1)."
        ),
    ] = "worst",
    state: Annotated[
        str | None, typer.Option(help="A state in which to plan again: comma-separated numbers.")
    ] = None,
    states: Annotated[
        Path | None, typer.Option(help="Table of states in which to plan again.")
    ] = None,
    start: Annotated[
        str | None, typer.Option(help="One first state: comma-separated numbers.")
    ] = None,
    starts: Annotated[
        Path | None, typer.Option(help="Table of first states. [default: those of the log]")
    ] = None,
    episodes: Annotated[int, typer.Option(help="Simulated episodes.")] = 128,
    horizon: Annotated[
        int | None, typer.Option(help="Steps per episode. [default: the plan's]")
    ] = None,
    most: Annotated[
        float, typer.Option(help="Largest direct effect, in standard deviations of the noise.")
    ] = 1.0,
    level: Annotated[float, typer.Option(help="Confidence level of the intervals.")] = 0.95,
    draws: Annotated[int, typer.Option(help="Draws of W for the intervals; 0 for none.")] = 40,
    log: Annotated[
        str | None,
        typer.Option(help="The log, to compute the errors of the effects from its rows."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the gains (PNG, SVG, PDF).")] = None,
    seed: Seed = 0,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Find how invalid the instrument may be before the gain or the actions change."""
    from ivvi._io.plotting import check_figure
    from ivvi.fitting import load_fit
    from ivvi.fitting.incremental.saved_moments import open_like
    from ivvi.policy.saved_policy import load_policy
    from ivvi.sensitivity_analysis import sensitivity as analyse

    check_figure(plot, force=force)
    check_json_target(json, force=force, out=plot)
    loaded = load_policy(policy, trust=trusted(trust))
    names = loaded.problem.model
    fit, rows = load_fit(model, trust=trusted(trust)), None
    if log is not None:
        rows = open_like(log, fit.roles, drop_missing=fit.counts.missing > 0)
    with progress("sensitivity analysis", None) as bar:
        result = analyse(
            loaded,
            fit,
            against=_rivals(against, trusted(trust)),
            violations=tuple(filter(None, violations.split(","))),
            states=read_states(names, state, states, "--state"),
            starts=read_states(names, start, starts, "--start"),
            episodes=episodes,
            horizon=horizon,
            most=most,
            level=level,
            draws=draws,
            log=rows,
            seed=seed,
            progress=bar,
        )
    say(result.summary(), quiet=json == "-")
    if plot is not None:
        result.plot(plot, force=force)
        say(f"drawn in {plot}", quiet=json == "-")
    emit_json(result, json, force=force)


def _rivals(text: str, trust: tuple[str, ...]) -> Any:
    """Return rivals by name, from words and folders."""
    from ivvi.policy.saved_policy import load_policy

    words = [word for word in text.split(",") if word]
    folders = {word: Path(word).is_dir() for word in words}
    return {w: load_policy(w, trust=trust) if folders[w] else w for w in words}
