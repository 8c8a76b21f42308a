"""Moments as a file: the sums of a log, without its rows, ready to be added to others.

A `Shard` is for sites that may not share rows. It holds the moments, their columns and feature
maps, the counts, and the hashes of the files whose rows are in them, so that no file is counted
twice by mistake.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ivvi._io.checkpoint import Checkpoint
from ivvi._io.files import Saved, content_hash, load_folder, save_folder
from ivvi._io.result import Records, TableResult
from ivvi._io.serialization import unpack_fields
from ivvi._io.trust import Trust, trusting
from ivvi.categories import CodedColumn, CodedColumns
from ivvi.errors import DataError, FileError, InputError, IvviWarning
from ivvi.estimators import StandardErrors
from ivvi.features.design import Design
from ivvi.features.feature_map import FeatureMap
from ivvi.fitting.incremental.merge_checks import LabelledSums, doubt_together
from ivvi.logs import Counts, Log, Roles
from ivvi.logs.log import Progress
from ivvi.logs.opening import reopened
from ivvi.moments import Moments, compute_moments

KIND = "moments"
FEW = 10
"""With fewer rows per column, sums reveal too much about single rows."""


@dataclass(frozen=True, slots=True, repr=False)
class Shard(TableResult):
    """The moments of some logs, and what is needed to add to them.

    Attributes
    ----------
    moments
        Sums over the rows.
    counts
        Rows, transitions, episodes and what was dropped.
    roles
        Columns of the (first) log.
    files
        SHA-256 of each file that was read; tables in memory have none.
    label
        Where the rows came from, for people.
    chosen
        Where the data chose the features: the settings of the method that goes with them and the
        choice, as JSON values (`fitting.feature_choice`). For merged sums, those of the first.
    """

    moments: Moments
    counts: Counts
    roles: Roles
    files: tuple[str, ...] = ()
    label: str = ""
    chosen: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        log: Log,
        design: Design,
        *,
        episodes: bool = False,
        progress: Progress | None = None,
        checkpoint: Checkpoint | None = None,
    ) -> Shard:
        """Make the sums in one pass over a log.

        With `episodes` they are also kept by all that errors may be clustered by: episodes and
        steps (or dates), or the columns whose names became instruments.
        """
        log, by_cluster = log.watched(progress), {}
        if episodes:
            errors, log = StandardErrors().for_log(log)
            by_cluster = errors.kept(log)
        moments, counts = compute_moments(log, design, **by_cluster, checkpoint=checkpoint)
        return cls(moments, counts, log.roles, hashes(log), log.label)

    def __add__(self, other: Shard) -> Shard:
        """Return the sums of both; a file that is in both is refused.

        Sums by episode are kept if both have them, and episodes of one id are one; a warning says
        where they are lost.
        """
        _check_levels(self, other)
        check_same(self.moments.design, other.moments.design, other.label)
        if twice := set(self.files) & set(other.files):
            raise DataError(
                f"the same file (SHA-256 {min(twice)[:12]}...) is in {self.label} and in "
                f"{other.label}; its rows would count twice"
            )
        if bool(self.roles.weight) != bool(other.roles.weight):
            with_, without = (self, other) if self.roles.weight else (other, self)
            raise InputError(
                f"{with_.label} is weighted by {with_.roles.weight!r} and {without.label} is not; "
                "expected weights in both, or in neither"
            )
        _warn_of_other_rows(self, other)
        ours, theirs = self.moments, other.moments
        columns = [
            None if m.episodes is None else m.episodes.by or "episode" for m in (ours, theirs)
        ]
        if columns[0] != columns[1]:
            ours, theirs = ours.without_episodes(), theirs.without_episodes()
            _warn_of_lost_episodes(dict(zip((self.label, other.label), columns, strict=True)))
        total, counts = ours + theirs.following(ours), self.counts + other.counts
        if ours.episodes and theirs.episodes and total.episodes and not total.episodes.by:
            again = len(ours.episodes) + len(theirs.episodes) - len(total.episodes)
            counts = dataclasses.replace(counts, episodes=counts.episodes - again)
            if theirs.episodes.begins_anew(ours.episodes):
                _warn_of_new_episodes(other.label, str(self.roles.episode))
        parts = (
            LabelledSums(ours, self.counts, self.label),
            LabelledSums(theirs, other.counts, other.label),
        )
        if doubt := doubt_together(*parts, total, self.roles):
            warnings.warn(doubt, IvviWarning, stacklevel=2)
        return Shard(
            total,
            counts,
            self.roles,
            self.files + other.files,
            f"{self.label} + {other.label}",
            self.chosen or other.chosen,
        )

    def __radd__(self, other: int) -> Shard:
        """Add to the zero with which `sum` begins."""
        if other != 0:
            return NotImplemented
        return self

    @property
    def is_revealing(self) -> bool:
        """Whether there are fewer than ten rows for each column of the sums."""
        return self.moments.n < FEW * self.moments.design.width

    @property
    def headline(self) -> str:
        """Whose rows they are, and how many."""
        by = "" if self.moments.episodes is None else ", by episode too"
        width = self.moments.design.width
        return f"sums over {self.moments.n:,} rows of {self.label}, {width} columns{by}"

    def summary(self) -> str:
        """Return what the sums are of, with means and standard deviations of the columns."""
        lines = [f"{r['column']:<24}{r['mean']:>12.4g}{r['sd']:>12.4g}" for r in self.records()]
        return "\n".join([self.headline, f"{'column':<24}{'mean':>12}{'sd':>12}", *lines])

    def records(self) -> Records:
        """Return mean and standard deviation of each feature and output, one row each."""
        sums = self.moments
        spread = np.sqrt(np.diag(sums.scatter).clip(min=0) / sums.weight)
        rows = zip(sums.design.names, sums.mean.tolist(), spread.tolist(), strict=True)
        return [{"column": name, "mean": mean, "sd": sd} for name, mean, sd in rows]

    def to_json(self) -> dict[str, Any]:
        """Describe with JSON values: what the sums are of, and the table; not the sums."""
        about = {"label": self.label, "n": self.moments.n, "columns": self.records()}
        counts, files = dataclasses.asdict(self.counts), list(self.files)
        return {**about, "counts": counts, "roles": self.roles.to_json(), "files": files}

    def saved(self) -> Saved:
        """Return everything as JSON values and arrays."""
        facts, arrays = self.moments.saved()
        return {
            "moments": facts,
            **design_facts(self.moments.design, self.roles),
            "counts": dataclasses.asdict(self.counts),
            "files": list(self.files),
            "label": self.label,
            "chosen": self.chosen,
        }, arrays

    @classmethod
    def restore(cls, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Shard:
        """Rebuild a shard from what `saved` returned."""
        design, roles = restore_design(facts)
        unpack_fields(Counts, facts["counts"])
        if not all(isinstance(name, str) for name in (facts["label"], *facts["files"])):
            raise FileError("invalid: its label or files are not text")
        return cls(
            Moments.restore(design, facts["moments"], arrays),
            Counts(**facts["counts"]),
            roles,
            tuple(facts["files"]),
            facts["label"],
            facts.get("chosen"),
        )

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Save as a folder of JSON and npz; refused when single rows could be read from it."""
        n, width = self.moments.n, self.moments.design.width
        if n <= width:
            raise DataError(
                f"{path} is not written: the rows could be recovered from sums over {n} rows of "
                f"{width} columns; expected more than {width} rows"
            )
        return save_folder(path, KIND, *self.saved(), force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, trust: Trust = ()) -> Shard:
        """Load what `save` saved; features that were a user's function from `trust` alone."""
        facts, arrays = load_folder(path, KIND)
        try:
            with trusting(path, trust):
                return cls.restore(facts, arrays)
        except FileError as error:
            raise FileError(f"{path} is {error}") from error
        except (KeyError, TypeError, AttributeError) as error:
            raise FileError(f"{path} is not a complete moments file: {error}") from error


def _check_levels(ours: Shard, theirs: Shard) -> None:
    """Refuse sums whose categories have other levels: equal names would mean other contrasts."""
    for first, second in zip(*_shared_categories(ours.roles, theirs.roles), strict=True):
        if first == second:
            continue
        levels = sorted({*first.levels, *second.levels})
        again, like = "both", f"a table that has all of {', '.join(levels)} (made-up rows will do)"
        for other, whole, own in ((theirs, ours, first), (ours, theirs, second)):
            if len(own.levels) == len(levels):
                again, like = other.label, whole.label
        raise InputError(
            f"{_levels_of(first, ours.label)} and {_levels_of(second, theirs.label)}, so equal "
            f"names mean other contrasts: make the sums of {again} again with ivvi moments --like "
            f"the sums of {like}"
        )


def check_levels(expected: Roles, other: Roles, labels: tuple[str, str]) -> None:
    """Refuse an opened log whose categories have other levels than those of a model."""
    for first, second in zip(*_shared_categories(expected, other), strict=True):
        if first != second:
            raise InputError(
                f"{_levels_of(first, labels[0])} and {_levels_of(second, labels[1])}; give the "
                "file or table itself, which is then opened with the model's levels"
            )


def _shared_categories(own: Roles, other: Roles) -> tuple[CodedColumns, CodedColumns]:
    """Return the categories of columns that are categories in both, in one order."""
    theirs = {category.column: category for category in other.categories}
    shared = tuple(category for category in own.categories if category.column in theirs)
    return shared, tuple(theirs[category.column] for category in shared)


def _levels_of(category: CodedColumn, label: str) -> str:
    """Say which levels a category has in a log."""
    levels = ", ".join(category.levels)
    return f"{category.column} has the levels {levels} in {label} (reference {category.levels[0]})"


def _warn_of_other_rows(ours: Shard, theirs: Shard) -> None:
    """Warn that two logs have chosen their rows, or ended their episodes, differently."""
    for name in ("where", "terminal"):
        values = [getattr(shard.roles, name) for shard in (ours, theirs)]
        words = [v if isinstance(v, str | None) else ", ".join(v) for v in values]
        if words[0] != words[1]:
            made = [
                f"{s.label} has {v!r}" if v else f"{s.label} none"
                for s, v in zip((ours, theirs), words, strict=True)
            ]
            text = (
                f"the sums were made with different --{name}: {' and '.join(made)}; they cannot "
                "be added"
            )
            warnings.warn(text, IvviWarning, stacklevel=3)


def _warn_of_lost_episodes(by_label: Mapping[str, str | None]) -> None:
    """Warn that sums by episode, or by another cluster, are lost, and what that costs."""
    named = [f"{label} by {by or 'nothing'}" for label, by in by_label.items()]
    text = (
        f"{' and '.join(named)} do not match: the combined sums are not kept by episode, and "
        "standard errors will ignore episodes; write all sums with --by-episode, or none"
    )
    warnings.warn(text, IvviWarning, stacklevel=3)


def _warn_of_new_episodes(label: str, episode: str) -> None:
    """Warn that ids which come again are taken for those of other episodes, and why."""
    text = (
        f"{label} starts numbering {episode} and steps from the beginning again, so these count "
        f"as new episodes; if they are the same ones, the standard errors are too small: use steps "
        f"that continue, or ids that are not just counters"
    )
    warnings.warn(text, IvviWarning, stacklevel=3)


def design_facts(design: Design, roles: Roles) -> dict[str, Any]:
    """Return columns and feature maps as JSON values."""
    maps = {"phi": design.phi.to_json(), "psi": design.psi.to_json()}
    return {**maps, "roles": dataclasses.asdict(roles)}


def restore_design(facts: Mapping[str, Any]) -> tuple[Design, Roles]:
    """Rebuild columns and feature maps from `design_facts`."""
    roles = Roles(**unpack_fields(Roles, facts["roles"]))
    phi, psi = (FeatureMap.from_json(facts[name]) for name in ("phi", "psi"))
    return Design.build(phi, psi, roles), roles


def hashes(log: Log) -> tuple[str, ...]:
    """Return the hashes of the files of a log, in order."""
    return tuple(content_hash(file) for file in log.table.files)


def open_like(
    source: Any, roles: Roles, *, where: str | None = None, drop_missing: bool = False
) -> Log:
    """Open another log with the columns of an earlier one, and its filter if no other is given."""
    return reopened(source, roles, where=where, drop_missing=drop_missing)


def check_same(expected: Design, other: Design, label: str) -> None:
    """Refuse moments of other columns or features, naming the first that differs."""
    for field in ("outputs", "phi_names", "psi_names"):
        ours, theirs = getattr(expected, field), getattr(other, field)
        if ours != theirs:
            pairs = zip(ours, theirs, strict=False)
            differ = [f"{b!r} instead of {a!r}" for a, b in pairs if a != b]
            detail = differ[0] if differ else f"{len(theirs)} instead of {len(ours)}"
            kind = {"outputs": "outputs", "phi_names": "features phi"}.get(field, "features psi")
            raise InputError(
                f"{label} has other {kind}: {detail}; take columns and features from one moments "
                "file (ivvi moments --like)"
            )
    if expected != other:
        raise InputError(
            f"{label} has features with other knots, scales or categories; take them from one "
            "moments file (ivvi moments --like)"
        )
