"""Features that the data choose: for a fit, for the sums of a log, for a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ivvi._io.serialization import Unpacker
from ivvi.errors import FileError, InputError
from ivvi.estimators import Exact, Method
from ivvi.estimators.feature_selection import (
    ROWS_TO_CHOOSE,
    ChosenFeatures,
    FeatureChoice,
    choose_structure,
)
from ivvi.estimators.registry import restore_method, settings_of
from ivvi.features.design import Design
from ivvi.features.feature_map import AUTO, FeatureMap
from ivvi.fitting.incremental.saved_moments import Shard
from ivvi.logs import Batch, Log, Roles
from ivvi.logs.row_sample import spread_episodes


def is_auto(phi: FeatureMap | str, psi: FeatureMap | str | None) -> bool:
    """Whether the data choose the features; refuse to let them choose only one of phi and psi."""
    if AUTO not in (phi, psi):
        return False
    if phi != AUTO or psi not in (None, AUTO):
        raise InputError("auto chooses phi and psi together; remove the other one (--phi, --psi)")
    return True


def choose(rows: Log | Batch, roles: Roles, method: Method | None = None) -> ChosenFeatures:
    """Choose features for a log, or for some rows, that `method` is to be fitted with."""
    if method not in (None, Exact()):
        raise InputError(
            "auto chooses features and their penalties by the closed form, so it needs the "
            f"method exact without a ridge, not {method.name}; choose other features"
        )
    if isinstance(rows, Log):
        rows = spread_episodes(rows.batches(episodes=True), ROWS_TO_CHOOSE)
    return choose_structure(rows, roles)


def chosen_shard(log: Log, chosen: ChosenFeatures, **options: Any) -> Shard:
    """Return the sums of a log for chosen features, with the choice, which a fit to them needs."""
    shard = Shard.of(log, Design.build(chosen.phi, chosen.psi, log.roles), **options)
    if chosen.method is None:
        return shard
    settings = settings_of(chosen.method)
    return replace(shard, chosen=kept_choice(chosen.method.name, settings, chosen.choice))


def kept_choice(
    method: str, settings: Mapping[str, Any], choice: FeatureChoice | None
) -> dict[str, Any] | None:
    """Return what is saved of a choice with the sums: the penalties, and what was compared."""
    if method != "smooth" or choice is None:
        return None
    return {"settings": dict(settings), "choice": choice.to_json()}


def restored_choice(shard: Shard) -> tuple[Method, FeatureChoice] | None:
    """Return the method and the choice that were saved with the sums."""
    if shard.chosen is None:
        return None
    try:
        choice = restored(shard.chosen["choice"])
        method = restore_method("smooth", shard.chosen["settings"])
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{shard.label} does not say how its features were chosen") from error
    return None if choice is None else (method, choice)


def restored(facts: Mapping[str, Any] | None) -> FeatureChoice | None:
    """Rebuild a choice from what its `to_json` returned."""
    if facts is None:
        return None
    fields = {name: value for name, value in facts.items() if name != "sentence"}
    choice: FeatureChoice = Unpacker({}).unpack(FeatureChoice, fields)
    return choice
