"""The estimated world: its model, its next states, episodes in it, and it as an environment."""

from ivvi.dynamics.model import Dynamics
from ivvi.dynamics.saved_model import load_model

__all__ = ["Dynamics", "load_model"]
