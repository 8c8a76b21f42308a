"""Effects of actions averaged over the log's states, for the summary of a fit.

Where features bend or cross actions, the coefficient of an action is its effect where all it is
crossed with is zero, and not the effect that anybody asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ivvi.fitting.effect import Contrast, Group, group_line, groups_of_states

if TYPE_CHECKING:
    from ivvi.fitting.fit import Fit


@dataclass(frozen=True, slots=True)
class AverageEffect:
    """The effect of one more of an action on an output, averaged over the log's rows.

    `row` is the output's place; `group` has the average, its standard error and the share of states
    in which the effect is positive, `regression` the average that least squares gives.
    """

    row: int
    action: str
    group: Group
    regression: float

    @property
    def gap(self) -> float:
        """How far regression is from it, in standard errors."""
        apart = abs(self.regression - self.group.average)
        return apart / self.group.se if self.group.se > 0 else 0.0


def average_effects(fit: Fit) -> list[AverageEffect]:
    """Return the average effects of the actions that features bend or cross; else none.

    Those on outputs without noise are left out.
    """
    sample, roles, design = fit.sample, fit.roles, fit.estimate.design
    plain = {"1", *roles.state, *roles.action}
    known = np.isfinite(fit.estimate.W_cov.blocks).all()
    if sample is None or not len(sample.x) or not known or set(design.phi_names) <= plain:
        return []
    effects = []
    for action in roles.action:
        contrast = Contrast.of(roles, sample, action)
        M = contrast.combinations(fit.estimate, sample.x, sample.a)
        other = [j for j, name in enumerate(design.phi_names) if name != contrast.action]
        if not M[:, other].any():
            continue
        for row in range(len(design.outputs)):
            if design.outputs[row] not in fit.estimate.exact:
                group = groups_of_states(fit.estimate, row, contrast)[0]
                regression = float(M.mean(axis=0) @ fit.baseline.W[row])
                effects.append(AverageEffect(row, contrast.action, group, regression))
    return effects


def effect_lines(fit: Fit, n_outputs: int) -> list[str]:
    """Return the average effect of each action on each output, and where it is positive, as text.

    Of all actions, whether or not their effects vary.
    """
    sample, roles = fit.sample, fit.roles
    if sample is None or not roles.action:
        return []
    lines = ["effect of one unit: positive in this share of the log's states, interval, average"]
    for row in range(n_outputs):
        for action in roles.action:
            group = groups_of_states(fit.estimate, row, Contrast.of(roles, sample, action))[0]
            lines.append(group_line(replace(group, name=f"{action} on {roles.outputs[row]}")))
    over = roles.state[0] if roles.state else roles.action[0]
    lines.append(f"  ivvi effect MODEL --action {roles.action[0]} --over {over} draws one of them")
    return lines
