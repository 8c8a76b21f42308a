"""Is the instrument any good: strength, identification and specification tests."""

from ivvi.diagnostics.panel import Diagnostics, diagnose
from ivvi.diagnostics.specification import sargan, wu_hausman
from ivvi.diagnostics.statistic import Statistic
from ivvi.diagnostics.strength import FirstStage, Strength, cragg_donald, first_stage, strength

__all__ = [
    "Diagnostics",
    "FirstStage",
    "Statistic",
    "Strength",
    "cragg_donald",
    "diagnose",
    "first_stage",
    "sargan",
    "strength",
    "wu_hausman",
]
