"""New rows for a saved model, without the old ones: moments add."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ivvi.dynamics import KIND, Dynamics
from ivvi.errors import DataError
from ivvi.estimators import GMM, StandardErrors
from ivvi.estimators.words import restore_method
from ivvi.files import load_folder
from ivvi.fitting import Fit, estimate
from ivvi.layout import Layout
from ivvi.logs import Log, Sample
from ivvi.moments import compute_moments
from ivvi.shard import Shard, check_same, hashes, open_like


def update_model(
    path: str | os.PathLike[str],
    logs: Any,
    *,
    again: bool = False,
    drop_missing: bool = False,
    allow_unidentified: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Fit:
    """Return the fit of a saved model's rows and those of another log together.

    Parameters
    ----------
    path
        A model that was saved with its moments.
    logs
        A `Log`, or a source that is opened with the columns of the model.
    again
        Accept a file whose rows are in the model already.
    drop_missing, allow_unidentified, progress
        As for `read_logs` and `estimate`.

    Notes
    -----
    The method is that of the model with its settings; one that was fitted by descent-ascent
    becomes the closed form, because its old rows are not there to pass over; for the same
    reason the standard errors are clustered by episode where the model keeps the moments of
    episodes, else unadjusted. An episode that goes on from one log into the next is two.
    """
    known = Shard.load(path)
    log = logs if isinstance(logs, Log) else open_like(logs, known.roles, drop_missing=drop_missing)
    layout = known.moments.layout
    check_same(layout, Layout.build(layout.phi, layout.psi, log.roles), log.label)
    files = hashes(log)
    for file, seen in zip(log.table.files, files, strict=True):
        if seen in known.files and not again:
            raise DataError(
                f"{file} is in {path} already (same content); add it again with --again"
            )
    held = known.moments.episodes is not None
    moments, counts = compute_moments(log, layout, episodes=held, progress=progress)
    fresh = tuple(seen for seen in files if seen not in known.files)
    added = Shard(moments, counts, log.roles, fresh, log.label)
    document, arrays = load_folder(path, KIND)
    old, facts = Dynamics.from_parts(document, arrays), document["facts"]
    name = facts["method"]
    fit = estimate(
        known + added,
        method=GMM() if name == "gmm" else restore_method(name, facts["settings"]),
        se=StandardErrors(
            "unadjusted" if facts["se_kind"] == "unadjusted" and not facts["se_note"] else "auto",
            debiased=bool(facts["debiased"]),
        ),
        allow_unidentified=allow_unidentified,
    )
    sample = log.sample()
    if len(old.followed):  # a model of sums keeps no rows
        kept = (old.states, old.acted, old.instruments, old.followed, old.starts)
        sample = Sample(*kept, old.global_instrument) + sample
    return replace(fit, sample=sample)
