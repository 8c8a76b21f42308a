"""The episodes behind a value: their first states, their number, and their weights.

The value in the estimated model is a mean over many episodes, R_i the return of one. The value in a
drawn model b adds the mean change of a few of these returns, under the same noise
(`ivvi.evaluation.many_model_rollout`):

    V_b = sum_i w_bi R_i / sum_i w_bi  +  mean_j (R_bj - R_j).

The weights w_b resample first states, with the counts of their episodes in a bootstrap, so that the
spread of V_b includes the errors of sampled first states and of the simulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.result import Compact
from ivvi.dynamics.model import Dynamics
from ivvi.dynamics.state_encoding import state_rows
from ivvi.errors import InputError
from ivvi.evaluation.many_model_rollout import Episodes
from ivvi.evaluation.model_draws import student_variance
from ivvi.planning import Problem

CHUNK = 100
"""Models that are simulated at once."""
STEPS, FEW, SOME, MANY, MANY_STEPS = 400, 2, 16, 100, 6000
"""Steps simulated in each drawn world, in at least FEW episodes, SOME if starts differ, or MANY
(and MANY_STEPS) where episodes end or levels are drawn.

A world's noise is the estimate's: eight episodes of 50 steps add 1 to 4% to the variance where
returns are smooth in W. Where few episodes decide (a death, a level), 27 episodes are not enough:
intervals of the same value were a third to three times as long from log to log."""
POINT_EPISODES, POINT_STEPS, MOST_POINT, GROUPS = 400, 100_000, 20_000, 200
"""For the estimate itself: fewest episodes, steps to simulate, most episodes, and the number of
groups in which they are weighted."""
FEW_STARTS = 10
KEPT_STEPS, FEW_KEPT, MOST_KEPT = 20_000, 24, 96
"""Steps whose states and actions are checked, and the fewest and most episodes of these."""


@dataclass(frozen=True, eq=False, repr=False)
class RolloutDesign(Compact):
    """Episodes of a simulation.

    Attributes
    ----------
    starts
        First states, (s, d_x).
    sampled
        Whether they are a sample of the log's, and not the states asked for.
    size, count
        Models in a chunk and episodes of each.
    chunks
        Chunks of episodes for the value of the estimate itself.
    seed
        Of the noise.
    late
        Whether the starts are later rows, because first rows have no lags.
    """

    starts: np.ndarray
    sampled: bool
    size: int
    count: int
    chunks: int
    seed: int
    late: bool = False

    @classmethod
    def of(cls, problem: Problem, starts: Any, draws: int, seed: int) -> RolloutDesign:
        """Return the design for the log's first states, in random order, or for those given."""
        model = problem.model
        first = model.starts if starts is None else state_rows(starts, model)
        if starts is None and first.size == 0:
            raise InputError(
                "the model holds no rows of a log, so the first states are not known: pass starts "
                f"(--start), rows of {len(model.state)} ({', '.join(model.state)})"
            )
        if first.size == 0 or first.shape[1] != len(model.state):
            raise InputError(
                f"expected rows of {len(model.state)} ({', '.join(model.state)}) as first states; "
                f"found shape {first.shape}: pass starts (--start)"
            )
        least = FEW if (first == first[0]).all() else SOME
        if problem.terminal is not None or model.categories:
            least = max(MANY, MANY_STEPS // problem.horizon)
        count = max(least, min(-(-STEPS // problem.horizon), MANY))
        size = min(CHUNK, draws)
        needed = min(POINT_STEPS // problem.horizon, MOST_POINT)
        needed = max(POINT_EPISODES, len(first), needed)
        late = starts is None and _lacks_first_rows(model)
        return cls(first, starts is None, size, count, -(-needed // (size * count)), seed, late)

    @property
    def words(self) -> str:
        """The states from which the values start, in words."""
        if self.late:
            return f"{len(self.starts):,} states of the log, the first of episodes with all lags"
        if len(self.starts) == 1:
            return "the log's first state" if self.sampled else "a given state"
        return f"{len(self.starts):,} first states {'of the log' if self.sampled else 'given'}"

    @property
    def notes(self) -> tuple[str, ...]:
        """A note if the values do not start from the first rows of episodes, else ()."""
        if not self.late:
            return ()
        return (
            "episodes start at the first rows that have all lags, not at the first of the log: "
            "fit a log with lag_padding='first' (--lag-padding first) to start there",
        )

    def episodes(self) -> Iterator[Episodes]:
        """Yield the chunks of episodes for the estimate itself, each with its own noise."""
        for chunk in range(self.chunks):
            numbers = np.arange(self.size * self.count) + chunk * self.size * self.count
            yield self._numbered(numbers.reshape(self.size, self.count))

    @property
    def few(self) -> Episodes:
        """The episodes of every drawn world: the first ones."""
        return self._numbered(np.broadcast_to(np.arange(self.count), (self.size, self.count)))

    def alone(self, horizon: int) -> Episodes:
        """Return the first episodes of one world, fewer where they are long."""
        count = int(np.clip(KEPT_STEPS // horizon, FEW_KEPT, MOST_KEPT))
        return self._numbered(np.arange(count)[None])

    def _numbered(self, numbers: np.ndarray) -> Episodes:
        order = np.random.default_rng(self.seed).permutation(len(self.starts))
        which = order[numbers % len(order)]
        return Episodes(self.starts[which], numbers, self.seed, which)

    def shares(
        self,
        draws: int,
        weights: np.ndarray | None,
        rng: np.random.Generator,
        clusters: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the weight of each group of episodes in each draw, (draws, groups).

        Groups are first states, with the weights of their episodes in a bootstrap. Where there
        are few first states, or they were given, groups are of episodes instead. First states of
        the same of the `clusters` (s,), if given, have the same weight.
        """
        if not self.sampled or len(self.starts) < FEW_STARTS:
            return rng.exponential(size=(draws, GROUPS))
        if weights is None or weights.shape[1] < len(self.starts):
            if clusters is None or len(clusters) != len(self.starts):
                clusters = np.arange(len(self.starts))
            names, place = np.unique(clusters, return_inverse=True)
            weights = _counted(draws, len(names), rng)[:, place]
        order = np.random.default_rng(self.seed).permutation(len(self.starts))
        return weights[:, order]

    def combine(
        self, of_point: np.ndarray, of_draws: np.ndarray, shares: np.ndarray
    ) -> tuple[float, np.ndarray]:
        """Return the value of the estimate and of the draws from returns (N,) and (draws, n).

        A mean return lies between the least and the largest return of an episode, so each draw is
        clipped to that range: where only ends pay, no value is beyond what an end pays.
        """
        group = np.arange(len(of_point)) % shares.shape[1]
        sums = np.bincount(group, of_point, shares.shape[1])
        counts = np.bincount(group, minlength=shares.shape[1])
        moved = (of_draws - of_point[: self.count]).mean(axis=1)
        resampled = shares @ sums / np.maximum(shares @ counts, 1e-300)
        low = np.minimum(of_draws.min(axis=1), of_point.min())
        high = np.maximum(of_draws.max(axis=1), of_point.max())
        return float(of_point.mean()), np.clip(resampled + moved, low, high)


def _lacks_first_rows(model: Dynamics) -> bool:
    """Return whether a lag in the first states differs from the column that it is a lag of."""
    places = {name: i for i, name in enumerate(model.state)}
    lags = [(places[c], places[of]) for c, of in model.carried if of in places and of != c]
    return any((model.starts[:, lag] != model.starts[:, of]).any() for lag, of in lags)


def _counted(draws: int, groups: int, rng: np.random.Generator) -> np.ndarray:
    """Return weights of groups, (draws, groups): 1 on average, with Student's variance."""
    variance = student_variance(groups)
    weights: np.ndarray = rng.gamma(1 / variance, variance, size=(draws, groups))
    return weights
