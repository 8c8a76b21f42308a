"""Is the instrument any good: strength, identification, validity, confounding."""

from ivvi.diagnostics.all_diagnostics import diagnose
from ivvi.diagnostics.endogeneity import durbin, robust_wu_hausman, wu_hausman
from ivvi.diagnostics.first_stage import FirstStage, cragg_donald, first_stage
from ivvi.diagnostics.overidentification import basmann, difference, hansen_j, sargan
from ivvi.diagnostics.rank_tests import EffectiveF, RankTest, effective_f, kleibergen_paap
from ivvi.diagnostics.result import Diagnostics
from ivvi.diagnostics.statistic import Statistic
from ivvi.diagnostics.strength import Strength, strength
from ivvi.diagnostics.verdict import Verdict

__all__ = [
    "Diagnostics",
    "EffectiveF",
    "FirstStage",
    "RankTest",
    "Statistic",
    "Strength",
    "Verdict",
    "basmann",
    "cragg_donald",
    "diagnose",
    "difference",
    "durbin",
    "effective_f",
    "first_stage",
    "hansen_j",
    "kleibergen_paap",
    "robust_wu_hausman",
    "sargan",
    "strength",
    "wu_hausman",
]
