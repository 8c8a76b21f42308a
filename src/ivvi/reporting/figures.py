"""Pictures of results; matplotlib is imported when one is drawn."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ivvi._io.plotting import new_figure, save_figure
from ivvi.dynamics.rollout import Rollout
from ivvi.fitting.inference import half_widths
from ivvi.simulators.evaluate import Evaluation

COLOURS = ("#222222", "#1b7f79", "#c8553d", "#5b6c8f", "#b08900", "#8e5ea2")
BLUE, RED = "#1d6fb8", "#c1121f"


def draw_rewards(
    evaluation: Evaluation, path: str | os.PathLike[str], *, force: bool = False
) -> None:
    """Draw the mean reward of each step with its 95% band, one line per policy."""
    figure = new_figure(7.5, 4.2)
    axes = figure.subplots()
    for colour, name in zip(COLOURS * 9, evaluation.rewards, strict=False):
        mean, low, high = evaluation.curve(name).T
        axes.plot(mean, color=colour, lw=1.4, label=f"{name}  ({evaluation.value(name)})")
        axes.fill_between(range(len(mean)), low, high, color=colour, alpha=0.15, lw=0)
    axes.set(xlabel="step", ylabel="reward", title=evaluation.label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, title="policy (return, 95% interval)")
    save_figure(figure, path, force=force)


def draw_effects(fit: Any, truth: Any, path: str | os.PathLike[str], *, force: bool) -> None:
    """Draw every coefficient against the truth, instrumented and by least squares."""
    roles, names = fit.roles, fit.estimate.design.phi_names
    own = [(i, names.index(a)) for i, a in enumerate(roles.action[: len(fit.W)])]
    at = tuple(np.array(own).T)
    place = np.arange(len(own))
    figure = new_figure(9, 4.2)
    effects, scatter = figure.subplots(1, 2, width_ratios=(1.35, 1))
    effects.axhline(0, color="0.75", lw=1)
    effects.hlines(truth[at], place - 0.35, place + 0.35, color="black", lw=2, label="truth")
    effects.plot(place - 0.12, fit.baseline.W[at], "X", color=RED, ms=9, label="least squares")
    effects.errorbar(
        place + 0.12,
        fit.W[at],
        (half_widths(fit.estimate) * fit.se)[at],
        fmt="o",
        color=BLUE,
        capsize=4,
        label="instrument, 95% interval",
    )
    effects.set_xticks(place, [f"{roles.action[i]} → {roles.state[i]}'" for i in place])
    effects.set_ylabel("effect of the action")
    effects.set_title("The log says push; the truth says pull", loc="left", fontsize=11)
    effects.legend(frameon=False, loc="center left", fontsize=9)
    low, high = float(truth.min()) - 0.12, float(truth.max()) + 0.12
    scatter.plot([low, high], [low, high], color="0.75", lw=1)
    scatter.plot(truth.ravel(), fit.baseline.W.ravel(), "X", color=RED, ms=6, alpha=0.7)
    scatter.plot(truth.ravel(), fit.W.ravel(), "o", color=BLUE, ms=4, alpha=0.7)
    scatter.set_xlabel("true coefficient")
    scatter.set_ylabel("estimated coefficient")
    scatter.set_title(f"All {truth.size} coefficients", loc="left", fontsize=11)
    for axes in (effects, scatter):
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path, force=force)


def draw_walks(
    walks: Mapping[str, Rollout],
    path: str | os.PathLike[str],
    *,
    bill: Evaluation,
    force: bool = False,
) -> None:
    """Draw two policies walking from the same start, and what each cost."""
    figure = new_figure(9, 4.2)
    paths, costs = figure.subplots(1, 2, width_ratios=(1.35, 1))
    for colour, (name, run) in zip((BLUE, RED), walks.items(), strict=True):
        far = np.linalg.norm(np.asarray(run.states), axis=-1)
        paths.plot(far.T, color=colour, lw=0.7, alpha=0.35)
        paths.plot(far.mean(axis=0), color=colour, lw=2.2, label=f"planned with {name}")
    paths.set(xlabel="step", ylabel="distance from the target")
    paths.set_title("Two policies, one log, the same noise", loc="left", fontsize=11)
    paths.legend(frameon=False, fontsize=9)
    names = sorted(bill.rewards, key=lambda name: bill.value(name).mean)
    cost = [-bill.value(name).mean for name in names]
    colours = [{"instrument": BLUE, "least squares": RED}.get(name, "0.6") for name in names]
    costs.barh(names, cost, color=colours)
    for i, value in enumerate(cost):
        costs.text(value, i, f" {value:,.0f}", va="center", fontsize=9)
    costs.set_xlim(0, 1.2 * max(cost))
    costs.set_title("The bill", loc="left", fontsize=11)
    for axes in (paths, costs):
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path, force=force)
