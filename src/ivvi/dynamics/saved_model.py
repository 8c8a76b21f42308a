"""Load a model from its folder of JSON and npz; raise an error for a model that is not valid."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ivvi._io.files import load_folder
from ivvi._io.trust import Trust, trusting
from ivvi.dynamics.model import KIND, Dynamics
from ivvi.dynamics.model_serialization import unpack_model
from ivvi.errors import FileError, TrustError

UNKNOWN = ("bread", (0, 0))
"""The field, and its shape, of a model with too many features to keep their covariance."""


def model_from_parts(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Dynamics:
    """Return a model from `Dynamics.parts`; raise an error if it is not complete."""
    try:
        model = Dynamics(**unpack_model(document, arrays))
    except TrustError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FileError(f"not a complete model: {error}") from error
    _check_shapes(model)
    return model


def _check_shapes(model: Dynamics) -> None:
    """Raise an error for arrays that do not fit the columns and features of the model."""
    d_y, d_phi = len(model.outputs), len(model.phi.names(model.state, model.action))
    expected = {"W": (d_y, d_phi), "noise_cov": (d_y, d_y), "bread": (d_phi, d_phi)}
    width = {
        "states": len(model.state),
        "starts": len(model.state),
        "acted": len(model.action),
        "followed": d_y,
    }
    for name, wide in width.items():
        rows = len(getattr(model, name))
        expected[name] = (rows, wide if rows else 0)
    samples = (model.states, model.acted, model.instruments, model.followed)
    if len(model.followed) and len({len(sample) for sample in samples}) > 1:
        raise FileError("not a valid model: the rows that it holds do not fit together")
    _check_columns(model)
    for name in expected:
        if getattr(model, name).dtype.kind not in "fiu":
            raise FileError(f"not a valid model: {name} holds no numbers")
        if not np.isfinite(getattr(model, name)).all():
            label = "weights" if name == "W" else name
            raise FileError(f"not a valid model: its {label} are not finite numbers")
    for name, shape in expected.items():
        if (actual := getattr(model, name).shape) != shape and (name, actual) != UNKNOWN:
            raise FileError(f"not a valid model: {name} is {actual}; expected {shape}")
    shapes = ((d_y * d_phi,) * 2, (d_y, d_phi, d_phi))
    if model.W_cov is not None and model.W_cov.shape not in shapes:
        raise FileError(
            f"not a valid model: W_cov is {model.W_cov.shape}; expected {shapes[0]} or {shapes[1]}"
        )


def _check_columns(model: Dynamics) -> None:
    """Raise an error for columns of the model that contradict each other."""
    unknown = {n for pair in model.carried for n in pair if n} - {*model.state, *model.action}
    if unknown or len(model.outputs) < len(model.ends) + model.has_reward:
        raise FileError("not a valid model: its columns do not fit together")
    if model.length < 0:
        raise FileError(f"not a valid model: the log's episodes have {model.length} steps")


def load_model(path: str | os.PathLike[str], *, trust: Trust = ()) -> Dynamics:
    """Load a model that `Dynamics.save` saved.

    Nothing in the folder is executed. A user's function of features is imported by its path, and
    only from the packages named in `trust`.
    """
    document, arrays = load_folder(path, KIND)
    try:
        with trusting(path, trust):
            return model_from_parts(document, arrays)
    except FileError as error:
        raise FileError(f"{path} is {error}") from error
