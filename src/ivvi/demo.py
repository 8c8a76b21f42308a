"""The whole story on one simulated log."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ivvi.errors import FileError, IvviWarning
from ivvi.files import atomic_file, write_json
from ivvi.fitting import Fit, estimate
from ivvi.logs import read_logs
from ivvi.simulators import make_env

DIM, SETTING = 5, "I"


@dataclass(frozen=True, slots=True)
class Story:
    """What the demo found: text for people, facts for machines."""

    text: str
    facts: dict[str, Any]


def run_demo(out: Path, *, seed: int = 0, force: bool = False) -> Story:
    """Simulate a confounded log, fit it both ways, and show what confounding did.

    Writes ``log.parquet``, ``model/``, ``coefficients.png`` and ``demo.json`` into `out`.
    """
    _prepare(out, force=force)
    env = make_env("linear", dim=DIM, setting=SETTING)
    env.write_log(out / "log.parquet", seed=seed, force=True)
    log = read_logs(
        out / "log.parquet", state="x*", action="a*", instrument="z*", next_state="next_x*"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IvviWarning)
        fit = estimate(log)
    truth = env.world.W_star
    fit.save(out / "model", force=True)
    _draw(fit, truth, out / "coefficients.png")
    facts = _facts(fit, truth, seed)
    write_json(out / "demo.json", facts, force=True)
    return Story(_tell(fit, truth, out, seed), facts)


def _prepare(out: Path, *, force: bool) -> None:
    if out.exists() and not out.is_dir():
        raise FileError(f"{out} is a file; the demo wants a folder")
    if out.exists() and any(out.iterdir()) and not force and not (out / "demo.json").exists():
        raise FileError(
            f"{out} is not empty and is no earlier demo; choose another or pass --force"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{out} cannot be made: {error.strerror or error}") from error


def _facts(fit: Fit, truth: Any, seed: int) -> dict[str, Any]:
    iv, ls = fit.W, fit.baseline.W
    return {
        "simulator": f"linear k={DIM} setting {SETTING}",
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


def _wrong_signs(W: Any, truth: Any) -> int:
    return int(np.sum((W * truth < 0) & (np.abs(truth) > 0)))


def _tell(fit: Fit, truth: Any, out: Path, seed: int) -> str:
    """Write the story: the effect of each action on its own state, three ways."""
    names = fit.estimate.layout.phi_names
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
        w, s = fit.W[i, j], 1.96 * fit.se[i, j]
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
        f"Written to {out}: log.parquet, model/, coefficients.png, demo.json",
        "Next:",
        f"  ivvi diagnose {out}/log.parquet --state 'x*' --action 'a*' --instrument 'z*'",
        f"  ivvi fit {out}/log.parquet --state 'x*' --action 'a*' --instrument 'z*' --out my-model",
    ]
    return "\n".join(lines)


def _draw(fit: Fit, truth: Any, path: Path) -> None:
    """Draw every coefficient against the truth, both ways."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    names = fit.estimate.layout.phi_names
    actions = [j for j, name in enumerate(names) if name.startswith("a")]
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    effects, scatter = figure.subplots(1, 2, width_ratios=(1.35, 1))
    place = np.arange(DIM)
    own = [truth[i, actions[i]] for i in range(DIM)]
    ls = [fit.baseline.W[i, actions[i]] for i in range(DIM)]
    iv = [fit.W[i, actions[i]] for i in range(DIM)]
    half = [1.96 * fit.se[i, actions[i]] for i in range(DIM)]
    effects.axhline(0, color="0.75", lw=1)
    effects.hlines(own, place - 0.35, place + 0.35, color="black", lw=2, label="truth")
    effects.plot(place - 0.12, ls, "X", color="#c1121f", ms=9, label="least squares")
    effects.errorbar(
        place + 0.12,
        iv,
        half,
        fmt="o",
        color="#1d6fb8",
        capsize=4,
        label="instrument, 95% interval",
    )
    effects.set_xticks(place, [f"a{i} → x{i}'" for i in range(DIM)])
    effects.set_ylabel("effect of the action")
    effects.set_title("The log says push; the truth says pull", loc="left", fontsize=11)
    effects.legend(frameon=False, loc="center left", fontsize=9)
    low, high = float(truth.min()) - 0.12, float(truth.max()) + 0.12
    scatter.plot([low, high], [low, high], color="0.75", lw=1)
    scatter.plot(truth.ravel(), fit.baseline.W.ravel(), "X", color="#c1121f", ms=6, alpha=0.7)
    scatter.plot(truth.ravel(), fit.W.ravel(), "o", color="#1d6fb8", ms=4, alpha=0.7)
    scatter.set_xlabel("true coefficient")
    scatter.set_ylabel("estimated coefficient")
    scatter.set_title(f"All {truth.size} coefficients", loc="left", fontsize=11)
    for axes in (effects, scatter):
        axes.spines[["top", "right"]].set_visible(False)
    with atomic_file(path, force=True) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
