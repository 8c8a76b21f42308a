"""`estimate`: from a log to weights, their standard errors, diagnostics and a model.

One pass over the rows gives the moments, and with them W and everything that takes the
errors to be homoskedastic; a second one the rest.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ivvi.checkpoint import Checkpoint
from ivvi.diagnostics import Diagnostics, Statistic, diagnose, difference, strength
from ivvi.diagnostics.hypotheses import combination, wald
from ivvi.diagnostics.identification import explain_unidentified
from ivvi.diagnostics.second_pass import second_pass
from ivvi.differences import MAP, Levels, difference_log
from ivvi.dynamics import Dynamics
from ivvi.errors import IdentificationError, InputError, IvviWarning
from ivvi.estimators import GMM, Estimate, LeastSquares, Method, StandardErrors, parse_method
from ivvi.estimators.inference import with_errors
from ivvi.estimators.scores import Scored
from ivvi.estimators.sgda import SGDA
from ivvi.estimators.standard_errors import Resolved
from ivvi.features import FeatureMap
from ivvi.files import content_hash
from ivvi.layout import build_layout
from ivvi.light import light_fit
from ivvi.logs import Counts, Log, Roles, Sample, read_logs
from ivvi.moments import Moments, compute_moments
from ivvi.resume import run_key, settings_of
from ivvi.shard import Shard, kept_in_model
from ivvi.summary import WIDTH, coefficient_table, diagnostics_table, with_nulls

logger = logging.getLogger(__name__)


def make_method(word: str, **settings: Any) -> Method:
    """Return the method of a word, such as ``exact``, ``sgda`` or ``fuller:4``."""
    return SGDA(**settings) if word == "sgda" else parse_method(word, **settings)


@dataclass(frozen=True)
class Fit:
    """What `estimate` returns: the weights, how sure they are, and what was met on the way.

    Attributes
    ----------
    estimate, baseline
        The estimate asked for, and confounded least squares beside it.
    diagnostics
        Strength of the instrument and specification tests.
    moments
        All that the data said; add those of another log to go on.
    counts
        Rows, transitions, episodes and what was dropped.
    scored
        Variances of residuals times instruments, from the second pass; empty without one.
    errors
        What the standard errors asked for came to.
    roles, label, method, seconds
        Columns, source, method's name and time taken.
    settings
        Settings of the method, as JSON values.
    files
        The files that were read, or the hashes of those that are known by it alone.
    sample
        A few of the log's rows: planners plan on them, values start there, reports draw them.
    command
        What was typed to make the fit, when that was a command.
    differenced
        Whether it comes from differences between steps; `moments` and `diagnostics` are then
        those of the differences.
    """

    estimate: Estimate
    baseline: Estimate
    diagnostics: Diagnostics
    moments: Moments
    counts: Counts
    scored: dict[str, Scored]
    errors: Resolved
    roles: Roles
    label: str
    method: str
    seconds: float
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    files: tuple[Path | str, ...] = ()
    sample: Sample | None = None
    command: str = ""
    differenced: bool = False

    @property
    def W(self) -> np.ndarray:  # noqa: N802
        """Primal weights, (d_y, d_phi)."""
        return self.estimate.W

    @property
    def K(self) -> np.ndarray:  # noqa: N802
        """Dual weights, (d_y, d_psi)."""
        return self.estimate.K

    @property
    def se(self) -> np.ndarray:
        """Standard errors of W; NaN where W is not identified."""
        return self.estimate.se

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before believing the estimate."""
        trace = self.estimate.trace
        unfinished = (trace.advice,) if trace is not None and trace.advice else ()
        return self.diagnostics.warnings + unfinished

    @property
    def model(self) -> Dynamics:
        """The estimated dynamics, to plan with."""
        return Dynamics.of(self.estimate, self.roles, self.sample)

    @property
    def baseline_model(self) -> Dynamics:
        """The dynamics that least squares believes in."""
        return Dynamics.of(self.baseline, self.roles, self.sample)

    def wald(self, R: Any, r: Any = 0.0) -> Statistic:
        """Test hypotheses about W, all together.

        Parameters
        ----------
        R
            Words such as ``"next_x0: a0 = a1"`` (about every output without its name), a
            sequence of them, or an array (q, d_y d_phi) for R vec(W) = r, where vec(W) are
            the rows of W one after another.
        r
            Right-hand side (q,) of an array R.
        """
        return wald(self.estimate, R, r)

    def combination(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a linear combination of W in words, and its standard error, by output."""
        return combination(self.estimate, text)

    def difference_in_sargan(self, *suspects: str) -> tuple[Statistic, ...]:
        """Test whether some instrument features are valid, given that the others are."""
        return difference(self.moments, suspects, self.scored.get("exact"))

    def summary(self, *, most_outputs: int | None = 6) -> str:
        """Return the result as text: coefficients with least squares beside, diagnostics."""
        c, outputs = self.counts, self.roles.outputs
        shown = len(outputs) if most_outputs is None else min(most_outputs, len(outputs))
        lines = [
            "=" * WIDTH,
            f"{self.label}: {c.transitions:,} transitions of {c.episodes:,} episodes, "
            f"method {self.method}",
            "=" * WIDTH,
        ]
        lines += [f"WARNING {text}" for text in self.warnings]
        for output in range(shown):
            lines += [coefficient_table(self.estimate, self.baseline, output), ""]
        if shown < len(outputs):
            lines += [f"... and {len(outputs) - shown} more outputs", ""]
        lines.append(diagnostics_table(self.diagnostics))
        dropped = [f"{n:,} {what}" for what, n in self.dropped.items() if n]
        lines.append(f"dropped rows      {', '.join(dropped) or 'none'}")
        if (trace := self.estimate.trace) is not None:
            far = f"{trace.error:.2f} standard errors from the closed form"
            lines.append(f"descent-ascent    {trace.status} after {trace.t[-1]} steps, {far}")
        lines.append(f"standard errors   {self.estimate.W_cov}; LS ignores the instrument")
        lines += [f"                  {self.errors.note}"] if self.errors.note else []
        return "\n".join(lines)

    @property
    def dropped(self) -> dict[str, int]:
        """Rows that were left out, by reason."""
        return {
            "without next state": self.counts.without_next,
            "with missing values": self.counts.missing,
        }

    def to_json(self) -> dict[str, Any]:
        """Describe the fit with JSON values (null for what is not identified)."""
        e = self.estimate
        return {
            "outputs": list(e.layout.outputs),
            "phi": list(e.layout.phi_names),
            "psi": list(e.layout.psi_names),
            "W": with_nulls(e.W),
            "K": with_nulls(e.K),
            "se": with_nulls(e.se),
            "least_squares": {
                "W": self.baseline.W.tolist(),
                "se": with_nulls(self.baseline.se),
            },
            "noise_cov": with_nulls(e.noise_cov),
            "n": self.moments.n,
            "episodes": self.counts.episodes,
            "dropped": self.dropped,
            "log": self.label,
            "columns": self.roles.to_json(),
            "command": self.command or None,
            "method": self.method,
            "settings": self.settings,
            "difference": self.differenced,
            **e.W_cov.to_json(),
            "se_note": self.errors.note or None,
            "seconds": self.seconds,
            "warnings": list(self.warnings),
            "trace": None if e.trace is None else e.trace.to_json(),
            "diagnostics": self.diagnostics.to_json(),
        }

    @property
    def shard(self) -> Shard:
        """The moments with what is needed to add to them.

        The files that were read are hashed now; one that is gone cannot come again.
        """
        if self.differenced:
            raise InputError("a fit from differences has no moments that others can be added to")
        there = [f for f in self.files if not isinstance(f, Path) or f.exists()]
        seen = tuple(content_hash(f) if isinstance(f, Path) else f for f in there)
        return Shard(self.moments, self.counts, self.roles, seen, self.label)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        moments: bool = True,
        episodes: bool = False,
        force: bool = False,
    ) -> Path:
        """Save the model, with `to_json` and the `sample` beside it; not one that diverged.

        Without its `moments` it cannot be updated with new rows; with those of single
        `episodes`, if the fit has them, values can be bootstrapped.
        """
        trace = self.estimate.trace
        if trace is not None and trace.status == "diverged":
            raise InputError(f"{path} is not written: {trace.advice}")
        kept = moments and not self.differenced
        beside = kept_in_model(self.shard, episodes=episodes) if kept else ({}, {})
        return self.model.save(path, facts=self.to_json(), beside=beside, force=force)

    def __repr__(self) -> str:
        d_y, d_phi = self.W.shape
        return f"Fit({self.label}, {self.method}, n={self.estimate.n:,}, W {d_y} x {d_phi})"


def estimate(  # noqa: PLR0913
    logs: Any,
    phi: FeatureMap | str = "linear",
    psi: FeatureMap | str | None = None,
    *,
    method: Method | str = "exact",
    se: StandardErrors | str = "auto",
    allow_unidentified: bool = False,
    episodes: bool = False,
    difference: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    checkpoint: Checkpoint | None = None,
    client: Any = None,
) -> Fit:
    """Estimate y = W phi(x, a) + noise from a confounded log with instruments.

    Parameters
    ----------
    logs
        A `Log` (`ivvi.read_logs`), anything that `read_logs` opens with its defaults, or a
        `Shard` of moments, which has its own features.
    phi, psi
        Feature maps of (x, a) and of (x, z), or a feature word (``linear``, ``poly2``,
        ``spline:5``, ``fourier:200``). Without `psi`, the one that goes with the word.
    method
        `Exact`, `SGDA`, `LeastSquares`, `LIML`, `Fuller`, `KClass`, `GMM`, or their words.
    se
        `StandardErrors`, or their kind: ``unadjusted``, ``robust``, ``clustered``, ``hac``, or
        ``auto``, which clusters logs of more than one step an episode by episode.
    allow_unidentified
        Return the minimum-norm solution when the instruments do not identify W.
    episodes
        Keep per-episode moments: clustering by episode then needs no second pass, and the
        bootstrap none at all.
    difference
        Estimate from differences between the steps of an episode, in which a confounder that
        lasts the whole episode drops out (`ivvi.differences` says what must hold).
    seed
        Seed of random features.
    progress
        Called with the number of rows just read.
    checkpoint
        Where to keep the state, so that a run that was killed goes on and ends with the
        same bits; `Checkpoint.remove` it when the result is safe.
    client
        Read the rows with Dask: a number of local processes, the address of a scheduler, or
        a `distributed.Client`.

    Returns
    -------
    Fit
        A `LightFit`, which has no `baseline`, `diagnostics` and `moments`, where `SGDA` works
        with memory of order d.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=2).collect(episodes=20, horizon=100, seed=1)
    >>> fit = ivvi.estimate(log)
    >>> bool(abs(fit.W[0, 3] - -0.5) < 4 * fit.se[0, 3])     # the true effect of a0 is -0.5
    True
    """
    if difference:
        run = partial(estimate, method=method, se=se, allow_unidentified=allow_unidentified)
        unsuited = (checkpoint, client, episodes or None)
        return _from_differences(logs, phi, psi, seed, run, unsuited, progress)
    started = time.perf_counter()
    chosen = make_method(method) if isinstance(method, str) else method
    wanted = StandardErrors(se) if isinstance(se, str) else se
    log: Log | None = None
    files: tuple[Path | str, ...]
    if isinstance(logs, Shard):
        shard, files = logs, logs.files
    else:
        log = logs if isinstance(logs, Log) else read_logs(logs)
        log = log.clustered(wanted.columns) if wanted.columns else log
        layout = build_layout(log, phi, psi, seed)
        if checkpoint is not None:
            checkpoint.open(run_key(log, layout, chosen, episodes=episodes))
        if isinstance(chosen, SGDA) and chosen.is_linear(layout):
            if client is not None:
                raise InputError("memory of order d uses no moments for a cluster to compute")
            # it has what a Fit has, but for what needs moments
            return light_fit(log, layout, chosen, checkpoint, progress)  # type: ignore[return-value]
        walk = partial(compute_moments, checkpoint=checkpoint)
        if client is not None:
            walk = _on_cluster(client, checkpoint)
        moments, counts = walk(log, layout, episodes=episodes, progress=progress)
        shard, files = Shard(moments, counts, log.roles, label=log.label), tuple(log.table.files)
    moments, counts, strong = shard.moments, shard.counts, strength(shard.moments)
    logger.info(
        "%s: moments of %s transitions, %d features phi, %d psi, rank of A %d",
        *(shard.label, f"{moments.n:,}", strong.d_phi, len(moments.layout.psi_names), strong.rank),
    )
    if not (allow_unidentified or chosen.name == "least-squares"):
        _check_identified(shard)
    errors = wanted.for_sums() if log is None else wanted.resolve(log, counts, strong.d_phi)
    chosen = _weighted(chosen, errors)
    estimates = {
        "estimate": chosen.solve(moments, log, checkpoint),
        "baseline": LeastSquares().solve(moments),
    }
    logger.info("weights by %s; standard errors %s", chosen.name, errors.kind)
    scored: dict[str, Scored] = {}
    if log is not None:
        scored = second_pass(estimates, moments, errors, log, counts, progress, client)
    fit = Fit(
        estimate=with_errors(estimates["estimate"], errors, scored.get("estimate")),
        baseline=with_errors(estimates["baseline"], errors, scored.get("baseline")),
        diagnostics=diagnose(moments, scored),
        moments=moments,
        counts=counts,
        scored=scored,
        errors=errors,
        roles=shard.roles,
        label=shard.label,
        method=chosen.name,
        seconds=time.perf_counter() - started,
        settings=settings_of(chosen),
        files=files,
        sample=None if log is None else log.sample(),
    )
    for text in fit.warnings:
        warnings.warn(text, IvviWarning, stacklevel=2)
    return fit


def _weighted(method: Method, errors: Resolved) -> Method:
    """Let GMM weigh by the variance that the standard errors assume, unless it has its own."""
    if isinstance(method, GMM) and method.weight is None:
        return replace(method, weight=errors)
    return method


def _check_identified(shard: Shard) -> None:
    """Refuse moments whose instruments do not identify W, naming the free directions."""
    strong = strength(shard.moments)
    if not strong.identified:
        raise IdentificationError(explain_unidentified(shard.moments, strong, shard.roles))


def _from_differences(
    logs: Any,
    phi: FeatureMap | str,
    psi: FeatureMap | str | None,
    seed: int,
    run: Callable[..., Fit],
    unsuited: tuple[Any, ...],
    progress: Callable[[int], None] | None,
) -> Fit:
    """Estimate from differences between steps; what comes back speaks of levels again."""
    if isinstance(logs, Shard) or any(thing is not None for thing in unsuited):
        raise InputError(
            "differences are taken between the rows of a log, in one pass and one process: no "
            "moments, checkpoint, cluster or per-episode moments"
        )
    log = logs if isinstance(logs, Log) else read_logs(logs)
    layout = build_layout(log, phi, psi, seed)
    differenced = difference_log(log, layout)
    moments, counts = compute_moments(log, layout, progress=progress)
    found = run(differenced, MAP, MAP)
    levels = Levels(layout, moments, counts.episodes)
    return replace(
        found,
        estimate=levels.restore(found.estimate),
        baseline=levels.restore(found.baseline),
        roles=log.roles,
        sample=log.sample(),
        differenced=True,
    )


def _on_cluster(client: Any, checkpoint: Checkpoint | None) -> Any:
    """Return `compute_moments` as the cluster does it."""
    from ivvi.distributed import compute_moments_on

    if checkpoint is not None:
        raise InputError("a checkpoint is for one process; a cluster needs none")
    return partial(compute_moments_on, client)
