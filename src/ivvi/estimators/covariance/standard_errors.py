"""Which standard errors: what the user asks for, and what that means for a given log.

This module alone decides what rows are clustered by. Every verb makes its errors with
`StandardErrors.of`, asks `for_log` which columns to read, and then, once the rows are counted,
`resolve` (with the rows of a log) or `for_sums` (without them), and follows what it says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ivvi.errors import DataError, InputError, hint
from ivvi.estimators.covariance.step_dependence import (
    FEWEST_STEPS,
    StepDependence,
    step_dependence,
)
from ivvi.logs import Counts, Log, Roles, SharedPaths
from ivvi.logs.column_patterns import Columns
from ivvi.logs.instrument_groups import noted, set_by_absorbed
from ivvi.logs.schema import PATH
from ivvi.moments import Moments
from ivvi.words import STANDARD_ERRORS

BY_CLUSTER = ("auto", "clustered", "cr2", "wild")
"""Kinds of errors that can be given cluster columns."""
KERNELS = ("bartlett", "parzen")
FEW_EPISODES = 20
"""With at least this many episodes they are clusters, even if coefficients are more."""
FEW_ROWS = 10
"""With fewer rows for each coefficient, robust errors of `auto` are corrected for them."""
SMALL = "{:,} rows are few for {} coefficients: the errors are corrected for it (debiased)"
MOST_WAYS = 3
"""Most columns to cluster by at once."""
MOST_DRAWS = 10_000_000
"""Draws that a wild bootstrap may take."""
WITHOUT_PAIRS = (
    "without the rows, the overlap of the two clusterings counts twice: the errors tend to be "
    "too large rather than too small"
)


@dataclass(frozen=True, slots=True)
class StandardErrors:
    """Which rows may depend on each other, and how.

    Parameters
    ----------
    kind
        ``unadjusted``: independent rows of one variance. ``robust``: independent rows.
        ``clustered``: independent clusters, the episodes unless `cluster` names columns.
        ``cr2``: the same for one column with Bell and McCaffrey's correction of each cluster
        and their degrees of freedom. ``wild``: clustered, with tests and intervals by the
        wild restricted efficient bootstrap. ``hac``: dependence that fades along an episode.
        ``bekker``: independent rows of one variance and many instruments, for LIML and Fuller.
        ``auto``: clustered by episode for logs with more than one step per episode, by step too
        where episodes share the instrument of a step, and by groups of episodes in which an
        instrument takes the same path; robust for others; where the episodes are very few,
        HAC along them.
    cluster
        Up to three columns of the log; several are clustered each way (Cameron, Gelbach and
        Miller, 2011).
    debiased
        Correct for few rows and few clusters, n / (n - d_phi) or
        G (n - 1) / ((G - 1) (n - d_phi)), with Student's t for normal; G - 1 degrees of freedom
        for clusters. None, the default, corrects clustered errors, with degrees of freedom from
        the effective number of clusters, which uneven ones lower; and robust ones of ``auto``
        with fewer than ten rows a coefficient.
    bandwidth
        Largest lag of ``hac``; by default 4 (T / 100)^(2/9) for episodes of T steps. ``auto``
        takes more where the rows' influence on an effect lasts longer (Andrews, 1991).
    kernel
        Weights of the lags, ``bartlett`` or ``parzen``.
    joint
        Keep the covariance between outputs even where W is wide.
    draws, seed
        Draws of the wild bootstrap, and the seed of their signs.
    """

    kind: str = "auto"
    cluster: str | tuple[str, ...] = ()
    debiased: bool | None = None
    bandwidth: int | None = None
    kernel: str = "bartlett"
    joint: bool = False
    draws: int = 9999
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in STANDARD_ERRORS:
            known = hint(self.kind, STANDARD_ERRORS)
            raise InputError(f"unknown standard errors {self.kind!r}{known}")
        if self.kernel not in KERNELS:
            raise InputError(f"unknown kernel {self.kernel!r}; expected {' or '.join(KERNELS)}")
        if self.bandwidth is not None and self.bandwidth < 0:
            raise InputError(f"the bandwidth is {self.bandwidth}; it must not be negative")
        if self.bandwidth is not None and self.kind not in ("auto", "hac"):
            raise InputError(f"a bandwidth is given, but the standard errors are {self.kind}")
        if self.cluster and self.kind not in BY_CLUSTER:
            raise InputError(f"cluster columns are given, but the standard errors are {self.kind}")
        if self.cluster and not self.columns:
            raise InputError(f"the cluster columns are {self.cluster!r}, which names no column")
        most = self._most_ways
        if len(self.columns) > most:
            raise InputError(
                f"{len(self.columns)} cluster columns are given; expected at most {most} for "
                f"{self.kind} standard errors"
            )
        if len(set(self.columns)) < len(self.columns):
            raise InputError(f"the cluster column {self.columns[0]!r} is given twice")
        if not 99 <= self.draws <= MOST_DRAWS:
            raise InputError(
                f"the wild bootstrap has {self.draws:,} draws; expected 99 to {MOST_DRAWS:,}"
            )

    @property
    def _most_ways(self) -> int:
        return 1 if self.kind in ("cr2", "wild") else MOST_WAYS

    @classmethod
    def of(cls, se: StandardErrors | str, cluster: str | tuple[str, ...] = ()) -> StandardErrors:
        """Return the errors that a verb's arguments `se` and `cluster` ask for together."""
        if isinstance(se, str):
            return cls(se, cluster)
        if not cluster:
            return se
        if se.columns not in ((), cls(cluster=cluster).columns):
            raise InputError(
                "the clusters are given twice, in se and in cluster; expected one of them"
            )
        return replace(se, cluster=cluster)

    @property
    def columns(self) -> tuple[str, ...]:
        """The cluster columns asked for."""
        if isinstance(self.cluster, str):
            return tuple(part.strip() for part in self.cluster.split(",") if part.strip())
        return tuple(self.cluster)

    def for_log(self, log: Log, absorb: Columns = ()) -> tuple[StandardErrors, Log]:
        """Return the errors as they are asked of a log, and the log with their columns read.

        Where none are named, these are the columns whose names became instruments, if any; without
        episodes that of the columns to `absorb` whose values are most.
        """
        if absorb and not self.columns and self.kind in BY_CLUSTER:
            set_by = set_by_absorbed(log.table, log.roles, absorb)
            log = log.replaced(log.table, replace(log.roles, set_by=set_by))
        errors = self._usually_by(log.roles.usual_clusters)
        if not errors.columns:
            looks = self.kind in BY_CLUSTER and log.roles.episode is not None
            return errors, log.clustered((log.roles.dates,)) if looks and log.roles.dates else log
        clustered = log.clustered(errors.columns)
        if patterns := set(errors.columns) - {*clustered.roles.cluster, log.roles.episode}:
            raise InputError(
                f"{min(patterns)!r} is a pattern; expected the names of up to three cluster columns"
            )
        return errors, clustered

    def _usually_by(self, columns: tuple[str, ...]) -> StandardErrors:
        """Return the same clustered by `columns` where none are asked for."""
        if self.columns or not columns or self.kind not in BY_CLUSTER:
            return self
        return replace(self, cluster=columns[: self._most_ways])

    def summed_by(self, log: Log) -> tuple[str, ...]:
        """Columns by whose values a first pass adds up the rows, to decide and to weigh."""
        if self.kind not in BY_CLUSTER:
            return ()
        episode, step = log.roles.episode, log.roles.moment
        named = self.columns or ((episode,) if episode else ())
        look = not self.columns and episode is not None
        path = (PATH,) if look and self.kind == "auto" else ()
        return tuple(dict.fromkeys((*named, *((step,) if look and step else ()), *path)))

    def kept_by(self, log: Log) -> str | None:
        """Return the one column whose groups' moments make a second pass needless, if any."""
        columns = self.columns or ((log.roles.episode,) if log.roles.episode else ())
        return columns[0] if self.kind in BY_CLUSTER and len(columns) == 1 else None

    def second_way(self, log: Log) -> str | None:
        """Return the column whose groups' moments are also kept, for sums that are added to.

        That which was named beside the episode, or the one that tells when a row was, by which
        episodes may turn out to depend on each other.
        """
        episode = log.roles.episode
        if episode in self.columns:
            return next((column for column in self.columns if column != episode), None)
        looks = self.kind == "auto" and not self.columns and episode is not None
        return log.roles.moment if looks else None

    def for_sums(
        self,
        by: str | None,
        counts: Counts,
        d_phi: int,
        roles: Roles | None = None,
        alike: StepDependence | None = None,
        others: tuple[str, ...] = (),
    ) -> Resolved:
        """Return the errors to use where there are sums but no rows.

        Clustered by the column whose sums are held one by one, `by`, and by a second one of
        which they are, `others`; else unadjusted. Steps at which episodes are `alike`, and names
        that became instruments, are warned of where they are not held.
        """
        usual = self if roles is None else self._usually_by(roles.usual_clusters)
        if usual is not self and set(usual.columns) <= {by, *others}:
            return usual.for_sums(by, counts, d_phi, roles, alike, others)
        step = None if roles is None else roles.moment
        resolved = self._for_sums(by, counts, d_phi, others)
        if alike is not None and not self.columns and resolved.clusters:
            resolved = resolved.with_shared_steps(step, alike, rows=step in others)
        if len(resolved.clusters) >= 2:
            note = "; ".join(part for part in (resolved.note, WITHOUT_PAIRS) if part)
            resolved = replace(resolved, note=note)
        if usual is self:
            return resolved
        by = " and ".join(usual.columns)
        remedy = f"fit the rows themselves, or keep sums by {by} (episodes=True, --by-episode)"
        return resolved.without_usual(usual.columns, f"these sums are not kept by {by}", remedy)

    def _for_sums(
        self, by: str | None, counts: Counts, d_phi: int, others: tuple[str, ...]
    ) -> Resolved:
        clustered = self.kind in BY_CLUSTER[1:] or bool(self.columns)
        enough = clustered or (self.kind == "auto" and counts.episodes > min(d_phi, FEW_EPISODES))
        if by is not None and enough and self.columns in ((), (by,)):
            return Resolved(self, "clustered", (by,))
        if len(self.columns) == 2 and set(self.columns) <= {by, *others}:
            return Resolved(self, "clustered", self.columns)
        if clustered or self.kind not in ("auto", "unadjusted", "bekker"):
            kind, lacking = (
                (self.kind, "") if not clustered else ("clustered", ", not kept by cluster")
            )
            raise InputError(
                f"{kind} standard errors need the rows of a log; these are its sums{lacking}"
            )
        note = "without the rows, the standard errors are unadjusted"
        return Resolved(self, "unadjusted", note=note if self.kind == "auto" else "")

    def as_kept(self, *kept: str | None) -> StandardErrors:
        """Return what can be asked again of sums that are kept by these columns, without rows."""
        kind = "unadjusted" if self.kind in ("unadjusted", "bekker") else "auto"
        columns = self.columns if set(self.columns) <= set(kept) else ()
        return StandardErrors(kind, columns, debiased=self.debiased)

    def for_rows(self, log: Log, moments: Moments) -> Resolved:
        """Return the errors to use for the rows of moments whose episodes were not counted."""
        errors, log = self.for_log(log)
        walk = log.batches()
        for _ in walk:
            pass
        counts = Counts(transitions=moments.n, episodes=walk.counts.episodes)
        alike = step_dependence(moments, log.roles.moment, log)
        return errors.resolve(log, counts, len(moments.design.phi_names), alike)

    def resolve(
        self,
        log: Log,
        counts: Counts,
        d_phi: int,
        alike: StepDependence | None = None,
        paths: SharedPaths | None = None,
    ) -> Resolved:
        """Return the errors to use for a log, once its rows have been counted.

        `alike` is how much episodes share at a step, and `paths` which of them share the path of
        an instrument, where a pass has seen it.
        """
        n, episodes = counts.transitions, counts.episodes
        kind, note = "unadjusted" if self.kind == "bekker" else self.kind, ""
        if kind == "auto":
            kind = "clustered" if self.columns or n > episodes else "robust"
            if kind == "clustered" and not self.columns and episodes <= min(d_phi, FEW_EPISODES):
                kind = "hac" if log.ordered and not log.roles.frequency else "robust"
                several = "1 episode is" if episodes == 1 else f"{episodes} episodes are"
                note = (
                    f"{several} too few to cluster {d_phi} coefficients by: the "
                    f"standard errors are {kind.replace('hac', 'HAC along the episodes')}, and too "
                    "small if an instrument is drawn once per episode"
                )
        if kind == "hac" and not (log.roles.episode and log.ordered):
            raise DataError(
                "HAC standard errors need the rows of an episode in order: an episode and a step "
                "column, and rows sorted by them (or next states that are derived)"
            )
        if kind == "hac" and log.roles.frequency:
            raise InputError(
                "HAC standard errors do not work with frequency weights, since a row stands for "
                "several: use clustered ones, or weights of the kind probability"
            )
        clusters: tuple[str, ...] = ()
        if kind in BY_CLUSTER:
            kind, clusters = "clustered", self._clusters(log)
            if clusters == log.roles.set_by:
                note = noted(log.roles, getattr(log.table, "names", ()))
        bandwidth = self.bandwidth
        if bandwidth is None:
            bandwidth = int(4 * (max(n / max(episodes, 1), 1) / 100) ** (2 / 9))
        elif bandwidth >= max(n, 1):
            raise InputError(f"the bandwidth is {bandwidth}; the log has {n} transitions")
        few = kind == "robust" and self.kind == "auto" and n < FEW_ROWS * d_phi
        note = note or (few * SMALL.format(n, d_phi))
        resolved = Resolved(self, kind, clusters, bandwidth, note, few_rows=few)
        if self.columns or n <= episodes:
            return resolved
        return resolved.with_shared(log, alike, paths)

    def _clusters(self, log: Log) -> tuple[str, ...]:
        if not self.columns and log.roles.episode is None:
            raise DataError("the log has no episode column to cluster by; name a cluster column")
        return self.columns or (str(log.roles.episode),)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Standard errors for one log: the choice, its clusters, and a note on how it was made.

    `warning` is what to know before believing them. What episodes share at a step weighs
    `inflation` times as much as if steps were independent. `few_rows` are few for the coefficients.
    `freedom` are the degrees of freedom of HAC errors, where the data chose their bandwidth.
    """

    requested: StandardErrors
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
        """Whether ways of clustering that nobody named count only where they add (`Scored`)."""
        return not self.requested.columns

    def counting_effects(self) -> Resolved:
        """Return the same corrected for degrees of freedom, unless that was refused.

        Absorbed effects are many coefficients: without the correction variances are too small.
        """
        if self.requested.debiased is not None or self.kind == "clustered":
            return self
        return replace(self, requested=replace(self.requested, debiased=True))

    def with_shared(
        self, log: Log, alike: StepDependence | None, paths: SharedPaths | None
    ) -> Resolved:
        """Return the same clustered by what a pass has seen episodes to share."""
        resolved = self if alike is None else self.with_shared_steps(log.roles.moment, alike)
        if paths is None or (alike is not None and alike.is_the_same(paths.instruments)):
            return resolved
        return resolved.with_shared_paths(str(log.roles.episode), paths)

    def with_shared_steps(
        self, step: str | None, alike: StepDependence, *, rows: bool = True
    ) -> Resolved:
        """Return the same clustered by step too, where episodes share what a step brings."""
        if step is None or not alike.matters:
            return self
        few = alike.steps < FEWEST_STEPS
        if few or not rows or self.kind != "clustered" or self.requested.kind != "auto":
            by = self.clusters[0] if self.clusters else "episode"
            remedy = "" if few else f": cluster by {by},{step}"
            warning = (
                f"{alike.words(step)}, so {alike.steps:,} steps are its draws; the standard errors "
                f"treat episodes as independent and are too small{remedy}"
            )
            return replace(self, warning=warning)
        by_step, note = (*self.clusters, step), alike.note(step)
        return replace(self, clusters=by_step, note=note, inflation=alike.inflation)

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

    def without_usual(self, columns: tuple[str, ...], why: str, remedy: str) -> Resolved:
        """Warn that rows are not clustered by the columns whose names became instruments."""
        if self.requested.kind not in BY_CLUSTER:
            return self
        what = f"clustered by {' and '.join(self.clusters)}" if self.clusters else self.kind
        return replace(
            self,
            warning=f"rows with the same {' and '.join(columns)} share an instrument, and {why}: "
            f"the standard errors are {what} and may be too small; {remedy}",
        )

    def noting(self, text: str) -> Resolved:
        """Return the same with one more thing to know, if there is one."""
        return replace(self, note="; ".join(part for part in (self.note, text) if part))

    def prepared(self, log: Log) -> Log:
        """Return the log with the columns read that rows are clustered by."""
        others = tuple(name for name in self.clusters if name != log.roles.episode)
        return log if others == log.roles.cluster else log.clustered(self.clusters)
