"""The public names of ivvi, each with the module that defines it."""

from . import estimators, features, planning, simulators
from ._io.checkpoint import Checkpoint
from .actions import Actions
from .dynamics.model import Dynamics
from .dynamics.saved_model import load_model
from .errors import InputError
from .estimators.covariance.standard_errors import StandardErrors
from .estimators.sgda.sgda import SGDA
from .estimators.sieve import choose_features
from .evaluation.action_stability import stability
from .evaluation.value_policy import value
from .features.feature_map import custom, linear, one_hot
from .fitting.effects.curve import curve
from .fitting.effects.effect import effect
from .fitting.effects.interval import interval
from .fitting.fit import Fit
from .fitting.fit_and_diagnose import diagnose, estimate, fit
from .fitting.impulse_response.respond import respond
from .fitting.incremental.saved_moments import Shard
from .fitting.incremental.stream import Stream
from .fitting.incremental.updating import update
from .fitting.regression_table.table import table
from .fitting.saved_fit import load_fit
from .logs import Log, Schema, read_logs
from .planning.mpc.mpc import MPC
from .planning.spede.spede import SPEDE
from .planning.value_iteration.value_iteration import ValueIteration
from .policy.plan import plan
from .policy.policy import Policy
from .policy.saved_policy import load_policy
from .reporting.fit_page import report
from .sensitivity_analysis.analysis import sensitivity
from .sequence.check import check
from .simulators.catalogue import make_env
from .simulators.confounded_env import ConfoundedEnv
from .simulators.evaluate import evaluate

__version__: str

__all__ = [
    "MPC",
    "SGDA",
    "SPEDE",
    "Actions",
    "Checkpoint",
    "ConfoundedEnv",
    "Dynamics",
    "Fit",
    "InputError",
    "Log",
    "Policy",
    "Schema",
    "Shard",
    "StandardErrors",
    "Stream",
    "ValueIteration",
    "__version__",
    "check",
    "choose_features",
    "curve",
    "custom",
    "diagnose",
    "effect",
    "estimate",
    "estimators",
    "evaluate",
    "features",
    "fit",
    "interval",
    "linear",
    "load_fit",
    "load_model",
    "load_policy",
    "make_env",
    "one_hot",
    "plan",
    "planning",
    "read_logs",
    "report",
    "respond",
    "sensitivity",
    "simulators",
    "stability",
    "table",
    "update",
    "value",
]
