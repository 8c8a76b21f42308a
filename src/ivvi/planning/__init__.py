"""From dynamics and a reward to decisions."""

from __future__ import annotations

from ivvi.planning.auto import Auto
from ivvi.planning.cautious import PLANS, Cautious, CautiousRule
from ivvi.planning.comparison import Comparison
from ivvi.planning.mpc.mpc import MPC
from ivvi.planning.problem import Planner, Problem, Rule
from ivvi.planning.spede.spede import SPEDE
from ivvi.planning.value_iteration.value_iteration import ValueIteration

RULES = {**PLANS, CautiousRule.kind: CautiousRule.from_parts}
"""How each planner's saved rule is made again."""

__all__ = [
    "MPC",
    "RULES",
    "SPEDE",
    "Auto",
    "Cautious",
    "Comparison",
    "Planner",
    "Problem",
    "Rule",
    "ValueIteration",
]
