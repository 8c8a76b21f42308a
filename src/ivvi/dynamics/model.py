"""The estimated dynamics, x' = W phi(x, a) + noise: every simulation draws next states from here.

Where features are not linear, states outside the log's range count as the nearest one inside
(`ivvi.dynamics.range_clamping`). Indicators of categories are drawn as such.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ivvi._io.arrays import Array
from ivvi._io.files import Saved, save_folder
from ivvi._io.result import Records, TableResult
from ivvi.categories import CodedColumn, decode_rows, encode_rows, raw_columns
from ivvi.dynamics.horizon import default_horizon
from ivvi.dynamics.model_serialization import pack_model
from ivvi.dynamics.next_state_distribution import (
    Categories,
    NoiseLaw,
    next_state,
    noise_law,
    state_categories,
)
from ivvi.dynamics.range_clamping import beyond, is_affine, is_limited, reward_fade, state_range
from ivvi.dynamics.state_update import StateUpdate
from ivvi.dynamics.weights import Weights, weight_lines
from ivvi.errors import ColumnError, InputError, nearest
from ivvi.features.feature_map import FeatureMap

if TYPE_CHECKING:  # loading a model does not import the estimators
    from ivvi.diagnostics import Verdict
    from ivvi.dynamics.gym_env import ModelEnv
    from ivvi.logs import Sample

KIND = "model"


def _none() -> np.ndarray:
    return np.empty((0, 0))


@dataclass(frozen=True, repr=False)
class Dynamics(TableResult):
    """Mean and noise of the next state given state and action.

    Attributes
    ----------
    phi
        Feature map of (x, a).
    W
        Weights (d_y, d_phi); the reward's row, if it is learned, comes last.
    noise_cov
        Covariance of y - W phi(x, a), (d_y, d_y).
    bread
        cov(W_i., W_j.) = noise_cov[i, j] bread, (d_phi, d_phi); (0, 0) where it is not known.
    state, action, outputs
        Column names of x, a, y.
    has_reward
        Whether the last output is a reward.
    unidentified
        Directions of W that the log does not identify, in words.
    states
        A few states of the log, (m, d_x): where a planner should be good.
    W_cov
        Covariance of W under the requested standard errors: of its rows one after another,
        (d_y d_phi, d_y d_phi), or of each row, (d_y, d_phi, d_phi), where W is wide. None
        stands for noise_cov and bread.
    starts
        First states of some episodes of the log, (s, d_x): where values start.
    acted, instruments, followed
        In the same rows as `states`: actions (m, d_a), instruments (m, d_z), outputs (m, d_y).
    global_instrument
        Whether the instrument has one value per episode.
    verdict
        The fit's verdict on its instruments; None where there is none.
    carried
        Columns of the state that are not predicted, each with the column of state or action that
        is its next value; an empty name means a draw from the log's rows.
    ends
        Names of the kinds of end whose chances are the outputs after the next state.
    coded
        The categories of the log whose indicators are columns of state and action.
    refused
        Why the model predicts nothing, in words; empty if it does predict.
    instrument
        Column names of z.
    length
        Usual number of rows of the log's episodes; 0 where it is not known.
    derived
        Whether the next state is the state of the next row, so that the last row of an episode
        shows no step unless it ends the episode.
    doubts
        Warnings of the fit about its features, and about plans with it.
    reward_doubts
        Those of `doubts` that concern the learned reward alone.
    """

    phi: FeatureMap
    W: np.ndarray
    noise_cov: np.ndarray
    bread: np.ndarray
    state: tuple[str, ...]
    action: tuple[str, ...]
    outputs: tuple[str, ...]
    has_reward: bool = False
    unidentified: tuple[str, ...] = ()
    states: np.ndarray = field(default_factory=_none)
    W_cov: np.ndarray | None = None
    starts: np.ndarray = field(default_factory=_none)
    acted: np.ndarray = field(default_factory=_none)
    instruments: np.ndarray = field(default_factory=_none)
    followed: np.ndarray = field(default_factory=_none)
    global_instrument: bool = False
    verdict: Verdict | None = None
    carried: tuple[tuple[str, str], ...] = ()
    ends: tuple[str, ...] = ()
    coded: tuple[CodedColumn, ...] = ()
    refused: tuple[str, ...] = ()
    instrument: tuple[str, ...] = ()
    length: int = 0
    derived: bool = False
    doubts: tuple[str, ...] = ()
    reward_doubts: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Which outputs are predicted from which states and actions."""
        x, a = ", ".join(self.state), ", ".join(self.action)
        return f"{', '.join(self.outputs)} from {x}; {a}; W {self.W.shape}"

    def summary(self) -> str:
        """Return the columns, the verdict on the instruments, and the weights."""
        verdict = [] if self.verdict is None else [self.verdict.sentence]
        return "\n".join([self.headline, *verdict, "", *weight_lines(self.records())])

    def records(self) -> Records:
        """Return the weights with their standard errors, one row per output and feature."""
        return self.weights.records(self.outputs, self.phi.names(self.state, self.action))

    @property
    def rows(self) -> Sample | None:
        """The rows of the log that the model holds; None where it holds none."""
        from ivvi.logs import Sample

        if not len(self.followed):
            return None
        parts = (self.states, self.acted, self.instruments, self.followed, self.starts)
        return Sample(*parts, self.global_instrument, self.length)

    @property
    def usual_horizon(self) -> tuple[int, str]:
        """The default number of steps of an episode, and the reason for it."""
        steps = self.length - (self.derived and not self.ends and self.length > 1)
        return default_horizon(steps, one_decision=not self.update.predicted)

    @property
    def d_next(self) -> int:
        """Number of columns of the next state."""
        return len(self.outputs) - self.has_reward - len(self.ends) + len(self.carried)

    @cached_property
    def update(self) -> StateUpdate:
        """How the outputs make up the next state."""
        if not (self.carried or self.ends):
            return StateUpdate(self.d_next, self.d_next, len(self.action))
        last = len(self.outputs) - self.has_reward
        ends = self.followed[:, last - len(self.ends) : last]
        ended = float(ends.sum(axis=1).mean()) if len(ends) else 0.0
        columns = self.state, self.action, dict(self.carried), self.states
        return StateUpdate.of(*columns, len(self.ends), ended)

    @property
    def next_cov(self) -> Any:
        """Covariance of the next state around its mean, (d_next, d_next)."""
        return self.update.noise(self.noise_cov)

    def mean(self, x: Array, a: Array) -> Array:
        """Return E[x' | x, do(a)], (..., d_next), for NumPy or JAX arrays.

        If episodes can end, of those that go on.
        """
        x, a = _as_array(x), _as_array(a)
        return self.update.mean(self._outputs(x, a), x, a)

    def chance_of_end(self, x: Array, a: Array) -> Array:
        """Return P(the episode ends | x, do(a)), (...), zero where no end was estimated."""
        y = self._outputs(x, a)
        return self.update.chance(y) if self.ends else 0.0 * y[..., 0]

    def chances_of_ends(self, x: Array, a: Array) -> Array:
        """Return P(the episode ends with this kind | x, do(a)) for each of `ends`, (..., ends)."""
        return self.update.chances(self._outputs(x, a))

    def reward(self, x: Array, a: Array) -> Array:
        """Return E[r | x, do(a)], (...,), if the reward was learned from the log.

        Beyond `reach` it decreases (`fade`).
        """
        if not self.has_reward:
            raise InputError("this model has no reward: it was fitted without a reward column")
        learned = self._outputs(x, a)[..., -1]
        return learned - beyond(_as_array(x), self.reach, self.fade) if self.is_limited else learned

    def sample(self, x: Array, a: Array, rng: Any) -> Array:
        """Draw x' given x and do(a), (..., d_next).

        Parameters
        ----------
        rng
            A `numpy.random.Generator` or a seed, or a JAX key (then inside `jax.jit` too).
        """
        mean = self.mean(x, a)
        if isinstance(rng, int | np.integer | np.random.Generator):
            draws = np.random.default_rng(rng).normal(size=mean.shape)
        else:
            jax = importlib.import_module("jax")  # by name: models are fitted without JAX
            draws = jax.random.normal(rng, mean.shape, mean.dtype)
        return self.next_state(mean, draws)

    def next_state(self, m: Array, noise: Array) -> Array:
        """Return x' (..., d_x) with mean m (..., d_x) from standard normal draws of its shape.

        Draws are multiplied by a square root of the noise covariance; categories are drawn as
        such (`ivvi.dynamics.next_state_distribution`).
        """
        return next_state(m, noise, self.noise_law, self.categories)

    @property
    def noise_law(self) -> NoiseLaw:
        """The maps from standard normal draws to the noise, from its covariance."""
        if isinstance(self.noise_cov, np.ndarray):
            return self._noise_law
        # not cached while JAX traces it
        return noise_law(self.update.noise(self.noise_cov), self.categories)

    @cached_property
    def _noise_law(self) -> NoiseLaw:
        return noise_law(self.next_cov, self.categories)

    @cached_property
    def categories(self) -> Categories:
        """The categories of the state, with the columns that are their indicators.

        Those that the log defines, and those that the model's sample of the log shows.
        """
        return state_categories(self.state, self.coded, self.sampled_states)

    @property
    def context(self) -> tuple[str, ...]:
        """Columns of the state that are constant or drawn anew: neither predicted nor lags."""
        return tuple(name for name, source in self.carried if source in ("", name))

    @property
    def raw_state(self) -> tuple[str, ...]:
        """Columns of the state as the log has them: a category is one column."""
        return raw_columns(self.state, self.coded)

    def encode_states(
        self, rows: Mapping[str, Any], where: str = "the states", unseen: str | None = None
    ) -> np.ndarray:
        """Return states (n, d_x) for columns as the log has them, by name.

        A level that the log does not have is an error, or counts as the level `unseen`.
        """
        for name in self.raw_state:
            if name not in rows:
                raise ColumnError(f"{where}: no column {name!r}{nearest(name, list(rows))}")
        return encode_rows(rows, self.state, self.coded, where, unseen)

    def decode_actions(self, actions: np.ndarray) -> dict[str, list[Any]]:
        """Return actions (n, d_a) as columns of the log, categories by the names of levels."""
        return decode_rows(actions, self.action, self.coded)

    @property
    def sampled_states(self) -> tuple[np.ndarray, ...]:
        """States of the log that the model holds, (m, d_x) each."""
        samples: tuple[np.ndarray, ...] = (self.states, self.starts)
        if self.update.is_plain and self.d_next == len(self.state):
            samples += (self.followed[:, : self.d_next],)
        return tuple(part for part in samples if len(part) and part.shape[1] == len(self.state))

    @property
    def bends(self) -> bool:
        """Whether the mean is not affine in states and actions."""
        return bool(self.ends) or not is_affine(self.phi)

    @property
    def is_limited(self) -> bool:
        """Whether some feature is used only where the log has states."""
        return is_limited(self.phi)

    @cached_property
    def reach(self) -> Array:
        """Lowest and highest state at which the features are evaluated, (2, d_x).

        Beyond these the mean is that of the nearest state within. Models that are not limited, or
        hold no states, have no such bounds.
        """
        samples = [rows for rows in (self.states, self.starts) if len(rows)]
        if self.is_limited and len(self.states):
            return state_range(samples, self.categories)
        return np.array([[-np.inf], [np.inf]]) * np.ones(len(self.state))

    @cached_property
    def fade(self) -> Array:
        """The loss of a learned reward per unit that a state lies beyond `reach`, (d_x,).

        Zero where the reward is not learned.
        """
        if not (self.has_reward and self.is_limited and len(self.states) and len(self.followed)):
            return np.zeros(len(self.state))
        return reward_fade(self.states, self.followed[:, -1], self.reach)

    def with_numbers(self, numbers: tuple[Any, ...]) -> Dynamics:
        """Return the model with other `numbers`, which JAX may trace; categories stay."""
        W, noise_cov, knots, reach, fade = numbers
        phi = self.phi.with_numbers(knots)
        model = dataclasses.replace(self, phi=phi, W=W, noise_cov=noise_cov)
        vars(model).update(  # where they are cached
            reach=reach, fade=fade, categories=self.categories, update=self.update
        )
        return model

    @property
    def numbers(self) -> tuple[Any, ...]:
        """Weights, noise covariance, knots, reach, fade: the arguments of compiled programs."""
        return self.W, self.noise_cov, self.phi.numbers, self.reach, self.fade

    def as_env(self, reward: Any, actions: Any, **settings: Any) -> ModelEnv:
        """Return the estimated world as a Gymnasium environment (`ivvi.dynamics.gym_env.ModelEnv`).

        Parameters
        ----------
        reward, actions
            As for `ivvi.plan`.
        settings
            `starts` (m, d_x), first states, by default those of the log's episodes;
            `horizon`, by default the usual length of the log's episodes; `terminal`, a function
            that says which states end an episode; `reward_at_end` and `instrument` as for
            `ivvi.plan`.
        """
        module = importlib.import_module("ivvi.dynamics.gym_env")  # by name: it imports JAX
        env: ModelEnv = module.ModelEnv(self, reward, actions, **settings)
        return env

    def check_whole(self) -> None:
        """Raise an error if the model cannot predict the next state."""
        if self.refused:
            raise InputError("; ".join(self.refused))

    def _outputs(self, x: Array, a: Array) -> Array:
        self.check_whole()
        x, a = _as_array(x), _as_array(a)
        for name, value, columns in (("states", x, self.state), ("actions", a, self.action)):
            if value.shape[-1:] != (len(columns),):
                raise InputError(
                    f"{name} of shape {tuple(value.shape)} were given; the last axis must be "
                    f"{len(columns)} ({', '.join(columns)})"
                )
        if x.shape[:-1] != a.shape[:-1]:
            raise InputError(
                f"states of shape {tuple(x.shape)} and actions of shape {tuple(a.shape)} were "
                "given; they must agree in all but the last axis"
            )
        return self.features(x, a) @ self.W.T

    def features(self, x: Array, a: Array) -> Array:
        """Return phi (..., d_phi) at the state within `reach` that is nearest to x."""
        if self.is_limited:
            low, high = self.reach
            x = x.__array_namespace__().clip(x, low, high)
        return self.phi(x, a)

    @cached_property
    def weights(self) -> Weights:
        """W with its covariance, as `Weights`."""
        return Weights(self.W, self.noise_cov, self.bread, self.W_cov)

    def parts(self) -> Saved:
        """Return JSON values and arrays from which `model_from_parts` makes the model again."""
        return pack_model({f.name: getattr(self, f.name) for f in dataclasses.fields(self)})

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        facts: Mapping[str, Any] | None = None,
        beside: Saved = ({}, {}),
        force: bool = False,
        replaces: str | None = None,
    ) -> Path:
        """Save as a folder of JSON and npz, atomically.

        `facts` are kept for readers, `beside` for later updates of the model; `replaces`
        is the only version (`ivvi._io.files.load_version`) that may be replaced, if given.
        """
        document, arrays = self.parts()
        document |= {"facts": dict(facts or {}), **beside[0]}
        everything = {**arrays, **beside[1]}
        return save_folder(path, KIND, document, everything, force=force, replaces=replaces)


def _as_array(value: Any) -> Array:
    return value if hasattr(value, "__array_namespace__") else np.asarray(value, dtype=np.float64)
