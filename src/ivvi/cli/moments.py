"""`ivvi moments` and `ivvi merge`: sums of logs that can be shared where rows cannot."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi.cli.options import (
    ColumnOptions,
    FeatureOptions,
    Force,
    Json,
    Seed,
    SourceArgument,
    TrustOption,
    refuse_given,
    trusted,
)
from ivvi.cli.terminal import check_json_target, emit_json, progress, say, warn
from ivvi.errors import IvviWarning

Out = Annotated[Path, typer.Option(help="Folder for the moments.")]


def moments(  # noqa: PLR0913
    shell: typer.Context,
    log: SourceArgument,
    out: Out,
    *,
    columns: ColumnOptions,
    features: FeatureOptions,
    like: Annotated[
        Path | None,
        typer.Option(help="Take columns and features from this moments file or model."),
    ] = None,
    by_episode: Annotated[
        bool, typer.Option("--by-episode", help="Also keep the sums of each episode.")
    ] = False,
    seed: Seed = 0,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Write the sums of a log, without its rows, to merge them with those of other sites."""
    from ivvi._io.files import checked_output
    from ivvi.fitting import load_moments
    from ivvi.fitting.incremental.saved_moments import open_like

    checked_output(out, force=force)
    check_json_target(json, force=force, out=out)
    if like is None:
        logs = columns.open(log)
        logs.refuse_absorbed("moments")
        make = _summing(logs, features.both, seed, quiet=json == "-")
    else:
        for group in (columns, features):
            reason = "is already taken from --like; remove one of the two"
            refuse_given(group, reason, ("drop_missing",), shell)
        other = load_moments(like, trust=trusted(trust))
        logs = open_like(log, other.roles, drop_missing=columns.drop_missing)
        make = partial(_sums_like, other, logs)
    with progress("reading", logs.num_rows) as bar:
        shard = make(episodes=by_episode, progress=bar)
    _finish(shard, out, json, force=force)


def merge(
    sources: Annotated[list[Path], typer.Argument(help="Folders of `ivvi moments` or `ivvi fit`.")],
    out: Out,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Add up the sums of several sites, which gives the sums of all their rows together."""
    from ivvi._io.files import checked_output
    from ivvi.fitting import load_moments

    checked_output(out, force=force)
    check_json_target(json, force=force, out=out)
    first, *others = (load_moments(source, trust=trusted(trust)) for source in sources)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", IvviWarning)
        merged = sum(others, first)
    _finish(merged, out, json, force=force)
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        warn(text)


def _summing(log: Any, words: tuple[str, str], seed: int, *, quiet: bool) -> Callable[..., Any]:
    """Return a function that sums a log for these features, which the data may choose."""
    from ivvi.features.design import build_design
    from ivvi.fitting.feature_choice import choose, chosen_shard, is_auto
    from ivvi.fitting.incremental.saved_moments import Shard

    if not is_auto(*words):
        return partial(Shard.of, log, build_design(log, *words, seed))
    chosen = choose(log, log.roles)
    say(str(chosen.choice), quiet=quiet)
    return partial(chosen_shard, log, chosen)


def _sums_like(other: Any, log: Any, **options: Any) -> Any:
    """Return the sums of a log for the features of other sums."""
    from ivvi.fitting.incremental.saved_moments import Shard

    return replace(Shard.of(log, other.moments.design, **options), chosen=other.chosen)


def _finish(shard: Any, out: Path, json: str | None, *, force: bool) -> None:
    shard.save(out, force=force)
    design, n = shard.moments.design, shard.moments.n
    if shard.is_revealing:
        warn(
            f"{n:,} rows for {design.width} columns are few: the sums reveal much about single "
            "rows; treat them as confidentially as the rows"
        )
    if shard.moments.episodes is not None:
        warn("the sums of each episode reveal much about single episodes; share them with care")
    say(f"{out}: sums of {n:,} transitions of {shard.label}", quiet=json == "-")
    facts = {
        "moments": str(out),
        "n": n,
        "episodes": shard.counts.episodes,
        "phi": list(design.phi_names),
        "psi": list(design.psi_names),
        "outputs": list(design.outputs),
        "files": list(shard.files),
    }
    emit_json(facts, json, force=force)
