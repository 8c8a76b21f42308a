"""`ivvi act`: the actions of a policy in given states."""

from __future__ import annotations

import csv
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi.cli.options import Force, Json, Seed, TrustOption, trusted
from ivvi.cli.read_numbers import read_states
from ivvi.cli.terminal import check_json_target, emit_json, note, progress, say, warn
from ivvi.errors import InputError

ENDINGS = (".parquet", ".csv")
DRAWS = 200
"""Number of models drawn from the log's uncertainty in which `--model` plans again."""


def act(  # noqa: PLR0913
    policy: Annotated[Path, typer.Argument(help="Folder of a policy that `ivvi plan` saved.")],
    state: Annotated[
        str | None, typer.Option(help="One state: values with commas, or ward=ICU,age=70.")
    ] = None,
    states: Annotated[
        Path | None, typer.Option(help="Table of states (Parquet, CSV), columns as in the log.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File for the table of states and their actions, .parquet or .csv."),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="The fitted model; also show how firmly the log recommends each action."),
    ] = None,
    stdin: Annotated[
        bool,
        typer.Option(
            "--stdin",
            help="Serve: read one state per line as JSON, write one action per line as JSON.",
        ),
    ] = False,
    unseen: Annotated[
        str | None,
        typer.Option(help="Level that replaces levels not in the log, such as other."),
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="Step of the episode; the first is 0. [default: 0]")
    ] = None,
    seed: Seed = 0,
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Print what a policy does in one state, in each row of a table, or line by line."""
    from ivvi.categories import decode_rows
    from ivvi.policy.brief import act_brief
    from ivvi.policy.plan import weakness
    from ivvi.policy.saved_policy import load_policy

    if (state is not None) + (states is not None) + stdin != 1:
        raise InputError("give one of --state, --states and --stdin")
    if stdin:
        _serve(policy, trusted(trust), unseen, excluded=[out, model, json, step])
        return
    _check_out(out, force=force)
    check_json_target(json, force=force, out=out)
    loaded = load_policy(policy, trust=trusted(trust))
    fit = None if model is None else _fit(model, trusted(trust))
    names, horizon = loaded.problem.model, loaded.problem.horizon
    x = read_states(names, state, states, "--state", unseen)
    if not 0 <= (step or 0) < horizon:
        raise InputError(f"--step is {step}; the plan has the steps 0 to {horizon - 1}")
    actions = loaded.decide(x, step or 0)
    outside = loaded.doubts(x, actions)
    doubts = (*outside, *weakness(loaded.problem))
    for text in doubts:
        warn(text)
    columns: dict[str, Any] = names.decode_actions(actions)
    facts = {"state": list(names.state), "action": list(names.action), "actions": actions.tolist()}
    decisions = {name: list(values) for name, values in columns.items()}
    facts |= {"decisions": decisions, "warnings": list(doubts)}
    sure = None
    if fit is not None:
        sure = _stability(loaded, fit, x, step=step or 0, seed=seed)
        facts |= sure.to_json()
        columns |= {"agreement": sure.agreement}
        columns |= {} if sure.outside is None else {"outside": sure.outside}
    brief = act_brief(loaded.problem, decisions, step, sure, outside)
    facts["brief"] = brief.to_json()
    say(brief.text, quiet=json == "-", aside=True)
    if out is not None:
        columns = decode_rows(x, names.state, names.coded) | columns
        _write(_beside(states, columns) | columns, out, force=force)
        say(f"{out}: {len(x):,} states with their actions", quiet=json == "-")
    elif json != "-":
        known = {*names.raw_state, *names.instrument, *names.outputs, *columns}
        _print_table(_beside(states, known) | columns)
    emit_json(facts, json, force=force)


def _print_table(columns: dict[str, Any]) -> None:
    """Write columns to standard output as CSV."""
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(columns)
    rows = zip(*columns.values(), strict=True)
    table.writerows(
        [f"{value:.10g}" if isinstance(value, float) else value for value in row] for row in rows
    )


def _beside(states: Path | None, new_columns: Collection[str]) -> dict[str, Any]:
    """Return the other columns of the table of states, such as a patient's name."""
    from ivvi.cli.read_numbers import read_rows
    from ivvi.logs.tables.readers import open_table

    if states is None:
        return {}
    kept_columns = [
        name for name in open_table(str(states)).schema.names if name not in new_columns
    ]
    return read_rows(states, tuple(kept_columns)) if kept_columns else {}


def _check_out(out: Path | None, *, force: bool) -> None:
    from ivvi._io.files import checked_output

    if out is not None:
        if out.suffix not in ENDINGS:
            raise InputError(
                f"--out {out} has an unknown file ending; choose from {', '.join(ENDINGS)}"
            )
        checked_output(out, force=force)


def _fit(model: Path, trust: tuple[str, ...]) -> Any:
    from ivvi.fitting import load_fit

    return load_fit(model, trust=trust)


def _stability(policy: Any, fit: Any, x: Any, *, step: int, seed: int) -> Any:
    """Plan again in other models that the log allows; print the meaning of the columns."""
    from ivvi.evaluation import stability

    with progress("plans", DRAWS) as bar:
        result = stability(policy, fit, x, step=step, draws=DRAWS, seed=seed, progress=bar)
    note(f"agreement: {result.agreement_means()}; outside: {result.outside_means()}")
    return result


def _serve(folder: Path, trust: tuple[str, ...], unseen: str | None, excluded: list[Any]) -> None:
    """Answer lines of standard input on standard output until it ends."""
    if any(option is not None for option in excluded):
        raise InputError("--stdin cannot be combined with --out, --model, --step or --json")
    from ivvi.policy.json_lines_server import serve
    from ivvi.policy.saved_policy import load_policy

    if sys.stdin is None:  # it was closed (<&-)
        raise InputError("--stdin reads standard input, which is closed")
    sys.stdin.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    for answer in serve(load_policy(folder, trust=trust), sys.stdin, unseen=unseen):
        print(answer, flush=True)


def _write(columns: dict[str, Any], out: Path, *, force: bool) -> None:
    """Write a table in the format of the path's ending."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    from ivvi._io.files import atomic_file

    with atomic_file(out, force=force) as temporary:
        if out.suffix == ".csv":
            pa.csv.write_csv(pa.table(columns), temporary)
        else:
            pq.write_table(pa.table(columns), temporary)
