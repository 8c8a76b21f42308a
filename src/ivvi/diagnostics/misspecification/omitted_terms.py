"""Is something missing from a linear fit? Products of columns, and the row before.

With the right features, E[y - W phi | x, z] = 0, so the residual e is uncorrelated with every
function q of states and instruments: their squares, their products, or those of the row before. If
a product of state and instrument explains e, the effect of the action changes with the state. If
the row before explains e, something lasts that the state does not capture: a unit effect, a
persistent confounder, a delayed effect. A unit effect hides in the coefficient of the state. It
shows best in all earlier rows: in the sum of their noise, and in the mean of their states. With
L = (A' B^-1 A)^-1 A' B^-1 the score

    s_i = (q_i - E[q phi'] L psi_i) e_i

has mean zero whatever the (small) error of W. All columns are centred: at the means of each step if
many episodes share it, else at the overall means. So a shock that all episodes share is not
mistaken for something that lasts. The variance of s is the largest of those by row, by episode and
by the clusters of the standard errors. Columns are cut at their outer quantiles first: q may be any
function of them, and a few rows should not decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.diagnostics.misspecification.product_terms import Term, Terms, cut, product_terms
from ivvi.diagnostics.tails_and_quantiles import chi2_tail
from ivvi.diagnostics.verdict import p_words
from ivvi.estimators import Estimate
from ivvi.logs import Batch, Roles
from ivvi.logs.evenly_spaced_rows import spread
from ivvi.moments import Moments

LEVEL = 1e-3
"""The p-value, adjusted for the number of tests, below which there is a warning."""
MATTERS = 0.005
"""Share of the residual's variance that a missing term must explain."""
FEWEST_ROWS, MOST_ROWS = 200, 4096
"""Rows to look at: with the most of them, a share of `MATTERS` is 4.5 standard errors."""
BLOCK_ROWS = 100
"""Rows of a stretch of a long episode: stretches stand for clusters where episodes are few."""
FEWEST_SQUARES = 10.0
"""t^2 of errors that are alike from which a term is looked at more closely."""
ROWS_PER_STEP, FEWEST_CLUSTERS = 5, 20
ROUNDING, TINY = 1e-9, float(np.finfo(float).tiny)


@dataclass(frozen=True, slots=True)
class Omitted:
    """A term that explains a `share` of an output's residual."""

    term: Term
    output: str
    share: float
    p_value: float


@dataclass(frozen=True, slots=True, repr=False)
class _FitResiduals(Compact):
    """Rows of a fit, their clusters and steps (n,).

    Attributes
    ----------
    e, outputs
        Residuals, (n, d_y), and the names of their outputs.
    features, phi, psi
        The columns of phi and psi other than the constant, (n, p), and which are whose.
    reward
        The output that is a reward, if one is.
    """

    e: Floats
    outputs: tuple[str, ...]
    features: Floats
    phi: list[int]
    psi: list[int]
    clusters: tuple[Ints, ...]
    step: Ints | None
    reward: str | None = None

    def missed(self, tested: Terms) -> Omitted | None:
        """Return the term that explains most of a residual, or None if none surely does.

        `second` and `products` are the products of the columns [e, features] about their means with
        themselves, and of the terms with them. A term less what the first stage explains of it is
        q - psi `first` `slopes`. What a reward leaves comes last, so that it never hides what the
        dynamics leave.
        """
        terms, values = tested
        if not terms:
            return None
        centred, d_y = self._centred(np.hstack([self.e, self.features])), self.e.shape[1]
        products, second = values @ centred, centred.T @ centred
        phi, psi = (d_y + np.array(at, dtype=np.int64) for at in (self.phi, self.psi))
        size = np.sqrt(np.diag(second)[psi])
        psi, size = psi[size > 0], size[size > 0]
        inner = second[np.ix_(psi, psi)] / np.outer(size, size)
        first = np.linalg.lstsq(inner, second[np.ix_(psi, phi)] / size[:, None], rcond=ROUNDING)[0]
        first /= size[:, None]
        stage = first.T @ second[np.ix_(psi, psi)] @ first
        slopes = np.linalg.lstsq(stage, products[:, phi].T, rcond=ROUNDING)[0]
        own, with_stage = self._squares(values), (products[:, psi] @ first).T
        left = (
            own
            - 2 * np.sum(slopes * with_stage, axis=0)
            + np.sum(slopes * (stage @ slopes), axis=0)
        )
        sums = products[:, :d_y] - slopes.T @ (first.T @ second[psi, :d_y])
        share = sums**2 / np.maximum(np.outer(left, np.diag(second)[:d_y]), TINY)
        share[left <= ROUNDING * own] = 0.0
        places = np.argwhere(share >= max(MATTERS, FEWEST_SQUARES / len(centred))).tolist()
        for q, j in sorted(
            places, key=lambda at: (self.outputs[at[1]] == self.reward, -share[at[0], at[1]])
        ):
            rest = self._centred(values[q][:, None].copy())[:, 0] - centred[:, psi] @ (
                first @ slopes[:, q]
            )
            p_value = share.size * self._p_value(rest * centred[:, j])
            if p_value < LEVEL:
                return Omitted(terms[q], self.outputs[j], float(share[q, j]), p_value)
        return None

    def rows(self, at: Ints) -> _FitResiduals:
        """Return some of the rows, with clusters and steps numbered anew."""
        clusters = tuple(_numbered(codes[at]) for codes in self.clusters)
        step = None if self.step is None else _numbered(self.step[at])
        return replace(self, e=self.e[at], features=self.features[at], clusters=clusters, step=step)

    @property
    def _by_step(self) -> bool:
        """Whether means are those of each step: where many rows share it."""
        return self.step is not None and len(self.step) >= ROWS_PER_STEP * (self.step.max() + 1)

    def _centred(self, columns: Floats) -> Floats:
        """Subtract their means from columns (n, d), in place."""
        if self.step is None or not self._by_step:
            means = columns.mean(axis=0, keepdims=True)
        else:
            sums = np.column_stack([np.bincount(self.step, weights=column) for column in columns.T])
            means = (sums / np.bincount(self.step)[:, None])[self.step]
        columns -= means
        return columns

    def _squares(self, values: Floats) -> Floats:
        """Return the sum of squares about its mean of each row of values (c, n)."""
        squares: Floats = np.einsum("qi,qi->q", values, values)
        if self.step is None or not self._by_step:
            squares -= values.shape[1] * values.mean(axis=1) ** 2
        else:
            sums = np.array([np.bincount(self.step, weights=row) for row in values])
            squares -= np.sum(sums**2 / np.bincount(self.step), axis=1)
        return squares

    def _p_value(self, score: Floats) -> float:
        """Return the largest p-value of a mean of zero, by rows, by episodes and by clusters.

        (sum s)^2 / sum s^2 is below its normal quantiles for any symmetric s, however heavy its
        tails (Efron, 1969).
        """
        sums = [np.bincount(codes, weights=score) for codes in self.clusters]
        least = min(float(s.sum()) ** 2 / max(float(s @ s), TINY) for s in (score, *sums))
        return chi2_tail(least, 1)


def _numbered(codes: Ints) -> Ints:
    """Number codes from 0 on, without gaps."""
    return np.unique(codes, return_inverse=True)[1]


def omitted_terms(
    estimate: Estimate, moments: Moments, head: Batch, roles: Roles
) -> dict[str, str]:
    """Return what a fit with linear features leaves out, by its first rows.

    Each key is a sentence, its value the output whose equation the term is missing from.
    """
    design = moments.design
    if not design.linear_inputs or design.constant is None or roles.frequency:
        return {}  # without a constant, rows are what controls have left
    rows = _first(head)
    if len(rows) < max(FEWEST_ROWS, 10 * design.width) or not estimate.identified:
        return {}
    residuals = _residuals(estimate, moments, rows, roles)
    if residuals is None:
        return {}
    doubts = {}
    bent = residuals.missed(product_terms(rows, roles))
    lasting = _lasting_term(residuals, rows, roles)
    # what a reward bends lasts as the states do
    if lasting is not None and not (
        bent is not None and lasting.output == bent.output == roles.reward
    ):
        doubts[_lasting(lasting, roles)] = lasting.output
    if bent is not None:
        doubts[_too_simple(bent, roles)] = bent.output
    elif roles.derived and (uneven := _uneven(residuals, rows, roles)) is not None:
        doubts[_changing_noise(uneven, roles)] = uneven.output
    return doubts


def _first(head: Batch) -> Batch:
    """Return some rows, those of weight zero left out."""
    if head.weight is not None and not head.weight.all():
        head = head.chosen(np.flatnonzero(head.weight))
    return spread(head, MOST_ROWS)


def _residuals(
    estimate: Estimate, moments: Moments, rows: Batch, roles: Roles
) -> _FitResiduals | None:
    """Return the residuals of a fit; None where their clusters are too few to judge by."""
    design = moments.design
    V = design.rows(rows)
    varying, R = design.varying.tolist(), estimate.residual_map
    e = V @ R[:, varying].T + np.delete(R, varying, axis=1).sum(axis=1)
    e[:, [i for i, name in enumerate(design.outputs) if name in estimate.exact]] = 0.0
    if rows.weight is not None:
        e = e * (rows.weight / rows.weight.mean())[:, None]
    episode, step = (None if roles.episode is None else v for v in (rows.episode, rows.step))
    place = {column: at for at, column in enumerate(varying)}
    residuals = _FitResiduals(
        e=e,
        outputs=design.outputs,
        features=V[:, : -len(design.outputs)],
        phi=[place[column] for column in design.phi_columns if column in place],
        psi=[place[column] for column in design.psi_columns if column in place],
        clusters=(),
        step=None if step is None else _numbered(step),
        reward=roles.reward,
    )
    clusters = [] if episode is None else [_stretches(episode)]
    for codes in rows.clusters:
        numbers = _numbered(codes)
        if (
            residuals.step is None
            or not np.array_equal(numbers, residuals.step)
            or not residuals._by_step
        ):
            clusters.append(numbers)
    if any(codes.max() + 1 < FEWEST_CLUSTERS for codes in clusters):
        return None
    return replace(residuals, clusters=tuple(clusters))


def _stretches(episode: Ints) -> Ints:
    """Number the episodes of rows or, where they are few and long, stretches of them."""
    codes = _numbered(episode)
    if codes.max() + 1 >= FEWEST_CLUSTERS or (np.diff(episode) < 0).any():
        return codes
    within = np.arange(len(codes)) - np.searchsorted(codes, codes)
    stretches = codes * (len(codes) // BLOCK_ROWS + 1) + within // BLOCK_ROWS
    return _numbered(stretches)


def _lasting_term(residuals: _FitResiduals, rows: Batch, roles: Roles) -> Omitted | None:
    """Return the term of earlier rows that surely predicts a residual, or None.

    Candidates are states and instruments; if next states are derived, also noise and actions.
    """
    before = _rows_before(rows)
    if len(before) < FEWEST_ROWS:
        return None
    x, columns = cut(rows.x), [cut(rows.z)]
    terms = [Term((name,), "before") for name in (*roles.state, *roles.instrument)]
    if roles.derived:  # given the state, nothing of one step tells the noise of the next
        noise = cut(residuals.e)
        columns += [cut(rows.a), noise]
        terms += [Term((name,), "before") for name in roles.action]
        terms += [Term((name,), "noise") for name in residuals.outputs]
        if len(rows) - len(before) >= FEWEST_CLUSTERS:  # few long sums hardly change
            columns += _sums_so_far(noise, x, before)
            terms += [Term((name,), "level") for name in residuals.outputs]
            terms += [Term((name,), "mean") for name in roles.state]
    values = np.vstack([x, *columns])[:, before]
    return residuals.rows(before + 1).missed((terms, values))


def _sums_so_far(noise: Floats, x: Floats, before: Ints) -> list[Floats]:
    """Return the sum of noise so far, scaled to equal variance, and the mean of states so far."""
    begins = np.ones(x.shape[1], dtype=bool)
    begins[before + 1] = False
    first = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    count = np.arange(1.0, len(first) + 1) - first
    parts = []
    for values, size in ((noise, np.sqrt(count)), (x, count)):
        sums = np.cumsum(values, axis=1)
        parts.append((sums - (sums - values)[:, first]) / size)
    return parts


def _rows_before(rows: Batch) -> Ints:
    """Return the rows whose next row is the next step of the same episode."""
    if rows.episode is None or rows.step is None:
        return np.empty(0, dtype=np.int64)
    steps = np.asarray(rows.step, dtype=np.float64)
    same = (rows.episode[1:] == rows.episode[:-1]) & (np.diff(steps) == 1)
    return np.flatnonzero(same)


def _uneven(residuals: _FitResiduals, rows: Batch, roles: Roles) -> Omitted | None:
    """Return an instrument that changes a residual's spread, which shows that the action does.

    Levels of categories, and outputs of two values, have the spread that goes with their mean.
    """
    squares = residuals.e**2
    values = squares - squares.mean(axis=0)
    coded = {name for category in roles.categories for name in category.names}
    for j, output in enumerate(residuals.outputs):
        if output.removeprefix("next_") in coded or len(np.unique(rows.y[:, j])) == 2:
            values[:, j] = 0.0
    x = cut(rows.x).T
    all_of_x = list(range(x.shape[1]))
    # W's error is small
    spread = replace(residuals, e=values, features=x, phi=all_of_x, psi=all_of_x)
    return spread.missed(([Term((name,), "spread") for name in roles.instrument], cut(rows.z)))


def _too_simple(one: Omitted, roles: Roles) -> str:
    """Return a warning about what linear features miss, and which features would not."""
    columns, actions = one.term.columns, _acted(roles)
    finding = {
        "varies": f"what {actions} does to {one.output} changes with {columns[0]}",
        "turns": f"what {actions} does to {one.output} changes with {columns[0]}, up and down",
        **dict.fromkeys(
            ("joint", "levels"),
            f"what {columns[0]} does to {one.output} changes with {columns[-1]}",
        ),
        "bends": f"{one.output} does not change in proportion to {columns[0]}",
        "dose": f"{one.output} does not change in proportion to {actions}",
        "together": f"{columns[0]} and {columns[-1]} work together on {one.output}",
    }[one.term.means]
    coded = {name for category in roles.categories for name in category.names}
    word = "linear:cross" if one.term.means != "levels" and coded & set(columns) else "auto"
    word = "poly2:cross" if one.term.means == "joint" else word  # the squares of 0 and 1 are no use
    remedy = f"fit with --features {word} (phi={word!r})"
    if roles.formula:
        remedy = f"add {_formula_term(one.term, roles)} to the formula"
    return (
        f"linear features are too simple: {finding} ({p_words(one.p_value)}); plans and values of "
        f"this fit may be far off: {remedy}"
    )


def _formula_term(term: Term, roles: Roles) -> str:
    """Write what is missing as a term of a formula."""
    first, action, instrument = term.columns[0], roles.action[0], roles.instrument[0]
    return {
        "varies": f"{first}:{action} (with the instrument {first}:{term.columns[-1]})",
        "turns": f"I({first}**2):{action} (with the instrument I({first}**2):{term.columns[-1]})",
        **dict.fromkeys(
            ("joint", "levels"),
            f"{':'.join(term.columns)} (with the instrument {':'.join(roles.instrument[:2])})",
        ),
        "bends": f"I({first}**2)",
        "dose": f"I({action}**2) (with the instrument I({instrument}**2))",
        "together": ":".join(term.columns),
    }[term.means]


def _acted(roles: Roles) -> str:
    """Name the actions; those of a category by its column."""
    column = {name: one.column for one in roles.categories for name in one.names}
    return " and ".join(dict.fromkeys(column.get(name, name) for name in roles.action))


def _changing_noise(one: Omitted, roles: Roles) -> str:
    """Return a warning that the action changes the noise, which the model takes for constant."""
    return (
        f"{_acted(roles)} changes the spread of {one.output} and not only its mean: the spread "
        f"depends on {one.term.columns[0]} ({p_words(one.p_value)}); the model assumes a constant "
        "spread, so plans and values that depend on it (quadratic costs, thresholds) may be off"
    )


def _lasting(one: Omitted, roles: Roles) -> str:
    """Return a warning that earlier rows still matter, and what to do.

    Lags come first, unless all earlier rows explain more than the last one. Differences are wrong
    with a delayed effect, and do not show it; lags leave the bias of a level.
    """
    name, episode, output = one.term.columns[0], roles.episode, one.output
    finding = {
        "before": f"{output} depends on {name} of the row before, given this row",
        "noise": f"the noise of {name} lasts: in one row it predicts that of {output} in the next",
        "level": f"the noise of {name} lasts: in all earlier rows it predicts that of {output}",
        "mean": f"{output} depends on the mean of {name} in earlier rows, given this row",
    }[one.term.means]
    count = int((*dict(roles.asked).get("lags", ()), "0")[0]) + 1
    lags = f"with --lags {count} (lags={count})"
    level = (
        "with --difference (difference=True) or --absorb "
        f"{episode} --half-panel (absorb={episode!r}, half_panel=True)"
    )
    remedy = f"fit {lags} or, if episodes differ permanently, {level}"
    if one.term.means in ("level", "mean"):
        remedy = f"this looks like a unit effect of each episode: fit {level}; otherwise {lags}"
    return (
        f"{finding} ({p_words(one.p_value)}): something lasts that the states do not capture, such "
        "as a delayed effect, a persistent confounder or a unit effect; the coefficients of the "
        "states are biased, and so are those of actions whose instrument is persistent; "
        f"{remedy}; `ivvi check` shows which it is"
    )
