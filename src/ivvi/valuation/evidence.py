"""What a fit knows of a log that values need: dynamics, moments, strength, behaviour."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from ivvi.diagnostics.verdict import Verdict
from ivvi.dynamics import Dynamics, load_model
from ivvi.errors import InputError
from ivvi.estimators import Exact, LeastSquares, Method
from ivvi.estimators.words import restore_method
from ivvi.files import load_folder
from ivvi.fitting import Fit
from ivvi.moments import Moments
from ivvi.shard import Shard
from ivvi.valuation.habit import Habit


@dataclass(frozen=True)
class Evidence:
    """All that is known without the rows.

    Attributes
    ----------
    model
        Estimated dynamics with the covariance of W.
    moments
        Moments of the log, perhaps by episode; None when they were not kept.
    method
        How W is estimated again from other moments.
    verdict
        One word on the instruments, and the rule behind it; None when it is not known.
    habit
        The behaviour policy; None when no rows of the log are at hand.
    length
        Mean number of steps of an episode of the log.
    clusters
        The columns by which the fit's errors are clustered, where these are not the episodes.
    """

    model: Dynamics
    moments: Moments | None
    method: Method
    verdict: Verdict | None
    habit: Habit | None
    length: float | None = None
    clusters: tuple[str, ...] = ()

    @property
    def resampled(self) -> bool:
        """Whether the moments hold the groups that are independent in the fit's errors."""
        held = None if self.moments is None else self.moments.episodes
        return held is not None and self.clusters in ((), (held.by,))

    @classmethod
    def of(cls, source: Any) -> Evidence:
        """Take a `Fit`, a saved model's folder, or bare dynamics."""
        if isinstance(source, Fit):
            chosen = restore_method(source.method, source.settings)
            counts, model = source.counts, source.model
            moments = None if source.differenced else source.moments  # those are not of the log
            habit = Habit.of(model, moments)
            length = counts.transitions / counts.episodes
            verdict = source.diagnostics.verdict
            clusters = tuple(name for name, _ in source.estimate.W_cov.clusters)
            other = clusters if set(clusters) - {source.roles.episode} else ()
            return cls(model, moments, chosen, verdict, habit, length, other)
        if isinstance(source, str | os.PathLike):
            return cls._saved(source)
        if isinstance(source, Dynamics):
            return cls(source, None, Exact(), None, Habit.of(source, None))
        raise InputError(
            f"values need a fit, a saved model or dynamics; {type(source).__name__} was given"
        )

    @classmethod
    def _saved(cls, path: str | os.PathLike[str]) -> Evidence:
        model, document = load_model(path), load_folder(path, "model")[0]
        facts = document["facts"]
        known = facts.get("diagnostics") or {}
        verdict = (
            Verdict(known.get("verdict") or "", known["rule"], known.get("recommended") or "wald")
            if "rule" in known
            else None
        )
        if document.get("shard") is None:
            return cls(model, None, Exact(), verdict, Habit.of(model, None))
        shard = Shard.load(path)
        chosen = restore_method(facts["method"], facts["settings"])
        length = shard.counts.transitions / shard.counts.episodes
        habit = Habit.of(model, shard.moments)
        clusters = tuple(facts.get("clusters") or ())
        other = clusters if set(clusters) - {shard.roles.episode} else ()
        return cls(model, shard.moments, chosen, verdict, habit, length, other)

    @property
    def baseline(self) -> Dynamics:
        """The dynamics that confounded least squares believes in."""
        if self.moments is None:
            raise InputError(
                "the least-squares policy needs the moments of the log, which this model does "
                "not keep; fit it again without --without-moments, and in levels"
            )
        found = LeastSquares().solve(self.moments)
        believed = replace(self.model, W=found.W, noise_cov=found.noise_cov, bread=found.bread)
        return replace(believed, W_cov=None, unidentified=())
