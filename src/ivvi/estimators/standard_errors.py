"""Which standard errors: what the user asks for, and what it comes to for a log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ivvi.errors import DataError, InputError
from ivvi.logs import Counts, Log

KINDS = ("auto", "unadjusted", "robust", "clustered", "hac")
KERNELS = ("bartlett", "parzen")
FEW_CLUSTERS = 30
"""Below this number of clusters the user is told that clustered errors tend to be too small."""


@dataclass(frozen=True, slots=True)
class StandardErrors:
    """Which rows may depend on each other, and how.

    Parameters
    ----------
    kind
        ``unadjusted``: independent rows of one variance. ``robust``: independent rows.
        ``clustered``: independent clusters, the episodes unless `cluster` names columns.
        ``hac``: dependence that fades along an episode. ``auto``: clustered by episode for
        logs with more than one step an episode, robust for others; where the episodes are
        too few, HAC along them.
    cluster
        One or two columns of the log; two are clustered both ways.
    debiased
        Correct for few rows and few clusters, n / (n - d_phi) or
        G (n - 1) / ((G - 1) (n - d_phi)).
    bandwidth
        Largest lag of ``hac``; by default 4 (T / 100)^(2/9) for episodes of T steps.
    kernel
        Weights of the lags, ``bartlett`` or ``parzen``.
    joint
        Keep the covariance between outputs even where W is wide.
    """

    kind: str = "auto"
    cluster: str | tuple[str, ...] = ()
    debiased: bool = False
    bandwidth: int | None = None
    kernel: str = "bartlett"
    joint: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"unknown standard errors {self.kind!r}; {', '.join(KINDS)} are known")
        if self.kernel not in KERNELS:
            raise InputError(f"unknown kernel {self.kernel!r}; {' or '.join(KERNELS)} is wanted")
        if self.bandwidth is not None and self.bandwidth < 0:
            raise InputError(f"the bandwidth is {self.bandwidth}; it must not be negative")
        if self.bandwidth is not None and self.kind not in ("auto", "hac"):
            raise InputError(f"a bandwidth is given, but the standard errors are {self.kind}")
        if self.cluster and self.kind not in ("auto", "clustered"):
            raise InputError(f"cluster columns are given, but the standard errors are {self.kind}")
        if len(self.columns) > 2:
            raise InputError(f"{len(self.columns)} cluster columns are given; at most 2 are wanted")

    @property
    def columns(self) -> tuple[str, ...]:
        """The cluster columns asked for."""
        if isinstance(self.cluster, str):
            return tuple(part.strip() for part in self.cluster.split(",") if part.strip())
        return self.cluster

    def may_cluster_by_episode(self, log: Log) -> bool:
        """Whether the episode, and nothing else, may turn out to be what rows cluster by."""
        episode = log.roles.episode
        alone = self.columns in ((), (episode,))
        return self.kind in ("auto", "clustered") and episode is not None and alone

    def for_sums(self, episode: str | None, counts: Counts, d_phi: int) -> Resolved:
        """Say what this comes to where there are sums and no rows.

        Clustered by `episode`, the column whose sums are held one by one; else unadjusted.
        """
        clustered = self.kind == "clustered" or bool(self.columns)
        enough = clustered or (self.kind == "auto" and counts.episodes > d_phi)
        if episode is not None and enough and self.columns in ((), (episode,)):
            return Resolved(self, "clustered", (episode,))
        if clustered or self.kind not in ("auto", "unadjusted"):
            kind, kept = ("clustered", ", not kept by episode") if clustered else (self.kind, "")
            raise InputError(
                f"{kind} standard errors need the rows of a log; these are its sums{kept}"
            )
        note = "from sums without rows the standard errors are unadjusted"
        return Resolved(self, "unadjusted", note=note if self.kind == "auto" else "")

    def resolve(self, log: Log, counts: Counts, d_phi: int) -> Resolved:
        """Say what this comes to for a log, once its rows have been counted."""
        n, episodes = counts.transitions, counts.episodes
        clusters = self.columns or (log.roles.episode or "row",)
        kind, note = self.kind, ""
        if kind == "auto":
            kind = "clustered" if self.columns or n > episodes else "robust"
            if kind == "clustered" and not self.columns and episodes <= d_phi:
                kind = "hac" if log.ordered else "robust"
                note = (
                    f"{episodes} episodes are too few to cluster {d_phi} coefficients by: the "
                    f"standard errors are {kind.replace('hac', 'HAC along the episodes')}, and too "
                    "small if an instrument is drawn once an episode"
                )
        if kind == "hac" and not (log.roles.episode and log.ordered):
            raise DataError(
                "HAC standard errors need the rows of an episode in order: an episode and a step "
                "column, and rows sorted by them (or next states that are derived)"
            )
        if kind == "clustered" and not self.columns and log.roles.episode is None:
            raise DataError("the log has no episode column to cluster by; name a cluster column")
        bandwidth = self.bandwidth
        if bandwidth is None:
            bandwidth = int(4 * (max(n / max(episodes, 1), 1) / 100) ** (2 / 9))
        return Resolved(self, kind, clusters if kind == "clustered" else (), bandwidth, note)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Standard errors for one log: the choice, its clusters, and a note on how it was made."""

    wanted: StandardErrors
    kind: str
    clusters: tuple[str, ...] = ()
    bandwidth: int = 0
    note: str = ""

    def counted(self, clusters: Iterable[tuple[str, int]]) -> Resolved:
        """Return the same with a note where a column has few clusters, once they are counted."""
        few = [f"{n} clusters by {column!r}" for column, n in clusters if n < FEW_CLUSTERS]
        if not few:
            return self
        return replace(
            self, note=f"{' and '.join(few)} are few: the standard errors tend to be too small"
        )


def check_clusters(column: str, clusters: int, d_phi: int) -> None:
    """Refuse a number of clusters from which no covariance of d_phi coefficients follows."""
    if clusters == 1:
        raise DataError(f"the cluster column {column!r} has one value in all rows; 2 are wanted")
    if clusters < d_phi:
        raise DataError(
            f"{clusters} clusters by {column!r} are fewer than the {d_phi} coefficients of an "
            "output; cluster by another column, or use robust or HAC standard errors"
        )
