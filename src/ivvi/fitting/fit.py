"""`Fit`: what `fit` and `estimate` return, and what can be asked of it."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ivvi._io.files import content_hash
from ivvi._io.result import Brief, Records, TableResult
from ivvi._io.trust import Trust
from ivvi.diagnostics import Diagnostics, Statistic, difference
from ivvi.diagnostics.verdict import Verdict
from ivvi.diagnostics.wald import combination, wald
from ivvi.dynamics.model import Dynamics
from ivvi.errors import InputError
from ivvi.estimators import Estimate
from ivvi.estimators.covariance.scores import Scored
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.feature_selection import FeatureChoice
from ivvi.estimators.registry import method_class
from ivvi.fitting.feature_choice import kept_choice
from ivvi.fitting.fit_summary import fit_brief, fit_summary, plot_fit
from ivvi.fitting.fitted_model import fitted_model
from ivvi.fitting.incremental.saved_moments import Shard
from ivvi.fitting.inference_tables import (
    NO_MOMENTS,
    Inference,
    coefficient_records,
    nothing_inferred,
    with_nulls,
)
from ivvi.fitting.panels.absorbing import FixedEffects
from ivvi.fitting.panels.nickell import Nickell
from ivvi.fitting.panels.partialling import Partialled
from ivvi.logs import Counts, Log, Roles, Sample
from ivvi.moments import Absorbed, Moments
from ivvi.weak_iv.robust_effect_intervals import RobustIntervals

NOT_SAVED = (
    "this fit was saved without its moments; fit the log again in levels and save them (no "
    "--without-moments)"
)


@dataclass(frozen=True, repr=False)
class Fit(TableResult):
    """What `estimate` returns: the weights, their uncertainty, and counts of rows.

    Attributes
    ----------
    estimate
        The estimate asked for.
    inference
        What the moments show besides it; None where descent-ascent used linear memory and computed
        no moments. `moments`, `baseline`, `diagnostics`, `scored` and `errors` are then refused,
        with the reason.
    counts
        Rows, transitions, episodes and what was dropped.
    roles, label, method, seconds
        Columns, source, method's name and time taken.
    settings
        Settings of the method, as JSON values.
    files
        The files that were read; only the hash where no path is known.
    sample
        A few of the log's rows: planners plan on them, values start there, reports draw them.
    command
        The command line that made the fit, if one did.
    differenced
        Whether it comes from differences between steps; `moments` and `diagnostics` are then
        those of the differences.
    log
        The log that was read, for what takes one more pass over its rows; it is not saved.
    notes
        What the first rows of the log warn of.
    doubts
        What the first rows of the log say against the features.
    reward_doubts
        Those of `doubts` that concern the learned reward alone.
    plan_doubts
        What the first rows of the log say against plans, though not against the estimate.
    absorbed, effects
        Fixed effects that were absorbed: how many, and those of each column's values. `moments`
        and `diagnostics` are then those of the rows without them.
    nickell
        The bias of lagged states that absorbing the episodes' effects brings, if it does.
    choice
        How the features were chosen, if the data chose them.
    partialled
        Controls that were partialled out of all columns, if any; the fit then uses the residuals.
    """

    estimate: Estimate
    inference: Inference | None
    counts: Counts
    roles: Roles
    label: str
    method: str
    seconds: float = 0.0
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    files: tuple[Path | str, ...] = ()
    sample: Sample | None = None
    command: str = ""
    differenced: bool = False
    log: Log | None = None
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    reward_doubts: tuple[str, ...] = ()
    plan_doubts: tuple[str, ...] = ()
    absorbed: Absorbed | None = None
    effects: tuple[FixedEffects, ...] = ()
    nickell: Nickell | None = None
    choice: FeatureChoice | None = None
    partialled: Partialled | None = None

    @property
    def W(self) -> np.ndarray:  # noqa: N802
        """Primal weights, (d_y, d_phi)."""
        return self.estimate.W

    @property
    def K(self) -> np.ndarray:  # noqa: N802
        """Dual weights, (d_y, d_psi)."""
        return self.estimate.K

    @property
    def se(self) -> np.ndarray:
        """Standard errors of W; NaN where W is not identified, or without moments."""
        return self.estimate.se

    @property
    def _inferred(self) -> Inference:
        if self.inference is None:
            raise InputError(NO_MOMENTS)
        return self.inference

    @property
    def moments(self) -> Moments:
        """The moments of the log; those of another log can be added."""
        if (moments := self._inferred.moments) is None:
            raise InputError(NOT_SAVED)
        return moments

    @property
    def lacks_moments(self) -> str:
        """Why the fit has no moments of the original rows; empty if it has them."""
        if self.inference is None:
            return NO_MOMENTS
        if self.differenced:
            return "a fit from differences has only their moments; fit all rows again, in levels"
        if self.absorbed is not None:
            return "a fit with absorbed effects has only moments without these; fit all rows again"
        if self.partialled is not None:
            return (
                "a fit with controls partialled out has only moments without these; fit all rows "
                "again"
            )
        return "" if self.inference.moments is not None else NOT_SAVED

    @property
    def has_moments(self) -> bool:
        """Whether the fit holds moments of the original rows."""
        return not self.lacks_moments

    @property
    def baseline(self) -> Estimate:
        """Confounded least squares."""
        return self._inferred.baseline

    @property
    def diagnostics(self) -> Diagnostics:
        """Strength of the instrument and specification tests."""
        return self._inferred.diagnostics

    @property
    def verdict(self) -> Verdict | None:
        """One word on the instruments, and why; None where nothing was diagnosed."""
        return None if self.inference is None else self.inference.diagnostics.verdict

    @property
    def scored(self) -> dict[str, Scored]:
        """Variances of residuals times instruments, from the second pass."""
        return self._inferred.scored

    @property
    def robust_intervals(self) -> RobustIntervals:
        """Intervals of the actions' effects that a weak instrument cannot spoil."""
        return self._inferred.robust

    @property
    def errors(self) -> Resolved:
        """The standard errors in use: what the requested kind became for this log."""
        return self._inferred.errors

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before believing the estimate."""
        trace, inference = self.estimate.trace, self.inference
        unfinished = (trace.advice,) if trace is not None and trace.advice else ()
        if inference is None:
            return self.notes + self.doubts + self.plan_doubts + unfinished
        clusters = (inference.errors.warning,) if inference.errors.warning else ()
        bias = "" if self.nickell is None else self.nickell.warning(self.estimate)
        lasting = (bias,) if bias else ()
        others = clusters + lasting + self.notes + self.doubts + self.plan_doubts + unfinished
        return inference.diagnostics.warnings + others

    @property
    def dropped(self) -> dict[str, int]:
        """Rows that were left out, by reason."""
        dropped = {
            "without next state": self.counts.without_next,
            "with missing values": self.counts.missing,
        }
        before = {
            "without a time": self.counts.untimed,
            "without earlier rows": self.counts.early,
            "without another episode of their group": self.counts.alone,
        }
        dropped |= {reason: count for reason, count in before.items() if count}
        if self.absorbed is not None:
            dropped["alone in a group"] = self.absorbed.singletons
        return dropped

    @cached_property
    def model(self) -> Dynamics:
        """The estimated dynamics, to plan with."""
        return self._dynamics(self.estimate, self.verdict)

    @cached_property
    def baseline_model(self) -> Dynamics:
        """The dynamics according to least squares."""
        return self._dynamics(self.baseline)

    def _dynamics(self, estimate: Estimate, verdict: Verdict | None = None) -> Dynamics:
        of_log = self.roles, self.counts, self.sample
        refusal = "" if self.partialled is None else self.partialled.refusal
        model = fitted_model(estimate, *of_log, verdict=verdict, refusal=refusal)
        if verdict is None:
            return model
        doubts = self.doubts + self.plan_doubts
        return replace(model, doubts=doubts, reward_doubts=self.reward_doubts)

    @property
    def uses_instruments(self) -> bool:
        """Whether W is estimated with the instruments, which least squares ignores."""
        return method_class(self.method).uses_instruments

    @property
    def has_baseline_model(self) -> bool:
        """Whether `baseline_model` describes the same units as the fit."""
        units = () if self.absorbed is None else self.absorbed.columns
        if self.partialled is not None and self.partialled.later == "held":
            units = (str(self.roles.episode),)
        effect_columns = {effects.column for effects in self.effects}
        return self.inference is not None and set(units) <= effect_columns

    @property
    def shard(self) -> Shard:
        """The moments with what is needed to add to them.

        The files that were read are hashed now; missing files are skipped.
        """
        if reason := self.lacks_moments:
            raise InputError(reason)
        moments = replace(self.moments, groups=(), paths=None)  # which are not saved
        parts = (moments, self.counts, self.roles, self.hashes, self.label)
        return Shard(*parts, kept_choice(self.method, self.settings, self.choice))

    @property
    def hashes(self) -> tuple[str, ...]:
        """The hashes of the files that were read; missing files are skipped."""
        present = [f for f in self.files if not isinstance(f, Path) or f.exists()]
        return tuple(content_hash(f) if isinstance(f, Path) else f for f in present)

    def wald(self, restriction: Any, target: Any = 0.0) -> Statistic:
        """Test hypotheses about W, all together.

        Parameters
        ----------
        restriction
            Words such as ``"next_x0: a0 = a1"`` (about every output without its name), a
            sequence of them, or an array (q, d_y d_phi) for restriction @ vec(W) = target,
            where vec(W) are the rows of W one after another.
        target
            Right-hand side (q,) of an array.
        """
        return wald(self.estimate, restriction, target)

    def combination(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a linear combination of W in words, and its standard error, by output."""
        return combination(self.estimate, text)

    def difference_in_sargan(self, *suspects: str) -> tuple[Statistic, ...]:
        """Test whether some instrument features are valid, given that the others are."""
        return difference(self.moments, suspects, self.scored.get("exact"))

    def summary(self, *, most_outputs: int | None = 6, warnings: bool = True) -> str:
        """Return three plain sentences, coefficients (with least squares) and diagnostics.

        `warnings` are left out where they were shown already.
        """
        return fit_summary(self, most_outputs, warnings=warnings)

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw the actions' effects with 95% intervals, and least squares; `path` saves it."""
        return plot_fit(self, path, force=force)

    @cached_property
    def brief(self) -> Brief:
        """Is the instrument good enough, what did confounding do, what to do next."""
        return fit_brief(self)

    def records(self) -> Records:
        """Return the coefficients, one row per output and feature, with those of least squares."""
        if self.inference is None:
            return coefficient_records(self.estimate)
        baseline = self.inference.baseline if self.uses_instruments else None
        return coefficient_records(self.estimate, self.inference.robust, baseline)

    def to_json(self) -> dict[str, Any]:
        """Describe the fit with JSON values (null for what is not identified or not known)."""
        e = self.estimate
        return {
            "outputs": list(e.design.outputs),
            "phi": list(e.design.phi_names),
            "psi": list(e.design.psi_names),
            "W": with_nulls(e.W),
            "K": with_nulls(e.K),
            "noise_cov": with_nulls(e.noise_cov),
            "n": e.n,
            "episodes": self.counts.episodes,
            "dropped": self.dropped,
            "log": self.label,
            "columns": self.roles.to_json(),
            "command": self.command or None,
            "method": self.method,
            "settings": self.settings,
            "choice": None if self.choice is None else self.choice.to_json(),
            "difference": self.differenced,
            "nickell": None if self.nickell is None else self._nickell_json(self.nickell),
            "absorb": None if self.absorbed is None else dataclasses.asdict(self.absorbed),
            "controls": None if self.partialled is None else dataclasses.asdict(self.partialled),
            "seconds": self.seconds,
            "warnings": list(self.warnings),
            "brief": self.brief.to_json(),
            "trace": None if e.trace is None else e.trace.to_json(),
            **(self.inference.to_json(e) if self.inference else nothing_inferred()),
        }

    def _nickell_json(self, nickell: Nickell) -> dict[str, Any]:
        bias = with_nulls(nickell.bias) if nickell.bias.size else None
        return {"bias": bias, "steps": nickell.steps, "corrected": nickell.corrected}

    def of_unit(self, **units: Any) -> Fit:
        """Return the fit for one value of absorbed columns: its effects are in the constant.

        Plan with its `model`, or pass it to `value`, for that unit; the original fit is for the
        average unit. If controls that never change were partialled out, episodes are such units.

        Parameters
        ----------
        units
            A value by absorbed column, such as ``id=7``.
        """
        effects_of = {effects.column: effects for effects in self.effects}
        constant = self.estimate.design.constant
        if (self.absorbed is None and not self.effects) or constant is None:
            raise InputError("the fit has no absorbed effects; fit with absorb (--absorb) first")
        W = self.W.copy()
        for column, value in units.items():
            if column not in effects_of:
                columns = ", ".join(effects_of) or "none"
                raise InputError(f"the fit has no effects of {column!r}; it has {columns}")
            W[:, constant] += effects_of[column][value]
        estimate = replace(self.estimate, W=W)
        left = tuple(effects for effects in self.effects if effects.column not in units)
        return replace(self, estimate=estimate, effects=left)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        moments: bool = True,
        episodes: bool = True,
        force: bool = False,
        replaces: str | None = None,
    ) -> Path:
        """Save the model, with its `to_json` and `sample`; one that diverged is refused.

        Without its `moments` it cannot be updated with new rows. Those of single episodes are
        saved if the fit holds them (`ivvi.fit(episodes=True)`, streams, sums by episode), so that
        values can be bootstrapped and updates are clustered; `episodes=False` leaves them out.
        `replaces` is the only version that may be replaced, if given.
        """
        trace = self.estimate.trace
        if trace is not None and trace.status == "diverged":
            raise InputError(f"{path} is not written: {trace.advice}")
        from ivvi.fitting.saved_fit import fit_parts

        keeps = moments and self.inference is not None and self.inference.moments is not None
        parts = fit_parts(self, moments=keeps, episodes=episodes)
        return self.model.save(
            path, facts=self.to_json(), beside=parts, force=force, replaces=replaces
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trust: Trust = ()) -> Fit:
        """Load what `save` saved, all but the log; `trust` as for `ivvi.load_fit`."""
        from ivvi.fitting.saved_fit import load_fit

        return load_fit(path, trust=trust)

    def __repr__(self) -> str:
        d_y, d_phi = self.W.shape
        return f"Fit({self.label}, {self.method}, n={self.estimate.n:,}, W {d_y} x {d_phi})"
