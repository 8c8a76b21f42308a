"""`confidence_set`: which values of an effect the log does not reject, however weak z is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ivvi.diagnostics.confidence_sets import (
    ConfidenceSet,
    anderson_rubin,
    conditional_likelihood_ratio,
)
from ivvi.diagnostics.effect_scores import EffectScores
from ivvi.diagnostics.effects import Combination, Effect
from ivvi.diagnostics.robust_ratio import robust_likelihood_ratio
from ivvi.diagnostics.robust_sets import robust_anderson_rubin
from ivvi.errors import InputError, hint
from ivvi.features import FeatureMap
from ivvi.fitting import Fit
from ivvi.layout import build_layout
from ivvi.logs import Log, read_logs
from ivvi.moments import Moments, compute_moments

ERRORS = ("auto", "unadjusted", "robust", "clustered")


def confidence_set(  # noqa: PLR0913
    source: Any,
    output: str,
    feature: Combination,
    *,
    method: str = "ar",
    level: float = 0.95,
    se: str = "auto",
    log: Log | None = None,
    phi: FeatureMap | str = "linear",
    psi: FeatureMap | str | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> ConfidenceSet:
    """Return a confidence set of one effect that holds with any strength of the instrument.

    Parameters
    ----------
    source
        A `Fit`, `Moments`, a `Log`, or anything that `read_logs` opens.
    output
        Name of an output; a state's name stands for its next value.
    feature
        Name of a feature of phi, or a mapping from names to weights (a linear combination).
    method
        ``ar``, Anderson and Rubin's; ``clr``, Moreira's conditional likelihood ratio.
    level
        Probability of holding the truth.
    se
        What the errors may be: ``unadjusted`` (homoskedastic), ``robust`` (a variance of
        their own each row), ``clustered`` (dependent within episodes). ``auto`` clusters
        where episodes have several steps, and is robust for others that have their rows.
    log
        The log of a `Fit` or of `Moments`, for a second pass where ``robust`` or
        ``clustered`` needs one.
    phi, psi, seed
        Features, for a source that is a log.
    progress
        Called with the number of rows just read.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=40, horizon=50, seed=1)
    >>> found = ivvi.confidence_set(log, "next_x0", "a0")
    >>> -0.5 in found, found.kind                 # the true effect of a0 is -0.5
    (True, 'bounded')
    """
    _check(method, se)
    keep = None if se in ("auto", "clustered") else False
    moments, log, several = _open(source, log, phi, psi, seed, keep, progress)
    effect = Effect.of(moments, output, feature)
    if se == "auto":
        se = "clustered" if several else "unadjusted" if log is None else "robust"
    if se == "unadjusted":
        test = anderson_rubin if method == "ar" else conditional_likelihood_ratio
        return test(effect, level)
    scores = _scores(moments, log, effect, se, progress)
    robust = robust_anderson_rubin if method == "ar" else robust_likelihood_ratio
    return robust(effect, scores, level, se=se)


def _check(method: str, se: str) -> None:
    for word, known, what in ((method, ("ar", "clr"), "method"), (se, ERRORS, "errors")):
        if word not in known:
            raise InputError(f"unknown {what} {word!r} of a confidence set{hint(word, known)}")


def _open(
    source: Any,
    log: Log | None,
    phi: FeatureMap | str,
    psi: FeatureMap | str | None,
    seed: int,
    keep: bool | None,
    progress: Callable[[int], None] | None,
) -> tuple[Moments, Log | None, bool]:
    """Return the moments, the log if there is one, and whether episodes have several rows.

    `keep` says whether moments of the episodes of a log are kept (`compute_moments`).
    """
    if isinstance(source, Fit):
        counts = source.counts
        return source.moments, log, counts.episodes < counts.transitions
    if isinstance(source, Moments):
        blocks = source.episodes
        return source, log, blocks is not None and len(blocks) < source.n
    opened = source if isinstance(source, Log) else read_logs(source)
    layout = build_layout(opened, phi, psi, seed)
    keep = keep if opened.roles.episode is not None else False
    moments, counts = compute_moments(opened, layout, episodes=keep, progress=progress)
    return moments, opened, counts.episodes < counts.transitions


def _scores(
    moments: Moments,
    log: Log | None,
    effect: Effect,
    se: str,
    progress: Callable[[int], None] | None,
) -> EffectScores:
    by_episode = se == "clustered"
    if by_episode and moments.episodes is not None:
        return EffectScores.of_episodes(moments, effect)
    if log is None:
        kept = ", or of moments kept with episodes=True" if by_episode else ""
        raise InputError(f"a {se} set needs a second pass over the rows: give log={kept}")
    return EffectScores.of_log(log, moments, effect, by_episode=by_episode, progress=progress)
