"""`ivvi update`: add new rows to a saved model, without the old ones."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from ivvi.cli.options import (
    DropMissing,
    Force,
    Json,
    SourceArgument,
    TrustOption,
    Unidentified,
    Where,
    trusted,
)
from ivvi.cli.terminal import check_json_target, emit_json, progress, say, warn
from ivvi.errors import InputError, IvviWarning


def update(  # noqa: PLR0913
    model: Annotated[Path, typer.Argument(help="Model that `ivvi fit` saved.")],
    log: SourceArgument,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the new model. [default: replace the old one]")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Add rows even if they are in the model already.")
    ] = False,
    cluster: Annotated[
        str | None, typer.Option(help="Column to cluster by. [default: what the model keeps]")
    ] = None,
    where: Where = None,
    drop_missing: DropMissing = False,
    allow_unidentified: Unidentified = False,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait while another run is updating the model.")
    ] = 600.0,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Add the rows of a log to a model, as if it had been fitted to both at once."""
    from ivvi._io.files import checked_output
    from ivvi._io.replacing import locked
    from ivvi.fitting.incremental.saved_moments import open_like
    from ivvi.fitting.incremental.updating import update as update_fit
    from ivvi.fitting.saved_fit import load_fit_version

    target = model if out is None else out
    checked_output(target, force=force or out is None)
    check_json_target(json, force=force, out=target)
    with locked(target, wait=wait):  # from reading to replacing, or another run would be lost
        fit, version = load_fit_version(model, trust=trusted(trust))
        if reason := fit.lacks_moments:
            raise InputError(f"nothing can be added to {model}: {reason}")
        logs = open_like(log, fit.roles, where=where, drop_missing=drop_missing)
        with (
            progress("reading", logs.num_rows) as bar,
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always", IvviWarning)
            updated = update_fit(
                fit,
                logs,
                again=again,
                cluster=cluster or (),
                allow_unidentified=allow_unidentified,
                progress=bar,
            )
        replaces = version if out is None else None
        updated.save(target, force=force or out is None, replaces=replaces)
    for text in dict.fromkeys((*(str(warning.message) for warning in caught), *updated.warnings)):
        warn(text)
    say(updated.summary(warnings=False), quiet=json == "-")
    added = updated.moments.n - fit.moments.n
    sums = "" if updated.sample is not None else " (a model fitted from sums keeps no rows)"
    episode_moments = fit.moments.episodes
    if fit.roles.derived and not (episode_moments and episode_moments.labels):
        sums += (
            "; if an episode continues an old one, the step in between counts only if the new log "
            "begins with its last old row"
        )
    say(f"{added:,} transitions added{sums}; model saved in {target}", quiet=json == "-")
    emit_json(updated, json, force=force, added=added)
