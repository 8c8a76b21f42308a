"""From a CSV of visits to the effect of a dose, with and without the instrument.

A clinic's log: each patient is an episode. Doctors gave more to patients who looked worse, in a
way that nobody wrote down; how much a doctor likes to prescribe is the instrument.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np

import ivvi

TRUE_EFFECT = -0.4


def write_visits(path: Path, patients: int = 400, visits: int = 6) -> None:
    rng = np.random.default_rng(7)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["patient", "visit", "severity", "dose", "preference"])
        for patient in range(patients):
            preference, severity = rng.normal(), rng.normal()
            for visit in range(visits):
                looks_worse = rng.normal()  # the confounder: seen by the doctor, not recorded
                dose = preference + 0.3 * severity + looks_worse
                rows.writerow([f"P{patient}", visit, severity, dose, preference])
                severity = 0.8 * severity + TRUE_EFFECT * dose + looks_worse


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "visits.csv"
        write_visits(path)
        log = ivvi.read_logs(
            path,
            state="severity",
            action="dose",
            instrument="preference",
            episode="patient",
            step="visit",
        )
        fit = ivvi.fit(log)
    print(fit.summary())
    dose = fit.estimate.design.phi_names.index("dose")
    print(f"\nthe true effect of the dose is {TRUE_EFFECT}: regression says the drug harms")
    print(f"least squares {fit.baseline.W[0, dose]:+.2f}, instrument {fit.W[0, dose]:+.2f}")


if __name__ == "__main__":
    main()
