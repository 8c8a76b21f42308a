"""All diagnostics of a log together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ivvi.diagnostics.specification import sargan, wu_hausman
from ivvi.diagnostics.statistic import Statistic
from ivvi.diagnostics.strength import FirstStage, Strength, cragg_donald, first_stage, strength
from ivvi.estimators import Exact
from ivvi.moments import Moments

WEAK_F = 10.0
"""Staiger and Stock's rule of thumb for the first-stage F."""


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Strength, first stages and specification tests; None with a reason where one fails.

    Attributes
    ----------
    strength, first_stage, cragg_donald
        See `ivvi.diagnostics.strength`.
    sargan, wu_hausman
        One for each output, see `ivvi.diagnostics.specification`.
    outputs
        Names of the outputs.
    reasons
        Why a statistic is None, by its name.
    """

    strength: Strength
    first_stage: tuple[FirstStage, ...]
    cragg_donald: float | None
    sargan: tuple[Statistic, ...] | None
    wu_hausman: tuple[Statistic, ...] | None
    outputs: tuple[str, ...]
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader must know before believing the estimate."""
        found = []
        s = self.strength
        if not s.identified:
            found.append(f"not identified: {'; '.join(s.unidentified)}")
        elif s.rank_psi < s.d_psi:
            found.append(
                f"collinear instrument features: {s.d_psi} columns of rank {s.rank_psi}; "
                "the estimate does not suffer"
            )
        if s.identified and self.cragg_donald is not None and self.cragg_donald < WEAK_F:
            found.append(
                f"weak instruments: Cragg-Donald F is {self.cragg_donald:.2f}, below {WEAK_F:g}; "
                "estimates and standard errors are unreliable"
            )
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Describe everything with JSON values."""
        s = self.strength
        return {
            "mu_iv": s.mu_iv,
            "mu_iv_identified": s.mu_iv_identified if s.rank else None,
            "mu_b": s.mu_b,
            "eigenvalues": list(s.eigenvalues),
            "weakest_direction": s.weakest,
            "rank": s.rank,
            "d_phi": s.d_phi,
            "rank_psi": s.rank_psi,
            "d_psi": s.d_psi,
            "identified": s.identified,
            "unidentified": list(s.unidentified),
            "first_stage": {stage.feature: stage.to_json() for stage in self.first_stage},
            "cragg_donald": self.cragg_donald,
            "kleibergen_paap": None,
            "sargan": self._by_output(self.sargan),
            "wu_hausman": self._by_output(self.wu_hausman),
            "reasons": self.reasons,
        }

    def _by_output(self, statistics: tuple[Statistic, ...] | None) -> dict[str, Any] | None:
        if statistics is None:
            return None
        return {o: s.to_json() for o, s in zip(self.outputs, statistics, strict=True)}


def diagnose(moments: Moments) -> Diagnostics:
    """Compute every diagnostic that the moments allow."""
    strong, stages = strength(moments), first_stage(moments)
    donald, hausman = cragg_donald(moments), wu_hausman(moments)
    over = sargan(moments, Exact().solve(moments))
    reasons = {
        "kleibergen_paap": "equals cragg_donald under the unadjusted errors that are used here"
    }
    general = None if strong.identified else "the instruments do not identify the dynamics"
    if moments.n <= strong.rank_psi:
        general = f"{moments.n} rows are too few for {strong.rank_psi} instrument features"
    if not stages:
        reasons["first_stage"] = general or "no feature is endogenous: phi lies in psi"
    if donald is None:
        exact = "an action is an exact function of the instruments and the state"
        reasons["cragg_donald"] = general or reasons.get("first_stage", exact)
    if over is None:
        just = "just identified: as many instruments as features, nothing is left to test"
        reasons["sargan"] = general or just
    if hausman is None:
        nothing = "no endogenous feature has a first-stage residual to test"
        reasons["wu_hausman"] = general or nothing
    return Diagnostics(strong, stages, donald, over, hausman, moments.layout.outputs, reasons)
