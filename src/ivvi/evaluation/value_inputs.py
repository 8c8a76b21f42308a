"""What a valuation needs from a fit, from a saved fit, or from dynamics alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ivvi.diagnostics.verdict import Verdict
from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError
from ivvi.estimators import Exact, Method
from ivvi.estimators.registry import method_for_moments
from ivvi.evaluation.noise_shape import NoiseShape, shape_of
from ivvi.fitting import Fit
from ivvi.fitting.saved_fit import as_fit
from ivvi.moments import Moments
from ivvi.planning.behaviour_policy import BehaviourPolicy


@dataclass(frozen=True)
class ValueInputs:
    """Estimated dynamics, and the fit that they come from, if there is one.

    Attributes
    ----------
    model
        Estimated dynamics with the covariance of W.
    fit
        The fit, which knows moments, method, verdict and clusters.
    """

    model: Dynamics
    fit: Fit | None = None

    @classmethod
    def of(cls, source: Any) -> ValueInputs:
        """Return the inputs from a `Fit`, the folder of a saved one, or bare dynamics."""
        if isinstance(source, ValueInputs):
            return source
        if isinstance(source, Dynamics):
            return cls(source)
        fit = as_fit(source)
        return cls(fit.model, fit)

    @property
    def moments(self) -> Moments | None:
        """Moments of the log, perhaps by episode; None when they were not kept."""
        return self.fit.moments if self.fit is not None and self.fit.has_moments else None

    @property
    def method(self) -> Method:
        """How W is estimated again from other moments."""
        return method_for_moments(self.fit.method, self.fit.settings) if self.fit else Exact()

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the instruments; None when it is not known."""
        return self.fit.verdict if self.fit else None

    @cached_property
    def behaviour(self) -> BehaviourPolicy | None:
        """The behaviour policy; None when no rows of the log are at hand."""
        return BehaviourPolicy.of(self.model, self.moments)

    @cached_property
    def noise_shape(self) -> NoiseShape | None:
        """The shape of the log's noise; None where it is Gaussian."""
        return shape_of(self.model)

    @property
    def length(self) -> float | None:
        """Mean number of steps of an episode of the log."""
        return self.fit.counts.transitions / self.fit.counts.episodes if self.fit else None

    @property
    def clusters(self) -> tuple[str, ...]:
        """The columns by which the fit's errors are clustered."""
        return () if self.fit is None else tuple(dict(self.fit.estimate.W_cov.clusters))

    @property
    def grouped(self) -> bool:
        """Whether the fit's errors are clustered by more than the episodes."""
        return self.fit is not None and bool(set(self.clusters) - {self.fit.roles.episode})

    @property
    def freedom(self) -> float:
        """Degrees of freedom of the fit's Student's t, the smallest over the actions' effects.

        Infinite where the fit's intervals are normal.
        """
        freedom = None if self.fit is None else self.fit.estimate.W_cov.freedom
        if self.fit is None or freedom is None:
            return np.inf
        shared = set(self.fit.estimate.design.shared)
        actions = [j for j in range(freedom.shape[1]) if j not in shared]
        return float(np.min(freedom[:, actions or slice(None)]))

    @property
    def start_clusters(self) -> np.ndarray:
        """The cluster of each first state, (s,); empty where episodes are the clusters."""
        inferred = None if self.fit is None else self.fit.inference
        return np.empty(0, dtype=np.int64) if inferred is None else inferred.start_clusters

    @property
    def wild(self) -> bool:
        """Whether the fit's tests are by the wild bootstrap."""
        inferred = None if self.fit is None else self.fit.inference
        return inferred is not None and bool(inferred.wild)

    @property
    def resampled(self) -> bool:
        """Whether the moments hold the groups that are independent in the fit's errors."""
        episodes = None if self.moments is None else self.moments.episodes
        return episodes is not None and (not self.grouped or self.clusters == (episodes.by,))

    @property
    def knows_least_squares(self) -> bool:
        """Whether the dynamics of least squares are at hand."""
        return self.fit is not None and self.fit.has_baseline_model

    @cached_property
    def baseline(self) -> Dynamics:
        """The dynamics that confounded least squares estimates."""
        if self.fit is None or not self.fit.has_baseline_model:
            raise InputError(
                "the least-squares policy needs the regression of the log, which this model does "
                "not keep; name other rivals (against=, --against)"
            )
        return replace(self.fit.baseline_model, W_cov=None, unidentified=())
