"""The whole story on one simulated log."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ivvi._io.files import filled_folder, write_json
from ivvi._io.plotting import IV, LS, new_figure, save_figure
from ivvi.dynamics.model import Dynamics
from ivvi.dynamics.rollout import Rollout
from ivvi.errors import FileError, IvviWarning
from ivvi.fitting import Fit, estimate
from ivvi.fitting.inference_tables import half_widths
from ivvi.logs import read_logs
from ivvi.policy.plan import plan
from ivvi.policy.policy import Policy
from ivvi.reporting.demo_page import WORDS, load_demo
from ivvi.reporting.page import write_page
from ivvi.simulators.catalogue import make_env
from ivvi.simulators.evaluate import Evaluation, evaluate

DIM, SETTING, HORIZON = 5, "I", 200
REWARD = "quadratic:weight=0.05"
WALKS, WALK = 12, 60
"""Number of walks to plot, and their steps."""
AGAINST = ("optimal", "zero", "behaviour")


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Results of the demo: text for people, facts for programs."""

    text: str
    facts: dict[str, Any]


def run_demo(out: Path, *, seed: int = 0, force: bool = False, program: str = "ivvi") -> DemoResult:
    """Simulate a confounded log, fit it both ways, and show what confounding did.

    Then plan with both, and let both policies walk from the same start with the same noise.
    Writes ``log.parquet``, ``model/``, ``policy/``, ``policy-least-squares/``,
    ``coefficients.png``, ``policies.png``, ``demo.json`` and ``report.html`` into `out`.
    `program` is the command to type instead of ``ivvi``.
    """
    _check_folder(out, force=force)
    with filled_folder(out) as folder:
        return _tell_story(folder, out, seed, program)


def _tell_story(folder: Path, out: Path, seed: int, program: str) -> DemoResult:
    """Write all files of the demo into `folder`, which will be renamed to `out`."""
    env = make_env("linear", dim=DIM, setting=SETTING)
    env.write_log(folder / "log.parquet", seed=seed, force=True)
    log = read_logs(
        folder / "log.parquet", state="x*", action="a*", instrument="z*", next_state="next_x*"
    )
    log.table.label = log.label.replace(str(folder), str(out))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        fit = replace(estimate(log), command=_fit_command(out))
    truth = env.world.W_star
    fit.save(folder / "model", force=True)
    _draw_effects(fit, truth, folder / "coefficients.png")
    policies = {"instrument": _plan(fit.model), "least squares": _plan(fit.baseline_model)}
    policies["instrument"].save(folder / "policy", force=True)
    policies["least squares"].save(folder / "policy-least-squares", force=True)
    bill = evaluate(policies, env, against=AGAINST, horizon=HORIZON, seed=seed)
    walks = {
        name: env.rollout(policy, episodes=WALKS, horizon=WALK, seed=seed, keep=True)
        for name, policy in policies.items()
    }
    _draw_walks(walks, folder / "policies.png", bill)
    facts = _facts(fit, truth, seed) | {"evaluation": bill.to_json(), "walks": _walked(walks)}
    write_json(folder / "demo.json", facts, force=True)
    write_page(load_demo(folder, out), folder / "report.html", force=True)
    return DemoResult(_tell(fit, truth, bill, out, seed) + _next_steps(out, program), facts)


def _walked(walks: Mapping[str, Rollout]) -> dict[str, Any]:
    """Return for each policy one walk, its cumulative cost by step, and all distances."""
    paths = {}
    for name, run in walks.items():
        states = np.asarray(run.states)
        parts = {
            "states": states[0],
            "cost": np.concatenate([[0.0], np.cumsum(-run.rewards[0])]),
            "distance": np.linalg.norm(states, axis=-1),
        }
        paths[name] = {part: values.round(3).tolist() for part, values in parts.items()}
    return paths


def _fit_command(out: Path) -> str:
    log, model = (shlex.quote(str(out / name)) for name in ("log.parquet", "model"))
    columns = "--state 'x*' --action 'a*' --instrument 'z*' --next-state 'next_x*'"
    return f"ivvi fit {log} {columns} --out {model}"


def _plan(model: Dynamics) -> Policy:
    return plan(model, REWARD, (-1, 1), horizon=HORIZON)


def _check_folder(out: Path, *, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise FileError(f"{out} is a file; the demo needs a folder")
    if out.exists() and any(out.iterdir()) and not force and not (out / "demo.json").exists():
        raise FileError(
            f"{out} is not empty and not an earlier demo; choose another or pass --force"
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{out} cannot be made: {error.strerror or error}") from error


def _facts(fit: Fit, truth: Any, seed: int) -> dict[str, Any]:
    iv, ls = fit.W, fit.baseline.W
    return {
        "simulator": f"linear k={DIM} setting {SETTING}",
        "world": f"--env linear --dim {DIM} --setting {SETTING} --horizon {HORIZON}",
        "seed": seed,
        "n": fit.moments.n,
        "mu_iv": fit.diagnostics.strength.mu_iv,
        "error_iv": float(np.linalg.norm(iv - truth)),
        "error_least_squares": float(np.linalg.norm(ls - truth)),
        "W_true": truth.tolist(),
        "W_iv": iv.tolist(),
        "se_iv": fit.se.tolist(),
        "W_least_squares": ls.tolist(),
        "wrong_signs_least_squares": _wrong_signs(ls, truth),
        "wrong_signs_iv": _wrong_signs(iv, truth),
    }


def _bill_lines(bill: Evaluation) -> list[str]:
    costs = [(name, -bill.value(name).mean) for name in WORDS]
    return [f"  {WORDS[name]:<42} costs {cost:9.1f}" for name, cost in costs]


def _wrong_signs(W: Any, truth: Any) -> int:
    return int(np.sum((W * truth < 0) & (np.abs(truth) > 0)))


def _tell(fit: Fit, truth: Any, bill: Evaluation, out: Path, seed: int) -> str:
    """Return the story: the effect of each action on its own state, and the costs of the plans."""
    names = fit.estimate.design.phi_names
    lines = [
        f"A simulated log (linear, k = {DIM}, setting {SETTING}, seed {seed}): {fit.moments.n:,} "
        f"decisions in {fit.counts.episodes} episodes.",
        "Someone acted on something that nobody wrote down, and it moved the outcome too.",
        "",
        "What each action does to its own state:",
        f"{'':16}{'truth':>8}{'least squares':>16}{'with the instrument':>28}",
    ]
    for i in range(DIM):
        j = names.index(f"a{i}")
        w, s = fit.W[i, j], half_widths(fit.estimate)[i, j] * fit.se[i, j]
        interval = f"{w:.3f} [{w - s:.3f}, {w + s:.3f}]"
        lines.append(
            f"  a{i} -> next_x{i}  {truth[i, j]:8.3f}{fit.baseline.W[i, j]:16.3f}{interval:>28}"
        )
    facts = _facts(fit, truth, seed)
    far = facts["error_least_squares"] / facts["error_iv"]
    lines += [
        "",
        f"Least squares gets {facts['wrong_signs_least_squares']} signs wrong; "
        "a planner would push the wrong way with confidence.",
        f"With the instrument the whole of W is {far:.0f} times closer to the truth "
        f"(||W - W*|| {facts['error_iv']:.3f} against {facts['error_least_squares']:.3f}).",
        f"Instrument strength mu_iv is {facts['mu_iv']:.3f} (the paper prints 0.14); Wu-Hausman "
        f"p < {max(t.p_value for t in fit.diagnostics.wu_hausman or ()) + 1e-4:.4f}.",
        "",
        f"The bill: two policies from the same start, the same noise, {HORIZON} steps:",
        *_bill_lines(bill),
        "",
        f"Written to {out}: log.parquet, model/, policy/, two pictures (.png), demo.json",
        f"The whole story with its pictures: {out}/report.html",
    ]
    return "\n".join(lines)


def _next_steps(out: Path, program: str) -> str:
    """Return commands that work as printed, with the log that was just written."""
    log, policy = (shlex.quote(str(out / name)) for name in ("log.parquet", "policy"))
    columns = "--state 'x*' --action 'a*' --instrument 'z*'"
    return "\n".join(
        (
            "",
            "Next, as printed:",
            f"  {program} diagnose {log} {columns}",
            f"  {program} fit {log} {columns} --out my-model",
            f"  {program} act {policy} --state 10,10,10,10,10",
            "Then use your own table instead of that log, and its columns for x*, a* and z*.",
        )
    )


def _draw_effects(fit: Any, truth: Any, path: Path) -> None:
    """Plot every coefficient against the truth, instrumented and by least squares."""
    roles, names = fit.roles, fit.estimate.design.phi_names
    pairs = [(i, names.index(a)) for i, a in enumerate(roles.action[: len(fit.W)])]
    at = tuple(np.array(pairs).T)
    place = np.arange(len(pairs))
    figure = new_figure(9, 4.2)
    effects, scatter = figure.subplots(1, 2, width_ratios=(1.35, 1))
    effects.axhline(0, color="0.75", lw=1)
    effects.hlines(truth[at], place - 0.35, place + 0.35, color="black", lw=2, label="truth")
    effects.plot(place - 0.12, fit.baseline.W[at], "X", color=LS, ms=9, label="least squares")
    effects.errorbar(
        place + 0.12,
        fit.W[at],
        (half_widths(fit.estimate) * fit.se)[at],
        fmt="o",
        color=IV,
        capsize=4,
        label="instrument, 95% interval",
    )
    effects.set_xticks(place, [f"{roles.action[i]} → {roles.state[i]}'" for i in place])
    effects.set_ylabel("effect of the action")
    effects.set_title("The log says push; the truth says pull", loc="left", fontsize=11)
    effects.legend(frameon=False, loc="center left", fontsize=9)
    low, high = float(truth.min()) - 0.12, float(truth.max()) + 0.12
    scatter.plot([low, high], [low, high], color="0.75", lw=1)
    scatter.plot(truth.ravel(), fit.baseline.W.ravel(), "X", color=LS, ms=6, alpha=0.7)
    scatter.plot(truth.ravel(), fit.W.ravel(), "o", color=IV, ms=4, alpha=0.7)
    scatter.set_xlabel("true coefficient")
    scatter.set_ylabel("estimated coefficient")
    scatter.set_title(f"All {truth.size} coefficients", loc="left", fontsize=11)
    for axes in (effects, scatter):
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path, force=True)


def _draw_walks(
    walks: Mapping[str, Rollout],
    path: Path,
    bill: Evaluation,
) -> None:
    """Plot the walks of two policies from the same start, and the cost of each."""
    figure = new_figure(9, 4.2)
    paths, costs = figure.subplots(1, 2, width_ratios=(1.35, 1))
    for colour, (name, run) in zip((IV, LS), walks.items(), strict=True):
        far = np.linalg.norm(np.asarray(run.states), axis=-1)
        paths.plot(far.T, color=colour, lw=0.7, alpha=0.35)
        paths.plot(far.mean(axis=0), color=colour, lw=2.2, label=f"planned with {name}")
    paths.set(xlabel="step", ylabel="distance from the target")
    paths.set_title("Two policies, one log, the same noise", loc="left", fontsize=11)
    paths.legend(frameon=False, fontsize=9)
    names = sorted(bill.rewards, key=lambda name: bill.value(name).mean)
    cost = [-bill.value(name).mean for name in names]
    colours = [{"instrument": IV, "least squares": LS}.get(name, "0.6") for name in names]
    costs.barh(names, cost, color=colours)
    for i, value in enumerate(cost):
        costs.text(value, i, f" {value:,.0f}", va="center", fontsize=9)
    costs.set_xlim(0, 1.2 * max(cost))
    costs.set_title("The bill", loc="left", fontsize=11)
    for axes in (paths, costs):
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, path, force=True)
