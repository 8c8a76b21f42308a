"""Confounded simulators: watch a behaviour policy, or intervene with one of your own."""

from ivvi.simulators.clinical import nicu_world, sepsis_world
from ivvi.simulators.confounded_env import ConfoundedEnv
from ivvi.simulators.evaluate import decompose
from ivvi.simulators.recommender import recommender_world
from ivvi.simulators.synthetic import SETTINGS, linear_world, nonlinear_world
from ivvi.simulators.world import Behaviour, World, gaussian

__all__ = [
    "SETTINGS",
    "Behaviour",
    "ConfoundedEnv",
    "World",
    "decompose",
    "gaussian",
    "linear_world",
    "nicu_world",
    "nonlinear_world",
    "recommender_world",
    "sepsis_world",
]
