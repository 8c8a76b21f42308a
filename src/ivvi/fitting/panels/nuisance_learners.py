"""Learners that predict columns from controls, each row by learners that have not seen its fold.

The default, ``auto``, has three learners predict every row out of fold: a lasso of the controls, a
lasso of their bends and products, and boosted trees. With their predictions f_k, less the mean of
the column v, its prediction is

    v^ = mean(v) + sum_k b_k f_k,    b = argmin |v - v^|^2 over b >= 0

(short-stacking; Ahrens, Hansen, Schaffer and Wiemann, 2025). Linear effects are left to the lasso,
curves to splines and steps to trees. The weights also undo the lasso's shrinkage. Learners call the
rows of the controls X, as scikit-learn does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.errors import InputError, hint
from ivvi.features.custom_block import import_object
from ivvi.features.splines import bends
from ivvi.option_values import LEARNERS

KNOTS, BENDS = 12, 8
"""Knots of a control, at its quantiles, and its smoothest bends that are used."""
MOST_COLUMNS = 200
"""Most bends, and most products of two controls, that a lasso chooses from."""
SHORTEST = 3e-3
"""Smallest penalty of that lasso, as a share of the one that leaves nothing."""
Make = Callable[[], Any]


@dataclass(repr=False)
class BentLasso(Compact):
    """A lasso of controls X (n, k), their bends and, where they are few, their products."""

    _centre: Floats = field(init=False, repr=False)
    _scale: Floats = field(init=False, repr=False)
    _grids: list[tuple[float, ...]] = field(init=False, repr=False)
    _model: Any = field(init=False, repr=False)

    def fit(self, X: Floats, y: Floats, sample_weight: Floats | None = None) -> BentLasso:
        """Place the knots, and choose the penalty by cross-validation."""
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LassoCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        spread = X.std(axis=0)
        self._centre, self._scale = X.mean(axis=0), np.where(spread > 0, spread, 1.0)
        knots = np.quantile((X - self._centre) / self._scale, np.linspace(0, 1, KNOTS), axis=0)
        self._grids = [tuple(np.unique(column).tolist()) for column in knots.T]
        lasso = LassoCV(eps=SHORTEST, tol=1e-3, max_iter=1_000)
        self._model = make_pipeline(StandardScaler(), lasso)
        with warnings.catch_warnings():  # the loss out of fold judges it, converged or not
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._model.fit(self._columns(X), y, lassocv__sample_weight=sample_weight)
        return self

    def predict(self, X: Floats) -> Floats:
        """Predict rows (n, k), (n,)."""
        return np.asarray(self._model.predict(self._columns(X)))

    def _columns(self, X: Floats) -> Floats:
        scaled = (X - self._centre) / self._scale
        each, width = min(BENDS, max(1, MOST_COLUMNS // scaled.shape[1])), scaled.shape[1]
        parts = [scaled]
        for values, grid in zip(np.ascontiguousarray(scaled.T), self._grids, strict=True):
            if len(grid) > 2:  # two values have no bend
                parts.append(bends(values, grid, min(each, len(grid))))
        one, other = np.triu_indices(width, 1)
        if len(one) <= MOST_COLUMNS:
            parts.append(scaled[:, one] * scaled[:, other])
        return np.hstack(parts)


def learners_of(learner: Any, seed: int) -> tuple[Make, ...]:
    """Return functions that make new learners, for a word, ``module:object`` or an object."""
    try:
        from sklearn.base import clone
        from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
        from sklearn.linear_model import LassoCV
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler
    except ImportError:
        raise InputError(
            "learners for controls need scikit-learn: pip install 'ivvi[sklearn]'"
        ) from None

    def lasso() -> Any:
        return make_pipeline(StandardScaler(), LassoCV(max_iter=10_000))

    def trees() -> Any:
        shape = {"learning_rate": 0.05, "max_iter": 150, "max_leaf_nodes": 8}
        return HistGradientBoostingRegressor(
            **shape, min_samples_leaf=10, early_stopping=False, random_state=seed
        )

    def forest() -> Any:
        return RandomForestRegressor(200, min_samples_leaf=5, random_state=seed)

    words: dict[str, tuple[Make, ...]] = {
        "auto": (lasso, BentLasso, trees),
        "lasso": (lasso,),
        "forest": (forest,),
    }
    if isinstance(learner, str) and learner in words:
        return words[learner]
    chosen = _given(learner)
    return (lambda: clone(chosen),)


def _given(learner: Any) -> Any:
    """Return the learner that ``module:object`` names, or an object that is one."""
    if isinstance(learner, str):
        if ":" not in learner:
            words = (*LEARNERS, "module:object")
            raise InputError(f"unknown learner {learner!r}{hint(learner, words)}")
        name, learner = learner, import_object(learner)
        if not _learns(learner) and callable(learner):
            learner = learner()
        if not _learns(learner):
            raise InputError(
                f"the learner {name!r} is not a scikit-learn regressor; expected fit and predict"
            )
    elif not _learns(learner):
        raise InputError(
            f"the learner is {learner!r}; expected auto, lasso, forest, module:object or a "
            "scikit-learn regressor"
        )
    return learner


def _learns(learner: Any) -> bool:
    """Whether something is a learner, and not a class of them."""
    methods = all(callable(getattr(learner, name, None)) for name in ("fit", "predict"))
    return methods and not isinstance(learner, type)


def called(learner: Any) -> str:
    """Return the word for a learner, or the name of its class."""
    return learner if isinstance(learner, str) else type(learner).__name__


def cross_fitted(
    learners: Sequence[Make], c: Floats, y: Floats, weight: Floats | None, fold: Ints, name: str
) -> Floats:
    """Predict a column of each fold by learners of all others, (n,); several are stacked."""
    predicted = [_predicted(make, c, y, weight, fold, name) for make in learners]
    if len(predicted) == 1:
        return predicted[0]
    from scipy.optimize import nnls

    mean = np.average(y, weights=weight)
    predictions = np.column_stack(predicted) - mean
    root = np.ones(len(y)) if weight is None else np.sqrt(weight)
    shares: Floats = nnls(predictions * root[:, None], (y - mean) * root)[0]
    return np.asarray(mean + predictions @ shares)


def _predicted(
    make: Make, c: Floats, y: Floats, weight: Floats | None, fold: Ints, name: str
) -> Floats:
    """Predict a column of each fold by a learner of all others, (n,)."""
    predicted = np.empty(len(y))
    for number in range(int(fold.max()) + 1):
        inside = fold == number
        model = make()
        try:
            model.fit(c[~inside], y[~inside], **_weights(model, weight, ~inside))
            values = np.asarray(model.predict(c[inside]), dtype=np.float64)
        except Exception as error:  # whatever a user's learner raises
            why = " ".join(str(error).split())
            raise InputError(f"the learner of {name!r} failed: {why}") from error
        if values.shape != (int(inside.sum()),) or not np.isfinite(values).all():
            raise InputError(
                f"the learner of {name!r} predicted {values.shape} for {int(inside.sum())} rows; "
                "expected one finite number for each"
            )
        predicted[inside] = values
    return predicted


def _weights(model: Any, weight: Floats | None, rows: Any) -> dict[str, Floats]:
    """Return the weights of rows as the learner takes them; a pipeline's go to its last step."""
    if weight is None:
        return {}
    steps = getattr(model, "steps", None)
    name = "sample_weight" if steps is None else f"{steps[-1][0]}__sample_weight"
    return {name: weight[rows]}
