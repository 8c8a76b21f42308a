"""The estimated world: x' = W phi(x, a) + noise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ivvi.blocks import Array
from ivvi.errors import FileError, InputError
from ivvi.features import FeatureMap
from ivvi.files import load_folder, save_folder

KIND = "model"
NAMES = ("state", "action", "outputs", "unidentified")


@dataclass(frozen=True)
class Dynamics:
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
        cov(W_i., W_j.) = noise_cov[i, j] bread, (d_phi, d_phi).
    state, action, outputs
        Column names of x, a, y.
    has_reward
        Whether the last output is a reward.
    unidentified
        Directions of W that the log does not identify, in words.
    W_cov
        Covariance of W under the standard errors asked for: of its rows one after another,
        (d_y d_phi, d_y d_phi), or of each row, (d_y, d_phi, d_phi), where W is wide. None
        stands for noise_cov and bread.
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
    W_cov: np.ndarray | None = None

    @property
    def d_next(self) -> int:
        """Number of outputs that are the next state."""
        return len(self.outputs) - self.has_reward

    def mean(self, x: Array, a: Array) -> Array:
        """Return E[x' | x, do(a)], (..., d_next), for NumPy or JAX arrays."""
        return self._outputs(x, a)[..., : self.d_next]

    def reward(self, x: Array, a: Array) -> Array:
        """Return E[r | x, do(a)], (...,), when the reward was learned from the log."""
        if not self.has_reward:
            raise InputError("this model has no reward: it was fitted without a reward column")
        return self._outputs(x, a)[..., -1]

    def sample(self, x: Array, a: Array, rng: Any) -> Array:
        """Draw x' given x and do(a), (..., d_next).

        Parameters
        ----------
        rng
            A `numpy.random.Generator` or a seed, or a JAX key (then inside `jax.jit` too).
        """
        mean = self.mean(x, a)
        factor = self._noise_factor[: self.d_next, : self.d_next]
        if isinstance(rng, int | np.integer | np.random.Generator):
            draws = np.random.default_rng(rng).normal(size=mean.shape)
        else:
            import jax

            draws = jax.random.normal(rng, mean.shape, mean.dtype)
        return mean + draws @ factor.T

    def _outputs(self, x: Array, a: Array) -> Array:
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
        return self.phi(x, a) @ self.W.T

    @cached_property
    def _noise_factor(self) -> np.ndarray:
        values, vectors = np.linalg.eigh(self.noise_cov[: self.d_next, : self.d_next])
        return vectors * np.sqrt(np.clip(values, 0, None))  # type: ignore[no-any-return]

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        facts: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> Path:
        """Save as a folder of JSON and npz, atomically; `facts` are kept for people."""
        if not np.isfinite(self.W).all():
            raise InputError(f"{path} is not written: the weights are not finite numbers")
        document = {
            "phi": self.phi.to_json(),
            **{name: list(getattr(self, name)) for name in NAMES},
            "has_reward": self.has_reward,
            "facts": dict(facts or {}),
        }
        arrays = {"W": self.W, "noise_cov": self.noise_cov, "bread": self.bread}
        arrays |= {} if self.W_cov is None else {"W_cov": self.W_cov}
        return save_folder(path, KIND, document, arrays, force=force)


def load_model(path: str | os.PathLike[str]) -> Dynamics:
    """Load what `Dynamics.save` saved; nothing in it is executed."""
    document, arrays = load_folder(path, KIND)
    try:
        model = Dynamics(
            phi=FeatureMap.from_json(document["phi"]),
            W=arrays["W"],
            noise_cov=arrays["noise_cov"],
            bread=arrays["bread"],
            W_cov=arrays.get("W_cov"),
            has_reward=bool(document["has_reward"]),
            **{name: tuple(document[name]) for name in NAMES},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{path} is not a complete model: {error}") from error
    d_y, d_phi = len(model.outputs), len(model.phi.names(model.state, model.action))
    wanted = {"W": (d_y, d_phi), "noise_cov": (d_y, d_y), "bread": (d_phi, d_phi)}
    for name, shape in wanted.items():
        if (found := getattr(model, name).shape) != shape:
            raise FileError(f"{path} is not a sound model: {name} is {found}; {shape} is wanted")
    shapes = ((d_y * d_phi,) * 2, (d_y, d_phi, d_phi))
    if model.W_cov is not None and model.W_cov.shape not in shapes:
        raise FileError(
            f"{path} is not a sound model: W_cov is {model.W_cov.shape}; {shapes[0]} or "
            f"{shapes[1]} is wanted"
        )
    return model


def _as_array(value: Any) -> Array:
    return value if hasattr(value, "__array_namespace__") else np.asarray(value, dtype=np.float64)
