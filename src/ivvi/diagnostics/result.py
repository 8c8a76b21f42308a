"""What `diagnose` returns."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from ivvi._io.brief import Brief
from ivvi._io.plotting import IV, LS, check_figure, finished, make_axes
from ivvi._io.result import Records, TableResult
from ivvi.diagnostics.first_stage import FirstStage
from ivvi.diagnostics.rank_tests import EffectiveF, RankTest
from ivvi.diagnostics.statistic import Statistic
from ivvi.diagnostics.strength import Strength
from ivvi.diagnostics.verdict import Verdict

Tests = tuple[Statistic, ...]


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
        """What a reader must know before believing the estimate."""
        sentences = []
        s = self.strength
        if not s.identified:
            sentences.append(f"not identified: {'; '.join(s.unidentified)}")
        elif s.rank_psi < s.d_psi:
            sentences.append(
                f"collinear instrument features: {s.d_psi} columns of rank {s.rank_psi}; "
                "the estimate does not suffer"
            )
        if self.verdict.word == "weak":
            sentences.append(
                f"weak instruments: {self.verdict.rule}; estimates and standard errors are "
                "unreliable"
            )
        return tuple(sentences)

    def summary(self) -> str:
        """Return three plain sentences, then every statistic with its null and p-value."""
        from ivvi.diagnostics.text import panel_table

        return f"{self.brief.text}\n\n{panel_table(self)}"

    @property
    def brief(self) -> Brief:
        """Is the instrument good enough, is the log confounded, what to do next."""
        from ivvi.diagnostics.brief import diagnose_brief

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


def _json(value: Statistic | RankTest | EffectiveF | None) -> dict[str, Any] | None:
    return None if value is None else value.to_json()
