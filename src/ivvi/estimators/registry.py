"""The estimators by name, and how their settings are saved and restored.

`ivvi.option_values` lists the accepted words and their synonyms. The properties of a method
(`needs_rows`, `has_robust_intervals`, `one_solution`, `uses_instruments`) are attributes of its
class.

| word | class |
|---|---|
| ``exact`` | two-stage least squares, `Exact` |
| ``sgda`` | descent-ascent over the rows, `SGDA` |
| ``least-squares`` | `LeastSquares`, which ignores the instruments |
| ``liml``, ``fuller:4``, ``kclass:0.5`` | the k-class |
| ``gmm`` | two-step GMM |
| ``ujive``, ``ijive``, ``jive1`` | for many instruments, `JackknifeIV` |
| ``ridge``, ``lasso``, ``adaptive-lasso`` | `Penalised` |
| ``shrunk`` | `Shrunk`: effects of the actions, towards their mean |
| ``smooth`` | `Smooth`, which the features ``auto`` choose: a name in results, not one to ask for |
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ivvi import option_values
from ivvi.errors import InputError, hint
from ivvi.estimators.empirical_bayes import Shrunk
from ivvi.estimators.estimate import Method
from ivvi.estimators.gmm import GMM
from ivvi.estimators.jackknife_iv import KINDS, JackknifeIV
from ivvi.estimators.kclass import LIML, Fuller, KClass
from ivvi.estimators.penalised import Penalised
from ivvi.estimators.sgda.sgda import SGDA
from ivvi.estimators.smooth import Smooth
from ivvi.estimators.two_stage_least_squares import Exact, LeastSquares

METHODS: dict[str, Callable[..., Method]] = {
    "exact": Exact,
    "sgda": SGDA,
    "least-squares": LeastSquares,
    "liml": LIML,
    "fuller": Fuller,
    "kclass": KClass,
    "gmm": GMM,
    **{kind: partial(JackknifeIV, kind=kind) for kind in KINDS},
    "ridge": partial(Penalised, kind="ridge"),
    "lasso": partial(Penalised, kind="lasso"),
    "adaptive-lasso": partial(Penalised, kind="lasso", adaptive=True),
    "shrunk": Shrunk,
    "smooth": Smooth,
}
TITLES = {"exact": "IV (2SLS)", "least-squares": "LS", "liml": "LIML", "gmm": "GMM"}
"""Names in tables of methods that are not called by their word."""
WITH_NUMBER = {word.partition(":")[0] for word in option_values.METHODS if ":" in word}
"""Words that take a number after a colon."""


def canonical(word: str) -> str:
    """Return the word of `METHODS` for a method, with the number that was given.

    Examples
    --------
    >>> canonical("2SLS"), canonical("fuller:4")
    ('exact', 'fuller:4')
    """
    name, colon, argument = word.partition(":")
    known = option_values.OTHER_NAMES.get(name.lower(), name.lower())
    if known not in METHODS or (colon and known not in WITH_NUMBER):
        offered = [
            *(known.partition(":")[0] for known in option_values.METHODS),
            *option_values.OTHER_NAMES,
        ]
        raise InputError(f"unknown method {word!r}{hint(name.lower(), offered)}")
    return f"{known}{colon}{argument}"


def make_method(word: str, **settings: Any) -> Method:
    """Return the method of a word, such as ``exact``, ``sgda`` or ``fuller:4``."""
    name, colon, argument = canonical(word).partition(":")
    if name == "kclass" and not argument:
        raise InputError("the method kclass needs its k, as in kclass:0.5")
    if name == "smooth" and not settings:
        raise InputError(
            "the penalties of the method smooth are chosen together with its features: use the "
            "method exact with the features auto"
        )
    try:
        numbers = [float(argument)] if colon else []
    except ValueError:
        raise InputError(f"{argument!r} in the method {word!r} is not a number") from None
    return METHODS[name](*numbers, **settings)


def settings_of(method: Method) -> dict[str, Any]:
    """Return the settings of a method as JSON values; a `repr` for those that have none."""
    settings = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}  # type: ignore[arg-type]
    return {name: _plain(value) for name, value in settings.items()}


def restore_method(name: str, settings: Mapping[str, Any]) -> Method:
    """Return the method with this name and the settings that `settings_of` returned.

    GMM's weights are those of the standard errors again; a schedule that is not a word
    cannot be restored.
    """
    word = canonical(name).partition(":")[0]
    return METHODS[word](**({} if word == "gmm" else settings))


def method_class(name: str) -> type[Method]:
    """Return the class of a method, by its name in a result."""
    made: Any = METHODS[canonical(name).partition(":")[0]]
    cls: type[Method] = getattr(made, "func", made)
    return cls


def needs_rows(name: str) -> bool:
    """Return whether a method passes over the rows of a log, by its name in a result."""
    return method_class(name).needs_rows


def method_for_moments(name: str, settings: Mapping[str, Any]) -> Method:
    """Return the method that estimates W from moments alone: `Exact` for methods that need rows."""
    return Exact() if needs_rows(name) else restore_method(name, settings)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | tuple):
        return np.asarray(value).tolist()
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
