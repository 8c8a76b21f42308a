"""A fit as text: three sentences, the coefficients, the diagnostics, and what was left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ivvi.diagnostics.text import WIDTH
from ivvi.fitting.average_effects import effect_lines
from ivvi.fitting.inference import NO_MOMENTS

if TYPE_CHECKING:
    from ivvi.fitting.fit import Fit


def fit_summary(fit: Fit, most_outputs: int | None, *, warnings: bool = True) -> str:
    """Return three plain sentences, the coefficients beside least squares', diagnostics."""
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
        lines += [f"columns           {text}" for text in fit.roles.lines()]
        lines += [f"ends              {text}" for text in _end_lines(fit)]
        lines.append(f"dropped rows      {dropped_rows(fit)}")
    if trace is not None:
        gap = f"{trace.error:.2f} standard errors from"
        known = fit.inference is not None
        far = f"{gap} the closed form" if known else f"moment conditions {gap} zero"
        lines.append(f"descent-ascent    {trace.status} after {trace.t[-1]} steps, {far}")
    if fit.inference is None:
        return "\n".join([*lines, f"standard errors   - ({NO_MOMENTS})"])
    lines += _absorbed_lines(fit)
    if fit.partialled is not None:
        lines.append(f"controls          {fit.partialled.line}")
    lines.append(f"standard errors   {fit.estimate.W_cov}; LS ignores the instrument")
    lines += [f"                  {fit.errors.note}"] if fit.errors.note else []
    return "\n".join(lines)


def log_line(fit: Fit) -> str:
    """Name the log and count what was used of it."""
    c = fit.counts
    return f"{fit.label}: {c.transitions:,} transitions of {c.episodes:,} episodes"


def dropped_rows(fit: Fit) -> str:
    """Count what was not used, by reason."""
    return ", ".join(f"{n:,} {what}" for what, n in fit.dropped.items() if n) or "none"


def _noise_lines(fit: Fit, n_outputs: int) -> list[str]:
    """Say how large the noise of each output is, where nothing more is known."""
    d_y, d_phi = fit.W.shape
    spread = np.sqrt(np.diag(fit.estimate.noise_cov))
    named = zip(fit.roles.outputs[:n_outputs], spread, strict=False)
    return [
        f"{d_phi:,} features, {d_y} outputs, memory of order d",
        *(f"  {name:<15} noise {size:.4g}" for name, size in named),
    ]


def _absorbed_lines(fit: Fit) -> list[str]:
    """Say which effects were absorbed, and what they cost."""
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
    if fit.nickell is not None:
        lines.append(f"Nickell bias      {fit.nickell.line(fit.estimate)}")
    return lines


def _end_lines(fit: Fit) -> list[str]:
    """Say how many episodes ended for good, and how many the log only stops watching."""
    if not fit.roles.terminal:
        return []
    over, c = fit.counts.ended, fit.counts
    return [
        f"{over:,} of {c.episodes:,} episodes ended ({', '.join(fit.roles.ends)}); "
        f"{c.episodes - over:,} go on after their last row (censored)"
    ]
