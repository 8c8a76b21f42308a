"""Methods by their words: ``exact``, ``liml``, ``fuller:4``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ivvi.errors import InputError, nearest
from ivvi.estimators.estimate import Method
from ivvi.estimators.exact import Exact
from ivvi.estimators.gmm import GMM
from ivvi.estimators.kclass import LIML, Fuller, KClass
from ivvi.estimators.least_squares import LeastSquares
from ivvi.estimators.penalised import Penalised
from ivvi.estimators.shrunk import Shrunk

CLOSED: dict[str, Callable[..., Method]] = {
    "exact": Exact,
    "least-squares": LeastSquares,
    "liml": LIML,
    "fuller": Fuller,
    "kclass": KClass,
    "gmm": GMM,
    "ridge": partial(Penalised, "ridge"),
    "lasso": partial(Penalised, "lasso"),
    "adaptive-lasso": partial(Penalised, "lasso", adaptive=True),
    "shrunk": Shrunk,
}
METHODS = ("exact", "sgda", *list(CLOSED)[1:])


def parse_method(word: str, **settings: Any) -> Method:
    """Return the method of a word that needs no iteration."""
    name, colon, argument = word.partition(":")
    takes_number = name in ("fuller", "kclass")
    if name not in CLOSED or (colon and not takes_number):
        hint = nearest(word, METHODS) or f"; {', '.join(METHODS)} are known"
        raise InputError(f"unknown method {word!r}{hint}")
    if name == "kclass" and not argument:
        raise InputError("the method kclass needs its k, as in kclass:0.5")
    try:
        numbers = [float(argument)] if colon else []
    except ValueError:
        raise InputError(f"{argument!r} in the method {word!r} is not a number") from None
    return CLOSED[name](*numbers, **settings)


def restore_method(name: str, settings: Mapping[str, Any]) -> Method:
    """Return the method that has this name and these settings, as a saved model tells them.

    The closed form stands for one that passes over rows again (``sgda``, ``gmm``).
    """
    word = name.partition(":")[0]
    if word not in CLOSED or word == "gmm":
        return Exact()
    made: Any = Penalised if word in ("ridge", "lasso") else CLOSED[word]
    return made(**settings)  # type: ignore[no-any-return]
