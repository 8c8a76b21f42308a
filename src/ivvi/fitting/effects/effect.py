"""`effect`: what an action does, and how that changes with a state.

The effect at a state x is [h(x, high) - h(x, low)] / (high - low), a combination m(x)' w of the
weights, so that its variance is m' cov(w) m. Bands for a single point, and for all points at once
by the largest |t| over them (draws of a normal law with the estimate's covariance, Student's where
clusters are counted).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ivvi._io.arrays import Floats
from ivvi._io.plotting import check_figure, new_figure, save_figure
from ivvi._io.result import Records, TableResult
from ivvi.diagnostics.tails_and_quantiles import check_level, two_sided
from ivvi.errors import LARGEST, InputError, nearest
from ivvi.estimators import Estimate
from ivvi.fitting.inference_tables import NO_MOMENTS, student_widths
from ivvi.logs import Roles, Sample

if TYPE_CHECKING:
    from ivvi.fitting.fit import Fit

DRAWS = 2000
FEW_VALUES = 10
"""With at most this many distinct values of a state, the effect is shown at each of them."""
CAVEAT = "the bands take the features as given and do not account for their choice by the data"


@dataclass(frozen=True, slots=True)
class Group:
    """A group of the log's states, and the share of them with a positive effect.

    `low` and `high` bound the share at the level of the bands. `low` counts the states whose band
    for all states together lies above zero. `high` counts all states except those whose band lies
    below zero.
    """

    name: str
    share: float
    low: float
    high: float
    average: float
    se: float


@dataclass(frozen=True, slots=True, repr=False)
class Effect(TableResult):
    """The effect of an action on an output along a state, with bands; arrays are (points,).

    Attributes
    ----------
    action, over, output
        What is moved, along what, and what it changes.
    x, estimate, se
        Where, the effect of one unit of the action there, and its standard error.
    low, high
        The band for each point alone.
    lower, upper
        The band for all points at once.
    level
        Probability of either band.
    groups
        All of the log's states, and thirds of them along the state.
    caveat
        What the bands leave out.
    """

    action: str
    over: str
    output: str
    x: Floats
    estimate: Floats
    se: Floats
    low: Floats
    high: Floats
    lower: Floats
    upper: Floats
    level: float
    groups: tuple[Group, ...]
    caveat: str = ""

    def records(self) -> Records:
        """Return the effect and its bands, one row per point."""
        names = ("x", "estimate", "se", "low", "high", "lower", "upper")
        columns = (getattr(self, name).tolist() for name in names)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def summary(self) -> str:
        """Return the effect at a few points, and for whom it is positive, as text."""
        lines = [
            f"effect of one unit of {self.action} on {self.output} along {self.over}",
            *([f"WARNING {self.caveat}"] if self.caveat else []),
            f"{self.over:>12} {'effect':>10} {'std.err.':>10}   "
            f"{100 * self.level:g}% each point       all points",
        ]
        points = np.unique(np.linspace(0, len(self.x) - 1, min(len(self.x), 9)).round().astype(int))
        lines += [
            f"{self.x[i]:>12.4g} {self.estimate[i]:>10.4g} {self.se[i]:>10.3g}   "
            f"[{self.low[i]:.4g}, {self.high[i]:.4g}]   [{self.lower[i]:.4g}, {self.upper[i]:.4g}]"
            for i in points
        ]
        lines += ["", "positive effects: share of the log's states, interval, average effect"]
        return "\n".join([*lines, *(group_line(group) for group in self.groups)])

    def to_json(self) -> dict[str, Any]:
        """Describe the effect with JSON values."""
        names = ("x", "estimate", "se", "low", "high", "lower", "upper")
        fields = ("name", "share", "low", "high", "average", "se")
        return {
            **{name: getattr(self, name) for name in ("action", "over", "output", "level")},
            **{name: getattr(self, name).tolist() for name in names},
            "groups": [{f: getattr(group, f) for f in fields} for group in self.groups],
            "caveat": self.caveat or None,
        }

    def plot(self, path: str | os.PathLike[str] | None = None, *, force: bool = False) -> Any:
        """Draw the effect with both bands; with `path`, save it (SVG, PNG or PDF)."""
        check_figure(path, force=force)
        figure = new_figure(6, 4)
        self.draw(figure.add_subplot())
        if path is not None:
            save_figure(figure, path, force=force)
        return figure

    def draw(self, axes: Any) -> None:
        """Draw the effect into existing axes."""
        level = f"{100 * self.level:g}%"
        if len(self.x) <= FEW_VALUES:
            wide, thin = (self.estimate - self.lower), (self.estimate - self.low)
            axes.errorbar(self.x, self.estimate, wide, fmt="none", alpha=0.4, label=f"{level}, all")
            axes.errorbar(self.x, self.estimate, thin, fmt="o", label=f"{level}, each")
        else:
            whole = {"alpha": 0.15, "lw": 0, "label": f"{level}, the whole curve"}
            each = {"alpha": 0.3, "lw": 0, "label": f"{level}, each point"}
            axes.fill_between(self.x, self.lower, self.upper, **whole)
            axes.fill_between(self.x, self.low, self.high, color="C0", **each)
            axes.plot(self.x, self.estimate, color="C0", label="effect")
        axes.axhline(0, color="black", lw=0.6)
        axes.set(xlabel=self.over, ylabel=f"effect of {self.action} on {self.output}")
        axes.legend(frameon=False, fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)


def group_line(group: Group) -> str:
    """Return one line of text about a group of states."""
    return (
        f"  {group.name:<28} {group.share:>6.1%} [{group.low:.1%}, {group.high:.1%}]   "
        f"{group.average:.4g} ({group.se:.2g})"
    )


def effect(  # noqa: PLR0913
    fit: Fit | str | os.PathLike[str],
    action: str,
    over: str | None = None,
    *,
    output: str | None = None,
    at: Mapping[str, float | str] | None = None,
    between: tuple[float, float] | None = None,
    span: tuple[float, float] | None = None,
    points: int = 101,
    level: float = 0.95,
    seed: int = 0,
) -> Effect:
    """Return the effect of an action along a state, with bands, and for whom it is positive.

    Parameters
    ----------
    fit
        A fit, or the folder of a saved one.
    action
        The action; its effect is that of one unit. For a category with two levels, its column; for
        one with more, the level to compare with the reference, ``drug[B]``.
    over
        A state, by default the first; or the action itself, along which a bent one changes.
    output
        By default the reward where it is learned, else the next value of `over`, or the first.
    at
        Values of the other states, categories by the names of their levels; medians otherwise.
    between
        Two values of the action whose difference is taken: by default half a standard deviation
        about the mean, 0 and 1 for a binary action.
    span, points
        Range of `over`, 2.5% to 97.5% of the log's by default, and the number of points.
    level, seed
        Probability of the bands, and the seed of their draws.
    """
    from ivvi.fitting.saved_fit import as_fit

    check_level(level)
    loaded = as_fit(fit)
    if loaded.inference is None:
        raise InputError(f"an effect needs the covariance of the weights: {NO_MOMENTS}")
    if loaded.sample is None or not loaded.estimate.bread.size:
        raise InputError(
            "an effect needs rows of the log and the covariance of the weights, which this fit "
            "does not hold; fit it from a log"
        )
    contrast = Contrast.of(loaded.roles, loaded.sample, action, over, between)
    row = loaded.estimate.design.output(output or contrast.usual_output(loaded.roles))
    x, combinations = contrast.along(
        loaded.estimate, _in_numbers(at or {}, loaded.roles), span, points
    )
    bands = _bands(loaded.estimate, row, combinations, level, seed)
    value, se = combinations @ loaded.estimate.W[row], bands[0]
    return Effect(
        *(contrast.action, contrast.over, loaded.roles.outputs[row], x, value, se),
        *(value - bands[1] * se, value + bands[1] * se),
        *(value - bands[2] * se, value + bands[2] * se),
        level,
        groups_of_states(loaded.estimate, row, contrast, level, seed),
        _caveat(loaded, contrast, flat=bool(np.ptp(combinations, axis=0).max(initial=0.0) == 0)),
    )


def _caveat(fit: Fit, contrast: Contrast, *, flat: bool) -> str:
    """Return what the bands do not cover: doubts about the fit, weak instruments, chosen features.

    `flat` is whether the features make the effect the same at all points.
    """
    verdict = None if fit.inference is None else fit.diagnostics.verdict
    parts = list(fit.doubts)
    if verdict is not None and verdict.word not in ("", "strong") and fit.uses_instruments:
        parts.append(f"these bands are Wald's, and {verdict.sentence}")
    if flat and fit.choice is None:
        parts.append(_same_everywhere(fit.roles, contrast))
    if fit.choice is not None and not fit.choice.is_linear:
        parts.append(CAVEAT)
    return "; ".join(parts)


def _same_everywhere(roles: Roles, contrast: Contrast) -> str:
    """Return a warning that these features keep the effect constant, and how to let it vary."""
    action, over = contrast.action, contrast.over
    remedy = "fit with --features auto (phi='auto')"
    if roles.formula:
        term = f"I({action}**2)" if over == action else f"{over}:{action}"
        remedy = f"add {term} to the formula, with an instrument for it"
    return (
        f"the features of this fit make the effect of {action} the same for every {over}, so the "
        f"log was not asked whether it changes: {remedy}"
    )


def _indicator(name: str, roles: Roles) -> str:
    """Return the column of 0 and 1 that stands for a category of two levels, or the name."""
    for category in roles.categories:
        if category.column == name and len(category.names) > 1:
            raise InputError(
                f"{name!r} has the levels {', '.join(category.levels)}; name the one to "
                f"compare with {category.levels[0]!r}, such as {category.names[0]!r}"
            )
        if category.column == name:
            return category.names[0]
    return name


def _in_numbers(at: Mapping[str, float | str], roles: Roles) -> dict[str, float]:
    """Return the fixed values as numbers, with levels of categories as 0 and 1."""
    coded = {category.column: category for category in roles.categories}
    numbers: dict[str, float] = {}
    for name, value in at.items():
        if name in coded and not (coded[name].boolean and not isinstance(value, str)):
            indicators = coded[name].encode([value], "at (--at)")[0].tolist()
            numbers |= dict(zip(coded[name].names, indicators, strict=True))
            continue
        try:
            numbers[name] = float(value)
        except ValueError as error:
            raise InputError(f"{name} is held at {value!r}; expected a number") from error
        if not abs(numbers[name]) <= LARGEST:
            raise InputError(f"{name} is held at {value}; expected a number up to {LARGEST:g}")
    return numbers


@dataclass(frozen=True, slots=True)
class Contrast:
    """An action moved between two values, `ends`, and the variable its effect changes with."""

    roles: Roles
    sample: Sample
    action: str
    over: str
    ends: tuple[float, float]

    @classmethod
    def of(
        cls,
        roles: Roles,
        sample: Sample,
        action: str,
        over: str | None = None,
        between: tuple[float, float] | None = None,
    ) -> Contrast:
        """Look the names up."""
        action = _indicator(action, roles)
        over = None if over is None else _indicator(over, roles)
        if action not in roles.action:
            raise InputError(f"there is no action {action!r}{nearest(action, roles.action)}")
        names = (*roles.state, action)
        if over is not None and over not in names:
            raise InputError(f"there is no state {over!r}{nearest(over, names)}")
        column = sample.a[:, roles.action.index(action)]
        middle, half = float(column.mean()), float(column.std()) / 2 or 0.5
        ends = between or (middle - half, middle + half)
        if set(np.unique(column).tolist()) <= {0.0, 1.0} and between is None:
            ends = (0.0, 1.0)
        if not (np.abs(ends) <= LARGEST).all() or ends[0] == ends[1]:
            raise InputError(
                f"the action is compared at {ends[0]:g} and {ends[1]:g}; expected two different "
                f"numbers, up to {LARGEST:g}"
            )
        return cls(roles, sample, action, over or names[0], ends)

    def usual_output(self, roles: Roles) -> str:
        """The output that is used if none is named."""
        outputs = roles.outputs
        if roles.reward is not None:
            return outputs[-1]
        return f"next_{self.over}" if f"next_{self.over}" in outputs else outputs[0]

    def along(
        self,
        estimate: Estimate,
        at: dict[str, float],
        span: tuple[float, float] | None,
        points: int,
    ) -> tuple[Floats, Floats]:
        """Return where the effect is asked for (points,), and its combinations (points, d_phi)."""
        state, action = self.roles.state, self.roles.action
        for name in at:
            if name not in (*state, *action) or name == self.over:
                raise InputError(f"{name!r} is not another state or action that can be held fixed")
        x, a = self.sample.x, self.sample.a
        own = x[:, state.index(self.over)] if self.over in state else a[:, action.index(self.over)]
        values = np.unique(own)
        if len(values) > FEW_VALUES or span is not None:
            low, high = span or np.quantile(own, (0.025, 0.975))
            values = np.linspace(low, high, points)
        rows = [at.get(n, float(np.median(x[:, j]))) for j, n in enumerate(state)]
        acted = [at.get(n, float(a[:, j].mean())) for j, n in enumerate(action)]
        states, doses = np.tile(rows, (len(values), 1)), np.tile(acted, (len(values), 1))
        if self.over in state:
            states[:, state.index(self.over)] = values
            return values, self.combinations(estimate, states, doses)
        column = action.index(self.over)
        half = float(a[:, column].std()) / 10 or 0.05
        low_a, high_a = doses.copy(), doses.copy()
        low_a[:, column], high_a[:, column] = values - half, values + half
        phi = estimate.design.phi
        return values, (phi(states, high_a) - phi(states, low_a)) / (2 * half)

    def combinations(self, estimate: Estimate, x: Floats, a: Floats) -> Floats:
        """The effect at states (n, d_x), other actions as they are (n, d_a): m (n, d_phi)."""
        column, phi = self.roles.action.index(self.action), estimate.design.phi
        low, high = a.copy(), a.copy()
        low[:, column], high[:, column] = self.ends
        moved: Floats = (phi(x, high) - phi(x, low)) / (self.ends[1] - self.ends[0])
        return moved


def groups_of_states(
    estimate: Estimate, row: int, contrast: Contrast, level: float = 0.95, seed: int = 0
) -> tuple[Group, ...]:
    """Return the share of the log's states with a positive effect: of all, and of thirds."""
    sample = contrast.sample
    combinations = contrast.combinations(estimate, sample.x, sample.a)
    se, _, critical = _bands(estimate, row, combinations, level, seed)
    value = combinations @ estimate.W[row]
    masks = [("all states", np.ones(len(value), dtype=bool))]
    if contrast.over in contrast.roles.state:
        own = sample.x[:, contrast.roles.state.index(contrast.over)]
        first, second = np.quantile(own, (1 / 3, 2 / 3))
        if len(np.unique(own)) > FEW_VALUES:
            masks += [
                (f"{contrast.over} below {first:.3g}", own < first),
                (f"{contrast.over} {first:.3g} to {second:.3g}", (own >= first) & (own < second)),
                (f"{contrast.over} from {second:.3g} on", own >= second),
            ]
        else:
            masks += [(f"{contrast.over} = {v:g}", own == v) for v in np.unique(own)]
    covariance = estimate.W_cov.blocks[row]
    groups = []
    for name, inside in masks:
        if not inside.any():  # of many equal values, a third may hold none
            continue
        mean = combinations[inside].mean(axis=0)
        groups.append(
            Group(
                name,
                float((value[inside] > 0).mean()),
                float((value - critical * se > 0)[inside].mean()),
                float((value + critical * se > 0)[inside].mean()),
                float(mean @ estimate.W[row]),
                float(np.sqrt(max(mean @ covariance @ mean, 0.0))),
            )
        )
    return tuple(groups)


def _freedom(estimate: Estimate, row: int, combinations: Floats) -> float | None:
    """Return the fewest degrees of freedom of the weights used; None for the normal law."""
    own, used = estimate.W_cov.freedom, combinations.any(axis=0)
    return estimate.freedom if own is None or not used.any() else float(own[row, used].min())


def _bands(
    estimate: Estimate, row: int, combinations: Floats, level: float, seed: int
) -> tuple[Floats, float, float]:
    """Return standard errors (n,), and how many of them each band reaches: for a point, for all."""
    block = estimate.W_cov.blocks[row]
    if not block.size or not np.isfinite(block).all():
        raise InputError(
            "this fit has no standard errors, so an effect has no bands; use the method exact"
        )
    values, vectors = np.linalg.eigh(block)
    paths = combinations @ (vectors * np.sqrt(np.maximum(values, 0.0)))
    se = np.sqrt(np.sum(paths**2, axis=1))
    freedom = _freedom(estimate, row, combinations)
    each = two_sided(None, level)
    if freedom is not None:
        each = float(student_widths(np.array([freedom]), level)[0])
    moving = se > 0
    if not moving.any():
        return se, each, each
    rng = np.random.default_rng(seed)
    draws = rng.standard_normal((paths.shape[1], DRAWS))
    if freedom is not None:
        draws /= np.sqrt(rng.chisquare(freedom, DRAWS) / freedom)
    largest = np.abs((paths[moving] / se[moving, None]) @ draws).max(axis=0)
    return se, each, max(each, float(np.quantile(largest, level)))
