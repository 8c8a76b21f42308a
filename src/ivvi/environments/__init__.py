"""Confounded simulators: watch a behaviour policy, or intervene with one of your own."""

from ivvi.environments.behaviour import Behaviour
from ivvi.environments.clinical import nicu_world, sepsis_world
from ivvi.environments.env import ConfoundedEnv
from ivvi.environments.recommender import recommender_world
from ivvi.environments.synthetic import SETTINGS, linear_world, nonlinear_world
from ivvi.environments.world import World, gaussian

__all__ = [
    "SETTINGS",
    "Behaviour",
    "ConfoundedEnv",
    "World",
    "gaussian",
    "linear_world",
    "nicu_world",
    "nonlinear_world",
    "recommender_world",
    "sepsis_world",
]
