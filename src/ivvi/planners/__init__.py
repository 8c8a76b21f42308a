"""From dynamics and a reward to decisions."""

from __future__ import annotations

from ivvi.planners.auto import Auto
from ivvi.planners.cautious import PLANS, Cautious, CautiousRule
from ivvi.planners.comparison import Comparison
from ivvi.planners.mpc import MPC
from ivvi.planners.problem import Planner, Problem, Rule
from ivvi.planners.spede import SPEDE
from ivvi.planners.value_iteration import ValueIteration

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
