"""Logs as people have them, against a truth that is known: memory, doctors' names, text columns.

- ``memory``: x'' depends on x and the x before; what a plan with and without --lags 1 loses, and
  what the check says.
- ``doctors``: coverage and bias of --instrument loo:doctor beside 2SLS with a dummy per doctor.
- ``death``: patients in three conditions who are treated or not, and may die: what plans lose
  against exact dynamic programming, in the true model, end to end and by least squares.
- ``hospital``: three treatments, and two ends with different pay, death (-1) and discharge (+1):
  what plans lose against exact dynamic programming, and whether the interval of their value holds.
- ``text``: processor time of a fit of a log with two text columns over that of the same in numbers.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import ivvi
from ivvi.errors import IvviWarning

NOW, BEFORE, EFFECT = 1.3, -0.6, 0.7
"""x'' = NOW x' + BEFORE x + EFFECT a + e."""
TREATED = -0.5
"""Effect of a treatment in the world of doctors."""


def second_order(episodes: int, steps: int, seed: int) -> dict[str, np.ndarray]:
    """Simulate the log of a world that remembers, with one state observed."""
    rng = np.random.default_rng(seed)
    x = before = 3 * rng.normal(size=episodes)
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("episode", "step", "x0", "a0", "z0")}
    for t in range(steps):
        z, e = rng.normal(size=(2, episodes))
        a = np.clip(z + 0.8 * e + 0.3 * rng.normal(size=episodes), -3, 3)
        for name, values in zip(rows, (np.arange(episodes), t, x, a, z), strict=True):
            rows[name].append(np.broadcast_to(values, episodes))
        x, before = NOW * x + BEFORE * before + EFFECT * a + e, x
    return {name: np.array(parts).T.ravel() for name, parts in rows.items()}


def true_cost(policy: object, lags: int, episodes: int = 4000, steps: int = 20) -> float:
    """Return the mean cost sum x^2 + 0.1 a^2 of an episode, in truth."""
    rng = np.random.default_rng(10)
    x = before = 3 * rng.normal(size=episodes)
    cost, a = np.zeros(episodes), np.zeros(episodes)
    for t in range(steps):
        states = np.column_stack([x, before, a][: 1 + 2 * lags])
        a = policy(states, t)[:, 0]  # type: ignore[operator]
        cost += x**2 + 0.1 * a**2
        x, before = NOW * x + BEFORE * before + EFFECT * a + rng.normal(size=episodes), x
    return float(cost.mean())


def memory(logs: int) -> None:
    """Print what plans lose against the best one, over the best of what a log allows."""
    truth = ivvi.fit(_remembering(second_order(4000, 50, 999), 1))
    names = truth.estimate.design.phi_names
    W = np.zeros_like(truth.W)
    for name, weight in (("x0", NOW), ("x0_lag1", BEFORE), ("a0", EFFECT)):
        W[0, names.index(name)] = weight
    exact = truth.model.with_numbers((W, np.eye(1), *truth.model.numbers[2:]))
    settings = {"horizon": 20, "method": "mpc", "compare": False}
    reward = "quadratic:weight=1,action_weight=0.1"
    best = true_cost(ivvi.plan(exact, reward, (-3, 3), **settings), 1)
    print("| log | best | --lags 1 | loss | without | loss | the check without says |")
    print("|---:|---:|---:|---:|---:|---:|---|")
    for seed in range(logs):
        rows, cells = second_order(100, 20, seed), []
        for lags in (1, 0):
            log = _remembering(rows, lags)
            policy = ivvi.plan(ivvi.fit(log), reward, (-3, 3), **settings)
            cost = true_cost(policy, lags)
            cells.append(f"{cost:.1f} | {cost / best - 1:.1%}")
        findings = ivvi.check(_remembering(rows, 0))
        advice = "lags" if "--lags" in findings.summary() else "nothing"
        print(f"| {seed} | {best:.1f} | {' | '.join(cells)} | {advice} |")


def _remembering(rows: dict[str, np.ndarray], lags: int) -> ivvi.Log:
    return ivvi.read_logs(rows, state="x0", action="a0", instrument="z0", lags=lags)


def visits(doctors: int, patients: int, seed: int) -> dict[str, object]:
    """Simulate patients who meet one doctor each, at random, and are treated as he likes."""
    rng = np.random.default_rng(seed)
    habit = rng.normal(0, 0.7, doctors)
    doctor = rng.integers(doctors, size=patients)
    severity, e, chance = rng.normal(size=(3, patients))
    treated = (habit[doctor] + e + 0.5 * severity + chance > 0).astype(float)
    outcome = 0.4 * severity + TREATED * treated + e
    parts = {"severity": severity, "treated": treated, "outcome": outcome}
    return parts | {"doctor": doctor, "patient": np.arange(patients)}


def doctors(logs: int) -> None:
    """Print bias and coverage of leave-one-out means beside dummies."""
    print("| doctors | patients | estimate | bias | spread | coverage of 95% |")
    print("|---:|---:|---|---:|---:|---:|")
    for count, patients in ((50, 2000), (2000, 20_000)):
        results: dict[str, list[tuple[float, bool]]] = {"loo:doctor": [], "dummies": []}
        for seed in range(logs):
            rows = visits(count, patients, seed)
            log = ivvi.read_logs(
                rows, state="severity", action="treated", instrument="loo:doctor",
                next_state="outcome", episode="patient",
            )  # fmt: skip
            fit = ivvi.fit(log)
            row = next(r for r in fit.records() if r["feature"] == "treated")
            results["loo:doctor"].append(
                (row["coefficient"] - TREATED, row["low"] <= TREATED <= row["high"])
            )
            results["dummies"].append(_dummies(rows, count))
        for name, values in results.items():
            error, covers = np.array(values, float).T
            parts = f"{error.mean():+.3f} | {error.std():.3f} | {covers.mean():.1%}"
            print(f"| {count:,} | {patients:,} | {name} | {parts} |")


def _dummies(rows: dict[str, object], count: int) -> tuple[float, bool]:
    """2SLS with an indicator of each doctor as instruments, in closed form; robust errors."""
    group = np.asarray(rows["doctor"])
    a, y, s = (np.asarray(rows[name], float) for name in ("treated", "outcome", "severity"))
    sizes = np.maximum(np.bincount(group, minlength=count), 1)

    def within(v: np.ndarray) -> np.ndarray:
        return v - (np.bincount(group, v, count) / sizes)[group]

    fitted = a - within(a) + within(s) * (within(s) @ within(a)) / (within(s) @ within(s))
    controls = np.column_stack([np.ones(len(a)), s])
    left = fitted - controls @ np.linalg.lstsq(controls, fitted, rcond=None)[0]
    slope = left @ y / (left @ a)
    rest = y - slope * a
    e = rest - controls @ np.linalg.lstsq(controls, rest, rcond=None)[0]
    se = float(np.sqrt(np.sum((left * e) ** 2)) / abs(left @ a))
    return float(slope - TREATED), bool(abs(slope - TREATED) <= 1.96 * se)


VITALS = ("critical", "stable", "unwell")
MOVES = np.array(  # [treated, condition, next condition] of those who go on
    [
        [[0.55, 0.10, 0.35], [0.05, 0.75, 0.20], [0.25, 0.30, 0.45]],
        [[0.25, 0.30, 0.45], [0.05, 0.75, 0.20], [0.12, 0.50, 0.38]],
    ]
)
DEATHS = np.array([[0.16, 0.03, 0.06], [0.08, 0.04, 0.05]])  # [treated, condition]
COMFORT, BURDEN, AT_END, STEPS = np.array([0.0, 1.0, 0.4]), 0.35, -3.0, 10
STARTS = np.array([0.15, 0.5, 0.35])


def wards(patients: int, seed: int) -> dict[str, object]:
    """Simulate visits: who looks worse than the record says is treated more, and does worse."""
    rng = np.random.default_rng(seed)
    habit, rows = rng.normal(size=60), []
    for patient in range(patients):
        s = rng.choice(3, p=STARTS)
        for day in range(14):
            e, doctor = rng.choice([-1, 1]), rng.integers(60)
            a = int(habit[doctor] + 0.9 * e + 0.4 * (s != 1) + rng.normal() > 0)
            died = rng.random() < DEATHS[a, s] + 0.025 * e
            comfort = COMFORT[s] - BURDEN * a - 0.1 * e + 0.1 * rng.normal()
            facts = VITALS[s], ("no", "yes")[a], f"Dr {doctor}", comfort, bool(died)
            rows.append((patient, day, *facts))
            if died:
                break
            s = rng.choice(3, p=MOVES[a, s] + e * np.array([0.04, -0.04, 0.0]))
    names = ("patient", "day", "vital", "treated", "doctor", "comfort", "died")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def earned(actions: np.ndarray | None) -> float:
    """Return the true value of actions [step, condition]; by default of the best actions."""
    V = np.zeros(3)
    for h in reversed(range(STEPS)):
        pays = COMFORT - BURDEN * np.arange(2)[:, None] + DEATHS * AT_END
        Q = pays + (1 - DEATHS) * (MOVES @ V)
        V = Q.max(axis=0) if actions is None else Q[actions[h], np.arange(3)]
    return float(STARTS @ V)


def death(logs: int) -> None:
    """Print losses in % of what the best policy gains over the better of always and never."""
    best = earned(None)
    floor = max(earned(np.full((STEPS, 3), a)) for a in (0, 1))
    print("| log | best | planning loss | end to end | least squares |")
    print("|---:|---:|---:|---:|---:|")
    states = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    for seed in range(logs):
        log = ivvi.read_logs(
            wards(2000, seed), state="vital", action="treated", instrument="loo:doctor",
            episode="patient", step="day", reward="comfort", terminal="died",
        )  # fmt: skip
        fit = ivvi.fit(log, "linear:cross")
        regression = ivvi.fit(log, "linear:cross", method="least-squares")
        losses = []
        for model in (_true_model(fit.model, states), fit.model, regression.model):
            policy = ivvi.plan(
                model, "learned", horizon=STEPS, reward_at_end=AT_END, method="value-iteration",
                compare=False,
            )  # fmt: skip
            actions = np.array([policy(states, h)[:, 0] for h in range(STEPS)]).round().astype(int)
            losses.append(f"{(best - earned(actions)) / (best - floor):.1%}")
        print(f"| {seed} | {best:.3f} | {' | '.join(losses)} |")


def _true_model(model: ivvi.Dynamics, states: np.ndarray) -> ivvi.Dynamics:
    """Return the model with the weights of the truth: the six cells fix the six features."""
    x, a = np.vstack([states, states]), np.repeat([[0.0], [1.0]], 3, axis=0)
    deaths, moves = DEATHS.reshape(6, 1), MOVES.reshape(6, 3)[:, 1:]
    follow = (1 - deaths) * moves + deaths * x  # who has died stands still
    comfort = (COMFORT - BURDEN * np.arange(2)[:, None]).reshape(6, 1)
    W = np.linalg.solve(model.phi(x, a), np.hstack([follow, deaths, comfort])).T
    return model.with_numbers((W, *model.numbers[1:]))


# [condition]: chances of being critical, stable, unwell, dead and discharged tomorrow, untreated
UNTREATED = np.array(
    [
        [0.48, 0.08, 0.18, 0.22, 0.04],
        [0.05, 0.50, 0.17, 0.03, 0.25],
        [0.16, 0.25, 0.45, 0.07, 0.07],
    ]
)
# [condition, treatment]: what each of three treatments adds to them; each suits one condition
TREATMENTS = np.array(
    [
        [[-0.16, 0.08, 0.18, -0.12, 0.02], [0.05, -0.02, -0.03, 0.02, -0.02], [0, 0, 0, 0, 0.0]],
        [[0.02, -0.04, 0.0, 0.02, 0.0], [0.01, -0.02, 0.02, 0.02, -0.03], [0, -0.14, 0, 0, 0.14]],
        [
            [0.04, -0.05, 0.0, 0.03, -0.02],
            [-0.1, 0.12, 0.0, -0.04, 0.02],
            [0.03, 0, -0.05, 0.02, 0],
        ],
    ]
)
DIES, LEAVES, DAYS = -1.0, 1.0, 12
DOSES = np.array([[(i >> j) & 1 for j in range(3)] for i in range(8)], float)
TOMORROW = UNTREATED[:, None] + np.einsum("aj,sjk->sak", DOSES, TREATMENTS)
"""Chances of tomorrow, [condition, action of eight, outcome]."""


def stays(patients: int, seed: int) -> dict[str, object]:
    """Simulate stays: who looks worse than the record says is treated more, and does worse."""
    rng = np.random.default_rng(seed)
    habits, rows = rng.normal(size=(80, 3)), []
    for patient in range(patients):
        s = rng.choice(3, p=STARTS)
        for day in range(DAYS):
            e, doctor = rng.choice([-1, 1]), rng.integers(80)
            a = (habits[doctor] + 0.8 * e + 0.4 * (s != 1) + rng.normal(size=3) > 0).astype(int)
            chances = TOMORROW[s, a @ [1, 2, 4]] + e * np.array([0.03, -0.05, 0, 0.025, -0.005])
            k = rng.choice(5, p=chances)
            outcome = {3: "died", 4: "discharged"}.get(k, "")
            rows.append((patient, day, VITALS[s], *a, f"Dr {doctor}", outcome))
            if outcome:
                break
            s = k
    names = ("patient", "day", "vital", "drug", "oxygen", "walk", "doctor", "outcome")
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def stay_value(actions: np.ndarray | None) -> float:
    """Return the true value of actions [day, condition] of eight; by default of the best ones."""
    V = np.zeros(3)
    for h in reversed(range(DAYS)):
        Q = TOMORROW @ np.append(V, [DIES, LEAVES])
        V = Q.max(axis=1) if actions is None else Q[np.arange(3), actions[h]]
    return float(STARTS @ V)


def hospital(logs: int) -> None:
    """Print losses in % of what the best policy gains over the best held treatment, and values."""
    best = stay_value(None)
    floor = max(stay_value(np.full((DAYS, 3), a)) for a in range(8))
    print("| log | best | planning loss | end to end | least squares | value | 95% | in truth |")
    print("|---:|---:|---:|---:|---:|---:|---|---:|")
    states = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    for seed in range(logs):
        log = ivvi.read_logs(
            stays(5000, seed), state="vital", action="drug,oxygen,walk", instrument="loo:doctor",
            episode="patient", step="day", terminal="outcome",
        )  # fmt: skip
        fit = ivvi.fit(log, "linear:cross")
        regression = ivvi.fit(log, "linear:cross", method="least-squares")
        losses, worths, policies = [], [], []
        for model in (_true_stays(fit.model, states), fit.model, regression.model):
            policy = ivvi.plan(
                model, "linear:state=0", DOSES, reward_at_end={"died": DIES, "discharged": LEAVES}
            )
            acts = np.array([policy(states, h) for h in range(DAYS)]).round() @ [1, 2, 4]
            worths.append(stay_value(acts.astype(int)))
            losses.append(f"{(best - worths[-1]) / (best - floor):.1%}")
            policies.append(policy)
        worth = ivvi.value(policies[1], fit, against=()).value
        low, high = worth.interval
        row_end = f"{worth.estimate:.3f} | [{low:.3f}, {high:.3f}] | {worths[1]:.3f}"
        print(f"| {seed} | {best:.3f} | {' | '.join(losses)} | {row_end} |", flush=True)


def _true_stays(model: ivvi.Dynamics, states: np.ndarray) -> ivvi.Dynamics:
    """Return the model with the weights of the truth, which are linear in its features."""
    x, a = np.repeat(states, 8, axis=0), np.tile(DOSES, (3, 1))
    chances = TOMORROW.reshape(24, 5)
    follow = chances[:, 1:3] + chances[:, 3:].sum(axis=1, keepdims=True) * x  # ended: stands still
    outputs = np.hstack([follow, chances[:, 3:]])
    W = np.linalg.lstsq(model.phi(x, a), outputs, rcond=None)[0].T
    if not np.allclose(model.phi(x, a) @ W.T, outputs):
        raise RuntimeError("the truth is not linear in the features")
    return model.with_numbers((W, *model.numbers[1:]))


def text(rows: int) -> None:
    """Print the processor seconds of a fit of two text columns, and of their indicators."""
    with tempfile.TemporaryDirectory() as folder:
        _write_both(Path(folder), rows)
        used = {}
        for name, state in (("numbers", "x0,v1,v2,w1,w2,w3"), ("text", "x0,vital,ward")):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            fit = ["-m", "ivvi", "fit", f"{folder}/{name}.parquet", "--state", state]
            fit += ["--action", "a0", "--instrument", "z0", "--out", f"{folder}/{name}"]
            subprocess.run([sys.executable, *fit], check=True, capture_output=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            used[name] = seconds
            print(f"{name:8} {seconds:6.1f} processor seconds for {rows:,} rows")
        print(f"ratio    {used['text'] / used['numbers']:6.2f}")


def _write_both(folder: Path, rows: int, size: int = 1_000_000) -> None:
    rng = np.random.default_rng(0)
    writers: dict[str, pq.ParquetWriter] = {}
    for first in range(0, rows, size):
        i = np.arange(first, min(first + size, rows))
        z, e, x = rng.normal(size=(3, len(i)))
        ward, vital = rng.integers(4, size=len(i)), rng.integers(3, size=len(i))
        base = {"episode": i // 20, "step": i % 20, "x0": x, "a0": z + e, "z0": z}
        words = {
            "ward": np.array(["A", "B", "C", "D"])[ward],
            "vital": np.array(["high", "low", "mid"])[vital],
        }
        numbers = {f"w{k}": (ward == k).astype(float) for k in (1, 2, 3)}
        numbers |= {f"v{k}": (vital == k).astype(float) for k in (1, 2)}
        for name, more in (("text", words), ("numbers", numbers)):
            table = pa.table(base | more)
            if name not in writers:
                writers[name] = pq.ParquetWriter(folder / f"{name}.parquet", table.schema)
            writers[name].write_table(table, row_group_size=250_000)
    for writer in writers.values():
        writer.close()


def main() -> None:
    """Run one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("memory", "doctors", "death", "hospital", "text"))
    parser.add_argument("--logs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=10_000_000)
    options = parser.parse_args()
    warnings.simplefilter("ignore", IvviWarning)
    if options.what == "text":
        text(options.rows)
    else:
        studies = {"memory": memory, "doctors": doctors, "death": death, "hospital": hospital}
        studies[options.what](options.logs)


if __name__ == "__main__":
    main()
