"""Theorem 4.2 checked: how far W_sad phi is from an F that phi cannot express.

Run it with ``python -m ivvi_reproduction.misspecification``: the paper's nonlinear experiment,
k = 1, phi = [1, x, a, x^2, a^2]. With T f = E[f(x, a) | x, z] and the norms of the log's
rows, it says

    |F - W_sad phi| <= (1 + 2 c) eta_1 + mu eta_2 / mu_iv

    eta_1 = |F - Pi_phi F|    eta_2 = sup of |T f - Pi_psi T f| over f in span(phi), |f| <= 1
    c = |T (F - Pi_phi F)| / (mu_iv eta_1)    mu = |Pi_phi F - W_sad phi|

Conditional means are regressions on products of Legendre polynomials of x and z.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from ivvi.features.feature_map import parse_features
from ivvi.simulators.catalogue import make_env
from ivvi_reproduction.study import Force, Json, Seed, check, measure_each, run_study, tell

DEGREE = 8
"""Degree of the polynomials that estimate conditional means."""


@dataclass(frozen=True, slots=True)
class TheoremSides:
    """Both sides of the theorem in one setting, and the parts of the right one."""

    setting: str
    left: float
    right: float
    eta_1: float
    eta_2: float
    c: float
    mu: float
    mu_iv: float


def measure(setting: str, *, episodes: int = 80, seed: int = 0) -> TheoremSides:
    """Compute all norms over one log."""
    rows = make_env("nonlinear", dim=1, setting=setting).collect(episodes, seed=seed).to_batch()
    phi, psi = parse_features("poly2")
    Phi, Psi = np.asarray(phi(rows.x, rows.a)), np.asarray(psi(rows.x, rows.z))
    F = np.log(np.abs(rows.x[:, 0] - 1) + 1) - rows.a[:, 0] / 2
    n = len(F)
    A, B, D = Psi.T @ Phi / n, Psi.T @ Psi / n, Phi.T @ Phi / n
    stage = A.T @ np.linalg.solve(B, A)
    mu_iv = float(np.linalg.eigvalsh(stage)[0])
    saddle = np.linalg.solve(stage, A.T @ np.linalg.solve(B, Psi.T @ F / n))
    nearest = np.linalg.solve(D, Phi.T @ F / n)
    rest = F - Phi @ nearest
    expected = conditional_mean(rows.x, rows.z, np.column_stack([Phi, rest]))
    beyond = expected[:, :-1] - Psi @ np.linalg.solve(B, Psi.T @ expected[:, :-1] / n)
    root = np.linalg.inv(np.linalg.cholesky(D))
    eta_1, eta_2 = _norm(rest), np.linalg.norm(root @ (beyond.T @ beyond / n) @ root.T, 2) ** 0.5
    c = _norm(expected[:, -1]) / (mu_iv * eta_1)
    mu = _norm(Phi @ (nearest - saddle))
    right = float((1 + 2 * c) * eta_1 + mu * eta_2 / mu_iv)
    return TheoremSides(setting, _norm(F - Phi @ saddle), right, eta_1, float(eta_2), c, mu, mu_iv)


def conditional_mean(x: np.ndarray, z: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Regress values (n, m) on products of polynomials of x and z, (n, 1) each."""
    parts = [np.polynomial.legendre.legvander(_unit(v[:, 0]), DEGREE) for v in (x, z)]
    basis = np.einsum("ni,nj->nij", *parts).reshape(len(x), -1)
    degree = np.add.outer(np.arange(DEGREE + 1), np.arange(DEGREE + 1)).ravel()
    basis = basis[:, degree <= DEGREE]
    return np.asarray(basis @ np.linalg.lstsq(basis, values, rcond=None)[0])


def _unit(v: np.ndarray) -> np.ndarray:
    """Return values scaled to [-1, 1]."""
    return np.asarray(2 * (v - v.min()) / (v.max() - v.min()) - 1)


def _norm(f: np.ndarray) -> float:
    """Return the root mean square over the rows."""
    return float(np.sqrt(np.mean(f**2)))


def table(bounds: Iterable[TheoremSides]) -> str:
    """Return both sides and the parts of the right one as a text table."""
    names = ("left", "right", "eta_1", "eta_2", "c", "mu", "mu_iv")
    lines = [f"{'setting':<8}" + "".join(f"{name:>10}" for name in names)]
    lines += [
        f"{b.setting:<8}" + "".join(f"{getattr(b, name):>10.4g}" for name in names) for b in bounds
    ]
    return "\n".join(lines)


def command(
    episodes: Annotated[int, typer.Option(help="Episodes of 500 steps.")] = 80,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Compare both sides of the theorem on misspecified features."""
    check(json, force, episodes=episodes)
    settings = {"episodes": episodes, "seed": seed}
    bounds = measure_each("settings", ("I", "II", "III"), lambda s: measure(s, **settings))
    tell(table(bounds), bounds, json, force)


if __name__ == "__main__":
    run_study(command)
