"""`ivvi diagnose`: is the instrument of a log any good?"""

from __future__ import annotations

from typing import Annotated

import typer

from ivvi.cli.options import (
    Absorb,
    ColumnOptions,
    DaskOptions,
    ErrorOptions,
    FeatureOptions,
    Force,
    Json,
    Seed,
    SourceOrModel,
    TrustOption,
    refuse_given,
    trusted,
)
from ivvi.cli.terminal import check_json_target, emit_json, progress, say, warn
from ivvi.errors import InputError

OF_A_LOG = "is for logs; a saved model has its own"
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
    "se_note",
    "warnings",
    "brief",
    "robust_interval",
    "robust_interval_reason",
    "recommended",
    "diagnostics",
)


def diagnose(  # noqa: PLR0913
    shell: typer.Context,
    log: SourceOrModel,
    *,
    columns: ColumnOptions,
    features: FeatureOptions,
    dask: DaskOptions,
    errors: ErrorOptions,
    suspect: Annotated[
        str | None,
        typer.Option(help="Instrument features to test, assuming that the others are valid."),
    ] = None,
    absorb: Absorb = None,
    seed: Seed = 0,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Show how strong the instruments are, what they identify, and whether they look valid."""
    from ivvi.fitting import estimate
    from ivvi.fitting.fit_and_diagnose import diagnose as diagnose_fit
    from ivvi.fitting.fit_summary import dropped_rows, log_line
    from ivvi.fitting.saved_fit import is_saved_fit, load_fit

    client, se = dask.client, errors.requested
    check_json_target(json, force=force)
    if is_saved_fit(log):
        for group in (columns, features, errors, dask):
            refuse_given(group, OF_A_LOG, context=shell)
        if absorb is not None:
            raise InputError(f"--absorb {OF_A_LOG}")
        result = load_fit(log, trust=trusted(trust))
    else:
        logs = columns.open(log)
        with progress("reading", logs.num_rows) as bar:
            result = estimate(
                logs,
                *features.both,
                se=se,
                allow_unidentified=True,
                absorb=absorb or (),
                seed=seed,
                progress=bar,
                client=client,
            )
    for text in result.warnings:
        warn(text)
    suspects = [part.strip() for part in (suspect or "").split(",") if part.strip()]
    diagnostics = diagnose_fit(result, suspects=suspects)
    say(diagnostics.summary(), quiet=json == "-")
    say(f"\nlog               {log_line(result)}", quiet=json == "-")
    say(f"dropped rows      {dropped_rows(result)}", quiet=json == "-")
    say(f"errors            {result.estimate.W_cov}", quiet=json == "-")
    if note := result.errors.note:
        say(f"                  {note}", quiet=json == "-")
    whole = result.to_json()
    whole["diagnostics"] |= diagnostics.to_json()
    whole["brief"] = diagnostics.brief.to_json()
    emit_json({name: whole[name] for name in KEPT}, json, force=force)
