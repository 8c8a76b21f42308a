"""docs/images/instrument.png: the regression of a log, and the same rows with an instrument.

python tools/instrument_picture.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ivvi._io.plotting import new_figure, save_figure

TARGET = Path(__file__).parents[1] / "docs" / "images" / "instrument.png"
EFFECT = -0.4
RED, BLUE, GREY = "#c1121f", "#1d6fb8", "#9aa0a6"


def visits(seed: int = 7, doctors: int = 9, each: int = 800) -> tuple[np.ndarray, ...]:
    """Return doctor, dose and change of severity: a dose lowers it, and the ill get more."""
    rng = np.random.default_rng(seed)
    doctor = np.repeat(np.arange(doctors), each)
    preference = np.linspace(-1.5, 1.5, doctors)[doctor]
    looks_worse = rng.normal(size=doctor.size)  # seen by the doctor, written down by nobody
    dose = 3 + 0.8 * preference + 0.7 * looks_worse + 0.3 * rng.normal(size=doctor.size)
    change = EFFECT * (dose - 3) + 1.1 * looks_worse + 0.3 * rng.normal(size=doctor.size)
    return doctor, dose, change


def main() -> None:
    """Draw the rows, and then the mean of each doctor."""
    doctor, dose, change = visits()
    figure = new_figure(9, 4.1)
    rows, means = figure.subplots(1, 2, sharex=True, sharey=True)
    slope, level = np.polyfit(dose, change, 1)
    ends = np.array([0.8, 5.2])
    rows.plot(dose[::7], change[::7], ".", color=GREY, ms=4, alpha=0.7)
    rows.plot(ends, level + slope * ends, color=RED, lw=2.4)
    rows.set_title("What the log shows", loc="left", fontsize=12)
    rows.text(4.95, 3.0, f"regression: {slope:+.2f}", color=RED, ha="right", fontsize=11)
    rows.set(xlabel="dose", ylabel="change of severity after the visit")
    at = np.array([[dose[doctor == d].mean(), change[doctor == d].mean()] for d in set(doctor)])
    iv_slope, base = np.polyfit(at[:, 0], at[:, 1], 1)
    means.plot(dose[::7], change[::7], ".", color=GREY, ms=4, alpha=0.25)
    means.plot(at[:, 0], at[:, 1], "o", color=BLUE, ms=9)
    means.plot(ends, base + iv_slope * ends, color=BLUE, lw=2.4)
    means.annotate(
        "a doctor who\nlikes to give little",
        at[0],
        (0.4, 1.9),
        color=BLUE,
        arrowprops={"arrowstyle": "-", "color": BLUE},
    )
    means.annotate(
        "a doctor who\nlikes to give much",
        at[-1],
        (3.9, -2.9),
        color=BLUE,
        arrowprops={"arrowstyle": "-", "color": BLUE},
    )
    means.set_title("The same rows, averaged by doctor", loc="left", fontsize=12)
    means.text(
        5.1, 3.0, f"with the instrument: {iv_slope:+.2f}", color=BLUE, ha="right", fontsize=11
    )
    means.set(xlabel="dose")
    for axes in (rows, means):
        axes.set_ylim(-3.6, 3.6)
        axes.spines[["top", "right"]].set_visible(False)
    save_figure(figure, TARGET, force=True)
    print(f"{TARGET}: regression {slope:+.2f}, with the instrument {iv_slope:+.2f}, truth {EFFECT}")


if __name__ == "__main__":
    main()
