"""How the saved rules of planners are made again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ivvi.planners.mpc import MPCRule
from ivvi.planners.problem import Problem, Rule
from ivvi.planners.spede import SPEDERule
from ivvi.planners.value_iteration import ValueRule

Maker = Callable[[Problem, Mapping[str, Any], Mapping[str, np.ndarray]], Rule]
PLANS: dict[Any, Maker] = {
    "mpc": MPCRule.from_parts,
    "spede": SPEDERule.from_parts,
    "value-iteration": ValueRule.from_parts,
}
"""Rules that stand on their own, by the word of their planner."""
