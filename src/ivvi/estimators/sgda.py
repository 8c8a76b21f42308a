"""Algorithm 1, phase 1: stochastic descent in W, ascent in K.

    W <- W - step_W (K psi) phi^T
    K <- K + step_K (W phi - y - K psi) psi^T

averaged over a mini-batch of rows. The dual step is ascent on the objective; the paper's
listing prints the opposite sign, which diverges (docs/reproduction.md).

With the schedule ``auto`` the features are first brought to coordinates in which the
saddle point is well conditioned whatever their units: with B = L L^T and
L^-1 A = P S Q^T from a burn-in, psi~ = P^T L^-1 psi and phi~ = S^-1 Q^T phi have
E[psi~ psi~^T] = I and E[psi~ phi~^T] = I. The iterates start at the burn-in's closed form
and are averaged from the first step; by Polyak and Ruppert's argument the average has the
variance of the closed form on all rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ivvi.checkpoint import Checkpoint
from ivvi.errors import DataError, InputError
from ivvi.estimators.descent import State, advance
from ivvi.estimators.estimate import Estimate, Floats, with_weights
from ivvi.estimators.exact import Exact
from ivvi.estimators.rows import RowSource, Shuffled, Streamed
from ivvi.estimators.schedules import Decay, Schedule, parse_schedule
from ivvi.estimators.trace import Trace, judge, log_points
from ivvi.moments import Moments

CHUNK = 1 << 14
"""Rows that one compiled call takes, and within which a stream is shuffled."""
BURN_IN = 0.1
"""Share of the rows from which the automatic schedule takes coordinates and a start."""
LEAST_BURN_IN = 1000
MOST_STEP, SAFETY, POWER, DELAY = 0.5, 0.2, 0.35, 50.0
"""The automatic steps: min(MOST_STEP, SAFETY batch / E|phi~|^2) / (1 + t / DELAY)^POWER."""
AVERAGES = ("auto", "last", "tail", "full")
ORDERS = ("auto", "shuffled", "stream")


@dataclass(frozen=True)
class SGDA:
    """Stochastic gradient descent-ascent over the rows of a log, in mini-batches.

    Parameters
    ----------
    schedule
        A `Schedule`, its word (``paper-linear``, ``constant:0.05``, ``decay:0.1,0.5``), or
        ``auto``, which needs no tuning.
    batch
        Rows of a mini-batch; 1 for per-sample steps.
    passes
        Passes over the rows.
    average
        ``last`` iterate, ``tail`` (second half) or ``full`` average; ``auto`` is full with
        the automatic schedule and last with others, as the paper does.
    order
        ``shuffled``: a new random order each pass, all rows in memory; ``stream``: the log's
        own order, shuffled within chunks of rows, in bounded memory; ``auto`` is the former
        for tables in memory.
    start
        W_0: a number for every entry, or an array (d_y, d_phi). K_0 is zero.
    seed
        Seed of the order of the rows.
    target
        Weights (d_y, d_phi) to which the recorded path measures its distance; the closed
        form when left out.
    flip_dual
        Take the dual step with the sign that Algorithm 1 prints; it diverges.
    """

    schedule: Schedule | str = "auto"
    batch: int = 32
    passes: int = 1
    average: str = "auto"
    order: str = "auto"
    start: float | Any = 0.0
    seed: int = 0
    target: Any = None
    flip_dual: bool = False

    def __post_init__(self) -> None:
        if self.batch < 1 or self.passes < 1:
            raise InputError(f"batch {self.batch} and passes {self.passes} must be at least 1")
        if self.average not in AVERAGES:
            raise InputError(f"unknown average {self.average!r}; one of {', '.join(AVERAGES)}")
        if self.order not in ORDERS:
            raise InputError(f"unknown order {self.order!r}; one of {', '.join(ORDERS)}")
        self._schedule()

    def _schedule(self) -> Schedule | None:
        """Return the schedule, None for the automatic one."""
        return parse_schedule(self.schedule) if isinstance(self.schedule, str) else self.schedule

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return "sgda"

    def solve(
        self, moments: Moments, log: Any = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W by passing over the rows of `log`; the moments judge the result."""
        if log is None:
            raise InputError("SGDA needs the rows of a log, not their moments alone")
        exact = Exact().solve(moments)
        if moments.n < self.batch:
            raise DataError(f"{moments.n} rows are fewer than one mini-batch of {self.batch}")
        in_memory = self.order == "shuffled" or (self.order == "auto" and log.table.in_memory)
        rows = Shuffled(log, moments) if in_memory else Streamed(log, moments)
        schedule = self._schedule()
        plan = self._automatic(rows) if schedule is None else self._plain(moments, schedule)
        with jax.enable_x64(True):
            state, points, kept = self._descend(plan, rows)
            W = np.asarray(self._chosen(state, plan)) @ plan.to_phi
        K = np.asarray(state.K) @ plan.to_psi
        path = [w @ plan.to_phi for w in kept]
        target = exact.W if self.target is None else np.asarray(self.target, dtype=np.float64)
        trace = judge(Trace.of(points, path, moments, target), W, exact.W, exact.se, moments)
        return replace(with_weights(moments, exact, W, K), trace=trace)

    def _descend(self, plan: _Plan, rows: RowSource) -> tuple[State, list[int], list[np.ndarray]]:
        """Run all passes; returns the last state and the iterates at logarithmic points."""
        steps = self.passes * (rows.n // self.batch)
        points = log_points(steps)
        take = partial(
            advance,
            schedule=plan.schedule,
            sign=-1.0 if self.flip_dual else 1.0,
            tail=steps // 2,
            points=jnp.asarray(points),
        )
        state = State.begin(plan.W0, len(plan.to_psi), len(points))
        rng = np.random.default_rng(self.seed)
        size = max(self.batch, CHUNK // self.batch * self.batch)
        for Phi, Psi, Y in (c for _ in range(self.passes) for c in rows.chunks(size, rng)):
            whole = len(Y) // self.batch * self.batch
            if not whole:
                continue
            shape = (whole // self.batch, self.batch, -1)
            parts = Phi[:whole] @ plan.to_phi.T, Psi[:whole] @ plan.to_psi.T, Y[:whole]
            state = take(state, *(part.reshape(shape) for part in parts))
            if not np.isfinite(np.asarray(state.W)).all():
                break  # there is no way back from infinity
        reached = int(state.reached)
        return state, points[:reached], [np.asarray(w) for w in state.path[:reached]]

    def _chosen(self, state: State, plan: _Plan) -> Any:
        average = self.average if self.average != "auto" else plan.average
        if average == "last":
            return state.W
        if average == "tail":
            return state.tail_sum / jnp.maximum(state.tail_count, 1)
        return state.full_sum / jnp.maximum(state.t, 1)

    def _plain(self, moments: Moments, schedule: Schedule) -> _Plan:
        """Raw features and the schedule as it is given."""
        d_y, d_phi = len(moments.layout.outputs), len(moments.layout.phi_names)
        W0 = np.broadcast_to(np.asarray(self.start, dtype=np.float64), (d_y, d_phi)).copy()
        d_psi = len(moments.layout.psi_names)
        return _Plan(W0, np.eye(d_phi), np.eye(d_psi), schedule, "last")

    def _automatic(self, rows: RowSource) -> _Plan:
        """Coordinates, start and steps from a burn-in: a few rows, or the first of a stream.

        Its order is not that of the first pass: there the start would fit the first rows
        already and learn nothing from them.
        """
        rng = np.random.default_rng([self.seed, 1])
        need = max(int(BURN_IN * rows.n), 20 * rows.d_psi, LEAST_BURN_IN)
        Phi, Psi, Y = next(iter(rows.chunks(min(need, rows.n), rng)))
        to_psi, to_phi = _coordinates(Phi, Psi)
        Phi, Psi = Phi @ to_phi.T, Psi @ to_psi.T
        fitted = Psi @ (Psi.T @ Phi / len(Y))
        W0 = np.asarray(np.linalg.lstsq(fitted, Y, rcond=None)[0].T, dtype=np.float64)
        step = min(MOST_STEP, SAFETY * self.batch / float(np.mean(np.sum(Phi**2, axis=1))))
        return _Plan(W0, to_phi, to_psi, Decay(step, power=POWER, delay=DELAY), "full")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where to start and in which coordinates to walk: phi~ = to_phi phi, psi~ = to_psi psi."""

    W0: Floats
    to_phi: Floats
    to_psi: Floats
    schedule: Schedule
    average: str


def _coordinates(Phi: Floats, Psi: Floats) -> tuple[Floats, Floats]:
    """Return to_psi and to_phi that make B and A identities on these rows."""
    n = len(Phi)
    unit_phi, unit_psi = (np.sqrt(np.mean(V**2, axis=0)) for V in (Phi, Psi))
    unit_phi[unit_phi == 0], unit_psi[unit_psi == 0] = 1.0, 1.0
    values, vectors = np.linalg.eigh((Psi / unit_psi).T @ (Psi / unit_psi) / n)
    keep = values > 1e-10 * values[-1]
    white = (vectors[:, keep] / np.sqrt(values[keep])).T / unit_psi
    left, size, right = np.linalg.svd(white @ (Psi.T @ (Phi / unit_phi)) / n)
    rank = int(np.sum(size > 1e-6))
    to_phi = np.zeros((len(right), len(right)))
    to_phi[:rank] = right[:rank] / size[:rank, None]
    to_phi[rank:] = right[rank:]
    return left.T @ white, to_phi / unit_phi
