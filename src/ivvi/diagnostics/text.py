"""Diagnostics as text, in the form that econometricians read."""

from __future__ import annotations

from collections.abc import Iterable

from ivvi.diagnostics.rank_tests import BIASES
from ivvi.diagnostics.result import Diagnostics
from ivvi.diagnostics.statistic import Statistic

WIDTH = 78
RECOMMENDED = {
    "wald": "Wald's intervals [95% conf.]",
    "wild": "the intervals of the wild bootstrap, not Wald's [95% conf.]",
    "robust": "the intervals that hold however weak the instrument, not Wald's [95% conf.]",
    "none": "no interval of this table; `ivvi interval` searches for the set of one effect",
}
TITLES = {
    "sargan": "Sargan",
    "basmann": "Basmann",
    "hansen_j": "Hansen J",
    "difference_in_sargan": "C statistic",
    "wu_hausman": "Wu-Hausman",
    "robust_wu_hausman": "robust Wu-Hausman",
    "durbin": "Durbin",
}


def diagnostics_table(diagnostics: Diagnostics) -> str:
    """Return the essentials: how strong the instruments are, and the specification tests."""
    d = diagnostics
    lines = ["instrument", "-" * WIDTH, *_strength(d), *_first_stages(d), *_together(d)]
    over = "sargan" if d.by_output["hansen_j"] is None else "hansen_j"
    plain = d.by_output["robust_wu_hausman"] is None
    for name in (over, "wu_hausman" if plain else "robust_wu_hausman"):
        lines += _tests(d, name)
    return "\n".join(lines)


SPREAD = "many instruments, each of them weak, are strong enough together for a jackknife"


def panel_table(diagnostics: Diagnostics) -> str:
    """Return every diagnostic, each with its null, distribution, p-value and a verdict."""
    d = diagnostics
    lines = ["STRENGTH", "-" * WIDTH, *_strength(d)]
    lines += [*_first_stages(d, full=True), *_together(d, full=True)]
    for kind, row in (d.stock_yogo or {}).items():
        lines.append(_critical("Stock-Yogo", kind, row.items()))
    if d.stock_yogo is None:
        lines.append(f"  Stock-Yogo critical values  - ({d.reasons['stock_yogo']})")
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
        *([f"recommended       {RECOMMENDED[d.verdict.recommended]}"] if d.verdict.word else []),
        *([f"estimator         {d.verdict.method}: {SPREAD}"] if d.verdict.method else []),
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
        test, share = stage.partial_f, f"partial R2 {stage.partial_r2:.4f}"
        if not full:  # the F that the verdict goes by: robust where the errors are
            shown = stage.robust_f or test
            lines.append(
                f"first stage {stage.feature:<6} F {shown.value:<10.4g} {shown.distribution:<14} "
                f"p = {shown.p_value:.4f}  {share}"
            )
            continue
        lines.append(f"first stage {stage.feature:<5} null: {test.null}")
        lines.append(f"  partial F        {_line(test)}  {share}")
        lines.append(_or_why("robust F", stage.robust_f, stage.reasons.get("robust")))
        if len(d.first_stage) > 1:
            if stage.conditional_f is not None:
                lines.append(f"{'':<17} null: {stage.conditional_f.null}")
            why = stage.reasons.get("conditional")
            lines.append(_or_why("SW conditional F", stage.conditional_f, why))
            why = stage.reasons.get("robust_conditional")
            lines.append(_or_why("robust SW F", stage.robust_conditional_f, why))
    return lines or [f"first stage       - ({d.reasons['first_stage']})"]


def _or_why(title: str, test: Statistic | None, why: str | None) -> str:
    return f"  {title:<16} {f'- ({why})' if test is None else _line(test)}"


def _together(d: Diagnostics, *, full: bool = False) -> list[str]:
    """Return the statistics of all endogenous features together, `full` with their nulls."""
    lines = []
    if d.cragg_donald is None or d.cragg_donald_test is None:
        lines.append(f"Cragg-Donald F    - ({d.reasons['cragg_donald']})")
    else:
        lines.append(f"Cragg-Donald F    {d.cragg_donald:<12.4g} Wald {_line(d.cragg_donald_test)}")
        lines += [f"{'':<17} null: {d.cragg_donald_test.null}"] * full
    if d.kleibergen_paap is None:
        lines.append(f"Kleibergen-Paap   - ({d.reasons['kleibergen_paap']})")
    else:
        test = d.kleibergen_paap
        lines.append(f"Kleibergen-Paap F {test.f:<12.4g} rk {_line(test.wald)}")
        lines += [f"{'':<17} null: {test.wald.null}"] * full
    if d.effective_f is None:
        lines.append(f"effective F       - ({d.reasons['effective_f']})")
        return lines
    effective = d.effective_f
    lines.append(
        f"effective F       {effective.value:<12.4g} critical value "
        f"{effective.critical[1]:.4g} (bias of 10%), p = {effective.p_value:.4f}"
    )
    if full:
        lines.append(f"{'':<17} null: {effective.null}")
        lines.append(f"{'':<17} {effective.distribution}")
        lines.append(_critical("effective F", "bias", zip(BIASES, effective.critical, strict=True)))
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
    if name in d.joint and len(d.outputs) > 1:
        together, why = d.joint[name], d.reasons.get(f"joint_{name}")
        joint_line = f"- ({why})" if together is None else _line(together)
        lines.append(f"  {'together':<15} {joint_line}")
    return lines


def _line(test: Statistic) -> str:
    verdict = "rejected at 5%" if test.p_value < 0.05 else "not rejected"
    return f"{test.value:<12.4g} {test.distribution:<16} p = {test.p_value:.4f}  {verdict}"


def format_number(value: float) -> str:
    """Format to nine places: four decimals, fewer of large numbers, scientific beyond them."""
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return f"{value:9.2e}"
    whole = len(f"{abs(value):.0f}")
    return f"{value:9.{min(4, max(0, 7 - whole))}f}"
