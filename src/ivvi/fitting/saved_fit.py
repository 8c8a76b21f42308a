"""Save a fit in the folder of its model, and load it: `load_fit` is the inverse of `Fit.save`."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from ivvi._io.files import Saved, load_version, nest, unnest
from ivvi._io.replacing import recover
from ivvi._io.serialization import Packer, Unpacker, field_types
from ivvi._io.trust import Trust, trusting
from ivvi.dynamics.model import KIND, Dynamics
from ivvi.dynamics.saved_model import model_from_parts
from ivvi.errors import FileError, InputError, TrustError
from ivvi.features.design import Design
from ivvi.fitting.fit import Fit
from ivvi.fitting.incremental.saved_moments import Shard
from ivvi.moments import Moments

SAVED_BESIDE = ("inference", "sample", "log")
"""Fields of a fit that are saved elsewhere, or not at all."""
TWICE = ("W", "noise_cov", "bread", "W_cov")
"""Fields that a folder holds twice, so that its dynamics can be read without the fit."""


def fit_parts(fit: Fit, *, moments: bool, episodes: bool) -> Saved:
    """Return what `load_fit` needs besides the dynamics, as JSON values and arrays."""
    packer = Packer(shared=(Design, Moments))
    saved = dataclasses.replace(fit, files=fit.hashes if moments else ())
    names = [name for name in field_types(Fit) if name not in SAVED_BESIDE]
    facts: dict[str, Any] = {name: packer.pack(getattr(saved, name)) for name in names}
    facts["inference"] = packer.pack(fit.inference)
    facts["design"] = fit.estimate.design.to_json()
    arrays = nest("fit", packer.arrays)
    if moments:
        saved_moments = fit.moments if episodes else fit.moments.without_episodes()
        facts["moments"], sums = saved_moments.saved()
        facts["moments_design"] = fit.moments.design.to_json()
        arrays |= nest("moments", sums)
    return {"fit": facts}, arrays


def load_fit(path: str | os.PathLike[str], *, trust: Trust = ()) -> Fit:
    """Load a fit that `Fit.save` or `ivvi fit` saved; the log is not part of it.

    Nothing in it is executed; features that were a user's function are imported by their
    path, from the packages that are named in `trust` alone.
    """
    return load_fit_version(path, trust=trust)[0]


def load_fit_version(path: str | os.PathLike[str], *, trust: Trust = ()) -> tuple[Fit, str]:
    """Load a fit, and the version of the folder that it was read from (`Fit.save(replaces=)`)."""
    saved, version = load_saved(path, trust=trust)
    if not isinstance(saved, Fit):
        raise FileError(f"{path} was saved without its fit; save it with fit.save or ivvi fit")
    return saved, version


def load_saved(path: str | os.PathLike[str], *, trust: Trust = ()) -> tuple[Fit | Dynamics, str]:
    """Load the fit of a folder, or the dynamics where it holds no more, and its version."""
    (document, arrays), version = load_version(path, KIND)
    make = model_from_parts if document.get("fit") is None else _from_parts
    try:
        with trusting(path, trust):
            return make(document, arrays), version
    except TrustError:
        raise
    except FileError as error:
        raise FileError(f"{path} is {error}") from error
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise FileError(f"{path} is not a complete model: {error}") from error


def _from_parts(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Fit:
    """Make a fit again from what was saved."""
    facts = document["fit"]
    model = model_from_parts(document, arrays)
    design = Design.from_json(facts["design"])
    moments = None
    if facts.get("moments") is not None:
        of_moments = Design.from_json(facts["moments_design"])
        of_moments = design if of_moments == design else of_moments
        moments = Moments.restore(of_moments, facts["moments"], unnest("moments", arrays))
    unpacker = Unpacker(unnest("fit", arrays), {Design: design, Moments: moments})
    fields = {n: t for n, t in field_types(Fit).items() if n not in SAVED_BESIDE}
    parts = {name: unpacker.unpack(kind, facts[name]) for name, kind in fields.items()}
    inferred = unpacker.unpack(field_types(Fit)["inference"], facts["inference"])
    fit = Fit(**parts, inference=inferred, sample=model.rows)
    covariance, (d_y, d_phi) = fit.estimate.W_cov, fit.W.shape
    if covariance.blocks.shape not in ((d_y, d_phi, d_phi), (d_y, 0, 0)):  # or of none
        raise FileError(f"not a valid model: the covariance of W is {covariance.blocks.shape}")
    if any(count < 1 for _, count in covariance.clusters):
        raise FileError("not a valid model: its errors have no clusters")
    own = fit.model
    for name in TWICE:
        if not _same(getattr(own, name), getattr(model, name)):
            raise FileError(
                f"not a valid model: {name} of its fit differs from that of its dynamics"
            )
    return fit


def _same(one: np.ndarray | None, other: np.ndarray | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=True))


def as_fit(source: Any) -> Fit:
    """Return a fit as it is, or the one that was saved in a folder."""
    if isinstance(source, Fit):
        return source
    if isinstance(source, str | os.PathLike):
        return load_fit(source)
    raise InputError(
        f"expected a fit (ivvi.fit) or the folder of a saved one; found {type(source).__name__}"
    )


def is_saved_fit(source: Any) -> bool:
    """Tell whether something names a folder that `Fit.save` or `ivvi fit` made."""
    if not isinstance(source, str | os.PathLike):
        return False
    recover(source)
    return os.path.isfile(os.path.join(source, f"{KIND}.json"))


def load_moments(path: str | os.PathLike[str], *, trust: Trust = ()) -> Shard:
    """Load moments that `ivvi moments` saved, or those that a saved model keeps."""
    if is_saved_fit(path):
        return load_fit(path, trust=trust).shard
    return Shard.load(path, trust=trust)
