"""Rewards that depend on the next state, which a learned r(x, a) cannot represent.

A log often records r = f(x, a, x'): a cost of every day above a threshold, a price times the units
sold. A learned reward is E[r | x, do(a)] in the model's own features, which may not have the shape
of f. If f can be fitted to the model's rows, its average over next states is compared with the
learned reward. If the two are far apart, f is used as the reward. Given x, a and x', a confounder
cannot move r any more, so f needs no instrument.

A model with features that hold only where the log has states continues from the nearest state
within its reach. f is evaluated at that state too, and decreases beyond it as a learned reward
does. Evaluated at the original state, it would count the difference between the two states, such as
goods that nobody bought.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ivvi._io.arrays import Array

FAR = 1e12
"""The number in files for a column without a limit."""
FEWEST_ROWS, MOST_ROWS = 200, 512
"""Fewest rows to fit a function, and most rows in which averages are compared."""
EXACT, NEARLY = 0.98, 0.8
"""Share of the variance of rewards, in rows held out of the fit, that a function must explain. The
smaller one is enough if it is right in nearly all of these rows, as when a rare step is a bit off.
"""
ENOUGH = 0.999
"""Share of the variance at which the search for thresholds stops."""
TERMS = 30
"""Most thresholds in a fitted function."""
MOST_COLUMNS = 40
"""Most columns for which a function is fitted."""
FAR_OFF = 0.15
"""Learned rewards are far off if they miss by this many standard deviations of the averages."""
RARE = 0.03
"""If fewer rows than this share have an unusual reward, they are too few to learn from."""
DRAWS = 128
"""Next states drawn for each row."""


@dataclass(frozen=True)
class SeenReward:
    """r(x, a, x') that is quadratic except for steps and bends at thresholds of single columns.

    Attributes
    ----------
    name
        The reward's column in the log.
    scale
        The divisors of the columns of x, a and x'.
    columns, thresholds
        Of the steps and bends.
    weights
        Of 1, the scaled columns, their squares and products, steps and bends.
    low, high, fade
        The model's reach, and the loss per unit that x lies beyond it, (d_x,) each; empty where
        the model holds everywhere.
    """

    kind: ClassVar[str] = "seen"
    name: str
    scale: tuple[float, ...]
    columns: tuple[int, ...]
    thresholds: tuple[float, ...]
    weights: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    fade: tuple[float, ...] = ()

    def __call__(self, x: Array, a: Array, x_next: Array, h: Array) -> Array:
        """Evaluate on (..., d_x), (..., d_a), (..., d_x); returns (...)."""
        xp, lost = x_next.__array_namespace__(), 0.0
        if self.fade:
            inside = xp.clip(x, np.asarray(self.low), np.asarray(self.high))
            lost, x = (abs(x - inside) * np.asarray(self.fade)).sum(axis=-1), inside
        lead = np.broadcast_shapes(*(part.shape[:-1] for part in (x, a, x_next)))
        parts = [xp.broadcast_to(part, (*lead, part.shape[-1])) for part in (x, a, x_next)]
        scaled = xp.concatenate(parts, axis=-1) / np.asarray(self.scale)
        return _terms(scaled, self.columns, self.thresholds) @ np.asarray(self.weights) - lost

    @property
    def words(self) -> str:
        """The note for a plan with this reward."""
        return (
            f"In the log the reward {self.name!r} is a function of the next state; that function "
            "of (x, a, x') is used."
        )


def seen_reward(model: Any) -> SeenReward | None:
    """Return the function of (x, a, x') that gives the log's rewards, if the model missed it.

    None if there is no such function, if the model learned its average, or if episodes end, because
    an end has no next state.
    """
    return None if model.ends else _missed(model)


def reward_doubts(model: Any) -> tuple[str, ...]:
    """Return warnings on a learned reward that is rare or a function of the next state."""
    rewards = model.followed[:, -1] if model.has_reward else np.zeros(0)
    values, counts = np.unique(rewards, return_counts=True)
    if len(values) > 1 and counts.max() > (1 - RARE) * len(rewards):
        n, usual = len(rewards), values[counts.argmax()]
        return (
            f"the reward {model.outputs[-1]!r} is {usual:g} in all but {n - counts.max():,} of "
            f"{n:,} rows, too few to learn when it is earned: for a correct value, write it as a "
            "function of (x, a, x') (reward=, --reward module:function)",
        )
    if _missed(model) is None:
        return ()
    return (
        f"the reward {model.outputs[-1]!r} is a function of the next state, and what was learned "
        "from state and action is far from its average: for a correct value, write it as a "
        "function of (x, a, x') (reward=, --reward module:function)",
    )


def _missed(model: Any) -> SeenReward | None:
    """Return the function that gives the rewards, if the learned one is far from its average."""
    rows = _rows(model)
    if rows is None:
        return None
    x, a, x_next, r = rows
    fitted = _fitted(np.column_stack([x, a, x_next]), r, model.outputs[-1])
    if fitted is None or _fitted(np.column_stack([x, a]), r) is not None:
        return None
    x, a, rng = x[:MOST_ROWS], a[:MOST_ROWS], np.random.default_rng(0)
    drawn = (np.asarray(model.sample(x, a, rng)) for _ in range(DRAWS))
    expected = np.mean([np.asarray(fitted(x, a, x_next, np.zeros(()))) for x_next in drawn], axis=0)
    off = expected - np.asarray(model.reward(x, a))
    return None if np.sqrt(np.mean(off**2)) < FAR_OFF * expected.std() else _within(model, fitted)


def _within(model: Any, reward: SeenReward) -> SeenReward:
    """Return a reward that is limited to the reach of the model, if that is limited."""
    if not model.is_limited:
        return reward
    low, high = np.clip(model.reach, -FAR, FAR).tolist()
    return replace(reward, low=tuple(low), high=tuple(high), fade=tuple(model.fade.tolist()))


def _rows(model: Any) -> tuple[np.ndarray, ...] | None:
    """Return x, a, x' and rewards of the model's rows that go on; None where there are too few."""
    update = model.update
    if len(model.followed) < FEWEST_ROWS or not update.predicted or not model.has_reward:
        return None
    ended = model.followed[:, update.predicted : update.predicted + update.ends].any(axis=1)
    x, a, y = (part[~ended] for part in (model.states, model.acted, model.followed))
    x_next = np.asarray(update.observed(y, x, a))
    if len(x) < FEWEST_ROWS or 2 * x.shape[1] + a.shape[1] > MOST_COLUMNS or y[:, -1].std() == 0:
        return None
    return x, a, x_next, y[:, -1]


def _fitted(inputs: np.ndarray, r: np.ndarray, name: str = "") -> SeenReward | None:
    """Return the function of (n, p) that explains the rewards best; None where none does."""
    scale = np.maximum(np.abs(inputs).max(axis=0), 1e-300)
    inputs, held_out = inputs / scale, np.arange(len(r)) % 4 == 3
    columns: tuple[int, ...] = ()
    thresholds: tuple[float, ...] = ()
    best, chosen = np.inf, None
    for _ in range(TERMS):
        design = _terms(inputs, columns, thresholds)
        weights = np.linalg.lstsq(design[~held_out], r[~held_out], rcond=None)[0]
        left = r - design @ weights
        missed = float(np.mean(left[held_out] ** 2) / max(r[held_out].var(), 1e-300))
        if missed < best and _is_exact(left[held_out], r[held_out]):
            best, chosen = missed, len(columns)
        if missed <= 1 - ENOUGH:
            break
        column, threshold = _best_split(inputs[~held_out], left[~held_out])
        columns, thresholds = (*columns, column), (*thresholds, threshold)
    if chosen is None:
        return None
    columns, thresholds = columns[:chosen], thresholds[:chosen]
    weights = np.linalg.lstsq(_terms(inputs, columns, thresholds), r, rcond=None)[0]
    return SeenReward(name, tuple(scale.tolist()), columns, thresholds, tuple(weights.tolist()))


def _is_exact(left: np.ndarray, r: np.ndarray) -> bool:
    """Return whether the residuals of rewards (n,) are next to zero."""
    explained = 1 - np.mean(left**2) / max(r.var(), 1e-300)
    right = np.mean(np.abs(left) < 0.05 * r.std())
    return bool(explained >= EXACT or (explained >= NEARLY and right >= 0.99))


def _terms(inputs: Array, columns: tuple[int, ...], thresholds: tuple[float, ...]) -> Any:
    """Return 1, inputs (..., p), their squares and products, steps and bends, (..., q)."""
    xp, p = inputs.__array_namespace__(), inputs.shape[-1]
    first, second = np.triu_indices(p) if p <= 10 else (np.arange(p), np.arange(p))
    split = inputs[..., np.array(columns, dtype=int)]
    above = split - np.array(thresholds)
    parts = [inputs[..., :1] * 0.0 + 1.0, inputs, inputs[..., first] * inputs[..., second]]
    return xp.concatenate([*parts, 1.0 * (above > 0), xp.maximum(above, 0.0)], axis=-1)


def _best_split(inputs: np.ndarray, left: np.ndarray) -> tuple[int, float]:
    """Return the column and threshold that split the residuals (n,) best."""
    best = (-1.0, 0, 0.0)
    n = len(left)
    for j in range(inputs.shape[1]):
        order = np.argsort(inputs[:, j], kind="stable")
        u, sums = inputs[order, j], np.cumsum(left[order])[:-1]
        count = np.arange(1, n)
        score = np.where(u[1:] > u[:-1], np.abs(sums) / np.sqrt(count * (n - count)), -1.0)
        at = int(np.argmax(score))
        best = max(best, (float(score[at]), j, float((u[at] + u[at + 1]) / 2)))
    return best[1], best[2]
