"""What `diagnose` returns: the statistics, in plain sentences and as econometricians read them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ivvi._io.plotting import IV, LS, check_figure, finished, make_axes
from ivvi._io.result import Brief, Records, TableResult
from ivvi.diagnostics.first_stage import FirstStage
from ivvi.diagnostics.rank_tests import BIASES, EffectiveF, RankTest
from ivvi.diagnostics.statistic import Statistic
from ivvi.diagnostics.strength import Strength
from ivvi.diagnostics.verdict import Verdict, instrument_sentence, p_words

Tests = tuple[Statistic, ...]
WIDTH = 78
RECOMMENDED = {
    "wald": "Wald's intervals [95% conf.]",
    "wild": "the intervals of the wild bootstrap, not Wald's [95% conf.]",
    "robust": "the intervals that hold however weak the instrument, not Wald's [95% conf.]",
    "none": "no interval in this table; `ivvi interval` computes the set of one effect",
}
SPREAD = "many weak instruments are together strong enough for a jackknife"
TITLES = {
    "sargan": "Sargan",
    "basmann": "Basmann",
    "hansen_j": "Hansen J",
    "difference_in_sargan": "C statistic",
    "wu_hausman": "Wu-Hausman",
    "robust_wu_hausman": "robust Wu-Hausman",
    "durbin": "Durbin",
}
LEVEL = 0.05
NEXT = {
    "strong": "`ivvi check` looks for signs that the instrument is invalid; `ivvi fit` estimates "
    "the effects.",
    "doubtful": "`ivvi fit`, and report its robust intervals instead of the usual ones.",
    "weak": "Look for a stronger instrument, or report the sets of `ivvi interval`: no estimate "
    "from this log is reliable.",
    "contradictory": "Find the invalid instrument with `ivvi diagnose --suspect` and fit without "
    "it. If the effect may differ between people, fit with each instrument alone.",
    "not identified": "Add an instrument for each action, or drop what the instruments do not "
    "move (listed below).",
}
NO_INTERVAL = "Look for a stronger instrument; `ivvi interval` computes the set of one effect."


@dataclass(frozen=True, slots=True, repr=False)
class Diagnostics(TableResult):
    """Strength, validity and confounding; None with a reason where a statistic fails.

    Attributes
    ----------
    strength, verdict
        mu_iv and the ranks, and one word on the instruments.
    first_stage
        One for each endogenous feature.
    cragg_donald, cragg_donald_test, kleibergen_paap, effective_f
        Strength of the instruments together, see `ivvi.diagnostics.rank_tests`.
    stock_yogo
        Critical values of the Cragg-Donald F, by kind and by bias or size.
    by_output
        Tests of each output: ``sargan``, ``basmann``, ``hansen_j``,
        ``difference_in_sargan``, ``wu_hausman``, ``robust_wu_hausman``, ``durbin``.
    joint
        Tests of all outputs together: ``sargan``, ``hansen_j``, ``wu_hausman``.
    outputs
        Names of the outputs.
    reasons
        Why a statistic is None, by its name.
    """

    strength: Strength
    verdict: Verdict
    first_stage: tuple[FirstStage, ...]
    cragg_donald: float | None
    cragg_donald_test: Statistic | None
    kleibergen_paap: RankTest | None
    effective_f: EffectiveF | None
    stock_yogo: dict[str, dict[float, float]] | None
    by_output: dict[str, Tests | None]
    joint: dict[str, Statistic | None]
    outputs: tuple[str, ...]
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def sargan(self) -> Tests | None:
        """Sargan's test of each output."""
        return self.by_output["sargan"]

    @property
    def wu_hausman(self) -> Tests | None:
        """Wu and Hausman's test of each output."""
        return self.by_output["wu_hausman"]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before believing the estimate."""
        sentences = []
        s = self.strength
        if not s.identified:
            sentences.append(f"not identified: {'; '.join(s.unidentified)}")
        elif s.rank_psi < s.d_psi:
            sentences.append(
                f"collinear instrument features: {s.d_psi} columns of rank {s.rank_psi}; "
                "this does not harm the estimate"
            )
        if self.verdict.word == "weak":
            sentences.append(
                f"weak instruments: {self.verdict.rule}; estimates and standard errors are "
                "unreliable"
            )
        if self.verdict.word == "contradictory":
            sentences.append(
                f"{self.verdict.sentence}; `ivvi diagnose --suspect` tests one of them"
            )
        return tuple(sentences)

    def summary(self) -> str:
        """Return three plain sentences, then every statistic with its null and p-value."""
        return f"{self.brief.text}\n\n{panel_table(self)}"

    @property
    def brief(self) -> Brief:
        """Whether the instrument is good enough and the log confounded, and what to do next."""
        return diagnose_brief(self)

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw the F of each first stage against 10, the usual threshold; `path` saves it."""
        check_figure(path, force=force)
        figure, axes = make_axes(1, 1)
        values = [(s.feature, (s.robust_f or s.partial_f).value) for s in self.first_stage]
        names = [name for name, _ in values]
        axes[0, 0].barh(names[::-1], [max(f, 0.1) for _, f in values][::-1], color=IV)
        axes[0, 0].axvline(10, color=LS, ls="--", lw=1.2)
        axes[0, 0].set_xscale("log")
        axes[0, 0].set(xlabel="F of the first stage (line: 10, the usual threshold)")
        axes[0, 0].set_title(f"instrument: {self.verdict.word or 'not judged'}", loc="left")
        return finished(figure, path, force=force)

    def records(self) -> Records:
        """Return the tests, one row per test and output or feature."""
        tests: list[tuple[str, str, Statistic | None]] = []
        for stage in self.first_stage:
            tests += [("partial F", stage.feature, stage.partial_f)]
            tests += [("robust F", stage.feature, stage.robust_f)]
        for name, by_name in self.by_output.items():
            tests += [(name, o, t) for o, t in zip(self.outputs, by_name or (), strict=False)]
        tests += [(f"joint {name}", "", test) for name, test in self.joint.items()]
        return [
            {"test": name, "of": of, "statistic": test.value, "p_value": test.p_value}
            for name, of, test in tests
            if test is not None
        ]

    def to_json(self) -> dict[str, Any]:
        """Describe everything with JSON values."""
        s = self.strength
        return {
            "mu_iv": s.mu_iv,
            "mu_iv_identified": s.mu_iv_identified if s.rank else None,
            "mu_b": s.mu_b,
            "eigenvalues": list(s.eigenvalues),
            "weakest_direction": s.weakest,
            "rank": s.rank,
            "d_phi": s.d_phi,
            "rank_psi": s.rank_psi,
            "d_psi": s.d_psi,
            "identified": s.identified,
            "unidentified": list(s.unidentified),
            **self.verdict.to_json(),
            "first_stage": {stage.feature: stage.to_json() for stage in self.first_stage},
            "cragg_donald": self.cragg_donald,
            "cragg_donald_test": _json(self.cragg_donald_test),
            "kleibergen_paap": _json(self.kleibergen_paap),
            "effective_f": _json(self.effective_f),
            "stock_yogo": self._critical(),
            **{name: self._named(tests) for name, tests in self.by_output.items()},
            "joint": {name: _json(test) for name, test in self.joint.items()},
            "reasons": self.reasons,
        }

    def _named(self, tests: Tests | None) -> dict[str, Any] | None:
        if tests is None:
            return None
        return {o: s.to_json() for o, s in zip(self.outputs, tests, strict=True)}

    def _critical(self) -> dict[str, dict[str, float]] | None:
        if self.stock_yogo is None:
            return None
        return {
            kind: {f"{share:.0%}": value for share, value in row.items()}
            for kind, row in self.stock_yogo.items()
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


def panel_table(diagnostics: Diagnostics) -> str:
    """Return every diagnostic, each with its null, distribution, p-value and a verdict."""
    d = diagnostics
    lines = ["STRENGTH", "-" * WIDTH, *_strength(d)]
    lines += [*_first_stages(d, full=True), *_together(d, full=True)]
    for kind, row in (d.stock_yogo or {}).items():
        lines.append(_critical("Stock-Yogo", kind, row.items()))
    if d.stock_yogo is None:
        lines.append(f"  Stock-Yogo critical values  - ({d.reasons['stock_yogo']})")
    lines += ["", "VALIDITY: do the instruments affect the outcome only through the actions?"]
    lines.append("-" * WIDTH)
    for name in ("sargan", "basmann", "hansen_j", "difference_in_sargan"):
        lines += _tests(d, name)
    lines += ["", "CONFOUNDING: would least squares suffice?", "-" * WIDTH]
    for name in ("wu_hausman", "robust_wu_hausman", "durbin"):
        lines += _tests(d, name)
    return "\n".join(lines)


def format_number(value: float) -> str:
    """Format to nine places: four decimals, fewer of large numbers, scientific beyond them."""
    if value != 0 and not 1e-3 <= abs(value) < 1e7:
        return f"{value:9.2e}"
    whole = len(f"{abs(value):.0f}")
    return f"{value:9.{min(4, max(0, 7 - whole))}f}"


def diagnose_brief(d: Diagnostics) -> Brief:
    """Say if the instrument is good enough, if the log is confounded, and what to do next."""
    next_step = NEXT.get(d.verdict.word, "`ivvi fit` estimates the effects.")
    if (d.verdict.word, d.verdict.recommended) == ("doubtful", "none"):
        next_step = NO_INTERVAL
    if (refuted := over_identified(d)) and d.verdict.word in ("strong", "doubtful"):
        next_step = f"{refuted} {next_step}"
    if d.verdict.method and d.verdict.word != "contradictory":
        next_step = many_sentence(d.verdict.method)
    return Brief(
        (
            ("Instrument", instrument_sentence(d.verdict)),
            ("Confounding", confounding_sentence(d)),
            ("Next", next_step),
        )
    )


def over_identified(d: Diagnostics) -> str:
    """Return a sentence if over-identification is rejected at 5%, else ''; it is no verdict."""
    tests = d.by_output["hansen_j"] or d.by_output["sargan"]
    if not tests:
        return ""
    p_value = min(1.0, len(tests) * min(test.p_value for test in tests))
    if p_value >= LEVEL:
        return ""
    return (
        f"The instruments disagree somewhat (over-identification, {p_words(p_value)}): test the "
        "one that you trust least with `ivvi diagnose --suspect`."
    )


def many_sentence(method: str) -> str:
    """Return a sentence on which estimator to use if the first stage has many instruments."""
    return (
        f"The first stage is spread over many instruments. `ivvi fit --method {method} --se "
        "robust` is not biased by their number (nor is `--method liml --se bekker`, if errors are "
        "homoskedastic)."
    )


def confounding_sentence(d: Diagnostics) -> str:
    """Say whether least squares and the instrument disagree, by Wu and Hausman's test."""
    tests = d.by_output["robust_wu_hausman"] or d.by_output["wu_hausman"]
    if tests is None:
        return f"Not tested: {d.reasons.get('wu_hausman', 'there is nothing to compare with')}."
    ranked = sorted(zip(d.outputs, tests, strict=True), key=lambda pair: pair[1].p_value)
    p_value = min(1.0, len(ranked) * ranked[0][1].p_value)  # as many chances to be wrong
    if p_value < LEVEL:
        named = [name for name, test in ranked if len(ranked) * test.p_value < LEVEL]
        listed = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
        return (
            f"Yes: regression and the instrument disagree about {listed} ({p_words(p_value)}), so "
            "regression would mislead."
        )
    sure = "" if d.verdict.word == "strong" else "; with so weak an instrument it may go unseen"
    return f"None was found: regression and the instrument agree ({p_words(p_value)}){sure}."


def _json(value: Statistic | RankTest | EffectiveF | None) -> dict[str, Any] | None:
    return None if value is None else value.to_json()


def _strength(d: Diagnostics) -> list[str]:
    s = d.strength
    lines = [
        f"verdict           {(d.verdict.word or 'none').upper()}",
        f"  rule            {d.verdict.rule}",
        *([f"recommended       {_recommended(d.verdict)}"] if d.verdict.word else []),
        *([f"estimator         {d.verdict.method}: {SPREAD}"] if d.verdict.method else []),
        f"strength mu_iv    {s.mu_iv:<12.4g} smallest eigenvalue of A' B^-1 A",
        f"mu_B              {s.mu_b:<12.4g} smallest eigenvalue of B",
        f"weakest direction {s.weakest}",
        f"identified        {'yes' if s.identified else 'NO'}: rank of A is {s.rank} of {s.d_phi}, "
        f"rank of psi {s.rank_psi} of {s.d_psi}",
    ]
    return lines + [f"  free direction  {words}" for words in s.unidentified]


def _recommended(verdict: Verdict) -> str:
    """Say which interval to report."""
    if verdict.word == "contradictory":
        return "no interval in this table: all of them assume that every instrument is valid"
    return RECOMMENDED[verdict.recommended]


def _first_stages(d: Diagnostics, *, full: bool = False) -> list[str]:
    lines = []
    for stage in d.first_stage:
        test, share = stage.partial_f, f"partial R2 {stage.partial_r2:.4f}"
        if not full:  # the F that the verdict goes by: robust where the errors are
            decisive = stage.robust_f or test
            lines.append(
                f"first stage {stage.feature:<6} F {decisive.value:<10.4g} "
                f"{decisive.distribution:<14} p = {decisive.p_value:.4f}  {share}"
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
    """Return the statistics of all endogenous features together; if `full`, with their nulls."""
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
    """Return a test of each output, and of all outputs together, with its null."""
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
