"""What only a sequence can show: is the instrument free of the past, and is W one W?

Each check is a score test: sums over blocks of episodes of a product that has mean zero
under the null, compared with their own spread over the blocks (`cluster_tests`). Where the
product involves the residual of the fit, the blocks' influence on W is taken into account.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ivvi._io.arrays import Floats
from ivvi.sequence.check_result import Check
from ivvi.sequence.cluster_tests import (
    BLOCKS_EACH,
    LargestContrast,
    cumulative,
    furthest_combination,
    t_values,
    zero_mean,
)
from ivvi.sequence.row_pair_moments import Scores

FEWEST_BLOCKS = 8
TOGETHER = 2.0
"""A combination is named if it is this many times further from zero than any score alone."""
NO_PAIRS = "no episode has two consecutive steps"
NamesByRole = dict[str, tuple[str, ...]]
"""Names of the states (x), actions (a), instruments (z), outputs (y), features (phi); episode."""


def balance(scores: Scores, names: NamesByRole, level: float) -> Check:
    """Is the instrument predicted by earlier states, actions and residuals?

    Of z_t and h = (x_t-1, a_t-1, e_t-1), given the state's features now and z_t-1. A
    global instrument is compared with the first state of each episode instead.
    """
    m, v = scores.moments, scores.moments.vector
    null = "given the state and its own last value, z does not depend on the past"
    advice = (
        "an instrument that depends on the past is valid only if the errors do not: check the "
        "serial dependence of residuals, add whatever determines z to the state, or use another z"
    )
    if all(m.still):
        null = "a global instrument does not depend on the state in which an episode starts"
        first = m.first.sum(axis=0)
        z, x = (_centred(part, first) for part in (v.z, v.x))
        sums = scores.products(m.first, z, x)
        earlier = [f"first {name}" for name in names["x"]]
        return _associated("balance on the start", sums, names["z"], earlier, null, advice, level)
    if not m.n_pairs:
        return without("balance on the past", level, NO_PAIRS)
    moving = [j for j, fixed in enumerate(m.still) if not fixed]
    controls = np.hstack([m.now(scores.state), m.before(v.z)])
    past = np.hstack([m.before(v.x), m.before(v.a), m.before(scores.e)])
    sums = scores.association(m.now(v.z[:, moving]), past, controls)
    earlier = [
        *(f"earlier {name}" for name in (*names["x"], *names["a"])),
        *(f"earlier residual of {name}" for name in names["y"]),
    ]
    moved = tuple(names["z"][j] for j in moving)
    return _associated("balance on the past", sums, moved, earlier, null, advice, level)


def placebo(scores: Scores, names: NamesByRole, level: float) -> Check:
    """Does the instrument move with a state that was there before it was drawn?

    The reduced form of x_t on z_t given phi and z of the step before.
    """
    m, v = scores.moments, scores.moments.vector
    name = "placebo: z against realised x"
    if all(m.still) or not m.n_pairs:
        why = "the instrument is the same in the step before" if m.n_pairs else NO_PAIRS
        return without(name, level, why)
    moving = [j for j, fixed in enumerate(m.still) if not fixed]
    controls = np.hstack([m.before(v.phi), m.before(v.z)])
    sums = scores.association(m.now(v.z[:, moving]), m.now(v.x), controls)
    null = "the instrument is unrelated to the state already reached, given the step before"
    advice = (
        "z cannot have moved a state that came before it: z is assigned by the state (then the "
        "state must stay in psi, with a rich enough shape), or it is confounded, or the state was "
        "recorded after the action of its row and is an outcome (next_state=, --next-state)"
    )
    states = [f"realised {x}" for x in names["x"]]
    moved = tuple(names["z"][j] for j in moving)
    return _associated(name, sums, moved, states, null, advice, level)


def serial_z(scores: Scores, names: NamesByRole, level: float) -> Check:
    """Is the instrument correlated with its own last value, given the state?"""
    m, v = scores.moments, scores.moments.vector
    name = "serial dependence of z"
    if all(m.still) or not m.n_pairs:
        why = "constant within episodes: dependence is total" if m.n_pairs else NO_PAIRS
        return without(name, level, why)
    z, lag = m.now(v.z), m.before(v.z)
    sums = _diagonal(scores.association(z, lag, m.now(scores.state)))
    null = "z is not correlated with its own last value, given the state"
    by = " and ".join(scores.clusters)
    advice = f"no harm to the estimate; cluster standard errors by {by}, as `fit` does"
    return _serial(name, sums, names["z"], null, advice, level)


def serial_residuals(scores: Scores, names: NamesByRole, level: float) -> Check:
    """Is the residual correlated with the one before it?

    W was estimated from the same rows, and phi_t depends on e_t-1 (Durbin's problem), so
    that the blocks' influence on W is added to their scores, times the slope of their total
    in W. Of its two terms, phi_t e_t-1 and phi_t-1 e_t, the second has mean zero under the
    null, and over few steps would only add noise to the variance: it is left out.
    """
    m, v = scores.moments, scores.moments.vector
    name = "serial dependence of residuals"
    if not m.n_pairs:
        return without(name, level, NO_PAIRS)
    e, lag = m.now(scores.e), m.before(scores.e)
    sums = _diagonal(scores.products(m.pairs, e, lag))
    slope = -(m.now(v.phi).T @ scores.total @ lag)
    sums = sums + np.einsum("jo,bjo->bo", slope, scores.bread @ scores.influence)
    null = "the residual is not correlated with the one before it"
    return _serial(name, sums, names["y"], null, lasting_advice(scores, names), level)


def lasting_advice(scores: Scores, names: NamesByRole) -> str:
    """Return advice about errors that last: those that fade, or differences between episodes."""
    if not scores.unit_effect:
        return (
            "persistent errors make the state itself confounded: add earlier states and actions to "
            "the state (lags=1 or --lags 1, then 2) until they are gone, and cluster standard "
            f"errors by {' and '.join(scores.clusters)}"
        )
    differ = "episodes seem to differ permanently (a unit effect: residuals do not fade"
    differ += " over the steps): "
    if all(scores.moments.still):
        return differ + (
            "add what distinguishes them to the state (--context), or find an instrument that "
            "changes within episodes, so that --difference can remove it"
        )
    return differ + (
        "remove it with --difference (difference=True), or with --absorb "
        f"{','.join(names['episode'])} --half-panel (absorb=, half_panel=True)"
    )


def stability(scores: Scores, names: NamesByRole, level: float, *, lasting: bool) -> list[Check]:
    """Is W the same early and late in an episode, in early and late episodes, all the time?

    Chow's comparison of halves in score form, one joint test of W for each output; and the
    CUSUM of the scores over the episodes in the order of the log. Where errors were found that
    are `lasting`, a difference between episodes is named before a change of W.
    """
    m = scores.moments
    half = len(m.all_rows) // 2
    later = m.all_rows.copy()
    later[:half] = 0.0
    advice = (
        "one W for all times is an average: fit the {} separately, add the time as a state, or "
        "leave out those that differ"
    )
    labels = [f"{feature} on {output}" for output in names["y"] for feature in names["phi"]]
    first = f"{lasting_advice(scores, names)}; else " if lasting and scores.unit_effect else ""
    checks = []
    for name, late, compared in (
        ("stability over steps", m.late, "early and late steps"),
        ("stability over episodes", later, "early and late episodes"),
    ):
        if late is later and m.episodes == 1:
            checks.append(without(name, level, "there is one episode"))
            continue
        drift = scores.drift(late)
        groups = {output: drift[:, i] for i, output in enumerate(names["y"])}
        null = f"W is the same in {compared}"
        if not late.any() or (late == m.all_rows).all():
            checks.append(without(name, level, f"there are no {compared}"))
            continue
        named = {o: [f"{f} on {o}" for f in names["phi"]] for o in names["y"]}
        checks.append(joint(name, groups, named, null, first + advice.format(compared), level))
    flat = np.swapaxes(scores.influence, 1, 2).reshape(len(m.all_rows), -1)
    null = "the sums of scores do not drift from the first episode to the last"
    test = cumulative(flat, labels, null)
    finding = "" if test is None else f"most for {test.where}"
    name = "stability over time (CUSUM)"
    checks.append(_check(name, test, finding, advice.format("stretches of time"), level))
    return checks


def calendar_stability(scores: Scores, names: NamesByRole, level: float) -> list[Check]:
    """Is W the same before and after each of some dates, whatever the order of the log?

    Chow's comparison at each cut of calendar time, for each output; and the CUSUM of the
    scores over the episodes (or blocks of them) in the order of their mean time.
    """
    m = scores.moments
    if m.calendar is None:
        return []
    column, words = m.calendar.column, m.calendar.words
    advice = f"W moves with {column}: fit the periods separately, add {column} as a state, or "
    advice += "leave out the periods that differ"
    labels = [f"{feature} on {output}" for output in names["y"] for feature in names["phi"]]
    drifts = np.stack(
        [scores.drift(after) for after in m.after], axis=1
    )  # (blocks, cuts, d_y, d_phi)
    groups = {
        f"{output} after {word}": drifts[:, i, j]
        for i, word in enumerate(words)
        for j, output in enumerate(names["y"])
    }
    null = f"W is the same before and after {', '.join(words)} of {column}"
    dated = {
        f"{output} after {word}": [f"{f} on {output} from {word} on" for f in names["phi"]]
        for word in words
        for output in names["y"]
    }
    chow = joint(f"stability over {column}", groups, dated, null, advice, level)
    name = f"stability over {column} (CUSUM)"
    if np.ptp(m.when) == 0:
        return [chow, without(name, level, f"all episodes have the same mean {column}")]
    order = np.argsort(m.when, kind="stable")
    flat = np.swapaxes(scores.influence, 1, 2).reshape(len(m.all_rows), -1)
    test = cumulative(flat[order], labels, f"the sums of scores do not drift along {column}")
    finding = "" if test is None else f"most for {test.where}"
    return [chow, _check(name, test, finding, advice, level)]


def _associated(
    name: str,
    sums: Floats,
    instruments: tuple[str, ...],
    earlier: list[str],
    null: str,
    advice: str,
    level: float,
) -> Check:
    if not earlier:
        return without(name, level, "the log has no state")
    blocks = len(sums)
    flat = sums.reshape(blocks, -1)
    groups = {"": flat}
    labels = {"": [f"{z} with {other}" for z in instruments for other in earlier]}
    if BLOCKS_EACH * flat.shape[1] > blocks:
        groups = {z: sums[:, i] for i, z in enumerate(instruments)}
        labels = {z: [f"{z} with {other}" for other in earlier] for z in instruments}
    return joint(name, groups, labels, null, advice, level)


def _serial(
    name: str, sums: Floats, names: tuple[str, ...], null: str, advice: str, level: float
) -> Check:
    return joint(name, {"": sums}, {"": list(names)}, null, advice, level)


def _check(
    name: str, test: LargestContrast | None, finding: str, advice: str, level: float
) -> Check:
    if test is None:
        return without(name, level, "nothing that could be compared varies")
    return Check(name, test, level, finding, advice)


def joint(
    name: str,
    groups: dict[str, Floats],
    labels: dict[str, list[str]],
    null: str,
    advice: str,
    level: float,
) -> Check:
    """Test that all scores have mean zero, and name the most telling one of a check that fails."""
    test = zero_mean(groups, null)
    finding = "" if test is None else _largest(groups[test.where], labels[test.where])
    return _check(name, test, finding, advice, level)


def _largest(flat: Floats, labels: list[str]) -> str:
    """Name the score (blocks, d) that is furthest from zero or, where none alone is far, two.

    Scores that go together, and should differ more than they do, fail a joint test between
    them: the combination that is furthest, in units of their own, has its two largest named.
    """
    t = t_values(flat)
    at = int(np.argmax(np.abs(t)))
    alone = f"most for {labels[at]} (t = {t[at]:+.1f})"
    weights, furthest = furthest_combination(flat)
    if furthest <= TOGETHER * abs(t[at]) or len(labels) == 1:
        return alone
    first, second = np.argsort(-np.abs(weights), kind="stable")[:2]
    sign = "less" if weights[first] * weights[second] < 0 else "and"
    return (
        f"most for {labels[first]} {sign} {labels[second]}, in combination (t = {furthest:.1f}); "
        f"alone, {alone}"
    )


def without(name: str, level: float, reason: str) -> Check:
    """Return a check that was not made, and why."""
    return Check(name, None, level, reason=reason)


def _centred(part: Floats, sums: Floats) -> Floats:
    """Subtract from a map its mean over the rows of `sums`."""
    centred = part.copy()
    centred[0] -= (sums[0] @ part) / sums[0, 0]
    return centred


def _diagonal(products: Floats) -> Floats:
    diagonal: Floats = np.einsum("bii->bi", products)
    return diagonal


CHECKS: tuple[Callable[[Scores, NamesByRole, float], Check], ...] = (
    balance,
    placebo,
    serial_z,
    serial_residuals,
)
