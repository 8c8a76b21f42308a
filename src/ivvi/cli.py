"""The command line. Each command reads its options, calls the library and shows the result.

Exit codes: 0 when all went well; 2 for input that cannot be used, with one sentence on
standard error; 130 when interrupted. Nothing is ever left half-written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi import __version__
from ivvi.errors import InputError
from ivvi.terminal import (
    check_json_target,
    emit_json,
    progress,
    run_app,
    say,
    warn,
)

app = typer.Typer(
    name="ivvi",
    help="Learn decisions from logs that lie: instruments undo hidden confounding.",
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Json = Annotated[str | None, typer.Option("--json", help="Write JSON to this file; - is stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Replace outputs that exist.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
Source = Annotated[
    str, typer.Argument(help="Parquet (file, folder, glob), CSV, Arrow, or minari:NAME.")
]
State = Annotated[
    str | None, typer.Option(help="State columns: names, globs (x*) or ranges (x0:x4).")
]
Action = Annotated[str | None, typer.Option(help="Action columns.")]
Instrument = Annotated[str | None, typer.Option(help="Instrument columns.")]
NextState = Annotated[
    str | None, typer.Option(help="Next-state columns; else the next row's state.")
]
Reward = Annotated[str | None, typer.Option(help="Reward column, learned as one more output.")]
Episode = Annotated[str | None, typer.Option(help="Episode column. [default: episode, if present]")]
Step = Annotated[str | None, typer.Option(help="Step column. [default: step, if present]")]
Weight = Annotated[str | None, typer.Option(help="Column of row weights.")]
DropMissing = Annotated[bool, typer.Option(help="Drop rows with missing or infinite values.")]
Features = Annotated[str, typer.Option(help="linear, poly2, poly2:cross, spline:5, fourier:200.")]
Phi = Annotated[str | None, typer.Option(help="Feature word for phi(x, a) alone.")]
Psi = Annotated[str | None, typer.Option(help="Feature word for psi(x, z) alone.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    if version:
        print(f"ivvi {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the log, the model and the picture.")
    ] = Path("ivvi-demo"),
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Tell the whole story on a simulated log: what confounding does, what an instrument undoes."""
    from ivvi.demo import run_demo

    check_json_target(json, force=force)
    story = run_demo(out, seed=seed, force=force)
    say(story.text, quiet=json == "-")
    emit_json(story.facts, json, force=force)


@app.command()
def simulate(  # noqa: PLR0913
    name: Annotated[
        str, typer.Argument(help="linear, nonlinear, recommender, recommender-revised.")
    ],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")],
    dim: Annotated[int | None, typer.Option(help="Dimension of the synthetic ones.")] = None,
    setting: Annotated[str, typer.Option(help="Setting of the paper, I to VI.")] = "I",
    episodes: Annotated[int | None, typer.Option(help="Episodes. [default: the paper's]")] = None,
    horizon: Annotated[int | None, typer.Option(help="Steps each. [default: the paper's]")] = None,
    ratings: Annotated[
        str | None, typer.Option(help="MovieLens ratings for the recommenders.")
    ] = None,
    download: Annotated[
        str | None, typer.Option(help="Fetch ml-1m, ml-100k or ml-latest-small and use it.")
    ] = None,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Write the log of a confounded behaviour policy; the confounder is not in it."""
    from ivvi.datasets import download as fetch
    from ivvi.files import checked_output
    from ivvi.simulators import make_env

    checked_output(out, force=force)
    check_json_target(json, force=force, out=out)
    if download is not None:
        ratings = str(fetch(download, out.resolve().parent))
    env = make_env(name, dim=dim, setting=setting, ratings=ratings)
    world = env.world
    total = (episodes or world.episodes) * (horizon or world.horizon)
    with progress("simulating", total) as bar:
        rows = env.write_log(out, episodes, horizon, seed, force=force, progress=bar)
    facts = {
        "log": str(out),
        "simulator": world.name,
        "data": world.label,
        "rows": rows,
        "episodes": episodes or world.episodes,
        "horizon": horizon or world.horizon,
        "seed": seed,
    }
    say(f"{out}: {rows:,} rows of {world.name} ({world.label})", quiet=json == "-")
    emit_json(facts, json, force=force)


@app.command()
def fit(  # noqa: PLR0913
    log: Source,
    out: Annotated[Path, typer.Option(help="Folder for the model.")],
    state: State = None,
    action: Action = None,
    instrument: Instrument = None,
    next_state: NextState = None,
    reward: Reward = None,
    episode: Episode = None,
    step: Step = None,
    weight: Weight = None,
    drop_missing: DropMissing = False,
    features: Features = "linear",
    phi: Phi = None,
    psi: Psi = None,
    method: Annotated[str, typer.Option(help="exact, sgda or least-squares.")] = "exact",
    schedule: Annotated[
        str, typer.Option(help="Steps of sgda: auto, paper-linear, constant:0.05, decay:0.1,0.5.")
    ] = "auto",
    batch: Annotated[int, typer.Option(help="Rows of a mini-batch of sgda.")] = 32,
    passes: Annotated[int, typer.Option(help="Passes of sgda over the rows.")] = 1,
    ridge: Annotated[
        float, typer.Option(help="Penalty, in units of the features' variances.")
    ] = 0.0,
    se: Annotated[str, typer.Option(help="Standard errors: unadjusted.")] = "unadjusted",
    debiased: Annotated[bool, typer.Option(help="Small-sample correction of variances.")] = False,
    allow_unidentified: Annotated[
        bool, typer.Option(help="Accept the minimum-norm solution.")
    ] = False,
    all_outputs: Annotated[bool, typer.Option(help="Print the table of every output.")] = False,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Estimate the dynamics of a log and save them as a model."""
    from ivvi.files import checked_output
    from ivvi.fitting import estimate, make_method

    checked_output(out, force=force)
    check_json_target(json, force=force, out=out)
    if se != "unadjusted":
        raise InputError(f"standard errors {se!r} are not available; unadjusted is")
    settings: dict[str, Any] = {"ridge": ridge, "debiased": debiased}
    if method == "sgda":
        settings = {"schedule": schedule, "batch": batch, "passes": passes, "seed": seed}
    chosen = make_method(method, **settings)
    logs = _open(log, locals())
    with progress("reading", logs.num_rows) as bar:
        found = estimate(
            logs,
            phi or features,
            psi or features,
            method=chosen,
            allow_unidentified=allow_unidentified,
            seed=seed,
            progress=bar,
        )
    found.save(out, force=force)
    for text in found.warnings:
        warn(text)
    say(found.summary(most_outputs=None if all_outputs else 6), quiet=json == "-")
    say(f"model saved in {out}", quiet=json == "-")
    emit_json(found.to_json(), json, force=force)


@app.command()
def diagnose(  # noqa: PLR0913
    log: Source,
    state: State = None,
    action: Action = None,
    instrument: Instrument = None,
    next_state: NextState = None,
    reward: Reward = None,
    episode: Episode = None,
    step: Step = None,
    weight: Weight = None,
    drop_missing: DropMissing = False,
    features: Features = "linear",
    phi: Phi = None,
    psi: Psi = None,
    seed: Seed = 0,
    json: Json = None,
    force: Force = False,
) -> None:
    """Say how strong the instruments of a log are and what they identify."""
    from ivvi.fitting import estimate
    from ivvi.summary import diagnostics_table

    check_json_target(json, force=force)
    logs = _open(log, locals())
    with progress("reading", logs.num_rows) as bar:
        found = estimate(
            logs,
            phi or features,
            psi or features,
            allow_unidentified=True,
            seed=seed,
            progress=bar,
        )
    for text in found.warnings:
        warn(text)
    say(diagnostics_table(found.diagnostics), quiet=json == "-")
    whole = found.to_json()
    kept = ("n", "episodes", "dropped", "phi", "psi", "outputs", "warnings", "diagnostics")
    emit_json({name: whole[name] for name in kept}, json, force=force)


def _open(log: str, options: dict[str, Any]) -> Any:
    """Open the log with the column options of a command."""
    from ivvi.logs import read_logs

    names = ("reward", "episode", "step", "weight")
    return read_logs(
        log,
        state=options["state"],
        action=options["action"],
        instrument=options["instrument"],
        next_state=options["next_state"] or (),
        drop_missing=options["drop_missing"],
        **{name: options[name] for name in names},
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    run_app(app, arguments)


if __name__ == "__main__":
    main()
