"""From an estimate to the dynamics to plan with: its weights, and some rows of the log."""

from __future__ import annotations

from typing import Any

from ivvi.diagnostics.verdict import Verdict
from ivvi.dynamics.model import Dynamics
from ivvi.estimators import Estimate
from ivvi.logs import Counts, Roles, Sample


def fitted_model(
    estimate: Estimate,
    roles: Roles,
    counts: Counts,
    sample: Sample | None,
    *,
    verdict: Verdict | None = None,
    refusal: str = "",
) -> Dynamics:
    """Return the dynamics with the weights of an estimate.

    `verdict` is what the fit says of its instruments, `refusal` why nobody can plan with it.
    """
    covariance = estimate.covariance
    return Dynamics(
        phi=estimate.design.phi,
        W=estimate.W,
        noise_cov=estimate.noise_cov,
        bread=estimate.bread,
        state=roles.state,
        action=roles.action,
        outputs=roles.outputs,
        has_reward=roles.reward is not None,
        unidentified=estimate.unidentified,
        W_cov=None
        if covariance is None
        else covariance.blocks
        if covariance.joint is None
        else covariance.joint,
        verdict=verdict,
        carried=roles.carried,
        ends=roles.ends,
        coded=roles.categories,
        refused=(refusal,) if refusal else (),
        instrument=roles.instrument,
        length=(0 if sample is None else sample.length) or _mean_length(counts, roles),
        derived=roles.derived,
        **_sampled_rows(sample),
    )


def _sampled_rows(sample: Sample | None) -> dict[str, Any]:
    """Return the rows of the log that a model holds, by the names of its fields."""
    if sample is None:
        return {}
    return {
        "states": sample.x,
        "starts": sample.starts,
        "acted": sample.a,
        "instruments": sample.z,
        "followed": sample.y,
        "global_instrument": sample.global_instrument,
    }


def _mean_length(counts: Counts, roles: Roles) -> int:
    """Return the mean number of steps of an episode, rounded up; 0 where rows name no episode."""
    if roles.episode is None or not counts.episodes:
        return 0
    last = counts.episodes - counts.ended if roles.derived else 0  # rows without a next state
    return -(-(counts.transitions + last) // counts.episodes)
