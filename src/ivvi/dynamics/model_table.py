"""The weights of estimated dynamics: how sure they are, and as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ivvi._io.result import Records
from ivvi.errors import InputError

if TYPE_CHECKING:
    from ivvi.dynamics.model import Dynamics

MOST_ROWS = 40
"""Weights that a summary lists."""


def standard_errors(model: Dynamics) -> np.ndarray:
    """Return those of W, (d_y, d_phi); NaN where the model does not hold its covariance."""
    variance: np.ndarray
    if model.W_cov is None:
        if not model.bread.size:
            return np.full(model.W.shape, np.nan)
        variance = np.outer(np.diag(model.noise_cov), np.diag(model.bread))
    elif model.W_cov.ndim == 3:
        variance = np.diagonal(model.W_cov, axis1=1, axis2=2)
    else:
        variance = np.diag(model.W_cov).reshape(model.W.shape)
    return np.sqrt(np.where(variance >= 0, variance, np.nan))


def covariance_root(model: Dynamics) -> np.ndarray:
    """Return a square root of the covariance of W (`Dynamics.weight_root`)."""
    W_cov = model.W_cov
    if W_cov is None:
        if not model.bread.size:
            raise InputError("this model was saved without the covariance of its weights")
        W_cov = np.kron(model.noise_cov, model.bread)
    if W_cov.ndim == 3:
        d_y, d_phi = model.W.shape
        whole = np.zeros((d_y, d_phi, d_y, d_phi))
        whole[range(d_y), :, range(d_y)] = W_cov
        W_cov = whole.reshape(d_y * d_phi, -1)
    values, vectors = np.linalg.eigh(W_cov)
    return np.asarray(vectors * np.sqrt(np.clip(values, 0, None)))


def draw_deviations(model: Dynamics, count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw dW from N(0, cov(W)), (count, d_y, d_phi): W + dW are weights that the log allows."""
    drawn = rng.normal(size=(count, model.W.size)) @ model.weight_root.T
    return np.asarray(drawn.reshape(count, *model.W.shape))


def model_records(model: Dynamics) -> Records:
    """Return the weights with their standard errors, one row per output and feature."""
    names, errors = model.phi.names(model.state, model.action), standard_errors(model)
    return [
        {"output": output, "feature": name, "coefficient": float(w), "se": float(se)}
        for output, row, row_errors in zip(model.outputs, model.W, errors, strict=True)
        for name, w, se in zip(names, row, row_errors, strict=True)
    ]


def model_summary(model: Dynamics) -> str:
    """Return what follows from what, and the first weights."""
    rows = model_records(model)
    first = max(len(row["feature"]) for row in rows)
    verdict = [] if model.verdict is None else [model.verdict.sentence]
    lines = [f"{'output':<14}{'feature':<{first}}{'coefficient':>14}{'std.err.':>12}"]
    lines += [
        f"{r['output']:<14}{r['feature']:<{first}}{r['coefficient']:>14.4g}{r['se']:>12.3g}"
        for r in rows[:MOST_ROWS]
    ]
    if (more := len(rows) - MOST_ROWS) > 0:
        lines.append(f"... and {more:,} more")
    return "\n".join([model.headline, *verdict, "", *lines])
