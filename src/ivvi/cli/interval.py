"""`ivvi interval`: a confidence set for one effect that is valid with a weak instrument."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer

from ivvi.cli.diagnose import OF_A_LOG
from ivvi.cli.options import (
    Absorb,
    ClusterOption,
    ColumnOptions,
    FeatureOptions,
    Force,
    Json,
    Seed,
    SourceOrModel,
    TrustOption,
    completing,
    refuse_given,
    trusted,
)
from ivvi.cli.terminal import check_json_target, emit_json, progress, say, warn
from ivvi.errors import InputError, IvviWarning
from ivvi.option_values import SET_ERRORS, listed


def interval(  # noqa: PLR0913
    shell: typer.Context,
    log: SourceOrModel,
    *,
    columns: ColumnOptions,
    features: FeatureOptions,
    output: Annotated[
        str | None,
        typer.Option(help="Output, such as next_x0 (or x0). [default: the only one]"),
    ] = None,
    feature: Annotated[
        str | None,
        typer.Option(
            help="Feature, such as a0 or a yes/no column, or a combination: a0:1,a1:-0.5. "
            "[default: the only action]"
        ),
    ] = None,
    method: Annotated[
        str, typer.Option(help="ar (Anderson-Rubin) or clr (likelihood ratio).")
    ] = "ar",
    se: Annotated[
        str,
        typer.Option(
            help=f"Standard errors: {listed(SET_ERRORS)}.", autocompletion=completing(*SET_ERRORS)
        ),
    ] = "auto",
    cluster: ClusterOption = None,
    bandwidth: Annotated[int | None, typer.Option(help="Largest lag for hac.")] = None,
    level: Annotated[float, typer.Option(help="Confidence level.")] = 0.95,
    rows: Annotated[
        str | None,
        typer.Option("--log", help="The log of a saved model, where the set needs its rows."),
    ] = None,
    absorb: Absorb = None,
    seed: Seed = 0,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Compute a confidence set for one effect that is valid however weak the instrument is."""
    from ivvi.estimators import StandardErrors
    from ivvi.fitting.effects.interval import interval as confidence_set
    from ivvi.fitting.incremental.saved_moments import open_like
    from ivvi.fitting.saved_fit import is_saved_fit, load_fit

    check_json_target(json, force=force)
    combination = None if feature is None else parse_combination(feature)
    effect: dict[str, Any] = {"output": output, "feature": combination, "method": method}
    effect |= {"level": level, "cluster": cluster or (), "absorb": absorb or ()}
    effect["se"] = (
        se if bandwidth is None else StandardErrors(se, cluster or (), bandwidth=bandwidth)
    )
    if is_saved_fit(log):
        for group in (columns, features):
            refuse_given(group, OF_A_LOG, context=shell)
        fit, own_log = load_fit(log, trust=trusted(trust)), None
        if rows is not None:
            own_log = open_like(rows, fit.roles, drop_missing=fit.counts.missing > 0)
        doubts = fit.notes + fit.doubts
        result = confidence_set(fit, log=own_log, **effect)
    else:
        if rows is not None:
            raise InputError("--log is for a saved model, and the source is a log itself")
        phi, psi = features.both
        logs = columns.open(log)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", IvviWarning)
            with progress("reading", logs.num_rows) as bar:
                result = confidence_set(logs, phi=phi, psi=psi, seed=seed, progress=bar, **effect)
        doubts = tuple(str(one.message) for one in caught)
    for text in doubts:
        warn(text)
    say(str(result), quiet=json == "-")
    emit_json(result, json, force=force)


def parse_combination(text: str) -> str | dict[str, float]:
    """Return the weights of ``a0:1,a1:-0.5``; return a plain name unchanged."""
    if ":" not in text:
        return text
    weights = {}
    for part in text.split(","):
        name, _, number = part.rpartition(":")
        if name.strip() in weights:
            raise InputError(f"the combination {text!r} names {name.strip()!r} twice")
        try:
            weights[name.strip()] = float(number)
        except ValueError:
            raise InputError(
                f"the combination {text!r} has no number after {name!r}; expected the form "
                "a0:1,a1:-0.5"
            ) from None
    return weights
