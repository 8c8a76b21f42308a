"""The estimated world: its model, next states, episodes, and a Gymnasium environment."""

from ivvi.dynamics.model import Dynamics
from ivvi.dynamics.saved_model import load_model

__all__ = ["Dynamics", "load_model"]
