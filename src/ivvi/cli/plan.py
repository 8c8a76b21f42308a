"""`ivvi plan`: from a model and a reward to a policy."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from ivvi.cli.options import Force, Json, Seed, TrustOption, Unit, completing, of_unit, trusted
from ivvi.cli.read_numbers import (
    end_rewards,
    named_values,
    numbers,
    read_columns,
    read_rows,
    read_states,
)
from ivvi.cli.terminal import check_json_target, emit_json, progress, say, warn
from ivvi.errors import InputError, PlanningWarning
from ivvi.option_values import PLANNERS, listed


def plan(  # noqa: PLR0913
    model: Annotated[Path, typer.Argument(help="Folder of a model that `ivvi fit` saved.")],
    out: Annotated[Path, typer.Option(help="Folder for the policy.")],
    reward: Annotated[
        str,
        typer.Option(
            help="quadratic:weight=severity:1,target=2 | linear:state=1;0,action=-1 | learned | "
            "module:function"
        ),
    ],
    action_low: Annotated[
        str | None,
        typer.Option(help="Lower bounds of the actions: one number for all, or one for each."),
    ] = None,
    action_high: Annotated[str | None, typer.Option(help="Upper bounds of the actions.")] = None,
    action_set: Annotated[
        Path | None, typer.Option(help="Table of allowed actions, one per row.")
    ] = None,
    binary: Annotated[
        bool,
        typer.Option(
            "--action-binary",
            help="Every action is 0 or 1; combinations that the log never has are left out.",
        ),
    ] = False,
    states: Annotated[
        Path | None,
        typer.Option(
            help="Table of states where the plan should be good. [default: those of the log]"
        ),
    ] = None,
    horizon: Annotated[
        int | None,
        typer.Option(
            help="Steps per episode. [default: the usual length of the log's episodes; 100 if "
            "unknown]"
        ),
    ] = None,
    discount: Annotated[float, typer.Option(help="Weight of each later step, in (0, 1].")] = 1.0,
    reward_at_end: Annotated[
        str,
        typer.Option(
            help="Reward for ending for good (fit --terminal), such as -1, or one for each kind: "
            "died=-1,discharged=1."
        ),
    ] = "0",
    instrument: Annotated[
        str | None,
        typer.Option(
            help="Value of the instrument for a reward that uses it, such as cost=6. "
            "[default: the log's, averaged]"
        ),
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help=f"{listed(PLANNERS)}; auto tries all that apply and keeps the best.",
            autocompletion=completing(*PLANNERS),
        ),
    ] = "auto",
    budget: Annotated[
        float | None,
        typer.Option(
            help="Processor seconds after which auto stops trying further planners. [default: 60]"
        ),
    ] = None,
    lookahead: Annotated[
        int | None, typer.Option(help="Steps that mpc plans ahead. [default: by problem]")
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(help="For mpc: temperature of a soft plan, in units of the reward."),
    ] = 0.0,
    caution: Annotated[
        float,
        typer.Option(
            help="Depart from the fallback only where a gain has this confidence, such as 0.95."
        ),
    ] = 0.0,
    abstain: Annotated[
        float | None,
        typer.Option(
            help="Use the fallback outside the region that holds this share of the log, such as "
            "0.99."
        ),
    ] = None,
    fallback: Annotated[
        str,
        typer.Option(
            help="What --caution falls back on: best, usual, zero, or an action such as 0.5,1."
        ),
    ] = "best",
    seed: Seed = 0,
    unit: Unit = "",
    trust: TrustOption = "",
    json: Json = None,
    force: Force = False,
) -> None:
    """Find the best action in every state of a fitted model, and save it as a policy."""
    from ivvi._io.files import checked_output
    from ivvi.fitting.saved_fit import load_fit, load_saved
    from ivvi.policy.plan import make_planner
    from ivvi.policy.plan import plan as plan_policy

    checked_output(out, force=force)
    check_json_target(json, force=force, out=out)
    of_mpc = {"lookahead": lookahead is not None, "temperature": temperature != 0}
    for option, is_given in of_mpc.items():
        if is_given and method != "mpc":
            raise InputError(f"--{option} is for mpc; the method is {method}")
    packages = trusted(trust)
    fit: Any = of_unit(load_fit(model, trust=packages), unit) if unit else None
    fit = fit or load_saved(model, trust=packages)[0]
    dynamics = getattr(fit, "model", fit)  # a folder may hold the dynamics alone
    if budget is not None and method != "auto":
        raise InputError(f"--budget is only for auto; the method is {method}")
    settings: dict[str, Any] = {"lookahead": lookahead} if lookahead is not None else {}
    settings |= {"temperature": temperature} if temperature else {}
    settings |= {"budget": budget} if budget is not None else {}
    planner = make_planner(method, **settings)
    problem: dict[str, Any] = {"horizon": horizon, "discount": discount}
    problem |= {"reward_at_end": end_rewards(reward_at_end), "instrument": named_values(instrument)}
    problem |= {"caution": caution, "abstain": abstain}
    problem["fallback"] = _fallback(fallback)
    support = read_states(dynamics, None, states, "--state")
    with warnings.catch_warnings(record=True) as caught, progress("planning", None) as bar:
        warnings.simplefilter("always", PlanningWarning)
        actions = _actions(dynamics, action_low, action_high, action_set, binary=binary)
        policy = plan_policy(
            *(fit, reward, actions),
            method=planner,
            states=support,
            seed=seed,
            progress=bar,
            **problem,
        )
    doubts = [str(w.message) for w in caught if issubclass(w.category, PlanningWarning)]
    for text in doubts:
        warn(text)
    policy.save(out, force=force)
    say(policy.summary(), quiet=json == "-")
    if horizon is None:
        steps, reason = dynamics.usual_horizon
        say(f"horizon {steps:,}: {reason}", quiet=json == "-")
    say(f"policy saved in {out}", quiet=json == "-")
    facts = {
        "policy": str(out),
        "method": method,
        "reward": reward,
        **problem,
        **policy.to_json(),
        "warnings": doubts,
    }
    emit_json(facts, json, force=force)


def _fallback(text: str) -> Any:
    """Return the fallback's word, or its action."""
    if text.isalpha():
        return text
    action = numbers(text, "--fallback")
    return action if isinstance(action, float) else action.tolist()


def _actions(
    model: Any, low: str | None, high: str | None, table: Path | None, *, binary: bool
) -> Any:
    """Return the actions from the options; categories need none. Only one way may be used."""
    from ivvi.actions import Actions
    from ivvi.categories import raw_columns
    from ivvi.planning.allowed_actions import exclusive_actions, only_seen

    box = low is not None or high is not None
    names = raw_columns(model.action, model.coded)
    categories = {category.column for category in model.coded}
    if not (box or binary or table is not None) and categories >= set(names):
        return None
    if box + (table is not None) + binary != 1:
        raise InputError(
            "give the actions in only one way: --action-low and --action-high, --action-set, or "
            "--action-binary"
        )
    if binary and exclusive_actions(model):
        raise InputError(
            "--action-binary cannot be used: the levels of a category exclude each other"
        )
    if binary:
        return only_seen(model, Actions.binary(len(model.action)))
    if table is not None:
        if names == model.action:
            return Actions.finite(read_columns(table, names))
        return read_rows(table, names)
    if low is None or high is None:
        raise InputError("expected --action-low and --action-high together")
    bounds = numbers(low, "--action-low"), numbers(high, "--action-high")
    return bounds if categories & set(names) else Actions.box(*bounds, dim=len(names))
