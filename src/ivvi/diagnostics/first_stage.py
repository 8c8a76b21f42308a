"""How much the instruments move each action: first stages, alone and together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.diagnostics.statistic import SingularError, Statistic, quadratic
from ivvi.estimators.covariance.scores import Scored
from ivvi.estimators.estimate import EXACT, RANK_TOLERANCE, Rows
from ivvi.estimators.whitening import Whitened, exogenous, whiten
from ivvi.moments import Moments, remembered

OTHERS = ("robust", "conditional", "robust_conditional")


@dataclass(frozen=True, slots=True, repr=False)
class FirstStage(Compact):
    """The regression of one endogenous feature on psi.

    Attributes
    ----------
    feature
        Its name.
    partial_f
        Tests the instruments that phi does not contain.
    partial_r2
        What they explain of what the exogenous features leave.
    robust_f
        The same test under the standard errors asked for.
    conditional_f
        Sanderson and Windmeijer's: what the instruments explain of this feature once they have been
        used for the others.
    robust_conditional_f
        The same under the standard errors asked for.
    reasons
        Why one of the last three is None, by its name in the JSON.
    """

    feature: str
    partial_f: Statistic
    partial_r2: float
    robust_f: Statistic | None
    conditional_f: Statistic | None
    robust_conditional_f: Statistic | None
    reasons: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Describe the first stage with JSON values."""
        others = (self.robust_f, self.conditional_f, self.robust_conditional_f)
        other_tests = [None if test is None else test.to_json() for test in others]
        return {
            **self.partial_f.to_json(),
            "partial_r2": self.partial_r2,
            **dict(zip(OTHERS, other_tests, strict=True)),
            "reasons": self.reasons,
        }


@dataclass(frozen=True, slots=True, repr=False)
class PartialledColumns(Compact):
    """Endogenous features and instruments after regression on the exogenous features.

    Attributes
    ----------
    names
        The endogenous features, those of phi that psi neither has nor determines.
    X
        Their residual rows (m, d_endogenous).
    basis
        Orthonormal basis (m, q) of the excluded instruments' residuals.
    space
        Coordinates of psi, of which the basis is the last part.
    select
        Map of the rows v to the endogenous features, (d_endogenous, p).
    freedom
        n minus the rank of psi (the constant included), and minus effects that were absorbed.
    """

    names: tuple[str, ...]
    X: Floats
    basis: Floats
    space: Whitened
    select: Floats
    freedom: int

    @property
    def count(self) -> int:
        """Number of excluded instruments, collinear ones counted once."""
        return int(self.basis.shape[1])


@remembered
def partial_out(moments: Moments) -> PartialledColumns:
    """Partial the shared features out of the others."""
    design, rows, space = moments.design, Rows.of(moments), whiten(moments)
    shared = set(exogenous(moments))
    inside = [i for i, c in enumerate(rows.phi_kept) if c not in shared]
    names = tuple(design.phi_names[rows.phi_kept[i]] for i in inside)
    X = residual(space.included, rows.Phi[:, inside])
    select = np.eye(design.width)[rows.phi_kept[inside]]
    freedom = moments.n - space.rank - moments.lost()
    return PartialledColumns(names, X, space.excluded.basis, space, select, freedom)


def first_stage(
    moments: Moments, scored: Scored | None = None, unadjusted: str = ""
) -> tuple[FirstStage, ...]:
    """Regress each endogenous feature on psi.

    `scored` are the first stages' residuals times the excluded instruments, for the robust
    F; `unadjusted` says why there are none. Empty when nothing is endogenous or there are no
    more rows than instruments.
    """
    partialled = partial_out(moments)
    if partialled.freedom <= 0:
        return ()
    explained = np.sum((partialled.basis.T @ partialled.X) ** 2, axis=0)
    total = np.sum(partialled.X**2, axis=0)
    q = partialled.count
    robust = None if scored is None or not q else _Robust.of(moments, partialled, scored)
    stages = []
    for i, name in enumerate(partialled.names):
        rest = max(total[i] - explained[i], np.finfo(float).eps * total[i])
        f = (explained[i] / q) / (rest / partialled.freedom) if q and rest > 0 else 0.0
        null = f"the instruments do not move {name} given the exogenous features"
        r2 = float(explained[i] / total[i]) if total[i] > 0 else 0.0
        plain = Statistic(float(f), (q, partialled.freedom), null)
        tests: list[Statistic | str] = [unadjusted]
        if robust is not None and rest <= EXACT * total[i]:
            tests = [f"the instruments and the exogenous features determine {name}"]
        elif robust is not None:
            tests = [robust.wald(robust.pi[i], robust.blocks[i], null)]
        tests += _conditional(partialled, robust, i, unadjusted)
        one, two, three = (test if isinstance(test, Statistic) else None for test in tests)
        reasons = {n: why for n, why in zip(OTHERS, tests, strict=True) if isinstance(why, str)}
        stages.append(FirstStage(name, plain, r2, one, two, three, reasons))
    return tuple(stages)


def denominator(scored: Scored, freedom: int) -> int:
    """Degrees of freedom of an F test's denominator: clusters less one, or those of the rows."""
    counts = [count for count in scored.clusters if count is not None]
    return min(counts) - 1 if counts else freedom


@dataclass(frozen=True, slots=True, repr=False)
class _Robust(Compact):
    """First stages times n^1/2, (m, q), and their variances corrected for small samples."""

    pi: Floats
    blocks: Floats
    joint: Floats | None
    freedom: int

    @classmethod
    def of(cls, moments: Moments, partialled: PartialledColumns, scored: Scored) -> _Robust:
        pi = partialled.space.excluded.means(moments, partialled.select) * np.sqrt(moments.n)
        omega, joint = scored.blocks(partialled.space.rank), scored.joint(partialled.space.rank)
        return cls(pi, omega, joint, denominator(scored, partialled.freedom))

    def wald(self, gap: Floats, variance: Floats, null: str) -> Statistic | str:
        """Test by F that `gap` (k,) is zero, or return why its variance does not allow it."""
        try:
            value = quadratic(gap, variance, "the first stage") / len(gap)
        except SingularError as error:
            return str(error)
        return Statistic(value, (len(gap), self.freedom), null)


def _conditional(
    partialled: PartialledColumns, robust: _Robust | None, i: int, unadjusted: str
) -> list[Statistic | str]:
    """Sanderson and Windmeijer's F of one endogenous feature given the others, and robust.

    The feature less the two-stage least-squares prediction from the others is regressed on
    the instruments; those used up by the others leave q - m + 1 degrees of freedom. The
    robust one is Wald's test in the directions that the others leave free.
    """
    m, q = len(partialled.names), partialled.count
    scale = np.linalg.norm(partialled.X, axis=0)
    if q < m or (scale == 0).any():
        few = f"{q} instruments cannot separate {m} endogenous features"
        return [few if q < m else "the exogenous features determine an action"] * 2
    X = partialled.X / scale
    fitted = partialled.basis.T @ X
    others = np.delete(fitted, i, axis=1)
    delta = np.linalg.lstsq(others, fitted[:, i], rcond=RANK_TOLERANCE)[0]
    weights = np.insert(-delta, i, 1.0)
    rest = X @ weights
    explained = float(np.sum((partialled.basis.T @ rest) ** 2))
    left = max(float(rest @ rest) - explained, np.finfo(float).eps)
    value = (explained / (q - m + 1)) / (left / partialled.freedom)
    null = f"the instruments do not move {partialled.names[i]} apart from the other actions"
    plain = Statistic(value, (q - m + 1, partialled.freedom), null)
    if robust is None:
        return [plain, unadjusted]
    if robust.joint is None:
        return [plain, f"{m} actions and {q} instruments are too many for it"]
    free = np.linalg.qr(others, mode="complete")[0][:, m - 1 :]  # (q, q - m + 1)
    combine = np.kron(weights / scale, free.T)
    variance = combine @ robust.joint @ combine.T
    return [plain, robust.wald(combine @ robust.pi.ravel(), variance, null)]


def cragg_donald(moments: Moments) -> float | None:
    """Cragg and Donald's F: the first-stage F of the worst combination of endogenous features.

    The smallest eigenvalue of S^-1/2 X' P_Z X S^-1/2 / q with S the covariance of the
    first stages' residuals; equal to the partial F when there is one endogenous feature.
    None when nothing is endogenous, the order condition fails, or some combination is an
    exact function of the instruments or of the exogenous features.
    """
    partialled = partial_out(moments)
    q, m = partialled.count, len(partialled.names)
    if not m or q < m or partialled.freedom <= 0:
        return None
    scale = np.linalg.norm(partialled.X, axis=0)
    if (scale == 0).any():
        return None
    X = partialled.X / scale
    fitted = partialled.basis.T @ X
    rest = residual(partialled.basis, X)
    if min(np.linalg.svd(columns, compute_uv=False)[-1] for columns in (X, rest)) < RANK_TOLERANCE:
        return None
    _, triangle = np.linalg.qr(rest)
    whitened = np.linalg.solve(triangle.T, fitted.T).T
    smallest = np.linalg.svd(whitened, compute_uv=False)[-1] ** 2
    return float(smallest * partialled.freedom / q)


def residual(basis: Floats, columns: Floats) -> Floats:
    """Return what an orthonormal basis leaves of columns, with rounding errors set to zero."""
    rest = columns - basis @ (basis.T @ columns)
    nothing = np.linalg.norm(rest, axis=0) <= RANK_TOLERANCE * np.linalg.norm(columns, axis=0)
    return np.where(nothing, 0.0, rest)
