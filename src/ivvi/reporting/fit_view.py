"""The parts of a fit that a report shows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.diagnostics.first_stage import partial_out
from ivvi.dynamics.model import Dynamics
from ivvi.fitting import Fit
from ivvi.fitting.inference_tables import half_widths
from ivvi.logs import Batch
from ivvi.moments import Moments


@dataclass(frozen=True)
class FitView:
    """A fit as a report shows it.

    Attributes
    ----------
    fit
        The fit.
    place
        Folder where it was saved; None otherwise.
    """

    fit: Fit
    place: str = ""

    @cached_property
    def facts(self) -> dict[str, Any]:
        """`Fit.to_json`."""
        return self.fit.to_json()

    def columns_of(self, role: str) -> list[str]:
        """Return the columns of a role under the log's names: a category is one column."""
        roles, columns = self.fit.roles, self.facts["columns"][role]
        if role == "step" and (asked := dict(roles.asked).get("step")):
            return list(asked)
        names = [columns] if isinstance(columns, str) else list(columns or ())
        coded = {name: c.column for c in roles.categories for name in c.names}
        return list(dict.fromkeys(coded.get(name, name) for name in names))

    @cached_property
    def model(self) -> Dynamics:
        """The estimated dynamics."""
        return self.fit.model

    @property
    def moments(self) -> Moments | None:
        """Sums over all rows; None where they were not formed or not kept."""
        return self.fit.moments if self.fit.has_moments else None

    @cached_property
    def sample(self) -> Batch | None:
        """A few rows of the log; None for a fit to sums."""
        model = self.model
        if not len(model.followed):
            return None
        return Batch(model.states, model.acted, model.instruments, model.followed)

    @cached_property
    def estimates(self) -> dict[str, tuple[Floats, Floats]]:
        """W and its standard errors, (d_y, d_phi) each: ``iv``, and ``ls`` where it is known."""
        fit = self.fit
        kind = "iv" if fit.uses_instruments else "ls"
        estimates = {kind: (_finite(fit.W), _finite(fit.se))}
        if kind == "iv" and fit.inference is not None:
            estimates["ls"] = _finite(fit.baseline.W), _finite(fit.baseline.se)
        return estimates

    @cached_property
    def widths(self) -> Floats:
        """Half widths of Wald's intervals in standard errors, (d_y, d_phi)."""
        return half_widths(self.fit.estimate)

    @property
    def compared(self) -> bool:
        """Whether least squares is shown next to an instrumented estimate."""
        return len(self.estimates) == 2

    @cached_property
    def gap(self) -> Floats:
        """Least squares minus the instrumented estimate, in standard errors of the latter."""
        if not self.compared:
            return np.full(self.model.W.shape, np.nan)
        (W, se), (W_ls, _) = self.estimates["iv"], self.estimates["ls"]
        with np.errstate(divide="ignore", invalid="ignore"):
            gap = (W_ls - W) / se
        return np.where(np.isfinite(gap), gap, np.nan)

    def robust(self, output: str, feature: str) -> dict[str, Any] | None:
        """Return the weak-instrument robust interval of an effect, if there is one."""
        by_output = (self.facts.get("robust_interval") or {}).get(output) or {}
        interval: dict[str, Any] | None = by_output.get(feature)
        return None if interval is None or "reason" in interval else interval

    def wild(self, output: str, feature: str) -> dict[str, Any] | None:
        """Return the wild bootstrap's test of an effect, if it was requested."""
        by_output = (self.facts.get("wild") or {}).get(output) or {}
        test: dict[str, Any] | None = by_output.get(feature)
        return test

    @property
    def noisy(self) -> list[int]:
        """Positions of the outputs that are not exact functions of the features."""
        exact = self.facts.get("exact_outputs") or ()
        return [i for i, name in enumerate(self.outputs) if name not in exact]

    @property
    def command(self) -> str:
        """The command that prints the numbers again."""
        return self.facts["command"] or "fit.summary(most_outputs=None)"

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return list(self.facts["outputs"])

    @property
    def phi(self) -> list[str]:
        """Names of the features."""
        return list(self.facts["phi"])

    @property
    def endogenous(self) -> list[int]:
        """Features that may be confounded: those of phi that psi neither has nor determines."""
        stages = self.facts["diagnostics"].get("first_stage")
        if stages:
            return [j for j, name in enumerate(self.phi) if name in stages]
        of_psi = set(self.facts["psi"])
        return [j for j, name in enumerate(self.phi) if name not in of_psi]

    @cached_property
    def residuals(self) -> dict[str, Floats]:
        """Residuals of the sample, y - W phi(x, a), (m, d_y), by estimate."""
        rows = self.sample
        if rows is None:
            return {}
        Phi = self.model.phi(rows.x, rows.a)
        return {kind: rows.y - Phi @ W.T for kind, (W, _) in self.estimates.items()}

    @cached_property
    def first_stages(self) -> tuple[tuple[str, Floats, Floats], ...]:
        """Per endogenous feature: name, its part that psi predicts, and its own values.

        Both (m,), of the sample, after regression on the exogenous features of all rows.
        """
        if self.sample is None or self.moments is None:
            return ()
        moments, design = self.moments, self.moments.design
        partialled = partial_out(moments)
        if not partialled.names or not partialled.count:
            return ()
        V = np.ones((len(self.sample), design.width))
        V[:, design.varying] = design.rows(self.sample)
        space, k = partialled.space, partialled.space.exogenous
        coordinates = (V - space.shift) @ space.to_white
        slopes = space.means(moments, partialled.select)
        predicted = coordinates[:, k:] @ slopes[:, k:].T
        actual = V @ partialled.select.T - coordinates[:, :k] @ slopes[:, :k].T
        return tuple(zip(partialled.names, predicted.T, actual.T, strict=True))


def _finite(numbers: Floats) -> Floats:
    """Return an array with NaN for values that are not finite."""
    return np.where(np.isfinite(numbers), numbers, np.nan)
