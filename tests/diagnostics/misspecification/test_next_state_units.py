"""Next states that are copies of their states, or in another unit."""

import numpy as np
import pytest

from ivvi import read_logs
from ivvi.diagnostics.misspecification.next_state_units import next_state_doubts
from ivvi.errors import DataError


def doubts(following, **others):
    rng = np.random.default_rng(0)
    x, z = rng.normal(10, 1, 400), rng.normal(size=400)
    a = z + rng.normal(size=400)
    following = following(x, a)
    columns = {"x": x, "a": a, "z": z, "n": following, "r": a - x}
    roles = {"state": "x", "action": "a", "instrument": "z", "next_state": "n"} | others
    log = read_logs(columns, **roles)
    return next_state_doubts(log.head(), log.roles)


def test_next_states_that_equal_their_states_are_refused():
    with pytest.raises(DataError, match="'n' equals the state 'x' in every row"):
        doubts(lambda x, _: x)


def test_states_that_stay_may_come_with_a_reward():
    assert doubts(lambda x, _: x, reward="r") == []


@pytest.mark.parametrize("factor", [1000, 0.1, 1e6])
def test_a_next_state_in_another_unit_is_named(factor):
    (text,) = doubts(lambda x, a: factor * (0.9 * x + 0.3 * a + 1))
    assert text.startswith("n seems to be in another unit than x: its mean is")


@pytest.mark.parametrize("slope", [-0.9, 0.0, 0.5, 1.0, 1.5])
def test_a_next_state_in_the_unit_of_its_state_says_nothing(slope):
    assert doubts(lambda x, a: slope * x + a) == []


def test_a_temperature_in_the_other_scale_is_named_and_incomes_that_triple_are_not():
    (text,) = doubts(lambda x, a: 32 + 1.8 * (0.9 * x + 0.3 * a + 1))
    assert text.startswith("n seems to be in another unit than x: its mean is")
    for seed in range(5):
        rng = np.random.default_rng(seed)
        before, z, u = np.exp(rng.normal(3, 0.5, 1000)), *rng.normal(size=(2, 1000))
        after = 3 * before + 5 * z + 10 * u + 8 * np.exp(rng.normal(size=1000))
        columns = {"x": before, "a": z + u, "z": z, "n": after}
        log = read_logs(columns, state="x", action="a", instrument="z", next_state="n")
        assert next_state_doubts(log.head(), log.roles) == []
