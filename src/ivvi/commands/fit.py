"""`ivvi fit`: from a log to a saved model."""

from __future__ import annotations

from dataclasses import replace
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
    OptionalSource,
    Phi,
    Psi,
    Reward,
    Scheduler,
    Se,
    Seed,
    State,
    Step,
    Unidentified,
    Weight,
    Workers,
    chosen_cluster,
    command_line,
    open_log,
    rows_to_read,
    standard_errors,
    words,
)
from ivvi.errors import InputError
from ivvi.terminal import check_json_target, emit_json, progress, say, warn


def fit(  # noqa: PLR0913
    context: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    log: OptionalSource = None,
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
        typer.Option(
            help="exact, sgda, least-squares, liml, fuller:1, kclass:0.5, gmm, ridge, lasso, "
            "adaptive-lasso or shrunk.",
            autocompletion=words(
                *("exact", "sgda", "least-squares", "liml", "fuller:1", "kclass:0.5", "gmm"),
                *("ridge", "lasso", "adaptive-lasso", "shrunk"),
            ),
        ),
    ] = "exact",
    schedule: Annotated[
        str, typer.Option(help="Steps of sgda: auto, paper-linear, constant:0.05, decay:0.1,0.5.")
    ] = "auto",
    batch: Annotated[
        str, typer.Option(help="Rows of a mini-batch of sgda, or episode for whole ones.")
    ] = "32",
    passes: Annotated[int, typer.Option(help="Passes of sgda over the rows.")] = 1,
    order: Annotated[
        str, typer.Option(help="Rows of sgda: auto, shuffled, iid (draws) or stream.")
    ] = "auto",
    memory: Annotated[
        str, typer.Option(help="Memory of sgda in features: auto, quadratic or linear.")
    ] = "auto",
    ridge: Annotated[
        float, typer.Option(help="Penalty, in units of the features' variances.")
    ] = 0.0,
    se: Se = "auto",
    cluster: Cluster = None,
    debiased: Debiased = False,
    bandwidth: Bandwidth = None,
    allow_unidentified: Unidentified = False,
    moments: Annotated[
        Path | None, typer.Option(help="Fit to sums that `ivvi moments` wrote, not to a log.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File from which a run that was killed goes on.")
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(help="Seconds between two writings of the checkpoint.")
    ] = 30.0,
    without_moments: Annotated[
        bool, typer.Option("--without-moments", help="Save a model that cannot be updated.")
    ] = False,
    keep_episodes: Annotated[
        bool,
        typer.Option("--keep-episodes", help="Keep moments of episodes, to bootstrap values."),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Write a report of the fit too, one HTML file.")
    ] = None,
    difference: Annotated[
        bool,
        typer.Option(
            "--difference",
            help="Estimate from differences between steps: for confounders that last an episode.",
        ),
    ] = False,
    all_outputs: Annotated[bool, typer.Option(help="Print the table of every output.")] = False,
    scheduler: Scheduler = None,
    workers: Workers = None,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Estimate the dynamics of a log (or of moments) and save them as a model."""
    from ivvi.checkpoint import Checkpoint
    from ivvi.files import checked_output
    from ivvi.fitting import estimate, make_method

    typed = command_line(context)
    state_file = None if checkpoint is None else Checkpoint(checkpoint, checkpoint_every)
    force = force or (state_file is not None and state_file.exists)  # what that run wrote
    checked_output(out, force=force)
    client = chosen_cluster(scheduler, workers)
    check_json_target(json, force=force, out=out)
    if report is not None:
        from ivvi.reporting.write import check_page

        check_page(report, force=force)
    errors = standard_errors(locals())
    settings: dict[str, Any] = {}
    if method in ("exact", "least-squares"):
        settings = {"ridge": ridge}
    elif ridge:
        raise InputError(f"--ridge is for exact and least-squares; the method is {method}")
    if method == "sgda":
        size = int(batch) if batch.isdecimal() else batch
        settings = {"schedule": schedule, "batch": size, "passes": passes, "order": order}
        settings |= {"memory": memory, "seed": seed}
    chosen = make_method(method, **settings)
    logs = _open(log, moments, locals())
    with progress("reading", rows_to_read(logs, errors)) as bar:
        found = estimate(
            logs,
            phi or features,
            psi or features,
            method=chosen,
            se=errors,
            allow_unidentified=allow_unidentified,
            episodes=keep_episodes,
            difference=difference,
            seed=seed,
            progress=bar,
            client=client,
            checkpoint=state_file,
        )
    found = replace(found, command=typed)
    found.save(out, moments=not without_moments, episodes=keep_episodes, force=force)
    for text in found.warnings:
        warn(text)
    say(found.summary(most_outputs=None if all_outputs else 6), quiet=json == "-")
    say(f"model saved in {out}", quiet=json == "-")
    if report is not None:
        from ivvi.reporting import report as write_report

        say(f"report: {write_report(found, report, force=force)}", quiet=json == "-")
    emit_json(found.to_json(), json, force=force)
    if state_file is not None:
        state_file.remove()


def _open(log: str | None, moments: Path | None, options: dict[str, Any]) -> Any:
    """Return the log or the moments, whichever is given."""
    if (log is None) == (moments is None):
        raise InputError("either a log or --moments is wanted, not both and not neither")
    if moments is None:
        return open_log(str(log), options)
    from ivvi.shard import Shard

    if options["checkpoint"] is not None:
        raise InputError("--checkpoint is for logs; moments are read at once")
    if options["client"] is not None:
        raise InputError("--scheduler and --workers are for logs; moments are read at once")
    return Shard.load(moments)
