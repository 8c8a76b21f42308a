"""Load a policy from its folder of JSON and npz; nothing in it is executed."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np

from ivvi._io.files import load_folder, unnest
from ivvi._io.trust import Trust, trusting
from ivvi.actions import Actions, make_actions
from ivvi.dynamics.end_payoffs import end_reward
from ivvi.dynamics.rollout import Decision
from ivvi.dynamics.saved_model import model_from_parts
from ivvi.errors import FileError, InputError, TrustError
from ivvi.features.custom_block import import_saved
from ivvi.planning import RULES
from ivvi.planning.comparison import Comparison
from ivvi.planning.problem import Problem
from ivvi.policy.policy import KIND, Policy
from ivvi.rewards import reward_from_json

LAST_STEP = 2**31
"""A step larger than any real step counter."""


def load_policy(path: str | os.PathLike[str], *, trust: Trust = ()) -> Policy:
    """Load a policy that `Policy.save` saved.

    Nothing in the folder is executed. A user's function for the reward, features, ends or fallback
    is imported by its path, and only from the packages named in `trust`.
    """
    document, arrays = load_folder(path, KIND)
    with trusting(path, trust):
        return _from_parts(path, document, arrays)


def as_policy(source: Any) -> Any:
    """Return the policy saved in a folder; return anything else unchanged."""
    is_folder = isinstance(source, str | os.PathLike) and os.path.isdir(source)
    return load_policy(source) if is_folder else source


def _from_parts(
    path: str | os.PathLike[str], document: dict[str, Any], arrays: dict[str, np.ndarray]
) -> Policy:
    """Return a policy from its saved parts."""
    try:
        model = model_from_parts(document["model"], unnest("model", arrays))
        terminal = document["terminal"]
        problem = Problem(
            model,
            reward_from_json(document["reward"], model),
            make_actions(Actions.from_json(document["actions"]), model.action),
            int(document["horizon"]),
            float(document["discount"]),
            terminal=None if terminal is None else import_saved(terminal),
            reward_at_end=end_reward(
                document["reward_at_end"], model.ends, by_state=terminal is not None
            ),
        )
        if not 1 <= problem.horizon <= LAST_STEP:
            raise FileError(f"its horizon is {problem.horizon}")
        settings = dict(document["rule"])
        make = RULES[settings.pop("kind")]
        compared = document["comparison"]
        policy = Policy(
            problem,
            make(problem, settings, unnest("rule", arrays)),
            None if compared is None else Comparison.from_json(compared),
        )
        with jax.enable_x64(True):
            Decision.of(policy)  # check that the saved parts are enough to decide
    except TrustError:
        raise
    except InputError as error:
        raise FileError(f"the policy {path} cannot be used: {error}") from error
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise FileError(f"{path} is not a complete policy: {error}") from error
    return policy
