"""How the error of the theorem's steps depends on mu_iv, mu_b and d_x, beside its exponents.

Run it with ``python -m ivvi_reproduction.error_exponents``. Theorem 4.1 (i) bounds
E |W_T - W*|^2 by a constant times mu_iv^-4 mu_b^-2.5 d_x sigma^2 / T. Each step takes one new row,
and everything is uniform:

    y = 0.5 x - 0.5 a + e    a = rho z + e + v    phi = [1, x, a]    psi = [1, x, scale z]

rho moves mu_iv alone and scale mu_b alone; d_x outputs share the features, each with a noise of
its own. The slope of log(T error^2) on the log of each is measured over several runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer

from ivvi.estimators.sgda.schedules import Theorem
from ivvi_reproduction.study import Force, Json, Seed, check, measure_each, run_study, tell

CONSTANTS = (1.0, 2.0, 1.0)
"""c1, c2, c3; the proof's are 2^8, 8 and 2^27, with which gamma is above 10^8 here."""
SERIES = {
    "mu_iv": ((0.5, 0.6, 0.7, 0.8, 0.9), -4.0),
    "mu_b": ((0.6, 0.7, 0.8, 0.9, 1.0), -2.5),
    "d_x": ((1, 2, 4, 8), 1.0),
}
"""Values of rho, scale and d_x, and the theorem's exponents."""


@dataclass(frozen=True, slots=True)
class StaticModel:
    """Rows of the static model; W* (d_x, 3) has the same row for every output."""

    rho: float = 0.9
    scale: float = 1.0
    d_x: int = 1

    @property
    def W_star(self) -> np.ndarray:  # noqa: N802 - the name in the notation
        """True weights of [1, x, a]."""
        return np.tile([0.0, 0.5, -0.5], (self.d_x, 1))

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw Phi (n, 3), Psi (n, 3), Y (n, d_x); the first confounder moves the action."""
        x, z, v = (_uniform(rng, n) for _ in range(3))
        e = np.stack([_uniform(rng, n) for _ in range(self.d_x)], axis=1)
        a = self.rho * z + e[:, 0] + 0.5 * v
        ones = np.ones(n)
        Phi, Psi = np.stack([ones, x, a], axis=1), np.stack([ones, x, self.scale * z], axis=1)
        return Phi, Psi, Phi @ self.W_star.T + e

    def strength(self, rng: np.random.Generator) -> tuple[float, float]:
        """Return mu_iv and mu_b, of many rows."""
        Phi, Psi, _ = self.draw(rng, 400_000)
        A, B = Psi.T @ Phi / len(Phi), Psi.T @ Psi / len(Psi)
        mu_iv = np.linalg.eigvalsh(A.T @ np.linalg.solve(B, A))[0]
        return float(mu_iv), float(np.linalg.eigvalsh(B)[0])


@dataclass(frozen=True, slots=True)
class Point:
    """One design: what was varied, its value, T times the mean squared error, and its error."""

    series: str
    value: float
    mu_iv: float
    mu_b: float
    scaled_error: float
    se: float


def descend(
    design: StaticModel,
    schedule: Theorem,
    points: Sequence[int],
    runs: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Take a step per row from W_0 = 0 in all runs; return W at points, (points, runs, d_x, 3)."""
    W, K = np.zeros((runs, design.d_x, 3)), np.zeros((runs, design.d_x, 3))
    path, at_once = [], 1024
    for start in range(0, points[-1], at_once):
        parts = [part.reshape(at_once, runs, -1) for part in design.draw(rng, at_once * runs)]
        for t, (phi, psi, y) in enumerate(zip(*parts, strict=True), start):
            step_W, step_K = schedule(t)
            dual = np.einsum("rij,rj->ri", K, psi)
            gap = np.einsum("rij,rj->ri", W, phi) - y - dual
            W = W - step_W * dual[:, :, None] * phi[:, None]
            K = K + step_K * gap[:, :, None] * psi[:, None]
            if t + 1 in points:
                path.append(W)
    return np.array(path)


def measure(series: str, value: float, *, runs: int, steps: int, seed: int) -> Point:
    """Run the theorem's steps in one design."""
    names = {"mu_iv": "rho", "mu_b": "scale", "d_x": "d_x"}
    design = StaticModel(**{names[series]: value})  # type: ignore[arg-type]
    rng = np.random.default_rng([seed, list(SERIES).index(series), int(10 * value)])
    mu_iv, mu_b = design.strength(rng)
    W = descend(design, Theorem(mu_iv, mu_b, CONSTANTS), [steps], runs, rng)[-1]
    squared = steps * np.sum((W - design.W_star) ** 2, axis=(1, 2))
    se = float(squared.std(ddof=1) / runs**0.5)
    return Point(series, float(value), mu_iv, mu_b, float(squared.mean()), se)


def slope(points: Iterable[Point]) -> tuple[float, float]:
    """Return the slope of log error on the log of the varied quantity, and its standard error."""
    series = list(points)
    name = series[0].series
    at = np.log([p.value if name == "d_x" else getattr(p, name) for p in series])
    centred = at - at.mean()
    weights = centred / (centred**2).sum()
    errors = np.array([p.se / p.scaled_error for p in series])
    logs = np.log([p.scaled_error for p in series])
    return float(weights @ logs), float(np.sqrt((weights**2) @ errors**2))


def table(points: Sequence[Point]) -> str:
    """Return T times the error of each design, and slopes beside the theorem's, as a table."""
    lines = [f"{'varied':<8}{'mu_iv':>8}{'mu_b':>8}{'d_x':>5}{'T x error^2':>14}{'se':>8}"]
    for p in points:
        outputs = int(p.value) if p.series == "d_x" else 1
        lines.append(
            f"{p.series:<8}{p.mu_iv:>8.3f}{p.mu_b:>8.3f}{outputs:>5}{p.scaled_error:>14.2f}{p.se:>8.2f}"
        )
    for name, (_, exponent) in SERIES.items():
        estimate, se = slope(p for p in points if p.series == name)
        lines.append(
            f"exponent of {name:<6}{estimate:+.2f} +- {1.96 * se:.2f}; theorem {exponent:+.1f}"
        )
    return "\n".join(lines)


def command(
    runs: Annotated[int, typer.Option(help="Runs to average over.")] = 32,
    steps: Annotated[int, typer.Option(help="Steps of each run, T.")] = 1 << 14,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Measure how the error depends on strength, conditioning and dimension."""
    check(json, force, runs=runs, steps=steps)
    cases = [(name, value) for name, (values, _) in SERIES.items() for value in values]
    settings = {"runs": runs, "steps": steps, "seed": seed}
    points = measure_each("designs", cases, lambda case: measure(case[0], case[1], **settings))
    tell(table(points), points, json, force)


def _uniform(rng: np.random.Generator, n: int) -> np.ndarray:
    """Draw uniform numbers of variance one."""
    return rng.uniform(-(3**0.5), 3**0.5, n)


if __name__ == "__main__":
    run_study(command)
