"""What help texts offer is what is understood."""

import pytest

from helpers import run
from ivvi import InputError, StandardErrors, option_values
from ivvi.features import parse_features
from ivvi.policy.plan import PLANNERS


@pytest.mark.parametrize("word", [word for word in option_values.FEATURES if word != "auto"])
def test_every_feature_word_is_understood(word):
    parse_features(word)


@pytest.mark.parametrize("kind", option_values.STANDARD_ERRORS)
def test_every_word_of_standard_errors_is_understood(kind):
    assert StandardErrors(kind).kind == kind


@pytest.mark.parametrize(
    ("wrong", "meant"), [("clusterd", "clustered"), ("wilt", "wild"), ("robustt", "robust")]
)
def test_a_typo_of_standard_errors_gets_the_nearest_word(wrong, meant):
    with pytest.raises(InputError, match=f"{wrong!r}; did you mean {meant!r}"):
        StandardErrors(wrong)


def test_every_word_of_a_planner_is_understood():
    assert set(PLANNERS) == set(option_values.PLANNERS)


def test_a_typo_of_features_gets_the_nearest_word():
    with pytest.raises(InputError, match="did you mean 'poly2:cross'"):
        parse_features("poly2:croos")


@pytest.mark.parametrize(
    ("verb", "known"),
    [
        ("fit", option_values.METHODS),
        ("fit", option_values.FEATURES),
        ("fit", option_values.STANDARD_ERRORS),
        ("respond", option_values.RESPONSE_ERRORS),
        ("plan", option_values.PLANNERS),
        ("value", option_values.DRAW_METHODS),
        ("value", option_values.RIVALS),
        ("sensitivity", option_values.RIVALS),
    ],
)
def test_help_shows_every_word(verb, known):
    help_text = "".join(run(verb, "--help").out.split())
    assert "".join(option_values.listed(known).split()) in help_text
