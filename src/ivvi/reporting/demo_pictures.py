"""Pictures of the demo, which knows the truth: the log, the effects, the walks, the bill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ivvi.errors import FileError
from ivvi.fitting.inference import NORMAL_95
from ivvi.reporting.cells import MINUS, Picture
from ivvi.reporting.fit_pictures import LOOK, binned
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.pictures import INK, IV, LS, MUTED, draw

KINDS = {"instrument": "iv", "least squares": "ls"}
"""The two policies of the demo, by the estimate that they were planned with."""
PLANNED = {
    name: f"planned {LOOK[kind][3]}".replace(" by ", " with ") for name, kind in KINDS.items()
}


def log_picture(fit: FitView, k: int) -> Picture:
    """Draw what follows action k in the log, all other features removed, and both slopes."""
    j = fit.phi.index(fit.model.action[k])
    a, left = _without_others(fit, k, j)
    slopes = {kind: float(W[k, j]) for kind, (W, _) in fit.estimates.items()}

    def paint(ax: Any) -> None:
        ends = np.quantile(a, (0.01, 0.99))
        for kind, slope in slopes.items():
            colour, _, _, words = LOOK[kind]
            ax.plot(ends, slope * ends, color=colour, lw=2.2)
            up = 1 if slope > 0 else -1
            ax.annotate(
                f"{slope:+.2f} {words}".replace("-", MINUS),
                (0.97 * ends[1], slope * ends[1]),
                xytext=(0, 16 * up),
                textcoords="offset points",
                ha="right",
                va="center",
                color=colour,
            )
        binned(ax, a, left, INK, "o")
        ax.margins(y=0.16)
        ax.set_xlabel(f"action {fit.model.action[k]}, without what predicts it")
        ax.set_ylabel(f"{fit.outputs[k]}, likewise")

    alt = (
        f"In the log, larger actions are followed by larger states: least squares finds a slope "
        f"of {slopes['ls']:.2f}; the instrument finds {slopes['iv']:.2f}."
    )
    return draw("story-log", alt, paint, width=390, height=280)


def _without_others(fit: FitView, output: int, feature: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a feature and an output of the sample after regression on all other features."""
    if fit.sample is None:
        raise FileError("a fit to sums has no rows to draw")
    Phi = fit.model.phi(fit.sample.x, fit.sample.a)
    others = np.delete(Phi, feature, axis=1)
    both = np.column_stack([Phi[:, feature], fit.sample.y[:, output]])
    rest = both - others @ np.linalg.lstsq(others, both, rcond=None)[0]
    return rest[:, 0], rest[:, 1]


def effect_picture(
    fit: FitView, truth: np.ndarray, name: str, kinds: tuple[str, ...] = ("iv", "ls")
) -> Picture:
    """Draw the effect of each action on its own state, with the truth as a bar."""
    actions = fit.model.action
    own = [(i, fit.phi.index(a)) for i, a in enumerate(actions)]
    at, rows, columns = np.arange(len(own))[::-1], *np.array(own).T

    def paint(ax: Any) -> None:
        ax.axvline(0, color=MUTED, lw=0.8)
        ax.vlines(truth[rows, columns], at - 0.36, at + 0.36, color=INK, lw=2)
        for kind in kinds:
            (W, se), (colour, marker, shift, _) = fit.estimates[kind], LOOK[kind]
            w, half = W[rows, columns], NORMAL_95 * se[rows, columns]
            ax.errorbar(w, at + shift, xerr=half, fmt="none", color=colour, lw=1.6)
            ax.plot(w, at + shift, marker, color=colour, ms=7.5, mew=0)
        both = np.concatenate([W[rows, columns] for W, _ in fit.estimates.values()])
        ax.set_xlim(min(0, both.min()) - 0.08, max(0, both.max()) + 0.08)
        ax.set_yticks(
            at, [f"{a} \N{RIGHTWARDS ARROW} {fit.outputs[i]}" for i, a in enumerate(actions)]
        )
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.grid(visible=True, axis="x")
        ax.set_xlabel("effect of the action on its own state")

    summary = "; ".join(
        f"{LOOK[kind][3]} " + ", ".join(f"{v:.2f}" for v in fit.estimates[kind][0][rows, columns])
        for kind in kinds
    )
    true = ", ".join(f"{v:.2f}" for v in truth[rows, columns])
    alt = f"Effects of the actions on their own states. Truth {true}; {summary}."
    return draw(name, alt, paint, width=390, height=84 + 32 * len(own))


def walk_picture(walks: Mapping[str, Mapping[str, Any]], state: tuple[str, ...]) -> Picture:
    """Draw the paths of both policies in the plane of the first two states."""

    def paint(ax: Any) -> None:
        ax.plot(0, 0, "+", color=INK, ms=14, mew=1.4)
        ax.annotate("target", (0, 0), xytext=(9, -13), textcoords="offset points")
        for name, walk in walks.items():
            x = np.array(walk["states"])[:, :2]
            (line,) = ax.plot(x[:, 0], x[:, 1], color=LOOK[KINDS[name]][0], lw=1.3)
            line.set_gid(f"walk-{KINDS[name]}")
        start = np.array(next(iter(walks.values()))["states"])[0]
        ax.plot(*start[:2], "o", color=INK, ms=5)
        ax.annotate("start", start[:2], xytext=(-8, -3), textcoords="offset points", ha="right")
        ax.set_xlabel(state[0])
        ax.set_ylabel(state[1])
        ax.margins(0.06)

    ends = {name: np.linalg.norm(walk["states"][-1]) for name, walk in walks.items()}
    summary = "; ".join(
        f"{PLANNED[name]}, it ends at distance {far:.1f}" for name, far in ends.items()
    )
    alt = f"Two policies walk from the same start with the same noise. One {summary}."
    return draw("story-walk", alt, paint, width=390, height=310)


def distance_picture(walks: Mapping[str, Mapping[str, Any]]) -> Picture:
    """Draw how far from the target twelve walks of each policy are."""

    def paint(ax: Any) -> None:
        for name, walk in walks.items():
            far, colour = np.array(walk["distance"]), LOOK[KINDS[name]][0]
            ax.plot(far.T, color=colour, lw=0.6, alpha=0.3)
            ax.plot(far.mean(axis=0), color=colour, lw=2.2)
            place = (far.shape[1] - 1, far.mean(axis=0)[-1])
            ax.annotate(
                PLANNED[name],
                place,
                xytext=(0, 12),
                textcoords="offset points",
                ha="right",
                color=colour,
            )
        ax.set_ylim(bottom=0)
        ax.set_xlabel("step")
        ax.set_ylabel("distance from the target")

    means = {name: np.array(walk["distance"]).mean(axis=0)[-1] for name, walk in walks.items()}
    summary = ", ".join(f"{far:.1f} {PLANNED[name]}" for name, far in means.items())
    alt = f"Mean distance from the target after the walk: {summary}."
    return draw("story-distance", alt, paint, width=390, height=310)


def bill_picture(costs: Mapping[str, tuple[float, float]], words: Mapping[str, str]) -> Picture:
    """Draw what each policy costs, with 95% intervals."""
    names = sorted(costs, key=lambda name: costs[name][0], reverse=True)
    at = np.arange(len(names))

    def paint(ax: Any) -> None:
        largest = max(cost for cost, _ in costs.values())
        for i, name in zip(at, names, strict=True):
            cost, half = costs[name]
            colour = {"iv": IV, "ls": LS}.get(KINDS.get(name, ""), MUTED)
            ax.barh(i, cost, height=0.42, color=colour)
            ax.errorbar(cost, i, xerr=half, fmt="none", color=INK, lw=1)
            ax.text(cost + half + 0.015 * largest, i, f"{cost:,.0f}", va="center")
            ax.text(0, i + 0.28, words[name], va="bottom")
        ax.set_xlim(0, 1.12 * largest)
        ax.set_ylim(-0.4, len(names) - 0.1)
        ax.set_axis_off()

    alt = ", ".join(f"{words[name]} {costs[name][0]:,.0f}" for name in names[::-1])
    return draw("story-bill", f"What each policy costs: {alt}.", paint, width=390, height=280)
