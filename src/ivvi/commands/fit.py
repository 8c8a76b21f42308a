"""`ivvi fit`: from a log to a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi.commands.options import (
    Action,
    Bandwidth,
    Cluster,
    Debiased,
    DropMissing,
    Episode,
    Features,
    Force,
    Instrument,
    Json,
    NextState,
    Phi,
    Psi,
    Reward,
    Se,
    Seed,
    Source,
    State,
    Step,
    Weight,
    open_log,
    rows_to_read,
    standard_errors,
)
from ivvi.errors import InputError
from ivvi.terminal import check_json_target, emit_json, progress, say, warn


def fit(  # noqa: PLR0913
    log: Source,
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    state: State = None,
    action: Action = None,
    instrument: Instrument = None,
    next_state: NextState = None,
    reward: Reward = None,
    episode: Episode = None,
    step: Step = None,
    weight: Weight = None,
    drop_missing: DropMissing = False,
    features: Features = "linear",
    phi: Phi = None,
    psi: Psi = None,
    method: Annotated[
        str,
        typer.Option(help="exact, sgda, least-squares, liml, fuller:1, kclass:0.5 or gmm."),
    ] = "exact",
    schedule: Annotated[
        str, typer.Option(help="Steps of sgda: auto, paper-linear, constant:0.05, decay:0.1,0.5.")
    ] = "auto",
    batch: Annotated[int, typer.Option(help="Rows of a mini-batch of sgda.")] = 32,
    passes: Annotated[int, typer.Option(help="Passes of sgda over the rows.")] = 1,
    ridge: Annotated[
        float, typer.Option(help="Penalty, in units of the features' variances.")
    ] = 0.0,
    se: Se = "auto",
    cluster: Cluster = None,
    debiased: Debiased = False,
    bandwidth: Bandwidth = None,
    allow_unidentified: Annotated[
        bool, typer.Option(help="Accept the minimum-norm solution.")
    ] = False,
    all_outputs: Annotated[bool, typer.Option(help="Print the table of every output.")] = False,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Estimate the dynamics of a log and save them as a model."""
    from ivvi.files import checked_output
    from ivvi.fitting import estimate, make_method

    checked_output(out, force=force)
    check_json_target(json, force=force, out=out)
    errors = standard_errors(locals())
    settings: dict[str, Any] = {}
    if method in ("exact", "least-squares"):
        settings = {"ridge": ridge}
    elif ridge:
        raise InputError(f"--ridge is for exact and least-squares; the method is {method}")
    if method == "sgda":
        settings = {"schedule": schedule, "batch": batch, "passes": passes, "seed": seed}
    chosen = make_method(method, **settings)
    logs = open_log(log, locals())
    with progress("reading", rows_to_read(logs, errors)) as bar:
        found = estimate(
            logs,
            phi or features,
            psi or features,
            method=chosen,
            se=errors,
            allow_unidentified=allow_unidentified,
            seed=seed,
            progress=bar,
        )
    found.save(out, force=force)
    for text in found.warnings:
        warn(text)
    say(found.summary(most_outputs=None if all_outputs else 6), quiet=json == "-")
    say(f"model saved in {out}", quiet=json == "-")
    emit_json(found.to_json(), json, force=force)
