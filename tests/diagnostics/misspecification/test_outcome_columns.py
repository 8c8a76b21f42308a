"""Unnamed columns that were made from the outcome are neither places nor groups."""

import numpy as np
import pytest

import ivvi

ROLES = {"state": "x", "action": "a", "instrument": "z", "next_state": "y"}
GRADES = np.array(["very poor", "poor", "fair", "good", "very good", "excellent"])


def rows(seed, n=1500, *, binary=False, place=0.0):
    """Return rows with a grade of y, a band of the dose, and a place that moves z and y."""
    rng = np.random.default_rng([7, seed])
    x, z, u, e, late = rng.normal(size=(5, n))
    site = rng.integers(0, 8, n)
    z = z + place * (site - 3.5)
    z = (z > 0).astype(float) if binary else z
    a = z + u + 0.3 * x + rng.normal(size=n)
    y = 0.5 * a + u + e + 0.6 * x + place * (site - 3.5)
    cuts = np.quantile(y, [0.1, 0.3, 0.5, 0.7, 0.9])
    return {
        "x": x,
        "a": a,
        "z": z,
        "y": y,
        "grade": GRADES[np.digitize(y + 0.5 * late, cuts)],
        "tablets": np.char.add(np.clip(np.round(2 * a) + 6, 0, 12).astype(int).astype(str), " a"),
        "site": np.char.add("s", site.astype(str)),
    }


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_grades_of_the_outcome_and_bands_of_the_dose_are_no_places_and_no_groups(seed, binary):
    ivvi.fit(ivvi.read_logs(rows(seed, binary=binary), **ROLES))  # a warning is an error here


@pytest.mark.filterwarnings("ignore::ivvi.errors.IvviWarning")
@pytest.mark.parametrize("binary", [False, True])
def test_a_place_is_told_beside_columns_that_were_made_from_the_outcome(binary):
    fit = ivvi.fit(ivvi.read_logs(rows(0, binary=binary, place=0.3), **ROLES))
    (text,) = [text for text in fit.warnings if "once effects of" in text]
    assert "--absorb site" in text


def test_the_state_that_was_reached_in_words_is_no_place():
    rng = np.random.default_rng(8)
    z, e = rng.normal(size=(2, 100, 10))
    x, a = np.zeros((100, 11)), z + e
    for t in range(10):
        x[:, t + 1] = 0.7 * x[:, t] - 0.5 * a[:, t] + e[:, t] + 0.5 * rng.normal(size=100)
    episode, step = np.mgrid[:100, :10]
    result = GRADES[np.digitize(x[:, 1:] + 0.3 * rng.normal(size=(100, 10)), [-2, -1, 0, 1, 2])]
    columns = {"episode": episode, "step": step, "x0": x[:, :-1], "a0": a, "z0": z}
    table = {name: values.ravel() for name, values in (columns | {"result": result}).items()}
    ivvi.fit(table)  # a warning is an error here
