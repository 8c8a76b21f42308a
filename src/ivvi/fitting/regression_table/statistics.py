"""The statistics below the coefficients in a table of fits: n, clusters, first-stage F, tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ivvi.fitting.fit import Fit


def _by_output(text: str, outputs: Sequence[str]) -> dict[str, str]:
    return dict.fromkeys(outputs, text)


def _p_values(names: Sequence[str], fit: Fit, chosen: Sequence[str]) -> dict[str, str]:
    """Return the p-values of the first of these tests that was made, by output.

    Regression has no residuals of the instruments' estimate, so no overidentification either.
    """
    if fit.inference is None or (not fit.uses_instruments and "sargan" in names):
        return {}
    tests = fit.diagnostics.by_output
    tested = next((tests[name] for name in names if tests.get(name) is not None), None)
    outputs = fit.diagnostics.outputs
    pairs = zip(outputs, tested or (), strict=False)
    return {output: f"{test.p_value:.3f}" for output, test in pairs if output in chosen}


def _first_stage(fit: Fit, outputs: Sequence[str]) -> dict[str, str]:
    """Return the F of the first stage: robust where errors are, of all actions together."""
    if fit.inference is None or not fit.uses_instruments:
        return {}
    d = fit.diagnostics
    if d.kleibergen_paap is not None:
        value: float | None = d.kleibergen_paap.f
    else:
        value = d.cragg_donald
    return {} if value is None else _by_output(f"{value:,.1f}", outputs)


def _verdict_word(fit: Fit) -> str:
    """Return the verdict on the instruments; none where they were not used."""
    return fit.verdict.word if fit.verdict and fit.uses_instruments else ""


def _r2(fit: Fit, outputs: Sequence[str]) -> dict[str, str]:
    if not fit.has_moments:
        return {}
    y = list(fit.moments.design.y_columns)
    total = np.diag(fit.moments.scatter)[y] / fit.moments.weight
    share = 1 - np.diag(fit.estimate.noise_cov) / np.where(total > 0, total, np.inf)
    pairs = zip(fit.roles.outputs, share, strict=True)
    return {output: f"{value:.3f}" for output, value in pairs if output in outputs}


def _clusters(fit: Fit, outputs: Sequence[str]) -> dict[str, str]:
    counts = fit.estimate.W_cov.clusters if fit.inference is not None else ()
    text = ", ".join(f"{count:,} by {column}" for column, count in counts)
    return _by_output(text, outputs)


def _errors(fit: Fit, outputs: Sequence[str]) -> dict[str, str]:
    if fit.inference is None:
        return {}
    covariance = fit.estimate.W_cov
    by = f" by {', '.join(c for c, _ in covariance.clusters)}" if covariance.clusters else ""
    return _by_output(covariance.kind + by, outputs)


Below = Callable[[Fit, Sequence[str]], dict[str, str]]
STATISTICS: dict[str, tuple[str, Below]] = {
    "n": ("n", lambda fit, outputs: _by_output(f"{fit.estimate.n:,}", outputs)),
    "episodes": (
        "episodes",
        lambda fit, outputs: _by_output(f"{fit.counts.episodes:,}", outputs),
    ),
    "clusters": ("clusters", _clusters),
    "f": ("first-stage F", _first_stage),
    "j": ("overidentification p", partial(_p_values, ("hansen_j", "sargan"))),
    "endogeneity": ("Wu-Hausman p", partial(_p_values, ("robust_wu_hausman", "wu_hausman"))),
    "r2": ("R2", _r2),
    "verdict": (
        "instruments",
        lambda fit, outputs: _by_output(_verdict_word(fit), outputs),
    ),
    "errors": ("standard errors", _errors),
}
"""Title of each statistic below the coefficients, and its text by output."""
