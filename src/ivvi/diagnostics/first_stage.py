"""How much the instruments move each action: first stages, alone and together."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi.diagnostics.statistic import SingularError, Statistic, quadratic
from ivvi.estimators.estimate import RANK_TOLERANCE, Rows
from ivvi.estimators.scores import Scored
from ivvi.estimators.whitening import Whitened, whiten
from ivvi.layout import Floats
from ivvi.moments import Moments, remembered


@dataclass(frozen=True, slots=True)
class FirstStage:
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
        The same test under the standard errors asked for; None for unadjusted ones, or
        where their covariance is singular.
    conditional_f
        Sanderson and Windmeijer's: what the instruments say about this feature once they
        have been used for the others; None when too few are left.
    robust_conditional_f
        The same under the standard errors asked for; None as `robust_f` is.
    """

    feature: str
    partial_f: Statistic
    partial_r2: float
    robust_f: Statistic | None
    conditional_f: Statistic | None
    robust_conditional_f: Statistic | None

    def to_json(self) -> dict[str, Any]:
        """Describe the first stage with JSON values."""
        others = {
            "robust": self.robust_f,
            "conditional": self.conditional_f,
            "robust_conditional": self.robust_conditional_f,
        }
        return {
            **self.partial_f.to_json(),
            "partial_r2": self.partial_r2,
            **{name: None if test is None else test.to_json() for name, test in others.items()},
        }


@dataclass(frozen=True, slots=True)
class Partialled:
    """Endogenous features and instruments after regression on the exogenous features.

    Attributes
    ----------
    names
        The endogenous features, those of phi that psi does not have.
    X
        Their residual rows (m, d_endogenous).
    basis
        Orthonormal basis (m, q) of the excluded instruments' residuals.
    space
        Coordinates of psi, of which the basis is the last part.
    select
        Map of the rows v to the endogenous features, (d_endogenous, p).
    freedom
        n minus the rank of psi (the constant included).
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
def partial_out(moments: Moments) -> Partialled:
    """Partial the shared features out of the others."""
    layout, rows, space = moments.layout, Rows.of(moments), whiten(moments)
    shared = set(layout.shared)
    inside = [i for i, c in enumerate(rows.phi_kept) if c not in shared]
    names = tuple(layout.phi_names[rows.phi_kept[i]] for i in inside)
    X = residual(space.included, rows.Phi[:, inside])
    select = np.eye(layout.width)[rows.phi_kept[inside]]
    return Partialled(names, X, space.excluded.basis, space, select, moments.n - space.rank)


def first_stage(moments: Moments, scored: Scored | None = None) -> tuple[FirstStage, ...]:
    """Regress each endogenous feature on psi.

    `scored` are the first stages' residuals times the excluded instruments, for the robust
    F. Empty when nothing is endogenous or there are no more rows than instruments.
    """
    parts = partial_out(moments)
    if parts.freedom <= 0:
        return ()
    explained = np.sum((parts.basis.T @ parts.X) ** 2, axis=0)
    total = np.sum(parts.X**2, axis=0)
    q = parts.count
    robust = _robust(moments, parts, scored)
    conditional = _conditional(moments, parts, scored)
    stages = []
    for i, name in enumerate(parts.names):
        rest = max(total[i] - explained[i], np.finfo(float).eps * total[i])
        f = (explained[i] / q) / (rest / parts.freedom) if q and rest > 0 else 0.0
        null = f"the instruments do not move {name} given the exogenous features"
        r2 = float(explained[i] / total[i]) if total[i] > 0 else 0.0
        plain = Statistic(float(f), (q, parts.freedom), null)
        stages.append(FirstStage(name, plain, r2, robust[i], *conditional[i]))
    return tuple(stages)


def denominator(scored: Scored, freedom: int) -> int:
    """Degrees of freedom of an F test's denominator: clusters less one, or those of the rows."""
    counts = [count for count in scored.clusters if count is not None]
    return min(counts) - 1 if counts else freedom


def _robust(moments: Moments, parts: Partialled, scored: Scored | None) -> list[Statistic | None]:
    """Wald tests n pi^T Omega^-1 pi / q of each first stage, corrected for small samples."""
    if scored is None or not parts.count:
        return [None] * len(parts.names)
    pi = parts.space.excluded.means(moments, parts.select)
    omega = scored.blocks(parts.space.rank)
    found: list[Statistic | None] = []
    for i, name in enumerate(parts.names):
        null = f"the instruments do not move {name} given the exogenous features"
        try:
            value = moments.n * quadratic(pi[i], omega[i], "the first stage") / parts.count
        except SingularError:
            found.append(None)
            continue
        df = (parts.count, denominator(scored, parts.freedom))
        found.append(Statistic(value, df, null))
    return found


def _conditional(
    moments: Moments, parts: Partialled, scored: Scored | None
) -> list[tuple[Statistic | None, Statistic | None]]:
    """Sanderson and Windmeijer's F of each endogenous feature given the others, and robust.

    The feature less the two-stage least-squares prediction from the others is regressed on
    the instruments; those used up by the others leave q - m + 1 degrees of freedom. The
    robust one is Wald's test in the directions that the others leave free.
    """
    m, q = len(parts.names), parts.count
    scale = np.linalg.norm(parts.X, axis=0)
    if q < m or (scale == 0).any():
        return [(None, None)] * m
    X = parts.X / scale
    fitted = parts.basis.T @ X
    omega = None if scored is None else scored.joint(parts.space.rank)
    pi = parts.space.excluded.means(moments, parts.select).ravel() * np.sqrt(moments.n)
    found: list[tuple[Statistic | None, Statistic | None]] = []
    for i, name in enumerate(parts.names):
        others = np.delete(fitted, i, axis=1)
        delta = np.linalg.lstsq(others, fitted[:, i], rcond=RANK_TOLERANCE)[0]
        weights = np.insert(-delta, i, 1.0)
        rest = X @ weights
        explained = float(np.sum((parts.basis.T @ rest) ** 2))
        left = max(float(rest @ rest) - explained, np.finfo(float).eps)
        value = (explained / (q - m + 1)) / (left / parts.freedom)
        null = f"the instruments do not move {name} apart from the other actions"
        plain = Statistic(value, (q - m + 1, parts.freedom), null)
        robust = None
        if scored is not None and omega is not None:
            free = np.linalg.qr(others, mode="complete")[0][:, m - 1 :]  # (q, q - m + 1)
            combine = np.kron(weights / scale, free.T)
            df = (q - m + 1, denominator(scored, parts.freedom))
            with contextlib.suppress(SingularError):
                wald = quadratic(combine @ pi, combine @ omega @ combine.T, "the first stage")
                robust = Statistic(wald / df[0], df, null)
        found.append((plain, robust))
    return found


def cragg_donald(moments: Moments) -> float | None:
    """Cragg and Donald's F: the first-stage F of the worst combination of endogenous features.

    The smallest eigenvalue of S^-1/2 X' P_Z X S^-1/2 / q with S the covariance of the
    first stages' residuals; equal to the partial F when there is one endogenous feature.
    None when nothing is endogenous, the order condition fails, or some combination is an
    exact function of the instruments or of the exogenous features.
    """
    parts = partial_out(moments)
    q, m = parts.count, len(parts.names)
    if not m or q < m or parts.freedom <= 0:
        return None
    scale = np.linalg.norm(parts.X, axis=0)
    if (scale == 0).any():
        return None
    X = parts.X / scale
    fitted = parts.basis.T @ X
    rest = residual(parts.basis, X)
    if min(np.linalg.svd(V, compute_uv=False)[-1] for V in (X, rest)) < RANK_TOLERANCE:
        return None
    _, triangle = np.linalg.qr(rest)
    whitened = np.linalg.solve(triangle.T, fitted.T).T
    smallest = np.linalg.svd(whitened, compute_uv=False)[-1] ** 2
    return float(smallest * parts.freedom / q)


def residual(Q: Floats, V: Floats) -> Floats:
    """Return what the orthonormal columns of Q leave of V, with rounding errors set to zero."""
    rest = V - Q @ (Q.T @ V)
    nothing = np.linalg.norm(rest, axis=0) <= RANK_TOLERANCE * np.linalg.norm(V, axis=0)
    return np.where(nothing, 0.0, rest)
