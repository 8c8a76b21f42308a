"""The wild restricted efficient cluster bootstrap, from the moments of each cluster.

Davidson and MacKinnon's (2010) bootstrap of a t statistic with instruments, by clusters
(Roodman, MacKinnon, Nielsen and Webb 2019). In whitened instruments psi~ write

    y = psi~ g + X2 beta + u,   X2 = psi~ Pi + V,

with g zero but for the exogenous coordinates. Under the null c . (g, beta) = theta take the
restricted residuals u and the efficient first stage: X2 on psi~ and u, whose residuals but
for psi~ Pi are V. A draw multiplies u and V of each cluster by one number of mean zero and
variance one, and the t statistic is computed again. All of it follows from

    sum_c psi~ psi~^T,   sum_c psi~ u,   sum_c psi~ V

so that no row is read. With few clusters all 2^G Rademacher signs are taken, once each; with
very few of them Webb's six numbers. p-values count both tails alike, twice the smaller one,
because t statistics with instruments are skewed. An interval holds the theta that are not
rejected. The same draws give Anderson and Rubin's test.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.result import Compact
from ivvi.errors import InputError
from ivvi.estimators.covariance.clusters import cluster_products, cluster_seconds
from ivvi.estimators.covariance.standard_errors import MOST_DRAWS
from ivvi.estimators.covariance.standard_errors_for_log import FEWEST_WILD
from ivvi.estimators.whitening import whiten
from ivvi.moments import Moments

FEW_FOR_SIGNS = 10
"""Clusters below which signs alone make too few different draws."""
WEBB = np.sqrt(np.array([0.5, 1.0, 1.5]))
WIDEST = 64
"""Ends of an interval are searched within this many standard errors of the estimate."""
HALVINGS = 20
"""Halvings of the stretch, of a few standard errors, in which an end lies."""
TIE = 1e-9
AT_ONCE = 1 << 21
"""Numbers in the draws that are worked on at once."""


@dataclass(frozen=True, slots=True)
class WildTest:
    """A bootstrapped test of one coefficient, and its interval.

    Attributes
    ----------
    estimate, null
        The coefficient, and the value that is tested.
    t, p_value
        Its clustered t statistic, and twice the share of draws beyond it on its side.
    ar_p_value
        The same for Anderson and Rubin's statistic, which is valid with a weak instrument.
    interval, level
        The values that the bootstrapped t does not reject; an end that was not found within
        64 standard errors is infinite.
    draws, weights, clusters
        How many draws of what, for how many clusters.
    """

    estimate: float
    null: float
    t: float
    p_value: float
    ar_p_value: float
    interval: tuple[float, float]
    level: float
    draws: int
    weights: str
    clusters: int

    def to_json(self) -> dict[str, Any]:
        """Describe the test with JSON values; null stands for an infinite end."""
        ends = [end if math.isfinite(end) else None for end in self.interval]
        names = ("estimate", "null", "t", "p_value", "ar_p_value", "level", "draws", "weights")
        document = {name: getattr(self, name) for name in names}
        return {**document, "clusters": self.clusters, "interval": ends}

    def __str__(self) -> str:
        low, high = self.interval
        return (
            f"wild bootstrap: t = {self.t:.4f} against {self.null:g}, p = {self.p_value:.4f}, "
            f"{100 * self.level:g}% interval [{low:.4g}, {high:.4g}] ({self.draws:,} draws of "
            f"{self.weights} weights by {self.clusters} clusters; Anderson-Rubin p = "
            f"{self.ar_p_value:.4f})"
        )


def draw_weights(clusters: int, draws: int, seed: int) -> tuple[Floats, str]:
    """Return draws (draws, clusters) of the clusters' weights, and the name of their law."""
    if clusters < FEWEST_WILD:
        raise InputError(
            f"{clusters} clusters are too few for the wild bootstrap; expected at least "
            f"{FEWEST_WILD}"
        )
    if not 99 <= draws <= MOST_DRAWS:
        raise InputError(f"the wild bootstrap has {draws:,} draws; expected 99 to {MOST_DRAWS:,}")
    rng = np.random.default_rng(seed)
    if clusters < FEW_FOR_SIGNS and 2**clusters <= draws:
        six = np.concatenate([-WEBB, WEBB])
        return six[rng.integers(0, 6, size=(draws, clusters))], "Webb"
    if clusters < 32 and 2**clusters <= draws:
        signs = np.arange(2**clusters)[:, None] >> np.arange(clusters) & 1
        return 1.0 - 2.0 * signs.astype(np.float64), "all Rademacher"
    signs = rng.integers(0, 2, size=(draws, clusters))
    return 2.0 * signs.astype(np.float64) - 1.0, "Rademacher"


class WildBootstrap:
    """Draws for the coefficients of one output, from moments that hold their clusters."""

    def __init__(self, moments: Moments, output: str, *, draws: int = 9999, seed: int = 0) -> None:
        episodes = moments.episodes
        if episodes is None:
            raise InputError(
                "the wild bootstrap needs the moments of each cluster: estimate with episodes=True "
                "(ivvi fit --keep-episodes)"
            )
        self._layout, space = moments.design, whiten(moments)
        self._n, self._names = moments.weight, moments.design.phi_names
        self.weights, self.kind = draw_weights(len(episodes), draws, seed)
        self._squares = cluster_seconds(space, episodes)  # (G, r, r)
        every = np.eye(moments.design.width)
        phi = cluster_products(every[list(moments.design.phi_columns)], space, episodes)
        at = moments.design.y_columns[moments.design.output(output)]
        self._y = cluster_products(every[[at]], space, episodes)[:, 0]  # (G, r)
        self._products = phi.transpose(0, 2, 1)  # (G, r, d): sums of psi~ phi^T
        self._A = self._products.sum(axis=0) / self._n
        shared = set(moments.design.shared)
        self._endogenous = [j for j in range(len(self._names)) if j not in shared]
        seconds = _second_sums(moments)
        columns = [*moments.design.phi_columns, at]
        self._second = seconds[np.ix_(columns, columns)]  # of [phi, y]

    @cached_property
    def _inverse(self) -> Floats:
        return np.linalg.pinv(self._A.T @ self._A)

    def test(self, c: Floats, null: float = 0.0, level: float = 0.95) -> WildTest:
        """Test that c . w is `null` for a row w of W, c (d_phi,), and invert the test."""
        t, estimate, se = self._statistic(c, null)
        p, ar = self.p_value(c, null), self._ar_p_value(c, null)
        interval = self._interval(c, level, estimate, se)
        size = (len(self.weights), self.kind, self.weights.shape[1])
        return WildTest(estimate, null, t, p, ar, interval, level, *size)

    def p_value(self, c: Floats, null: float) -> float:
        """Return twice the share of draws whose t lies beyond that of the estimate, at most 1."""
        t, draw = self._statistic(c, null)[0], self.restricted(c, null)
        drawn = np.concatenate([draw(signs) for signs in self._chunks()])
        tie = TIE * abs(t)  # the draw of ones is the estimate itself
        return min(1.0, 2 * float(min(np.mean(drawn > t + tie), np.mean(drawn < t - tie))))

    def _ar_p_value(self, c: Floats, null: float) -> float:
        u_sums = self.restricted(c, null).u_sums
        own = float(self._anderson_rubin(u_sums, np.ones((1, len(self._squares))))[0])
        drawn = np.concatenate([self._anderson_rubin(u_sums, signs) for signs in self._chunks()])
        return float(np.mean(drawn > own * (1 + TIE)))

    def _chunks(self) -> list[Floats]:
        size = self._squares.shape[0] * max(self._squares.shape[1], 4)
        return np.array_split(self.weights, max(1, len(self.weights) * size // AT_ONCE))

    def _statistic(self, c: Floats, null: float) -> tuple[float, float, float]:
        """Return the clustered t statistic of the estimate, the estimate and its error."""
        w = self._inverse @ (self._A.T @ (self._y.sum(axis=0) / self._n))
        half = self._A @ (self._inverse @ c)
        scores = (self._y - self._products @ w) @ half / self._n
        se = float(np.sqrt(np.sum(scores**2)))
        return (float(c @ w) - null) / se, float(c @ w), se

    def restricted(self, c: Floats, null: float) -> Draws:
        """Estimate under the null, and the first stages given its residuals."""
        w = self._inverse @ (self._A.T @ (self._y.sum(axis=0) / self._n))
        turn = self._inverse @ c
        w = w - turn * (float(c @ w) - null) / float(c @ turn)
        u_sums = self._y - self._products @ w  # (G, r)
        R = np.append(-w, 1.0)
        X2 = self._endogenous
        with_u = self._second @ R  # sums of [phi, y] times u
        mean_u = u_sums.sum(axis=0) / self._n
        left = (float(R @ with_u) / self._n) - float(mean_u @ mean_u)
        slope = (with_u[X2] / self._n - self._A[:, X2].T @ mean_u) / left
        Pi = self._A[:, X2] - np.outer(mean_u, slope)  # (r, m)
        V_sums = self._products[:, :, X2] - self._squares @ Pi  # (G, r, m)
        return Draws(self._squares, u_sums, V_sums, Pi, self._A, X2, c, self._n)

    def _anderson_rubin(self, u_sums: Floats, signs: Floats) -> Floats:
        """Wald's statistic of the excluded instruments in a regression of signs * u, (draws,)."""
        exogenous = [j for j in range(self._A.shape[1]) if j not in self._endogenous]
        inside = np.linalg.qr(self._A[:, exogenous], mode="complete")[0][:, len(exogenous) :]
        means = signs @ u_sums / self._n
        scores = signs[:, :, None] * (u_sums @ inside)
        scores = scores - np.einsum("brs,gst->bgt", means[:, None], self._squares @ inside)
        omega = np.swapaxes(scores, 1, 2) @ scores / self._n**2
        gap = means @ inside
        solved = np.linalg.solve(omega, gap[:, :, None])[:, :, 0]
        return np.asarray(np.sum(gap * solved, axis=1))

    def _interval(self, c: Floats, level: float, estimate: float, se: float) -> tuple[float, float]:
        """Return the ends, below and above the estimate, at which p falls to 1 - level."""

        def excess(theta: float) -> float:
            return self.p_value(c, theta) - (1 - level)

        ends = []
        for side in (-1.0, 1.0):
            near, far = 0.0, 2.0
            while far <= WIDEST and excess(estimate + side * far * se) > 0:
                near, far = far, 2 * far
            if far > WIDEST:
                ends.append(side * math.inf)
                continue
            inside, outside = estimate + side * near * se, estimate + side * far * se
            ends.append(_crossing(excess, inside, outside))
        return ends[0], ends[1]


@dataclass(frozen=True, slots=True, repr=False)
class Draws(Compact):
    """A model in which the null is true, and from which t statistics are drawn."""

    squares: Floats
    u_sums: Floats
    V_sums: Floats
    Pi: Floats
    A: Floats
    X2: list[int]
    c: Floats
    n: float

    def __call__(self, signs: Floats) -> Floats:
        """Return t statistics (draws,) for `signs` (draws, clusters); the null is true in all."""
        A = np.repeat(self.A[None], len(signs), axis=0)
        A[:, :, self.X2] = self.Pi + np.einsum("bg,grm->brm", signs, self.V_sums) / self.n
        mean = signs @ self.u_sums / self.n  # (draws, r)
        turned = np.swapaxes(A, 1, 2)
        gram = turned @ A
        gap = np.linalg.solve(gram, turned @ mean[:, :, None])[:, :, 0]  # (draws, d)
        half = (A @ np.linalg.solve(gram, np.broadcast_to(self.c, gap.shape)[:, :, None]))[:, :, 0]
        fixed = self.A.copy()
        fixed[:, self.X2] = self.Pi
        smooth = gap @ fixed.T  # what the estimate explains by psi~ alone, (draws, r)
        own = half @ self.u_sums.T  # (draws, clusters)
        own -= np.einsum("br,grm,bm->bg", half, self.V_sums, gap[:, self.X2], optimize=True)
        scores = signs * own - np.einsum("br,grs,bs->bg", half, self.squares, smooth, optimize=True)
        se = np.sqrt(np.sum(scores**2, axis=1)) / self.n
        t: Floats = (gap @ self.c) / se
        return t


def _second_sums(moments: Moments) -> Floats:
    """Sums of w v v^T, (p, p)."""
    sums: Floats = moments.scatter + moments.weight * np.outer(moments.mean, moments.mean)
    return sums


def _crossing(excess: Callable[[float], float], inside: float, outside: float) -> float:
    """Return where a step function falls below zero between two places, by halving."""
    for _ in range(HALVINGS):
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if excess(middle) > 0 else (inside, middle)
    return (inside + outside) / 2


def wild_tests(
    moments: Moments, *, draws: int = 9999, seed: int = 0, level: float = 0.95
) -> dict[tuple[str, str], WildTest]:
    """Test that each endogenous feature has no effect on each output, by output and feature."""
    design, tests = moments.design, {}
    shared = set(design.shared)
    for output in design.outputs:
        bootstrap = WildBootstrap(moments, output, draws=draws, seed=seed)
        for j, name in enumerate(design.phi_names):
            if j not in shared:
                tests[output, name] = bootstrap.test(np.eye(len(design.phi_names))[j], 0.0, level)
    return tests
