"""A picture of a fit: what the actions do, with the instrument and by least squares."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ivvi._io.plotting import IV, LS, MUTED, check_figure, draw_intervals, finished, make_axes
from ivvi.fitting.summary import half_widths

if TYPE_CHECKING:
    from ivvi.fitting.fit import Fit

MOST = 6
"""Outputs that are drawn."""


def plot_fit(fit: Fit, path: str | os.PathLike[str] | None, *, force: bool) -> Any:
    """Draw the effect of each action (of every feature where none is instrumented), by output."""
    check_figure(path, force=force)
    estimate, names = fit.estimate, fit.estimate.design.phi_names
    stages = () if fit.inference is None else fit.diagnostics.first_stage
    shown = [names.index(stage.feature) for stage in stages if stage.feature in names]
    shown = shown or [j for j, name in enumerate(names) if name != "1"]
    outputs = [i for i, o in enumerate(estimate.design.outputs) if o not in estimate.exact][:MOST]
    figure, axes = make_axes(1, max(1, len(outputs)))
    half = half_widths(estimate) * estimate.se
    beside = fit.inference is not None and fit.method != "least-squares"
    for ax, i in zip(axes[0], outputs, strict=False):
        ax.axvline(0, color=MUTED, lw=0.8)
        rows = [(fit.W[i, j], fit.W[i, j] - half[i, j], fit.W[i, j] + half[i, j]) for j in shown]
        draw_intervals(ax, [names[j] for j in shown], rows, IV)
        if beside:
            at = range(len(shown), 0, -1)
            ax.plot(fit.baseline.W[i, shown], at, "X", color=LS, ms=8, label="least squares")
            ax.legend(frameon=False, fontsize=8)
        ax.set_title(estimate.design.outputs[i], loc="left", fontsize=10)
        ax.set(xlabel="effect of one more, 95% interval")
    return finished(figure, path, force=force)
