"""`ivvi diagnose`: is the instrument of a log any good?"""

from __future__ import annotations

from ivvi.commands.options import (
    Action,
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
    Seed,
    Source,
    State,
    Step,
    Weight,
    Workers,
    chosen_cluster,
    open_log,
)
from ivvi.terminal import check_json_target, emit_json, progress, say, warn


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
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Say how strong the instruments of a log are and what they identify."""
    from ivvi.fitting import estimate
    from ivvi.summary import diagnostics_table

    cluster = chosen_cluster(scheduler, workers)
    check_json_target(json, force=force)
    logs = open_log(log, locals())
    with progress("reading", logs.num_rows) as bar:
        found = estimate(
            logs,
            phi or features,
            psi or features,
            allow_unidentified=True,
            seed=seed,
            progress=bar,
            cluster=cluster,
        )
    for text in found.warnings:
        warn(text)
    say(diagnostics_table(found.diagnostics), quiet=json == "-")
    whole = found.to_json()
    kept = ("n", "episodes", "dropped", "phi", "psi", "outputs", "warnings", "diagnostics")
    emit_json({name: whole[name] for name in kept}, json, force=force)
