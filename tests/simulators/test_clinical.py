"""The simulators in the shape of the paper's examples, and worlds that break an assumption."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from ivvi import ConfoundedEnv, InputError
from ivvi.simulators import gaussian, linear_world
from ivvi.simulators.clinical import CARE_COST, delivery_reward

CASES = {"nicu": {"episodes": 4000}, "sepsis": {"episodes": 400}}


@pytest.mark.parametrize("name", CASES)
def test_instruments_find_the_truth_and_least_squares_does_not(name, simulator, simulated):
    log, truth = simulated(name, seed=1, **CASES[name]), simulator(name).world.W_star
    fit = ivvi.estimate(log)
    assert np.abs((fit.W - truth) / fit.se).max() < 4
    assert np.abs((fit.baseline.W - truth) / fit.baseline.se).max() > 10


@pytest.mark.parametrize("name", CASES)
def test_the_seed_decides_the_log_of_a_clinic(name, simulator):
    env = simulator(name)
    one, two, other = (env.collect(episodes=20, seed=s).to_arrow() for s in (3, 3, 4))
    assert one.equals(two)
    assert not one.equals(other)
    assert "synthetic" in env.world.label


def test_nicu_is_two_deliveries_and_a_binary_choice(simulated):
    batch = simulated("nicu", episodes=4000, seed=1).to_batch(episodes=True)
    assert set(np.unique(batch.a)) == {0.0, 1.0}
    assert (np.bincount(batch.episode) == 2).all()
    assert (batch.z > 0).all()
    assert len(np.unique(batch.z)) == len(batch)  # continuous, new at each delivery
    further = batch.z[:, 0] > np.median(batch.z)
    assert batch.a[~further].mean() > batch.a[further].mean() + 0.2


def test_nicu_reward_is_of_the_delivery_that_was_chosen_for(simulated):
    log = simulated("nicu", episodes=4000, seed=1)
    batch, reward = log.to_batch(), log.table.table["reward"].to_numpy()
    wanted = -(batch.y[:, 0] ** 2) - CARE_COST * batch.a[:, 0]
    np.testing.assert_allclose(reward, wanted, rtol=1e-12)
    assert delivery_reward(batch.x, batch.a, batch.y).shape == (len(batch),)


def test_sepsis_has_one_physician_a_stay(simulated):
    batch = simulated("sepsis", episodes=400, seed=1).to_batch()
    z = batch.z.reshape(400, 12, 2)
    assert (z == z[:, :1]).all()
    assert len(np.unique(z[:, 0, 0])) == 400
    assert batch.a.min() == 0.0
    assert batch.a.max() == 1.0


def test_the_frailty_of_a_mother_lasts(simulator):
    """Of setting II alone, what is left after the truth goes together in both deliveries."""
    for setting, lasts in (("I", False), ("II", True)):
        env = simulator("nicu", None, setting)
        batch = env.collect(episodes=2000, seed=2).to_batch()
        Phi = np.column_stack([np.ones(len(batch)), batch.x, batch.a])
        left = (batch.y - Phi @ env.world.W_star.T)[:, 0].reshape(-1, 2)
        together = np.corrcoef(left.T)[0, 1]
        assert (together > 0.2) if lasts else (abs(together) < 5 / np.sqrt(2000))


@pytest.mark.thorough
def test_planning_in_the_clinic_beats_behaviour(simulator, simulated):
    fit = ivvi.estimate(simulated("sepsis", seed=1, **CASES["sepsis"]))
    env = simulator("sepsis")
    policy = ivvi.plan(fit.model, env.reward, (0, 1), horizon=12, method="mpc", compare=False)
    evaluation = ivvi.evaluate(policy, env, against=("behaviour",), episodes=64)
    assert evaluation.value("policy").interval[0] > evaluation.value("behaviour").interval[1]


def test_a_direct_effect_and_a_lasting_confounder_are_in_the_log():
    push = np.array([[0.7, 0.0], [0.0, 0.0]])
    usual = linear_world(2)
    lasting = gaussian(4.0 * np.eye(2))
    world = dataclasses.replace(usual, direct=lambda z: jnp.asarray(push) @ z, lasting=lasting)
    batch = ConfoundedEnv(world).collect(episodes=400, horizon=10, seed=0).to_batch()
    Phi = np.column_stack([np.ones(len(batch)), batch.x, batch.a])
    left = batch.y - Phi @ usual.W_star.T
    slope = left[:, 0] @ batch.z[:, 0] / (batch.z[:, 0] @ batch.z[:, 0])
    assert abs(slope - 0.7) < 5 * left[:, 0].std() / np.sqrt(batch.z[:, 0] @ batch.z[:, 0])
    means = left.reshape(400, 10, 2).mean(axis=1)[:, 1]
    # variance 4 of what lasts, and a tenth of that of what does not, 1
    assert abs(means.var() / 4.1 - 1) < 5 * np.sqrt(2 / 400)


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("nicu", {"dim": 3}, "nicu has 2 states; a dimension of 3 does not apply"),
        ("nicu", {"setting": "III"}, "setting 'III' of nicu is unknown"),
        ("sepsis", {"dim": 2}, "sepsis has 4 states"),
        ("sepsis", {"setting": "II"}, "sepsis has only setting I"),
    ],
)
def test_clinics_that_do_not_exist_are_refused(name, settings, sentence):
    with pytest.raises(InputError) as caught:
        ivvi.make_env(name, **settings)
    assert sentence in str(caught.value)
