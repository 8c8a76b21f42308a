"""Step sizes of descent-ascent, as values.

A schedule gives (step_W, step_K) at iteration t = 0, 1, ...; t may be an array. Those of the
paper's experiments are in `PAPER` by name, with the loop that its authors ran them in; `Theorem`
is the one of its Theorem 4.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ivvi._io.arrays import Array
from ivvi.errors import InputError, nearest


class Schedule(Protocol):
    """Step sizes as a function of the iteration."""

    def __call__(self, t: Array) -> tuple[Array, Array]:
        """Return (step_W, step_K) at iteration t."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantSteps:
    """The same steps throughout."""

    step_W: float
    step_K: float

    def __call__(self, t: Array) -> tuple[Array, Array]:
        """Return (step_W, step_K)."""
        return self.step_W + 0.0 * t, self.step_K + 0.0 * t


@dataclass(frozen=True, slots=True)
class Decay:
    """Steps scale / (1 + t / delay)^power for W, `ratio` times that for K."""

    scale: float
    power: float = 0.5
    delay: float = 1.0
    ratio: float = 1.0

    def __call__(self, t: Array) -> tuple[Array, Array]:
        """Return (step_W, step_K)."""
        step = self.scale / (1 + t / self.delay) ** self.power
        return step, self.ratio * step


@dataclass(frozen=True, slots=True)
class Harmonic:
    """Steps floor_W + 1 / (offset_W + t) and 1 / (offset_K + t): the form the paper uses."""

    offset_W: float
    offset_K: float
    floor_W: float = 0.0

    def __call__(self, t: Array) -> tuple[Array, Array]:
        """Return (step_W, step_K)."""
        return self.floor_W + 1 / (self.offset_W + t), 1 / (self.offset_K + t)


@dataclass(frozen=True, slots=True)
class Theorem:
    """Theorem 4.1: step_W = beta / (gamma + t), step_K = alpha step_W, for bounded features.

    alpha = c1 / (mu_iv mu_b^1.5), beta = c2 / mu_iv, gamma = c3 / (mu_iv^4 mu_b^3.5). The proof
    takes c = (2^8, 8, 2^27), with which no run of a practical length leaves its start; with
    c = (1, 2, 1) the error falls like 1 / T in `ivvi_reproduction.convergence_rate`.
    """

    mu_iv: float
    mu_b: float
    c: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def __call__(self, t: Array) -> tuple[Array, Array]:
        """Return (step_W, step_K)."""
        alpha = self.c[0] / (self.mu_iv * self.mu_b**1.5)
        beta = self.c[1] / self.mu_iv
        step = beta / (self.gamma + t)
        return step, alpha * step

    @property
    def gamma(self) -> float:
        """Iterations before which the steps hardly fall."""
        return float(self.c[2] / (self.mu_iv**4 * self.mu_b**3.5))


@dataclass(frozen=True, slots=True)
class PaperRun:
    """How the authors' scripts ran one experiment of the paper.

    One pass over consecutive batches of `batch` rows; `inner` dual steps on the moments of each,
    then one primal step; every entry of W_0 is `start`. The text prints the steps and W_0 only.
    """

    steps: Schedule
    batch: int
    inner: int
    start: float


PAPER: dict[str, PaperRun] = {
    "paper-linear": PaperRun(Harmonic(18, 18, 0.05), 500, 200, 0.2),
    "paper-linear-20": PaperRun(Harmonic(18, 18, 0.06), 500, 200, 0.2),
    "paper-nonlinear": PaperRun(Harmonic(16, 16), 250, 400, 0.0),
    "paper-movielens": PaperRun(Harmonic(550, 1800), 50, 200, 0.2),
    "paper-movielens-revised": PaperRun(Harmonic(600, 1800), 50, 200, 0.2),
}
"""The paper's experiments; ``paper-linear`` is for k = 5 and 10."""


def parse_schedule(word: str) -> Schedule | None:
    """Turn a word into a schedule; None for ``auto``, which is made from the data."""
    if word == "auto":
        return None
    if word in PAPER:
        return PAPER[word].steps
    kind, _, argument = word.partition(":")
    try:
        numbers = [float(part) for part in argument.split(",")] if argument else []
    except ValueError:
        numbers = []
    if kind == "constant" and len(numbers) in (1, 2):
        return ConstantSteps(numbers[0], numbers[-1])
    if kind == "decay" and len(numbers) in (1, 2, 3):
        return Decay(*numbers)
    words = ("auto", *PAPER, "constant:STEP", "decay:SCALE,POWER,DELAY")
    hint = nearest(word, words) or f"; choose from {', '.join(words)}"
    raise InputError(f"unknown schedule {word!r}{hint}")
