"""A fit in words and in a picture: three sentences, the tables, and what the actions do.

With nonlinear features or interactions, the coefficient of an action is its effect where everything
it is interacted with is zero, which is rarely of interest. Its effect is then averaged over the
log's states.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ivvi._io.plotting import IV, LS, MUTED, check_figure, draw_intervals, finished, make_axes
from ivvi._io.result import Brief
from ivvi.diagnostics.result import WIDTH, diagnose_brief, many_sentence, over_identified
from ivvi.diagnostics.verdict import instrument_sentence
from ivvi.estimators.jackknife_iv import KINDS
from ivvi.fitting.effects.effect import Contrast, Group, group_line, groups_of_states
from ivvi.fitting.inference_tables import NO_MOMENTS, half_widths
from ivvi.weak_iv.confidence_sets import piece
from ivvi.weak_iv.robust_effect_intervals import EMPTY

if TYPE_CHECKING:
    from ivvi.fitting.fit import Fit

FAR = 2.0
"""Two estimates of an effect that differ by this many standard errors are worth reporting."""
PLAN = (
    "`ivvi plan` finds the best actions in this model; `ivvi value` says what they are worth, and "
    "`ivvi sensitivity` how invalid the instrument may be before that changes."
)
REPORT = (
    "Report the effects with their intervals; to plan, fit without controls, since their effects "
    "are not in the model."
)
NO_INTERVAL = (
    "Before planning, run `ivvi interval` for each effect: no interval in this table can be "
    "trusted, and the log may not bound every effect."
)
DELAYED = (
    "Each difference compares two steps, and the instrument of the earlier step seems to affect "
    "the outcome by a route other than the action, as a delayed effect would: fit with --lags 1 "
    "(lags=1) instead of differences."
)
COMPLIERS = "This is the effect on those whose treatment the instrument changes."
NOT_TESTED = "not tested: absorbing mixes the rows of a unit; compare with --lags 1"
TESTED = "only its instrument is tested, and that of the row after; compare with --lags 1"
MOST_DRAWN = 6
"""Outputs that are drawn."""


def fit_summary(fit: Fit, most_outputs: int | None, *, warnings: bool = True) -> str:
    """Return three plain sentences, coefficients (with least squares) and diagnostics."""
    outputs, trace = fit.roles.outputs, fit.estimate.trace
    n_outputs = len(outputs) if most_outputs is None else min(most_outputs, len(outputs))
    lines = [
        fit.brief.text,
        "",
        "=" * WIDTH,
        f"{log_line(fit)}, method {fit.method}",
        "=" * WIDTH,
        *(f"WARNING {text}" for text in fit.warnings if warnings),
    ]
    if fit.inference is None:
        lines += _noise_lines(fit, n_outputs)
    else:
        if fit.choice is not None:
            lines += [str(fit.choice), ""]
        if fit.choice is None or fit.choice.is_linear:
            lines += fit.inference.tables(fit.estimate, n_outputs)
        else:
            lines += [*effect_lines(fit, n_outputs), "", *fit.inference.judgement()]
        lines += [COMPLIERS] if _two_valued(fit) else []
        lines += [f"columns           {text}" for text in fit.roles.lines()]
        lines += [f"{'ends' if not i else '':<18}{text}" for i, text in enumerate(_end_lines(fit))]
        lines.append(f"dropped rows      {dropped_rows(fit)}")
    if trace is not None:
        gap = f"{trace.error:.2f} standard errors from"
        far = f"{gap} the closed form" if fit.inference else f"moment conditions {gap} zero"
        lines.append(f"descent-ascent    {trace.status} after {trace.t[-1]} steps, {far}")
    if fit.inference is None:
        return "\n".join([*lines, f"standard errors   - ({NO_MOMENTS})"])
    lines += _absorbed_lines(fit)
    if fit.partialled is not None:
        lines.append(f"controls          {fit.partialled.line}")
    lines.append(f"standard errors   {fit.estimate.W_cov}; LS ignores the instrument")
    lines += [f"                  {fit.errors.note}"] if fit.errors.note else []
    return "\n".join(lines)


def _two_valued(fit: Fit) -> bool:
    """Whether an action that the instruments move has two values."""
    if fit.sample is None or not fit.uses_instruments or fit.verdict is None:
        return False
    judged = fit.verdict.word in ("strong", "doubtful")
    return judged and any(len(np.unique(column)) == 2 for column in fit.sample.a.T)


def log_line(fit: Fit) -> str:
    """Name the log and count what was used of it."""
    c = fit.counts
    return f"{fit.label}: {c.transitions:,} transitions of {c.episodes:,} episodes"


def dropped_rows(fit: Fit) -> str:
    """Count what was not used, by reason."""
    return ", ".join(f"{n:,} {reason}" for reason, n in fit.dropped.items() if n) or "none"


def fit_brief(fit: Fit) -> Brief:
    """Say if the instrument is good enough, what confounding did to the effects, and what next."""
    if not fit.uses_instruments:
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
                ("Instrument", "Not judged: this needs moments that were not computed."),
                ("Confounding", "Not compared with regression, for the same reason."),
                ("Next", "Run `ivvi diagnose` on part of the log with fewer features."),
            )
        )
    verdict = fit.diagnostics.verdict
    trusted, method = verdict.word in ("strong", "doubtful", ""), verdict.method
    if fit.method in KINDS or (fit.method == "liml" and fit.estimate.W_cov.bekker):
        trusted, method = trusted or bool(method), ""
    plan = REPORT if fit.partialled is not None and fit.partialled.refusal else PLAN
    next_step = plan if trusted else dict(diagnose_brief(fit.diagnostics).items)["Next"]
    if verdict.word == "contradictory":
        next_step = f"Do not plan with it. {DELAYED if fit.differenced else next_step}"
    is_linear = fit.estimate.design.linear_inputs  # else powers of one instrument may disagree
    if trusted and is_linear and (refuted := over_identified(fit.diagnostics)):
        next_step = f"{refuted} {next_step}"
    if trusted and any(not one.intervals for one in fit.robust_intervals.intervals.values()):
        suspect = "`ivvi diagnose --suspect` looks for an invalid one"
        next_step = f"Do not plan with it: {EMPTY}; {suspect}."
    elif trusted and (verdict.word, verdict.recommended) == ("doubtful", "none"):
        next_step = NO_INTERVAL
    if trusted and (doubts := fit.doubts + fit.plan_doubts):
        next_step = f"Do not plan with it yet: {doubts[0]}."
    if method:
        next_step = many_sentence(method)
    return Brief(
        (
            ("Instrument", instrument_sentence(verdict)),
            ("Confounding", _confounding(fit, trusted=trusted)),
            ("Next", next_step),
        )
    )


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
        return "(none of its intervals can be trusted)", -math.inf, math.inf
    w, half = float(fit.W[i, j]), float(half_widths(fit.estimate)[i, j] * fit.se[i, j])
    return piece(w - half, w + half, digits=3), w - half, w + half


@dataclass(frozen=True, slots=True)
class AverageEffect:
    """The effect of one more unit of an action on an output, averaged over the log's rows.

    `row` is the output's place; `group` has the average, its standard error and the share of states
    in which the effect is positive, `regression` the average that least squares gives.
    """

    row: int
    action: str
    group: Group
    regression: float

    @property
    def gap(self) -> float:
        """How far regression is from it, in standard errors."""
        apart = abs(self.regression - self.group.average)
        return apart / self.group.se if self.group.se > 0 else 0.0


def average_effects(fit: Fit) -> list[AverageEffect]:
    """Return the average effects of the actions with nonlinear features or interactions.

    Those on outputs without noise are left out.
    """
    sample, roles, design = fit.sample, fit.roles, fit.estimate.design
    plain = {"1", *roles.state, *roles.action}
    has_errors = np.isfinite(fit.estimate.W_cov.blocks).all()
    if sample is None or not len(sample.x) or not has_errors or set(design.phi_names) <= plain:
        return []
    effects = []
    for action in roles.action:
        contrast = Contrast.of(roles, sample, action)
        combinations = contrast.combinations(fit.estimate, sample.x, sample.a)
        other = [j for j, name in enumerate(design.phi_names) if name != contrast.action]
        if not combinations[:, other].any():
            continue
        for row in range(len(design.outputs)):
            if design.outputs[row] not in fit.estimate.exact:
                group = groups_of_states(fit.estimate, row, contrast)[0]
                regression = float(combinations.mean(axis=0) @ fit.baseline.W[row])
                effects.append(AverageEffect(row, contrast.action, group, regression))
    return effects


def effect_lines(fit: Fit, n_outputs: int) -> list[str]:
    """Return the average effect of each action on each output, and where it is positive, as text.

    Of all actions, whether or not their effects vary.
    """
    sample, roles = fit.sample, fit.roles
    if sample is None or not roles.action:
        return []
    lines = ["effect of one unit: positive in this share of the log's states, interval, average"]
    for row in range(n_outputs):
        for action in roles.action:
            group = groups_of_states(fit.estimate, row, Contrast.of(roles, sample, action))[0]
            lines.append(group_line(replace(group, name=f"{action} on {roles.outputs[row]}")))
    over = roles.state[0] if roles.state else roles.action[0]
    lines.append(f"  ivvi effect MODEL --action {roles.action[0]} --over {over} draws one of them")
    return lines


def plot_fit(fit: Fit, path: str | os.PathLike[str] | None, *, force: bool) -> Any:
    """Draw the effect of each action (of every feature where none is instrumented), by output."""
    check_figure(path, force=force)
    estimate, names = fit.estimate, fit.estimate.design.phi_names
    stages = () if fit.inference is None else fit.diagnostics.first_stage
    features = [names.index(stage.feature) for stage in stages if stage.feature in names]
    features = features or [j for j, name in enumerate(names) if name != "1"]
    outputs = [i for i, o in enumerate(estimate.design.outputs) if o not in estimate.exact][
        :MOST_DRAWN
    ]
    figure, axes = make_axes(1, max(1, len(outputs)))
    half = half_widths(estimate) * estimate.se
    has_baseline = fit.inference is not None and fit.uses_instruments
    for ax, i in zip(axes[0], outputs, strict=False):
        ax.axvline(0, color=MUTED, lw=0.8)
        rows = [(fit.W[i, j], fit.W[i, j] - half[i, j], fit.W[i, j] + half[i, j]) for j in features]
        draw_intervals(ax, [names[j] for j in features], rows, IV)
        if has_baseline:
            at = range(len(features), 0, -1)
            ax.plot(fit.baseline.W[i, features], at, "X", color=LS, ms=8, label="least squares")
            ax.legend(frameon=False, fontsize=8)
        ax.set_title(estimate.design.outputs[i], loc="left", fontsize=10)
        ax.set(xlabel="effect of one more unit, 95% interval")
    return finished(figure, path, force=force)


def _noise_lines(fit: Fit, n_outputs: int) -> list[str]:
    """Return lines on the noise of each output, for a fit of which nothing more is known."""
    d_y, d_phi = fit.W.shape
    spread = np.sqrt(np.diag(fit.estimate.noise_cov))
    named = zip(fit.roles.outputs[:n_outputs], spread, strict=False)
    return [
        f"{d_phi:,} features, {d_y} outputs, memory of order d",
        *(f"  {name:<15} noise {size:.4g}" for name, size in named),
    ]


def _absorbed_lines(fit: Fit) -> list[str]:
    """Return lines on the effects that were absorbed, and the degrees of freedom that they cost."""
    if (absorbed := fit.absorbed) is None:
        return []
    parts = zip(absorbed.columns, absorbed.levels, absorbed.nested, strict=True)
    clusters = {name for name, _ in fit.estimate.W_cov.clusters}
    columns = [
        f"{name} ({levels:,}{', nested in clusters' if clusters & set(nested) else ''})"
        for name, levels, nested in parts
    ]
    lost = absorbed.freedom(tuple(clusters)) + 1
    lines = [f"absorbed effects  {', '.join(columns)}; {lost:,} degrees of freedom"]
    if fit.roles.episode in absorbed.columns and fit.roles.step:
        tested = fit.nickell is None and fit.uses_instruments
        lines.append(f"row before        {TESTED if tested else NOT_TESTED}")
    if fit.nickell is not None:
        lines.append(f"Nickell bias      {fit.nickell.line(fit.estimate)}")
    return lines


def _end_lines(fit: Fit) -> list[str]:
    """Say how many episodes ended for good, and how many are censored."""
    if not fit.roles.terminal:
        return []
    over, c = fit.counts.ended, fit.counts
    counted = (
        f"{over:,} of {c.episodes:,} episodes ended ({', '.join(fit.roles.ends)}); "
        f"{c.episodes - over:,} go on after their last row (censored)"
    )
    if not (over and fit.roles.predicted):
        return [counted]
    share = over / c.transitions
    return [
        counted,
        f"a row that ends an episode counts as keeping its state ({share:.1%} of rows), so effects",
        "on next states are those on survivors times their share; plans allow for it",
    ]


def _confounding(fit: Fit, *, trusted: bool) -> str:
    """Name the effect of an action that least squares gets most wrong: its sign, else its size."""
    if fit.diagnostics.verdict.word == "contradictory":
        return "Instruments that contradict each other cannot show what confounding did."
    if not trusted:
        return "With this instrument the log cannot show what confounding did."
    if averages := average_effects(fit):
        return _on_average(fit, max(averages, key=lambda one: one.gap))
    if fit.choice is not None and not fit.choice.is_linear:
        return "The effects vary; `ivvi effect` shows how."
    estimate, names = fit.estimate, fit.estimate.design.phi_names
    instrumented = {stage.feature for stage in fit.diagnostics.first_stage}
    noisy = [i for i, o in enumerate(estimate.design.outputs) if o not in estimate.exact]
    places = [(i, j) for i in noisy for j, name in enumerate(names) if name in instrumented]
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
    return _largest_gap(fit, *worst)


def _flips(fit: Fit, i: int, j: int) -> bool:
    """Whether the interval of a coefficient excludes zero, and least squares has the other sign."""
    _, low, high = recommended_interval(fit, i, j)
    return bool(low > 0 > fit.baseline.W[i, j] or high < 0 < fit.baseline.W[i, j])


def _largest_gap(fit: Fit, i: int, j: int) -> str:
    w, ls = float(fit.W[i, j]), float(fit.baseline.W[i, j])
    words, low, high = recommended_interval(fit, i, j)
    effect = f"{_effect(fit, i, j)} {w:.3g} {words}"
    if low <= ls <= high and fit.diagnostics.verdict.recommended in ("robust", "none"):
        return f"Not certain: {effect}; regression's {ls:.3g} cannot be ruled out."
    if _flips(fit, i, j):
        return f"It flipped a sign: {effect}, where regression says {ls:+.3g}."
    return f"It distorted the effects: {effect}, where regression says {ls:.3g}."


def _on_average(fit: Fit, effect: AverageEffect) -> str:
    """Describe an effect that varies by its average over the log's states."""
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
