"""The estimator for scikit-learn: `fit`, `predict`, `score`, pipelines, searches.

A thin wrapper: a table of rows (X, y) with instruments Z becomes a one-step log, and everything is
done by `ivvi.estimate`. Needs scikit-learn (``pip install 'ivvi[sklearn]'``).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ivvi.errors import InputError, IvviWarning
from ivvi.estimators import Estimate, LeastSquares, StandardErrors
from ivvi.features.design import fitted_design
from ivvi.fitting import estimate
from ivvi.logs import Batch, Roles, read_logs
from ivvi.moments import Moments


class IVRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Regression with instruments: y = W phi(x, a) + noise, where the noise moved a.

    Parameters
    ----------
    actions
        Which columns of X are endogenous, by number or, of a frame, by name. None: all of them.
        The others are exogenous and are instruments too.
    features
        Feature word: ``linear``, ``poly2``, ``spline:5``, ``fourier:200``.
    method
        Word of an estimator: ``exact`` (2SLS), ``liml``, ``fuller:1``, ``gmm``, ``sgda``.
    se
        Kind of standard errors; ``auto`` is clustered where `groups` are given, else robust.
    seed
        Seed of random features.

    Attributes
    ----------
    estimate_
        The estimate (`ivvi.estimators.Estimate`): W, se, noise_cov.
    fit_
        What `ivvi.estimate` returned, with diagnostics and a summary; None without instruments.
    coef_, intercept_
        Of linear features, in the order of the columns of X.
    n_features_in_, feature_names_in_
        As everywhere in scikit-learn.

    Examples
    --------
    >>> import numpy as np
    >>> from ivvi.sklearn import IVRegressor
    >>> rng = np.random.default_rng(0)
    >>> z, e = rng.normal(size=(2, 500))
    >>> X = (z + e + rng.normal(size=500))[:, None]
    >>> y = 2 * X[:, 0] + e
    >>> bool(abs(IVRegressor().fit(X, y, Z=z[:, None]).coef_[0] - 2) < 0.2)
    True
    """

    def __init__(
        self,
        actions: Sequence[int | str] | None = None,
        features: str = "linear",
        method: str = "exact",
        se: str = "auto",
        seed: int = 0,
    ) -> None:
        self.actions = actions
        self.features = features
        self.method = method
        self.se = se
        self.seed = seed

    def fit(
        self, X: Any, y: Any, Z: Any = None, sample_weight: Any = None, groups: Any = None
    ) -> IVRegressor:
        """Estimate W.

        Parameters
        ----------
        X, y
            Regressors (n, d) and outcomes (n,) or (n, d_y).
        Z
            Instruments (n, d_z). Without them, and without `actions`, every column of X is its
            own instrument: least squares.
        sample_weight
            Row weights (n,).
        groups
            Cluster of each row (n,), for standard errors.
        """
        X, y = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2
        )
        weight = None if sample_weight is None else _check_sample_weight(sample_weight, X)
        self._single = y.ndim == 1
        Y = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        if Z is None and self.actions is not None:
            raise InputError(f"actions {list(self.actions)} are endogenous; expected instruments Z")
        if Z is None:
            self._endogenous, self.fit_ = self._columns(None), None
            self.estimate_ = self._least_squares(X, Y, weight)
        else:
            Z = check_array(Z, dtype=np.float64)
            check_consistent_length(X, Z)
            self._endogenous = self._columns(self.actions)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", IvviWarning)
                self.fit_ = self._instrumented(X, Y, Z, weight, groups)
            for text in self.fit_.warnings:  # with the user's own call as the source
                warnings.warn(text, IvviWarning, stacklevel=2)
            self.estimate_ = self.fit_.estimate
        if self.features == "linear":
            self._set_coefficients()
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return E[y | x, do(a)], (n,) or (n, d_y)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        x, a = self._split(X)
        prediction: np.ndarray = self.estimate_.design.phi(x, a) @ self.estimate_.W.T
        return prediction[:, 0] if self._single else prediction

    def _columns(self, actions: Sequence[int | str] | None) -> np.ndarray:
        if actions is None:
            return np.arange(self.n_features_in_)
        names = list(getattr(self, "feature_names_in_", ()))
        unknown = [c for c in actions if isinstance(c, str) and c not in names]
        if unknown:
            raise InputError(f"X has no column {unknown[0]!r}; its columns are {names}")
        d = self.n_features_in_
        chosen = [names.index(c) if isinstance(c, str) else int(c) for c in actions]
        columns = [c + d if -d <= c < 0 else c for c in chosen]  # from the end, as everywhere
        if len(set(columns)) < len(columns) or not all(0 <= c < d for c in columns):
            raise InputError(
                f"actions {list(actions)} are not distinct columns of X, which has {d}"
            )
        return np.array(columns)

    def _split(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the exogenous columns x and the endogenous ones a."""
        return np.delete(X, self._endogenous, axis=1), X[:, self._endogenous]

    def _least_squares(self, X: np.ndarray, Y: np.ndarray, weight: Any) -> Estimate:
        names = ((), _named("a", X), _named("z", X), _named("y", Y))
        batch = Batch(np.empty((len(X), 0)), X, X, Y, weight)
        roles = Roles(*names, reward=None, episode=None, step=None, weight=None)
        design = fitted_design(roles, lambda: batch, self.features, seed=self.seed)
        return LeastSquares().solve(Moments.of_batch(design, batch))

    def _instrumented(
        self, X: np.ndarray, Y: np.ndarray, Z: np.ndarray, weight: Any, groups: Any
    ) -> Any:
        x, a = self._split(X)
        parts = {"x": x, "a": a, "z": Z, "y": Y}
        columns: dict[str, Any] = {name: part for name, part in parts.items() if part.size}
        roles: dict[str, Any] = {"state": "x*" if x.size else ()}
        if weight is not None:
            columns["weight"], roles["weight"] = weight, "weight"
        se = StandardErrors(self.se)
        if groups is not None:
            columns["group"] = np.asarray(groups)
            se = StandardErrors(self.se, cluster="group")
        log = read_logs(columns, action="a*", instrument="z*", next_state="y*", **roles)
        return estimate(log, self.features, method=self.method, se=se, seed=self.seed)

    def _set_coefficients(self) -> None:
        order = np.argsort([*np.delete(np.arange(self.n_features_in_), self._endogenous),
                            *self._endogenous])  # fmt: skip
        W = self.estimate_.W
        slopes, constant = W[:, 1:][:, order], W[:, 0]
        self.coef_ = slopes[0] if self._single else slopes
        self.intercept_ = constant[0] if self._single else constant


def _named(letter: str, values: np.ndarray) -> tuple[str, ...]:
    return tuple(f"{letter}{i}" for i in range(values.shape[1]))
