"""Whether the log can tell the actions' effects from zero; if not, a plan may gain nothing."""

from __future__ import annotations

import numpy as np

from ivvi.diagnostics.tails_and_quantiles import chi2_tail
from ivvi.dynamics.model import Dynamics

LEVEL = 0.05
TRIED = 64
"""Number of rows of the log in which actions of other rows are tried."""
MOST_WEIGHTS = 400
"""Largest number of the actions' weights that are tested together."""


def effect_doubts(model: Dynamics, *, learned: bool) -> tuple[str, ...]:
    """Return a warning if all effects of the actions may be zero by a joint Wald test, else ().

    Effects on the reward count only if it is `learned`; otherwise it is not part of the model.
    """
    columns = _of_actions(model)
    outputs = range(len(model.outputs) - (model.has_reward and not learned))
    places = [row * model.W.shape[1] + j for row in outputs for j in columns]
    known = model.W_cov is not None or model.bread.size > 0
    if not (places and known and len(places) <= MOST_WEIGHTS):
        return ()
    root = model.weights.root[places]
    values, vectors = np.linalg.eigh(root @ root.T)
    nonzero = values > 1e-10 * values.max(initial=0.0)
    if not nonzero.any():
        return ()
    scores = vectors[:, nonzero].T @ model.W.ravel()[places] / np.sqrt(values[nonzero])
    if chi2_tail(float(scores @ scores), int(nonzero.sum())) <= LEVEL:
        return ()
    return (
        f"the effects of {', '.join(model.action)} cannot be distinguished from zero in this log: "
        f"what the plan gains through them in the model may be pure chance; {_remedy(model)}",
    )


def _remedy(model: Dynamics) -> str:
    """Return what to do next; with a strong instrument, effects may cancel on average."""
    is_strong = model.verdict is not None and model.verdict.word == "strong"
    if is_strong and not model.bends:
        return (
            "if an effect may change sign with the state, fit with --features auto (phi='auto'); "
            "otherwise collect more data"
        )
    return "collect more data, or find a stronger instrument"


def _of_actions(model: Dynamics) -> np.ndarray:
    """Return the places of the features that depend on the actions."""
    x, a = model.states[:TRIED], model.acted[:TRIED]
    if len(a) < 2:
        return np.empty(0, dtype=int)
    swapped = (np.asarray(model.features(x, np.roll(a, shift, axis=0))) for shift in range(1, 4))
    phi = np.asarray(model.features(x, a))
    return np.flatnonzero(np.any([(other != phi).any(axis=0) for other in swapped], axis=0))
