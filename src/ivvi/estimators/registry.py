"""The estimators by name: the one list of words, and how settings are saved and restored.

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
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ivvi.errors import InputError, nearest
from ivvi.estimators.estimate import Method
from ivvi.estimators.gmm import GMM
from ivvi.estimators.jackknife_iv import KINDS, JackknifeIV
from ivvi.estimators.kclass import LIML, Fuller, KClass
from ivvi.estimators.least_squares import Exact, LeastSquares
from ivvi.estimators.penalised import Penalised
from ivvi.estimators.sgda.sgda import SGDA
from ivvi.estimators.shrinkage import Shrunk
from ivvi.estimators.smooth import Smooth

METHODS: dict[str, Callable[..., Method]] = {
    "exact": Exact,
    "sgda": SGDA,
    "least-squares": LeastSquares,
    "liml": LIML,
    "fuller": Fuller,
    "kclass": KClass,
    "gmm": GMM,
    **{kind: partial(JackknifeIV, kind) for kind in KINDS},
    "ridge": partial(Penalised, "ridge"),
    "lasso": partial(Penalised, "lasso"),
    "adaptive-lasso": partial(Penalised, "lasso", adaptive=True),
    "shrunk": Shrunk,
}
WITH_NUMBER = ("fuller", "kclass")
"""Words that take a number after a colon."""


def make_method(word: str, **settings: Any) -> Method:
    """Return the method of a word, such as ``exact``, ``sgda`` or ``fuller:4``."""
    name, colon, argument = word.partition(":")
    if name not in METHODS or (colon and name not in WITH_NUMBER):
        hint = nearest(word, tuple(METHODS)) or f"; choose from {', '.join(METHODS)}"
        raise InputError(f"unknown method {word!r}{hint}")
    if name == "kclass" and not argument:
        raise InputError("the method kclass needs its k, as in kclass:0.5")
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
    word = name.partition(":")[0]
    if word == "gmm":
        return GMM()
    made: Any = {"ridge": Penalised, "lasso": Penalised, "smooth": Smooth}.get(word)
    made = JackknifeIV if word in KINDS else made or METHODS.get(word)
    if made is None:
        raise InputError(f"unknown method {name!r}; choose from {', '.join(METHODS)}")
    return made(**settings)  # type: ignore[no-any-return]


def method_for_moments(name: str, settings: Mapping[str, Any]) -> Method:
    """Return what estimates W again from moments alone: `Exact` for methods that need the rows."""
    needs_rows = name.partition(":")[0] in ("sgda", "gmm", *KINDS)
    return Exact() if needs_rows else restore_method(name, settings)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | tuple):
        return np.asarray(value).tolist()
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
