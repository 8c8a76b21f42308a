"""What the moments tell besides W, and what is reported where there are none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ivvi.diagnostics import Diagnostics
from ivvi.diagnostics.reduced_form import ReducedForm
from ivvi.diagnostics.text import diagnostics_table
from ivvi.estimators import Estimate
from ivvi.estimators.covariance.scores import Scored
from ivvi.estimators.covariance.standard_errors import Resolved
from ivvi.fitting.summary import (
    action_lines,
    coefficient_table,
    reduced_form_lines,
    robust_lines,
    with_nulls,
)
from ivvi.moments import Moments
from ivvi.weak_iv.action_strength import ActionStrength
from ivvi.weak_iv.robust_intervals import RobustIntervals
from ivvi.weak_iv.wild_bootstrap import WildTest

NO_MOMENTS = (
    "with memory of order d the moments are not formed; fit fewer features, or ask for "
    "quadratic memory"
)
DIAGNOSTICS = (
    *("mu_iv", "mu_b", "rank", "identified", "first_stage", "cragg_donald"),
    *("kleibergen_paap", "sargan", "wu_hausman"),
)


@dataclass(frozen=True, slots=True)
class Inference:
    """What the moments tell beside W.

    Attributes
    ----------
    moments
        All that the data said; None in a fit that was saved without them.
    baseline
        Confounded least squares.
    diagnostics
        Strength of the instrument and specification tests.
    scored
        Variances of residuals times instruments, from the second pass; empty without one.
    errors
        What the standard errors asked for came to.
    robust
        Intervals of the actions' effects that a weak instrument cannot spoil.
    actions
        How strong the instruments are for each action, by the features that hold it.
    wild
        Bootstrapped tests of the actions' effects, by output and feature, if asked for.
    reduced_form
        The outputs regressed on the instruments.
    start_clusters
        Number of the cluster of each first state of the sample, (s,), where rows are clustered by
        one column that is not the episode; else empty.
    """

    moments: Moments | None
    baseline: Estimate
    diagnostics: Diagnostics
    scored: dict[str, Scored]
    errors: Resolved
    robust: RobustIntervals = field(default_factory=RobustIntervals)
    actions: tuple[ActionStrength, ...] = ()
    wild: dict[tuple[str, str], WildTest] = field(default_factory=dict)
    reduced_form: ReducedForm | None = None
    start_clusters: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def tables(self, estimate: Estimate, n_outputs: int) -> list[str]:
        """Coefficients of the first `n_outputs` outputs and diagnostics as text."""
        lines: list[str] = []
        for output in range(n_outputs):
            lines += [coefficient_table(estimate, self.baseline, output)]
            lines += [*self._wild_lines(estimate.design.outputs[output]), ""]
            robust = robust_lines(estimate, self.robust, output)
            lines += [*robust, ""] if robust else []
            reduced = reduced_form_lines(estimate, self.reduced_form, output)
            lines += [*reduced, ""] if reduced else []
        if more := len(estimate.W) - n_outputs:
            lines += [f"... and {more} more outputs", ""]
        return [*lines, *self.judgement()]

    def judgement(self) -> list[str]:
        """What is known of the instruments, as text."""
        return [diagnostics_table(self.diagnostics), *action_lines(self.actions)]

    def _wild_lines(self, output: str) -> list[str]:
        return [f"{name:<10} {test}" for (of, name), test in self.wild.items() if of == output]

    def to_json(self, estimate: Estimate) -> dict[str, Any]:
        """Describe how sure an estimate is, and what else is known, with JSON values."""
        return {
            "se": with_nulls(estimate.se),
            "exact_outputs": list(estimate.exact),
            **estimate.W_cov.to_json(),
            "debiased_asked": self.errors.requested.debiased,
            "se_note": self.errors.note or None,
            "wild": self._wild_json(),
            **self.robust.to_json(),
            "recommended": self.diagnostics.verdict.to_json()["recommended"],
            "least_squares": {
                "W": self.baseline.W.tolist(),
                "se": with_nulls(self.baseline.se),
            },
            "reduced_form": None if self.reduced_form is None else self.reduced_form.to_json(),
            "diagnostics": self.diagnostics.to_json()
            | {"actions": {one.action: one.to_json() for one in self.actions}},
        }

    def _wild_json(self) -> dict[str, dict[str, Any]] | None:
        """Return the bootstrapped tests by output and feature."""
        by_output: dict[str, dict[str, Any]] = {}
        for (output, name), test in self.wild.items():
            by_output.setdefault(output, {})[name] = test.to_json()
        return by_output or None


def nothing_inferred() -> dict[str, Any]:
    """Return what `Inference.to_json` would, where the moments were not formed."""
    reasons = dict.fromkeys(DIAGNOSTICS, NO_MOMENTS)
    return {
        **dict.fromkeys(("se", "se_kind", "least_squares", "robust_interval", "recommended")),
        "reduced_form": None,
        "diagnostics": {**dict.fromkeys(DIAGNOSTICS), "reasons": reasons},
        "reasons": dict.fromkeys(("se", "least_squares", "robust_interval"), NO_MOMENTS),
    }
