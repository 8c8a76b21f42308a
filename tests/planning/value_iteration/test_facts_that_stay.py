"""Values where some categories never change: only the levels of the others are summed over."""

import dataclasses

import numpy as np
import pytest

import ivvi
from ivvi.planning import Problem
from ivvi.planning.value_iteration.category_grid import CategoryGrid

ROLES = {"action": "drug", "instrument": "z", "episode": "patient", "step": "day"}


def visits(episodes=60, steps=10):
    rng = np.random.default_rng(0)
    n = episodes * steps
    patient = np.repeat(np.arange(episodes), steps)
    z, hidden = rng.normal(size=(2, n))
    age = rng.uniform(20, 80, episodes)[patient]
    return {
        "patient": patient,
        "day": np.tile(np.arange(steps), episodes),
        "pain": rng.choice(["none", "some", "strong"], n),
        "ward": rng.choice(["A", "B", "C"], episodes)[patient],
        "sex": rng.choice(["f", "m"], episodes)[patient],
        "age": age,
        "drug": np.where(z + hidden > 0, "yes", "no"),
        "z": z,
        "comfort": hidden + age / 50 + rng.normal(size=n),
    }


@pytest.mark.parametrize("state", ["pain,ward,sex", "ward,pain,sex,age"])
def test_values_are_those_of_a_sum_over_all_levels(state):
    log = ivvi.read_logs(visits(), state=state, reward="comfort", **ROLES)
    model = ivvi.fit(log).model
    problem = Problem.of(model, "learned", None, horizon=4)
    values = CategoryGrid.of(problem, 15, seed=0)
    assert sorted(values.stays) == [False, True, True]
    every = dataclasses.replace(values, stays=(False,) * 3)
    each = 1 if values.grid is None else 17
    c = np.random.default_rng(1).normal(size=len(values.levels) * each)
    means = model.mean(model.states[:50], model.acted[:50])
    assert np.allclose(values(c, means), every(c, means))
    kept = CategoryGrid.from_arrays(problem, values.arrays())
    assert np.allclose(values(c, means), kept(c, means))
