"""Theorem 4.1 (ii) and the decomposition lemma, computed exactly on a grid.

Run it with ``python -m ivvi_reproduction.planning_error``. The state is one number on a grid, x'
has the chances of N(W phi(x, a), sigma^2) there, rewards lie in [0, 1]. W_T comes from the
theorem's steps on confounded rows (`ivvi_reproduction.error_exponents`), the policy from value
iteration in the model of W_T, and its loss max_x V*_1(x) - V^pi_1(x) from policy evaluation in
the true one.

The lemma (Appendix A) says where the loss comes from, with the model's own Q^ and V^:

    V*_1 - V^pi_1 = sum_h E_pi*[iota_h] + sum_h E_pi*[xi_h] - sum_h E_pi[iota_h]
    iota_h = r_h + P V^_h+1 - Q^_h        xi_h = Q^_h(x, pi*_h) - Q^_h(x, pi_h) <= 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
import typer

from ivvi.estimators.sgda.schedules import Theorem
from ivvi_reproduction.error_exponents import CONSTANTS, StaticModel, descend
from ivvi_reproduction.study import Force, Json, Seed, check, run_study, tell

STATES, ACTIONS = np.linspace(-5.0, 5.0, 81), np.linspace(-1.0, 1.0, 21)
SIGMA, START = 1.0, 40
"""Standard deviation of the noise; the state (zero) whose decomposition is printed."""
POINTS = (1024, 2048, 4096, 8192, 16384)
HORIZONS = (2, 4, 8, 16, 32)


def reward() -> np.ndarray:
    """Return r(x) = exp(-(x - 1)^2 / 2), in [0, 1], (states,)."""
    return np.asarray(np.exp(-((STATES - 1) ** 2) / 2))


def kernel(W: np.ndarray) -> np.ndarray:
    """Return the chances of x' under weights W (3,) of [1, x, a], (states, actions, states)."""
    mean = W[0] + W[1] * STATES[:, None] + W[2] * ACTIONS
    weight = np.exp(-((STATES - mean[..., None]) ** 2) / (2 * SIGMA**2)) + 1e-300
    return np.asarray(weight / weight.sum(axis=-1, keepdims=True))


@dataclass(frozen=True, eq=False)
class Plans:
    """Optimal plans of `horizon` steps under a kernel; the same reward r (states,) in each."""

    P: np.ndarray
    r: np.ndarray
    horizon: int

    @cached_property
    def _backward(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        V, Q = [np.zeros(len(self.r))], []
        for _ in range(self.horizon):
            Q.append(self.r[:, None] + self.P @ V[-1])
            V.append(Q[-1].max(axis=1))
        return V[::-1], Q[::-1]

    @property
    def V(self) -> list[np.ndarray]:  # noqa: N802 - the name in the notation
        """Values V_1, ..., V_H+1."""
        return self._backward[0]

    @property
    def Q(self) -> list[np.ndarray]:  # noqa: N802 - the name in the notation
        """Values Q_1, ..., Q_H, (states, actions)."""
        return self._backward[1]

    @property
    def choices(self) -> list[np.ndarray]:
        """The greedy action of each state and step, as its index."""
        return [Q.argmax(axis=1) for Q in self.Q]


def policy_value(P: np.ndarray, r: np.ndarray, choices: Sequence[np.ndarray]) -> np.ndarray:
    """Return the value V^pi_1 of choices under a kernel, (states,)."""
    V, rows = np.zeros(len(r)), np.arange(len(r))
    for chosen in reversed(choices):
        V = r + P[rows, chosen] @ V
    return V


def decompose(true: Plans, model: Plans) -> dict[str, np.ndarray]:
    """Return the three sums of the lemma, (states,) each, by occupancy forward in time."""
    rows, P = np.arange(len(true.r)), true.P
    sums = {name: np.zeros(len(rows)) for name in ("iota_optimal", "xi", "iota_model")}
    for name, choices in (("optimal", true.choices), ("model", model.choices)):
        occupied = np.eye(len(rows))  # row x: chances of x_h given x_1 = x
        for h, chosen in enumerate(choices):
            Q = model.Q[h]
            iota = true.r + P[rows, chosen] @ model.V[h + 1] - Q[rows, chosen]
            sums[f"iota_{name}"] += occupied @ iota
            if name == "optimal":
                sums["xi"] += occupied @ (Q[rows, chosen] - Q[rows, model.choices[h]])
            occupied = occupied @ P[rows, chosen]
    return sums


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of planning with W_T, by T and horizon: mean over runs, its error, and the bound.

    `bound` is H min(2 H |W_T - W*| / sigma, 1), the last step of the theorem's proof.
    """

    T: int
    horizon: int
    loss: float
    se: float
    bound: float


def measure(T: int, horizon: int, weights: np.ndarray) -> Loss:
    """Plan with each of the weights (runs, 3) and evaluate in the truth."""
    r, truth = reward(), StaticModel().W_star[0]
    true = Plans(kernel(truth), r, horizon)
    lost, bounds = [], []
    for W in weights:
        choices = Plans(kernel(W), r, horizon).choices
        lost.append(float(np.max(true.V[0] - policy_value(true.P, r, choices))))
        far = 2 * horizon * float(np.linalg.norm(W - truth)) / SIGMA
        bounds.append(horizon * min(far, 1.0))
    se = float(np.std(lost, ddof=1) / len(lost) ** 0.5)
    return Loss(T, horizon, float(np.mean(lost)), se, float(np.mean(bounds)))


def learn(runs: int, seed: int) -> np.ndarray:
    """Return W_T of the theorem's steps, (points, runs, 3)."""
    design, rng = StaticModel(), np.random.default_rng(seed)
    schedule = Theorem(*design.strength(rng), CONSTANTS)
    return descend(design, schedule, POINTS, runs, rng)[:, :, 0]


def log_slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the slope of log y on log x."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def table(by_T: Sequence[Loss], by_H: Sequence[Loss], sums: dict[str, float]) -> str:
    """Return the losses with their bounds and slopes, and one decomposition, as text."""
    lines = []
    for name, losses, exponent in (("T", by_T, -0.5), ("horizon", by_H, 2.0)):
        lines.append(f"{'T':>8}{'H':>5}{'max loss':>12}{'se':>10}{'bound':>10}")
        lines += [
            f"{p.T:>8}{p.horizon:>5}{p.loss:>12.3g}{p.se:>10.1g}{p.bound:>10.3g}" for p in losses
        ]
        slope = log_slope([getattr(p, name) for p in losses], [p.loss for p in losses])
        lines.append(f"exponent of {name[0].upper()}: {slope:+.2f}; theorem {exponent:+.1f}")
    lines.append(f"the lemma at x = 0, T = {by_T[0].T}, H = {by_T[0].horizon}:")
    lines += [f"  {name:<24}{value:+.6f}" for name, value in sums.items()]
    return "\n".join(lines)


def lemma(W: np.ndarray, horizon: int) -> dict[str, float]:
    """Return both sides of the lemma at x = 0."""
    r = reward()
    true, model = Plans(kernel(StaticModel().W_star[0]), r, horizon), Plans(kernel(W), r, horizon)
    sums = decompose(true, model)
    loss = true.V[0] - policy_value(true.P, r, model.choices)
    return {
        "E_pi* iota": float(sums["iota_optimal"][START]),
        "E_pi* xi": float(sums["xi"][START]),
        "- E_pi iota": -float(sums["iota_model"][START]),
        "their sum": float((sums["iota_optimal"] + sums["xi"] - sums["iota_model"])[START]),
        "V*_1 - V^pi_1": float(loss[START]),
    }


def command(
    runs: Annotated[int, typer.Option(help="Runs to average over.")] = 32,
    horizon: Annotated[int, typer.Option(help="Steps of an episode where T varies.")] = 10,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Measure the loss of planning with W_T, against T and the horizon."""
    check(json, force, runs=runs, horizon=horizon)
    weights = learn(runs, seed)
    by_T = [measure(T, horizon, W) for T, W in zip(POINTS, weights, strict=True)]
    by_H = [measure(POINTS[0], H, weights[0]) for H in HORIZONS]
    sums = lemma(weights[0, 0], horizon)
    tell(table(by_T, by_H, sums), [*map(asdict, [*by_T, *by_H]), sums], json, force)


if __name__ == "__main__":
    run_study(command)
