"""How often the 5% tests reject a null that is true.

Run it with ``python -m ivvi_reproduction.rejection_rates``. Each design draws logs in which the
nulls hold; a test of the right size rejects in 5% of them, give or take the binomial error.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.errors import IvviWarning
from ivvi.estimators import StandardErrors
from ivvi.fitting import Fit, estimate
from ivvi.logs import Log, read_logs
from ivvi.logs.log import Progress
from ivvi_reproduction.study import logs_command, no_bar, run_study

LEVEL = 0.05
EFFECT = -0.5
"""True effect of the first action on both outputs."""


@dataclass(frozen=True, slots=True)
class NullDesign:
    """Logs of one kind: two outputs, of which the second is not confounded.

    Attributes
    ----------
    errors
        The standard errors under test.
    episodes, horizon
        Size of a log.
    rank_null
        A second action that no instrument moves: the nulls of the first-stage tests hold.
    """

    name: str
    errors: StandardErrors
    episodes: int
    horizon: int
    rank_null: bool = False

    def draw(self, rng: np.random.Generator) -> Log:
        """Draw a log with three instruments."""
        n = self.episodes * self.horizon
        z, noise = self._shared(rng, 3), self._shared(rng, 4)
        if self.errors.kind != "unadjusted":
            noise = noise * np.sqrt(0.5 + 0.5 * z[:, :1] ** 2)
        e, other, v, w = noise.T
        x = rng.normal(size=n)
        a = z @ np.array([0.8, 0.6, 0.6]) + 0.3 * x + e + v
        y = np.column_stack([EFFECT * a + x + e, EFFECT * a - x + other])
        t = np.arange(n)
        columns = {"episode": t // self.horizon, "step": t % self.horizon, "x0": x, "a0": a}
        columns |= {f"z{i}": z[:, i].copy() for i in range(3)}
        columns |= {f"y{i}": y[:, i].copy() for i in range(2)}
        if self.rank_null:
            columns["a1"] = 0.5 * e + w
        return read_logs(columns, state="x0", action="a*", instrument="z*", next_state="y*")

    def _shared(self, rng: np.random.Generator, width: int) -> Floats:
        """Draw columns of unit variance, as dependent as the errors under test allow.

        Rows of an episode share half of the variance, or neighbouring rows two fifths.
        """
        columns = rng.normal(size=(self.episodes, self.horizon + 1, width))
        if self.errors.kind == "clustered":
            columns = (columns + rng.normal(size=(self.episodes, 1, width))) / math.sqrt(2)
        elif self.errors.kind == "hac":
            columns[:, 1:] = (columns[:, 1:] + 0.5 * columns[:, :-1]) / math.sqrt(1.25)
        return columns[:, 1:].reshape(-1, width)


DESIGNS = (
    NullDesign("homoskedastic", StandardErrors("unadjusted", debiased=True), 1000, 1),
    NullDesign(
        "homoskedastic", StandardErrors("unadjusted", debiased=True), 1000, 1, rank_null=True
    ),
    NullDesign("heteroskedastic", StandardErrors("robust", debiased=True), 2000, 1),
    NullDesign("heteroskedastic", StandardErrors("robust", debiased=True), 2000, 1, rank_null=True),
    NullDesign("clustered", StandardErrors("clustered", debiased=True), 400, 5),
    NullDesign("clustered", StandardErrors("clustered", debiased=True), 400, 5, rank_null=True),
    NullDesign("serial", StandardErrors("hac", debiased=True), 20, 100),
)


@dataclass(frozen=True, slots=True)
class RejectionRate:
    """One test in one design: its rejection rate, and its distance from 5%."""

    design: str
    test: str
    null: str
    distribution: str
    logs: int
    rejected: float

    @property
    def deviation(self) -> float:
        """Distance from 5% in binomial standard deviations."""
        return (self.rejected - LEVEL) / math.sqrt(LEVEL * (1 - LEVEL) / self.logs)


def tests(fit: Fit, design: NullDesign) -> Iterator[tuple[str, Any]]:
    """Yield the tests of a fit whose nulls hold in the design."""
    d = fit.diagnostics
    if design.rank_null:
        stage = d.first_stage[1]
        plain = design.errors.kind == "unadjusted"
        yield "first-stage F", stage.partial_f if plain else stage.robust_f
        rank = d.cragg_donald_test if d.kleibergen_paap is None else d.kleibergen_paap.wald
        yield ("Cragg-Donald rank" if plain else "Kleibergen-Paap rk"), rank
        apart = stage.conditional_f if plain else stage.robust_conditional_f
        yield "Sanderson-Windmeijer F", apart
        return
    yield "Wald, 2SLS", fit.wald(f"y0: a0 = {EFFECT}")
    yield "Wald, both outputs", fit.wald(f"a0 = {EFFECT}")
    yield "C statistic of z2", fit.difference_in_sargan("z2")[0]
    chosen = {"sargan": 0, "basmann": 0, "wu_hausman": 1, "durbin": 1}
    if design.errors.kind != "unadjusted":
        chosen = {"hansen_j": 0, "robust_wu_hausman": 1}
    for name, output in chosen.items():
        outcomes = d.by_output[name]
        if outcomes is not None:
            yield name.replace("_", " "), outcomes[output]
    joint = d.joint["sargan" if design.errors.kind == "unadjusted" else "hansen_j"]
    if joint is not None:
        yield "over-identification, both outputs", joint


def measure(
    design: NullDesign, logs: int, seed: int = 0, bar: Progress = no_bar
) -> list[RejectionRate]:
    """Draw logs of a design, fit each, and count rejections."""
    results: dict[str, list[Any]] = {}
    for i in range(logs):
        log = design.draw(np.random.default_rng([seed, i]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IvviWarning)  # weak by design
            fit = estimate(log, se=design.errors, allow_unidentified=True)
            for name, test in tests(fit, design):
                results.setdefault(name, []).append(test)
            if design.name == "homoskedastic" and not design.rank_null:
                liml = estimate(log, method="liml", se=design.errors)
                results.setdefault("Wald, LIML", []).append(liml.wald(f"y0: a0 = {EFFECT}"))
        bar(1)
    return [
        RejectionRate(
            design.name,
            name,
            outcomes[0].null,
            outcomes[0].distribution,
            logs,
            float(np.mean([test.p_value < LEVEL for test in outcomes])),
        )
        for name, outcomes in results.items()
    ]


def table(records: Iterable[RejectionRate]) -> str:
    """Return the rejection rates and their distance from 5% as a text table."""
    lines = [f"{'errors':<17}{'test':<35}{'distribution':<16}{'rejects':>8}{'off 5% by':>12}"]
    for r in records:
        lines.append(
            f"{r.design:<17}{r.test:<35}{r.distribution:<16}{r.rejected:>8.1%}"
            f"{r.deviation:>+9.1f} sd"
        )
    return "\n".join(lines)


command = logs_command(
    "Measure how often the 5% tests reject nulls that are true.",
    DESIGNS,
    measure,
    table,
    1000,
    heading=True,
)

if __name__ == "__main__":
    run_study(command)
