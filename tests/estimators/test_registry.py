"""Methods by name: other names, typos, settings that come back."""

import pytest

from helpers import OPTIONS, fit_json, make_rows, write_table
from ivvi import InputError, option_values
from ivvi.estimators.registry import (
    METHODS,
    make_method,
    method_for_moments,
    restore_method,
    settings_of,
)
from ivvi.estimators.smooth import Smooth


@pytest.mark.parametrize("word", [*option_values.OTHER_NAMES, "2SLS", "OLS", "Exact"])
def test_the_names_of_the_field_mean_the_method(word):
    assert make_method(word).name == option_values.OTHER_NAMES.get(word.lower(), word.lower())


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lassso", "lasso"),
        ("fuler:4", "fuller"),
        ("2sl", "2sls"),
        ("olss", "ols"),
        ("Limll", "liml"),
    ],
)
def test_a_typo_gets_the_nearest_word(word, meant):
    with pytest.raises(InputError, match=f"unknown method {word!r}; did you mean {meant!r}"):
        make_method(word)


def test_a_word_that_is_near_none_gets_all_of_them():
    with pytest.raises(InputError, match=r"choose from exact, sgda.*shrunk, 2sls, tsls, iv, ols"):
        make_method("zzz")


@pytest.mark.parametrize("word", option_values.METHODS)
def test_every_method_is_restored_from_its_name_and_settings(word):
    method = make_method(word)
    assert method.name == word
    assert restore_method(method.name, settings_of(method)) == method


def test_the_penalties_of_chosen_features_are_restored_by_the_same_registry():
    method = Smooth((0.1, 0.2), 0.3, 500)
    assert restore_method("smooth", settings_of(method)) == method
    with pytest.raises(InputError, match="exact with the features auto"):
        make_method("smooth")


def test_methods_that_need_rows_are_estimated_again_by_the_closed_form():
    by_rows = {name for name in METHODS if getattr(METHODS[name], "func", METHODS[name]).needs_rows}
    assert by_rows == {"sgda", "gmm", "ujive", "ijive", "jive1"}
    assert method_for_moments("ujive", {}) == make_method("exact")
    assert method_for_moments("fuller:4", {"c": 4.0}) == make_method("fuller:4")


def test_the_shell_takes_the_names_of_the_field(tmp_path):
    source = write_table(make_rows(), tmp_path / "log.parquet")
    for word, name in (("2sls", "exact"), ("ols", "least-squares")):
        (tmp_path / word).mkdir()
        result, _ = fit_json(source, *OPTIONS, "--method", word, folder=tmp_path / word)
        assert result["method"] == name
