"""The report of the demo: the whole story on one simulated log, whose truth is known."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ivvi._io.files import read_json
from ivvi._io.plotting import IV, LS, MUTED
from ivvi.errors import FileError
from ivvi.fitting import load_fit
from ivvi.fitting.inference_tables import NORMAL_95
from ivvi.reporting import fit_pictures
from ivvi.reporting.fit_page import instrument_section
from ivvi.reporting.fit_pictures import KEY, LOOK, binned
from ivvi.reporting.fit_view import FitView
from ivvi.reporting.inline_svg import INK, draw
from ivvi.reporting.page import MINUS, Cell, Figure, Page, PageTable, Picture, Points, Section, Text

WORDS = {
    "optimal": "plans with the truth",
    "instrument": "plans with the instrumented model",
    "zero": "does nothing",
    "behaviour": "wrote the log, without its hidden help",
    "least squares": "plans with the least-squares model",
}
"""The policies of the bill in words, in the order in which they appear."""
TRUTH = ("truth", "truth")
KINDS = {"instrument": "iv", "least squares": "ls"}
"""The two policies of the demo, by the estimate that they were planned with."""
PLANNED = {
    name: f"planned {LOOK[kind][3]}".replace(" by ", " with ") for name, kind in KINDS.items()
}


def load_demo(folder: Path, name: Path | None = None) -> Page:
    """Return the page of a demo's folder; `name` is its later place, if it will be moved."""
    place = name or folder
    facts = read_json(folder / "demo.json")
    try:
        return demo_page(FitView(load_fit(folder / "model"), str(place / "model")), facts, place)
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{folder} is not a complete demo: {error}") from error


def demo_page(fit: FitView, facts: Mapping[str, Any], folder: Path) -> Page:
    """Return the page: what confounding does, what an instrument corrects, and the costs."""
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


def log_picture(fit: FitView, k: int) -> Picture:
    """Plot the output after action k in the log, other features removed, and both slopes."""
    j = fit.phi.index(fit.model.action[k])
    a, left = _without_others(fit, k, j)
    slopes = {kind: float(W[k, j]) for kind, (W, _) in fit.estimates.items()}

    def paint(ax: Any) -> None:
        ends = np.quantile(a, (0.01, 0.99))
        for kind, slope in slopes.items():
            colour, _, _, words = LOOK[kind]
            ax.plot(ends, slope * ends, color=colour, lw=2.2)
            away = 46 if kind == "ls" else 16  # the points are about the line of least squares
            ax.annotate(
                f"{slope:+.2f} {words}".replace("-", MINUS),
                (0.97 * ends[1], slope * ends[1]),
                xytext=(0, away if slope > 0 else -away),
                textcoords="offset points",
                ha="right",
                va="center",
                color=colour,
            )
        binned(ax, a, left, INK, "o")
        ax.margins(y=0.16)
        ax.set_xlabel(f"action {fit.model.action[k]}, without what predicts it")
        ax.set_ylabel(f"{fit.outputs[k]}, in the same way")

    alt = (
        f"In the log, larger actions are followed by larger states: least squares finds a slope "
        f"of {slopes['ls']:.2f}; the instrument finds {slopes['iv']:.2f}."
    )
    return draw("story-log", alt, paint, width=390, height=280)


def effect_picture(
    fit: FitView, truth: np.ndarray, name: str, kinds: tuple[str, ...] = ("iv", "ls")
) -> Picture:
    """Plot the effect of each action on its own state, with the truth as a bar."""
    actions = fit.model.action
    pairs = [(i, fit.phi.index(a)) for i, a in enumerate(actions)]
    at, rows, columns = np.arange(len(pairs))[::-1], *np.array(pairs).T

    def paint(ax: Any) -> None:
        ax.axvline(0, color=MUTED, lw=0.8)
        ax.vlines(truth[rows, columns], at - 0.36, at + 0.36, color=INK, lw=2)
        for kind in kinds:
            (W, se), (colour, marker, shift, _) = fit.estimates[kind], LOOK[kind]
            w, half = W[rows, columns], NORMAL_95 * se[rows, columns]
            ax.errorbar(w, at + shift, xerr=half, fmt="none", color=colour, lw=1.6)
            ax.plot(w, at + shift, marker, color=colour, ms=7.5, mew=0)
        both = np.concatenate([W[rows, columns] for W, _ in fit.estimates.values()])
        ax.set_xlim(min(0, both.min()) - 0.08, max(0, both.max()) + 0.08)
        ax.set_yticks(
            at, [f"{a} \N{RIGHTWARDS ARROW} {fit.outputs[i]}" for i, a in enumerate(actions)]
        )
        ax.tick_params(axis="y", length=0)
        ax.spines["left"].set_visible(False)
        ax.grid(visible=True, axis="x")
        ax.set_xlabel("effect of the action on its own state")

    summary = "; ".join(
        f"{LOOK[kind][3]} " + ", ".join(f"{v:.2f}" for v in fit.estimates[kind][0][rows, columns])
        for kind in kinds
    )
    true = ", ".join(f"{v:.2f}" for v in truth[rows, columns])
    alt = f"Effects of the actions on their own states. Truth {true}; {summary}."
    return draw(name, alt, paint, width=390, height=84 + 32 * len(pairs))


def walk_picture(walks: Mapping[str, Mapping[str, Any]], state: tuple[str, ...]) -> Picture:
    """Plot the paths of both policies in the plane of the first two states."""

    def paint(ax: Any) -> None:
        ax.plot(0, 0, "+", color=INK, ms=14, mew=1.4)
        ax.annotate("target", (0, 0), xytext=(9, -13), textcoords="offset points")
        for name, walk in walks.items():
            x = np.array(walk["states"])[:, :2]
            (line,) = ax.plot(x[:, 0], x[:, 1], color=LOOK[KINDS[name]][0], lw=1.3)
            line.set_gid(f"walk-{KINDS[name]}")
        start = np.array(next(iter(walks.values()))["states"])[0]
        ax.plot(*start[:2], "o", color=INK, ms=5)
        ax.annotate("start", start[:2], xytext=(-8, -3), textcoords="offset points", ha="right")
        ax.set_xlabel(state[0])
        ax.set_ylabel(state[1])
        ax.margins(0.06)

    ends = {name: np.linalg.norm(walk["states"][-1]) for name, walk in walks.items()}
    summary = "; ".join(
        f"{PLANNED[name]}, it ends at distance {far:.1f}" for name, far in ends.items()
    )
    alt = f"Two policies walk from the same start with the same noise. One {summary}."
    return draw("story-walk", alt, paint, width=390, height=310)


def distance_picture(walks: Mapping[str, Mapping[str, Any]]) -> Picture:
    """Plot the distance from the target of twelve walks of each policy."""

    def paint(ax: Any) -> None:
        for name, walk in walks.items():
            far, colour = np.array(walk["distance"]), LOOK[KINDS[name]][0]
            ax.plot(far.T, color=colour, lw=0.6, alpha=0.3)
            ax.plot(far.mean(axis=0), color=colour, lw=2.2)
            place = (far.shape[1] - 1, far.mean(axis=0)[-1])
            ax.annotate(
                PLANNED[name],
                place,
                xytext=(0, 12),
                textcoords="offset points",
                ha="right",
                color=colour,
            )
        ax.set_ylim(bottom=0)
        ax.set_xlabel("step")
        ax.set_ylabel("distance from the target")

    means = {name: np.array(walk["distance"]).mean(axis=0)[-1] for name, walk in walks.items()}
    summary = ", ".join(f"{far:.1f} {PLANNED[name]}" for name, far in means.items())
    alt = f"Mean distance from the target after the walk: {summary}."
    return draw("story-distance", alt, paint, width=390, height=310)


def bill_picture(costs: Mapping[str, tuple[float, float]], words: Mapping[str, str]) -> Picture:
    """Plot the cost of each policy, with 95% intervals."""
    names = sorted(costs, key=lambda name: costs[name][0], reverse=True)
    at = np.arange(len(names))

    def paint(ax: Any) -> None:
        largest = max(cost for cost, _ in costs.values())
        for i, name in zip(at, names, strict=True):
            cost, half = costs[name]
            colour = {"iv": IV, "ls": LS}.get(KINDS.get(name, ""), MUTED)
            ax.barh(i, cost, height=0.42, color=colour)
            ax.errorbar(cost, i, xerr=half, fmt="none", color=INK, lw=1)
            ax.text(cost + half + 0.015 * largest, i, f"{cost:,.0f}", va="center")
            ax.text(0, i + 0.28, words[name], va="bottom")
        ax.set_xlim(0, 1.12 * largest)
        ax.set_ylim(-0.4, len(names) - 0.1)
        ax.set_axis_off()

    alt = ", ".join(f"{words[name]} {costs[name][0]:,.0f}" for name in names[::-1])
    return draw("story-bill", f"What each policy costs: {alt}.", paint, width=390, height=280)


def _log(fit: FitView, facts: Mapping[str, Any]) -> Section:
    figure = Figure(
        "What follows an action in the log",
        (log_picture(fit, 0),),
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
        (effect_picture(fit, truth, "story-belief", ("ls",)),),
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
        (effect_picture(fit, truth, "story-effects"),),
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
    walks = {name: facts["walks"][name] for name in KINDS}
    series = [
        {"name": name, "path": f"walk-{KINDS[name]}", "cost": walk["cost"]}
        for name, walk in walks.items()
    ]
    figure = Figure(
        "Two policies, one log, the same noise",
        (
            walk_picture(walks, fit.model.state),
            distance_picture(walks),
        ),
        "Left: one walk of each in the plane of the first two states. Right: distance from the "
        "target in all states, twelve walks of each and their mean.",
        _evaluate(folder, facts),
        tuple((KINDS[name], PLANNED[name]) for name in walks),
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
        (bill_picture(costs, WORDS),),
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
    demo = shlex.quote(str(folder))
    roles = "--state 'x*' --action 'a*' --instrument 'z*' --next-state 'next_x*'"
    steps = (
        ("is it any good?", f"ivvi diagnose {demo}/log.parquet {roles}"),
        (
            "estimate",
            f"ivvi fit {demo}/log.parquet {roles} --out my-model --report my-fit.html",
        ),
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


def _without_others(fit: FitView, output: int, feature: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a feature and an output of the sample after regression on all other features."""
    if fit.sample is None:
        raise FileError("a fit to sums has no rows to draw")
    Phi = fit.model.phi(fit.sample.x, fit.sample.a)
    others = np.delete(Phi, feature, axis=1)
    action_and_output = np.column_stack([Phi[:, feature], fit.sample.y[:, output]])
    rest = action_and_output - others @ np.linalg.lstsq(others, action_and_output, rcond=None)[0]
    return rest[:, 0], rest[:, 1]
