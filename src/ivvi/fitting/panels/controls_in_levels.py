"""Planning after controls were partialled out: what they add to the outputs, in levels.

With y = W [x, a] + g(c) + e, a plan needs g too. The learners are not kept, since they are code,
but on the rows of the log

    g = E[y | c] - W E[[x, a] | c]

is known, each expectation out of fold. The next state depends on what the controls do:

- *held*: they never change within an episode. Its g is then a constant, like an absorbed effect:
the model has the mean over episodes, and `Fit.of_unit` that of one episode.
- *drawn*: rows are separate decisions, or g at one step says nothing about the next. It is then
noise around its mean.
- Else a plan would have to predict the controls, by functions that the model does not hold. This is
  refused, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.estimators import Estimate
from ivvi.estimators.covariance.weight_covariance import Covariance
from ivvi.features.blocks import Constant
from ivvi.features.design import Design
from ivvi.features.feature_map import FeatureMap
from ivvi.fitting.panels.absorbing import FixedEffects
from ivvi.fitting.panels.partialling import Partialled, PartialledRows, features_of

LASTING = 0.1
"""With a larger correlation between g at one step and the next, g is not drawn independently."""


@dataclass(frozen=True, slots=True, repr=False)
class ControlLevels:
    """The part of the outputs that controls explain, given the weights of everything else.

    Attributes
    ----------
    residuals
        The rows, with and without the controls' predictions.
    W
        Weights of [x, a], (d_y, d_phi).
    g
        Part of each row's outputs that controls explain, (n, d_y), with the mean of y - W [x, a].
    partialled
        How the controls were taken out, and what a plan takes them for.
    """

    residuals: PartialledRows
    W: Floats
    g: Floats
    partialled: Partialled

    @classmethod
    def of(cls, residuals: PartialledRows, W: Floats) -> ControlLevels:
        """Find g on the rows, and what the controls do from step to step."""
        rows, left, weight = residuals.rows, residuals.left, residuals.rows.weight
        inputs, d_z = np.hstack([rows.x, rows.a]), rows.z.shape[1]
        width = inputs.shape[1]
        g = (rows.y - left[:, width + d_z :]) - (inputs - left[:, :width]) @ W.T
        g = g + np.average(rows.y - inputs @ W.T - g, axis=0, weights=weight)
        later, refusal = _later(residuals, g)
        return cls(residuals, W, g, replace(residuals.partialled, later=later, refusal=refusal))

    def restore(self, estimate: Estimate) -> Estimate:
        """Return the estimate with the constant of the mean row before its features."""
        rows, roles = self.residuals.rows, self.residuals.roles
        phi = FeatureMap((Constant(), *features_of(roles).blocks))
        weight, inputs = rows.weight, np.hstack([rows.x, rows.a])
        centre = np.average(inputs, axis=0, weights=weight)
        constant = np.average(self.g, axis=0, weights=weight)
        rest = rows.y - inputs @ self.W.T - constant
        into = np.vstack([-centre, np.eye(len(centre))])  # slopes move the constant too
        noise = estimate.noise_cov
        if self.partialled.later == "drawn":
            noise = np.cov(rest, rowvar=False, aweights=weight).reshape(noise.shape)
        first = np.zeros((len(into), len(into)))
        first[0, 0] = 1.0
        return replace(
            estimate,
            design=Design.build(phi, phi, roles),
            W=np.column_stack([constant, estimate.W]),
            K=np.column_stack([np.zeros(len(estimate.K)), estimate.K]),
            noise_cov=noise,
            bread=into @ estimate.bread @ into.T + first / estimate.n,
            null=estimate.null @ into.T,
            spread=np.append(0.0, estimate.spread),
            covariance=self._covariance(estimate, into, rest),
        )

    def _covariance(self, estimate: Estimate, into: Floats, rest: Floats) -> Covariance:
        """Return the covariance of W with the constant, whose own is that of a mean of clusters."""
        covariance, d_y = estimate.W_cov, len(estimate.W)
        weight = self.residuals.rows.weight
        parts = rest if weight is None else rest * weight[:, None]
        groups = self.residuals.groups
        sums = np.array([np.bincount(groups, column) for column in parts.T])
        total = float(len(rest) if weight is None else weight.sum())
        mean = sums @ sums.T / total**2
        blocks = into @ covariance.blocks @ into.T
        blocks[:, 0, 0] += np.diag(mean)
        joint = None
        if covariance.joint is not None:
            each = np.kron(np.eye(d_y), into)
            joint = each @ covariance.joint @ each.T
            joint[:: len(into), :: len(into)] += mean
        effective, freedom = (
            None if part is None else np.column_stack([part.min(axis=1), part])
            for part in (covariance.effective, covariance.freedom)
        )
        return replace(covariance, blocks=blocks, joint=joint, effective=effective, freedom=freedom)

    def effects(self) -> tuple[FixedEffects, ...]:
        """Return the constants of the episodes around their mean, where controls are held."""
        rows, roles = self.residuals.rows, self.residuals.roles
        if self.partialled.later != "held" or roles.episode is None:
            return ()
        weight = np.ones(len(rows)) if rows.weight is None else rows.weight
        number = np.asarray(rows.episode)
        mass = np.bincount(number, weight, len(self.residuals.units)).astype(np.float64)
        sums = np.array([np.bincount(number, weight * column, len(mass)) for column in self.g.T])
        used = mass > 0
        values = (sums[:, used] / mass[used]).T - np.average(self.g, axis=0, weights=rows.weight)
        labels = np.array([str(unit) for unit in self.residuals.units])[used]
        return (FixedEffects(roles.episode, labels, values, mass[used], roles.outputs),)


def _later(residuals: PartialledRows, g: Floats) -> tuple[str, str]:
    """Return how a plan treats the controls, held or drawn, and else why there can be no plan."""
    roles, rows, names = residuals.roles, residuals.rows, residuals.partialled.controls
    moved = [name for name in names if f"next_{name}" in roles.outputs]
    end = "; the learner is not saved: to plan, give them as states instead of controls"
    if moved:
        return "", (
            f"the controls {', '.join(moved[:3])} are states that actions may move, and their "
            f"effect on the next step was partialled out before this fit{end}"
        )
    if roles.episode is None or not roles.derived:
        return "drawn", ""
    same = np.diff(np.asarray(rows.episode)) == 0
    if not same.any() or not np.diff(residuals.controls, axis=0)[same].any():
        return "held", ""
    for name, column in zip(roles.outputs, g.T, strict=True):
        before, after = column[:-1][same], column[1:][same]
        if before.std() > 0 and after.std() > 0:
            lasting = float(np.corrcoef(before, after)[0, 1])
            if abs(lasting) > LASTING:
                return "", (
                    f"the controls change from step to step and their part of {name} persists "
                    f"(correlation {lasting:.2f} with the step before), so a plan would have "
                    f"to predict them{end}"
                )
    return "drawn", ""
