"""Models that the log allows: draws of everything that was estimated, together.

There are three methods. *Asymptotic*: W is drawn from the (clustered) normal or Student's law of
the fit; the noise covariance is the one that W leaves in the moments, with its own sampling error;
the behaviour policy is drawn given W, through the scores that both share. *Bootstrap*: every
episode (or cluster of the fit's) counts a random number of times in the moments, and everything is
estimated again; the rows are not read. *Wild*: each cluster is left out once, and a draw adds the
resulting changes with random signs and sizes. This is the score form of the wild cluster bootstrap
(Kline and Santos 2012), not restricted to a null, since a value is not a coefficient that could be
fixed. With theta all estimates and theta_(g) the same without cluster g,

    theta_b = theta + s_b ((G - 1) / G)^1/2 sum_g v_bg (mean theta_(.) - theta_(g)),

where v are Webb's six numbers, of mean zero and variance one, so that theta_b has the jackknife's
covariance (CR3), and s_b^2 = (G - 1) / chi^2(G - 1) makes its law Student's, as few clusters
require (MacKinnon, Nielsen and Webb 2023). W, the noise and the behaviour policy move together; no
row is read, and G estimates are enough for any number of draws.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ivvi._io.result import compact_repr
from ivvi.dynamics.model import Dynamics
from ivvi.dynamics.next_state_distribution import NoiseLaw, noise_law, square_root
from ivvi.errors import InputError, hint
from ivvi.estimators import Exact
from ivvi.estimators.covariance.standard_errors_for_log import FEWEST_WILD
from ivvi.estimators.whitening import whiten
from ivvi.evaluation.noise_shape import NoiseShape, resampled_shapes
from ivvi.evaluation.value_inputs import ValueInputs
from ivvi.moments import EpisodeMoments, Moments
from ivvi.option_values import DRAW_METHODS
from ivvi.planning.behaviour_policy import RAW, BehaviourPolicy, coefficients
from ivvi.weak_iv.wild_bootstrap import WEBB

FEW_EPISODES = 10
FEWEST_DRAWN = 2
"""Fewest groups with a positive count in a draw."""
MOST_GROUPS = 200
"""Most groups that are left out in turn; more clusters than that are grouped at random."""
LEAST_FREEDOM = 4.0
"""Degrees of freedom below which the spread of weights and counts no longer grows."""


NOISE = ("law", "shape")
"""Fields of `ModelDraws` that are tuples of arrays."""


class ModelDraws(NamedTuple):
    """A stack of estimated models, one per draw.

    W (draws, d_y, d_phi); the maps of standard normal draws to their noise, two matrices
    (draws, d_x, d_x) each; the behaviour policy's weights (draws, d_a, d_psi) and (draws, d_z,
    d_f), of width 0 where it is not known; `Dynamics.reach` (draws, 2, d_x); what an invalid
    instrument does to the outputs by itself, `direct` times psi(x, z), (draws, d_y, d_psi), of
    width 0 where it is valid; `Dynamics.fade` (draws, d_x); the shape of the noise, None where it
    is Gaussian.
    """

    W: np.ndarray
    law: NoiseLaw
    action_weights: np.ndarray
    instrument_weights: np.ndarray
    reach: np.ndarray
    direct: np.ndarray
    fade: np.ndarray
    shape: NoiseShape | None = None

    def __repr__(self) -> str:
        return compact_repr(self, self._fields)

    def rows(self, at: Any) -> ModelDraws:
        """Return the models of the draws `at`."""
        law = NoiseLaw(*(part[at] for part in self.law))
        shape = None if self.shape is None else self.shape.rows(at)
        arrays = {name: part[at] for name, part in self._asdict().items() if name not in NOISE}
        return ModelDraws(**arrays, law=law, shape=shape)


def estimated_model(source: ValueInputs) -> ModelDraws:
    """Return the estimate itself as a stack of one."""
    model, behaviour = source.model, source.behaviour
    action_weights, instrument_weights = (
        (np.zeros((0, 0)),) * 2
        if behaviour is None
        else (behaviour.action_weights, behaviour.instrument_weights)
    )
    law, valid, shape = model.noise_law, np.zeros((len(model.W), 0)), source.noise_shape
    return ModelDraws(
        model.W, law, action_weights, instrument_weights, model.reach, valid, model.fade, shape
    ).rows(None)


def draw(
    source: ValueInputs, method: str, count: int, rng: np.random.Generator
) -> tuple[ModelDraws, np.ndarray | None]:
    """Draw models; also return the weights of episodes, (draws, E), where they were resampled."""
    chosen, weights = drawing_method(source, method), None
    if chosen == "bootstrap":
        models, weights = bootstrap(source, count, rng)
    else:
        models = (wild if chosen == "wild" else asymptotic)(source, count, rng)
    if source.noise_shape is not None:
        shapes = resampled_shapes(source.model, source.noise_shape, count, rng)
        models = models._replace(shape=shapes)
    return models, weights


def drawing_method(source: ValueInputs, method: str) -> str:
    """Return the method that draws models: ``auto`` is a bootstrap where there are episodes."""
    if method not in DRAW_METHODS:
        raise InputError(f"unknown method {method!r} of drawing models{hint(method, DRAW_METHODS)}")
    if method != "auto":
        return method
    if not source.resampled:
        return "asymptotic"
    return "wild" if source.wild else "bootstrap"


def asymptotic(source: ValueInputs, count: int, rng: np.random.Generator) -> ModelDraws:
    """Draw W from N(W, W_cov), or Student's law at the fit's freedom, and all else given W."""
    model, moments, behaviour = source.model, source.moments, source.behaviour
    dW = model.weights.draw_deviations(count, rng)
    if np.isfinite(source.freedom):
        dW *= np.sqrt(source.freedom / rng.chisquare(source.freedom, size=(count, 1, 1)))
    models = repeated(estimated_model(source), count)
    if moments is None:
        return models._replace(W=model.W + dW)
    noise = _of_next(model, noise_left(model, moments, model.W + dW))
    law = noise_law(_with_sampling_error(noise, moments.n, rng), model.categories)
    action_weights, instrument_weights = _behaviours(moments, behaviour, model, dW, rng)
    return models._replace(
        W=model.W + dW,
        law=law,
        action_weights=action_weights,
        instrument_weights=instrument_weights,
    )


def bootstrap(
    source: ValueInputs, count: int, rng: np.random.Generator
) -> tuple[ModelDraws, np.ndarray | None]:
    """Estimate again with episodes counted at random; also return the weights, (draws, E).

    Where the moments are kept by a cluster column its values are counted instead, and the weights
    are those of the clusters of the log's first states, (draws, s), where these are known.

    Where the model's weights are not the closed form of its moments (`gmm`, `sgda`), the draws'
    deviations from the closed form are added to the model's weights.
    """
    groups = _groups(source)
    if len(groups) < FEW_EPISODES:
        raise InputError(
            f"the bootstrap of {len(groups)} {'clusters' if groups.by else 'episodes'} is "
            f"unreliable; expected at least {FEW_EPISODES}: use the asymptotic method"
        )
    weights = episode_counts(len(groups), source.freedom, count, rng)
    W, noise, action_weights, instrument_weights = _estimates(source, weights)
    unchanged = repeated(estimated_model(source), count)
    models = unchanged._replace(
        W=W,
        law=noise_law(noise, source.model.categories),
        action_weights=action_weights,
        instrument_weights=instrument_weights,
    )
    if not groups.by:
        return models, weights
    of_starts = source.start_clusters
    has_starts = len(of_starts) > 0 and bool(np.isin(of_starts, groups.number).all())
    return models, weights[:, np.searchsorted(groups.number, of_starts)] if has_starts else None


def episode_counts(groups: int, freedom: float, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return how often each group counts in each draw, (count, groups): 1 on average.

    Poisson(1) counts give the covariance of clusters without a small-sample factor, and a law
    with tails as thin as the normal's. The variance of the counts is 1 times the factor
    G / (G - 1) and times that of Student's t, so that intervals are as long as the fit's own:
    counts are Poisson around Gamma draws of mean 1. A draw in which nearly no group counts is
    drawn again.
    """
    excess = student_variance(groups, freedom) - 1
    means = rng.gamma(1 / excess, excess, size=(count, groups))
    drawn: np.ndarray = rng.poisson(means).astype(float)
    while (few := (drawn > 0).sum(axis=1) < FEWEST_DRAWN).any():  # happens with ten groups or so
        means = rng.gamma(1 / excess, excess, size=(int(few.sum()), groups))
        drawn[few] = rng.poisson(means)
    return drawn


def wild(source: ValueInputs, count: int, rng: np.random.Generator) -> ModelDraws:
    """Draw all estimates: each cluster's change to them times Webb's numbers, summed."""
    out = left_out(len(_groups(source)), rng)
    weights = wild_weights(len(out), count, rng)
    undeleted = _estimates(source, np.ones((1, out.shape[1])))
    W, noise, action_weights, instrument_weights = (
        wild_draws(all_of_it[0], without, weights)
        for all_of_it, without in zip(undeleted, _estimates(source, out), strict=True)
    )
    unchanged = repeated(estimated_model(source), count)
    return unchanged._replace(
        W=W,
        law=noise_law(noise, source.model.categories),
        action_weights=action_weights,
        instrument_weights=instrument_weights,
    )


def reweighted(moments: Moments, weights: np.ndarray) -> Moments:
    """Return the moments in which episode e counts `weights[e]` times."""
    blocks = moments.episodes
    if blocks is None:
        raise ValueError("the moments are not kept by episode")
    share = weights * blocks.weight
    total = float(share.sum())
    mean = share @ blocks.mean / total
    offset = blocks.mean - mean
    scatter = np.einsum("e,eij->ij", weights, blocks.scatter) + (share * offset.T) @ offset
    n = max(1, round(moments.n * total / moments.weight))
    return Moments(moments.design, n, total, mean, scatter)


def noise_left(model: Dynamics, moments: Moments, W: np.ndarray) -> np.ndarray:
    """Return the noise covariance (..., d_y, d_y) that weights (..., d_y, d_phi) leave.

    The model's own, plus the change of E[(y - W phi)(y - W phi)^T] from the model's W.
    """
    design = moments.design

    def second(W: np.ndarray) -> np.ndarray:
        R = np.zeros((*W.shape[:-1], design.width))
        R[..., list(design.y_columns)] = np.eye(W.shape[-2])
        R[..., list(design.phi_columns)] -= W
        return _second(moments, R)

    left: np.ndarray = model.noise_cov + second(W) - second(model.W)
    return left


def repeated(models: ModelDraws, count: int) -> ModelDraws:
    """Return a stack of one model, repeated `count` times."""
    return models.rows(np.zeros(count, dtype=int))


def left_out(clusters: int, rng: np.random.Generator) -> np.ndarray:
    """Return the counts of each cluster with each group left out, (groups, clusters)."""
    if clusters < FEWEST_WILD:
        raise InputError(
            f"{clusters} clusters are too few for wild draws; expected at least {FEWEST_WILD}: "
            "use the asymptotic method"
        )
    groups = min(clusters, MOST_GROUPS)
    group = rng.permutation(clusters) % groups
    counts: np.ndarray = np.where(group == np.arange(groups)[:, None], 0.0, 1.0)
    return counts


def wild_weights(groups: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return the factors of each group's influence in the draws, (count, groups)."""
    six = np.concatenate([-WEBB, WEBB])
    freedom = groups - 1
    student = np.sqrt(freedom / rng.chisquare(freedom, size=(count, 1)))
    drawn: np.ndarray = student * six[rng.integers(0, 6, size=(count, groups))]
    return drawn


def wild_draws(undeleted: np.ndarray, without: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return draws (draws, ...) around `undeleted` (...); `without` (G, ...) lacks group g each."""
    groups = len(without)
    influence = np.sqrt((groups - 1) / groups) * (without.mean(axis=0) - without)
    drawn: np.ndarray = undeleted + np.tensordot(weights, influence, axes=1)
    return drawn


def student_variance(groups: int, freedom: float = np.inf) -> float:
    """Return the variance of Student's t times G / (G - 1), of at most G - 1 degrees of freedom."""
    groups = max(groups, 2)
    freedom = max(min(freedom, groups - 1), LEAST_FREEDOM)
    return groups / (groups - 1) * freedom / (freedom - 2)


def _groups(source: ValueInputs) -> EpisodeMoments:
    """Return the moments of the groups that are independent in the fit's errors."""
    if source.moments is None or source.moments.episodes is None:
        raise InputError(
            "the bootstrap needs per-episode moments: fit with episodes=True (ivvi fit "
            "--keep-episodes), or ask for the asymptotic method"
        )
    if not source.resampled:
        raise InputError(
            f"the fit's errors are clustered by {' and '.join(source.clusters)}, and a bootstrap "
            "of its episodes would ignore that; use the asymptotic method"
        )
    return source.moments.episodes


def _estimates(source: ValueInputs, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return W, the noise and the behaviour policy, each (draws, ...), by weights of groups."""
    model, moments, behaviour = source.model, source.moments, source.behaviour
    if moments is None:
        raise ValueError("there are no moments")
    estimates, estimated = [], estimated_model(source)
    again = source.method.solve(moments.without_episodes())
    shift, excess = model.W - again.W, model.noise_cov - again.noise_cov
    for row in weights:
        drawn = reweighted(moments, row)
        estimate = source.method.solve(drawn)
        behaviours = None if behaviour is None else coefficients(drawn, behaviour.features, model)
        action_weights, instrument_weights = behaviours or (
            estimated.action_weights[0],
            estimated.instrument_weights[0],
        )
        estimates.append(
            (
                estimate.W + shift,
                _of_next(model, estimate.noise_cov + excess),
                action_weights,
                instrument_weights,
            )
        )
    return tuple(np.array(part) for part in zip(*estimates, strict=True))


def _of_next(model: Dynamics, noise: np.ndarray) -> np.ndarray:
    """Return the covariance of the next state for that of the outputs, (..., d_x, d_x)."""
    return np.asarray(model.update.noise(noise))


def _second(moments: Moments, R: np.ndarray) -> np.ndarray:
    """E[(R v)(R v)^T] for maps R (..., d, p)."""
    mean = R @ moments.mean
    second: np.ndarray = R @ (moments.scatter / moments.weight) @ np.swapaxes(R, -1, -2)
    return second + mean[..., :, None] * mean[..., None, :]


def _with_sampling_error(noise: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Multiply covariances (draws, d, d) by Wishart matrices of n degrees of freedom over n."""
    count, d = noise.shape[:2]
    bartlett = np.tril(rng.normal(size=(count, d, d)), -1)
    freedom = np.maximum(n - np.arange(d), 1)
    bartlett[:, range(d), range(d)] = np.sqrt(rng.chisquare(freedom, size=(count, d)))
    root = square_root(noise) @ bartlett / np.sqrt(n)
    drawn: np.ndarray = root @ np.swapaxes(root, 1, 2)
    return drawn


def _behaviours(
    moments: Moments,
    behaviour: BehaviourPolicy | None,
    model: Dynamics,
    dW: np.ndarray,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the behaviour policy's weights given the draws of W.

    Scores are S = mean of (residual psi~^T), with psi~ the whitened instruments: S_u (d_y, r) of
    the outputs' residuals, S_eta (d_a, r) of the actions'. Their covariance is Omega (x) I / n,
    with Omega that of the residuals. A draw moves W by dW = S_u L^T and the weights of the actions
    by S_eta T^T, with T the coordinates of psi~ in psi. S_u follows from dW up to what
    overidentification leaves free, and S_eta from S_u by regression.
    """
    count, n = len(dW), moments.n
    if behaviour is None:
        return (np.zeros((count, 0, 0)),) * 2
    fitted = coefficients(moments, behaviour.features, model)
    if fitted is None:
        return tuple(
            np.repeat(part[None], count, axis=0)
            for part in (behaviour.action_weights, behaviour.instrument_weights)
        )  # type: ignore[return-value]
    design, space = moments.design, whiten(moments)
    exact = Exact().solve(moments)
    place = {argument: at for block, argument, at in design.pieces if block == RAW}
    d_a = len(model.action)
    R = np.zeros((len(exact.W) + d_a, design.width))
    R[: len(exact.W)] = exact.residual_map
    R[len(exact.W) :, place["action"] : place["action"] + d_a] = np.eye(d_a)
    R[len(exact.W) :, list(design.psi_columns)] -= behaviour.action_weights
    Omega, d_y = _second(moments, R), len(exact.W)
    back = np.linalg.pinv(exact.influence.T)
    free = np.eye(space.rank) - exact.influence.T @ back
    shape_u, shape_eta = (count, d_y, space.rank), (count, d_a, space.rank)
    u_scores = dW @ back + _scaled(Omega[:d_y, :d_y], shape_u, rng) @ free / np.sqrt(n)
    slope = Omega[d_y:, :d_y] @ np.linalg.pinv(Omega[:d_y, :d_y])
    rest = Omega[d_y:, d_y:] - slope @ Omega[:d_y, d_y:]
    eta_scores = slope @ u_scores + _scaled(rest, shape_eta, rng) / np.sqrt(n)
    action_weights = behaviour.action_weights + eta_scores @ space.of_psi(design).T
    return action_weights, _instruments(moments, behaviour, rng, count)


def _instruments(
    moments: Moments, behaviour: BehaviourPolicy, rng: np.random.Generator, count: int
) -> np.ndarray:
    """Draw the weights of the instrument with their own, homoskedastic, sampling error."""
    columns = np.array(moments.design.psi_columns)[list(behaviour.features.of_state)]
    gram = moments.second[np.ix_(columns, columns)]
    root = square_root(np.linalg.pinv(gram)) / np.sqrt(moments.n)
    spread = behaviour.zeta.T @ behaviour.zeta / len(behaviour.zeta)
    drawn: np.ndarray = (
        behaviour.instrument_weights
        + _scaled(spread, (count, *behaviour.instrument_weights.shape), rng) @ root.T
    )
    return drawn


def _scaled(
    covariance: np.ndarray, shape: tuple[int, int, int], rng: np.random.Generator
) -> np.ndarray:
    """Draw matrices (draws, d, r) whose columns have this covariance (d, d)."""
    drawn: np.ndarray = square_root(covariance) @ rng.normal(size=shape)
    return drawn
