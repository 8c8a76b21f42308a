"""`check`: what the order of a log's rows says about the instrument and about W."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi._io.result import Brief, Records, TableResult
from ivvi.diagnostics.tails_and_quantiles import check_level
from ivvi.errors import DataError, InputError
from ivvi.estimators import Exact, StandardErrors
from ivvi.estimators.covariance.standard_errors_for_log import Resolved
from ivvi.estimators.covariance.step_dependence import step_dependence
from ivvi.estimators.estimate import exactly_fitted
from ivvi.features.design import Design, build_design
from ivvi.features.feature_map import FeatureMap
from ivvi.logs import Calendar, Counts, Log, Roles, read_logs
from ivvi.logs.log import Progress
from ivvi.moments import GroupSums, Moments, compute_moments, few_threads
from ivvi.moments.compression import restrict
from ivvi.sequence.check_result import Check, check_brief, plot_checks, ranked
from ivvi.sequence.exogeneity_and_stability import (
    CHECKS,
    FEWEST_BLOCKS,
    calendar_stability,
    stability,
)
from ivvi.sequence.residual_tests import past_rows, varying_effects
from ivvi.sequence.richer_features import approximation_checks, richer_layout, richer_word
from ivvi.sequence.row_pair_moments import Scores, SequenceMoments, compute_sequence_moments

WIDTH = 100
MOST_CROSSED = 8
"""Most states and actions whose products are tested in rows without order."""
SEQUENCE_CHECKS = (
    "balance on the past",
    "placebo: z against realised x",
    "serial dependence of z",
    "serial dependence of residuals",
    "residuals on the past",
    "stability over steps",
    "stability over episodes",
    "stability over time (CUSUM)",
    "effects that vary",
)
"""Checks that need the order of rows, or groups of them to compare."""
ABOUT_SHAPE = (*SEQUENCE_CHECKS[:2], "residuals on the past", "stability over steps")
"""Checks that, like those of richer features, fail if a state enters with the wrong shape."""
AFTER_ABSORBING = (
    " and name unit and time (episode=, step=, --episode, --step) to check the rows with their "
    "effects; `ivvi fit` with the formula tests, after effects are absorbed, whether instruments "
    "of the steps before and after are related to the outcome"
)
"""What to do with a formula that absorbs effects."""
MOST_CODES = 12
"""Most whole numbers that may be codes of categories."""


@dataclass(frozen=True, slots=True, repr=False)
class SequenceChecks(TableResult):
    """All checks of a log, and what it is made of.

    Attributes
    ----------
    label
        The log.
    checks
        One for each question.
    n, episodes, blocks
        Transitions, episodes, and the blocks that stand for independent draws.
    global_instruments
        Instruments that never change within an episode.
    clusters, note
        The column whose groups the blocks are, where these are not episodes, and why.
    """

    label: str
    checks: tuple[Check, ...]
    n: int
    episodes: int
    blocks: int
    global_instruments: tuple[str, ...]
    all_global: bool
    clusters: str | None = None
    note: str = ""

    @property
    def effective_n(self) -> int:
        """How many independent draws of the instrument there are: rows, or episodes."""
        return self.episodes if self.all_global else self.n

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that speak against the log."""
        return tuple(check for check in self.checks if check.passed is False)

    @property
    def brief(self) -> Brief:
        """Whether anything speaks against the instrument or against one W, and what to do next."""
        return check_brief(self.checks)

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def to_json(self) -> dict[str, Any]:
        """Describe everything with JSON values."""
        return {
            "log": self.label,
            "n": self.n,
            "episodes": self.episodes,
            "blocks": self.blocks,
            "clusters": self.clusters,
            "se_note": self.note or None,
            "global_instruments": list(self.global_instruments),
            "effective_n": self.effective_n,
            "level": self.checks[0].level if self.checks else None,
            "brief": self.brief.to_json(),
            "checks": {check.name: check.to_json() for check in self.checks},
        }

    def records(self) -> Records:
        """Return the checks, one row per question."""
        return [
            {
                "check": check.name,
                "statistic": None if check.test is None else check.test.statistic.value,
                "p_value": None if check.test is None else check.test.p_value,
                "passed": check.passed,
                "finding": check.finding or check.reason,
            }
            for check in self.checks
        ]

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw the p-value of each check, what fails first; `path` saves it.

        Checks that fail are red, those that are significant and too small to matter grey; a check
        that the log does not allow has no point. An arrow stands for p below 1e-4.
        """
        return plot_checks(self.checks, path, force=force)

    def summary(self) -> str:
        """Return three plain sentences, then the checks, what fails first, with their tests."""
        lines = [
            self.brief.text,
            "",
            f"{self.label}: {self.n:,} transitions"
            + (f" of {self.episodes:,} episodes" if self.episodes else ""),
            "-" * WIDTH,
        ]
        if self.clusters is not None:
            lines.append(f"compared by        {self.clusters} ({self.blocks:,} blocks)")
        if self.note:
            lines.append(f"                   {self.note}")
        if self.global_instruments:
            named = ", ".join(self.global_instruments)
            draws = f"{self.episodes:,} draws of it, so cluster by episode"
            if self.clusters is not None:
                draws = f"{self.blocks:,} draws of it at most, one for each {self.clusters}"
            lines.append(
                f"global instrument  {named}: constant within every episode; the sample has {draws}"
            )
        level = f"verdict (LOOK: p below {self.checks[0].level:g})" if self.checks else "verdict"
        lines.append(f"{'check':<32}{'statistic':>10} {'distribution':<14}{'p':>8}  {level}")
        lines += [line for check in ranked(self.checks) for line in _lines(check)]
        return "\n".join(lines)


def _lines(check: Check) -> list[str]:
    if check.test is None:
        return [f"{check.name:<32}{'-':>10} {check.reason}"]
    statistic = check.test.statistic
    verdict = "fine" if check.passed else "LOOK"
    if check.negligible and check.test.p_value < check.level:
        verdict = "negligible"
    compared = check.test.compared
    again = f" (smallest p of {compared}, corrected for that)" if compared > 1 else ""
    lines = [
        f"{check.name:<32}{statistic.value:>10.3g} {statistic.distribution:<14}"
        f"{check.test.p_value:>8.4f}  {verdict}{again}",
        f"    null: {statistic.null}",
    ]
    return lines if check.passed else [*lines, f"    {check.finding}", f"    do: {check.advice}"]


def check(  # noqa: PLR0913
    logs: Any,
    phi: FeatureMap | str = "linear",
    psi: FeatureMap | str | None = None,
    *,
    richer: str | None = None,
    time: str | None = None,
    cluster: str | tuple[str, ...] = (),
    level: float = 0.01,
    seed: int = 0,
    progress: Progress | None = None,
) -> SequenceChecks:
    """Check what only a sequence of rows can show about the instrument and W.

    Balance of z on the past, a placebo, serial dependence of z and of residuals, stability
    of W over steps, episodes and time, and whether richer features change the answer. The
    log is passed over twice, in bounded memory.

    Parameters
    ----------
    logs
        A `Log`, or anything that `read_logs` opens.
    phi, psi
        The features whose W is checked.
    richer
        The feature word to compare them with; by default one step up (poly2 for linear,
        twice the knots for splines).
    time
        A numeric, date or timestamp column along which W must be stable too.
    cluster
        Up to three columns of clusters; by default what `estimate` would cluster by: the
        episodes, or the steps where episodes share the instrument of a step.
    level
        The p-value below which a check fails.
    seed
        Seed of random features.
    progress
        Called with the number of rows just read.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=60, horizon=50, seed=1)
    >>> ivvi.check(log).failed
    ()
    """
    check_level(level)
    opened = (logs if isinstance(logs, Log) else read_logs(logs)).watched(progress)
    requested, opened = StandardErrors(cluster=cluster).for_log(opened)
    opened.refuse_absorbed("check", AFTER_ABSORBING)
    if opened.roles.frequency:
        raise InputError(
            "check does not work with frequency weights, since a row stands for several"
        )
    log, calendar = _in_order(opened, time)
    ordered = _unordered(log) is None
    design = build_design(log, phi, psi, seed)
    few = len(log.roles.state) + len(log.roles.action) <= MOST_CROSSED
    word = richer or richer_word(phi, cross=not ordered and few)
    wide = richer_layout(log, design, word, seed)
    moments, counts = compute_moments(log, wide, groups=requested.summed_by(log))
    base = restrict(moments, design)
    errors = requested.resolve(
        *(log, counts, len(design.phi_names)),
        step_dependence(base, log.roles.moment, log),
        base.paths,
    )
    by = errors.compared_by(base, log.roles.episode, FEWEST_BLOCKS, asked=bool(cluster))
    if by is not None and by.by not in log.roles.keys + log.roles.cluster:
        log = log.clustered((by.by,))
    why = _unordered(log) or _too_few(by)
    sequence = None if why else compute_sequence_moments(log, design, counts, calendar, by)
    if sequence is not None and len(sequence.all_rows) < FEWEST_BLOCKS:
        raise DataError(
            f"{log.label} has {counts.transitions} transitions of {counts.episodes} episodes; too "
            "few to compare with each other"
        )
    with few_threads(wide.width):
        checks = (
            _not_made(why, word, level)
            if sequence is None
            else _sequence_checks(base, sequence, errors, log.roles, level)
        )
        if by is None:
            even = _as_even_rows(moments, log)
            checks += approximation_checks(even, design, word, log.roles, level)
        else:
            checks += _without_approximation(word, by.by, level)
    checks = _naming_codes(checks, log)
    return _result(log, counts, checks, sequence, by, errors.warning or errors.note)


def _as_even_rows(moments: Moments, log: Log) -> Moments:
    """Return moments with the number of unweighted rows of the same variance (Kish, 1965)."""
    if log.roles.weight is None:
        return moments
    weight = log.watched(None).head().weight
    if weight is None or not weight.any():
        return moments
    used = weight[weight > 0]
    return replace(moments, n=max(1, round(moments.n * used.mean() ** 2 / np.mean(used**2))))


def _naming_codes(checks: list[Check], log: Log) -> list[Check]:
    """Name, in the advice of failed checks, the states whose numbers may be category codes."""
    failed = [check for check in checks if check.passed is False and check.name in ABOUT_SHAPE]
    failed += [check for check in checks if check.passed is False and check.name[:6] == "richer"]
    if not failed:
        return checks
    values = zip(log.roles.state, (np.unique(x) for x in log.head().x.T), strict=True)
    codes = [
        f"{name} has {len(levels)} whole-number values"
        for name, levels in values
        if 3 <= len(levels) <= MOST_CODES and (levels == np.round(levels)).all()
    ]
    if not codes:
        return checks
    hint = f"; {' and '.join(codes)}: if these are codes of categories, name them with "
    hint += "--categorical (categorical=)"
    return [replace(one, advice=one.advice + hint) if one in failed else one for one in checks]


def _sequence_checks(
    base: Moments, sequence: SequenceMoments, errors: Resolved, roles: Roles, level: float
) -> list[Check]:
    """Return the checks that the order of rows allows."""
    fit = Exact().solve(base)
    exact = exactly_fitted(base, np.diag(fit.noise_cov))
    by_episode = base.group_sums(str(roles.episode))
    scores = Scores(sequence, fit.W, exact, errors.clusters, by_episode)
    names = _column_names(roles, base.design)
    checks = [check(scores, names, level) for check in (*CHECKS, past_rows)]
    lasting = checks[-1].passed is False
    checks += stability(scores, names, level, lasting=lasting)
    checks += calendar_stability(scores, names, level)
    return [*checks, varying_effects(scores, names, level, coded=bool(roles.categories))]


def _result(
    log: Log,
    counts: Counts,
    checks: list[Check],
    sequence: SequenceMoments | None,
    by: GroupSums | None,
    note: str,
) -> SequenceChecks:
    still = () if sequence is None else sequence.still
    names = zip(log.roles.instrument, still, strict=sequence is not None)
    return SequenceChecks(
        label=log.label,
        checks=tuple(checks),
        n=counts.transitions,
        episodes=counts.episodes if log.roles.episode else 0,
        blocks=0 if sequence is None else len(sequence.all_rows),
        global_instruments=tuple(name for name, fixed in names if fixed),
        all_global=bool(still) and all(still),
        clusters=None if by is None else by.by,
        note=note,
    )


def _unordered(log: Log) -> str | None:
    """Return why the rows of a log are not a sequence, or None if they are."""
    if log.roles.episode is not None and log.roles.step is not None:
        return None
    missing = "episode" if log.roles.episode is None else "step"
    return f"the log has no {missing} column, so its rows are not a sequence"


def _too_few(by: GroupSums | None) -> str | None:
    """Return a message if there are too few groups with independent draws, else None."""
    if by is None or len(by) >= FEWEST_BLOCKS:
        return None
    return f"{len(by)} clusters by {by.by} are too few to compare with each other"


def _not_made(why: str | None, word: str, level: float) -> list[Check]:
    """Return the checks of a sequence that were not made, and why."""
    checks = [Check(name, None, level, reason=why or "") for name in SEQUENCE_CHECKS]
    if word.endswith(":cross"):
        checks[-1] = replace(checks[-1], reason=f"richer phi ({word}) tests this in single rows")
    return checks


def _column_names(roles: Roles, design: Design) -> dict[str, tuple[str, ...]]:
    """Return the columns of each letter of the notation."""
    return {
        "x": roles.state,
        "a": roles.action,
        "z": roles.instrument,
        "y": roles.outputs,
        "phi": design.phi_names,
        "episode": (str(roles.episode),),
    }


def _without_approximation(word: str, by: str, level: float) -> list[Check]:
    """Return checks of richer features that were not made, and why."""
    why = f"its test assumes independent rows, and these are clustered by {by}"
    return [Check(f"richer {name} ({word})", None, level, reason=why) for name in ("psi", "phi")]


def _in_order(log: Log, time: str | None) -> tuple[Log, Calendar | None]:
    """Return the log in order of (episode, step), and the calendar of its time column."""
    if (why := _unordered(log)) is not None:
        if time is not None:
            raise InputError(f"{log.label}: {why}, and W cannot be compared over {time}")
        return log, None
    if time is None:
        return log.in_order(), None
    timed = log.timed(time)
    calendar = Calendar.of_table(timed.table, time)
    return timed.in_order(), calendar
