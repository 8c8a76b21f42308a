"""The recommenders: who is recommended what, who watches, and the ratings behind it."""

import numpy as np
import pytest

import ivvi
from ivvi import InputError
from ivvi.simulators.recommender import ORIGINAL, REVISED
from world_checks import true_mean

WATCHED = {"episodes": 60, "horizon": 100}
SETTINGS = {"recommender": "II", "recommender-revised": "I"}


@pytest.mark.parametrize("name", SETTINGS)
def test_recommendations_have_a_fixed_total(name, simulated):
    batch = simulated(name, None, SETTINGS[name], **WATCHED).to_batch()
    assert (batch.z.sum(axis=1) == 10).all()
    assert (batch.z >= 0).all()
    assert set(np.unique(batch.a)) == {0.0, 1.0}


def assert_shares(z, chances):
    """Compare the mean of multinomial rows of total 10, within 5 standard errors."""
    chances = np.array(chances)
    error = np.sqrt(10 * chances * (1 - chances) / len(z))
    assert (np.abs(z.mean(axis=0) - 10 * chances) <= 5 * error).all()


def test_recommendations_follow_the_table(simulated):
    batch = simulated("recommender", None, "II", **WATCHED).to_batch()
    assert_shares(batch.z, ORIGINAL["II"])


def test_revised_recommendations_follow_the_ratings(simulated, factors):
    """Ranks are taken after the projection to [0, 5], ties by the movie's index."""
    batch = simulated("recommender-revised", None, "I", **WATCHED).to_batch()
    ratings = np.clip(batch.x @ (factors.V_tilde * factors.singular_values).T, 0, 5)
    assert (np.diff(np.sort(ratings)) == 0).any()  # there are ties to break
    order = np.argsort(-ratings, axis=1, kind="stable")
    by_rank = np.take_along_axis(batch.z, order, axis=1)
    assert (by_rank[:, 3:] == 0).all()
    assert_shares(by_rank, REVISED["I"])


def test_watching_follows_recommendation_taste_and_confounder(simulated, simulator):
    """The coefficients of the logit are 2, 0.1 and -0.8: the scores vanish, up to chance."""
    batch = simulated("recommender", None, "II", **WATCHED).to_batch()
    e = batch.y - true_mean(simulator("recommender", None, "II").world, batch)
    chance = 1 / (1 + np.exp(-(2 * batch.z + 0.1 * batch.x - 0.8 * e)))
    for v in (np.ones_like(e), batch.z, batch.x, e):
        score = np.sum((batch.a - chance) * v)
        assert abs(score) < 5 * np.sqrt(np.sum(chance * (1 - chance) * v**2))


def test_recommender_says_that_it_is_synthetic(simulator, factors):
    world = simulator("recommender").world
    assert world.label == factors.label
    assert "not MovieLens" in world.label
    np.testing.assert_allclose(
        world.W_star, np.hstack([np.zeros((10, 1)), np.eye(10), factors.V_tilde.T])
    )


@pytest.mark.parametrize("name", ["recommender", "recommender-revised"])
def test_recommenders_have_three_settings(name, factors):
    with pytest.raises(InputError, match="setting 'IV'"):
        ivvi.make_env(name, setting="IV", ratings=factors)


def test_signs_change_the_task_and_not_the_ratings(factors):
    from ivvi.simulators.ratings.factors import SIGNS

    theirs = factors.with_signs("authors")
    signs = np.array(SIGNS["authors"])
    np.testing.assert_array_equal(theirs.V, factors.V * signs)
    full, other = (f.U[:5] * f.singular_values @ f.V[:7].T for f in (factors, theirs))
    np.testing.assert_allclose(full, other)
    env = ivvi.make_env("recommender", ratings=factors, signs="authors")
    np.testing.assert_array_equal(env.world.W_star[:, 11:], theirs.leading(10).T)
    with pytest.raises(InputError, match="unknown signs 'author'; did you mean 'authors'"):
        ivvi.make_env("recommender", ratings=factors, signs="author")
    with pytest.raises(InputError, match="for the recommenders"):
        ivvi.make_env("linear", signs="authors")


def test_a_literal_recommender_starts_at_zero_and_scores_as_printed():
    from ivvi.simulators.catalogue import load_factors

    factors = load_factors()
    env = ivvi.make_env("recommender", ratings=factors, literal=True)
    x, _ = env.reset(seed=0)
    np.testing.assert_array_equal(x, np.zeros(10))
    state = np.linspace(-1, 1, 10)[None]
    printed = factors.singular_values * (factors.leading(10).T @ state[0])
    reward = env.reward(state, np.zeros((1, 10)), state, 0)
    np.testing.assert_allclose(reward, np.clip(printed, 0, 5).sum(), rtol=1e-6)
