"""Rewards of a log that follow from the next state, of which a learned reward says too little.

A log often records r = f(x, a, x'): a cost of every day above a threshold. A reward that is learned
is E[r | x, do(a)] in the model's own features, which need not bend as f does. If f can be seen in
the model's rows, its average over next states is compared with what the model learned.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

FEWEST_ROWS, MOST_ROWS = 200, 512
"""Rows that can tell, and how many the averages are compared in."""
EXACT, NEARLY = 0.98, 0.8
"""Share of the variance of rewards, in rows that were not fitted, that a function explains; the
smaller one will do if it is right in nearly all of these rows, as where a rare step is a bit off.
"""
TERMS = 30
"""Thresholds in a fitted function, at most."""
MOST_COLUMNS = 40
"""Columns beyond which no function is looked for."""
FAR_OFF = 0.15
"""Standard deviations of the averages by which learned rewards are off that are not believed."""
DRAWS = 128
"""Next states drawn for each row."""


class Steps(NamedTuple):
    """A function that is quadratic but for steps and bends at thresholds of single columns."""

    scale: np.ndarray
    columns: tuple[int, ...]
    thresholds: tuple[float, ...]
    weights: np.ndarray

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Evaluate on (n, p); returns (n,)."""
        design = _terms(inputs / self.scale, self.columns, self.thresholds)
        values: np.ndarray = design @ self.weights
        return values


def reward_doubts(model: Any) -> tuple[str, ...]:
    """Say that the log's rewards follow from the next state in a way the model did not learn."""
    rows = _rows(model)
    if rows is None:
        return ()
    x, a, x_next, r = rows
    found = _fitted(np.column_stack([x, a, x_next]), r)
    if found is None or _fitted(np.column_stack([x, a]), r) is not None:
        return ()
    x, a, rng = x[:MOST_ROWS], a[:MOST_ROWS], np.random.default_rng(0)
    drawn = (np.column_stack([x, a, np.asarray(model.sample(x, a, rng))]) for _ in range(DRAWS))
    expected = np.mean([found(some) for some in drawn], axis=0)
    off = expected - np.asarray(model.reward(x, a))
    if np.sqrt(np.mean(off**2)) < FAR_OFF * expected.std():
        return ()
    return (
        f"the reward {model.outputs[-1]!r} is a function of the next state, and what was learned "
        "from state and action is far from its average: write it as a function of (x, a, x') for "
        "a right value (reward=, --reward module:function)",
    )


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


def _fitted(inputs: np.ndarray, r: np.ndarray) -> Steps | None:
    """Return the function (n, p) -> (n,) that explains the rewards; None where none is found."""
    scale = np.maximum(np.abs(inputs).max(axis=0), 1e-300)
    inputs, held_out = inputs / scale, np.arange(len(r)) % 4 == 3
    columns: tuple[int, ...] = ()
    thresholds: tuple[float, ...] = ()
    for _ in range(TERMS):
        design = _terms(inputs, columns, thresholds)
        weights = np.linalg.lstsq(design[~held_out], r[~held_out], rcond=None)[0]
        left = r - design @ weights
        if _is_exact(left[held_out], r[held_out]):
            weights = np.linalg.lstsq(design, r, rcond=None)[0]
            return Steps(scale, columns, thresholds, weights)
        column, threshold = _best_split(inputs[~held_out], left[~held_out])
        columns, thresholds = (*columns, column), (*thresholds, threshold)
    return None


def _is_exact(left: np.ndarray, r: np.ndarray) -> bool:
    """Tell whether what is left of rewards (n,) is next to nothing."""
    explained = 1 - np.mean(left**2) / max(r.var(), 1e-300)
    right = np.mean(np.abs(left) < 0.05 * r.std())
    return bool(explained >= EXACT or (explained >= NEARLY and right >= 0.99))


def _terms(
    inputs: np.ndarray, columns: tuple[int, ...], thresholds: tuple[float, ...]
) -> np.ndarray:
    """Return 1, inputs, their squares and products, steps and bends, (n, q)."""
    p = inputs.shape[1]
    first, second = np.triu_indices(p) if p <= 10 else (np.arange(p), np.arange(p))
    parts = [np.ones((len(inputs), 1)), inputs, inputs[:, first] * inputs[:, second]]
    for column, threshold in zip(columns, thresholds, strict=True):
        above = inputs[:, column] > threshold
        parts += [above[:, None], (above * (inputs[:, column] - threshold))[:, None]]
    return np.hstack(parts)


def _best_split(inputs: np.ndarray, left: np.ndarray) -> tuple[int, float]:
    """Return the column and threshold that split what is left (n,) best."""
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
