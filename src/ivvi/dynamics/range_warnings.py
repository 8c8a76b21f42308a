"""Warnings where a model is used outside the log's range of rewards, states and actions.

Whatever the features, no data support a model outside the range of the log's own rows. Ranges are
those of the sample of rows that the model keeps (`Dynamics.states`, `acted`, `followed`); a column
that is constant in the sample has none. Ranges are widened before anything counts as outside,
because a sample of 2,048 rows misses the rarest rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations, product
from typing import Any

import numpy as np

from ivvi._io.result import Compact
from ivvi.actions import Actions
from ivvi.categories import CodedColumn
from ivvi.dynamics.model import Dynamics

MARGIN = 0.1
"""Share of its width by which a range is widened before simulated steps count as outside."""
MOST_OUTSIDE = 0.05
"""Share of simulated steps that may lie outside the widened range without a warning."""
NOISE_ALONE = 2.0
"""How often they may, in shares that the noise alone takes there from the log's own rows: that of a
model is Gaussian, but rain ends at 0 and a score at 5."""
FEWEST = 100
"""Fewest rows of the log from which a range is taken."""
CLEAR = 0.1
"""The mean reward may exceed all of the log's by this many standard deviations of them."""
FURTHER = 0.25
"""Share of its width by which allowed actions may exceed the log's range."""
MOST_VALUES = 8
"""An action with at most this many values in the log counts as a choice, not as an amount."""
FAR = 0.5
"""A state is far outside a range if it is beyond it by more than this share of its width."""
ALLOW_LESS = (
    "allow only actions in that range (--action-low, --action-high, --action-set; actions=)"
)
TOGETHER = (
    "their joint effect is a guess; allow only combinations that occur (list them in --action-set, "
    "actions=)"
)
EXPECTED, RARE = 15.0, 0.02
"""Fewest rows with a combination expected if actions were independent, and the share of these that
counts as rare."""


@dataclass(frozen=True, eq=False, repr=False)
class LogRange(Compact):
    """Lowest and highest value of each column in rows of the log, (d,) each."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, samples: Sequence[np.ndarray], width: int, free: Sequence[int] = ()) -> LogRange:
        """Return the range of all samples (m, width) taken together.

        Columns that are `free`, or with fewer than `FEWEST` known rows, have no range: low equals
        high.
        """
        known = sum(map(len, samples)) >= FEWEST
        rows = np.concatenate(samples) if known else np.zeros((1, width))
        low, high = rows.min(axis=0), rows.max(axis=0)
        low[list(free)] = high[list(free)]
        return cls(low, high)

    def outside(self, values: np.ndarray, by: float) -> np.ndarray:
        """Return whether values (..., d) lie outside by more than the share `by` of the width."""
        width = self.high - self.low
        beyond = (values < self.low - by * width) | (values > self.high + by * width)
        return np.asarray(beyond & (width > 0))

    def words(self, column: Any) -> str:
        """Return the range of a column as text, such as ``0 to 1``."""
        return f"{self.low[column]:.4g} to {self.high[column]:.4g}"


def simulation_doubts(
    model: Dynamics,
    x: np.ndarray,
    a: np.ndarray,
    alive: np.ndarray,
    *,
    learned: bool,
    abstains: bool = False,
) -> tuple[str, ...]:
    """Return warnings if simulated rewards, states or actions leave the log's range.

    Parameters
    ----------
    x, a, alive
        States (..., d_x) and actions (..., d_a) of the steps, and the chance that each is reached.
    learned
        Whether their reward is the model's own.
    abstains
        Whether the plan abstains where the log has no rows.
    """
    texts = [_reward_doubt(model, model.reward(x, a), alive)] if learned else []
    noise = NOISE_ALONE * _outside_by_noise(model)
    texts.append(_column_doubt(model.state, state_range(model), x, alive, MARGIN, noise))
    doubts = [text for text in texts if text]
    if doubts:
        doubts[0] += f": it is used outside the data; {_remedy(model, abstains)}"
    if text := _column_doubt(model.action, action_range(model), a, alive, FURTHER):
        doubts.append(f"{text}: {ALLOW_LESS}")
    for combination in unseen_together(model):
        if (share := _share(combination.of(a), alive)) > MOST_OUTSIDE:
            doubts.append(
                f"{combination.sentence}, and {share:.0%} of the simulated steps do: {TOGETHER}"
            )
    return tuple(doubts)


def action_doubts(model: Dynamics, actions: Actions) -> tuple[str, ...]:
    """Return warnings for actions whose allowed range is clearly wider than the log's."""
    log, ends = action_range(model), actions.corners
    return (
        *choices_as_amounts(model, actions),
        *(
            f"{model.action[j]} is allowed from {ends[0, j]:.4g} to {ends[1, j]:.4g}, but the log "
            f"has {log.words(j)}: beyond that its effect is a guess; {ALLOW_LESS}"
            for j in np.flatnonzero(log.outside(ends, FURTHER).any(axis=0))
        ),
    )


def choices_as_amounts(model: Dynamics, actions: Actions) -> tuple[str, ...]:
    """Return warnings for actions that may be any number although the log has few values."""
    sentences = []
    rows = model.acted if len(model.acted) >= FEWEST else np.empty((0, len(model.action)))
    for j in actions.continuous if len(rows) else ():
        values = np.unique(rows[:, j])
        low, high = actions.corners[:, j]
        if len(values) <= MOST_VALUES and not (len(values) == 1 or low == high):
            listed = ", ".join(f"{value:.4g}" for value in values)
            sentences.append(
                f"{model.action[j]} is only ever {listed} in the log, but any number from "
                f"{low:.4g} to {high:.4g} is allowed: its effect in between is a guess; "
                f"list the values ({'--action-binary' if _is_binary(values) else '--action-set'}, "
                f"actions=[{', '.join(f'[{value:.4g}]' for value in values)}])"
            )
    return tuple(sentences)


def _is_binary(values: np.ndarray) -> bool:
    return bool(np.array_equal(values, [0.0, 1.0]))


@dataclass(frozen=True, eq=False, repr=False)
class Together(Compact):
    """Values of several actions, in these columns, that almost no row of the log has at once.

    `words` describe the values. `rows` are the number of rows, among the `among` rows, that have
    them, and the number expected if the actions were independent.
    """

    columns: tuple[int, ...]
    values: np.ndarray
    words: str
    rows: tuple[int, float]
    among: int

    def of(self, a: np.ndarray) -> np.ndarray:
        """Return whether actions (..., d_a) have the values, (...)."""
        return np.asarray((a[..., list(self.columns)] == self.values).all(axis=-1))

    @property
    def sentence(self) -> str:
        """Return a sentence such as ``no row of the log has a = 1 and b = 1 at once (...)``."""
        count, usual = self.rows
        number = f"only {count:,} of {self.among:,} rows" if count else "no row"
        return (
            f"{number} of the log {'have' if count else 'has'} {self.words} at once (if the "
            f"actions were independent, about {usual:,.0f} of {self.among:,} rows would)"
        )


def unseen_together(model: Dynamics) -> list[Together]:
    """Return combinations of values of two or three actions that the log lacks or hardly has."""
    rows = model.acted if len(model.acted) >= FEWEST else np.empty((0, len(model.action)))
    choices = _choices(model, rows)
    unseen: list[Together] = []
    for size in (2, 3) if len(choices) <= MOST_VALUES else (2,):
        for picked in (p for actions in combinations(choices, size) for p in product(*actions)):
            columns = tuple(chain.from_iterable(choice.columns for choice in picked))
            values = np.concatenate([choice.values for choice in picked])
            usual = len(rows) * math.prod(choice.of(rows).mean() for choice in picked)
            if usual < EXPECTED or any(set(known.columns) < set(columns) for known in unseen):
                continue
            words = " and ".join(choice.words for choice in picked)
            count = int(np.logical_and.reduce([choice.of(rows) for choice in picked]).sum())
            if count <= RARE * usual:
                unseen.append(Together(columns, values, words, (count, usual), len(rows)))
    return unseen


def _choices(model: Dynamics, rows: np.ndarray) -> list[list[Together]]:
    """Return the values of each action with few values; for a category, its levels."""
    coded = {c.names: c for c in model.coded if c.names and c.names[0] in model.action}
    single = set(model.action).difference(*coded)
    choices = []
    for names in (*coded, *((name,) for name in model.action if name in single)):
        columns = tuple(map(model.action.index, names))
        values = np.unique(rows[:, list(columns)], axis=0)
        if 1 < len(values) <= MOST_VALUES:
            category = coded.get(names)
            choices.append(
                [
                    Together(
                        columns, v, _value_words(model.action[columns[0]], v, category), (0, 0.0), 0
                    )
                    for v in values
                ]
            )
    return choices


def _value_words(name: str, values: np.ndarray, category: CodedColumn | None) -> str:
    """Return a value in words, such as ``dose = 1``, or for indicators ``drug = red``."""
    if category is None:
        return f"{name} = {values[0]:.4g}"
    return f"{category.column} = {category.decode(values[None])[0]}"


def decision_doubts(model: Dynamics, x: np.ndarray, a: np.ndarray) -> tuple[str, ...]:
    """Return warnings for states (n, d_x) far outside the log, and for actions (n, d_a) outside."""
    return (
        *_far(model.state, state_range(model), x, FAR, "far outside the states of the log"),
        *_far(model.action, action_range(model), a, FURTHER, "outside the actions of the log"),
        *(
            f"{combination.sentence}: {TOGETHER}"
            for combination in unseen_together(model)
            if combination.of(a).any()
        ),
    )


def state_range(model: Dynamics) -> LogRange:
    """Return the range of the log's states; indicators and carried columns have none."""
    free = [column for category in model.categories for column in category]
    free += [model.state.index(name) for name, _ in model.carried]
    return LogRange.of(model.sampled_states, len(model.state), free)


def action_range(model: Dynamics) -> LogRange:
    """Return the range of the log's actions; the indicators of categories have none."""
    coded = {name for category in model.coded for name in category.names}
    free = [j for j, name in enumerate(model.action) if name in coded]
    samples = (model.acted,) if len(model.acted) else ()
    return LogRange.of(samples, len(model.action), free)


def _reward_doubt(model: Dynamics, r: np.ndarray, alive: np.ndarray) -> str:
    """Return a warning if learned rewards r (...) leave the log's range, else ''."""
    log = LogRange.of((model.followed[:, -1:],) if len(model.followed) else (), 1)
    if log.low == log.high:
        return ""
    clear = CLEAR * model.followed[:, -1].std()
    mean, low, high = float((r * alive).sum() / alive.sum()), log.low[0], log.high[0]
    if mean > high + clear or mean < low - clear:
        end = f"more than {high:.4g}" if mean > high else f"less than {low:.4g}"
        return f"the model pays {mean:.4g} per step where no row of the log earned {end}"
    share = _share(log.outside(r[..., None], MARGIN)[..., 0], alive)
    if share <= MOST_OUTSIDE:
        return ""
    return (
        f"in {share:.0%} of the simulated steps the model predicts a reward that no row of the log "
        f"earned (the log has {log.words(0)})"
    )


def _outside_by_noise(model: Dynamics) -> np.ndarray:
    """Return the shares of next states that the noise takes out of the widened range, (d_x,).

    From the states and actions of the log's own rows, so that no plan is to blame.
    """
    from scipy.special import ndtr

    log, none = state_range(model), np.zeros(len(model.state))
    if len(model.states) < FEWEST or len(model.acted) != len(model.states):
        return none
    mean = np.asarray(model.mean(model.states, model.acted))
    if mean.shape[1:] != none.shape:
        return none
    spread = np.maximum(np.sqrt(np.diag(np.asarray(model.next_cov)).clip(min=0)), 1e-300)
    margin = MARGIN * (log.high - log.low)
    below, above = (log.low - margin - mean) / spread, (mean - log.high - margin) / spread
    shares: np.ndarray = (ndtr(below) + ndtr(above)).mean(axis=0)
    return np.where(log.high > log.low, shares, 0.0)


def _column_doubt(
    names: tuple[str, ...],
    log: LogRange,
    values: np.ndarray,
    alive: np.ndarray,
    by: float,
    allowed: np.ndarray | float = MOST_OUTSIDE,
) -> str:
    """Return a warning on the column of simulated values (..., d) most often outside, or ''.

    A column counts if it is outside more often than `allowed`, (d,), and than `MOST_OUTSIDE`.
    """
    outside, most = log.outside(values, by), np.maximum(MOST_OUTSIDE, allowed) * np.ones(len(names))
    all_shares = [_share(outside[..., j], alive) for j in range(len(names))]
    shares = [share if share > most[j] else 0.0 for j, share in enumerate(all_shares)]
    often = sum(share > 0 for share in shares)
    if not often:
        return ""
    worst = int(np.argmax(shares))
    others = "" if often == 1 else f" (and {often - 1} more columns leave theirs)"
    return (
        f"in {shares[worst]:.0%} of the simulated steps the model puts {names[worst]} clearly "
        f"outside {log.words(worst)}, its range in the log{others}"
    )


def _far(
    names: tuple[str, ...], log: LogRange, values: np.ndarray, by: float, words: str
) -> list[str]:
    """Return a warning for each column of values (n, d) outside, with its furthest value."""
    outside, sentences = log.outside(values, by), []
    for j in np.flatnonzero(outside.any(axis=0)):
        outlying = values[outside[:, j], j]
        furthest = outlying[np.argmax(np.abs(outlying - (log.low[j] + log.high[j]) / 2))]
        rows = "" if len(values) == 1 else f" ({len(outlying):,} of {len(values):,} rows are)"
        sentences.append(
            f"{names[j]} = {furthest:.4g} is {words}, which has {log.words(j)}{rows}: the advice "
            "there is extrapolation"
        )
    return sentences


def _remedy(model: Dynamics, abstains: bool) -> str:
    if model.is_limited and abstains:
        return (
            "a shorter horizon (--horizon), or --fallback usual (fallback='usual') beside "
            "--abstain, stays closer to the log"
        )
    if model.is_limited:
        return "a shorter horizon, or --abstain 0.99 (abstain=0.99), stays closer to the log"
    return "fit with --features auto (phi='auto')"


def _share(outside: np.ndarray, alive: np.ndarray) -> float:
    return float((outside * alive).sum() / alive.sum())
