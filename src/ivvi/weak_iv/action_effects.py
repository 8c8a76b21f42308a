"""The effects of the actions as problems of their own, once what is exogenous is held fixed.

With X the endogenous features, y an output and Z the excluded instruments, all after
regression on the exogenous features, and b = (1, -theta, -gamma),

    G = n^1/2 E[Z T']   H = Var(vec(n^-1/2 sum Z T'))   T = [y, x_j, the other X]

are all that tests of theta = W_oj need. H is one more score of the second pass, under the
standard errors asked for, so that a robust interval and Wald's lean on the same clusters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ivvi.diagnostics.first_stage import PartialledColumns, partial_out
from ivvi.estimators.covariance.score_rows import Score
from ivvi.estimators.covariance.scores import MOST_WORK, Scored
from ivvi.features.design import Floats
from ivvi.moments import Moments, remembered
from ivvi.weak_iv.effect_scores import EffectScores
from ivvi.weak_iv.partialled_effect import PartialledEffect

MOST_SETS = 24
"""Effects of which a robust interval is computed without being asked for."""


@dataclass(frozen=True, slots=True)
class ActionEffects:
    """Endogenous features and outputs after regression on the exogenous features.

    Attributes
    ----------
    outputs
        Positions of the outputs that are looked at.
    R
        Map (m + outputs, p) of the rows v to the endogenous features and these outputs.
    means
        E[T Z'], (m + outputs, q).
    second
        E[T T'], (m + outputs, m + outputs).
    """

    parts: PartialledColumns
    outputs: tuple[int, ...]
    labels: tuple[str, ...]
    R: Floats
    means: Floats
    second: Floats
    n: int

    @property
    def m(self) -> int:
        """Number of endogenous features."""
        return len(self.parts.names)

    @property
    def subsets(self) -> tuple[tuple[int, ...], ...]:
        """Rows of R that belong to one output: itself, then the endogenous features."""
        return tuple((self.m + i, *range(self.m)) for i in range(len(self.outputs)))

    def score(self, count: int) -> Score | None:
        """Return what to add up over `count` rows or clusters; None where it is not worth it.

        One action with one instrument needs nothing but its first stage.
        """
        q = self.parts.count
        if self.m * q <= 1 or self.too_much(count):
            return None
        return Score(self.R, self.parts.space.excluded, subsets=self.subsets)

    def too_much(self, count: int) -> str:
        """Say why the sums are not made, where they are too many."""
        width = (1 + self.m) * self.parts.count
        if len(self.outputs) * width**2 * count <= MOST_WORK:
            return ""
        return (
            f"{self.m} endogenous features and {self.parts.count} instruments are too many sums "
            "for so many rows; `ivvi interval` makes those of one effect"
        )

    def effect(self, i: int, j: int) -> PartialledEffect:
        """Return the effect of endogenous feature j on the i-th of the outputs."""
        at = self._columns(i, j)
        size = np.sqrt(np.diag(self.second)[at])
        scale = np.where(size > 0, size, 1.0)
        means = self.means[at] / scale[:, None]
        P = means @ means.T
        space = self.parts.space
        return PartialledEffect(
            label=f"effect of {self.parts.names[j]} on {self.labels[i]}",
            explained=P,
            unexplained=self.second[np.ix_(at, at)] / np.outer(scale, scale) - P,
            into_columns=(self.R[at] / scale[:, None]).T,
            into_Z=space.excluded.T,
            centre=space.shift,
            unit=float(scale[0] / scale[1]),
            freedom=self.parts.freedom,
            moves=bool(size[1] > 0),
        )

    def scores(self, scored: Scored, i: int, j: int) -> EffectScores:
        """Return G (k, t) and H (k, t, k, t) of the same effect, columns of length one."""
        at = self._columns(i, j)
        size = np.sqrt(np.diag(self.second)[at])
        t, k = len(at), self.parts.count
        within = [self.subsets[i].index(column) for column in at]
        H = scored.subsets()[i].reshape(t, k, t, k)[within][:, :, within]
        H = H / size[:, None, None, None] / size[:, None]
        G = np.sqrt(self.n) * (self.means[at] / size[:, None]).T
        counts = [count for count in scored.clusters if count is not None]
        return EffectScores(G, H.transpose(1, 0, 3, 2), min(counts, default=self.n))

    def _columns(self, i: int, j: int) -> list[int]:
        return [self.m + i, j, *(other for other in range(self.m) if other != j)]


@remembered
def action_effects(moments: Moments) -> ActionEffects:
    """Return the effects of the endogenous features on as many outputs as are looked at."""
    design, parts = moments.design, partial_out(moments)
    n_outputs = max(1, MOST_SETS // max(len(parts.names), 1))
    outputs = tuple(range(min(len(design.outputs), n_outputs)))
    eye = np.eye(design.width)
    select = np.vstack([parts.select, eye[[design.y_columns[i] for i in outputs]]])
    given = parts.space.exogenous
    included = replace(parts.space, T=parts.space.T[:, :given], basis=parts.space.included)
    R = included.residual_map(moments, select)
    centre = R @ moments.mean
    second = R @ (moments.scatter / moments.weight) @ R.T + np.outer(centre, centre)
    labels = tuple(design.outputs[i] for i in outputs)
    means = parts.space.excluded.means(moments, R)
    return ActionEffects(parts, outputs, labels, R, means, second, moments.n)
