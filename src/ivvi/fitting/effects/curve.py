"""`curve`: W phi along one variable, with a band that covers the whole curve at once.

Its errors come from how far W moves when an episode is left out, whatever estimated it. With W_-g
the estimate without group g of G,

    var(W) = (G - 1) / G sum_g (W_-g - W)(W_-g - W)^T,

the jackknife by clusters, which for least squares is known as CR3 and errs on the safe side
where clusters are few (MacKinnon, Nielsen and Webb, 2023). It holds for any method that
estimates from moments: penalties and k-classes have no residuals that are orthogonal to the
instruments, so a formula for two-stage least squares does not apply to them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.plotting import check_figure, finished, new_figure
from ivvi._io.result import Records, TableResult
from ivvi.diagnostics.tails_and_quantiles import check_level
from ivvi.errors import InputError, nearest
from ivvi.estimators.covariance.score_rows import Score
from ivvi.estimators.covariance.scores import episode_scores
from ivvi.estimators.estimate import Estimate, Method
from ivvi.estimators.penalised import Penalised
from ivvi.estimators.registry import method_for_moments, needs_rows
from ivvi.estimators.whitening import whiten
from ivvi.features.blocks import Power, Spline
from ivvi.fitting import Fit
from ivvi.fitting.saved_fit import as_fit
from ivvi.moments import EpisodeMoments, Moments

AT_ONCE = 256
"""Bootstrap draws held at a time."""
MOST_GROUPS = 1000
"""Most groups of episodes that are left out one at a time."""


@dataclass(frozen=True, slots=True, repr=False)
class Curve(TableResult):
    """An estimated curve and its bands, each array (points,).

    Attributes
    ----------
    variable, output
        What is moved, and what is predicted.
    x, estimate, se
        Where, the value there, and its standard error, the jackknife's by episode.
    lower, upper
        The uniform band: it holds the whole curve with probability `level`.
    critical
        Half its width in standard errors; a band for each point alone has 1.96 at 95%.
    level
        Probability of the band.
    """

    variable: str
    output: str
    x: Floats
    estimate: Floats
    se: Floats
    lower: Floats
    upper: Floats
    critical: float
    level: float

    def records(self) -> Records:
        """Return the curve and its band, one row per point."""
        names = ("x", "estimate", "se", "lower", "upper")
        columns = (getattr(self, name).tolist() for name in names)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def summary(self) -> str:
        """Return one line that says what is drawn and over which range."""
        low, high = float(np.min(self.x)), float(np.max(self.x))
        return (
            f"{self.output} against {self.variable} from {low:.4g} to {high:.4g}, with a "
            f"{100 * self.level:g}% band for the whole curve ({self.critical:.3g} standard errors)"
        )

    def to_json(self) -> dict[str, Any]:
        """Describe the curve with JSON values."""
        arrays = ("x", "estimate", "se", "lower", "upper")
        named = {name: getattr(self, name).tolist() for name in arrays}
        single = ("variable", "output", "critical", "level")
        return {name: getattr(self, name) for name in single} | named

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw the curve with its band; with `path`, save it (SVG, PNG or PDF by the ending)."""
        check_figure(path, force=force)
        figure = new_figure(6, 4)
        axes = figure.add_subplot()
        label = f"{100 * self.level:g}% band for the whole curve"
        axes.fill_between(self.x, self.lower, self.upper, alpha=0.25, lw=0, label=label)
        axes.plot(self.x, self.estimate, label="estimate")
        axes.set(xlabel=self.variable, ylabel=self.output)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        return finished(figure, path, force=force)


def curve(  # noqa: PLR0913
    fit: Fit | str | os.PathLike[str],
    variable: str,
    output: str,
    *,
    at: Mapping[str, float] | None = None,
    span: tuple[float, float] | None = None,
    points: int = 101,
    against: float | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Curve:
    """Return E[output] along one state or action, the others held fixed, with a uniform band.

    Standard errors come from leaving out one episode at a time and estimating again by the fit's
    own method (`jackknife`). The band comes from a multiplier bootstrap over episodes (Belloni,
    Chernozhukov, Chetverikov and Kato, 2015). Each draw multiplies how far each episode moved W by
    an independent standard normal number, and has its own standard error. The band is as many
    standard errors wide as the largest t over the curve requires. It covers the curve of the best W
    for these features; an approximation error comes on top (`ivvi.check`, `ivvi.choose_features`).

    Parameters
    ----------
    fit
        From `ivvi.estimate(..., episodes=True)`, or the folder where it was saved.
    variable, output
        Names of a state or action, and of an output (a state's name stands for its next).
    at
        Values of the other states and actions; their means, or median knots, otherwise.
    span, points
        The range of the variable and the number of points on it.
    against
        Show the difference from the value there, instead of the value itself.
    level, draws, seed
        Probability of the band, bootstrap draws, and their seed.
    """
    check_level(level)
    fit = as_fit(fit)
    roles, estimate = fit.roles, fit.estimate
    row = estimate.design.output(output)
    name = roles.outputs[row]
    names = roles.state + roles.action
    for column in (variable, *(at or {})):
        if column not in names:
            raise InputError(f"there is no state or action {column!r}{nearest(column, names)}")
    low, high = span or _spread(fit, variable)[::2]
    x = np.linspace(low, high, points)
    fixed = dict(at or {})
    fixed |= {n: _spread(fit, n)[1] for n in names if n != variable and n not in fixed}
    phi = _features(fit, variable, x, fixed)
    if against is not None:
        phi = phi - _features(fit, variable, np.array([against]), fixed)
    paths = phi @ deviations(fit, row).T
    value = phi @ estimate.W[row]
    se = np.sqrt(np.sum(paths**2, axis=1))
    critical = _critical(paths, se, level, draws, seed)
    band = critical * se
    return Curve(variable, name, x, value, se, value - band, value + band, critical, level)


def deviations(fit: Fit, output: int) -> Floats:
    """How far each episode moved a row of W, (episodes, d_phi): squares add to its variance."""
    if needs_rows(fit.method) and fit.estimate.influence.size:
        return linearised(fit.estimate, fit.moments, output)
    return jackknife(method_for_moments(fit.method, fit.settings), fit.moments, output)


def episodes_of(moments: Moments) -> EpisodeMoments:
    """Return the moments of single episodes; refuse fewer than two episodes."""
    if moments.episodes is None:
        raise InputError("bands need per-episode moments: estimate with episodes=True")
    if len(moments.episodes) < 2:
        raise InputError("bands need at least 2 episodes; there is 1")
    return moments.episodes


def jackknife(method: Method, moments: Moments, output: int) -> Floats:
    """Return sqrt((G - 1) / G) (W_-g - W) of one output, (G, d_phi), times -1.

    A penalty that is chosen by cross-validation stays as it was chosen.
    """
    episodes = episodes_of(moments)
    if isinstance(method, Penalised) and isinstance(method.penalty, str):
        chosen = float(method.cross_validate(moments).chosen[output])
        method = Penalised(method.kind, chosen, adaptive=method.adaptive)
    all_moments = moments.without_episodes()
    W = method.solve(all_moments).W[output]
    member = np.arange(len(episodes)) % min(len(episodes), MOST_GROUPS)
    groups = int(member.max()) + 1
    moved = np.empty((groups, len(W)))
    for g in range(groups):
        moved[g] = (
            W - method.solve(_without(all_moments, episodes, np.flatnonzero(member == g))).W[output]
        )
    moved *= np.sqrt((groups - 1) / groups)
    return moved


def linearised(estimate: Estimate, moments: Moments, output: int) -> Floats:
    """Return how each episode moved one row of W by its influence, (E, d_phi).

    For methods that pass over the rows (`GMM`, `SGDA`), which moments do not estimate again;
    with the small-sample factor E / (E - 1) of the variance.
    """
    episodes, space = episodes_of(moments), whiten(moments, estimate.instruments)
    sums = episode_scores(Score(estimate.residual_map[output : output + 1], space), episodes)[:, 0]
    L = estimate.influence if estimate.influence.ndim == 2 else estimate.influence[output]
    factor = np.sqrt(len(episodes) / (len(episodes) - 1)) / moments.weight
    moved: Floats = factor * sums @ L.T
    return moved


def _critical(paths: Floats, se: Floats, level: float, draws: int, seed: int) -> float:
    """Quantile of the largest |t| over the curve, by multipliers on the episodes.

    Each draw is divided by its own standard error, as the estimate is by one that was
    estimated from as many episodes: were they alike, one point would get Student's t with
    one degree of freedom less than there are episodes.
    """
    rng = np.random.default_rng(seed)
    moving = se > 0
    if not moving.any():
        return 0.0
    scaled, largest = paths[moving] / se[moving, None], []
    count = scaled.shape[1]
    for start in range(0, draws, AT_ONCE):
        normal = rng.standard_normal((count, min(AT_ONCE, draws - start)))
        ratio = (scaled @ normal) ** 2 / (scaled**2 @ normal**2)  # at most count
        square = ratio * (count - 1) / np.maximum(count - ratio, 1e-12)
        largest.append(np.sqrt(square.max(axis=0)))
    return float(np.quantile(np.concatenate(largest), level))


def _features(fit: Fit, variable: str, values: Floats, fixed: Mapping[str, float]) -> Floats:
    """Evaluate phi with one variable moved, (points, d_phi)."""

    def columns(names: tuple[str, ...]) -> Floats:
        parts = [values if n == variable else np.full(len(values), fixed[n]) for n in names]
        return np.column_stack(parts) if parts else np.zeros((len(values), 0))

    Phi: Floats = fit.estimate.design.phi(columns(fit.roles.state), columns(fit.roles.action))
    return Phi


def _spread(fit: Fit, name: str) -> tuple[float, float, float]:
    """Low, middle and high of a variable: two deviations about the mean, or the inner knots."""
    moments, roles = fit.moments, fit.roles
    names, kind = (roles.state, "state") if name in roles.state else (roles.action, "input")
    at = names.index(name)
    for block, where, start in moments.design.pieces:
        if where != "action" or block.of != kind:
            continue
        if isinstance(block, Power) and block.degree == 1:
            mean = float(moments.mean[start + at])
            sd = float(np.sqrt(moments.scatter[start + at, start + at] / moments.weight))
            return mean - 2 * sd, mean, mean + 2 * sd
        if isinstance(block, Spline) and block.grids and block.grids[at]:
            grid = block.grids[at]
            inner = grid[1:-1] if len(grid) > 4 else grid
            return inner[0], grid[len(grid) // 2], inner[-1]
    raise InputError(f"the range of {name!r} is unknown with these features; give span= and at=")


def _without(all_moments: Moments, episodes: EpisodeMoments, gone: np.ndarray) -> Moments:
    """Return the moments without those of some episodes."""
    weight, mean, scatter = all_moments.weight, all_moments.mean, all_moments.scatter
    for e in gone:
        rest = weight - episodes.weight[e]
        offset = episodes.mean[e] - mean
        scatter = scatter - episodes.scatter[e]
        scatter = scatter - episodes.weight[e] * weight / rest * np.outer(offset, offset)
        mean = mean - episodes.weight[e] / rest * offset
        weight = rest
    n = max(1, round(all_moments.n * weight / all_moments.weight))
    return Moments(all_moments.design, n, weight, mean, scatter)
