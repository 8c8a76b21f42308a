"""Second moments of a row and of the row before it, by block of episodes, in one pass.

Every check of a sequence is a sum of products of two linear functions of the row now and
of the row before (instrument times earlier action, residual times earlier residual, ...),
so that the second moments of [u_t, u_t-1] by block of episodes hold all of them, with
their clustered variances. The number of blocks is bounded: neighbouring episodes share a
block when there are many, and a long episode is cut into stretches when there are few.
`Scores` are sums by block of products that have mean zero under the null.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ivvi._io.arrays import Floats, Ints
from ivvi._io.result import Compact
from ivvi.estimators.estimate import RANK_TOLERANCE
from ivvi.features.design import Design
from ivvi.logs import Batch, Calendar, Counts, Log, Roles
from ivvi.moments import GroupSums, few_threads, group_codes

MOST_BYTES = 128 << 20
MOST_BLOCKS = 1024
FEW_EPISODES = 20
STRETCHES = 40
"""Blocks that a log of few episodes is cut into."""
AS_FAR = 0.75
"""Residuals further apart that are correlated by this share of neighbours' do not fade."""
STEP_BLOCKS = 60
"""Blocks of steps, where many steps are the draws of what episodes share."""


@dataclass(frozen=True, slots=True, repr=False)
class Vector(Compact):
    """What a row u = [1, features, x, a, z, y] holds: each part as a linear map (p, d) of u.

    Columns are measured from a `centre` near their means, to keep their digits.
    """

    design: Design
    centre: Floats
    phi: Floats
    psi: Floats
    y: Floats
    x: Floats
    a: Floats
    z: Floats
    x_columns: slice
    z_columns: slice

    @classmethod
    def of_log(cls, log: Log, design: Design) -> Vector:
        """Lay out u and centre it at the first rows."""
        head = log.head()
        rows = _columns(design, head)
        centre = np.concatenate([[0.0], rows.mean(axis=0)])
        p = len(centre)
        maps = np.eye(p)
        maps[0, 1:] = centre[1:]
        of_v = np.zeros(design.width, dtype=int)  # constants are column 0
        of_v[design.varying] = 1 + np.arange(len(design.varying))
        at = 1 + len(design.varying)
        if design.is_raw:  # x, a and z are features already
            at = 1
        ends = np.cumsum([at, head.x.shape[1], head.a.shape[1], head.z.shape[1]])
        x, a, z = (maps[:, i:j] for i, j in pairwise(ends.tolist()))
        y = maps[:, of_v[list(design.y_columns)]]
        phi, psi = maps[:, of_v[: len(design.phi_names)]], maps[:, of_v[list(design.psi_columns)]]
        at_x, at_z = slice(ends[0], ends[1]), slice(ends[2], ends[3])
        return cls(design, centre, phi, psi, y, x, a, z, at_x, at_z)

    def products(self, u_rows: Floats) -> Floats:
        """Return x_i z_k of each row, measured from the centre, (n, d_x d_z)."""
        x, z = u_rows[:, self.x_columns], u_rows[:, self.z_columns]
        return (x[:, :, None] * z[:, None, :]).reshape(len(u_rows), -1)

    def rows(self, batch: Batch) -> Floats:
        """Evaluate u for each row of a batch, (n, p)."""
        values = _columns(self.design, batch)
        return np.column_stack([np.ones(len(batch)), values]) - self.centre


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which block a row belongs to, given its episode and its place in it."""

    count: int
    together: int
    stretches: int
    length: int

    @classmethod
    def plan(cls, episodes: int, rows: int, width: int, cuts: int = 0) -> Blocks:
        """Divide episodes into blocks whose moments fit in the memory allowed."""
        most = max(FEW_EPISODES, min(MOST_BLOCKS, MOST_BYTES // (8 * (7 + cuts) * width**2)))
        if episodes >= FEW_EPISODES:
            together = math.ceil(episodes / most)
            return cls(math.ceil(episodes / together), together, 1, rows)
        stretches = min(math.ceil(STRETCHES / episodes), max(1, rows // (2 * episodes)))
        length = max(1, math.ceil(rows / episodes / stretches))
        return cls(episodes * stretches, 1, stretches, length)

    def number(self, batch: Batch, place: Ints) -> Ints:
        """Return the block of each row."""
        inside = np.minimum(place // self.length, self.stretches - 1)
        number: Ints = _episode(batch) // self.together * self.stretches + inside
        return number


@dataclass(frozen=True, slots=True, repr=False)
class GroupBlocks(Compact):
    """Blocks of neighbouring values of a column: the steps, or a cluster column.

    Steps that follow each other depend on each other more than others do, so that many of
    them are joined to STEP_BLOCKS stretches of time.
    """

    keys: Ints
    column: str
    roles: Roles
    count: int

    @classmethod
    def plan(cls, sums: GroupSums, roles: Roles, width: int, cuts: int = 0) -> GroupBlocks:
        """Divide the groups of a column into blocks whose moments fit in the memory allowed."""
        most = max(FEW_EPISODES, min(MOST_BLOCKS, MOST_BYTES // (8 * (7 + cuts) * width**2)))
        if sums.by == roles.step and len(sums) >= 2 * STEP_BLOCKS:
            most = min(most, STEP_BLOCKS)
        return cls(sums.keys, sums.by, roles, min(len(sums), most))

    def number(self, batch: Batch, place: Ints) -> Ints:
        """Return the block of each row."""
        codes = group_codes(batch, self.roles, self.column)
        if codes is None:
            raise ValueError(f"the batch was read without {self.column}")
        number: Ints = np.searchsorted(self.keys, codes) * self.count // len(self.keys)
        return number


@dataclass(frozen=True, slots=True, repr=False)
class SequenceMoments(Compact):
    """Sums of products by block.

    Attributes
    ----------
    vector
        What the columns are.
    all_rows, late, first
        Sums of u u^T over all rows, over the later half of each episode's steps, over the
        first row of each episode, (blocks, p, p).
    pairs
        Sums of w w^T, w = [u_t, u_t-1], over rows with the step before, (blocks, 2p, 2p).
    products, squares
        Sums of h u^T, h the products of a state and an instrument, (blocks, d_x d_z, p), and of
        their squares, (d_x d_z,).
    n_pairs, episodes
        How many pairs and episodes there are.
    still
        Which instruments never change within an episode, (d_z,).
    calendar
        The cuts of calendar time, if the log has one.
    after
        Sums of u u^T over the rows after each cut, (cuts, blocks, p, p).
    when
        Mean time of the rows of each block, (blocks,).
    """

    vector: Vector
    all_rows: Floats
    late: Floats
    first: Floats
    pairs: Floats
    products: Floats
    squares: Floats
    n_pairs: int
    episodes: int
    still: tuple[bool, ...]
    calendar: Calendar | None
    after: Floats
    when: Floats

    def now(self, part: Floats) -> Floats:
        """Extend a map of u to one of the pair [u_t, u_t-1]: the row itself."""
        return np.vstack([part, np.zeros_like(part)])

    def before(self, part: Floats) -> Floats:
        """Extend a map of u to one of the pair: the row before."""
        return np.vstack([np.zeros_like(part), part])


def compute_sequence_moments(
    log: Log,
    design: Design,
    counts: Counts,
    calendar: Calendar | None = None,
    by: GroupSums | None = None,
) -> SequenceMoments:
    """Walk once over a log in order; `counts` are those of a pass before.

    Blocks are of episodes or, with the sums `by` a column of that pass, of its values.
    """
    vector = Vector.of_log(log, design)
    p, d_z = len(vector.centre), vector.z.shape[1]
    cuts = () if calendar is None else calendar.cuts
    blocks: Blocks | GroupBlocks = Blocks.plan(counts.episodes, counts.transitions, p, len(cuts))
    if by is not None:
        blocks = GroupBlocks.plan(by, log.roles, p, len(cuts))
    half = counts.transitions / counts.episodes / 2
    all_rows, late, first = (np.zeros((blocks.count, p, p)) for _ in range(3))
    pairs = np.zeros((blocks.count, 2 * p, 2 * p))
    products, squares = np.zeros((blocks.count, vector.x.shape[1] * d_z, p)), 0.0
    after, clock, rows = np.zeros((len(cuts), *all_rows.shape)), *np.zeros((2, blocks.count))
    n_pairs, still, walker = 0, np.ones(d_z, dtype=bool), _Walker()
    with few_threads(p):
        for batch in log.batches(episodes=True):
            u_rows = vector.rows(batch)
            root = None if batch.weight is None else np.sqrt(batch.weight)[:, None]
            before, linked, place = walker.look(batch, u_rows)
            number = blocks.number(batch, place)
            at, apart = vector.z_columns, np.flatnonzero(~linked)
            changed = u_rows[:, at] != before[:, at]
            changed[apart] = False
            still &= ~changed.any(axis=0)
            rows_and_before = np.hstack([u_rows, before])
            rows_and_before[apart] = 0.0  # adds nothing
            n_pairs += len(rows_and_before) - len(apart)
            _add(pairs, number, rows_and_before, root)
            h = vector.products(u_rows)
            _add(products, number, u_rows, root, h)
            h = h if root is None else h * root
            squares = squares + np.einsum("nh,nh->h", h, h)
            parts = [(all_rows, slice(None)), (late, place >= half), (first, place == 0)]
            if batch.time is not None:
                parts += [(a, batch.time >= cut) for a, cut in zip(after, cuts, strict=True)]
                clock += np.bincount(number, batch.time, blocks.count)
                rows += np.bincount(number, minlength=blocks.count)
            for sums, chosen in parts:
                weights = None if root is None else root[chosen]
                _add(sums, number[chosen], u_rows[chosen], weights)
    fixed = tuple(bool(flag and n_pairs) for flag in still)
    return SequenceMoments(
        vector=vector,
        all_rows=all_rows,
        late=late,
        first=first,
        pairs=pairs,
        products=products,
        squares=np.asarray(squares),
        n_pairs=n_pairs,
        episodes=counts.episodes,
        still=fixed,
        calendar=calendar,
        after=after,
        when=clock / np.maximum(rows, 1),
    )


class Scores:
    """Scores of the checks by block, from the moments of a sequence and the weights W.

    Outputs that are fitted exactly (`exact`, (d_y,)) have residuals of zero, not rounding error.
    `clusters` are the columns by which the errors of a fit are clustered. With sums `by_episode`,
    `unit_effect` says whether the correlation of an episode's residuals does not fade over the
    steps.
    """

    def __init__(
        self,
        moments: SequenceMoments,
        W: Floats,
        exact: NDArray[np.bool_],
        clusters: tuple[str, ...] = (),
        by_episode: GroupSums | None = None,
    ) -> None:
        m, v = moments, moments.vector
        self.moments, self.clusters = m, clusters or ("episode",)
        self.total = m.pairs.sum(axis=0)
        self.state = state_columns(v.phi, v.psi)
        self.e = np.where(exact, 0.0, v.y - v.phi @ W.T)
        every = m.all_rows.sum(axis=0)
        self.fitted = v.psi @ (inverse(v.psi.T @ every @ v.psi) @ (v.psi.T @ every @ v.phi))
        self.bread = inverse(self.fitted.T @ every @ v.phi)
        self.influence = self.products(m.all_rows, self.fitted, self.e)
        self.unit_effect = by_episode is not None and self._lasts(by_episode, W)

    def _lasts(self, by_episode: GroupSums, W: Floats) -> bool:
        """Are residuals of an episode as correlated far apart as next to each other?

        With E_i the sum of an episode's residuals, sum_i E_i^2 = sum e^2 + 2 (products of
        neighbours + products further apart). A difference between episodes that lasts does not fade
        over the steps, as an autoregressive error does.
        """
        m, design = self.moments, self.moments.vector.design
        apart = float(np.sum(by_episode.weight**2 - by_episode.square)) / 2 - m.n_pairs
        if not m.n_pairs or apart <= 0:
            return False
        v = by_episode.about(np.zeros(design.width))
        totals = v[:, list(design.y_columns)] - v[:, list(design.phi_columns)] @ W.T
        lag = np.einsum("io,ij,jo->o", m.now(self.e), self.total, m.before(self.e))
        squares = np.einsum("io,ij,jo->o", self.e, m.all_rows.sum(axis=0), self.e)
        far = (np.sum(totals**2, axis=0) - squares) / 2 - lag
        return bool(((far / apart > AS_FAR * lag / m.n_pairs) & (squares > 0)).any())

    def products(self, sums: Floats, one: Floats, other: Floats) -> Floats:
        """Sum of (one' u)(other' u)' by block, (blocks, d_one, d_other)."""
        product: Floats = one.T @ sums @ other
        return product

    def partialled(self, part: Floats, controls: Floats) -> Floats:
        """Subtract from a map of pairs its regression on others."""
        slopes = inverse(controls.T @ self.total @ controls) @ (controls.T @ self.total @ part)
        rest: Floats = part - controls @ slopes
        before, after = (np.einsum("ij,ik,kj->j", x, self.total, x) for x in (part, rest))
        nothing = after <= RANK_TOLERANCE**2 * before
        rest[:, nothing] = 0.0
        return rest

    def association(self, one: Floats, other: Floats, controls: Floats) -> Floats:
        """Scores (blocks, d_one, d_other) of the covariance of two parts given a third.

        Their mean is that of the products of what the third leaves of both. Their spread is that of
        the same products with the slopes of `other` in the other blocks (half a jackknife): where
        few blocks tell the slopes, as steps do whose instrument all episodes share, a block's own
        part in them hides some of its spread, and tests would reject too often.
        """
        pairs = self.moments.pairs
        one, other = self.partialled(one, controls), self.partialled(other, controls)
        scores = self.products(pairs, one, other)
        gram = self.products(pairs, controls, controls)
        of_one, of_other = (self.products(pairs, controls, part) for part in (one, other))
        without = np.array([inverse(rest) for rest in gram.sum(axis=0) - gram])
        change = np.swapaxes(of_one, 1, 2) @ without @ of_other
        jackknifed: Floats = scores + change - change.mean(axis=0)
        return jackknifed

    def drift(self, late: Floats) -> Floats:
        """Scores (blocks, d_y, d_phi) of a change of W in the rows of `late`."""
        moved = late.sum(axis=0)
        share = (self.fitted.T @ moved @ self.moments.vector.phi) @ self.bread
        scores = self.products(late, self.fitted, self.e) - share @ self.influence
        return np.swapaxes(scores, 1, 2)

    def conditions(self, sums: Floats, e: Floats, phi: Floats) -> Floats:
        """Scores (blocks, d_h, d_y) of E[h e] = 0, with the influence of each block on W.

        From the sums of h times a row, (blocks, d_h, p), and the maps of the residual and phi. As
        in `association`, their spread is that of residuals from the W of the other blocks.
        """
        step = self.bread @ self.influence
        of_phi = sums @ phi
        own = of_phi @ step
        scores: Floats = sums @ e - of_phi.sum(axis=0) @ step + own - own.mean(axis=0)
        return scores


def state_columns(phi: Floats, psi: Floats) -> Floats:
    """Return the maps that phi and psi share: the constant and the features of the state."""
    shared = [j for j in range(psi.shape[1]) if (psi[:, [j]] == phi).all(axis=0).any()]
    return psi[:, shared]


def _columns(design: Design, batch: Batch) -> Floats:
    V = design.rows(batch)
    return V if design.is_raw else np.column_stack([V, batch.x, batch.a, batch.z])


class _Walker:
    """What a walk keeps from batch to batch: the last row, its episode, step and place."""

    def __init__(self) -> None:
        self._row: Floats | None = None
        self._episode, self._step, self._place = -1, 0.0, -1

    def look(self, batch: Batch, u_rows: Floats) -> tuple[Floats, np.ndarray, Ints]:
        """Return the row before each row, whether it is the step before, and each row's place."""
        episode, n = _episode(batch), len(batch)
        same = np.append(episode[0] == self._episode, episode[1:] == episode[:-1])
        before = np.vstack([u_rows[:1] if self._row is None else self._row, u_rows[:-1]])
        linked = same.copy()
        if batch.step is not None:
            linked &= np.diff(batch.step.astype(float), prepend=self._step) == 1
            self._step = float(batch.step[-1])
        starts = np.where(same, -1, np.arange(n))
        place = np.arange(n) - np.maximum.accumulate(starts)
        carried = np.maximum.accumulate(starts) < 0
        place[carried] += self._place
        self._row, self._episode, self._place = u_rows[-1:], int(episode[-1]), int(place[-1])
        return before, linked, place


def _episode(batch: Batch) -> Ints:
    if batch.episode is None:
        raise ValueError("expected batches with episodes")
    return batch.episode


def _add(
    sums: Floats, number: Ints, rows: Floats, root: Floats | None, left: Floats | None = None
) -> None:
    """Add the products of the rows of each block, with themselves or with `left`, to its sums."""
    if not len(rows):
        return
    rows = rows if root is None else rows * root
    if left is not None:
        left = left if root is None else left * root
    if np.any(number[1:] < number[:-1]):
        order = np.argsort(number, kind="stable")
        rows, number = rows[order], number[order]
        left = None if left is None else left[order]
    cuts = np.flatnonzero(np.diff(number)) + 1
    parts = np.split(rows, cuts)
    others = parts if left is None else np.split(left, cuts)
    for part, other, at in zip(parts, others, number[np.append(0, cuts)], strict=True):
        sums[at] += other.T @ part


def inverse(gram: Floats) -> Floats:
    """Pseudo-inverse of a matrix of second moments, whatever the units."""
    scale = np.sqrt(np.maximum(np.diag(gram), 0.0))
    scale[scale == 0] = 1.0
    units = np.outer(scale, scale)
    inverse: Floats = np.linalg.pinv(gram / units, RANK_TOLERANCE**2, hermitian=True) / units
    return inverse
