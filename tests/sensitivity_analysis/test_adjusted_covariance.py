"""Unions of intervals over direct effects: against linearmodels, and how often they cover."""

import numpy as np
import pytest

import ivvi
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.sensitivity_analysis.adjusted_covariance import Variances, errors_of, rows_of
from ivvi.sensitivity_analysis.analysis import effect_bands
from ivvi.sensitivity_analysis.violations import Exclusion

REWARD = "quadratic:weight=0.05"


def grouped(seed, direct=0.0, groups=40, size=8):
    """Return columns with errors and instruments that go together within groups."""
    rng = np.random.default_rng(seed)
    n, whole = groups * size, np.repeat(np.arange(groups), size)
    u, z = rng.normal(size=(2, n)) + rng.normal(size=(2, groups))[:, whole]
    x, eta, e = rng.normal(size=(3, n))
    a = 0.7 * z + 0.5 * x + u + eta
    y = 0.5 * x - 0.5 * a + u * (1 + 0.5 * np.abs(z)) + direct * z + e
    steps = np.tile(np.arange(size), groups)
    return {"x0": x, "a0": a, "z0": z, "next_x0": y, "e": whole, "t": steps}


GROUPED = {"state": "x0", "action": "a0", "instrument": "z0", "next_state": "next_x0"}
GROUPED |= {"episode": "e", "step": "t"}
IDLE = {"reward": REWARD, "horizon": 2, "against": {"half": [0.5]}, "draws": 0, "episodes": 2}


@pytest.mark.parametrize("kind", ["unadjusted", "robust", "clustered"])
@pytest.mark.parametrize("source", ["fit", "episodes", "folder"])
def test_unions_are_those_of_conley_hansen_and_rossi(kind, source, tmp_path):
    """At each size, two-stage least squares of y - gamma z with its own standard error."""
    from linearmodels.iv import IV2SLS

    rows = grouped(0)
    log = ivvi.read_logs(rows, **GROUPED)
    errors = ivvi.StandardErrors(kind, debiased=False)  # those of linearmodels
    fit = ivvi.estimate(log, se=errors, episodes=source == "episodes")
    given = {}
    if source == "folder":
        given = {"log": log}
        fit.save(tmp_path / "model")
    doubted = tmp_path / "model" if source == "folder" else fit
    words = ("z0:x0", "+z0:x0", "-z0:x0")
    analysis = ivvi.sensitivity("zero", doubted, violations=words, **IDLE, **given)
    assert analysis.notes == ()
    x, z = np.column_stack([np.ones(len(rows["x0"])), rows["x0"]]), rows["z0"]
    left = z - x @ np.linalg.lstsq(x, z, rcond=None)[0]
    covariance = {"cov_type": kind, "debiased": False}
    covariance |= {"clusters": rows["e"]} if kind == "clustered" else {}
    both, plus, minus = analysis.effects
    signs = {"z0:x0": 1, "+z0:x0": 1, "-z0:x0": -1}
    pulled = np.sign(both.slope * plus.slope)  # which way `z0:x0` was turned
    for effect, sizes in ((both, (-0.4, 0.4)), (plus, (0, 0.4)), (minus, (0, 0.4))):
        ends = []
        for t in np.linspace(*sizes, 5):
            sign = pulled if effect is both else signs[effect.violation]
            gamma = sign * t * np.sqrt(fit.model.noise_cov[0, 0]) / left.std()
            peer = IV2SLS(rows["next_x0"] - gamma * z, x, rows["a0"], z).fit(**covariance)
            ends.append(
                peer.params.iloc[-1]
                + np.array([-1, 1]) * 1.959963984540054 * peer.std_errors.iloc[-1]
            )
        ends = np.array(ends)
        expected = ends[:, 0].min(), ends[:, 1].max()
        np.testing.assert_allclose(effect.union(0.4), expected, rtol=1e-8)


def test_a_saved_model_says_how_its_errors_grow(tmp_path):
    fit = ivvi.estimate(ivvi.read_logs(grouped(0), **GROUPED))
    fit.save(tmp_path / "model")
    analysis = ivvi.sensitivity("zero", tmp_path / "model", violations=("z0",), **IDLE)
    assert "pass the log (log=, --log)" in analysis.to_json()["notes"][0]
    own = ivvi.sensitivity("zero", fit, violations=("z0",), **IDLE)
    assert own.effects[0].se == pytest.approx(analysis.effects[0].se, rel=1e-9)
    grown = own.effects[0].variance.v2 / analysis.effects[0].variance.v2
    assert abs(grown - 1) > 0.2  # which of them is right says the peer above


def test_a_tipping_point_has_the_sign_that_is_allowed(case):
    fit, policy = case
    words = ("+z0:x0", "-z0:x0", "z0:x0")
    analysis = ivvi.sensitivity(
        policy, fit, violations=words, draws=0, episodes=4, against=("zero",)
    )
    plus, minus, either = (
        next(e for e in analysis.effects if (e.violation, e.feature) == (word, "a0"))
        for word in words
    )
    assert plus.estimate < 0
    assert plus.tipping is None  # a positive direct effect hides a part of a negative effect
    assert minus.tipping.t > 0
    assert minus.tipping.share == pytest.approx(either.tipping.share)
    t = minus.tipping.t
    assert minus.union(t)[1] == pytest.approx(either.union(t)[1])
    assert plus.union(t)[0] == pytest.approx(either.union(t)[0])
    assert plus.union(t)[1] == pytest.approx(plus.union(0.0)[1], abs=0.2 * plus.se)


def test_unions_cover_at_the_stated_violation():
    """Direct effects of 1, at the end of the range allowed: 95% of 120 logs, four errors.

    Standard errors of a valid instrument, which are too small there, cover less.
    """
    direct, logs, hits, unmoved, union = 1.0, 120, 0, 0, 0
    for seed in range(logs):
        rows = grouped(seed, direct, groups=100, size=4)
        fit = ivvi.estimate(ivvi.read_logs(rows, **GROUPED))
        source = ValueInputs.of(fit)
        exclusion = Exclusion.of(source)
        violation = exclusion.along("+z0:x0", np.zeros((1, 1)))
        variances = Variances.of(exclusion, *errors_of(source), rows_of(source))
        (effect,) = effect_bands(variances, violation, 1.96, 10.0)
        x = np.column_stack([np.ones(len(rows["x0"])), rows["x0"]])
        left = rows["z0"] - x @ np.linalg.lstsq(x, rows["z0"], rcond=None)[0]
        t = direct * left.std() / exclusion.noise[0]
        low, high = effect.interval(t)
        hits += low < -0.5 < high
        unmoved += abs((low + high) / 2 + 0.5) < 1.96 * effect.se
        low, high = effect.union(t)
        union += low < -0.5 < high
    error = np.sqrt(0.95 * 0.05 / logs)
    assert abs(hits / logs - 0.95) < 4 * error
    assert union >= hits
    assert unmoved / logs < 0.95 - 4 * error
