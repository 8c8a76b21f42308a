"""Are the instruments valid together? Tests of over-identification.

With r independent columns of psi and d_phi features, r - d_phi moment conditions E[u psi] = 0
remain that the estimate does not set to zero; these over-identifying restrictions can be tested.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats
from ivvi.diagnostics.statistic import Statistic
from ivvi.errors import InputError, nearest
from ivvi.estimators import Estimate, Exact
from ivvi.estimators.covariance.scores import Scored
from ivvi.estimators.estimate import Rows, exactly_fitted
from ivvi.estimators.gmm import centred_moments, inverse_root
from ivvi.estimators.whitening import Whitened, orthonormal, whiten
from ivvi.features.design import Design
from ivvi.moments import Moments

NULL = "every instrument is valid, given that enough of them are"


def degrees_over(moments: Moments, estimate: Estimate) -> int:
    """Number of over-identifying moments of an output; 0 when not identified."""
    return whiten(moments).rank - estimate.W.shape[1] if estimate.identified else 0


def sargan(moments: Moments, estimate: Estimate) -> tuple[Statistic, ...] | None:
    """Sargan's test of over-identification, one for each output: n R^2 of residual on psi.

    Chi-squared with rank(psi) - d_phi degrees of freedom under homoskedastic errors. None
    when the model is just identified or not identified.
    """
    freedom = degrees_over(moments, estimate)
    if freedom <= 0:
        return None
    explained, total = _projected(moments, estimate)
    total = np.where(exactly_fitted(moments, np.diag(total)), 0.0, np.diag(total))
    values = moments.n * ratio(np.diag(explained), total)
    return tuple(Statistic(float(value), (freedom,), NULL) for value in values)


def bypassing(moments: Moments, estimate: Estimate) -> Floats:
    """Share of what the excluded instruments explain of each output that bypasses phi, (d_y,).

    |P (y - W phi)|^2 / |P_z y|^2 with P on psi and P_z on what the excluded instruments add to the
    exogenous features. Its root is about the relative error of W that the contradiction causes.
    """
    space = whiten(moments)
    explained = _output_moments(moments, space)[:, space.exogenous :]
    return ratio(np.diag(_projected(moments, estimate)[0]), np.sum(explained**2, axis=1))


def basmann(moments: Moments, estimate: Estimate) -> tuple[Statistic, ...] | None:
    """Basmann's small-sample variant of Sargan's s: s (n - rank psi) / (n - s)."""
    plain = sargan(moments, estimate)
    if plain is None:
        return None
    n, rest = moments.n, moments.n - whiten(moments).rank - moments.lost()
    left = [max(n - test.value, n * np.finfo(float).eps) for test in plain]  # all is explained
    return tuple(
        Statistic(one.value * rest / part, one.df, NULL)
        for one, part in zip(plain, left, strict=True)
    )


def joint_sargan(moments: Moments, estimate: Estimate) -> Statistic | None:
    """Sargan's test of all outputs together, n tr(S^-1 U' P U) with S the noise covariance."""
    freedom = degrees_over(moments, estimate)
    explained, total = _projected(moments, estimate)
    if freedom <= 0 or dependent(moments, total):
        return None
    value = moments.n * float(np.trace(np.linalg.solve(total, explained)))
    return Statistic(value, (freedom * len(total),), NULL)


def hansen_j(moments: Moments, scored: Scored) -> tuple[Statistic, ...]:
    """Hansen's J, one for each output: n g^T Omega^-1 g at the two-step GMM estimate.

    `scored` are the closed form's residuals times psi, under the standard errors asked for.
    """
    space, rows = whiten(moments), Rows.of(moments)
    A = centred_moments(moments, space, rows)[0]
    c = _output_moments(moments, space)
    freedom, omegas = (space.rank - A.shape[1],), scored.blocks()
    return tuple(
        Statistic(0.0 if exact else moments.n * _distance(moment, A, omega), freedom, NULL)
        for moment, omega, exact in zip(c, omegas, noiseless(moments, omegas), strict=True)
    )


def joint_hansen_j(moments: Moments, scored: Scored) -> Statistic | None:
    """Hansen's J of all outputs together; None where their joint variance is not held."""
    omega = scored.joint()
    space, rows = whiten(moments), Rows.of(moments)
    A = centred_moments(moments, space, rows)[0]
    c = _output_moments(moments, space)
    if omega is None or len(c) == 1 or noiseless(moments, scored.blocks()).any():
        return None
    design = np.kron(np.eye(len(c)), A).astype(np.float64)
    value = moments.n * _distance(c.ravel(), design, omega)
    return Statistic(value, (len(c) * (space.rank - A.shape[1]),), NULL)


def difference(
    moments: Moments, suspects: Sequence[str], scored: Scored | None = None
) -> tuple[Statistic, ...]:
    """C statistic, one for each output: are the `suspects` valid, if the others are?

    The difference of Sargan's (without `scored`) or Hansen's statistics with and without
    the suspect columns of psi, both with the variance of the whole set, so that it cannot
    be negative (Hayashi).
    """
    space, rows, estimate = whiten(moments), Rows.of(moments), Exact().solve(moments)
    remaining = _without(moments, space, rows, suspects)
    A = centred_moments(moments, space, rows)[0]
    lost = space.rank - remaining.shape[1]
    if (
        degrees_over(moments, estimate) < lost
        or np.linalg.matrix_rank(remaining.T @ A) < A.shape[1]
    ):
        raise InputError(
            f"without {', '.join(suspects)} the instruments do not identify the dynamics; "
            "suspect fewer of them"
        )
    if not lost:
        raise InputError(
            f"{', '.join(suspects)} {'is' if len(suspects) == 1 else 'are'} collinear with the "
            "other instruments, so nothing is left to test"
        )
    c = _output_moments(moments, space)
    if scored is None:
        noise = np.diag(estimate.noise_cov)
        omegas = noise[:, None, None] * np.eye(space.rank)
    else:
        omegas = scored.blocks()
    null = f"{', '.join(suspects)} {'is' if len(suspects) == 1 else 'are'} valid, as the others are"
    statistics = []
    for moment, omega, exact in zip(c, omegas, noiseless(moments, omegas), strict=True):
        gain = 0.0
        if not exact:
            gain = _distance(moment, A, omega)
            gain -= _distance(
                remaining.T @ moment, remaining.T @ A, remaining.T @ omega @ remaining
            )
        statistics.append(Statistic(max(moments.n * gain, 0.0), (lost,), null))
    return tuple(statistics)


def _projected(moments: Moments, estimate: Estimate) -> tuple[Floats, Floats]:
    """U' P U and U' U of the residuals per row, (d_y, d_y) each."""
    rows = Rows.of(moments)
    rest = rows.Y - rows.Phi @ estimate.W[:, rows.phi_kept].T
    inside = whiten(moments).basis.T @ rest
    return inside.T @ inside, rest.T @ rest


def _output_moments(moments: Moments, space: Whitened) -> Floats:
    """E[y psi~^T], (d_y, r)."""
    return space.means(moments, np.eye(moments.design.width)[list(moments.design.y_columns)])


def _distance(moment: Floats, A: Floats, omega: Floats) -> float:
    """Return the minimum over w of (c - A w)^T omega^-1 (c - A w)."""
    root = inverse_root(omega)
    target, design = root @ moment, root @ A
    basis = np.linalg.qr(design / np.linalg.norm(design, axis=0))[0]
    rest = target - basis @ (basis.T @ target)
    return float(rest @ rest)


def check_suspects(design: Design, suspects: Sequence[str]) -> None:
    """Refuse suspects that are not instrument features."""
    columns = zip(design.psi_names, design.psi_columns, strict=True)
    instruments = [name for name, column in columns if column not in design.shared]
    for name in suspects:
        if name not in instruments:
            hint = nearest(name, instruments) or f"; choose from {', '.join(instruments)}"
            raise InputError(f"{name!r} is not an instrument feature{hint}")


def _without(moments: Moments, space: Whitened, rows: Rows, suspects: Sequence[str]) -> Floats:
    """Coordinates of the span of psi without the suspects, as columns, (r, r')."""
    design = moments.design
    check_suspects(design, suspects)
    keep = [i for i, at in enumerate(rows.psi_kept) if design.psi_names[at] not in suspects]
    slopes = space.basis.T @ orthonormal(rows.Psi[:, keep])
    ahead = space.rank - len(slopes)
    directions = np.zeros((space.rank, slopes.shape[1] + ahead))
    directions[:ahead, :ahead] = np.eye(ahead)
    directions[ahead:, ahead:] = slopes
    return directions


def ratio(part: Floats, whole: Floats) -> Floats:
    """Divide, taking 0 / 0 (an output that never varies) for 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def noiseless(moments: Moments, omegas: Floats) -> NDArray[np.bool_]:
    """Return the outputs whose scores, of variance omegas (d_y, r, r), are rounding error."""
    size = np.abs(np.einsum("jii->j", omegas)) / omegas.shape[1]
    return exactly_fitted(moments, size)


def dependent(moments: Moments, noise: Floats) -> bool:
    """Whether outputs repeat each other in their noise (d_y, d_y), or one has none."""
    if exactly_fitted(moments, np.diag(noise)).any():
        return True
    size = np.sqrt(np.diag(noise))
    return bool(np.linalg.cond(noise / np.outer(size, size)) > 1e12)
