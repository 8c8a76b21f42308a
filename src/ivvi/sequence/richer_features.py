"""Do richer features change the answer? The two approximation errors of the paper.

Its second theorem bounds the error of W phi by eta_1, what phi cannot express of the truth,
and by eta_2 / mu_iv, where eta_2 is what psi misses of E[f(x, a) | x, z] for f in the span
of phi:

    eta_1 = |f* - P_phi f*|      eta_2 = sup { |T f - P_psi T f| : f in span phi, |f| <= 1 }

Neither can be known; both can be measured against a richer pair (phi+, psi+).
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from ivvi.diagnostics.statistic import Statistic
from ivvi.estimators import Exact
from ivvi.estimators.estimate import EXACT, RANK_TOLERANCE, Floats, Rows, exactly_fitted
from ivvi.estimators.whitening import orthonormal
from ivvi.features.design import Design
from ivvi.features.feature_map import FeatureMap, parse_features, state_features
from ivvi.logs import Log, Roles
from ivvi.moments import Moments
from ivvi.moments.compression import columns_in, psi_positions, restrict
from ivvi.sequence.cluster_tests import LargestContrast
from ivvi.sequence.finding import Check

Bools = NDArray[np.bool_]
NO_NOISE = "every output is fitted exactly: there is no noise to compare with"
NEGLIGIBLE_STEPS = 1.0
"""A change of W below one of its standard errors does not matter, however sure it is."""
NEGLIGIBLE_SHARE = 0.02
"""Nor does an approximation error of less than 2% of the noise."""


def richer_word(phi: FeatureMap | str) -> str:
    """Return the feature word one step richer than `phi`."""
    if not isinstance(phi, str):
        return "poly2"
    if phi == "linear":
        return "poly2"
    if match := re.fullmatch(r"poly(\d+)(:cross)?", phi):
        return f"poly{int(match[1]) + 1}{match[2] or ''}"
    kind, _, count = phi.partition(":")
    return f"{kind}:{2 * int(count)}"


def richer_layout(log: Log, design: Design, richer: str, seed: int = 0) -> Design:
    """Return a design with the features of `design` and those of the word `richer`."""
    phi, psi = parse_features(richer, seed)
    head = log.head()
    phi, psi = phi.fitted(head.x, head.a), psi.fitted(head.x, head.z)
    richer_psi = psi + state_features(phi)  # what phi says of the state, psi must say too
    return Design.build(design.phi + phi, design.psi + richer_psi, log.roles)


def approximation_checks(
    moments: Moments, design: Design, richer: str, roles: Roles, level: float
) -> list[Check]:
    """Compare the fit of a design with fits that have a richer psi, and both maps richer.

    `moments` are those of its `richer_layout`.
    """
    base = restrict(moments, design)
    more_psi = restrict(moments, Design.build(design.phi, moments.design.psi, roles))
    noisy = ~exactly_fitted(base, np.diag(Exact().solve(base).noise_cov))
    return [
        _richer_psi(base, more_psi, noisy, richer, level),
        _richer_phi(base, moments, noisy, richer, level, coded=bool(roles.categories)),
    ]


def _richer_psi(base: Moments, richer: Moments, noisy: Bools, word: str, level: float) -> Check:
    """Do the conditions that a richer psi adds hold, and does W move when they are used?

    The difference of the two Sargan statistics with one noise variance, for each output
    that has noise: chi-squared with as many degrees of freedom as psi+ has columns more.
    """
    name = f"richer psi ({word})"
    eta, noise = eta_2(base, richer)
    sentence = f"eta_2 is {eta:.2g}, of which sampling alone makes about {noise:.2g}"
    advice = (
        "psi does not carry what phi needs, or the richer conditions are false for this phi: "
        "use the richer psi if phi passes too, else the richer phi"
    )
    one, other = Exact().solve(base), Exact().solve(richer)
    if not (one.identified and other.identified):
        return Check(name, None, level, reason="W is not identified")
    if not noisy.any():
        return Check(name, None, level, reason=NO_NOISE, finding=sentence)
    rows = Rows.of(richer)
    inside = [i for i in psi_positions(base.design, richer.design) if i in rows.psi_kept]
    poor = orthonormal(rows.Psi[:, np.searchsorted(rows.psi_kept, inside)])
    rich = orthonormal(rows.Psi)
    added = rich.shape[1] - poor.shape[1]
    if not added:
        return Check(name, None, level, reason="the richer psi adds nothing", finding=sentence)
    explained = []
    for fit, basis in ((one, poor), (other, rich)):
        rest = rows.Y - rows.Phi @ fit.W[:, rows.phi_kept].T
        explained.append(np.sum((basis.T @ rest) ** 2, axis=0))
    squares = richer.n * (explained[1] - explained[0])[noisy] / np.diag(other.noise_cov)[noisy]
    steps = float(np.max(np.abs(other.W - one.W)[noisy] / one.se[noisy]))
    sentence += f"; an entry of W moves by at most {steps:.1f} of its standard errors"
    null = "the conditions that a richer psi adds hold"
    test = _largest(squares, added, _named(base, noisy), null)
    return Check(name, test, level, sentence, advice, negligible=steps < NEGLIGIBLE_STEPS)


def _richer_phi(
    base: Moments, richer: Moments, noisy: Bools, word: str, level: float, *, coded: bool
) -> Check:
    """The score test that what phi+ adds to phi has no effect, for each output that has noise.

    What phi+ adds is orthogonal to phi and of length one, so that the squared effect, less
    what sampling puts there, is eta_1^2.
    """
    name = f"richer phi ({word})"
    rows = Rows.of(richer)
    base_columns = set(columns_in(base.design, richer.design)[: len(base.design.phi_names)])
    in_base = [i for i, j in enumerate(rows.phi_kept) if j in base_columns]
    N = _added(rows.Phi[:, in_base], np.delete(rows.Phi, in_base, axis=1))
    d = N.shape[1]
    if not d:
        return Check(name, None, level, reason="the richer phi adds nothing")
    if not noisy.any():
        return Check(name, None, level, reason=NO_NOISE)
    scale = np.linalg.norm(rows.Phi[:, in_base], axis=0)
    X = np.column_stack([N, rows.Phi[:, in_base] / np.where(scale > 0, scale, 1.0)])
    basis = orthonormal(rows.Psi)
    left, size, right = np.linalg.svd(basis.T @ X, full_matrices=False)
    if len(size) < X.shape[1] or size[-1] < RANK_TOLERANCE:
        return Check(name, None, level, reason=f"{word} is not identified by these instruments")
    inverse = (right.T / size) @ left.T
    Y, names = rows.Y[:, noisy], _named(base, noisy)
    slopes = inverse @ (basis.T @ Y)
    noise = np.maximum(np.sum((Y - X @ slopes) ** 2, axis=0), EXACT * np.sum(Y**2, axis=0))
    effect, cov = slopes[:d], (inverse @ inverse.T)[:d, :d] / richer.n
    squares = richer.n * np.array([_score(basis, X[:, d:], N, y) for y in Y.T])
    eta = np.sqrt(np.maximum(np.sum(effect**2, axis=0) - noise * np.trace(cov), 0.0))
    share = eta / np.sqrt(noise)
    worst = int(np.argmax(share))
    finding = (
        f"eta_1 is about {eta[worst]:.2g} for {names[worst]} ({share[worst]:.1%} of the noise)"
    )
    null = "what the richer phi adds has no effect"
    test = _largest(squares, d, names, null)
    small = bool(share[worst] < NEGLIGIBLE_SHARE)
    advice = f"fit with {word}"
    if coded and word.startswith("poly"):  # which is refused: 0 and 1 are their own squares
        advice = (
            "let the data choose which states bend and which effects vary (phi='auto', --features "
            "auto)"
        )
    return Check(name, test, level, finding, advice, negligible=small)


def _score(basis: Floats, base: Floats, added: Floats, y: Floats) -> float:
    """Kleibergen's score of `added` (m, d) where `base` explains y (m,); n of it is chi^2(d).

    With u = y - base b under the null and X = [base, added] cleaned of u,

        X~ = P_psi (X - u u^T X / u^T u)      |P_X~ P_psi u|^2 / u^T u, base~ taken out first

    it keeps its size where psi says little of what is added (a^2, say), as Wald's does not.
    """
    b = np.linalg.lstsq(basis.T @ base, basis.T @ y, rcond=None)[0]
    u = y - base @ b
    X = np.column_stack([base, added])
    clean = basis.T @ (X - np.outer(u, u @ X) / (u @ u))
    span = orthonormal(clean[:, : base.shape[1]])
    free = clean[:, base.shape[1] :]
    score = orthonormal(free - span @ (span.T @ free)).T @ (basis.T @ u)
    return float(score @ score / (u @ u))


def _added(base: Floats, extra: Floats) -> Floats:
    """Return an orthonormal basis of what columns add to others, less a thousandth of them."""
    span = orthonormal(base)
    scale = np.linalg.norm(extra, axis=0)
    extra = extra / np.where(scale > 0, scale, 1.0)
    left, size, _ = np.linalg.svd(extra - span @ (span.T @ extra), full_matrices=False)
    basis: Floats = left[:, size > 1e-3]
    return basis


def eta_2(base: Moments, richer: Moments) -> tuple[float, float]:
    """Estimate eta_2 against a richer psi, and what sampling noise alone would show.

    The largest singular value of (P_psi+ - P_psi) Phi (Phi' Phi)^-1/2.
    """
    rows = Rows.of(richer, centred=False)
    rich = orthonormal(rows.Psi)
    poor = orthonormal(rows.Psi[:, psi_positions(base.design, richer.design)])
    span = orthonormal(rows.Phi)
    missed = rich @ (rich.T @ span) - poor @ (poor.T @ span)
    added = rich.shape[1] - poor.shape[1]
    size = np.linalg.svd(missed, compute_uv=False)[0]
    endogenous = len(base.design.phi_names) - len(base.design.shared)
    noise = (np.sqrt(added) + np.sqrt(endogenous)) / np.sqrt(base.n)
    return float(size), float(min(noise, 1.0))


def _named(base: Moments, noisy: Bools) -> list[str]:
    return [name for name, used in zip(base.design.outputs, noisy, strict=True) if used]


def _largest(squares: Floats, rank: int, names: list[str], null: str) -> LargestContrast:
    worst = int(np.argmax(squares))
    statistic = Statistic(float(squares[worst]), (rank,), null)
    return LargestContrast(statistic, len(squares), names[worst])
