"""Fits with memory of order d: weights without moments, and what is then not known."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ivvi.checkpoint import Checkpoint
from ivvi.dynamics import Dynamics
from ivvi.errors import InputError, IvviWarning
from ivvi.estimators import Estimate
from ivvi.estimators.sgda import SGDA
from ivvi.layout import Layout
from ivvi.logs import Counts, Log, Roles, Sample
from ivvi.resume import settings_of
from ivvi.summary import WIDTH, with_nulls

REASON = (
    "with memory of order d the moments are not formed; fit fewer features, or ask for "
    "quadratic memory"
)
ABSENT = (
    *("mu_iv", "mu_b", "rank", "identified", "first_stage", "cragg_donald"),
    *("kleibergen_paap", "sargan", "wu_hausman"),
)


@dataclass(frozen=True)
class LightFit:
    """A fit whose moments were not formed, so that it has no standard errors and diagnostics.

    Attributes
    ----------
    estimate
        Weights and noise; `bread` is empty.
    counts, roles, label, method, seconds, settings, sample, command
        As in `Fit`.
    """

    estimate: Estimate
    counts: Counts
    roles: Roles
    label: str
    method: str
    seconds: float
    settings: dict[str, Any]
    sample: Sample | None = None
    command: str = ""

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
        """NaN for every weight."""
        return self.estimate.se

    @property
    def model(self) -> Dynamics:
        """The estimated dynamics, to plan with."""
        return Dynamics.of(self.estimate, self.roles, self.sample)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before believing the estimate."""
        trace = self.estimate.trace
        return (trace.advice,) if trace is not None and trace.advice else ()

    def summary(self, *, most_outputs: int | None = 6) -> str:
        """Return the result as text: where descent arrived, and the noise of each output."""
        c, (d_y, d_phi), trace = self.counts, self.W.shape, self.estimate.trace
        shown = d_y if most_outputs is None else min(most_outputs, d_y)
        lines = [
            "=" * WIDTH,
            f"{self.label}: {c.transitions:,} transitions of {c.episodes:,} episodes, "
            f"method {self.method}",
            "=" * WIDTH,
            *(f"WARNING {text}" for text in self.warnings),
            f"{d_phi:,} features, {d_y} outputs, memory of order d",
        ]
        spread = np.sqrt(np.diag(self.estimate.noise_cov))
        for name, size in zip(self.roles.outputs[:shown], spread, strict=False):
            lines.append(f"  {name:<15} noise {size:.4g}")
        if trace is not None:
            far = f"moment conditions {trace.error:.2f} standard errors from zero"
            lines.append(f"descent-ascent    {trace.status} after {trace.t[-1]} steps, {far}")
        return "\n".join([*lines, f"standard errors   - ({REASON})"])

    def to_json(self) -> dict[str, Any]:
        """Describe the fit with JSON values; what needs moments is null with a reason."""
        e = self.estimate
        return {
            "outputs": list(e.layout.outputs),
            "phi": list(e.layout.phi_names),
            "psi": list(e.layout.psi_names),
            "W": with_nulls(e.W),
            "K": with_nulls(e.K),
            "se": None,
            "least_squares": None,
            "noise_cov": with_nulls(e.noise_cov),
            "n": e.n,
            "episodes": self.counts.episodes,
            "dropped": {
                "without next state": self.counts.without_next,
                "with missing values": self.counts.missing,
            },
            "log": self.label,
            "columns": self.roles.to_json(),
            "command": self.command or None,
            "method": self.method,
            "settings": self.settings,
            "se_kind": None,
            "seconds": self.seconds,
            "warnings": list(self.warnings),
            "trace": None if e.trace is None else e.trace.to_json(),
            "diagnostics": dict.fromkeys(ABSENT) | {"reasons": dict.fromkeys(ABSENT, REASON)},
            "reasons": {"se": REASON, "least_squares": REASON},
        }

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        moments: bool = False,
        episodes: bool = False,
        force: bool = False,
    ) -> Path:
        """Save the model; there are no `moments` to keep, of `episodes` or any."""
        trace = self.estimate.trace
        if trace is not None and trace.status == "diverged":
            raise InputError(f"{path} is not written: {trace.advice}")
        return self.model.save(path, facts=self.to_json(), force=force)

    def __repr__(self) -> str:
        d_y, d_phi = self.W.shape
        return f"LightFit({self.label}, n={self.estimate.n:,}, W {d_y} x {d_phi})"


def light_fit(
    log: Log,
    layout: Layout,
    method: SGDA,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[int], None] | None = None,
) -> LightFit:
    """Fit by descent-ascent without forming the moments."""
    started = time.perf_counter()
    found, counts = method.solve_wide(log, layout, checkpoint, progress)
    fit = LightFit(
        estimate=found,
        counts=counts,
        roles=log.roles,
        label=log.label,
        method=method.name,
        seconds=time.perf_counter() - started,
        settings=settings_of(method),
        sample=log.sample(),
    )
    for text in fit.warnings:
        warnings.warn(text, IvviWarning, stacklevel=3)
    return fit
