"""Instruments that were set for whole groups of episodes which the log does not name."""

import numpy as np
import pytest

import ivvi
from ivvi import InputError
from ivvi.errors import DataError
from ivvi.fitting.inference_tables import half_widths
from ivvi.logs import InstrumentPaths

STATES, PEOPLE, YEARS = 40, 6, 12
NEXT = {"state": "x0", "action": "a0", "instrument": "z*", "next_state": "next_x0"}
pytestmark = pytest.mark.filterwarnings("ignore:[0-9]+ clusters by 'episode' and [0-9]+ clusters")


def rows():
    """Return the person and the year of each row, people of a state not standing together."""
    return np.divmod(np.arange(STATES * PEOPLE * YEARS), YEARS)


def outcomes(rng, z, shock, person, year):
    """Let x' = -a / 2 + .3 x + e, where e is half of the shocks that are given."""
    e = np.sqrt(0.5) * (shock + rng.normal(size=len(person)))
    x, noise = rng.normal(size=(2, len(person)))
    a = np.reshape(z, (len(person), -1)).sum(axis=1) + 0.5 * x + 0.7 * e + noise
    columns = {"episode": person, "step": year, "x0": x, "a0": a}
    columns |= {f"z{i}": part.copy() for i, part in enumerate(np.reshape(z, (len(e), -1)).T)}
    return columns | {"next_x0": -0.5 * a + 0.3 * x + e}


def staggered(seed):
    """A policy that states adopt one after another, and constants of states."""
    rng = np.random.default_rng(seed)
    person, year = rows()
    state = person % STATES
    z = (year >= rng.permutation(np.arange(STATES) % YEARS)[state]).astype(float)
    return outcomes(rng, z, rng.normal(size=STATES)[state], person, year)


def regional(seed, instruments=1):
    """Values that people of a state share at every step, and constants of states and of both."""
    rng = np.random.default_rng(seed)
    person, year = rows()
    state = person % STATES
    lasting, shock = rng.normal(size=(2, STATES))
    z = np.sqrt(0.5) * (lasting[:, None] + rng.normal(size=(STATES, YEARS)))[state, year]
    if instruments > 1:
        z = np.column_stack([z, rng.normal(size=len(person))])
    return outcomes(rng, z, shock[state], person, year)


def by(fit):
    return list(fit.to_json()["clusters"])


@pytest.mark.parametrize("absorb", ["", "step", "episode,step"])
def test_a_policy_of_states_is_clustered_by_those_who_adopt_it_together(absorb):
    log = ivvi.read_logs(staggered(0), **NEXT)
    fit = ivvi.estimate(log, absorb=absorb)
    assert fit.to_json()["clusters"]["path of z0"] == YEARS
    assert "z0: identical at all steps within groups of episodes (12 of them)" in fit.summary()


@pytest.mark.parametrize("instruments", [1, 2])
def test_values_that_groups_share_are_clustered_by_these_groups(instruments):
    """Also where another instrument is drawn for each row."""
    log = ivvi.read_logs(regional(0, instruments), **NEXT)
    fit = ivvi.estimate(log)
    alone = ivvi.estimate(log, se=ivvi.StandardErrors(cluster="episode"))
    assert by(fit) == ["episode", "path of z0"]
    assert by(alone) == ["episode"]
    assert fit.to_json()["clusters"]["path of z0"] == STATES
    assert fit.se[0, 2] > 1.3 * alone.se[0, 2]
    state = np.asarray(rows()[0] % STATES)
    named = ivvi.read_logs(regional(0, instruments) | {"us": state}, **NEXT)
    known = ivvi.estimate(named, se=ivvi.StandardErrors(cluster="us"))
    assert fit.se[0, 2] == pytest.approx(known.se[0, 2], rel=0.1)


@pytest.mark.thorough
@pytest.mark.parametrize(("draw", "absorb"), [(staggered, "step"), (regional, "")])
def test_effects_of_what_groups_share_are_covered(draw, absorb):
    """100 logs: within 4 standard errors of 92%; clustered by episode, 60 to 70% are."""
    held = []
    for seed in range(100):
        fit = ivvi.estimate(ivvi.read_logs(draw(seed), **NEXT), absorb=absorb)
        j = fit.estimate.design.phi_names.index("a0")
        held.append(abs(fit.W[0, j] + 0.5) <= half_widths(fit.estimate)[0, j] * fit.se[0, j])
    assert np.mean(held) > 0.92 - 4 * np.sqrt(0.92 * 0.08 / 100)


def test_sets_checks_and_responses_follow_the_groups():
    log = ivvi.read_logs(regional(0), **NEXT)
    assert ivvi.interval(log).clusters == ("episode", "path of z0")
    assert ivvi.interval(ivvi.estimate(log), log=log).clusters == ("episode", "path of z0")
    assert ivvi.check(log).clusters == "path of z0"


def test_a_fit_that_was_loaded_follows_the_groups_of_its_log(tmp_path):
    log = ivvi.read_logs(regional(0), **NEXT)
    fit = ivvi.estimate(log)
    fit.save(tmp_path / "model")
    again = ivvi.load_fit(tmp_path / "model")
    fresh = ivvi.read_logs(regional(0), **NEXT)
    first, second = (ivvi.interval(one, log=fresh) for one in (fit, again))
    assert first.intervals == second.intervals


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["coins", "rare", "each", "walk"])
def test_a_z_of_each_episode_or_row_changes_nothing(kind, seed):
    """Paths of coins coincide too: there are 16, and 3,000 people."""
    rng = np.random.default_rng(seed)
    person, year = np.divmod(np.arange(3000 * 4), 4)
    z = {
        "coins": rng.integers(0, 2, size=12000) * 1.0,
        "rare": (rng.random(12000) < 0.05) * 1.0,
        "each": rng.normal(size=3000)[person],
        "walk": np.cumsum(rng.normal(size=(3000, 4)), axis=1).ravel(),
    }[kind]
    log = ivvi.read_logs(outcomes(rng, z, rng.normal(size=12000), person, year), **NEXT)
    fit = ivvi.estimate(log)
    alone = ivvi.estimate(log, se=ivvi.StandardErrors("clustered"))
    assert by(fit) == ["episode"]
    assert (fit.se == alone.se).all()
    assert not fit.errors.note


@pytest.mark.parametrize("drawn", ["by state", "by person"])
def test_too_few_values_to_tell_are_noted(drawn):
    """Whether two values were set for states or drawn by people looks the same."""
    rng = np.random.default_rng(0)
    person, year = rows()
    unit = person % STATES if drawn == "by state" else person
    z = rng.integers(0, 2, size=len(np.unique(unit)))[unit] * 1.0
    fit = ivvi.estimate(ivvi.read_logs(outcomes(rng, z, 0.0, person, year), **NEXT))
    assert by(fit) == ["episode"]
    assert fit.errors.note == (
        "z0 never changes within an episode and has 2 values: if it was set for whole groups of "
        "episodes (states, clinics), cluster by their column (cluster=, --cluster)"
    )


def test_paths_that_are_too_few_are_noted():
    rng = np.random.default_rng(0)
    person, year = rows()
    z = rng.normal(size=(6, YEARS))[person % 6, year]
    fit = ivvi.estimate(ivvi.read_logs(outcomes(rng, z, 0.0, person, year), **NEXT))
    assert "path of z0" not in by(fit)
    assert "z0 follows one of 6 paths in every episode" in fit.errors.note


def test_indicators_of_one_category_are_looked_at_together():
    rng = np.random.default_rng(0)
    person, year = rows()
    judge = np.array([f"judge {i % STATES:02}" for i in person])
    z = rng.normal(size=STATES)[person % STATES]
    columns = outcomes(rng, z, rng.normal(size=STATES)[person % STATES], person, year)
    log = ivvi.read_logs(columns | {"judge": judge}, **(NEXT | {"instrument": "judge"}))
    (_, groups), *_ = (
        one for one in ivvi.estimate(log).estimate.W_cov.clusters if "path" in one[0]
    )
    assert groups == STATES


def test_groups_do_not_depend_on_the_order_of_rows():
    columns = regional(0)
    order = np.random.default_rng(1).permutation(len(columns["x0"]))
    mixed = ivvi.read_logs({name: values[order] for name, values in columns.items()}, **NEXT)
    fits = [ivvi.estimate(log) for log in (ivvi.read_logs(columns, **NEXT), mixed)]
    assert by(fits[0]) == by(fits[1])
    np.testing.assert_allclose(fits[0].se, fits[1].se, rtol=1e-8)


def test_a_path_may_be_named_as_a_cluster():
    log = ivvi.read_logs(regional(0), **NEXT)
    named = ivvi.estimate(log, se=ivvi.StandardErrors(cluster="path of z0"))
    assert by(named) == ["path of z0"]
    with pytest.raises(InputError, match="path of z9"):
        ivvi.estimate(log, se=ivvi.StandardErrors(cluster="path of z9"))


def test_too_many_episodes_are_let_go(monkeypatch):
    monkeypatch.setattr("ivvi.logs.instruments.shared_by_episodes.MOST_BYTES", 1000)
    log = ivvi.read_logs(regional(0), **NEXT)
    assert by(ivvi.estimate(log)) == ["episode"]
    with pytest.raises(DataError, match="too many episodes to cluster by the path of z0"):
        ivvi.estimate(log, se=ivvi.StandardErrors(cluster="path of z0"))


def test_what_a_pass_has_seen_is_saved_and_goes_on():
    log = ivvi.read_logs(staggered(0), **NEXT)
    whole, part = InstrumentPaths(log.roles), InstrumentPaths(log.roles)
    batches = list(log.batches(size=1000, episodes=True))
    for i, batch in enumerate(batches):
        whole.add(batch)
        part.add(batch)
        if i == 1:
            facts, arrays = part.saved()
            part = InstrumentPaths(log.roles)
            part.restore(facts, arrays)
    assert (whole.shared.groups.codes == part.shared.groups.codes).all()
