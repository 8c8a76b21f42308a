"""A model as a folder of JSON and npz, and back; what is not a sound model is refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from ivvi._io.files import Saved, load_folder
from ivvi._io.records import Unpacker
from ivvi._io.trust import Trust, trusting
from ivvi.categories import CodedColumn
from ivvi.dynamics.model import KIND, Dynamics, InstrumentVerdict
from ivvi.errors import FileError, InputError, TrustError
from ivvi.features.feature_map import FeatureMap

NAMES = (
    *("state", "action", "outputs", "unidentified", "refused", "instrument", "ends", "doubts"),
)
FLAGS = ("has_reward", "global_instrument", "derived")
SAMPLES = ("states", "starts", "acted", "instruments", "followed")
"""Arrays of rows of the log."""
ARRAYS = ("W", "noise_cov", "bread", *SAMPLES)
UNKNOWN = ("bread", (0, 0))
"""A model of very many features does not know how sure its weights are."""


def model_parts(model: Dynamics) -> Saved:
    """Return JSON values and arrays from which `model_from_parts` makes the model again."""
    if not np.isfinite(model.W).all():
        raise InputError("the model is not written: its weights are not finite numbers")
    document = {
        "phi": model.phi.to_json(),
        **{name: list(getattr(model, name)) for name in NAMES},
        **{name: getattr(model, name) for name in FLAGS},
        "length": model.length,
        "carried": [list(pair) for pair in model.carried],
        "coded": [asdict(category) for category in model.coded],
        "verdict": None if model.verdict is None else asdict(model.verdict),
    }
    arrays = {name: getattr(model, name) for name in ARRAYS}
    return document, arrays if model.W_cov is None else {**arrays, "W_cov": model.W_cov}


def model_from_parts(document: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Dynamics:
    """Rebuild a model from `model_parts`, refusing one that is not whole."""
    try:
        parts: dict[str, Any] = {name: arrays[name] for name in ARRAYS}
        read = Unpacker({})
        parts |= {name: read.unpack(tuple[str, ...], document[name]) for name in NAMES}
        parts |= {name: read.unpack(bool, document[name]) for name in FLAGS}
        parts["length"] = read.unpack(int, document["length"])
        parts["carried"] = read.unpack(tuple[tuple[str, str], ...], document["carried"])
        parts["coded"] = tuple(read.unpack(CodedColumn, one) for one in document["coded"])
        phi = FeatureMap.from_json(document["phi"])
        saved_verdict = document.get("verdict")
        verdict = None if saved_verdict is None else read.unpack(InstrumentVerdict, saved_verdict)
        model = Dynamics(phi=phi, W_cov=arrays.get("W_cov"), verdict=verdict, **parts)
    except TrustError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise FileError(f"not a complete model: {error}") from error
    _check_shapes(model)
    return model


def _check_shapes(model: Dynamics) -> None:
    """Refuse arrays that do not fit the columns and features of the model."""
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
        raise FileError("not a sound model: the rows that it holds do not fit together")
    _check_columns(model)
    for name in expected:
        if getattr(model, name).dtype.kind not in "fiu":
            raise FileError(f"not a sound model: {name} holds no numbers")
        if not np.isfinite(getattr(model, name)).all():
            what = "weights" if name == "W" else name
            raise FileError(f"not a sound model: its {what} are not finite numbers")
    for name, shape in expected.items():
        if (actual := getattr(model, name).shape) != shape and (name, actual) != UNKNOWN:
            raise FileError(f"not a sound model: {name} is {actual}; expected {shape}")
    shapes = ((d_y * d_phi,) * 2, (d_y, d_phi, d_phi))
    if model.W_cov is not None and model.W_cov.shape not in shapes:
        raise FileError(
            f"not a sound model: W_cov is {model.W_cov.shape}; expected {shapes[0]} or {shapes[1]}"
        )


def _check_columns(model: Dynamics) -> None:
    """Refuse columns of the model that contradict each other."""
    unknown = {n for pair in model.carried for n in pair if n} - {*model.state, *model.action}
    if unknown or len(model.outputs) < len(model.ends) + model.has_reward:
        raise FileError("not a sound model: its columns do not fit together")
    if model.length < 0:
        raise FileError(f"not a sound model: the log's episodes have {model.length} steps")


def load_model(path: str | os.PathLike[str], *, trust: Trust = ()) -> Dynamics:
    """Load what `Dynamics.save` saved.

    Nothing in it is executed; features that were a user's function are imported by their path,
    from the packages that are named in `trust` alone.
    """
    document, arrays = load_folder(path, KIND)
    try:
        with trusting(path, trust):
            return model_from_parts(document, arrays)
    except FileError as error:
        raise FileError(f"{path} is {error}") from error
