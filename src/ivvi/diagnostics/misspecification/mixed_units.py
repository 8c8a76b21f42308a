"""Does one column hold values in two units: grams beside milligrams, Fahrenheit beside Celsius?

The values then fall into two clumps, one of which is the other times a constant. For each usual
constant, what most values predict of the others is compared with these: few values may lie between
the clumps, and converted back, the fewer ones must have the location, the spread and the law of the
rest, up to the errors of as many independent values as there are episodes among them. A heavy tail
leaves no space between clumps, and two groups of people differ in spread as they do not in units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.logs import Batch, Roles

FACTORS = {10.0: "", 100.0: "", 1000.0: "", 1e6: ""} | {
    2.2046: "pounds and kilograms",
}
"""Constants by which one unit is another, and which these may be."""
CONVERSIONS = [(factor, 0.0, words) for factor, words in FACTORS.items()]
CONVERSIONS += [(1.8, 32.0, "Celsius and Fahrenheit"), (1.0, 273.15, "Celsius and Kelvin")]
FEWEST, FEWEST_ROWS = 10, 200
"""Values in the second unit, and episodes among these; values in all."""
FEWEST_VALUES = 20
"""Distinct values of each clump, on average."""
WHOLE = 0.2
"""Distinct values per row below which whole numbers are codes or counts."""
BEYOND, NORMAL_90 = 4.0, 1.2816
"""Standard deviations, by the 10% and the 90% quantile, within which the values of a clump lie."""
APART = 0.15
"""Least distance between the clumps, as a share of where it begins."""
BETWEEN = 0.25
"""Values that may lie between the clumps, as a share of the smaller."""
GAPS = 2
"""Widest gaps at which the values are cut, of the values and of their logarithms."""
WINDOWS = 50
"""Parts of the values of which the sparsest is a place to cut."""
FAR = 4.5
"""Robust standard deviations from the median at which they are cut, too."""
ERRORS = 2.5
"""Standard errors between locations, and logarithms of spreads, of alike clumps."""
MOST_APART, MOST_SPREAD = 0.05, 0.25
"""Most that the first may differ by, as a share of the mean (where the constant is a factor), and
the second."""
RARE, RARER = 0.05, 3.0
"""Share of values in the second unit below which they may differ by so many times as much: few are
a slip of the pen rather than a group of people, and tell less of their law."""
LAW = 1.63
"""Critical value of Kolmogorov's and Smirnov's statistic, for p = 0.01."""
BEYOND_ALL = 5.0
"""Minus the logarithm of the chance that so many of one sample lie beyond all of the other."""
MOST_ROWS, MOST = 2048, 3
"""Most rows that are looked at, and columns that are named."""


LEAST_RANGE = 16.0
"""Range of a column below which none of its values is another temperature scale's."""
SKEWNESS, KURTOSIS = 0.15, 0.3
"""Columns whose third and fourth moments are as near to a Gaussian's are not looked at: two clumps,
or two spreads, move one of them further."""


@dataclass(frozen=True, slots=True)
class MixedUnits:
    """A column in two units: the fewer values are `factor` times the others plus `shift`.

    Where `inverse`, the others are that of the fewer.
    """

    column: str
    share: float
    low: float
    high: float
    factor: float
    shift: float
    words: str
    inverse: bool

    @property
    def warning(self) -> str:
        """What was found, and what to do."""
        constant = f"{'divided by' if self.inverse else 'times'} {self.factor:g}"
        if self.shift:
            constant = f"converted between {self.words}"
        named = f" ({self.words}, perhaps)" if self.words and not self.shift else ""
        return (
            f"{self.column} seems to mix two units: {self.share:.1%} of its values, from "
            f"{self.low:.4g} to {self.high:.4g}, look like the others {constant}{named}; "
            "convert them in the table"
        )


def mixed_units(head: Batch, roles: Roles) -> list[str]:
    """Return a warning for each of a few columns that seem to be in two units."""
    rows = head.thinned(MOST_ROWS)
    coded = {name for category in roles.categories for name in category.names}
    columns = dict(zip(roles.state, rows.x.T, strict=True))
    columns |= dict(zip(roles.action, rows.a.T, strict=True))
    columns |= dict(zip(roles.instrument, rows.z.T, strict=True))
    columns |= {n: y for n, y in zip(roles.outputs, rows.y.T, strict=True) if n not in columns}
    followed = {f"next_{name}" for name in columns}
    found: list[str] = []
    asked = [name for name in columns if not (name in coded or name in followed)]
    if not asked:
        return []
    shaped = _may_be_mixed(np.column_stack([columns[name] for name in asked]))
    for name in (name for name, differs in zip(asked, shaped, strict=True) if differs):
        values = columns[name]
        mixed = units_of(name, values, rows.episode)
        found += [mixed.warning] if mixed else []
        if len(found) == MOST:
            break
    return found


def _may_be_mixed(columns: Floats) -> np.ndarray:
    """Return which columns (n, k) need a closer look.

    Not those with the third and fourth moments of a Gaussian; nor those with values on both sides
    of zero, which factors leave where they are, in a range too small for two scales of temperature.
    """
    below = (columns < 0).mean(axis=0)
    narrow = np.ptp(columns, axis=0) < LEAST_RANGE
    centred = columns - columns.mean(axis=0)
    squares = centred**2
    variance = squares.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        skewness = (squares * centred).mean(axis=0) / variance**1.5
        kurtosis = (squares**2).mean(axis=0) / variance**2
    near = (np.abs(skewness) < SKEWNESS) & (np.abs(kurtosis - 3) < KURTOSIS)
    return np.asarray(~(near | (narrow & (below > RARE) & (below < 1 - RARE))))


def units_of(name: str, values: Floats, episode: np.ndarray | None = None) -> MixedUnits | None:
    """Return the two units that the values of a column (n,) are in, or None."""
    known = np.isfinite(values) & (values != 0)  # zero is zero in most units
    v = np.sort(values[known])
    if len(v) < FEWEST_ROWS or not _is_amount(v):
        return None

    def count(low: float, high: float) -> int:
        """Count the independent values between two numbers."""
        among = known & (values >= low) & (values <= high)
        return int(among.sum()) if episode is None else len(np.unique(episode[among]))

    for cut in _cuts(v):
        for above in (True, False):
            few, many = (v[cut:], v[:cut]) if above else (v[:cut], v[cut:])
            if FEWEST <= len(few) <= len(many):
                mixed = _conversion(name, v, count, many, above=above)
                if mixed is not None:
                    return mixed
    return None


def _is_amount(v: Floats) -> bool:
    """Whether sorted values vary as amounts do, and not as codes or counts."""
    different = 1 + int(np.count_nonzero(np.diff(v)))
    whole = bool((v == np.round(v)).all())
    return different >= 2 * FEWEST_VALUES and not (whole and different < WHOLE * len(v))


def _cuts(v: Floats) -> list[int]:
    """Return places at which sorted values may split into two clumps."""
    edge = slice(FEWEST - 1, len(v) - FEWEST)
    gaps = np.diff(v)[edge]
    size = np.log(np.maximum(v, 1e-3 * float(np.abs(v).mean())))
    ratios = np.diff(size)[edge]
    places = [FEWEST + int(at) for g in (gaps, ratios) for at in np.argpartition(g, -GAPS)[-GAPS:]]
    most = slice(len(v) // 20, len(v) - len(v) // 20)
    for values in (v[most], size[most]):  # where the fewest values are, if there is no gap
        wide = max(1, len(v) // WINDOWS)
        places.append(most.start + wide // 2 + int(np.argmax(values[wide:] - values[:-wide])))
    low, middle, high = (float(v[int(q * (len(v) - 1))]) for q in (0.25, 0.5, 0.75))
    far = FAR * (high - low) / 1.349
    places += [int(at) for at in np.searchsorted(v, (middle - far, middle + far))]
    return sorted(set(places))


def _conversion(
    name: str, v: Floats, count: Callable[[float, float], int], many: Floats, *, above: bool
) -> MixedUnits | None:
    """Return the conversion by which the values not among `many` look like these, or None."""
    low, middle, high = (float(many[int(q * (len(many) - 1))]) for q in (0.1, 0.5, 0.9))
    upper, lower = (high - middle) / NORMAL_90, (middle - low) / NORMAL_90
    for factor, shift, words in CONVERSIONS:
        scale, constant = (factor, shift) if above else (1 / factor, -shift / factor)
        if above:
            between = middle + BEYOND * upper, scale * low + constant
        else:
            between = scale * high + constant, middle - BEYOND * lower
        if between[1] - between[0] <= APART * abs(between[0]):
            continue
        first, last = np.searchsorted(v, between)
        few_at_most = len(v) - first if above else last
        if few_at_most < FEWEST or last - first > BETWEEN * few_at_most:
            continue
        near = np.clip([between[0], *v[first:last], between[1]], *between)
        at = first + int(np.argmax(np.diff(near)))  # in the widest gap between the two
        mine = slice(at, None) if above else slice(None, at)
        few = v[mine]
        if not FEWEST <= len(few) <= len(v) - FEWEST or last - first > BETWEEN * len(few):
            continue
        edge = ((v[at - 1] + v[at]) / 2 - constant) / scale
        rest = v[:at] if above else v[at:]
        rest = rest[rest > edge] if above else rest[rest < edge]
        back = (few - constant) / scale
        ends = float(few[0]), float(few[-1])
        if _alike(back, rest, count(*ends), abs(shift) / scale):
            share = len(few) / len(v)
            return MixedUnits(name, share, *ends, factor, shift, words, not above)
    return None


def _alike(few: Floats, many: Floats, count: int, shift: float) -> bool:
    """Whether two sorted samples, the first of so many independent values, are of one law."""
    if min(len(many) / 2, count, len(np.unique(few))) < FEWEST:
        return False
    sd, own = many.std(), few.std()
    if own == 0 or sd == 0:
        return False
    error = np.sqrt(1 / count + 1 / len(many))
    looser = RARER if len(few) < RARE * len(many) else 1.0
    apart, size = abs(few.mean() - many.mean()), max(abs(many.mean()), sd, shift)
    if apart > min(ERRORS * error * sd, looser * MOST_APART * size):
        return False
    if abs(np.log(own / sd)) > min(ERRORS * error, looser * MOST_SPREAD):
        return False
    beyond = np.count_nonzero((few < many[0]) | (few > many[-1]))
    if beyond > 1 + BEYOND_ALL / np.log1p(len(many) / len(few)):
        return False
    ranks = np.searchsorted(many, few, side="right") / len(many)
    steps = np.arange(1, len(few) + 1) / len(few)
    return bool(np.abs(ranks - steps).max() <= LAW * error + 1 / len(few))
