"""Try a reward and an end function on a few states: shape, finite numbers, tracing by JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ivvi._io.arrays import Array
from ivvi.errors import InputError
from ivvi.rewards.builtin import Reward

COMPARED = (
    "a comparison such as x > 1 is true or false, not a number; multiply it by 1.0 first, as in "
    "-1.0 * (x[:, 0] > 1)"
)


def check_functions(
    reward: Reward,
    terminal: Callable[[Array], Array] | None,
    model: Any,
    x: np.ndarray,
    a: np.ndarray,
) -> None:
    """Raise an error if a reward or an end fails in states (n, d_x) and actions (n, d_a)."""
    import jax
    import jax.numpy as jnp

    n = len(x)
    with jax.enable_x64(True):
        x_next = model.mean(jnp.asarray(x), jnp.asarray(a))
        arguments = jnp.asarray(x), jnp.asarray(a), x_next, 0
        values = _tried("the reward", reward, arguments, n)
        ends = np.zeros(n)
        if terminal is not None:
            ends = _tried("terminal", terminal, (x_next,), n)
    for label, answer, at in (("the reward", values, x), ("terminal", ends, np.asarray(x_next))):
        if not np.isfinite(answer).all():
            bad = int(np.flatnonzero(~np.isfinite(answer))[0])
            state = ", ".join(f"{s}={v:.4g}" for s, v in zip(model.state, at[bad], strict=True))
            raise InputError(f"{label} is {answer[bad]} at {state}; expected a finite number")


def _tried(
    label: str, function: Callable[..., Any], arguments: tuple[Any, ...], n: int
) -> np.ndarray:
    """Return a user's function of the arguments, also traced by JAX, or raise a clear error."""
    import jax

    try:
        values = np.asarray(function(*arguments), dtype=np.float64)
        jax.eval_shape(function, *arguments)
    except InputError:
        raise
    except jax.errors.JAXTypeError as error:
        raise InputError(
            f"{label} cannot be compiled: write it with operators and jax.numpy, without branching "
            f"on values and without NumPy functions ({_sentence(error)})"
        ) from error
    except Exception as error:
        remedy = COMPARED if "does not accept dtype bool" in str(error) else ""
        raise InputError(
            f"{label} cannot be evaluated on {n} states: {remedy or _sentence(error)}"
        ) from error
    if values.shape != (n,):
        raise InputError(
            f"{label} returned shape {values.shape} for {n} states; expected one number for each"
        )
    return values


def _sentence(error: Exception) -> str:
    """Return the first line of an error's message, or its name."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
