"""A confounder that is constant within an episode drops out of differences between its steps.

The paper's remark on global confounders, for dynamics that have others too: with

    y_h = W phi(x_h, a_h) + u + e_h,

where u is constant over the episode and may be correlated with anything in it,

    y_h - y_h-1 = W (phi_h - phi_h-1) + e_h - e_h-1.

The state x_h of the later step contains e_h-1, so state features are now endogenous, as the
actions are. What is valid, if z is independent of all e and the e of different steps are
independent of each other (Anderson and Hsiao, 1981; Arellano and Bond, 1991): the instruments
of both steps and the state x_h-1 of the earlier one, which only earlier e have moved,

    E[e_h - e_h-1 | x_h-1, z_h-1, z_h] = 0.

States that may be called strictly exogenous, because no e of any step moves them (the years, an
age), are instrumented by their own differences.

Differences are centred at their mean, so that a drift that all episodes share does no harm. They
are not centred if the differenced features already span a constant, as with a dummy for each year
but one. The constant of W is that of an episode with the average u.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ivvi._io.arrays import Floats
from ivvi.errors import InputError
from ivvi.estimators import Estimate
from ivvi.estimators.covariance.weight_covariance import Covariance
from ivvi.features.blocks import Constant, Power
from ivvi.features.design import Design
from ivvi.features.feature_map import FeatureMap
from ivvi.logs import Batch, Log, Roles, concatenate
from ivvi.logs.columns.patterns import Columns, match_columns
from ivvi.logs.tables.arrow import as_arrow
from ivvi.moments import Moments

BEFORE = " before"
PROBES = 500
"""Rows in which columns are permuted to see which features depend on them."""


class DifferencedTable:
    """Differences between the steps of a log, computed as they are read.

    Columns: the episode, the later step, phi_h - phi_h-1 under the names of phi, psi of
    (x_h-1, z_h) and of (x_h-1, z_h-1), y_h - y_h-1, and the weight of the later step. The
    differences of exogenous features are its states, those of the others its actions.
    """

    in_memory = False
    num_rows: int | None = None
    copies_are_meant = True
    """A difference may equal an earlier level, as it does for year dummies."""
    files: Sequence[Path]

    def __init__(self, log: Log, design: Design, exogenous: Columns = ()) -> None:
        if log.roles.episode is None or log.roles.step is None:
            missing = "episode" if log.roles.episode is None else "step"
            raise InputError(f"differences need steps of episodes: the log has no {missing} column")
        self._log, self._layout = log.in_order(), design
        self.label, self.files = f"{log.label}, differenced", log.table.files
        self._instruments = log.roles.instrument
        self._changes = np.zeros(len(log.roles.instrument), dtype=bool)
        self.order, state, self._instrument_columns = _sorted_features(log, design, exogenous)
        self.roles = _roles(log.roles, design, self.order, state, self._instrument_columns)
        kinds = {self.roles.episode: pa.int64()}
        self.schema = pa.schema([(n, kinds.get(n, pa.float64())) for n in self.roles.columns])

    def batches(
        self, columns: Sequence[str], numeric: Sequence[str], size: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns asked for, about `size` rows at a time."""
        last: Batch | None = None
        for batch in self._log.batches(size=size, episodes=True):
            joined = batch if last is None else _joined(last, batch)
            last = _row(batch, len(batch) - 1)
            block = self._block(joined)
            if block.num_rows:
                yield block.select(list(columns))

    def _block(self, batch: Batch) -> pa.RecordBatch:
        """Difference the consecutive rows of one episode."""
        episode, step = np.asarray(batch.episode), np.asarray(batch.step, dtype=np.float64)
        later = 1 + np.flatnonzero((np.diff(episode) == 0) & (np.diff(step) == 1))
        earlier = later - 1
        self._changes |= np.any(batch.z[later] != batch.z[earlier], axis=0)
        Phi = np.asarray(self._layout.phi(batch.x, batch.a))[:, self.order]
        instruments = self._psi(batch.x[earlier], batch.z[later], batch.z[earlier])
        parts = [Phi[later] - Phi[earlier], instruments, batch.y[later] - batch.y[earlier]]
        if batch.weight is not None:
            parts.append(batch.weight[later, None])
        values = np.hstack(parts)
        arrays: list[Any] = [episode[later], step[later], *values.T]
        return pa.RecordBatch.from_arrays([as_arrow(v) for v in arrays], schema=self.schema)

    def _psi(self, x: Floats, now: Floats, before: Floats) -> Floats:
        """Evaluate psi at the earlier state, with the instruments of both steps."""
        blocks = [b for b in self._layout.psi.blocks if not isinstance(b, Constant)]
        both = [b for b in blocks if b.of != "state"]
        first = np.hstack([block(x, now) for block in blocks])[:, self._instrument_columns]
        return np.hstack([first, *(block(x, before) for block in both)])

    @property
    def features(self) -> FeatureMap:
        """Features of the differenced log: its columns are features already."""
        state = (Power(1, "state"),) if self.roles.state else ()
        return FeatureMap((Constant(), *state, Power(1, "input")))

    def check_instruments(self) -> None:
        """Refuse an instrument that never changed within an episode, once the rows were read."""
        lasting = [n for n, c in zip(self._instruments, self._changes, strict=True) if not c]
        if lasting:
            raise InputError(
                f"the instrument {lasting[0]!r} never changes within an episode, so differencing "
                "removes it; leave it out, or estimate without differences"
            )


@dataclass(frozen=True, eq=False)
class Levels:
    """The way back from an estimate in differences to x' = W phi(x, a) + noise.

    Attributes
    ----------
    design
        Features of the log itself.
    moments
        Moments of the log itself, for the constant.
    episodes
        Their number.
    order
        Which feature each slope of the differences belongs to.
    """

    design: Design
    moments: Moments
    episodes: int
    order: Sequence[int]

    def restore(self, estimate: Estimate) -> Estimate:
        """Return the estimate with the constant of levels and the noise of one step.

        The constant is E[y] - slopes . E[phi]; its variance counts every episode once. The
        noise e_h has half the covariance of e_h - e_h-1.
        """
        design, moments, c = self.design, self.moments, self.design.constant
        slopes, first = list(self.order), int(estimate.design.constant is not None)
        to_levels = np.zeros((len(design.phi_names), len(estimate.design.phi_names)))
        to_levels[slopes, first:] = np.eye(len(slopes))
        W, spread = estimate.W @ to_levels.T, to_levels @ estimate.spread
        extra = np.zeros(len(W))  # variance of the constant, beside that of the slopes
        if c is not None:
            phi, y = list(design.phi_columns), list(design.y_columns)
            to_levels[c, first:] = -moments.mean[phi][slopes]
            W[:, c] = moments.mean[y] - W[:, slopes] @ moments.mean[phi][slopes]
            R = np.zeros((len(W), design.width))
            R[:, y], R[:, phi] = np.eye(len(W)), -W
            left = R @ (moments.scatter / moments.weight) @ R.T
            extra = np.diag(left) / self.episodes
        blocks = to_levels @ estimate.W_cov.blocks @ to_levels.T
        if c is not None:
            blocks[:, c, c] += extra
        covariance = replace(
            estimate.W_cov,
            blocks=blocks,
            joint=self._joint(estimate.W_cov, to_levels, extra),
            effective=self._counted(estimate.W_cov.effective, first),
            freedom=self._counted(estimate.W_cov.freedom, first),
        )
        return replace(
            estimate,
            design=replace(estimate.design, phi=design.phi, phi_names=design.phi_names),
            W=W,
            noise_cov=estimate.noise_cov / 2,
            bread=to_levels @ estimate.bread @ to_levels.T,
            null=estimate.null @ to_levels.T,
            spread=spread,
            covariance=covariance,
        )

    def _counted(self, counts: Floats | None, first: int) -> Floats | None:
        """Return numbers of clusters, or degrees of freedom, by the features of levels.

        The constant, which all slopes move, has the fewest of them.
        """
        if counts is None:
            return None
        least = counts[:, first:].min(axis=1, initial=np.inf)
        levels: Floats = np.repeat(least[:, None], len(self.design.phi_names), axis=1)
        levels[:, list(self.order)] = counts[:, first:]
        return levels

    def _joint(self, covariance: Covariance, to_levels: Floats, extra: Floats) -> Floats | None:
        if covariance.joint is None:
            return None
        d_y, c = len(extra), self.design.constant
        big = np.kron(np.eye(d_y), to_levels)
        joint: Floats = big @ covariance.joint @ big.T
        if c is not None:
            at = c + len(to_levels) * np.arange(d_y)
            joint[at, at] += extra
        return joint


def _roles(
    roles: Roles,
    design: Design,
    order: Sequence[int],
    state: int,
    instrument_columns: Sequence[int],
) -> Roles:
    """Name the columns: the first `state` of the differences are exogenous."""
    names = tuple(design.phi_names[i] for i in order)
    blocks = [b for b in design.psi.blocks if not isinstance(b, Constant)]
    now = [n + BEFORE * (b.of == "state") for b in blocks for n in _names(b, roles)]
    before = [n + BEFORE for b in blocks if b.of != "state" for n in _names(b, roles)]
    instruments = (*(now[i] for i in instrument_columns), *before)
    named = (names[:state], names[state:], instruments, roles.outputs)
    return Roles(*named, None, roles.episode, roles.step, roles.weight)


def _sorted_features(
    log: Log, design: Design, exogenous: Columns
) -> tuple[list[int], int, list[int]]:
    """Sort features by what they depend on.

    Returns the features of phi but the constant, those of exogenous states alone first; their
    number; and the features of psi but the constant that something else moves.
    """
    blocks = FeatureMap(tuple(b for b in design.psi.blocks if not isinstance(b, Constant)))
    slopes = [i for i in range(len(design.phi_names)) if i != design.constant]
    names = blocks.names(log.roles.state, log.roles.instrument)
    if not exogenous:
        return slopes, 0, list(range(len(names)))
    exogenous_states = match_columns(exogenous, list(log.roles.state), "exogenous")
    own = np.isin(log.roles.state, exogenous_states)
    head = log.head()
    x, a, z = (part[:: max(1, len(part) // PROBES)] for part in (head.x, head.a, head.z))
    mixed = np.random.default_rng(0).permutation(len(x))
    other_x = np.where(own, x, x[mixed])
    moved = np.any(design.phi(x, a) != design.phi(other_x, a[mixed]), axis=0)
    own_x = np.where(own, x[mixed], x)
    follows = np.any(design.phi(x, a) != design.phi(own_x, a), axis=0) & ~moved
    moving = np.flatnonzero(np.any(blocks(x, z) != blocks(other_x, z[mixed]), axis=0))
    first = [i for i in slopes if follows[i]]
    return first + [i for i in slopes if not follows[i]], len(first), moving.tolist()


def _names(block: Any, roles: Roles) -> tuple[str, ...]:
    feature_names: tuple[str, ...] = block.names(roles.state, roles.instrument)
    return feature_names


def _row(batch: Batch, at: int) -> Batch:
    """Return a copy of one row as a batch."""
    names = ("x", "a", "z", "y", "weight", "episode", "step")
    values: dict[str, Any] = {name: getattr(batch, name) for name in names}
    row: Any = {k: None if v is None else v[at : at + 1].copy() for k, v in values.items()}
    return Batch(**row)


def _joined(first: Batch, second: Batch) -> Batch:
    return concatenate([first, replace(second, clusters=(), table=None)])
