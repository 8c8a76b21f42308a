"""Simulators by name, with the data that they need."""

from __future__ import annotations

import os

from ivvi.errors import InputError, hint
from ivvi.simulators import (
    ConfoundedEnv,
    World,
    linear_world,
    nicu_world,
    nonlinear_world,
    recommender_world,
    sepsis_world,
)
from ivvi.simulators.ratings import Factors, factorize, read_ratings, synthetic_ratings

NAMES = ("linear", "nonlinear", "recommender", "recommender-revised", "nicu", "sepsis")
DEFAULT_DIM = {"linear": 5, "nonlinear": 1}
CLINICAL = {"nicu": 2, "sepsis": 4}


def make_env(
    name: str,
    *,
    dim: int | None = None,
    setting: str = "I",
    ratings: str | os.PathLike[str] | Factors | None = None,
    signs: str = "largest",
    literal: bool = False,
) -> ConfoundedEnv:
    """Return a simulator of the paper, or one in the shape of its motivating examples.

    Parameters
    ----------
    name
        ``linear``, ``nonlinear``, ``recommender``, ``recommender-revised``, ``nicu``, ``sepsis``.
    dim
        Dimension k of the synthetic ones (5 for linear, 1 for nonlinear).
    setting
        ``I`` to ``VI`` (recommenders ``I`` to ``III``; nicu ``I`` and ``II``, where a confounder
        lasts; sepsis ``I``).
    ratings
        Ratings for the recommenders (`ivvi.simulators.ratings.read_ratings`) or their factors; by
        default a synthetic replacement for MovieLens, labelled as such.
    signs
        Of the recommenders' singular vectors, which are arbitrary and decide the task:
        ``largest`` (the largest loading of each is positive) or ``authors`` (those that the paper's
        authors got from MovieLens 1M).
    literal
        Whether a recommender starts and scores as the authors' scripts do (`recommender_world`).

    Examples
    --------
    >>> import ivvi
    >>> env = ivvi.make_env("linear", dim=5, setting="I")
    >>> env.collect(episodes=2, horizon=10, seed=0).to_batch().x.shape
    (20, 5)
    """
    if name not in NAMES:
        raise InputError(f"unknown simulator {name!r}{hint(name, NAMES)}")
    if not name.startswith("recommender") and (signs != "largest" or literal):
        raise InputError(
            f"signs and literal are only for the recommenders; the simulator is {name}"
        )
    if name in DEFAULT_DIM:
        world = linear_world if name == "linear" else nonlinear_world
        return ConfoundedEnv(world(DEFAULT_DIM[name] if dim is None else dim, setting))
    if name in CLINICAL:
        return ConfoundedEnv(_clinical(name, dim, setting))
    if dim not in (None, 10):
        raise InputError(
            f"the recommenders have 10 categories; a dimension of {dim} does not apply"
        )
    factors = ratings if isinstance(ratings, Factors) else load_factors(ratings)
    factors = factors.with_signs(signs)
    revised = name.endswith("revised")
    return ConfoundedEnv(
        recommender_world(
            factors.U,
            factors.singular_values,
            factors.leading(10),
            setting,
            revised=revised,
            literal=literal,
            label=factors.label,
        )
    )


def _clinical(name: str, dim: int | None, setting: str) -> World:
    """Return one of the clinical worlds, whose dimensions are fixed."""
    if dim not in (None, CLINICAL[name]):
        raise InputError(f"{name} has {CLINICAL[name]} states; a dimension of {dim} does not apply")
    if name == "nicu":
        return nicu_world(setting)
    if setting != "I":
        raise InputError(f"sepsis has only setting I; {setting!r} was requested")
    return sepsis_world()


def load_factors(path: str | os.PathLike[str] | None = None) -> Factors:
    """Factorise the ratings at `path`, or the synthetic ones."""
    return factorize(synthetic_ratings() if path is None else read_ratings(path))
