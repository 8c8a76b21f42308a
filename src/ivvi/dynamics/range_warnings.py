"""Warnings where a model is used beyond what the log shows: its rewards, states and actions.

Whatever the features, no data support a model outside the range of the log's own rows. Ranges are
those of the sample of rows that the model keeps (`Dynamics.states`, `acted`,
`followed`); a column that is the same in all of them has none. They are widened before anything
counts as outside, as a sample of 2,048 rows misses the rarest ones.
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
"""Standard deviations of the log's rewards by which their mean may exceed all of them."""
FURTHER = 0.25
"""Share of its width by which allowed actions may exceed the range of the log's."""
MOST_VALUES = 8
"""Values of an action in the log up to which it counts as a choice, and not as an amount."""
FAR = 0.5
"""Share of its width beyond which a single state is far outside."""
ALLOW_LESS = (
    "allow only actions in that range (--action-low, --action-high, --action-set; actions=)"
)
TOGETHER = (
    "their joint effect is a guess; allow only combinations that occur (list them in --action-set, "
    "actions=)"
)
EXPECTED, RARE = 15.0, 0.02
"""Rows in which actions that were independent would coincide, and the share of them that is few."""


@dataclass(frozen=True, eq=False, repr=False)
class LogRange(Compact):
    """Lowest and highest value of each column in rows of the log, (d,) each."""

    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, samples: Sequence[np.ndarray], width: int, free: Sequence[int] = ()) -> LogRange:
        """Return the range of all samples (m, width) together.

        Columns that are `free`, or of which fewer than `FEWEST` rows are known, have none: low
        equals high.
        """
        known = sum(map(len, samples)) >= FEWEST
        rows = np.concatenate(samples) if known else np.zeros((1, width))
        low, high = rows.min(axis=0), rows.max(axis=0)
        low[list(free)] = high[list(free)]
        return cls(low, high)

    def outside(self, values: np.ndarray, by: float) -> np.ndarray:
        """Return which values (..., d) lie outside by more than this share of the width."""
        width = self.high - self.low
        beyond = (values < self.low - by * width) | (values > self.high + by * width)
        return np.asarray(beyond & (width > 0))

    def words(self, column: Any) -> str:
        """Return ``0 to 1``."""
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
    """Say where simulated episodes leave the log: by their rewards, states or actions.

    Parameters
    ----------
    x, a, alive
        States (..., d_x) and actions (..., d_a) of the steps, and the chance that each is reached.
    learned
        Whether their reward is the model's own.
    abstains
        Whether a plan was asked to stay where the log has rows.
    """
    texts = [_reward_doubt(model, model.reward(x, a), alive)] if learned else []
    noise = NOISE_ALONE * _outside_by_noise(model)
    texts.append(_column_doubt(model.state, state_range(model), x, alive, MARGIN, noise))
    doubts = [text for text in texts if text]
    if doubts:
        doubts[0] += f": it is used outside the data; {_remedy(model, abstains)}"
    if text := _column_doubt(model.action, action_range(model), a, alive, FURTHER):
        doubts.append(f"{text}: {ALLOW_LESS}")
    for one in unseen_together(model):
        if (share := _share(one.of(a), alive)) > MOST_OUTSIDE:
            doubts.append(f"{one.sentence}, and {share:.0%} of the simulated steps do: {TOGETHER}")
    return tuple(doubts)


def action_doubts(model: Dynamics, actions: Actions) -> tuple[str, ...]:
    """Say which of the actions may reach clearly beyond the log's."""
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
    """Say which actions may be anything in between where the log has but a few values."""
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
    """Values of several actions, in these columns, that hardly a row of the log has at once.

    `words` name them, and `rows` says how many of the `among` rows have them and how many would
    have, were the actions independent.
    """

    columns: tuple[int, ...]
    values: np.ndarray
    words: str
    rows: tuple[int, float]
    among: int

    def of(self, a: np.ndarray) -> np.ndarray:
        """Return which actions (..., d_a) have the values, (...)."""
        return np.asarray((a[..., list(self.columns)] == self.values).all(axis=-1))

    @property
    def sentence(self) -> str:
        """Return ``no row of the log has a = 1 and b = 1 at once (...)``."""
        count, usual = self.rows
        number = f"only {count:,} of {self.among:,} rows" if count else "no row"
        return (
            f"{number} of the log {'have' if count else 'has'} {self.words} at once (if the "
            f"actions were independent, about {usual:,.0f} of {self.among:,} rows would)"
        )


def unseen_together(model: Dynamics) -> list[Together]:
    """Return values of two or three actions of few values that the log has only one by one."""
    rows = model.acted if len(model.acted) >= FEWEST else np.empty((0, len(model.action)))
    choices = _choices(model, rows)
    unseen: list[Together] = []
    for size in (2, 3) if len(choices) <= MOST_VALUES else (2,):
        for picked in (p for some in combinations(choices, size) for p in product(*some)):
            columns = tuple(chain.from_iterable(one.columns for one in picked))
            values = np.concatenate([one.values for one in picked])
            usual = len(rows) * math.prod(one.of(rows).mean() for one in picked)
            if usual < EXPECTED or any(set(one.columns) < set(columns) for one in unseen):
                continue
            words = " and ".join(one.words for one in picked)
            count = int(np.logical_and.reduce([one.of(rows) for one in picked]).sum())
            if count <= RARE * usual:
                unseen.append(Together(columns, values, words, (count, usual), len(rows)))
    return unseen


def _choices(model: Dynamics, rows: np.ndarray) -> list[list[Together]]:
    """Return the values of each action that has few of them, of a category its levels."""
    coded = {one.names: one for one in model.coded if one.names and one.names[0] in model.action}
    single = set(model.action).difference(*coded)
    choices = []
    for names in (*coded, *((name,) for name in model.action if name in single)):
        columns = tuple(map(model.action.index, names))
        values = np.unique(rows[:, list(columns)], axis=0)
        if 1 < len(values) <= MOST_VALUES:
            one = coded.get(names)
            choices.append(
                [
                    Together(
                        columns, v, _value_words(model.action[columns[0]], v, one), (0, 0.0), 0
                    )
                    for v in values
                ]
            )
    return choices


def _value_words(name: str, values: np.ndarray, category: CodedColumn | None) -> str:
    """Return ``dose = 1``, or of indicators ``drug = red``."""
    if category is None:
        return f"{name} = {values[0]:.4g}"
    return f"{category.column} = {category.decode(values[None])[0]}"


def decision_doubts(model: Dynamics, x: np.ndarray, a: np.ndarray) -> tuple[str, ...]:
    """Say which states (n, d_x) are far outside the log, and which of their actions (n, d_a)."""
    return (
        *_far(model.state, state_range(model), x, FAR, "far outside the states of the log"),
        *_far(model.action, action_range(model), a, FURTHER, "outside the actions of the log"),
        *(f"{one.sentence}: {TOGETHER}" for one in unseen_together(model) if one.of(a).any()),
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
    """Say that learned rewards r (...) exceed every reward of the log, or fall below them all."""
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
    """Name the column of simulated values (..., d) that leaves the log most often.

    More often than the share that is `allowed`, (d,), and than `MOST_OUTSIDE`.
    """
    outside, most = log.outside(values, by), np.maximum(MOST_OUTSIDE, allowed) * np.ones(len(names))
    found = [_share(outside[..., j], alive) for j in range(len(names))]
    shares = [share if share > most[j] else 0.0 for j, share in enumerate(found)]
    often = sum(share > 0 for share in shares)
    if not often:
        return ""
    worst = int(np.argmax(shares))
    others = "" if often == 1 else f" (and {often - 1} more likewise)"
    return (
        f"in {shares[worst]:.0%} of the simulated steps the model puts {names[worst]} clearly "
        f"outside {log.words(worst)}, its range in the log{others}"
    )


def _far(
    names: tuple[str, ...], log: LogRange, values: np.ndarray, by: float, words: str
) -> list[str]:
    """Say which columns of values (n, d) lie outside, with the value that is furthest away."""
    outside, sentences = log.outside(values, by), []
    for j in np.flatnonzero(outside.any(axis=0)):
        some = values[outside[:, j], j]
        furthest = some[np.argmax(np.abs(some - (log.low[j] + log.high[j]) / 2))]
        rows = "" if len(values) == 1 else f" ({len(some):,} of {len(values):,} rows are)"
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
