"""Jackknife instrumental variables: each row's first stage is fitted without that row.

With many instruments the first stage fits the noise of each action too, and two-stage least
squares drifts towards least squares. With h and l the leverages of a row in psi and in the
exogenous features w, x = H_psi x - H_w x + M x the action less what w explains, split in two:

    ujive   P = (H_psi - H_w) x - (h - l) / (1 - h) M x
    ijive   P = M_w (x - M x / (1 - h + l))
    jive1   P = M_w (x - M x / (1 - h))

and W solves sum P (y - W x) = 0. Rows of leverage one, the only ones with their instrument value,
have no first stage without themselves: they are dropped, repeatedly until none is left.

Standard errors are robust to heteroskedasticity (Kolesar 2013; Ackerberg and Devereux 2009;
Angrist, Imbens and Krueger 1999).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.checkpoint import Checkpoint
from ivvi._io.result import Compact
from ivvi.errors import DataError, IdentificationError, InputError
from ivvi.estimators.covariance.weight_covariance import Covariance
from ivvi.estimators.estimate import Estimate, Rows, dual, with_weights
from ivvi.estimators.two_stage_least_squares import two_stage
from ivvi.estimators.whitening import Whitened, exogenous, whiten
from ivvi.logs import Log
from ivvi.moments import Moments
from ivvi.moments.welford import merge, scatter_of

KINDS = ("ujive", "ijive", "jive1")
FREE = 1e-6
"""An action with a larger share in an unidentified direction is not identified either."""
ALONE = 1 - 1e-8
"""With at least this leverage a row determines its own first stage."""


@dataclass(frozen=True, slots=True)
class JackknifeIV:
    """A jackknife estimator by its word: ``ujive``, ``ijive`` or ``jive1``."""

    needs_rows: ClassVar[bool] = True
    has_robust_intervals: ClassVar[bool] = True
    one_solution: ClassVar[bool] = False
    uses_instruments: ClassVar[bool] = True

    kind: str = "ujive"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"unknown jackknife {self.kind!r}; expected {', '.join(KINDS)}")

    @property
    def name(self) -> str:
        """The word by which the command line knows it."""
        return self.kind

    def solve(
        self, moments: Moments, log: Log | None = None, checkpoint: Checkpoint | None = None
    ) -> Estimate:
        """Estimate W with a few more passes over the rows of the log."""
        if log is None:
            raise InputError(f"{self.kind} leaves out single rows and needs a log, not its sums")
        if moments.absorbed is not None and self.kind != "ijive":
            raise InputError(
                f"{self.kind} would have to leave a row out of the absorbed effects too, but these "
                "are removed beforehand: use ijive, whose estimate equals that with dummies, or "
                "give dummies as states"
            )
        if set(exogenous(moments)) != set(moments.design.shared):
            raise InputError(
                f"{self.kind} needs each feature of phi to be either a column of psi or linearly "
                "independent of psi"
            )
        used, moments = _without_alone(moments, log)
        base = two_stage(moments, 0.0)
        own = [c for c in moments.design.phi_columns if c not in set(moments.design.shared)]
        if np.abs(base.null[:, own]).max(initial=0.0) > FREE:
            raise IdentificationError(
                f"{self.kind} needs instruments that identify W, but these do not identify "
                f"{' and '.join(base.unidentified)}; use the method exact"
            )
        return _Jackknife.of(self.kind, moments, log, used).estimate(base)


def _rows(moments: Moments, log: Log) -> Iterator[tuple[Floats, Floats]]:
    """Yield v (n, p), the constants included, and the weights (n,)."""
    design = moments.design
    for batch in log.batches():
        v = np.ones((len(batch), design.width))
        v[:, design.varying] = design.rows(batch)
        yield v, np.ones(len(batch)) if batch.weight is None else batch.weight


def _leverage(psi: Floats, weight: Floats, total: float) -> Floats:
    leverage: Floats = weight * np.einsum("nr,nr->n", psi, psi) / total
    return leverage


def _without_alone(moments: Moments, log: Log) -> tuple[Floats, Moments]:
    """Leave out rows of leverage one; return which rows are kept, (n,), and their moments."""
    used = np.concatenate([weight > 0 for _, weight in _rows(moments, log)])
    while True:
        space, at, alone = whiten(moments), 0, np.zeros_like(used)
        for v, weight in _rows(moments, log):
            leverage = _leverage((v - space.shift) @ space.to_white, weight, moments.weight)
            alone[at : at + len(v)] = leverage > ALONE
            at += len(v)
        alone &= used
        if not alone.any():
            return used, moments
        used &= ~alone
        if not used.any():
            raise DataError("every row has an instrument value of its own; use fewer instruments")
        moments = _moments_of(moments, log, used)


def _moments_of(moments: Moments, log: Log, used: Floats) -> Moments:
    """Return the moments of the rows that are kept."""
    design, at = moments.design, 0
    total = (0.0, np.zeros(len(design.varying)), np.zeros((len(design.varying),) * 2))
    for v, weight in _rows(moments, log):
        use = used[at : at + len(v)]
        at += len(v)
        if use.any():
            total = merge(total, scatter_of(v[use][:, design.varying], weight[use]))
    sums = design.embed(total[1], total[2])
    return Moments(design, int(used.sum()), total[0], *sums, absorbed=moments.absorbed)


@dataclass(frozen=True, slots=True, repr=False)
class _Jackknife(Compact):
    """One estimator for one log; `across` are the means of t w~', (m, e), where P needs them."""

    kind: str
    moments: Moments
    log: Log
    used: Floats
    space: Whitened
    select: Floats
    across: Floats

    @classmethod
    def of(cls, kind: str, moments: Moments, log: Log, used: Floats) -> _Jackknife:
        design, space = moments.design, whiten(moments)
        shared = set(design.shared)
        inside = [c for c in design.phi_columns if c not in shared]
        across = np.zeros((len(inside), space.exogenous))
        jackknife = cls(kind, moments, log, used, space, np.eye(design.width)[inside], across)
        if kind == "ujive":
            return jackknife
        for parts in jackknife._parts():
            across += (parts.weight * parts.t.T) @ parts.w / moments.weight
        return jackknife

    def _parts(self) -> Iterator[_Parts]:
        moments, space, e = self.moments, self.space, self.space.exogenous
        at, Pi = 0, self.space.means(moments, self.select)
        for v, weight in _rows(moments, self.log):
            use = self.used[at : at + len(v)]
            at += len(v)
            v, weight = v[use], weight[use]
            if not len(v):
                continue
            psi = (v - space.shift) @ space.to_white
            h = _leverage(psi, weight, moments.weight)
            low = _leverage(psi[:, :e], weight, moments.weight)
            explained = psi[:, e:] @ Pi[:, e:].T
            left = v @ self.select.T - psi[:, :e] @ Pi[:, :e].T
            over = {"ujive": (h - low) / (1 - h), "ijive": 1 / (1 - h + low), "jive1": 1 / (1 - h)}
            t = (left - explained) * over[self.kind][:, None]
            fitted = explained - t
            if self.kind != "ujive":
                fitted = left - t + psi[:, :e] @ self.across.T
            yield _Parts(v, weight, psi[:, :e], left, t, fitted)

    def estimate(self, base: Estimate) -> Estimate:
        """Solve for the actions, then for the exogenous features, and measure both."""
        moments, design, e = self.moments, self.moments.design, self.space.exogenous
        outputs = np.eye(design.width)[list(design.y_columns)]
        m = len(self.select)
        cross, s = np.zeros((m, m)), np.zeros((m, len(outputs)))
        for parts in self._parts():
            weighed = (parts.weight * parts.fitted.T) @ parts.v
            cross += weighed @ self.select.T
            s += weighed @ outputs.T
        b: Floats = np.asarray(np.linalg.solve(cross, s).T, dtype=np.float64)  # (d_y, m)
        R = outputs - b @ self.select
        exogenous = self.space.means(moments, R)[:, :e]
        back = np.zeros((len(design.phi_names), m + e))
        back[[int(np.argmax(row)) for row in self.select], :m] = np.eye(m)
        of_psi = self.space.of_psi(design)[:, :e]
        for column in design.shared:
            back[column, m:] = of_psi[design.psi_columns.index(column)]
        W = np.hstack([b, exogenous]) @ back.T
        blocks = back @ self._covariance(b, cross) @ back.T
        rows = Rows.of(moments)
        K = dual(moments, rows, rows.Y - rows.Phi @ W[:, rows.phi_kept].T)
        estimated = with_weights(moments, base, W, K)
        return replace(
            estimated, influence=np.empty((0, 0)), covariance=Covariance("robust", blocks)
        )

    def _covariance(self, b: Floats, cross: Floats) -> Floats:
        """Return the covariance of the slopes and of the coordinates of w, (d_y, m+e, m+e)."""
        moments, e, m = self.moments, self.space.exogenous, len(cross)
        outputs = np.eye(moments.design.width)[list(moments.design.y_columns)]
        of_y = self.space.means(moments, outputs)[:, :e]
        meat = np.zeros((len(b), m + e, m + e))
        for parts in self._parts():
            noise = parts.v @ outputs.T - parts.w @ of_y.T - parts.left @ b.T
            fitted_and_exogenous = np.hstack([parts.fitted, parts.w]) * parts.weight[:, None]
            for j, residual in enumerate(noise.T):
                scored = fitted_and_exogenous * residual[:, None]
                meat[j] += scored.T @ scored
        bread = np.zeros((m + e, m + e))
        bread[:m, :m] = np.linalg.inv(cross)
        bread[m:, :m] = -self.space.means(moments, self.select)[:, :e].T @ bread[:m, :m]
        bread[m:, m:] = np.eye(e) / moments.weight
        covariance: Floats = bread @ meat @ bread.T
        return covariance


@dataclass(frozen=True, slots=True, repr=False)
class _Parts(Compact):
    """Rows v (n, p), weights, exogenous coordinates w (n, e); of actions (n, m): M x, t and P."""

    v: Floats
    weight: Floats
    w: Floats
    left: Floats
    t: Floats
    fitted: Floats
