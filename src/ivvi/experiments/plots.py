"""The paper's figures from records, as curves with their 95% bands over logs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ivvi.experiments.measures import Measures, student
from ivvi.experiments.results import Curve, ResultFigure
from ivvi.experiments.specs import Experiment, FigureSpec, Variant


def make_figures(
    spec: FigureSpec, experiment: Experiment, found: Measures, command: str
) -> Iterator[ResultFigure]:
    """Draw one figure of the paper: a panel for each variant and measure."""
    for variant in experiment.variants:
        if "loss" in spec.measures:
            yield _loss(spec, experiment, found, variant, command)
        if "reward" in spec.measures:
            for baseline in spec.baseline:
                yield _reward(spec, experiment, found, variant, command, baseline=baseline)
            yield _regret(spec, experiment, found, variant, command)


def _loss(
    spec: FigureSpec, experiment: Experiment, found: Measures, variant: Variant, command: str
) -> ResultFigure:
    curves = []
    for setting in spec.settings:
        runs = found.values((variant.key, "paper", "ivvi", setting), of="loss")
        if runs:
            t, paths = _common(runs)
            curves.append(_curve(f"setting {setting}", t, paths))
            closed = found.values((variant.key, "best", "ivvi", setting), of="distance")
            if (
                closed
                and experiment.columns["best"].features == experiment.columns["paper"].features
            ):
                flat = np.full((len(closed), 2), np.array(closed)[:, None])
                curves.append(_curve(f"closed form, {setting}", t[[0, -1]], flat))
    target = "W_sad" if experiment.name == "nonlinear" else "W*"
    ends = "; ".join(f"{c.label} ends at {c.mean[-1]:.3g}" for c in curves if c.label[0] == "s")
    return ResultFigure(
        f"{spec.name}-loss-{variant.key}",
        f"{experiment.title}, {variant.label}: |W_t - {target}| ({spec.paper})",
        "iteration t",
        f"|W_t - {target}|",
        tuple(curves),
        f"Distance of the descent-ascent iterates from {target} with the paper's steps: {ends}.",
        "The paper's steps; mean and 95% band over logs.",
        command,
        log_x=True,
        log_y=True,
    )


def _common(runs: Sequence[dict[str, list[float | None]]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the iterations that all runs reached with finite weights, and their losses."""
    paths = [[v for v in run["distance"]] for run in runs]
    reached = min(next((i for i, v in enumerate(p) if v is None), len(p)) for p in paths)
    return np.array(runs[0]["t"][:reached]), np.array([p[:reached] for p in paths], dtype=float)


def _reward(
    spec: FigureSpec,
    experiment: Experiment,
    found: Measures,
    variant: Variant,
    command: str,
    *,
    baseline: bool,
) -> ResultFigure:
    whose = [("optimal", experiment.baseline, "optimal")]
    whose += [("ivvi", setting, f"setting {setting}") for setting in spec.settings]
    whose += [("baseline", experiment.baseline, "least squares")] if baseline else []
    iterations = np.array(experiment.iterations, dtype=float)
    curves = []
    for who, setting, label in whose:
        runs = found.values((variant.key, "paper", who, setting), of="planning")
        if runs:
            curves.append(_curve(label, iterations, np.array(runs)))
    ends = "; ".join(f"{c.label} reaches {c.mean[-1]:.4g}" for c in curves)
    word = "with" if baseline else "without"
    return ResultFigure(
        f"{spec.name}-reward-{variant.key}{'-baseline' if baseline else ''}",
        f"{experiment.title}, {variant.label}: return, {word} baseline ({spec.paper})",
        "iteration of SPEDE",
        "return of an episode",
        tuple(curves),
        f"Return of the policy after each iteration of planning: {ends}.",
        "As the paper does; mean and 95% band over logs. After an iteration the policy is greedy "
        f"for the value found so far; {experiment.curve_episodes} episodes a point.",
        command,
    )


def _regret(
    spec: FigureSpec, experiment: Experiment, found: Measures, variant: Variant, command: str
) -> ResultFigure:
    best = found.optimal(variant.key, "best", of="rewards")
    curves = []
    for setting in spec.settings if best is not None else ():
        runs = found.values((variant.key, "best", "ivvi", setting), of="rewards")
        if runs:
            lost = np.cumsum(best - np.array(runs), axis=1)
            share = 100 * np.arange(1, lost.shape[1] + 1) / lost.shape[1]
            curves.append(_curve(f"setting {setting}", share, lost))
    ends = "; ".join(f"{c.label} ends at {c.mean[-1]:.3g}" for c in curves)
    return ResultFigure(
        f"{spec.name}-best-{variant.key}",
        f"{experiment.title}, {variant.label}: regret so far, at our best",
        "percent of the episode",
        "regret so far",
        tuple(curves),
        f"Regret summed up to each point of the episode, at our best: {ends}.",
        "At our best; mean and 95% band over logs.",
        command,
    )


def _curve(label: str, x: np.ndarray, runs: np.ndarray) -> Curve:
    """Average runs (logs, points) and put a band of Student's t around them."""
    mean, n = runs.mean(axis=0), len(runs)
    if n < 2:
        return Curve(label, x, mean)
    half = student(n) * runs.std(axis=0, ddof=1) / math.sqrt(n)
    return Curve(label, x, mean, mean - half, mean + half)
