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

from ivvi._io.arrays import Bools, Floats
from ivvi.diagnostics.statistic import Statistic
from ivvi.estimators import Exact
from ivvi.estimators.estimate import EXACT, RANK_TOLERANCE, Rows, exactly_fitted
from ivvi.estimators.whitening import orthonormal
from ivvi.features.design import Design
from ivvi.features.feature_map import FeatureMap, parse_features, state_features
from ivvi.logs import Log, Roles
from ivvi.moments import Moments
from ivvi.moments.compression import columns_in, psi_positions, restrict
from ivvi.sequence.check_result import Check
from ivvi.sequence.cluster_tests import LargestContrast

NO_NOISE = "every output is fitted exactly, so there is no noise to compare with"
NEGLIGIBLE_STEPS = 1.0
"""A change of W below one of its standard errors does not matter, however significant."""
NEGLIGIBLE_SHARE = 0.02
"""Nor does an approximation error of less than 2% of the noise that moves no effect by as much."""
NEW = 1e-3
"""Part of a column, of length one, that others must leave for it to add something."""
CHOOSE = (
    "let the data choose which states are nonlinear and which effects vary (phi='auto', "
    "--features auto), or make only the states nonlinear (spline:5)"
)


def richer_word(phi: FeatureMap | str, *, cross: bool = False) -> str:
    """Return the feature word one step richer than `phi`; `cross` adds products if it has none.

    Products of states and actions have a check of their own in a sequence.
    """
    if not isinstance(phi, str) or phi.partition(":")[0] == "linear":
        return "poly2:cross" if cross or phi == "linear:cross" else "poly2"
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
    phi, moved = _richer_phi(base, moments, noisy, richer, level, coded=bool(roles.categories))
    return [_richer_psi(base, more_psi, noisy, phi, moved), phi]


def _richer_psi(base: Moments, richer: Moments, noisy: Bools, phi: Check, moved: float) -> Check:
    """Do the conditions that a richer psi adds hold, and does W move when they are used?

    The difference of the two Sargan statistics with one noise variance, for each output
    that has noise: chi-squared with as many degrees of freedom as psi+ has columns more.
    `phi` is the check of the richer phi, which has `moved` an effect by so many standard errors:
    where psi+ rejects and W stays, phi may be too poor, and W wrong all the same.
    """
    name, level = phi.name.replace("phi", "psi", 1), phi.level
    eta, noise = eta_2(base, richer)
    sentence = f"eta_2 is {eta:.2g}, of which sampling alone makes about {noise:.2g}"
    advice = (
        "psi does not capture what phi needs, or the richer conditions do not hold for this phi: "
        f"use the richer psi if phi passes too, else {phi.advice or 'the richer phi'}"
    )
    base_fit, richer_fit = Exact().solve(base), Exact().solve(richer)
    if not (base_fit.identified and richer_fit.identified):
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
    for fit, basis in ((base_fit, poor), (richer_fit, rich)):
        rest = rows.Y - rows.Phi @ fit.W[:, rows.phi_kept].T
        explained.append(np.sum((basis.T @ rest) ** 2, axis=0))
    squares = richer.n * (explained[1] - explained[0])[noisy] / np.diag(richer_fit.noise_cov)[noisy]
    steps = float(np.max(np.abs(richer_fit.W - base_fit.W)[noisy] / base_fit.se[noisy]))
    sentence += f"; an entry of W moves by at most {steps:.1f} of its standard errors"
    null = "the conditions that a richer psi adds hold"
    test = _largest(squares, added, _named(base, noisy), null)
    small = max(steps, moved) < NEGLIGIBLE_STEPS
    return Check(name, test, level, sentence, advice, negligible=small)


def _richer_phi(
    base: Moments, richer: Moments, noisy: Bools, word: str, level: float, *, coded: bool
) -> tuple[Check, float]:
    """The score test that what phi+ adds to phi has no effect, for each output that has noise.

    What phi+ adds is orthogonal to phi and of length one, so that the squared effect, less
    what sampling puts there, is eta_1^2. Columns that psi+ does not identify are left out. Returns
    also by how many standard errors an effect of an action moves.
    """
    name = f"richer phi ({word})"
    rows, basis = Rows.of(richer), orthonormal(Rows.of(richer).Psi)
    at = columns_in(base.design, richer.design)[: len(base.design.phi_names)]
    in_base = [i for i, j in enumerate(rows.phi_kept) if j in at]
    extra = [i for i in range(rows.Phi.shape[1]) if i not in in_base]
    identified, lost = _identified(basis, rows.Phi, in_base, extra)
    unknown = ", ".join(richer.design.phi_names[rows.phi_kept[i]] for i in lost)
    new = _added(rows.Phi[:, in_base], rows.Phi[:, identified])
    if not new.shape[1]:
        why = f"{unknown} not identified by these instruments" if lost else ""
        return Check(name, None, level, reason=why or "the richer phi adds nothing"), 0.0
    if not noisy.any():
        return Check(name, None, level, reason=NO_NOISE), 0.0
    solved = _solve_added(basis, new, rows.Phi[:, in_base], rows.Y[:, noisy])
    if solved is None:
        why = f"{word} is not identified by these instruments"
        return Check(name, None, level, reason=why), 0.0
    columns, slopes, noise, trace = solved
    d, names, Y = new.shape[1], _named(base, noisy), rows.Y[:, noisy]
    squares = richer.n * np.array([_score(basis, columns[:, d:], new, y) for y in Y.T])
    eta = np.sqrt(np.maximum(np.sum(slopes[:d] ** 2, axis=0) - noise * trace / richer.n, 0.0))
    share = eta / np.sqrt(noise)
    worst = int(np.argmax(share))
    moved = _moved(base, noisy, slopes[d:], [at.index(rows.phi_kept[i]) for i in in_base])
    finding = (
        f"eta_1 is about {eta[worst]:.2g} for {names[worst]} ({share[worst]:.1%} of the noise); an "
        f"effect of an action moves by at most {moved:.1f} of its standard errors"
    )
    without = f" (without {unknown}, not identified by these instruments)" if lost else ""
    test = _largest(squares, d, names, f"what the richer phi adds{without} has no effect")
    small = bool(share[worst] < NEGLIGIBLE_SHARE) and moved < NEGLIGIBLE_STEPS
    refused = lost or (coded and word.startswith("poly"))  # 0 and 1 are their own squares
    advice = CHOOSE if refused else f"fit with --features {word} (phi={word!r})"
    return Check(name, test, level, finding, advice, negligible=small), moved


def _identified(
    basis: Floats, Phi: Floats, base: list[int], extra: list[int]
) -> tuple[list[int], list[int]]:
    """Split added columns into those that psi can separate from the others, and the rest.

    `basis` is of psi. Columns are looked at in order: what comes first is kept.
    """
    identified, lost = [], []
    span, known = orthonormal(Phi[:, base]), orthonormal(basis.T @ Phi[:, base])
    for i in extra:
        column = Phi[:, [i]] / (np.linalg.norm(Phi[:, i]) or 1.0)
        new = column - span @ (span.T @ column)
        size = float(np.linalg.norm(new))
        if size <= NEW:
            continue
        image = basis.T @ new / size
        image = image - known @ (known.T @ image)
        if float(np.linalg.norm(image)) < RANK_TOLERANCE:
            lost.append(i)
            continue
        identified.append(i)
        span, known = (
            np.hstack([span, new / size]),
            np.hstack([known, image / np.linalg.norm(image)]),
        )
    return identified, lost


def _solve_added(
    basis: Floats, new: Floats, base: Floats, Y: Floats
) -> tuple[Floats, Floats, Floats, float] | None:
    """Two-stage least squares of Y on [new, base]; None where that is not identified.

    Returns these columns at length one, slopes (those of base in its own units), noise variances
    and the trace of the variance of the new columns' slopes, times n over the noise variance.
    """
    scale = np.linalg.norm(base, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    columns, d = np.column_stack([new, base / scale]), new.shape[1]
    left, size, right = np.linalg.svd(basis.T @ columns, full_matrices=False)
    if len(size) < columns.shape[1] or size[-1] < RANK_TOLERANCE:
        return None
    inverse = (right.T / size) @ left.T
    slopes = inverse @ (basis.T @ Y)
    noise = np.maximum(np.sum((Y - columns @ slopes) ** 2, axis=0), EXACT * np.sum(Y**2, axis=0))
    slopes[d:] /= scale[:, None]
    return columns, slopes, noise, float(np.trace((inverse @ inverse.T)[:d, :d]))


def _moved(base: Moments, noisy: Bools, slopes: Floats, at: list[int]) -> float:
    """Largest change of an action's effect, in standard errors of the base fit.

    `slopes` (d, outputs) are those of the base features `at` beside what is added, which is
    orthogonal to them: the best approximation of the richer function by the base features.
    """
    fit = Exact().solve(base)
    acts = [i for i, j in enumerate(at) if base.design.phi_columns[j] not in base.design.shared]
    if not fit.identified or not acts:
        return 0.0
    columns = [at[i] for i in acts]
    change = np.abs(slopes[acts].T - fit.W[noisy][:, columns])
    return float(np.max(change / fit.se[noisy][:, columns]))


def _score(basis: Floats, base: Floats, added: Floats, y: Floats) -> float:
    """Kleibergen's score of `added` (m, d) where `base` explains y (m,); n of it is chi^2(d).

    With u = y - base b under the null and x = [base, added] cleaned of u,

        x~ = P_psi (x - u u^T x / u^T u)      |P_x~ P_psi u|^2 / u^T u, base~ taken out first

    it keeps its size where psi says little of what is added (a^2, say), as Wald's does not.
    """
    b = np.linalg.lstsq(basis.T @ base, basis.T @ y, rcond=None)[0]
    u = y - base @ b
    columns = np.column_stack([base, added])
    clean = basis.T @ (columns - np.outer(u, u @ columns) / (u @ u))
    span = orthonormal(clean[:, : base.shape[1]])
    free = clean[:, base.shape[1] :]
    score = orthonormal(free - span @ (span.T @ free)).T @ (basis.T @ u)
    return float(score @ score / (u @ u))


def _added(base: Floats, extra: Floats) -> Floats:
    """Return an orthonormal basis of what columns add to others by more than a thousandth."""
    span = orthonormal(base)
    scale = np.linalg.norm(extra, axis=0)
    extra = extra / np.where(scale > 0, scale, 1.0)
    left, size, _ = np.linalg.svd(extra - span @ (span.T @ extra), full_matrices=False)
    basis: Floats = left[:, size > NEW]
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
