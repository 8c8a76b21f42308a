"""From dynamics and a reward to decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ivvi.planners.cautious import Cautious, CautiousRule
from ivvi.planners.mpc import MPC, MPCRule
from ivvi.planners.problem import Planner, Problem, Rule
from ivvi.planners.spede import SPEDE, SPEDERule
from ivvi.planners.value_iteration import ValueIteration, ValueRule

RULES: dict[Any, Callable[[Problem, Mapping[str, Any], Mapping[str, np.ndarray]], Rule]] = {
    "cautious": CautiousRule.from_parts,
    "mpc": MPCRule.from_parts,
    "spede": SPEDERule.from_parts,
    "value-iteration": ValueRule.from_parts,
}
"""How each planner's saved rule is made again."""

__all__ = ["MPC", "RULES", "SPEDE", "Cautious", "Planner", "Problem", "Rule", "ValueIteration"]
