"""Standard errors for one log, as `StandardErrors` has decided them: `Resolved`.

Verbs use these errors. The class also says which errors remain possible if a verb has no rows, or
if it compares groups with each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ivvi.errors import DataError, InputError
from ivvi.estimators.covariance import standard_errors  # which knows this module too
from ivvi.estimators.covariance.step_dependence import FEWEST_STEPS, StepDependence
from ivvi.logs import Log, Roles, SharedPaths
from ivvi.moments import GroupSums, Moments

FEWEST_WILD = 5
"""Clusters that a wild bootstrap needs."""

UNADJUSTED = "without the rows, the standard errors are unadjusted"
WITHOUT_PAIRS = (
    "without the rows, the overlap of the two clusterings is counted twice, which makes errors "
    "larger; instruments shared by groups of episodes are not detected, which may make errors too "
    "small"
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Standard errors for one log: the choice, its clusters, and a note on how it was made.

    `warning` is what to know before believing them. What episodes share at a step weighs
    `inflation` times as much as if steps were independent. `few_rows` are few for the coefficients.
    `freedom` are the degrees of freedom of HAC errors, where the data chose their bandwidth.
    """

    requested: standard_errors.StandardErrors
    kind: str
    clusters: tuple[str, ...] = ()
    bandwidth: int = 0
    note: str = ""
    warning: str = ""
    inflation: float = 1.0
    few_rows: bool = False
    freedom: float | None = None

    @property
    def debiased(self) -> bool:
        """Whether variances are corrected for few rows or clusters."""
        debiased = self.requested.debiased
        return self.kind == "clustered" or self.few_rows if debiased is None else debiased

    @property
    def guarded(self) -> bool:
        """Whether clusters that nobody named count only if they add variance (`Scored`)."""
        return not self.requested.columns

    def counting_effects(self) -> Resolved:
        """Return the same corrected for degrees of freedom, unless the user turned that off.

        Absorbed effects are many coefficients: without the correction variances are too small.
        """
        if self.requested.debiased is not None or self.kind == "clustered":
            return self
        return replace(self, requested=replace(self.requested, debiased=True))

    def with_shared(
        self, log: Log, dependence: StepDependence | None, paths: SharedPaths | None
    ) -> Resolved:
        """Return the same clustered by what episodes share, as a pass over the rows has shown."""
        resolved = self
        if dependence is not None:
            resolved = self.with_shared_steps(log.roles.moment, dependence)
        if paths is None or (dependence is not None and dependence.is_the_same(paths.instruments)):
            return resolved
        return resolved.with_shared_paths(str(log.roles.episode), paths)

    def with_shared_steps(
        self, step: str | None, dependence: StepDependence, *, rows: bool = True
    ) -> Resolved:
        """Return the same clustered by step too, if episodes share shocks of a step."""
        if step is None or not dependence.matters:
            return self
        few = dependence.steps < FEWEST_STEPS
        if few or not rows or self.kind != "clustered" or self.requested.kind != "auto":
            by = self.clusters[0] if self.clusters else "episode"
            remedy = "" if few else f": cluster by {by},{step}"
            warning = (
                f"{dependence.words(step)}, so only {dependence.steps:,} steps are independent; "
                f"the standard errors treat episodes as independent and are too small{remedy}"
            )
            return replace(self, warning=warning)
        by_step, note = (*self.clusters, step), dependence.note(step)
        return replace(self, clusters=by_step, note=note, inflation=dependence.inflation)

    def with_shared_paths(self, episode: str, paths: SharedPaths) -> Resolved:
        """Return the same clustered by the groups of episodes that share an instrument's path.

        Beside the episodes, so that groups count where they add to the variance; where rows are
        clustered by step too, in place of the episodes. Of groups that are too few it is noted.
        """
        automatic = self.kind == "clustered" and self.requested.kind == "auto"
        if not automatic or episode not in self.clusters:
            return self
        if (groups := paths.groups) is not None:
            rest = self.clusters[1:]
            clusters = (groups.name, *rest) if rest else (episode, groups.name)
            return replace(self.noting(paths.note(episode)), clusters=clusters)
        return self if len(self.clusters) > 1 else self.noting(paths.note(episode))

    def without_usual(self, roles: Roles, why: str, remedy: str) -> Resolved:
        """Warn that rows are not clustered by the columns that set, or became, instruments."""
        usual = self.requested.usual(roles)
        if not usual:
            return self
        kind = f"clustered by {' and '.join(self.clusters)}" if self.clusters else self.kind
        return replace(
            self,
            warning=f"rows with the same {' and '.join(usual)} share an instrument, and {why}: "
            f"the standard errors are {kind} and may be too small; {remedy}",
        )

    def without_rows(self, episode: str | None) -> Resolved:
        """Return the same for sums alone: by episode in place of HAC, unadjusted for robust."""
        if self.kind == "hac" and episode is not None:
            note = f"HAC errors need the rows; errors are clustered by {episode} instead"
            return replace(self, kind="clustered", clusters=(episode,), note=note)
        if self.kind == "robust":
            return replace(self, kind="unadjusted").noting(UNADJUSTED)
        return self.without_pairs() if len(self.clusters) > 1 else self

    def without_pairs(self) -> Resolved:
        """Add a note on what errors clustered by two columns leave out without the rows."""
        return self if WITHOUT_PAIRS in self.note else self.noting(WITHOUT_PAIRS)

    def after(self, before: tuple[str, ...], roles: Roles) -> Resolved:
        """Return the same, warning if rows were clustered by columns of which no sums are kept."""
        known = self.warning and set(before) <= set(roles.usual_clusters)  # it says so already
        if not before or before == self.clusters or known:
            return self
        become = f"clustered by {' and '.join(self.clusters)}" if self.clusters else "unadjusted"
        return replace(
            self,
            warning=f"the model's standard errors were clustered by {' and '.join(before)}, but it "
            f"keeps no moments by cluster: they are now {become}, and may be too small; fit all "
            "rows again, or keep clusters (episodes=True, --keep-episodes)",
        )

    def compared_by(
        self, moments: Moments, episode: str | None, fewest: int, *, asked: bool
    ) -> GroupSums | None:
        """Return the sums by the column whose groups are independent; None for the episodes.

        Of two columns, the one with fewer groups: the instrument has no more draws than that.
        If the user has not `asked` for the groups, and they are fewer than `fewest` or too many to
        compare, the episodes are used.
        """
        others = [name for name in self.clusters if name != episode]
        if not others:
            return None
        if self.guarded:  # episodes share what a step brings, or an instrument's path
            shared = [moments.group_sums(name) for name in others]
            enough = [groups for groups in shared if groups is not None and len(groups) >= fewest]
            return enough[-1] if enough else shared[-1]
        by_name = (moments.group_sums(name) for name in self.clusters)
        sums = [groups for groups in by_name if groups is not None]
        all_held = len(sums) == len(self.clusters)
        if not asked and (not all_held or any(len(groups) < fewest for groups in sums)):
            return None
        if not all_held:
            raise InputError(f"the groups by {' and '.join(self.clusters)} are too many to compare")
        for groups in sums:
            self.check_count(groups.by, len(groups))
        by = min(sums, key=len)
        return None if by.by == episode else by

    def check_count(self, column: str, clusters: int) -> None:
        """Refuse a number of clusters from which no covariance follows."""
        if clusters == 1:
            raise DataError(
                f"the cluster column {column!r} has one value in all rows; expected at least 2"
            )
        if self.requested.kind == "wild" and clusters < FEWEST_WILD:
            raise DataError(
                f"{clusters} clusters by {column!r} are too few for the wild bootstrap; expected "
                f"at least {FEWEST_WILD}"
            )

    def noting(self, text: str) -> Resolved:
        """Return the same with one more note, if it is not empty."""
        return replace(self, note="; ".join(part for part in (self.note, text) if part))

    def prepared(self, log: Log) -> Log:
        """Return the log with the columns read that rows are clustered by."""
        others = tuple(name for name in self.clusters if name != log.roles.episode)
        return log if others == log.roles.cluster else log.clustered(self.clusters)
