"""How far the instrument may be invalid: breakdown points, bands, requests, the command."""

import json
import re
from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import ivvi
from helpers import run
from ivvi import Actions, InputError
from ivvi.sensitivity_analysis import Sensitivity
from ivvi.sensitivity_analysis.breakdown import has_flipped
from ivvi.sensitivity_analysis.result import Breakdown
from ivvi.sensitivity_analysis.violations import Size

REWARD = "quadratic:weight=0.05"


@dataclass(frozen=True)
class Push:
    """A planner that pushes x towards 0 as the effect of the action has it."""

    kind = "push"
    effect: float = 0.0

    def solve(self, problem, *, seed=0):
        return Push(float(problem.model.W[0, 2]))

    def begin(self, n):
        return ()

    def act(self, x, h, memory):
        return -0.5 * np.sign(self.effect) * jnp.sign(x), memory


def test_one_action_one_instrument_breaks_at_the_whole_effect(simulator):
    """With no cost of acting, doing what helps pays as long as the effect keeps its sign."""
    log = simulator("linear", dim=1).collect(episodes=40, horizon=100, seed=1)
    fit = ivvi.estimate(log)
    policy = ivvi.plan(fit.model, REWARD, (-1, 1), horizon=10, method="mpc", compare=False)
    settings = {"states": [[2.0]], "planner": Push(), "violations": ("-z0",), "draws": 20}
    settings |= {"against": ("zero",), "episodes": 16}
    analysis = ivvi.sensitivity(policy, fit, **settings)
    gain, action = analysis.breakdowns
    (effect,) = analysis.effects
    assert effect.tipping.share[0] == pytest.approx(1.0, rel=1e-6)
    assert gain.size.share[0] == pytest.approx(1.0, rel=0.05)
    assert action.size.share[0] == pytest.approx(1.0, rel=0.05)
    assert action.question == "a0 at (2)"
    assert 0 < gain.unsure.share[0] < gain.size.share[0]
    (band,) = analysis.bands
    assert band.union(0.0)[0] > 0 > band.union(gain.size.t)[0]
    low, high = effect.union(effect.tipping.t)
    assert low <= 0 <= high


@pytest.mark.thorough
def test_bands_widen_with_the_violation_and_hold_the_gain(case):
    fit, policy = case
    settings = {"violations": ("worst", "z0", "-z1:x0"), "draws": 10, "episodes": 64}
    analysis = ivvi.sensitivity(policy, fit, **settings)
    assert [b.violation for b in analysis.bands] == ["worst direction", "z0", "-z1:x0"]
    for band in analysis.bands:
        widths = [np.subtract(*band.union(t)[::-1]) for t in (0.0, 0.5 * band.t[-1], band.t[-1])]
        assert widths == sorted(widths)
        assert (band.lower < band.gain).all()
    worst, single = (b.size for b in analysis.breakdowns[:2])
    assert worst is not None
    assert single is None or abs(worst.t) <= abs(single.t) * 1.02
    text = analysis.summary()
    assert "gain over behaviour" in text
    assert "worst direction" in text
    long = [replace(e, feature="a dose with a long name") for e in analysis.effects]
    rows = _rows(replace(analysis, effects=tuple(long)))
    assert len({row.index(b) for row, b in zip(rows, _violations(analysis), strict=True)}) == 1
    assert json.loads(json.dumps(analysis.to_json(), allow_nan=False))["level"] == 0.95


def _rows(found):
    """Return the rows of the table, below the plain sentences and the names of its columns."""
    return found.summary().partition("How invalid may the instrument be?")[2].splitlines()[2:-1]


def _violations(found):
    shown = len(_rows(found)) - len(found.breakdowns)
    clear = [e for e in found.effects if abs(e.estimate) > e.critical * e.se]
    clear.sort(key=lambda e: -abs(e.estimate) / e.se)
    return [b.violation for b in found.breakdowns] + [e.violation for e in clear[:shown]]


def test_where_a_gain_is_unsure_does_not_depend_on_the_largest_size(case):
    """The gain, and the error that each size leaves, are those of the same draws."""
    fit, policy = case
    settings = {"against": ("zero",), "draws": 12, "episodes": 16}
    analyses = [ivvi.sensitivity(policy, fit, most=m, **settings) for m in (0.4, 2.7)]
    first, *others = (one.breakdowns[0] for one in analyses)
    assert 0 < abs(first.unsure.t) < abs(first.size.t) < 0.4
    for other in others:
        assert other.size.t == pytest.approx(first.size.t, rel=1e-9)
        assert other.unsure.t == pytest.approx(first.unsure.t, rel=1e-9)
    (band,) = analyses[0].bands
    assert band.union(abs(first.unsure.t) * 0.9)[0] > 0 > band.union(abs(first.unsure.t) * 1.1)[0]
    with pytest.raises(InputError, match="the band was computed up to"):
        band.union(0.5)


def test_an_action_flips_across_zero_or_the_middle_of_its_box_or_to_another_choice():
    box = Actions.box([-1.0, 1.0], [1.0, 3.0])
    flips = has_flipped(box, np.array([0.5, 2.5]), np.array([0.1, 1.5]))
    assert flips.tolist() == [False, True]  # the second box does not hold 0: its middle is 2
    finite = Actions.binary(2)
    assert has_flipped(finite, np.array([0.0, 1.0]), np.array([0.0, 0.0])).tolist() == [False, True]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"against": ("noone",)},
            "unknown policy 'noone'; choose from behaviour, zero, least-squares, lowest, highest",
        ),
        ({"against": ()}, "name at least one rival"),
        ({"violations": ("z9",)}, "there is no instrument 'z9'"),
        ({"violations": ("z0:x9",)}, "there is no output 'x9'"),
        ({"states": [[1.0]]}, "rows of 2 finite numbers"),
        ({"starts": [[1.0]]}, "expected rows of 2"),
        ({"most": 0.0}, "most is 0.0; expected a finite number above 0"),
        ({"most": 1e308}, "most is 1e+308; expected at most 1e+06"),
        ({"most": np.inf}, "most is inf; expected a finite number above 0"),
        ({"most": np.nan}, "most is nan; expected a finite number above 0"),
        ({"level": 2.0}, "the level is 2"),
        ({"horizon": 0}, "the horizon is 0; expected a whole number of at least 1"),
        ({"episodes": 0}, "episodes is 0"),
    ],
)
def test_bad_requests_are_refused_in_a_sentence(case, settings, sentence):
    fit, policy = case
    with pytest.raises(InputError) as caught:
        ivvi.sensitivity(policy, fit, **{"draws": 0, "episodes": 4, **settings})
    assert sentence in str(caught.value)


def test_what_cannot_be_doubted_is_refused(case, simulator):
    fit, policy = case
    with pytest.raises(InputError, match="needs a reward"):
        ivvi.sensitivity(lambda x: x, fit)
    again = {"reward": REWARD, "horizon": 2, "states": [[1.0, 1.0]], "draws": 0, "episodes": 2}
    with pytest.raises(InputError, match="planning again needs planner="):
        ivvi.sensitivity(lambda x: np.clip(x, -1, 1), fit, **again)
    with pytest.raises(InputError, match=r"a fit .* or the folder of a saved one"):
        ivvi.sensitivity(policy, 3)
    log = simulator("linear", dim=2, setting="III").collect(episodes=20, horizon=100, seed=3)
    with pytest.raises(InputError, match="least squares uses no instrument"):
        ivvi.sensitivity(policy, ivvi.estimate(log, method="least-squares"))


def test_the_command_says_and_draws_the_same(case, tmp_path):
    fit, policy = case
    fit.save(tmp_path / "model")
    policy.save(tmp_path / "policy")
    target, figure = tmp_path / "found.json", tmp_path / "found.svg"
    options = ("--model", tmp_path / "model", "--violations", "z0", "--draws", 4, "--episodes", 8)
    options += ("--against", "zero")
    result = run(
        *("sensitivity", tmp_path / "policy", *options, "--json", target, "--plot", figure)
    )
    assert result.code == 0, result.err
    settings = {"violations": ("z0",), "draws": 4, "episodes": 8, "against": ("zero",)}
    analysis = ivvi.sensitivity(policy, tmp_path / "model", **settings)
    assert result.out.splitlines()[:-1] == analysis.summary().splitlines()
    assert json.loads(target.read_text()) == json.loads(json.dumps(analysis.to_json()))
    assert figure.read_text().lstrip().startswith("<?xml")
    again = run("sensitivity", tmp_path / "policy", *options, "--plot", figure)
    assert again.code == 2
    assert "exists" in again.err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--against", "nobody"), "unknown policy 'nobody'"),
        (("--state", "1,2", "--states", "t.csv"), "either --state or --states"),
        (("--state", "1,one"), "'one'"),
        (("--plot", "found.gif"), "an unknown file ending"),
    ],
)
def test_bad_options_write_nothing(case, tmp_path, options, sentence, monkeypatch):
    fit, policy = case
    monkeypatch.chdir(tmp_path)
    fit.save("model")
    policy.save("policy")
    result = run("sensitivity", "policy", "--model", "model", *options)
    assert result.code == 2
    assert sentence in result.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model", "policy"]


def test_a_model_without_moments_cannot_be_doubted(case, tmp_path):
    fit, policy = case
    fit.save(tmp_path / "model", moments=False)
    with pytest.raises(InputError, match="needs the moments of the log"):
        ivvi.sensitivity(policy, tmp_path / "model")


@pytest.mark.filterwarnings("ignore:.* draws are few:ivvi.errors.IvviWarning")
@pytest.mark.parametrize(
    "word", ["behaviour", pytest.param("least-squares", marks=pytest.mark.thorough)]
)
def test_without_doubt_the_gain_is_that_of_its_value(case, word):
    """The first of the episodes that `ivvi.value` simulates: four errors of their mean."""
    fit, policy = case
    settings = {"against": (word,), "starts": [[2.0, -1.0]]}
    analysis = ivvi.sensitivity(policy, fit, **settings, draws=0, most=0.1)
    (band,) = analysis.bands
    at = int(np.argmin(np.abs(band.t)))
    assert band.t[at] == pytest.approx(0.0, abs=1e-12)
    worth = ivvi.value(policy, fit, **settings, draws=20)
    error = band.simulation_error[at]
    assert 0 < error < 0.25 * band.gain[at]
    assert abs(band.gain[at] - worth.gains[word].estimate) < 4 * error


def test_a_model_of_moments_alone_is_told_the_other_rivals(case, tmp_path):
    fit, policy = case
    replace(fit, sample=None).save(tmp_path / "model")
    with pytest.raises(InputError, match=r"behaviour policy is unknown.*name other rivals"):
        ivvi.sensitivity(policy, tmp_path / "model", starts=[[2.0, 2.0]])
    policy.save(tmp_path / "policy")
    options = ("--model", tmp_path / "model", "--draws", 0, "--episodes", 8, "--start", "2,2")
    result = run("sensitivity", tmp_path / "policy", *options, "--against", "zero")
    assert result.code == 0, result.err
    assert "gain over zero" in result.out


@pytest.mark.parametrize(
    ("unsure", "lost", "said", "advice"),
    [
        (None, None, "Sturdy: the gain over doing nothing survives every", "try the policy"),
        (
            0.8,
            0.9,
            "Sturdy: the gain over doing nothing is no longer",
            "try the policy",
        ),
        (0.3, 0.9, "Middling: .* 30% .*, and disappears at 90%", "try the policy"),
        (0.02, None, "Fragile: ", "Do not act on it"),
        (0.0, 0.9, "The gain over doing nothing is not certain, even with a valid", "Collect more"),
    ],
)
def test_an_analysis_opens_with_how_much_the_gain_bears(unsure, lost, said, advice):
    def size(t):
        return None if t is None else Size(t, ("y",), (t,), (t,), (t / 4,))

    band = SimpleNamespace(rival="zero")
    gain = Breakdown("gain over zero", "worst", size(lost), size(unsure), size(2.0), True)
    brief = Sensitivity((gain,), (band,), (), 0.95).brief.to_json()
    assert re.match(said, brief["gain"])
    assert advice in brief["next"]
