"""The paper's figures from records, as curves with their 95% bands over logs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ivvi_reproduction.cell_statistics import CellStatistics, student
from ivvi_reproduction.results import BandCurve, ResultFigure
from ivvi_reproduction.specs import Experiment, FigureSpec, Variant


@dataclass(frozen=True, slots=True)
class Panels:
    """The panels of one figure of the paper for one variant."""

    spec: FigureSpec
    experiment: Experiment
    measures: CellStatistics
    variant: Variant
    command: str

    def __iter__(self) -> Iterator[ResultFigure]:
        if "loss" in self.spec.measures:
            yield self._loss()
        if "reward" in self.spec.measures:
            for baseline in self.spec.baseline:
                yield self._regret("paper", baseline=baseline)
            yield self._regret("best", baseline=False)

    def _loss(self) -> ResultFigure:
        """Distance of the iterates from their target, with that of the closed form."""
        curves, columns = [], self.experiment.columns
        for setting in self.spec.settings:
            runs = self._values("paper", "ivvi", setting, of="loss")
            closed = self._values("best", "ivvi", setting, of="distance")
            name = f"setting {setting}"
            if runs:
                t, paths = _common(runs)
                curves.append(_geometric(name, t, paths))
            if runs and closed and columns["best"].features == columns["paper"].features:
                flat = np.repeat(np.array(closed)[:, None], 2, axis=1)
                label = f"{columns['best'].method}, {setting}"
                curves.append(replace(_geometric(label, t[[0, -1]], flat), level_for=name))
        regressed = self._values("paper", "baseline", self.experiment.baseline, of="distance")
        if curves and regressed and any(self.spec.baseline):
            flat = np.repeat(np.array(regressed)[:, None], 2, axis=1)
            curves.append(_geometric("least squares", curves[0].x[[0, -1]], flat))
        target = "W_sad" if self.experiment.columns["paper"].features == "poly2" else "W*"
        return self._figure(
            f"loss-{self.variant.key}",
            f"|W_t - {target}| ({self.spec.paper})",
            "iteration t",
            f"|W_t - {target}|",
            curves,
            f"Distance of the iterates of the authors' loop from {target}, "
            "geometric mean over logs",
            "The authors' loop, a step a batch; geometric mean and 95% band over logs.",
            logarithmic=True,
        )

    def _regret(self, column: str, *, baseline: bool) -> ResultFigure:
        """Regret summed up to each point of the episode."""
        best = self.measures.optimal(self.variant.key, column, of="rewards")
        whose = [("ivvi", setting, f"setting {setting}") for setting in self.spec.settings]
        whose += [("baseline", self.experiment.baseline, "least squares")] if baseline else []
        how = "as the paper" if column == "paper" else "at our best"
        curves = []
        for who, setting, label in whose if best is not None else ():
            if runs := self._values(column, who, setting, of="rewards"):
                lost = np.cumsum(best - np.array(runs), axis=1)
                share = 100 * np.arange(1, lost.shape[1] + 1) / lost.shape[1]
                curves.append(_curve(label, share, lost))
        return self._figure(
            f"{'reward' if column == 'paper' else column}-{self.variant.key}"
            f"{'-baseline' if baseline else ''}",
            f"regret so far, {how}{', with baseline' if baseline else ''}",
            "percent of the episode",
            "regret so far",
            curves,
            f"Regret summed up to each point of the episode, {how}"
            f"{', with least squares' if baseline else ''}",
            "Mean and 95% band over logs.",
        )

    def _values(self, column: str, who: str, setting: str, of: str) -> list[Any]:
        return self.measures.values((self.variant.key, column, who, setting), of=of)

    def _figure(
        self,
        name: str,
        title: str,
        x_label: str,
        y_label: str,
        curves: Sequence[BandCurve],
        alt: str,
        note: str,
        *,
        logarithmic: bool = False,
    ) -> ResultFigure:
        ends = "; ".join(f"{curve.label} ends at {curve.mean[-1]:.4g}" for curve in curves)
        return ResultFigure(
            f"{self.spec.name}-{name}",
            f"{self.experiment.title}, {self.variant.label}: {title}",
            x_label,
            y_label,
            tuple(curves),
            f"{alt}: {ends}.",
            note,
            self.command,
            log_x=logarithmic,
            log_y=logarithmic,
        )


def make_figures(
    spec: FigureSpec, experiment: Experiment, measures: CellStatistics, command: str
) -> Iterator[ResultFigure]:
    """Draw one figure of the paper: a panel for each variant and measure."""
    for variant in experiment.variants:
        yield from Panels(spec, experiment, measures, variant, command)


def _common(runs: Sequence[dict[str, list[float | None]]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the iterations that all runs reached with finite weights, and their losses."""
    paths = [run["distance"] for run in runs]
    reached = min(next((i for i, v in enumerate(p) if v is None), len(p)) for p in paths)
    return np.array(runs[0]["t"][:reached]), np.array([p[:reached] for p in paths], dtype=float)


def _curve(label: str, x: np.ndarray, runs: np.ndarray) -> BandCurve:
    """Average runs (logs, points) and put a band of Student's t around them."""
    mean, n = runs.mean(axis=0), len(runs)
    if n < 2:
        return BandCurve(label, x, mean)
    half = student(n) * runs.std(axis=0, ddof=1) / math.sqrt(n)
    return BandCurve(label, x, mean, mean - half, mean + half)


def _geometric(label: str, x: np.ndarray, runs: np.ndarray) -> BandCurve:
    """Average positive runs (logs, points) on the scale of their logarithms."""
    curve = _curve(label, x, np.log(runs))
    low, high = (None if side is None else np.exp(side) for side in (curve.low, curve.high))
    return BandCurve(label, x, np.exp(curve.mean), low, high)
