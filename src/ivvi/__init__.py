"""Learn decisions from logs that lie.

Something nobody recorded moved both the action and the outcome; an instrument undoes it.
The public names below are imported when they are first used, so that ``import ivvi``
costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ivvi.version import __version__ as __version__

if TYPE_CHECKING:
    from ivvi.actions import Actions
    from ivvi.checkpoint import Checkpoint
    from ivvi.curves import Curve, curve
    from ivvi.dynamics import Dynamics, load_model
    from ivvi.environments import ConfoundedEnv, World
    from ivvi.errors import InputError
    from ivvi.estimators import GMM, LIML, Exact, Fuller, KClass, LeastSquares, StandardErrors
    from ivvi.estimators.penalised import Penalised
    from ivvi.estimators.sgda import SGDA
    from ivvi.estimators.shrunk import Shrunk
    from ivvi.estimators.sieve import choose_features
    from ivvi.evaluation import Evaluation, decompose, evaluate
    from ivvi.features import (
        FeatureMap,
        custom,
        fourier,
        linear,
        one_hot,
        parse_features,
        polynomial,
        spline,
    )
    from ivvi.fitting import Fit, estimate, load_fit
    from ivvi.intervals import confidence_set
    from ivvi.invalidity import Sensitivity, sensitivity
    from ivvi.logs import Log, Schema, read_logs
    from ivvi.moments import Moments, compute_moments
    from ivvi.planners import MPC, SPEDE, Auto, Cautious, ValueIteration
    from ivvi.planning import plan
    from ivvi.policy import Policy, load_policy
    from ivvi.reporting import report
    from ivvi.sequences import check_sequence
    from ivvi.shard import Shard
    from ivvi.simulators import make_env
    from ivvi.streaming import Stream
    from ivvi.updating import update_model
    from ivvi.valuation import Valuation, stability, value

_HOME = {
    "ivvi.checkpoint": ("Checkpoint",),
    "ivvi.curves": ("Curve", "curve"),
    "ivvi.dynamics": ("Dynamics", "load_model"),
    "ivvi.environments": ("ConfoundedEnv", "World"),
    "ivvi.errors": ("InputError",),
    "ivvi.estimators": (
        "GMM",
        "LIML",
        "Exact",
        "Fuller",
        "KClass",
        "LeastSquares",
        "StandardErrors",
    ),
    "ivvi.estimators.penalised": ("Penalised",),
    "ivvi.estimators.shrunk": ("Shrunk",),
    "ivvi.estimators.sgda": ("SGDA",),
    "ivvi.evaluation": ("Evaluation", "decompose", "evaluate"),
    "ivvi.estimators.sieve": ("choose_features",),
    "ivvi.features": (
        "FeatureMap",
        "custom",
        "fourier",
        "linear",
        "one_hot",
        "parse_features",
        "polynomial",
        "spline",
    ),
    "ivvi.fitting": ("Fit", "estimate", "load_fit"),
    "ivvi.intervals": ("confidence_set",),
    "ivvi.invalidity": ("Sensitivity", "sensitivity"),
    "ivvi.logs": ("Log", "Schema", "read_logs"),
    "ivvi.moments": ("Moments", "compute_moments"),
    "ivvi.planners": ("MPC", "SPEDE", "Auto", "Cautious", "ValueIteration"),
    "ivvi.actions": ("Actions",),
    "ivvi.planning": ("plan",),
    "ivvi.policy": ("Policy", "load_policy"),
    "ivvi.reporting": ("report",),
    "ivvi.shard": ("Shard",),
    "ivvi.sequences": ("check_sequence",),
    "ivvi.simulators": ("make_env",),
    "ivvi.streaming": ("Stream",),
    "ivvi.updating": ("update_model",),
    "ivvi.valuation": ("Valuation", "stability", "value"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "GMM",
    "LIML",
    "MPC",
    "SGDA",
    "SPEDE",
    "Actions",
    "Auto",
    "Cautious",
    "Checkpoint",
    "ConfoundedEnv",
    "Curve",
    "Dynamics",
    "Evaluation",
    "Exact",
    "FeatureMap",
    "Fit",
    "Fuller",
    "InputError",
    "KClass",
    "LeastSquares",
    "Log",
    "Moments",
    "Penalised",
    "Policy",
    "Schema",
    "Sensitivity",
    "Shard",
    "Shrunk",
    "StandardErrors",
    "Stream",
    "Valuation",
    "ValueIteration",
    "World",
    "check_sequence",
    "choose_features",
    "compute_moments",
    "confidence_set",
    "curve",
    "custom",
    "decompose",
    "estimate",
    "evaluate",
    "fourier",
    "linear",
    "load_fit",
    "load_model",
    "load_policy",
    "make_env",
    "one_hot",
    "parse_features",
    "plan",
    "polynomial",
    "read_logs",
    "report",
    "sensitivity",
    "spline",
    "stability",
    "update_model",
    "value",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'ivvi' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
