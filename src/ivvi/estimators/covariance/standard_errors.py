"""Which standard errors: what the user asks for, and what that means for a given log.

This module alone decides what rows are clustered by. Every verb makes its errors with
`StandardErrors.of`, asks `for_log` which columns to read and `summed_by` and `kept` which sums to
make, and then, once the rows are counted, `resolve` (with the rows of a log), `for_sums` (without
them) or `for_fit`, and follows the answer (`standard_errors_for_log.Resolved`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ivvi.errors import DataError, InputError, hint
from ivvi.estimators.covariance import standard_errors_for_log as settled  # knows this module too
from ivvi.estimators.covariance.step_dependence import StepDependence, step_dependence
from ivvi.logs import Counts, Log, Roles, SharedPaths
from ivvi.logs.columns.patterns import Columns
from ivvi.logs.instruments.assignment_level import noted, outer_groups, set_by_absorbed
from ivvi.logs.schema import PATH
from ivvi.moments import Moments
from ivvi.option_values import STANDARD_ERRORS

BY_CLUSTER = ("auto", "clustered", "cr2", "wild")
"""Kinds of errors that can be given cluster columns."""
KERNELS = ("bartlett", "parzen")
FEW_EPISODES = 20
"""With at least this many episodes they are clusters, even if coefficients are more."""
FEW_ROWS = 10
"""With fewer rows for each coefficient, robust errors of `auto` are corrected for them."""
SMALL = "{:,} rows are few for {} coefficients: errors are corrected for small samples (debiased)"
MOST_WAYS = 3
"""Most columns to cluster by at once."""
MOST_DRAWS = 10_000_000
"""Draws that a wild bootstrap may take."""


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
        G (n - 1) / ((G - 1) (n - d_phi)), and use Student's t instead of the normal, with G - 1
        degrees of freedom for clusters. None, the default, corrects clustered errors, and robust
        errors of ``auto`` with fewer than ten rows per coefficient. For clusters, its degrees of
        freedom follow the effective number, which is smaller if clusters are uneven.
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
    def needs_cluster_moments(self) -> bool:
        """Whether they are made from the moments of each cluster, which have one column."""
        return self.kind in ("cr2", "wild")

    @property
    def for_set(self) -> StandardErrors:
        """The errors of a confidence set that assume the same: sets have no CR2, wild or Bekker."""
        same = {"cr2": "clustered", "wild": "clustered", "bekker": "unadjusted"}
        return replace(self, kind=same.get(self.kind, self.kind))

    @property
    def _most_ways(self) -> int:
        return 1 if self.needs_cluster_moments else MOST_WAYS

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

    def for_log(
        self, log: Log, absorb: Columns = (), *, independent: bool = False
    ) -> tuple[StandardErrors, Log]:
        """Return the errors requested for a log, and the log with their columns read.

        Where none are named, these are the columns whose names became instruments, if any, or the
        columns to `absorb` that hold their groups (`outer_groups`); without episodes that of the
        columns to `absorb` that is no time and whose values are most (`set_by_absorbed`). A method
        that takes rows for `independent` does not ask what set the instruments, unless clusters
        are asked for.
        """
        if independent and self.kind == "auto":
            log = log.replaced(log.table, replace(log.roles, set_by=()))
        elif absorb and not self.columns and self.kind in BY_CLUSTER:
            set_by = set_by_absorbed(log.table, log.roles, absorb)
            log = log.replaced(log.table, replace(log.roles, set_by=set_by))
        errors = self._usually(log.roles)
        if absorb and log.roles.groups and errors is not self:
            outer = outer_groups(log.table, errors.columns, absorb)
            errors = replace(errors, cluster=tuple(dict.fromkeys(outer)))
        if not errors.columns:
            looks = self.kind in BY_CLUSTER and log.roles.episode is not None
            return errors, log.clustered((log.roles.dates,)) if looks and log.roles.dates else log
        clustered = log.clustered(errors.columns)
        if patterns := set(errors.columns) - {*clustered.roles.cluster, log.roles.episode}:
            raise InputError(
                f"{min(patterns)!r} is a pattern; expected the names of up to three cluster columns"
            )
        return errors, clustered

    def usual(self, roles: Roles) -> tuple[str, ...]:
        """Columns to cluster by where none are asked for: those that made or set instruments."""
        if self.columns or self.kind not in BY_CLUSTER:
            return ()
        return roles.usual_clusters[: self._most_ways]

    def _usually(self, roles: Roles) -> StandardErrors:
        """Return the same, clustered by the usual columns if there are any."""
        usual = self.usual(roles)
        return replace(self, cluster=usual) if usual else self

    def summed_by(self, log: Log) -> tuple[str, ...]:
        """Columns by whose values a first pass adds up the rows, to decide and to weigh."""
        if self.kind not in BY_CLUSTER:
            return ()
        episode, step = log.roles.episode, log.roles.moment
        named = self.columns or ((episode,) if episode else ())
        look = not self.columns and episode is not None
        path = (PATH,) if look and self.kind == "auto" else ()
        return tuple(dict.fromkeys((*named, *((step,) if look and step else ()), *path)))

    def kept(self, log: Log, *, asked: bool = True, ways: int = 2) -> dict[str, Any]:
        """Return which groups' moments a first pass keeps, as arguments of `compute_moments`.

        Where they are `asked` for, those by which errors can be clustered without the rows, by up
        to two `ways`: the columns asked for; else the episodes, and the column that tells when a
        row was, by which they may turn out to depend on each other. Else those of one column, which
        spare a second pass, while they are cheap.
        """
        episode, columns = log.roles.episode, self.columns
        if not asked:
            one = columns or ((episode,) if episode else ())
            if self.kind not in BY_CLUSTER or len(one) != 1:
                return {"episodes": False}
            return {"episodes": None, "by": None if one[0] == episode else one[0]}
        if len(columns) == 1 or (len(columns) == ways and episode not in columns):
            by, *rest = columns
            return {"episodes": True, "by": None if by == episode else by, **_also(rest)}
        rest = [name for name in columns if name != episode] if episode in columns else []
        if self.kind == "auto" and not columns and episode is not None and log.roles.moment:
            rest = [log.roles.moment]
        return {"episodes": True, **_also(rest if ways > 1 else [])}

    def for_sums(
        self,
        moments: Moments,
        counts: Counts,
        d_phi: int,
        roles: Roles | None = None,
        dependence: StepDependence | None = None,
    ) -> settled.Resolved:
        """Return the errors to use where there are sums but no rows.

        Clustered by the column whose sums are held one by one, and by a second one of which they
        are; else unadjusted. There is a warning if sums by step are missing though episodes share
        something at a step (`dependence`), or sums by names that became instruments.
        """
        by, *others = summed = _held(
            moments, "episode" if roles is None else roles.episode or "row"
        )
        usual = self if roles is None else self._usually(roles)
        if usual is not self and set(usual.columns) <= set(summed):
            return usual.for_sums(moments, counts, d_phi, roles, dependence)
        step = None if roles is None else roles.moment
        resolved = self._for_sums(by, counts, d_phi, others)
        if dependence is not None and not self.columns and resolved.clusters:
            resolved = resolved.with_shared_steps(step, dependence, rows=step in others)
        if len(resolved.clusters) >= 2:
            resolved = resolved.without_pairs()
        if roles is None or usual is self:
            return resolved
        named = " and ".join(usual.columns)
        remedy = f"fit the rows themselves, or keep sums by {named} (episodes=True, --by-episode)"
        return resolved.without_usual(roles, f"these sums are not kept by {named}", remedy)

    def _for_sums(
        self, by: str | None, counts: Counts, d_phi: int, others: Sequence[str | None]
    ) -> settled.Resolved:
        clustered = self.kind in BY_CLUSTER[1:] or bool(self.columns)
        enough = clustered or (self.kind == "auto" and counts.episodes > min(d_phi, FEW_EPISODES))
        if by is not None and enough and self.columns in ((), (by,)):
            return settled.Resolved(self, "clustered", (by,))
        if len(self.columns) == 2 and set(self.columns) <= {by, *others}:
            return settled.Resolved(self, "clustered", self.columns)
        if clustered or self.kind not in ("auto", "unadjusted", "bekker"):
            kind, lacking = (
                (self.kind, "") if not clustered else ("clustered", ", not kept by cluster")
            )
            raise InputError(
                f"{kind} standard errors need the rows of a log; these are its sums{lacking}"
            )
        note = settled.UNADJUSTED if self.kind == "auto" else ""
        return settled.Resolved(self, "unadjusted", note=note)

    def for_fit(
        self,
        own: settled.Resolved,
        moments: Moments,
        counts: Counts,
        roles: Roles,
        log: Log | None,
    ) -> settled.Resolved:
        """Return the errors for the moments of a fit: its `own`, unless others are asked for.

        Those of a fit whose rows are not at hand are what its sums allow.
        """
        if self.kind == "auto" and not self.columns:
            follows = own.kind in ("clustered", "hac") or moments.episodes is None
            if log is None and (follows or own.kind == "robust"):
                return own.without_rows(roles.episode)
            if follows:
                return own
        if log is None:
            return self.for_moments(moments)
        dependence = step_dependence(moments, roles.moment, log)
        errors, log = self.for_log(log)
        return errors.resolve(log, counts, len(moments.design.phi_names), dependence)

    def as_kept(self, moments: Moments, episode: str | None) -> StandardErrors:
        """Return the errors that can be computed again from the sums of moments, without rows."""
        kind = "unadjusted" if self.kind in ("unadjusted", "bekker") else "auto"
        summed = _held(moments, episode) if moments.episodes is not None else ()
        columns = self.columns if set(self.columns) <= set(summed) else ()
        return StandardErrors(kind, columns, debiased=self.debiased)

    def check_kept(self, moments: Moments, episode: str | None, place: str) -> None:
        """Refuse cluster columns of which the moments of a model, at a `place`, hold no sums."""
        columns = self.columns
        if columns and columns != _held(moments, episode)[:1]:
            raise InputError(
                f"{place} keeps no moments by {' and '.join(columns)}, and clustering needs these "
                "or the old rows; fit it with those clusters and keep their moments (cluster=, "
                f"episodes=True; --cluster {columns[0]} --keep-episodes)"
            )

    def are_those_of(self, clusters: Sequence[str], *, rows: bool) -> bool:
        """Whether errors by `clusters` are already as asked; refuse others without the rows."""
        same = set(clusters) == set(self.columns)
        if not same and not rows:
            raise InputError(
                f"errors clustered by {' and '.join(self.columns)} need the rows: pass the log "
                "(log=, --log), or fit with those clusters"
            )
        return same

    def check_differences(self, episode: str | None) -> None:
        """Refuse clusters of differences, of two rows each, by other columns than the episode."""
        if set(self.columns) - {episode}:
            raise InputError("differences are clustered by the episode alone")

    def for_moments(self, moments: Moments, log: Log | None = None) -> settled.Resolved:
        """Return the errors to use for moments whose episodes were not counted."""
        d_phi = len(moments.design.phi_names)
        if log is None:
            episodes = 0 if moments.episodes is None else len(moments.episodes)
            return self.for_sums(moments, Counts(transitions=moments.n, episodes=episodes), d_phi)
        errors, log = self.for_log(log)
        walk = log.batches()
        for _ in walk:
            pass
        counts = Counts(transitions=moments.n, episodes=walk.counts.episodes)
        dependence = step_dependence(moments, log.roles.moment, log)
        return errors.resolve(log, counts, d_phi, dependence)

    def resolve(
        self,
        log: Log,
        counts: Counts,
        d_phi: int,
        dependence: StepDependence | None = None,
        paths: SharedPaths | None = None,
    ) -> settled.Resolved:
        """Return the errors to use for a log, once its rows have been counted.

        `dependence` is how much episodes share at a step, and `paths` which of them share the
        path of an instrument, where a pass has seen it.
        """
        n, episodes = counts.transitions, counts.episodes
        kind, note = "unadjusted" if self.kind == "bekker" else self.kind, ""
        if kind == "auto":
            kind = "clustered" if self.columns or n > episodes else "robust"
            if kind == "clustered" and not self.columns and episodes <= min(d_phi, FEW_EPISODES):
                kind = "hac" if log.ordered and not log.roles.frequency else "robust"
                several = "1 episode is" if episodes == 1 else f"{episodes} episodes are"
                note = (
                    f"{several} too few to cluster by, with {d_phi} coefficients: the "
                    f"standard errors are {kind.replace('hac', 'HAC along the episodes')}, and are "
                    "too small if an instrument is drawn once per episode"
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
                note = noted(log.roles, getattr(log.table, "group_counts", None))
        bandwidth = self.bandwidth
        if bandwidth is None:
            bandwidth = int(4 * (max(n / max(episodes, 1), 1) / 100) ** (2 / 9))
        elif bandwidth >= max(n, 1):
            raise InputError(f"the bandwidth is {bandwidth}; the log has {n} transitions")
        few = kind == "robust" and self.kind == "auto" and n < FEW_ROWS * d_phi
        note = note or (few * SMALL.format(n, d_phi))
        resolved = settled.Resolved(self, kind, clusters, bandwidth, note, few_rows=few)
        if self.columns or n <= episodes:
            return resolved
        return resolved.with_shared(log, dependence, paths)

    def _clusters(self, log: Log) -> tuple[str, ...]:
        if not self.columns and log.roles.episode is None:
            raise DataError("the log has no episode column to cluster by; name a cluster column")
        return self.columns or (str(log.roles.episode),)


def kept_like(moments: Moments, log: Log) -> tuple[Log, dict[str, Any]]:
    """Return a log, and the arguments of `compute_moments`, for sums by what `moments` hold."""
    by = None if moments.episodes is None else moments.episodes.by or None
    also = next((block.by for block in moments.others), None)
    named = [name for name in (by, also) if name and name != log.roles.step]
    log = log.clustered(named) if named else log
    return log, {"episodes": moments.episodes is not None, "by": by, "also": also}


def _held(moments: Moments, episode: str | None) -> tuple[str | None, ...]:
    """Return the columns by whose groups moments are kept; the first is None without any."""
    blocks = moments.episodes
    by = None if blocks is None else blocks.by or episode
    return (by, *(block.by for block in moments.others))


def _also(columns: Sequence[str]) -> dict[str, str]:
    """Return the second column of which moments are kept, as an argument."""
    return {"also": columns[0]} if columns else {}
