"""`ivvi diagnose`: is the instrument of a log any good?"""

from __future__ import annotations

from typing import Annotated

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
    Scheduler,
    Se,
    Seed,
    Source,
    State,
    Step,
    Weight,
    Workers,
    chosen_cluster,
    open_log,
    rows_to_read,
    standard_errors,
)
from ivvi.terminal import check_json_target, emit_json, progress, say, warn

KEPT = (
    "n",
    "episodes",
    "dropped",
    "phi",
    "psi",
    "outputs",
    "se_kind",
    "clusters",
    "debiased",
    "bandwidth",
    "warnings",
    "diagnostics",
)


def diagnose(  # noqa: PLR0913
    log: Source,
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
    scheduler: Scheduler = None,
    workers: Workers = None,
    se: Se = "auto",
    cluster: Cluster = None,
    debiased: Debiased = False,
    bandwidth: Bandwidth = None,
    suspect: Annotated[
        str | None, typer.Option(help="Instrument features to test, given the others.")
    ] = None,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Say how strong the instruments of a log are, what they identify and if they are valid."""
    from ivvi.diagnostics import diagnose as panel
    from ivvi.fitting import estimate
    from ivvi.summary import panel_table

    client = chosen_cluster(scheduler, workers)
    check_json_target(json, force=force)
    errors = standard_errors(locals())
    logs = open_log(log, locals())
    with progress("reading", rows_to_read(logs, errors)) as bar:
        found = estimate(
            logs,
            phi or features,
            psi or features,
            se=errors,
            allow_unidentified=True,
            seed=seed,
            progress=bar,
            client=client,
        )
    for text in found.warnings:
        warn(text)
    suspects = [part.strip() for part in (suspect or "").split(",") if part.strip()]
    diagnostics = panel(found.moments, found.scored, suspects) if suspects else found.diagnostics
    say(panel_table(diagnostics), quiet=json == "-")
    say(f"\nerrors            {found.estimate.W_cov}", quiet=json == "-")
    whole = found.to_json() | {"diagnostics": diagnostics.to_json()}
    emit_json({name: whole[name] for name in KEPT}, json, force=force)
