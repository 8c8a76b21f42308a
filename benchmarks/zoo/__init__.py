"""A zoo of worlds in plain NumPy, with the best that can be done in each."""

from zoo.boxes import BOXES
from zoo.optimum import Reference, reference
from zoo.sets import SETS
from zoo.three_states import THREE_STATES
from zoo.treatments import TREATMENTS
from zoo.world import (
    World,
    collect,
    fitted_model,
    nearest,
    noise_of,
    open_log,
    run,
    true_model,
    true_weights,
)

WORLDS = {world.name: world for world in (*TREATMENTS, *SETS, *BOXES, *THREE_STATES)}

__all__ = [
    "WORLDS",
    "Reference",
    "World",
    "collect",
    "fitted_model",
    "nearest",
    "noise_of",
    "open_log",
    "reference",
    "run",
    "true_model",
    "true_weights",
]
