"""`estimate`: from a log to weights, their standard errors, diagnostics and a model.

One pass over the rows gives the moments, and with them W and everything that takes the
errors to be homoskedastic; a second one the rest.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ivvi.diagnostics import Diagnostics, Statistic, diagnose, difference, strength
from ivvi.diagnostics.hypotheses import combination, wald
from ivvi.diagnostics.identification import explain_unidentified
from ivvi.diagnostics.second_pass import second_pass
from ivvi.dynamics import Dynamics
from ivvi.errors import IdentificationError, InputError, IvviWarning
from ivvi.estimators import GMM, Estimate, LeastSquares, Method, StandardErrors, parse_method
from ivvi.estimators.inference import with_errors
from ivvi.estimators.scores import Scored
from ivvi.estimators.standard_errors import Resolved
from ivvi.features import FeatureMap
from ivvi.layout import Layout
from ivvi.logs import Counts, Log, Roles, read_logs
from ivvi.moments import Moments, compute_moments
from ivvi.summary import WIDTH, coefficient_table, diagnostics_table


def make_method(word: str, **settings: Any) -> Method:
    """Return the method of a word, such as ``exact``, ``sgda`` or ``fuller:4``."""
    if word == "sgda":
        from ivvi.estimators.sgda import SGDA  # brings JAX

        return SGDA(**settings)
    return parse_method(word, **settings)


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
        e, roles = self.estimate, self.roles
        return Dynamics(
            phi=e.layout.phi,
            W=e.W,
            noise_cov=e.noise_cov,
            bread=e.bread,
            state=roles.state,
            action=roles.action,
            outputs=roles.outputs,
            has_reward=roles.reward is not None,
            unidentified=e.unidentified,
            W_cov=e.W_cov.blocks if e.W_cov.joint is None else e.W_cov.joint,
        )

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
            "W": _nulls(e.W),
            "K": _nulls(e.K),
            "se": _nulls(e.se),
            "least_squares": {"W": self.baseline.W.tolist(), "se": _nulls(self.baseline.se)},
            "noise_cov": _nulls(e.noise_cov),
            "n": self.moments.n,
            "episodes": self.counts.episodes,
            "dropped": self.dropped,
            "method": self.method,
            **e.W_cov.to_json(),
            "se_note": self.errors.note or None,
            "seconds": self.seconds,
            "warnings": list(self.warnings),
            "trace": None if e.trace is None else e.trace.to_json(),
            "diagnostics": self.diagnostics.to_json(),
        }

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Save the model, with the whole of `to_json` beside it; not one that diverged."""
        trace = self.estimate.trace
        if trace is not None and trace.status == "diverged":
            raise InputError(f"{path} is not written: {trace.advice}")
        return self.model.save(path, facts=self.to_json(), force=force)

    def __repr__(self) -> str:
        d_y, d_phi = self.W.shape
        return f"Fit({self.label}, {self.method}, n={self.moments.n:,}, W {d_y} x {d_phi})"


def estimate(  # noqa: PLR0913
    logs: Any,
    phi: FeatureMap | str = "linear",
    psi: FeatureMap | str | None = None,
    *,
    method: Method | str = "exact",
    se: StandardErrors | str = "auto",
    allow_unidentified: bool = False,
    episodes: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Fit:
    """Estimate y = W phi(x, a) + noise from a confounded log with instruments.

    Parameters
    ----------
    logs
        A `Log` (`ivvi.read_logs`), or anything that `read_logs` opens with its defaults.
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
    seed
        Seed of random features.
    progress
        Called with the number of rows just read.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=2).collect(episodes=20, horizon=100, seed=1)
    >>> fit = ivvi.estimate(log)
    >>> bool(abs(fit.W[0, 3] - -0.5) < 4 * fit.se[0, 3])     # the true effect of a0 is -0.5
    True
    """
    started = time.perf_counter()
    log = logs if isinstance(logs, Log) else read_logs(logs)
    wanted = StandardErrors(se) if isinstance(se, str) else se
    log = log.clustered(wanted.columns) if wanted.columns else log
    chosen = make_method(method) if isinstance(method, str) else method
    layout = Layout.of_log(log, phi, psi, seed)
    moments, counts = compute_moments(log, layout, episodes=episodes, progress=progress)
    strong = strength(moments)
    if not (strong.identified or allow_unidentified or chosen.name == "least-squares"):
        raise IdentificationError(explain_unidentified(moments, strong, log.roles))
    errors = wanted.resolve(log, counts, strong.d_phi)
    if isinstance(chosen, GMM) and chosen.weight is None:
        chosen = replace(chosen, weight=errors)
    estimates = {"estimate": chosen.solve(moments, log), "baseline": LeastSquares().solve(moments)}
    scored = second_pass(estimates, moments, errors, log, counts, progress)
    fit = Fit(
        estimate=with_errors(estimates["estimate"], errors, scored.get("estimate")),
        baseline=with_errors(estimates["baseline"], errors, scored.get("baseline")),
        diagnostics=diagnose(moments, scored),
        moments=moments,
        counts=counts,
        scored=scored,
        errors=errors,
        roles=log.roles,
        label=log.label,
        method=chosen.name,
        seconds=time.perf_counter() - started,
    )
    for text in fit.warnings:
        warnings.warn(text, IvviWarning, stacklevel=2)
    return fit


def _nulls(values: np.ndarray) -> list[list[float | None]]:
    return [[float(v) if np.isfinite(v) else None for v in row] for row in values]
