"""What plans lose in worlds whose optimum is known.

    python benchmarks/worlds.py
    python benchmarks/worlds.py --only threshold --logs 1 --forced
    python benchmarks/worlds.py --sizes 2000,8000,32000 --json worlds.json
    python benchmarks/worlds.py --table worlds.json

The worlds are plain NumPy (`benchmarks/zoo`), and so is the dynamic programming that knows the best
policy of each. For every world and log, policies are run in the true world with the same noise:

- `planning`: the default plan with the true dynamics in place of the estimated ones
- `end to end`: the same from the confounded log with its instrument
- `least squares`: the same without the instrument

A loss is the share of the possible gain, (V* - V) / (V* - V of the best simple rival), in percent.
Simple rivals are nothing, the usual action and the best action held; for `over usual` the first
two alone. Where a rival explodes every share is small: `of value` is (V* - V) / |V*|. Standard
errors are those of the episodes. Seconds are processor seconds.

`--table` makes Markdown of what `--json` wrote. Its `bound` is what the plan with the true dynamics
says of itself, by its own upper bound: the least share of the possible gain that it earns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from zoo import WORLDS, World, collect, fitted_model, nearest, reference, run, true_model
from zoo.bounds import upper_bound
from zoo.optimum import candidates, solve_grid

import ivvi

SOURCES = ("true", "exact", "least-squares")
METHODS = ("mpc", "value-iteration", "spede")
MOST_HELD = 100
FINE = 1000
ENOUGH = 0.05


def held(a: np.ndarray) -> Callable[[np.ndarray, int], np.ndarray]:
    return lambda x, h: np.broadcast_to(a, (len(x), len(a)))


def simple_rivals(world: World, log: dict[str, np.ndarray]) -> dict[str, list[np.ndarray]]:
    """Return the actions to hold: nothing (where allowed), the usual one, and a sample of all."""
    mean = np.array([[log[f"a{i}"].mean() for i in range(world.d_a)]])
    nothing = np.zeros((1, world.d_a))
    allowed = np.allclose(nearest(world.actions, nothing), nothing)
    every = candidates(world)
    picked = np.random.default_rng(0).permutation(len(every))[:MOST_HELD]
    return {
        "usual": [nearest(world.actions, mean)[0], *([nothing[0]] if allowed else [])],
        "held": list(every[picked]),
    }


def rivals_earn(world: World, log: dict, episodes: int, seed: int) -> dict[str, float]:
    """Return the returns of the best rivals: nothing and usual, and these with held actions."""
    rivals = simple_rivals(world, log)
    usual = max(run(world, held(a), episodes, seed).mean() for a in rivals["usual"])
    rank = sorted(rivals["held"], key=lambda a: -run(world, held(a), 50, seed).mean())
    best = max(run(world, held(a), episodes, seed).mean() for a in rank[:3])
    return {"usual": float(usual), "held": float(max(best, usual))}


def make_plan(world: World, model: Any, method: str | None) -> tuple[Any, float]:
    """Return the plan, by default whatever `ivvi.plan` chooses, and the seconds it took."""
    started = time.process_time()
    forced = {} if method is None else {"method": method}
    policy = ivvi.plan(
        model,
        "learned" if world.learned else world.reward,
        world.actions,
        horizon=world.horizon,
        discount=world.discount,
        terminal=world.terminal,
        **forced,
    )
    return policy, time.process_time() - started


def decisions(world: World, policy: Any, model: Any, log: dict) -> dict[str, Any]:
    """Compare first decisions with dynamic programming in the same model on a line of states."""
    mean = lambda x, a: np.asarray(model.mean(x, a))  # noqa: E731
    spread = tuple(np.sqrt(np.diag(model.next_cov)))
    exact = solve_grid(replace(world, mean=mean, spread=spread)).policy
    low, high = np.quantile(log["x0"], [0.001, 0.999])
    x = np.linspace(low, high, FINE)[:, None]
    ours, best = (np.asarray(rule(x, 0))[:, 0] for rule in (policy, exact))
    switches = [int(np.count_nonzero(np.diff(chosen))) for chosen in (ours, best)]
    return {"agree": float((ours == best).mean()), "switches": switches}


def compared(policy: Any) -> dict[str, Any]:
    """Return the plan's own comparison: its candidates and its bound, where it has one."""
    comparison = getattr(policy, "comparison", None)
    if comparison is None:
        return {}
    bound = getattr(comparison, "bound", None)
    claimed = None if bound is None else str(bound)
    return {"table": str(comparison), "claimed_bound": claimed, "share": comparison.share}


@lru_cache(maxsize=4)
def log_and_references(
    world: World, rows: int, episodes: int, seed: int
) -> tuple[dict[str, np.ndarray], np.ndarray, dict[str, float]]:
    """Return a log, the returns of the best policy, and what simple rivals earn."""
    log = collect(world, rows, seed)
    best = run(world, reference(world).policy, episodes, seed)
    return log, best, rivals_earn(world, log, episodes, seed)


def measure(world: World, source: str, asked: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Plan from one log, act in the true world; return value, losses, seconds."""
    log, best, rivals = log_and_references(world, asked.rows, asked.episodes, seed)
    started = time.process_time()
    model = true_model(world, log) if source == "true" else fitted_model(world, log, source)
    fitting = time.process_time() - started
    policy, planning = make_plan(world, model, asked.method)
    started = time.process_time()
    earned = run(world, policy, asked.episodes, seed)
    acting = time.process_time() - started
    behind = best - earned
    gain = {kind: max(float(best.mean()) - value, 1e-9) for kind, value in rivals.items()}
    gain["value"] = abs(float(best.mean()))
    row = {
        "world": world.name,
        "source": source,
        "seed": seed,
        "optimum": float(best.mean()),
        "value": float(earned.mean()),
        "se": float(behind.std(ddof=1) / np.sqrt(len(behind))),
        "rivals": rivals,
        "gain": gain,
        "loss": {kind: float(behind.mean() / size) for kind, size in gain.items()},
        "seconds": {"fitting": fitting, "planning": planning, "acting": acting},
        **compared(policy),
    }
    binary = world.d_x == 1 and world.actions.is_finite and len(world.actions.choices) == 2
    if binary and not world.draw:
        row["decisions"] = decisions(world, policy, model, log)
    return row


def guarded(world: World, source: str, asked: argparse.Namespace, seed: int) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return measure(world, source, asked, seed)
    except Exception as error:  # a world that cannot be planned in is a result, too
        if asked.traceback:
            traceback.print_exc()
        sentence = " ".join(str(error).split())[:160]
        return {"world": world.name, "source": source, "seed": seed, "error": sentence}


def forced_losses(world: World, asked: argparse.Namespace) -> dict[str, str]:
    """Return the planning loss of each method, in a process of its own that may be stopped."""
    losses = {}
    for method in METHODS:
        command = [sys.executable, __file__, "--only", world.name, "--logs", "1", "--json", "-"]
        command += ["--rows", str(asked.rows), "--episodes", str(asked.episodes)]
        command += ["--method", method, "--source", "true"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=asked.limit, check=True)
            row = json.loads(done.stdout)["rows"][0]
            losses[method] = row["error"][:40] if "error" in row else percent([row])
        except subprocess.TimeoutExpired:
            losses[method] = f"> {asked.limit:g} s"
        except subprocess.CalledProcessError as error:
            losses[method] = error.stderr.decode().strip().splitlines()[-1][:40]
    return losses


def rows_needed(world: World, asked: argparse.Namespace) -> dict[str, Any]:
    """Return the loss end to end at growing sizes of the log, until it is below ENOUGH."""
    losses = {}
    for size in map(int, asked.sizes.split(",")):
        sized = argparse.Namespace(**{**vars(asked), "rows": size})
        rows = [guarded(world, "exact", sized, seed) for seed in range(asked.logs)]
        losses[size] = percent(rows)
        good = [row["loss"]["held"] for row in rows if "loss" in row]
        if good and np.mean(good) < ENOUGH:
            break
    return losses


def percent(rows: list[dict[str, Any]], kind: str = "held") -> str:
    """Return the mean loss in percent, with the standard error of its episodes."""
    good = [row for row in rows if "loss" in row]
    if not good:
        return rows[0]["error"][:16] if rows else "-"
    loss = np.mean([row["loss"][kind] for row in good])
    error = np.mean([row["se"] / row["gain"][kind] for row in good]) / len(good) ** 0.5
    rounded = round(100 * loss, 1) + 0.0  # no minus before a zero
    return f"{rounded:.1f} ({100 * error:.1f})" if loss < 100 else f"{100 * loss:.1e}"


def show(world: World, rows: list[dict[str, Any]], bound: Any) -> str:
    """Return one line of the table."""
    by = {source: [row for row in rows if row["source"] == source] for source in SOURCES}
    good = [row for row in rows if "loss" in row]
    mean = lambda part: np.mean([part(row) for row in good]) if good else np.nan  # noqa: E731
    cells = [
        f"{world.name:<12}",
        f"{mean(lambda r: r['optimum']):>9.2f}",
        f"{mean(lambda r: r['rivals']['held']):>9.2f}",
        "        -" if bound is None else f"{bound[0]:>9.2f}",
        f"{percent(by['true']):>15}",
        f"{percent(by['true'], 'usual'):>15}",
        f"{percent(by['true'], 'value'):>15}",
        f"{percent(by['exact']):>15}",
        f"{percent(by['least-squares']):>15}",
        f"{mean(lambda r: r['seconds']['planning']):>7.1f}",
        f"{mean(lambda r: r['seconds']['acting']):>7.1f}",
    ]
    agreements = [row["decisions"] for row in rows if "decisions" in row]
    if agreements:
        agree = np.min([t["agree"] for t in agreements])
        straight = all(ours <= max(1, best) for ours, best in (t["switches"] for t in agreements))
        cells.append(f" {100 * agree:.1f}% of decisions{'' if straight else ', not monotone'}")
    return " ".join(cells)


def heading() -> str:
    losses = ("planning", "over usual", "of value", "end to end", "least squares")
    words = (f"{w:>15}" for w in losses)
    first = f"{'world':<12} {'optimum':>9} {'simple':>9} {'bound':>9}"
    return f"{first} {' '.join(words)} {'plan s':>7} {'act s':>7}"


def table(files: list[str]) -> str:
    """Return a Markdown table of what `--json` wrote to files."""
    parts = [json.loads(Path(name).read_text()) for name in files]
    rows = [row for part in parts for row in part["rows"]]
    sizes = {name: size for part in parts for name, size in part["sizes"].items()}
    words = (
        "optimum",
        "planning",
        "end to end",
        "least squares",
        "bound",
        "seconds",
        "rows for 5%",
    )
    lines = [f"| world | {' | '.join(words)} |", "|---|" + "---|" * len(words)]
    for name in WORLDS:
        of_world = [row for row in rows if row["world"] == name]
        if not of_world:
            continue
        by = {source: [row for row in of_world if row["source"] == source] for source in SOURCES}
        good = [row for row in of_world if "loss" in row]
        shares = [row["share"] for row in by["true"] if row.get("share")]
        optimum = np.mean([row["optimum"] for row in good])
        seconds = np.mean([row["seconds"]["planning"] for row in good])
        cells = [f"{optimum:.4g}", *(percent(by[source]) for source in SOURCES)]
        cells += [f"{100 * min(shares):.3g}%" if len(shares) == len(by["true"]) else "-"]
        cells += [f"{seconds:.1f}", _enough(sizes.get(name, {}))]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _enough(sizes: dict[str, str]) -> str:
    """Return the first size of a log whose loss is below ENOUGH, from what `rows_needed` found."""
    for size, loss in sizes.items():
        number = loss.split()[0].lstrip("-").replace(".", "", 1)
        if number.isdigit() and float(loss.split()[0]) < 100 * ENOUGH:
            return f"{int(size):,}"
    return f"above {int(list(sizes)[-1]):,}" if sizes else "-"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of worlds, separated by commas")
    parser.add_argument("--logs", type=int, default=3)
    parser.add_argument("--rows", type=int, default=8000, help="rows of a log")
    parser.add_argument("--episodes", type=int, default=400, help="episodes to value a policy with")
    parser.add_argument("--method", help="force a planner")
    parser.add_argument("--source", help=f"only one of {', '.join(SOURCES)}")
    parser.add_argument("--forced", action="store_true", help="also every planner by force")
    parser.add_argument("--sizes", help="sizes of logs to try, such as 2000,8000,32000")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds of a forced planner")
    parser.add_argument("--json", help="write all figures to a file, - for standard output")
    parser.add_argument("--table", nargs="+", metavar="FILE", help="a table of what --json wrote")
    parser.add_argument("--traceback", action="store_true")
    return parser.parse_args()


def main() -> None:
    asked = parsed()
    if asked.table:
        print(table(asked.table))
        return
    names = asked.only.split(",") if asked.only else list(WORLDS)
    if unknown := set(names) - set(WORLDS):
        sys.exit(f"unknown worlds {', '.join(sorted(unknown))}; known are {', '.join(WORLDS)}")
    silent = asked.json == "-"
    say = (lambda text: None) if silent else (lambda text: print(text, flush=True))
    say(heading())
    everything: dict[str, Any] = {"rows": [], "bounds": {}, "forced": {}, "sizes": {}}
    for world in (WORLDS[name] for name in names):
        sources = [asked.source] if asked.source else SOURCES
        rows = [guarded(world, s, asked, seed) for seed in range(asked.logs) for s in sources]
        bound = None if silent else upper_bound(world, asked.episodes, range(asked.logs))
        everything["rows"] += rows
        everything["bounds"][world.name] = bound
        say(show(world, rows, bound))
        if asked.forced:
            everything["forced"][world.name] = forced = forced_losses(world, asked)
            say("    forced: " + ", ".join(f"{k} {v}" for k, v in forced.items()))
        if asked.sizes:
            everything["sizes"][world.name] = sizes = rows_needed(world, asked)
            say("    rows: " + ", ".join(f"{k:,}: {v}" for k, v in sizes.items()))
    if silent:
        print(json.dumps(everything))
    elif asked.json:
        Path(asked.json).write_text(json.dumps(everything, indent=2))


if __name__ == "__main__":
    main()
