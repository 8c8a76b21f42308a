"""The behaviour policy estimated from the log: its usual action, its draws, and its support.

    z = C f(x) + zeta      a = G psi(x, z) + eta

with f the features of psi that depend on the state alone. In the log eta is correlated with the
hidden confounder that also moves the next state, which makes the actions look better than they are.
Here zeta and eta are drawn at random from rows of the log: the same behaviour, without the
confounder. Discrete actions are drawn with the mean that they have in a state, and otherwise as in
the log: if they depend on each other, one of the log's combinations is drawn. The usual action is
E[a | x]; for a category it is the most probable level. `Support` is the region where the log has
rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

from ivvi._io.arrays import Array
from ivvi._io.result import Compact, compact_repr
from ivvi.dynamics.model import Dynamics
from ivvi.dynamics.next_state_distribution import Category
from ivvi.features.blocks import Power
from ivvi.features.design import Design
from ivvi.features.feature_map import FeatureMap, state_features
from ivvi.moments import Moments, compress
from ivvi.planning.allowed_actions import exclusive_actions


@dataclass(frozen=True, eq=False, repr=False)
class Support(Compact):
    """The region where the log has rows: an ellipsoid of (x, a) that holds a share of them.

    Attributes
    ----------
    centre, scale
        Mean of v = [x, a], (p,), and T with (v - centre) T of unit covariance, (p, r).
    limit
        Largest squared length of (v - centre) T inside.
    """

    centre: np.ndarray
    scale: np.ndarray
    limit: np.ndarray

    @classmethod
    def of(cls, model: Dynamics, inside: float) -> Support:
        """Return the support of the model's sample of the log."""
        points = np.hstack([model.states, model.acted])
        values, vectors = np.linalg.eigh(np.cov(points.T, ddof=0).reshape(points.shape[1], -1))
        keep = values > 1e-12 * max(float(values[-1]), 1e-300)
        scale = vectors[:, keep] / np.sqrt(values[keep])
        far = np.sum(((points - points.mean(axis=0)) @ scale) ** 2, axis=1)
        return cls(points.mean(axis=0), scale, np.asarray(np.quantile(far, inside)))

    def outside(self, x: Array, a: Array) -> Array:
        """Return whether states (n, d_x) with actions (n, d_a) lie outside, (n,)."""
        v = jnp.concatenate([x, a], axis=-1) - self.centre
        return jnp.sum((v @ self.scale) ** 2, axis=-1) > self.limit


def slopes_of(basis: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return slopes (d, p) of y (m, d) on features `basis` (m, p), in any units."""
    scale = np.linalg.norm(basis, axis=0)
    scale[scale == 0] = 1.0
    return np.asarray(np.linalg.lstsq(basis / scale, y, rcond=1e-10)[0].T / scale)


MOST_LEVELS = 12
"""A column of actions with at most this many distinct values is taken to be discrete."""
MOST_COMBINATIONS, DEPENDENT = 32, 4.0
"""Discrete actions are drawn together if they have at most this many combinations, and if the t
statistic of a correlation between them exceeds this."""
MEANS = 33
"""Means, evenly spaced between the lowest and the highest level, for which chances are kept."""
RAW = Power(1, "input")


@dataclass(frozen=True)
class BehaviourFeatures:
    """The features of the behaviour policy.

    Attributes
    ----------
    f
        Features of the state.
    psi
        Features of (x, z); None where the instruments are not available, and f is used instead.
    of_state
        Which columns of psi are f.
    by_episode
        Whether z is drawn once for an episode.
    exclusive
        Columns of the action that are indicators of one category: at most one of them is 1.
    """

    f: FeatureMap
    psi: FeatureMap | None
    of_state: tuple[int, ...] = ()
    by_episode: bool = False
    exclusive: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, model: Dynamics, design: Design | None) -> BehaviourFeatures:
        """Return psi from the moments' design; without a design, phi's features of the state."""
        z = model.instruments
        source = model.phi if design is None else design.psi
        f = state_features(source)
        exclusive = exclusive_actions(model)
        if design is None or z.ndim < 2 or z.shape[1] == 0:
            return cls(f, None, exclusive=exclusive)
        x, at = model.states[:1], 0
        columns: list[int] = []
        for block in design.psi.blocks:
            width = block(x, z[:1]).shape[1]
            columns += range(at, at + width) if block.of == "state" else ()
            at += width
        return cls(f, design.psi, tuple(columns), model.global_instrument, exclusive)


@dataclass(frozen=True, eq=False, repr=False)
class BehaviourPolicy(Compact):
    """Behaviour fitted to a log: the usual action in a state (`usual`), and draws (`draw`).

    Attributes
    ----------
    features
        Features.
    action_weights, instrument_weights
        Coefficients of a, (d_a, d_psi), and of z, (d_z, d_f); with a first axis for the models of
        a stack, whose states are (B, n, d_x).
    eta, zeta
        Residuals of a, (m, d_a), and of z, (m, d_z), in the same rows of the log.
    low, high
        Range of the actions in the log, (d_a,).
    levels
        Values of discrete columns of actions in order, (d_a, MOST_LEVELS), the last one
        repeated; NaN for continuous columns.
    chances
        Probabilities that an action is at most its level, by its mean, (d_a, MEANS, MOST_LEVELS).
    combinations
        Discrete actions that depend on each other are drawn together: their combinations in the
        log, (K, d_a), NaN in other columns. K is 0 where each is drawn on its own.
    combined, lift
        Their probabilities are `combined` psi + `lift` E[a | x, z], (K, d_psi) and (K, d_a).
    """

    features: BehaviourFeatures
    action_weights: np.ndarray
    instrument_weights: np.ndarray
    eta: np.ndarray
    zeta: np.ndarray
    low: np.ndarray
    high: np.ndarray
    levels: np.ndarray
    chances: np.ndarray
    combinations: np.ndarray
    combined: np.ndarray
    lift: np.ndarray

    @classmethod
    def of(cls, model: Dynamics, moments: Moments | None = None) -> BehaviourPolicy | None:
        """Return the fitted behaviour policy; None where no rows of the log are available."""
        if len(model.acted) == 0:
            return None
        features = BehaviourFeatures.of(model, None if moments is None else moments.design)
        x, a, z = model.states, model.acted, model.instruments
        basis = features.f(x, x)
        Psi, z = (basis, np.zeros((len(x), 0))) if features.psi is None else (features.psi(x, z), z)
        fitted = None if moments is None else coefficients(moments, features, model)
        action_weights, instrument_weights = fitted or (slopes_of(Psi, a), slopes_of(basis, z))
        bounds, (levels, chances) = (a.min(axis=0), a.max(axis=0)), _levels(a)
        discrete = np.flatnonzero(~np.isnan(levels[:, 0]))
        return cls(
            features,
            action_weights,
            instrument_weights,
            a - Psi @ action_weights.T,
            z - basis @ instrument_weights.T,
            *bounds,
            *(levels, chances),
            *_combinations(a, Psi, discrete, features.exclusive),
        )

    @property
    def rows(self) -> BehaviourRows:
        """The parts that all models of a stack share."""
        return BehaviourRows(*(getattr(self, name) for name in BehaviourRows._fields))

    def usual(self, x: Array) -> Array:
        """Return E[a | x] within the log's range, (n, d_a); for categories the likeliest level."""
        if self.features.psi is None:
            mean = self._mean(self.features.f(x, x))
        else:
            every = jnp.arange(len(self.zeta))
            mean = self._mean(jax.lax.map(lambda row: self.psi(x, row), every).mean(axis=0))
        a = jnp.clip(mean, self.low, self.high)
        for columns in self.features.exclusive:
            a = _put(a, columns, jnp.argmax(Category(columns).probabilities(mean), axis=-1))
        return a

    def draw(self, x: Array, row: Array, z_row: Array, u: Array) -> Array:
        """Return drawn actions (..., d_a) in states x (..., d_x).

        `row` (...) is the row of the log that gives eta, `z_row` the row that gives the
        instrument, and u (..., d_a) are uniform numbers that choose levels of discrete actions.
        """
        psi = self.psi(x, z_row)
        mean = self._mean(psi)
        a = jnp.clip(mean + jnp.asarray(self.eta)[row], self.low, self.high)
        a = self._on_levels(a, mean, u)
        if len(self.combinations):
            p = jnp.einsum("...p,kp->...k", psi, self.combined) + mean @ jnp.asarray(self.lift).T
            p = jnp.cumsum(jnp.clip(p, 0.0, 1.0), axis=-1)
            which = (u[..., :1] * p[..., -1:] > p[..., :-1]).sum(axis=-1)
            chosen = jnp.asarray(self.combinations)[which]
            return jnp.where(jnp.isnan(chosen), a, chosen)
        for columns in self.features.exclusive:
            p = jnp.cumsum(Category(columns).probabilities(mean), axis=-1)[..., :-1]
            a = _put(a, columns, (u[..., columns[0], None] > p).sum(axis=-1))
        return a

    def psi(self, x: Array, row: Array) -> Array:
        """Return psi(x, z), (..., d_psi), with the instruments of rows drawn from the log."""
        basis = self.features.f(x, x)
        if self.features.psi is None:
            return basis
        z = jnp.einsum("...nf,...zf->...nz", basis, jnp.asarray(self.instrument_weights))
        return self.features.psi(x, z + jnp.asarray(self.zeta)[row])

    def _on_levels(self, a: Array, mean: Array, u: Array) -> Array:
        """Return actions with discrete columns drawn from their levels, with the given mean."""
        levels, chances = jnp.asarray(self.levels), jnp.asarray(self.chances)
        low, wide = levels[:, 0], levels[:, -1] - levels[:, 0]
        place = (MEANS - 1) * jnp.clip((mean - low) / jnp.where(wide > 0, wide, 1.0), 0.0, 1.0)
        below = jnp.clip(jnp.nan_to_num(place), 0, MEANS - 2).astype(int)
        at, share = jnp.arange(len(levels)), (place - below)[..., None]
        at_most = (1 - share) * chances[at, below] + share * chances[at, below + 1]
        level = (1 - u[..., None] > at_most[..., :-1]).sum(axis=-1)
        return jnp.where(jnp.isnan(low), a, levels[at, level])

    def _mean(self, psi: Array) -> Array:
        return jnp.einsum("...np,...ap->...na", psi, jnp.asarray(self.action_weights))


class BehaviourRows(NamedTuple):
    """Rows of the log that a `BehaviourPolicy` draws from, and the range of the actions."""

    eta: np.ndarray
    zeta: np.ndarray
    low: np.ndarray
    high: np.ndarray
    levels: np.ndarray
    chances: np.ndarray
    combinations: np.ndarray
    combined: np.ndarray
    lift: np.ndarray

    def __repr__(self) -> str:
        return compact_repr(self, self._fields)


def coefficients(
    moments: Moments, features: BehaviourFeatures, model: Dynamics
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return both sets of weights from moments; None where a, z or f are not in their columns."""
    places = {argument: at for block, argument, at in moments.design.pieces if block == RAW}
    if features.psi is None or not features.of_state or len(places) < 2:
        return None
    root = np.vstack([moments.mean, compress(moments)])  # root^T root = E[v v^T]
    psi = np.array(moments.design.psi_columns)
    a = root[:, places["action"] :][:, : len(model.action)]
    z = root[:, places["instrument"] :][:, : model.instruments.shape[1]]
    return slopes_of(root[:, psi], a), slopes_of(root[:, psi[list(features.of_state)]], z)


def _levels(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the levels of the columns of actions (m, d_a), and their chances by the mean."""
    levels = np.full((a.shape[1], MOST_LEVELS), np.nan)
    chances = np.ones((a.shape[1], MEANS, MOST_LEVELS))
    for j, column in enumerate(a.T):
        values, counts = np.unique(column, return_counts=True)
        if len(values) <= MOST_LEVELS:
            levels[j] = np.append(values, [values[-1]] * (MOST_LEVELS - len(values)))
            chances[j, :, : len(values)] = _chances(values, counts / len(column))
    return levels, chances


def _combinations(
    a: np.ndarray, Psi: np.ndarray, discrete: np.ndarray, exclusive: tuple[tuple[int, ...], ...]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return combinations of the discrete columns of actions (m, d_a), and their chances.

    With p the regression of their indicators on psi, the chances for other means m of the actions
    are p + lift (m - G psi), the nearest with these means: G are the weights of the actions on psi,
    and `lift` is the pseudo-inverse of (1, combinations)' without its first column. There are no
    combinations where columns of different categories are uncorrelated given psi.
    """
    none = (np.empty((0, a.shape[1])), np.empty((0, Psi.shape[1])), np.empty((0, a.shape[1])))
    G = slopes_of(Psi, a)
    eta = (a - Psi @ G.T)[:, discrete]
    size = np.sqrt((eta**2).sum(axis=0))
    size[size == 0] = np.inf
    dependent = np.abs(eta.T @ eta / np.outer(size, size)) * np.sqrt(len(a)) > DEPENDENT
    group = {column: columns for columns in exclusive for column in columns}
    of = [group.get(column, (column,)) for column in discrete.tolist()]
    pairs = ((i, j) for i in range(len(of)) for j in range(i) if of[i] != of[j])
    values, number = np.unique(a[:, discrete], axis=0, return_inverse=True)
    if len(values) > MOST_COMBINATIONS or not any(dependent[i, j] for i, j in pairs):
        return none
    shares = slopes_of(Psi, np.eye(len(values))[number.ravel()])
    combinations, lift = np.full((2, len(values), a.shape[1]), np.nan)
    combinations[:, discrete], lift[:] = values, 0.0
    lift[:, discrete] = np.linalg.pinv(np.column_stack([np.ones(len(values)), values]).T)[:, 1:]
    return combinations, shares - lift @ G, lift


def _chances(values: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return P(a <= value) for each of MEANS means, (MEANS, l).

    Of all distributions on the values with a given mean, the one closest to the log's `shares`,
    p_i exp(t values_i) up to a factor. A mixture of two of them has a mean between theirs.
    """
    if len(values) == 1:
        return np.ones((MEANS, 1))
    unit, targets = (values - values[0]) / (values[-1] - values[0]), np.linspace(0, 1, MEANS)
    low, high = np.full(MEANS, -1e4), np.full(MEANS, 1e4)
    for _ in range(60):
        t = (low + high) / 2
        p = _tilted(unit, shares, t)
        low, high = np.where(p @ unit < targets, t, low), np.where(p @ unit < targets, high, t)
    p = _tilted(unit, shares, (low + high) / 2)
    p[0], p[-1] = np.eye(len(values))[[0, -1]]
    return np.asarray(np.cumsum(p, axis=1))


def _tilted(unit: np.ndarray, shares: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Return shares_i exp(t unit_i), divided by their sum, (len(t), l)."""
    return np.asarray(softmax(np.log(shares) + t[:, None] * unit, axis=1))


def _put(a: Array, columns: tuple[int, ...], level: Array) -> Array:
    """Return actions (..., d_a) with the indicators in `columns` set to a level (...)."""
    place = np.eye(a.shape[-1])[list(columns)]
    unchanged = a * (1.0 - place.sum(axis=0))
    return unchanged + jnp.asarray(Category(columns).levels)[level] @ place
