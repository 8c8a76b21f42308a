"""`ivvi fit`: from a log to a saved model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi.cli.options import (
    Absorb,
    ColumnOptions,
    DaskOptions,
    ErrorOptions,
    FeatureOptions,
    Force,
    Json,
    OptionalSource,
    Seed,
    TrustOption,
    Unidentified,
    command_line,
    completing,
    refuse_given,
    trusted,
)
from ivvi.cli.terminal import check_json_target, emit_json, progress, say, warn
from ivvi.errors import InputError
from ivvi.option_values import LEARNERS, METHODS, listed


@dataclass(frozen=True, slots=True)
class MethodOptions:
    """The method and its settings."""

    method: Annotated[
        str,
        typer.Option(
            help=f"{listed(METHODS)}; 2sls is exact, and ols least-squares.",
            autocompletion=completing(*METHODS),
        ),
    ] = "exact"
    schedule: Annotated[
        str,
        typer.Option(
            help="Steps of sgda: auto, constant:0.05, decay:0.1,0.5; or the paper's runs: "
            "paper-linear, paper-linear-20, paper-nonlinear, paper-movielens(-revised)."
        ),
    ] = "auto"
    batch: Annotated[
        str | None,
        typer.Option(
            help="Mini-batch size of sgda in rows, or the word episode. [default: 32, or the "
            "paper's]"
        ),
    ] = None
    inner: Annotated[
        int | None,
        typer.Option(
            help="Dual steps of sgda before each primal step. [default: 1, or the paper's]"
        ),
    ] = None
    restart: Annotated[
        bool, typer.Option(help="Restart the dual schedule in every mini-batch (--inner).")
    ] = True
    keep_K: Annotated[
        bool,
        typer.Option("--keep-K/--no-keep-K", help="Keep K from the previous mini-batch (--inner)."),
    ] = True
    passes: Annotated[int, typer.Option(help="Passes of sgda over the rows.")] = 1
    order: Annotated[
        str,
        typer.Option(
            help="Order of rows for sgda: auto, shuffled, iid (with replacement), stream or logged."
        ),
    ] = "auto"
    memory: Annotated[
        str,
        typer.Option(help="How the memory of sgda grows with features: auto, quadratic or linear."),
    ] = "auto"
    ridge: Annotated[
        str,
        typer.Option(help="Ridge penalty in units of the features' variances; auto chooses it."),
    ] = "0"

    @property
    def _penalty(self) -> float:
        try:
            penalty = float(self.ridge)
        except ValueError:
            raise InputError(f"--ridge is {self.ridge!r}; expected a number or auto") from None
        if not math.isfinite(penalty):
            raise InputError(f"--ridge is {self.ridge}; expected a finite number")
        return penalty

    def chosen(self, seed: int) -> Any:
        """Return the method with its settings."""
        from ivvi.estimators.registry import canonical, make_method

        method = canonical(self.method)
        if method != "sgda":
            refuse_given(self, f"is for sgda; the method is {method}", ("method", "ridge"))
        if method in ("exact", "ridge") and self.ridge == "auto":
            return make_method("ridge")
        if method in ("exact", "least-squares"):
            return make_method(method, ridge=self._penalty)
        if self.ridge != "0":
            raise InputError(f"--ridge is for exact and least-squares; the method is {method}")
        if method != "sgda":
            return make_method(method)
        return make_method(
            "sgda",
            schedule=self.schedule,
            batch=int(self.batch) if self.batch and self.batch.isdecimal() else self.batch,
            inner=self.inner,
            restart=self.restart,
            keep_K=self.keep_K,
            passes=self.passes,
            order=self.order,
            memory=self.memory,
            seed=seed,
        )


def fit(  # noqa: PLR0913
    shell: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    log: OptionalSource = None,
    *,
    columns: ColumnOptions,
    features: FeatureOptions,
    method: MethodOptions,
    errors: ErrorOptions,
    allow_unidentified: Unidentified = False,
    moments: Annotated[
        Path | None, typer.Option(help="Fit from sums that `ivvi moments` wrote, instead of a log.")
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File from which a killed run continues.")
    ] = None,
    checkpoint_every: Annotated[
        float, typer.Option(help="Seconds between two checkpoints.")
    ] = 30.0,
    without_moments: Annotated[
        bool, typer.Option("--without-moments", help="Save a model that cannot be updated.")
    ] = False,
    keep_episodes: Annotated[
        bool,
        typer.Option(
            "--keep-episodes",
            help="Keep the sums of each episode, for bootstrapped values and clustered updates.",
        ),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(help="Also write a report of the fit, one HTML file.")
    ] = None,
    difference: Annotated[
        bool,
        typer.Option(
            "--difference",
            help="Estimate from differences between steps: for confounders that are fixed within "
            "an episode.",
        ),
    ] = False,
    exogenous: Annotated[
        str | None,
        typer.Option(help="With --difference, states without noise, such as year dummies."),
    ] = None,
    absorb: Absorb = None,
    half_panel: Annotated[
        bool,
        typer.Option(
            "--half-panel", help="With --absorb, remove the Nickell bias of lagged states."
        ),
    ] = False,
    controls: Annotated[
        str | None,
        typer.Option(help="Columns that a learner first partials out of all others, such as 'x*'."),
    ] = None,
    learner: Annotated[
        str | None,
        typer.Option(
            help=f"Learner of --controls: {listed((*LEARNERS, 'module:object'))}. [default: auto]",
            autocompletion=completing(*LEARNERS),
        ),
    ] = None,
    folds: Annotated[int, typer.Option(help="Folds of whole clusters for --controls.")] = 5,
    all_outputs: Annotated[bool, typer.Option(help="Print the tables of all outputs.")] = False,
    dask: DaskOptions,
    seed: Seed = 0,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Estimate what the actions do, from a log or its sums, and save it as a model."""
    from ivvi._io.checkpoint import Checkpoint
    from ivvi.fitting import estimate

    state = None if checkpoint is None else Checkpoint(checkpoint, checkpoint_every)
    force = force or (state is not None and state.exists)  # the earlier run wrote the outputs
    client = dask.client
    _check_outputs(out, json, report, checkpoint, force=force)
    se, chosen = errors.requested, method.chosen(seed)
    if (log is None) == (moments is None):
        given = "both a log and --moments are" if log else "neither a log nor --moments is"
        raise InputError(f"{given} given; expected one of them")
    if keep_episodes and without_moments:
        raise InputError("--keep-episodes and --without-moments exclude each other; expected one")
    if moments is None:
        logs = columns.open(str(log))
    else:
        for group in (columns, features):
            reason = "is only for logs; moments have their own columns and features"
            refuse_given(group, reason, context=shell)
        logs = _load_moments(moments, state, client, trusted(trust))
    with progress("reading", getattr(logs, "num_rows", None)) as bar:
        result = estimate(
            logs,
            *features.both,
            method=chosen,
            se=se,
            allow_unidentified=allow_unidentified,
            episodes=keep_episodes,
            difference=difference,
            exogenous=exogenous or (),
            absorb=absorb or (),
            half_panel=half_panel,
            controls=controls or (),
            learner=learner,
            folds=folds,
            seed=seed,
            progress=bar,
            client=client,
            checkpoint=state,
        )
    result = replace(result, command=command_line(shell))
    result.save(out, moments=not without_moments, force=force)
    for text in result.warnings:
        warn(text)
    text = result.summary(most_outputs=None if all_outputs else 6, warnings=False)
    say(text, quiet=json == "-")
    say(f"model saved in {out}", quiet=json == "-")
    if report is not None:
        from ivvi.reporting import report as write_report

        say(f"report: {write_report(result, report, force=force)}", quiet=json == "-")
    emit_json(result, json, force=force)
    if state is not None:
        state.remove()


def _check_outputs(
    out: Path, json: str | None, report: Path | None, checkpoint: Path | None, *, force: bool
) -> None:
    """Raise an error for outputs that cannot be written, before the work starts."""
    from ivvi._io.files import checked_output

    checked_output(out, force=force)
    check_json_target(json, force=force, out=out, checkpoint=checkpoint)
    if report is not None:
        from ivvi.reporting.page import check_page

        check_page(report, force=force)


def _load_moments(path: Path, checkpoint: Any, client: Any, trust: tuple[str, ...]) -> Any:
    """Return sums to use instead of a log."""
    from ivvi.fitting import load_moments

    if checkpoint is not None:
        raise InputError("--checkpoint is only for logs; moments are read at once")
    if client is not None:
        raise InputError("--scheduler and --workers are only for logs; moments are read at once")
    return load_moments(path, trust=trust)
