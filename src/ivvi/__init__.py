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
    from ivvi._io.checkpoint import Checkpoint
    from ivvi.actions import Actions
    from ivvi.dynamics.model import Dynamics, load_model
    from ivvi.errors import InputError
    from ivvi.estimators import GMM, LIML, Exact, Fuller, KClass, LeastSquares, StandardErrors
    from ivvi.estimators.penalised import Penalised
    from ivvi.estimators.sgda.sgda import SGDA
    from ivvi.estimators.shrinkage import Shrunk
    from ivvi.estimators.sieve import choose_features
    from ivvi.evaluation import Valuation, stability, value
    from ivvi.features.feature_map import (
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
    from ivvi.fitting.confidence_set import confidence_set
    from ivvi.fitting.curve import Curve, curve
    from ivvi.fitting.stream import Stream
    from ivvi.fitting.updating import update_model
    from ivvi.logs import Log, Schema, read_logs
    from ivvi.moments import Moments, compute_moments
    from ivvi.moments.shard import Shard
    from ivvi.planning import MPC, SPEDE, Auto, Cautious, ValueIteration
    from ivvi.planning.plan import plan
    from ivvi.planning.policy import Policy, load_policy
    from ivvi.reporting import report
    from ivvi.sensitivity_analysis import Sensitivity, sensitivity
    from ivvi.sequence.check import check_sequence
    from ivvi.simulators import ConfoundedEnv, World
    from ivvi.simulators.catalogue import make_env
    from ivvi.simulators.evaluate import Evaluation, decompose, evaluate

_HOME = {
    "ivvi._io.checkpoint": ("Checkpoint",),
    "ivvi.fitting.curve": ("Curve", "curve"),
    "ivvi.dynamics.model": ("Dynamics", "load_model"),
    "ivvi.simulators": ("ConfoundedEnv", "World"),
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
    "ivvi.estimators.shrinkage": ("Shrunk",),
    "ivvi.estimators.sgda.sgda": ("SGDA",),
    "ivvi.simulators.evaluate": ("Evaluation", "decompose", "evaluate"),
    "ivvi.estimators.sieve": ("choose_features",),
    "ivvi.features.feature_map": (
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
    "ivvi.fitting.confidence_set": ("confidence_set",),
    "ivvi.sensitivity_analysis": ("Sensitivity", "sensitivity"),
    "ivvi.logs": ("Log", "Schema", "read_logs"),
    "ivvi.moments": ("Moments", "compute_moments"),
    "ivvi.planning": ("MPC", "SPEDE", "Auto", "Cautious", "ValueIteration"),
    "ivvi.actions": ("Actions",),
    "ivvi.planning.plan": ("plan",),
    "ivvi.planning.policy": ("Policy", "load_policy"),
    "ivvi.reporting": ("report",),
    "ivvi.moments.shard": ("Shard",),
    "ivvi.sequence.check": ("check_sequence",),
    "ivvi.simulators.catalogue": ("make_env",),
    "ivvi.fitting.stream": ("Stream",),
    "ivvi.fitting.updating": ("update_model",),
    "ivvi.evaluation": ("Valuation", "stability", "value"),
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
