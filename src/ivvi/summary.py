"""Results as text, in the form that econometricians read."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ivvi.diagnostics import Diagnostics, Statistic
from ivvi.diagnostics.rank import BIASES
from ivvi.estimators import Estimate

WIDTH = 78
NORMAL_95 = 1.959963984540054
"""The 97.5% quantile of the normal distribution."""
TITLES = {
    "sargan": "Sargan",
    "basmann": "Basmann",
    "hansen_j": "Hansen J",
    "difference_in_sargan": "C statistic",
    "wu_hausman": "Wu-Hausman",
    "robust_wu_hausman": "robust Wu-Hausman",
    "durbin": "Durbin",
}


def coefficient_table(estimate: Estimate, baseline: Estimate, output: int) -> str:
    """Return one output's coefficients: instrumented, with intervals, and least squares.

    The last column is how far least squares lies from the instrumented estimate, in
    standard errors of the latter. An estimate that is least squares stands alone.
    """
    names = estimate.layout.phi_names
    width = max(10, *(len(name) for name in names))
    alone = np.array_equal(estimate.W, baseline.W)
    titles = ("LS" if alone else "IV", "std.err.", "t", "[95%", "conf.]", "LS", "LS-IV")
    widths = (9, 9, 8, 9, 9, 9, 7)
    columns = list(zip(titles, widths, strict=True))[: 5 if alone else 7]
    head = " " * width + "".join(f" {t:>{w}}" for t, w in columns)
    lines = [f"output {estimate.layout.outputs[output]}", head, "-" * len(head)]
    se = estimate.se
    for j, name in enumerate(names):
        w, s, ls = estimate.W[output, j], se[output, j], baseline.W[output, j]
        if math.isnan(s):
            lines.append(f"{name:{width}} {_number(w)}  {'not identified':^37} {_number(ls)}")
            continue
        low, high = w - NORMAL_95 * s, w + NORMAL_95 * s
        moved = (ls - w) / s if s > 0 else math.nan
        t = w / s if s > 0 else math.nan
        lines.append(
            f"{name:{width}} {_number(w)} {_number(s)} {t:8.2f} {_number(low)} {_number(high)}"
            + ("" if alone else f" {_number(ls)} {moved:+6.1f}s")
        )
    return "\n".join(lines)


def diagnostics_table(diagnostics: Diagnostics) -> str:
    """Return the essentials: how strong the instruments are, and the specification tests."""
    d = diagnostics
    lines = ["instrument", "-" * WIDTH, *_strength(d), *_first_stages(d), *_together(d)]
    over = "sargan" if d.by_output["hansen_j"] is None else "hansen_j"
    plain = d.by_output["robust_wu_hausman"] is None
    for name in (over, "wu_hausman" if plain else "robust_wu_hausman"):
        lines += _tests(d, name)
    return "\n".join(lines)


def panel_table(diagnostics: Diagnostics) -> str:
    """Return every diagnostic, each with its null, distribution, p-value and a verdict."""
    d = diagnostics
    lines = ["STRENGTH", "-" * WIDTH, *_strength(d), *_first_stages(d, full=True), *_together(d)]
    if d.effective_f is not None:
        values = zip(BIASES, d.effective_f.critical, strict=True)
        lines.append(_critical("effective F", "bias", values))
    for kind, row in (d.stock_yogo or {}).items():
        lines.append(_critical("Stock-Yogo", kind, row.items()))
    lines += ["", "VALIDITY: do the instruments touch the outcome through the actions alone?"]
    lines.append("-" * WIDTH)
    for name in ("sargan", "basmann", "hansen_j", "difference_in_sargan"):
        lines += _tests(d, name)
    lines += ["", "CONFOUNDING: would least squares do?", "-" * WIDTH]
    for name in ("wu_hausman", "robust_wu_hausman", "durbin"):
        lines += _tests(d, name)
    return "\n".join(lines)


def _strength(d: Diagnostics) -> list[str]:
    s = d.strength
    lines = [
        f"verdict           {(d.verdict.word or 'none').upper()}",
        f"  rule            {d.verdict.rule}",
        f"strength mu_iv    {s.mu_iv:<12.4g} smallest eigenvalue of A' B^-1 A",
        f"mu_B              {s.mu_b:<12.4g} smallest eigenvalue of B",
        f"weakest direction {s.weakest}",
        f"identified        {'yes' if s.identified else 'NO'}: rank of A is {s.rank} of {s.d_phi}, "
        f"rank of psi {s.rank_psi} of {s.d_psi}",
    ]
    return lines + [f"  free direction  {words}" for words in s.unidentified]


def _first_stages(d: Diagnostics, *, full: bool = False) -> list[str]:
    lines = []
    for stage in d.first_stage:
        lines.append(
            f"first stage {stage.feature:<6} partial F {stage.partial_f.value:<10.4g} "
            f"{stage.partial_f.distribution:<14} partial R2 {stage.partial_r2:.4f}"
        )
        for title, test in (
            ("robust F", stage.robust_f),
            ("SW conditional F", stage.conditional_f if len(d.first_stage) > 1 else None),
            ("robust SW F", stage.robust_conditional_f if len(d.first_stage) > 1 else None),
        ):
            if full and test is not None:
                lines.append(f"  {title:<16} {_line(test)}")
    return lines


def _together(d: Diagnostics) -> list[str]:
    """Return the statistics of all endogenous features together."""
    lines = []
    if d.cragg_donald is None or d.cragg_donald_test is None:
        lines.append(f"Cragg-Donald F    - ({d.reasons['cragg_donald']})")
    else:
        lines.append(f"Cragg-Donald F    {d.cragg_donald:<12.4g} Wald {_line(d.cragg_donald_test)}")
    if d.kleibergen_paap is None:
        lines.append(f"Kleibergen-Paap   - ({d.reasons['kleibergen_paap']})")
    else:
        test = d.kleibergen_paap
        lines.append(f"Kleibergen-Paap F {test.f:<12.4g} rk {_line(test.wald)}")
    if d.effective_f is None:
        lines.append(f"effective F       - ({d.reasons['effective_f']})")
    else:
        lines.append(
            f"effective F       {d.effective_f.value:<12.4g} critical value "
            f"{d.effective_f.critical[1]:.4g} (bias of 10%), p = {d.effective_f.p_value:.4f}"
        )
    return lines


def _critical(title: str, kind: str, values: Iterable[tuple[float, float]]) -> str:
    listed = ", ".join(f"{share:.0%}: {value:.4g}" for share, value in values)
    return f"  {title} critical values by {kind}  {listed}"


def _tests(d: Diagnostics, name: str) -> list[str]:
    """Return a test of each output, and of all together, with its null."""
    title, tests = TITLES[name], d.by_output[name]
    if tests is None:
        return [f"{title:<17} - ({d.reasons[name]})"]
    lines = [f"{title:<17} null: {tests[0].null}"]
    lines += [f"  {o:<15} {_line(t)}" for o, t in zip(d.outputs, tests, strict=True)]
    together = d.joint.get(name)
    return lines if together is None else [*lines, f"  {'together':<15} {_line(together)}"]


def _line(test: Statistic) -> str:
    verdict = "rejected at 5%" if test.p_value < 0.05 else "not rejected"
    return f"{test.value:<12.4g} {test.distribution:<16} p = {test.p_value:.4f}  {verdict}"


def _number(value: float) -> str:
    """Format to nine places: four decimals, or scientific where that would say nothing."""
    if value != 0 and not 1e-3 <= abs(value) < 1e4:
        return f"{value:9.2e}"
    return f"{value:9.4f}"


def with_nulls(values: np.ndarray) -> list[list[float | None]]:
    """Return the rows of a matrix as JSON values, null for what is not finite."""
    return [[float(v) if np.isfinite(v) else None for v in row] for row in values]
