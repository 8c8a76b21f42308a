"""The effect on W of an instrument that is not quite valid.

Let psi~ be the excluded instruments, cleaned of the exogenous features and made orthonormal
(`estimators.whitening`), sigma_i the standard deviation of the noise of output i, and

    y_i = W_i phi + t sigma_i G_i . psi~ + e_i,   E[e_i psi] = 0.

with G_i (r,) the direction of the violation. Two-stage least squares then estimates
W_i + t sigma_i L G_i, with its influence L (d_phi, r), so that the log is as well explained by

    W_i(t) = W_i - t sigma_i L G_i.

A direct effect of z on y and a confounder that is correlated with z are the same term. They differ
only in the units in which its size is given (`Size`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError, hint
from ivvi.estimators import Exact, LeastSquares
from ivvi.estimators.whitening import Whitened, whiten
from ivvi.evaluation.model_draws import noise_left
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.moments import Moments

WORST = "worst direction"


@dataclass(frozen=True, eq=False, repr=False)
class Violation(Compact):
    """A direction in which the instrument may be invalid.

    Attributes
    ----------
    name
        The instrument or feature with the direct effect, in words.
    direction
        Direct effects (d_y, r) of psi~ in units of the noise's standard deviation: rows of
        length 1, or 0 for outputs that are not affected.
    signs
        The signs of sizes to consider: both, or only positive ones.
    """

    name: str
    direction: Floats
    signs: tuple[float, ...] = (1.0, -1.0)


@dataclass(frozen=True)
class Size:
    """The size of a violation, one number for each output in each unit.

    Attributes
    ----------
    t
        Standard deviation of the direct effect, in those of the noise.
    outputs
        Outputs that are affected.
    direct
        Direct effect of one standard deviation of the instrument, in units of the output.
    share
        The same, relative to the instrument's effect on the output through the actions.
    correlation
        Correlation of the instrument with the error y - W(t) phi, which is the confounder
        together with the direct effect.
    """

    t: float
    outputs: tuple[str, ...]
    direct: tuple[float, ...]
    share: tuple[float, ...]
    correlation: tuple[float, ...]

    @property
    def main(self) -> str:
        """The output that z moves most relative to its noise; for others the share means little."""
        return min(zip(self.share, self.outputs, strict=True))[1]

    @property
    def main_share(self) -> float:
        """The share of that output, which is the smallest."""
        return min(self.share)

    @property
    def most_correlation(self) -> float:
        """Largest correlation among the outputs."""
        return max(self.correlation)

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values; an infinite share (no effect to compare with) is null."""
        shares = [v if np.isfinite(v) else None for v in self.share]
        units = {"direct": self.direct, "share": shares, "correlation": self.correlation}
        named = {k: dict(zip(self.outputs, v, strict=True)) for k, v in units.items()}
        return {"t": self.t, **named}


@dataclass(frozen=True, eq=False)
class Exclusion:
    """The implications of a log's moments for direct effects of the instrument.

    Attributes
    ----------
    moments
        The moments of the log.
    model
        The dynamics that were estimated from it.
    """

    moments: Moments
    model: Dynamics

    @classmethod
    def of(cls, source: ValueInputs) -> Exclusion:
        """Return the implications of a fit; raise an error without an instrument or moments."""
        if isinstance(source.method, LeastSquares):
            raise InputError("least squares uses no instrument, so there is nothing to analyse")
        if source.moments is None:
            fit, alone = source.fit, "dynamics alone have none; pass the fit"
            reason = alone if fit is None else fit.lacks_moments
            raise InputError(f"the sensitivity analysis needs the moments of the log: {reason}")
        return cls(source.moments, source.model)

    def __post_init__(self) -> None:
        design = self.moments.design
        if self.model.W.shape != (len(design.outputs), len(design.phi_names)):
            raise InputError(
                f"the model has {self.model.W.shape[1]} features and the moments "
                f"{len(design.phi_names)}; expected a model and its own moments"
            )
        if not self.names:
            raise InputError("the log has no excluded instrument, so there is nothing to analyse")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Features of psi that phi does not have."""
        design = self.moments.design
        pairs = zip(design.psi_names, design.psi_columns, strict=True)
        return tuple(name for name, column in pairs if column not in design.shared)

    @cached_property
    def space(self) -> Whitened:
        """The coordinates psi~."""
        return whiten(self.moments).excluded

    @property
    def rank(self) -> int:
        """Number of coordinates psi~."""
        return self.space.rank

    @cached_property
    def influence(self) -> Floats:
        """L, (d_phi, r): W_i moves by L m when E[u_i psi~] is m."""
        first = whiten(self.moments).exogenous
        return Exact().solve(self.moments).influence[:, first:]

    @cached_property
    def noise(self) -> Floats:
        """Standard deviation of y - W phi, (d_y,)."""
        return np.sqrt(np.diag(self.noise_cov(self.model.W)))

    @cached_property
    def through(self) -> Floats:
        """The effect of psi~ on y through the actions, W E[phi psi~^T], (d_y, r)."""
        design = self.moments.design
        select = np.eye(design.width)[list(design.phi_columns)]
        through: Floats = self.model.W @ self.space.means(self.moments, select)
        return through

    def effects(self, violation: Violation, t: Any) -> Floats:
        """Return E = t sigma G, direct effects in units of y, (m, d_y, r), for sizes t (m,)."""
        effects: Floats = np.asarray(t, float)[..., None, None] * (
            self.noise[:, None] * violation.direction
        )
        return effects

    def weights(self, direct_effects: Floats) -> Floats:
        """Return W(E) = W - E L^T, (..., d_y, d_phi), for direct effects E (..., d_y, r)."""
        weights: Floats = self.model.W - direct_effects @ self.influence.T
        return weights

    def direct(self, direct_effects: Floats) -> Floats:
        """Return E psi~ as a map of psi, (..., d_y, d_psi)."""
        direct: Floats = direct_effects @ self.space.of_psi(self.moments.design).T
        return direct

    def noise_cov(self, W: Floats) -> Floats:
        """Return the covariance of y - W phi, (..., d_y, d_y), for weights (..., d_y, d_phi).

        This is the noise when the actions are ours and z keeps its distribution.
        """
        return noise_left(self.model, self.moments, W)

    def size(self, violation: Violation, t: float) -> Size:
        """Return size t in interpretable units."""
        touched = np.flatnonzero(np.linalg.norm(violation.direction, axis=1))
        direct = abs(t) * self.noise[touched]
        W = self.weights(self.effects(violation, t))
        error = np.sqrt(np.diag(self.noise_cov(W)))[touched]
        through = np.linalg.norm(self.through[touched], axis=1)
        with np.errstate(divide="ignore"):
            share = direct / through
        outputs = tuple(self.moments.design.outputs[i] for i in touched)
        values = (tuple(map(float, v)) for v in (direct, share, direct / error))
        return Size(float(t), outputs, *values)

    def along(self, name: str, gradient: Floats) -> Violation:
        """Return the violation that a word names, in the direction that costs most.

        Parameters
        ----------
        name
            ``worst``, any direct effect that the features of z can express; an excluded
            feature, such as ``z0``, on every output; or ``z0:next_x1`` on one. With a sign,
            ``+z0``, direct effects of that sign alone.
        gradient
            Derivative of the gain or effect, (d_y, r), in the coordinates of G.
        """
        if name == "worst":
            length = np.linalg.norm(gradient, axis=1, keepdims=True)
            direction = -np.divide(gradient, length, out=np.zeros_like(gradient), where=length > 0)
            if not length.any():
                raise InputError("the policy's value does not depend on the instrument")
            return Violation(WORST, direction)
        fixed, direction, output = self._read(name)
        sign = np.where(gradient @ direction > 0, -1.0, 1.0)
        if fixed is not None:
            sign = np.full(len(sign), fixed)
        if output is not None:
            sign = np.where(np.arange(len(sign)) == output, sign, 0.0)
        signs = Violation.signs if fixed is None else (1.0,)
        return Violation(name, np.outer(sign, direction), signs)

    def check(self, name: str) -> None:
        """Raise an error for a word that names no violation."""
        if name != "worst":
            self._read(name)

    def _read(self, name: str) -> tuple[float | None, Floats, int | None]:
        """Return the sign, direction and output that a word other than ``worst`` names."""
        fixed = {"+": 1.0, "-": -1.0}.get(name[:1])
        feature, _, output = (name if fixed is None else name[1:]).partition(":")
        if feature not in self.names:
            suggestion = hint(feature, ("worst", *self.names))
            raise InputError(f"there is no instrument {feature!r}{suggestion}")
        at = self.moments.design.output(output) if output else None
        return fixed, self._direction(feature), at

    def against(self, output: int, feature: int) -> Violation:
        """Return the violation that moves one coefficient most, towards zero."""
        pull = self.influence[feature]
        direction = np.zeros((len(self.model.W), self.rank))
        length = float(np.linalg.norm(pull))
        if length > 0:
            direction[output] = np.sign(self.model.W[output, feature]) * pull / length
        return Violation(WORST, direction)

    def _direction(self, feature: str) -> Floats:
        """Return coordinates (r,), of length 1, of an excluded feature net of the other ones."""
        design = self.moments.design
        column = design.psi_columns[design.psi_names.index(feature)]
        means = self.space.means(self.moments, np.eye(design.width)[[column]])[0]
        length = float(np.linalg.norm(means))
        if length == 0:
            raise InputError(f"the instrument {feature!r} does not vary given the state")
        direction: Floats = means / length
        return direction
