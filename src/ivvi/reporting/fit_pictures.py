"""Pictures of a fit: coefficients, first stages, residuals, and the actions of a policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ivvi._io.plotting import IV, LS, MUTED
from ivvi.fitting.inference_tables import NORMAL_95
from ivvi.policy.curves import ActionCurve, draw_curve
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.inline_svg import INK, draw
from ivvi.reporting.page import Picture

MOST = 6
"""Most pictures of one kind; more go into a table."""
ROWS = 12
"""Coefficients in one picture."""
POINTS = 250
"""Most rows of the log that are plotted as points."""
BINS = 12
LOOK = {
    "iv": (IV, "o", 0.14, "with the instrument"),
    "ls": (LS, "X", -0.14, "by least squares"),
}
"""Colour, marker, place and words of the two estimates, the same in every picture."""
KEY = {"iv": ("iv", "with the instrument, 95% interval"), "ls": ("ls", "least squares")}
"""Their labels in the legend of a figure."""


def coefficients(fit: FitView) -> tuple[Picture, ...]:
    """Plot the coefficients of each output with 95% intervals, next to those of least squares."""
    return tuple(_coefficients(fit, i) for i in fit.noisy[:MOST])


def _coefficients(fit: FitView, output: int) -> Picture:
    columns = _worth_showing(fit, output)
    names = [fit.phi[j] for j in columns]
    at = np.arange(len(columns))[::-1]

    def paint(ax: Any) -> None:
        ax.axvline(0, color=MUTED, lw=0.8)
        for kind, (W, se) in fit.estimates.items():
            colour, marker, shift, _ = LOOK[kind]
            w, half = (
                W[output, columns],
                np.nan_to_num(fit.widths[output, columns] * se[output, columns]),
            )
            ax.errorbar(w, at + shift, xerr=half, fmt="none", color=colour, lw=1.6)
            ax.plot(w, at + shift, marker, color=colour, ms=7, mew=0)
        ax.set_yticks(at, [_short(name) for name in names])
        ax.set_ylim(-0.7, len(columns) - 0.3)
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.grid(visible=True, axis="x")

    words = [
        f"{LOOK[kind][3]}: " + ", ".join(f"{fit.phi[j]} {W[output, j]:.3g}" for j in columns)
        for kind, (W, _) in fit.estimates.items()
    ]
    alt = f"Coefficients of {fit.outputs[output]} {'; '.join(words)}."
    title, height = fit.outputs[output], 40 + 27 * len(columns)
    return draw(f"coefficients-{output}", alt, paint, title=title, height=height)


def _worth_showing(fit: FitView, output: int) -> list[int]:
    """Return the features but the constant; if there are many, those that differ most."""
    inside = set(fit.endogenous)
    slopes = [j for j, name in enumerate(fit.phi) if name != "1"]
    if len(slopes) > ROWS:
        dispute = np.nan_to_num(np.abs(fit.gap[output]))
        slopes = sorted(slopes, key=lambda j: -dispute[j])[:ROWS]
    return sorted(slopes, key=lambda j: (j not in inside, j))


def first_stages(fit: FitView) -> tuple[Picture, ...]:
    """Plot each action against the instruments' prediction of it beyond the state."""
    stages = fit.facts["diagnostics"]["first_stage"] or {}
    pictures = []
    for k, (name, predicted, actual) in enumerate(fit.first_stages[:MOST]):
        stage = stages.get(name) or {}
        pictures.append(_first_stage(k, name, predicted, actual, stage))
    return tuple(pictures)


def _first_stage(
    number: int, name: str, predicted: np.ndarray, actual: np.ndarray, stage: dict[str, Any]
) -> Picture:
    share = stage.get("partial_r2")
    f = (stage.get("robust") or stage).get("value")
    caption = "" if share is None else f"partial R² {share:.2f}, F {f:,.0f}"

    def paint(ax: Any) -> None:
        shown = _spread(len(actual))
        ax.plot(predicted[shown], actual[shown], ".", color=MUTED, ms=4.5, mew=0, alpha=0.6)
        ends = np.array([predicted.min(), predicted.max()])
        ax.plot(ends, ends, color=INK, lw=1)
        binned(ax, predicted, actual, IV, "o")
        ax.set_xlabel("what the instruments predict")
        ax.set_ylabel("what happened")
        ax.text(0.02, 0.98, caption, transform=ax.transAxes, va="top", fontsize=10.5)

    alt = f"First stage of {name}, the exogenous features removed: {caption or 'see the table'}."
    return draw(f"first-stage-{number}", alt, paint, title=name)


def residuals(fit: FitView) -> tuple[Picture, ...]:
    """Plot each model's residuals against the instruments' prediction of one action.

    For each output, that is the action on which the two estimates differ most.
    """
    stages = {name: predicted for name, predicted, _ in fit.first_stages}
    inside = [j for j in fit.endogenous if fit.phi[j] in stages]
    if not inside or not fit.residuals:
        return ()
    pictures = []
    for i in fit.noisy[:MOST]:
        dispute = np.nan_to_num(np.abs(fit.gap[i, inside]))
        name = fit.phi[inside[int(np.argmax(dispute))]]
        pictures.append(_residual(fit, i, fit.outputs[i], name, stages[name]))
    return tuple(pictures)


def _residual(fit: FitView, i: int, output: str, action: str, predicted: np.ndarray) -> Picture:
    slopes = {k: _slope(predicted, u[:, i]) for k, u in fit.residuals.items()}

    def paint(ax: Any) -> None:
        ax.axhline(0, color=MUTED, lw=0.8)
        for kind, left in fit.residuals.items():
            binned(ax, predicted, left[:, i], *LOOK[kind][:2])
        ax.set_xlabel(f"{_short(action)}, as the instruments predict it")
        ax.set_ylabel("mean residual")

    summary = "; ".join(f"slope {slope:.3g} {LOOK[kind][3]}" for kind, slope in slopes.items())
    alt = (
        f"Residuals of {output} against the part of {action} that the instruments move: {summary}."
    )
    return draw(f"residuals-{i}", alt, paint, title=output)


def spreads(fit: FitView) -> tuple[Picture, ...]:
    """Plot the residuals of each output against its fitted values, as points."""
    if not fit.residuals or fit.sample is None:
        return ()
    shown, kind = _spread(len(fit.sample)), next(iter(fit.residuals))
    left = fit.residuals[kind]
    fitted = fit.sample.y - left
    return tuple(
        _spread_of(i, fit.outputs[i], fitted[shown, i], left[shown, i], LOOK[kind][0])
        for i in fit.noisy[:MOST]
    )


def _spread_of(i: int, name: str, fitted: np.ndarray, left: np.ndarray, colour: str) -> Picture:
    def paint(ax: Any) -> None:
        ax.axhline(0, color=MUTED, lw=0.8)
        ax.plot(fitted, left, ".", color=colour, ms=5, mew=0, alpha=0.55)
        ax.set_xlabel("fitted")
        ax.set_ylabel("residual")

    alt = f"Residuals of {name} against fitted values; standard deviation {left.std():.3g}."
    return draw(f"spread-{i}", alt, paint, title=name, height=210)


def policy_slices(curves: Sequence[ActionCurve]) -> tuple[Picture, ...]:
    """Plot actions along the states that they depend on most, each on its own axis."""
    return tuple(_slice(i, curve) for i, curve in enumerate(curves))


def _slice(number: int, curve: ActionCurve) -> Picture:
    low, high = curve.limits
    room = 0.08 * (high - low) or 0.5

    def paint(ax: Any) -> None:
        draw_curve(ax, curve, IV)
        ax.set_xlabel(_short(curve.state))
        ax.set_ylim(low - room, high + room)
        ax.grid(visible=True, axis="y")

    ends = [f"{a:.3g} at {x:.3g}" for x, a in zip(curve.x[[0, -1]], curve.a[[0, -1]], strict=True)]
    alt = f"Policy's {curve.action} along {curve.state}: {ends[0]}, {ends[1]}."
    return draw(f"policy-{number}", alt, paint, title=curve.action, height=210)


def binned(ax: Any, x: np.ndarray, y: np.ndarray, colour: str, marker: str) -> None:
    """Plot the mean of y with its 95% interval in bins of x of equal size."""
    parts = [p for p in np.array_split(np.argsort(x, kind="stable"), BINS) if len(p) > 1]
    means = [(x[p].mean(), y[p].mean(), y[p].std(ddof=1) / np.sqrt(len(p))) for p in parts]
    at, mean, se = np.array(means).T
    ax.errorbar(at, mean, yerr=NORMAL_95 * se, fmt="none", color=colour, lw=1.3)
    ax.plot(at, mean, marker, color=colour, ms=6.5, mew=0)


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    centred = x - x.mean()
    return float(centred @ y / max(centred @ centred, 1e-300))


def _spread(n: int) -> slice:
    return slice(None, None, max(1, -(-n // POINTS)))


def _short(name: str, most: int = 18) -> str:
    return name if len(name) <= most else name[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"
