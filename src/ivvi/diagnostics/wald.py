"""Hypotheses about W in words, and Wald's test of them.

A hypothesis is ``OUTPUT: COMBINATION = COMBINATION``, such as ``next_x0: a0 - 2 a1 = 0.5``;
without an output it is about each of them, and a state's name stands for its next value. Put spaces
around signs; ``const`` is the coefficient of the constant.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.diagnostics.statistic import Statistic, quadratic
from ivvi.errors import InputError, nearest
from ivvi.estimators import Estimate

NUMBER = r"\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+"


def restrictions(texts: Sequence[str], estimate: Estimate) -> tuple[Floats, Floats]:
    """Return R (q, d_y d_phi) and r (q,) of hypotheses R vec(W) = r in words.

    vec(W) are the rows of W one after another.
    """
    outputs, features = estimate.design.outputs, estimate.design.phi_names
    rows, values = [], []
    for text in texts:
        name, colon, rest = text.partition(":")
        output = estimate.design.output(name.strip()) if colon else None
        combination = rest if colon else text
        weights, value = _parse(combination, features)
        for chosen in range(len(outputs)) if output is None else (output,):
            row = np.zeros((len(outputs), len(features)))
            row[chosen] = weights
            rows.append(row.ravel())
            values.append(value)
    return np.array(rows), np.array(values)


def combination(estimate: Estimate, text: str) -> tuple[Floats, Floats]:
    """Return a combination of W in words and its standard error, for one output or each.

    NaN stands for the root of a negative two-way variance.
    """
    restriction, target = restrictions([text], estimate)
    check_identified(estimate, restriction)
    variance = np.array([estimate.W_cov.of(row[None])[0, 0] for row in restriction])
    se = np.sqrt(np.where(variance >= 0, variance, np.nan))
    return restriction @ estimate.W.ravel() - target, se


def wald(estimate: Estimate, hypotheses: Any, target: Any = 0.0) -> Statistic:
    """Wald's test, under the estimate's covariance, of hypotheses in words or R vec(W) = r.

    Chi-squared with q degrees of freedom; F, when the covariance is corrected for small
    samples, with those of the rows below, or the fewest of the coefficients' in question.
    """
    words = [hypotheses] if isinstance(hypotheses, str) else list(hypotheses)
    if all(isinstance(text, str) for text in words):
        (restriction, target), null = restrictions(words, estimate), " and ".join(words)
    else:
        restriction, null = np.atleast_2d(np.asarray(hypotheses, dtype=np.float64)), "R vec(W) = r"
        if restriction.shape[1] != estimate.W.size:
            raise InputError(
                f"the restriction has {restriction.shape[1]} columns; expected {estimate.W.size}, "
                "one for each weight"
            )
    check_identified(estimate, restriction)
    q = len(restriction)
    if np.linalg.matrix_rank(restriction) < q:
        raise InputError(f"the {q} restrictions are linearly dependent; expected independent ones")
    few = min((count for _, count in estimate.W_cov.clusters), default=q + 1)
    if q >= few:
        raise InputError(
            f"{q} restrictions cannot be tested with {few} clusters; expected fewer restrictions"
        )
    gap = restriction @ estimate.W.ravel() - target
    value = quadratic(gap, estimate.W_cov.of(restriction), "the restrictions")
    freedoms = estimate.freedoms
    if freedoms is None:
        return Statistic(value, (q,), null)
    least = float(freedoms.ravel()[np.any(restriction != 0, axis=0)].min())
    return Statistic(value / q, (q, max(1, math.floor(least))), null)


def check_identified(estimate: Estimate, restriction: Floats) -> None:
    """Refuse combinations of W that the data do not identify."""
    if estimate.is_free(restriction.reshape(-1, estimate.W.shape[1])).any():
        words = " and ".join(estimate.unidentified)
        raise InputError(f"the combination is not identified, because {words} is not")


def _parse(text: str, features: Sequence[str]) -> tuple[Floats, float]:
    """Return the weights (d_phi,) and the number of ``weights . w = number``."""
    sides = re.split(r"\s=\s", text)  # one-hot features are named x0=1
    if len(sides) > 2:
        raise InputError(f"{text.strip()!r} has {len(sides) - 1} equals signs; expected at most 1")
    weights, number = np.zeros(len(features)), 0.0
    for side, sign in zip(sides, (1.0, -1.0), strict=False):
        for factor, word in _terms(side):
            if word is None:
                number -= sign * factor
                continue
            name = "1" if word.lower() in ("const", "constant") else word
            if name not in features:
                hint = nearest(word, features) or f"; choose from {', '.join(features[:12])}"
                raise InputError(f"{word!r} in {text.strip()!r} is not a feature{hint}")
            weights[features.index(name)] += sign * factor
    if not weights.any():
        raise InputError(f"{text.strip()!r} names no coefficient")
    return weights, number


def _terms(side: str) -> list[tuple[float, str | None]]:
    """Split ``a0 - 2 a1 + 1`` into (1, a0), (-2, a1), (1, None)."""
    terms: list[tuple[float, str | None]] = []
    for sign, body in re.findall(r"(?:^|(?<=\s))\s*([-+]?)\s*((?:(?!\s[-+]\s).)+)", side.strip()):
        match = re.fullmatch(rf"({NUMBER})?\s*\*?\s*(\S.*?)?\s*", body.strip())
        if match is None or not body.strip():
            raise InputError(f"{body.strip()!r} is not a term such as 2 a0")
        factor = float(match[1]) if match[1] else 1.0
        terms.append((-factor if sign == "-" else factor, match[2] or None))
    return terms
