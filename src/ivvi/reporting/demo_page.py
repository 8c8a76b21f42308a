"""The report of the demo: the whole story on one simulated log."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ivvi._io.files import read_json
from ivvi.errors import FileError
from ivvi.fitting import load_fit
from ivvi.fitting.inference import NORMAL_95
from ivvi.reporting import demo_pictures as pictures
from ivvi.reporting import fit_pictures
from ivvi.reporting.cells import Cell
from ivvi.reporting.fit_page import KEY
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.instrument_section import instrument_section
from ivvi.reporting.page import Figure, Page, PageTable, Points, Section, Text

WORDS = {
    "optimal": "plans with the truth",
    "instrument": "plans with the instrumented model",
    "zero": "does nothing",
    "behaviour": "wrote the log, without its hidden help",
    "least squares": "plans with the least-squares model",
}
"""What the policies of the bill do, in the order in which they are told."""
TRUTH = ("truth", "truth")


def load_demo(folder: Path, name: Path | None = None) -> Page:
    """Read the folder of a demo, and tell it; `name` is where it will be, if elsewhere."""
    shown = name or folder
    facts = read_json(folder / "demo.json")
    try:
        return demo_page(FitView(load_fit(folder / "model"), str(shown / "model")), facts, shown)
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{folder} is not a complete demo: {error}") from error


def demo_page(fit: FitView, facts: Mapping[str, Any], folder: Path) -> Page:
    """Tell what confounding does, what an instrument undoes, and what it costs not to know."""
    costs = _costs(facts)
    wrong, ratio = facts["wrong_signs_least_squares"], _times(costs)
    truth = np.array(facts["W_true"])
    return Page(
        title="A log that lies, and an instrument that does not",
        lead="Someone acted on something that nobody wrote down, and it moved the outcome too. "
        "Regression learns effects with the wrong sign, a planner acts on them, and the bill "
        "follows. An instrument in the same log tells the truth.",
        sections=(
            _log(fit, facts),
            _belief(fit, truth, facts),
            _revelation(fit, truth, facts),
            _walks(fit, facts, folder),
            _bill(costs, facts, folder),
            _next(folder),
        ),
        numbers=(
            (f"{facts['n']:,}", "decisions in the log"),
            (str(wrong), "effects to which least squares gives the wrong sign"),
            (
                f"{facts['error_least_squares'] / facts['error_iv']:.0f} times",
                "closer to the truth with the instrument",
            ),
            (f"{ratio:.0f} times", "the cost, for a plan that believes least squares"),
        ),
        facts={
            "command": f"ivvi demo --out {shlex.quote(str(folder))} --seed {facts['seed']}",
            "simulator": facts["simulator"],
        },
    )


def _log(fit: FitView, facts: Mapping[str, Any]) -> Section:
    figure = Figure(
        "What follows an action in the log",
        (pictures.log_picture(fit, 0),),
        "Points: means of twelve bins of the log's actions, with 95% intervals, after regression "
        "of both on the state and the other actions. Red runs through them, as least squares must. "
        "Blue is what the action does.",
        fit.command,
        wide=True,
    )
    sentence = (
        "Whoever wrote this log saw more than it holds, and pushed hardest when the state was "
        "about to rise by itself. So hard pushes are followed by high states, although a push "
        "lowers them.",
    )
    lead = f"{facts['n']:,} decisions, simulated, so that the truth is known: {facts['simulator']}."
    return Section("The log", lead, (Text(sentence), figure))


def _belief(fit: FitView, truth: np.ndarray, facts: Mapping[str, Any]) -> Section:
    figure = Figure(
        "Effect of each action on its own state",
        (pictures.effect_picture(fit, truth, "story-belief", ("ls",)),),
        "The intervals are narrow: more rows make least squares surer, not better.",
        fit.command,
        (KEY["ls"], TRUTH),
        wide=True,
    )
    wrong = facts["wrong_signs_least_squares"]
    lead = f"It gives {wrong} effects the wrong sign, and is certain of each."
    return Section("What least squares believes", lead, (figure,))


def _revelation(fit: FitView, truth: np.ndarray, facts: Mapping[str, Any]) -> Section:
    effects = Figure(
        "Effect of each action on its own state",
        (pictures.effect_picture(fit, truth, "story-effects"),),
        f"Distance of all coefficients from the truth: {facts['error_iv']:.3f} with the "
        f"instrument, {facts['error_least_squares']:.3f} by least squares.",
        fit.command,
        (KEY["iv"], KEY["ls"], TRUTH),
        wide=True,
    )
    left = Figure(
        "How it could be seen without the truth",
        fit_pictures.residuals(fit)[:3],
        "What each model leaves, against the part of an action that the instrument moves. That "
        "part is free of confounding, so a slope is an error of the effect.",
        fit.command,
        (KEY["iv"], KEY["ls"]),
    )
    verdict = instrument_section(fit).parts[0]
    lead = "It moves the actions and is independent of what nobody wrote down."
    return Section("What the instrument reveals", lead, (verdict, effects, left))


def _walks(fit: FitView, facts: Mapping[str, Any], folder: Path) -> Section:
    walks = {name: facts["walks"][name] for name in pictures.KINDS}
    series = [
        {"name": name, "path": f"walk-{pictures.KINDS[name]}", "cost": walk["cost"]}
        for name, walk in walks.items()
    ]
    figure = Figure(
        "Two policies, one log, the same noise",
        (
            pictures.walk_picture(walks, fit.model.state),
            pictures.distance_picture(walks),
        ),
        "Left: one walk of each in the plane of the first two states. Right: distance from the "
        "target in all states, twelve walks of each and their mean.",
        _evaluate(folder, facts),
        tuple((pictures.KINDS[name], pictures.PLANNED[name]) for name in walks),
        wide=True,
        walk={"series": series},
    )
    lead = "The same planner, the same goal; only what it believes differs."
    return Section("Two policies walk from the same start", lead, (figure,))


def _bill(
    costs: Mapping[str, tuple[float, float]], facts: Mapping[str, Any], folder: Path
) -> Section:
    evaluation, command = facts["evaluation"], _evaluate(folder, facts)
    episodes, horizon = evaluation["episodes"], evaluation["horizon"]
    figure = Figure(
        f"Cost of {horizon} steps",
        (pictures.bill_picture(costs, WORDS),),
        f"Means of {episodes} episodes with the same noise for all, with 95% intervals.",
        command,
        wide=True,
    )
    rows: list[tuple[Cell, ...]] = []
    for name, result in evaluation["policies"].items():
        regret = result["regret"]
        low, high = regret["interval"]
        rows.append((WORDS[name], -result["return"]["mean"], regret["mean"], low, high))
    columns = ("who", "cost", "regret", "low", "high")
    note = "Regret is the cost beyond that of planning with the truth, with its 95% interval."
    table = PageTable("The bill", columns, tuple(rows), note, command)
    lead = (
        f"Believing the wrong model costs {_times(costs):.0f} times as much, and more than doing "
        "nothing."
        if costs["least squares"][0] > costs["zero"][0]
        else f"Believing the wrong model costs {_times(costs):.0f} times as much."
    )
    return Section("The bill", lead, (figure, table))


def _next(folder: Path) -> Section:
    here = shlex.quote(str(folder))
    roles = "--state 'x*' --action 'a*' --instrument 'z*' --next-state 'next_x*'"
    steps = (
        ("is it any good?", f"ivvi diagnose {here}/log.parquet {roles}"),
        ("estimate", f"ivvi fit {here}/log.parquet {roles} --out my-model --report my-fit.html"),
        (
            "plan",
            "ivvi plan my-model --reward quadratic:weight=0.05 --action-low -1 "
            "--action-high 1 --out my-policy",
        ),
        ("act", "ivvi act my-policy --state 10,10,10,10,10"),
    )
    return Section("Your turn", "The same with a log of your own.", (Points(steps),))


def _costs(facts: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the mean cost of each policy and half the width of its 95% interval."""
    costs = {}
    for name, result in facts["evaluation"]["policies"].items():
        value = result["return"]
        costs[name] = (-value["mean"], NORMAL_95 * (value["se"] or 0.0))
    return costs


def _times(costs: Mapping[str, tuple[float, float]]) -> float:
    return costs["least squares"][0] / costs["instrument"][0]


def _evaluate(folder: Path, facts: Mapping[str, Any]) -> str:
    names = " ".join(shlex.quote(str(folder / name)) for name in ("policy", "policy-least-squares"))
    return f"ivvi evaluate {names} {facts['world']} --seed {facts['seed']}"
