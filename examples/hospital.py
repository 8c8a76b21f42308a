r"""From a hospital's messy CSV to a treatment policy and its worth.

Patients are seen on dates; the table holds text, a sex that never changes, the name of a doctor
in place of an instrument, deaths, and patients who are still in hospital when the log ends.
Doctors treat those who look worse, in a way that nobody wrote down; some doctors treat more
readily than others. The same in a shell:

    ivvi fit visits.csv --state vital,sex --action treated --instrument loo:doctor \
        --episode patient --step date --reward comfort --terminal died \
        --features linear:cross --out model
    ivvi plan model --reward learned --horizon 10 --out policy
    ivvi act policy --state vital=high,sex=f
    ivvi value policy --model model
"""

from __future__ import annotations

import csv
import tempfile
from datetime import date, timedelta
from pathlib import Path

import numpy as np

import ivvi

LEVELS, DAYS, COST = ("high", "low", "ok"), 10, 0.2
FOLLOWS = np.array(  # the next vital sign given this one, untreated and treated
    [
        [[0.8, 0.05, 0.15], [0.1, 0.7, 0.2], [0.1, 0.1, 0.8]],
        [[0.3, 0.1, 0.6], [0.1, 0.4, 0.5], [0.2, 0.2, 0.6]],
    ]
)
DIES = np.array([[0.12, 0.08, 0.01], [0.04, 0.04, 0.04]])
COMFORT = np.array([0.0, 0.4, 1.0])


def write_visits(path: Path, patients: int = 3000, doctors: int = 60) -> None:
    """Write the log of a hospital; `hidden` is what the doctor saw and nobody recorded."""
    rng = np.random.default_rng(3)
    readiness = rng.uniform(0.1, 0.7, doctors)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["patient", "date", "doctor", "sex", "vital", "treated", "comfort", "died"])
        for patient in range(patients):
            vital, sex = rng.integers(3), rng.choice(["f", "m"])
            day = date(2024, 1, 1) + timedelta(days=int(rng.integers(300)))
            for _ in range(DAYS):
                doctor, hidden = rng.integers(doctors), rng.random()
                treated = int(rng.random() < readiness[doctor] + 0.3 * (hidden > 0.6))
                died = hidden > 1 - DIES[treated, vital]
                comfort = COMFORT[vital] - COST * treated
                words = ["no", "yes"][treated], f"{comfort:.2f}", str(bool(died)).lower()
                seen = f"P{patient}", day, f"Dr {doctor}", sex, LEVELS[vital]
                rows.writerow([*seen, *words])
                if died:
                    break
                vital = (rng.random() > FOLLOWS[treated, vital].cumsum()).sum()
                day += timedelta(days=1)


def worth(treat: list[int] | None) -> float:
    """Return the value of treating at these vital signs, or of the best policy: exact recursion."""
    value = np.zeros(3)
    for _ in range(DAYS):
        values = COMFORT - COST * np.arange(2)[:, None] + (1 - DIES) * (FOLLOWS @ value)
        value = values.max(axis=0) if treat is None else values[treat, range(3)]
    return float(value.mean())


def main() -> None:
    """Read, fit, plan, value; then look at the truth."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "visits.csv"
        write_visits(path)
        log = ivvi.read_logs(
            path,
            state="vital,sex",
            action="treated",
            instrument="loo:doctor",
            episode="patient",
            step="date",
            reward="comfort",
            terminal="died",
        )
        fit = ivvi.fit(log, "linear:cross")
    print(fit.summary(most_outputs=1))
    policy = ivvi.plan(fit, "learned", horizon=DAYS)
    patients = {"vital": list(LEVELS), "sex": ["f"] * 3}
    advice = policy(patients)["treated"]
    print("\n", dict(zip(LEVELS, advice, strict=True)))
    valuation = ivvi.value(policy, fit, draws=100)
    print(valuation.summary())
    truth = worth([int(word == "yes") for word in advice])
    print(f"\nin truth the policy is worth {truth:.3f}, the best one {worth(None):.3f}, and")
    print(f"never treating {worth([0, 0, 0]):.3f}, always {worth([1, 1, 1]):.3f}")


if __name__ == "__main__":
    main()
