"""What a fit comes to, in plain sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ivvi._io.brief import Brief, instrument_sentence
from ivvi.diagnostics.brief import diagnose_brief, many_sentence
from ivvi.estimators.jackknife_iv import KINDS
from ivvi.fitting.average_effects import AverageEffect, average_effects
from ivvi.fitting.summary import half_widths
from ivvi.weak_iv.confidence_sets import piece

if TYPE_CHECKING:
    from ivvi.fitting.fit import Fit

FAR = 2.0
"""Standard errors between two estimates of an effect that are worth telling."""
PLAN = (
    "`ivvi plan` finds the best actions in this model; `ivvi value` says what they are worth, and "
    "`ivvi sensitivity` how invalid the instrument may be."
)
REPORT = (
    "Report the effects with their intervals; to plan, fit without controls, since what they do is "
    "not in the model."
)


def fit_brief(fit: Fit) -> Brief:
    """Say if the instrument is good enough, what confounding did to the effects, and what next."""
    if fit.method == "least-squares":
        return Brief(
            (
                ("Instrument", "Not used: this is regression."),
                ("Confounding", "Assumed absent; the standard errors do not account for it."),
                ("Next", "Fit with the instrument (the method exact) and compare."),
            )
        )
    if fit.inference is None:
        return Brief(
            (
                ("Instrument", "Not judged: the moments that this needs were not formed."),
                ("Confounding", "Not compared with regression, for the same reason."),
                ("Next", "`ivvi diagnose` on a part of the log with fewer features."),
            )
        )
    trusted = fit.diagnostics.verdict.word in ("strong", "doubtful", "")
    method = fit.diagnostics.verdict.method
    if fit.method in KINDS or (fit.method == "liml" and fit.estimate.W_cov.bekker):
        trusted, method = trusted or bool(method), ""
    plan = REPORT if fit.partialled is not None and fit.partialled.refusal else PLAN
    next_step = plan if trusted else dict(diagnose_brief(fit.diagnostics).items)["Next"]
    if method:
        next_step = many_sentence(method)
    return Brief(
        (
            ("Instrument", instrument_sentence(fit.diagnostics.verdict)),
            ("Confounding", _confounding(fit, trusted=trusted)),
            ("Next", next_step),
        )
    )


def _confounding(fit: Fit, *, trusted: bool) -> str:
    """Name the effect of an action that least squares gets most wrong: its sign, else its size."""
    if not trusted:
        return "With this instrument the log cannot tell what confounding did."
    if averages := average_effects(fit):
        return _on_average(fit, max(averages, key=lambda one: one.gap))
    if fit.choice is not None and not fit.choice.is_linear:
        return "The effects vary; `ivvi effect` shows how."
    estimate, names = fit.estimate, fit.estimate.design.phi_names
    known = {stage.feature for stage in fit.diagnostics.first_stage}
    noisy = [i for i, o in enumerate(estimate.design.outputs) if o not in estimate.exact]
    places = [(i, j) for i in noisy for j, name in enumerate(names) if name in known]
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = (fit.baseline.W - estimate.W) / estimate.se
    places = [place for place in places if np.isfinite(gaps[place])]
    if not places:
        return "No effect of an action could be compared with regression."
    if not (far := [place for place in places if abs(gaps[place]) >= FAR]):
        return (
            "None visible: regression and the instrument agree about every effect of an action "
            f"(largest gap {max(abs(gaps[place]) for place in places):.1f} standard errors)."
        )
    worst = max(far, key=lambda place: (_flips(fit, *place), abs(gaps[place])))
    return _told(fit, *worst)


def recommended_interval(fit: Fit, i: int, j: int) -> tuple[str, float, float]:
    """Return the interval to report of one coefficient: in words, and its lowest and highest.

    Where none is to be trusted the words say so, and it is the whole line.
    """
    inference, design = fit.inference, fit.estimate.design
    output, feature = design.outputs[i], design.phi_names[j]
    recommended = fit.diagnostics.verdict.recommended
    robust = None if inference is None else inference.robust.get(output, feature)
    wild = None if inference is None else inference.wild.get((output, feature))
    if recommended == "robust" and robust is not None and robust.intervals:
        pairs = (piece(low, high, digits=3) for low, high in robust.intervals)
        return " or ".join(pairs), *robust.ends
    if recommended == "wild" and wild is not None:
        return piece(*wild.interval, digits=3), *wild.interval
    if recommended in ("robust", "none"):
        return "(no interval of it can be trusted)", -math.inf, math.inf
    w, half = float(fit.W[i, j]), float(half_widths(fit.estimate)[i, j] * fit.se[i, j])
    return piece(w - half, w + half, digits=3), w - half, w + half


def _flips(fit: Fit, i: int, j: int) -> bool:
    """Whether the interval of a coefficient is off zero, on the other side of least squares."""
    _, low, high = recommended_interval(fit, i, j)
    return bool(low > 0 > fit.baseline.W[i, j] or high < 0 < fit.baseline.W[i, j])


def _told(fit: Fit, i: int, j: int) -> str:
    w, ls = float(fit.W[i, j]), float(fit.baseline.W[i, j])
    words, low, high = recommended_interval(fit, i, j)
    effect = f"{_effect(fit, i, j)} {w:.3g} {words}"
    if low <= ls <= high and fit.diagnostics.verdict.recommended in ("robust", "none"):
        return f"Not certain: {effect}, which does not rule out the {ls:.3g} of regression."
    if _flips(fit, i, j):
        return f"It flipped a sign: {effect}, where regression says {ls:+.3g}."
    return f"It distorted the effects: {effect}, where regression says {ls:.3g}."


def _on_average(fit: Fit, effect: AverageEffect) -> str:
    """Tell an effect that features bend or cross by its average over the log's states."""
    group, output = effect.group, fit.estimate.design.outputs[effect.row]
    return (
        f"The effect varies: {_changes(fit, output, effect.action)} {group.average:.3g} (standard "
        f"error {group.se:.2g}) on average, where regression says {effect.regression:.3g}, and is "
        f"positive in {group.share:.0%} of the log's states; `ivvi effect` shows where."
    )


def _effect(fit: Fit, i: int, j: int) -> str:
    """Begin the sentence of a coefficient."""
    return _changes(fit, fit.estimate.design.outputs[i], fit.estimate.design.phi_names[j])


def _changes(fit: Fit, output: str, feature: str) -> str:
    """Begin the sentence of an effect: of an action, of a level, or of another feature."""
    for coded in fit.roles.categories:
        if feature in coded.names:
            level = coded.levels[1 + coded.names.index(feature)]
            return f"{coded.column} = {level} instead of {coded.levels[0]} changes {output} by"
    if feature in fit.roles.action:
        return f"one more {feature} changes {output} by"
    return f"the coefficient of {feature} for {output} is"
