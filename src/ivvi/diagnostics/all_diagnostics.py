"""All diagnostics of a log together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ivvi.diagnostics import endogeneity, overidentification
from ivvi.diagnostics.first_stage import FirstStage, cragg_donald, first_stage, partial_out
from ivvi.diagnostics.rank_tests import (
    EffectiveF,
    RankTest,
    cragg_donald_test,
    effective_f,
    kleibergen_paap,
)
from ivvi.diagnostics.result import Diagnostics, Tests
from ivvi.diagnostics.statistic import Statistic
from ivvi.diagnostics.stock_yogo import bias_values, size_values
from ivvi.diagnostics.strength import Strength, strength
from ivvi.diagnostics.verdict import contradicted, judge
from ivvi.errors import DataError
from ivvi.estimators import Exact
from ivvi.estimators.covariance.scores import Scored
from ivvi.moments import Moments

Answer = TypeVar("Answer")
REFUTED, MATTERS = 1e-3, 0.01
"""Instruments contradict each other where over-identification is rejected at this level and so much
of what they explain of an output bypasses the actions: about a tenth of the effect."""
UNADJUSTED = "the errors are assumed homoskedastic, and then {} is the same"


def diagnose(
    moments: Moments,
    scored: Mapping[str, Scored] | None = None,
    suspects: Sequence[str] = (),
) -> Diagnostics:
    """Compute every diagnostic that the moments, and the scores of a second pass, allow.

    Parameters
    ----------
    moments
        Of the whole log.
    scored
        What `second_pass` found; None leaves the errors homoskedastic.
    suspects
        Instrument features whose validity is tested, given that of the others.
    """
    statistics = _Statistics(moments, scored, strength(moments))
    stages = statistics.stages()
    donald = cragg_donald(moments)
    if donald is None:
        exact = "an action is an exact function of the instruments and the state"
        statistics.reasons["cragg_donald"] = statistics.general or statistics.reasons.get(
            "first_stage", exact
        )
    rank_test, effective = statistics.rank_test(donald), statistics.effective(donald)
    partialled = partial_out(moments)
    m, q = len(partialled.names), partialled.count
    values = {"bias": bias_values(m, q), "size": size_values(m, q)}
    critical = {kind: row for kind, row in values.items() if row is not None}
    if not critical:
        statistics.reasons["stock_yogo"] = (
            f"not tabulated for {m} endogenous features and {q} instruments"
        )
    name, f = "the Cragg-Donald F", donald
    if rank_test is not None:
        name, f = "the Kleibergen-Paap F", rank_test.f
    overidentification.check_suspects(moments.design, suspects)
    by_output = statistics.by_output(suspects)
    joint = statistics.joint()
    verdict = judge(
        *(
            statistics.strength,
            effective,
            name,
            f,
            m,
            q,
            statistics.reasons.get("cragg_donald", ""),
        ),
        jackknife="ijive" if moments.absorbed else "ujive",
    )
    if (
        verdict.word in ("strong", "doubtful")
        and (p_value := statistics.refuted(by_output)) is not None
    ):
        verdict = contradicted(verdict, p_value)
    return Diagnostics(
        strength=statistics.strength,
        verdict=verdict,
        first_stage=stages,
        cragg_donald=donald,
        cragg_donald_test=None if donald is None else cragg_donald_test(donald, moments),
        kleibergen_paap=rank_test,
        effective_f=effective,
        stock_yogo=critical or None,
        by_output=by_output,
        joint=joint,
        outputs=moments.design.outputs,
        reasons=statistics.reasons,
    )


class _Statistics:
    """Computes the statistics one by one; where one does not apply, it notes why."""

    def __init__(
        self, moments: Moments, scored: Mapping[str, Scored] | None, strong: Strength
    ) -> None:
        self.moments, self.scored, self.strength = moments, scored, strong
        self.exact = Exact().solve(moments)
        self.reasons: dict[str, str] = {}
        self.general = None if strong.identified else "the instruments do not identify the dynamics"
        if moments.n <= strong.rank_psi:
            self.general = f"{moments.n} rows are too few for {strong.rank_psi} instrument features"

    def stages(self) -> tuple[FirstStage, ...]:
        """Compute the first stages."""
        unadjusted = self.general or UNADJUSTED.format("the plain F")
        stages = first_stage(self.moments, self._scores("first_stage"), unadjusted)
        if not stages:
            self.reasons["first_stage"] = (
                self.general or "no feature is endogenous: phi lies in psi"
            )
        return stages

    def rank_test(self, donald: float | None) -> RankTest | None:
        """Compute the robust rank test, where Cragg and Donald's exists."""
        scored = self._scores("first_stage")
        if donald is None:
            self.reasons["kleibergen_paap"] = self.reasons["cragg_donald"]
        elif scored is None:
            self.reasons["kleibergen_paap"] = self.general or UNADJUSTED.format("cragg_donald")
        elif scored.joint() is None:
            wide = f"{scored.d_e} actions and {scored.rank} instruments are too many for it"
            self.reasons["kleibergen_paap"] = wide
        else:
            return self._try("kleibergen_paap", kleibergen_paap, self.moments, scored)
        return None

    def effective(self, donald: float | None) -> EffectiveF | None:
        """Compute the effective F of a single endogenous feature."""
        endogenous = len(partial_out(self.moments).names)
        if donald is None:
            self.reasons["effective_f"] = self.reasons["cragg_donald"]
        elif endogenous != 1:
            self.reasons["effective_f"] = (
                f"it is for one endogenous feature; there are {endogenous}"
            )
        else:
            scored = self._scores("first_stage")
            return self._try("effective_f", effective_f, self.moments, scored)
        return None

    def by_output(self, suspects: Sequence[str]) -> dict[str, Tests | None]:
        """Compute the tests of validity and of confounding for each output."""
        return self._validity(suspects) | self._confounding()

    def _validity(self, suspects: Sequence[str]) -> dict[str, Tests | None]:
        moments, over = self.moments, self._scores("exact")
        just = "just identified: as many instruments as features, so nothing is left to test"
        tests: dict[str, Tests | None] = {
            "sargan": self._or("sargan", overidentification.sargan(moments, self.exact), just),
            "basmann": self._or("basmann", overidentification.basmann(moments, self.exact), just),
            "hansen_j": None,
            "difference_in_sargan": None,
        }
        missing = self.reasons.get("sargan")
        if over is None:
            self.reasons["hansen_j"] = missing or UNADJUSTED.format("sargan")
        else:
            tests["hansen_j"] = self._try("hansen_j", overidentification.hansen_j, moments, over)
        word = "difference_in_sargan"
        if missing or not suspects:
            self.reasons[word] = missing or "no suspect instrument is named"
        else:
            tests[word] = self._try(word, overidentification.difference, moments, suspects, over)
        return tests

    def refuted(self, by_output: Mapping[str, Tests | None]) -> float | None:
        """Return the p-value of over-identification where it is rejected and that matters.

        Of instruments alone: powers of one instrument disagree where phi is too simple.
        """
        tests = by_output["hansen_j"] or by_output["sargan"] or ()
        if not tests or not self.moments.design.linear_inputs:
            return None
        shares = overidentification.bypassing(self.moments, self.exact)
        matter = [t.p_value for t, part in zip(tests, shares, strict=True) if part >= MATTERS]
        p_value = len(tests) * min(matter, default=1.0)  # as many chances to be wrong
        return p_value if p_value < REFUTED else None

    def _confounding(self) -> dict[str, Tests | None]:
        moments, added = self.moments, self._scores("augmented")
        few = f"{moments.n} rows are too few"
        nothing = self.reasons.get("cragg_donald", few)
        durbin = endogeneity.durbin(moments, self.exact)
        tests = {
            "wu_hausman": self._or("wu_hausman", endogeneity.wu_hausman(moments), nothing),
            "robust_wu_hausman": None,
            "durbin": self._or("durbin", durbin, nothing),
        }
        word = "robust_wu_hausman"
        if added is None:
            self.reasons[word] = self.reasons.get("wu_hausman", UNADJUSTED.format("wu_hausman"))
        else:
            tests[word] = self._try(word, endogeneity.robust_wu_hausman, moments, added)
        return tests

    def joint(self) -> dict[str, Statistic | None]:
        """Compute the tests of all outputs together."""
        tests: dict[str, Statistic | None] = dict.fromkeys(("sargan", "hansen_j", "wu_hausman"))
        if len(self.moments.design.outputs) == 1:
            self.reasons |= {f"joint_{name}": "there is one output" for name in tests}
            return tests
        tests["sargan"] = overidentification.joint_sargan(self.moments, self.exact)
        tests["wu_hausman"] = endogeneity.joint_wu_hausman(self.moments)
        if (over := self._scores("exact")) is not None:
            find = overidentification.joint_hansen_j
            tests["hansen_j"] = self._try("joint_hansen_j", find, self.moments, over)
        for name, test in tests.items():
            if test is None:
                reason = "the joint variance of the outputs is singular (one is fitted exactly, or "
                reason += "repeats others) or not kept"
                self.reasons.setdefault(f"joint_{name}", self.reasons.get(name, reason))
        return tests

    def _scores(self, name: str) -> Scored | None:
        return None if self.scored is None else self.scored.get(name)

    def _or(self, name: str, tests: Tests | None, reason: str) -> Tests | None:
        if tests is None:
            self.reasons[name] = self.general or reason
        return tests

    def _try(self, name: str, find: Callable[..., Answer], *arguments: Any) -> Answer | None:
        try:
            return find(*arguments)
        except DataError as error:
            self.reasons[name] = str(error)
            return None
