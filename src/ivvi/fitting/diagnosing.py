"""`diagnose`: is the instrument of a log any good?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ivvi.diagnostics import Diagnostics
from ivvi.diagnostics import diagnose as diagnose_moments
from ivvi.estimators import StandardErrors
from ivvi.features import FeatureMap
from ivvi.fitting.estimating import estimate
from ivvi.fitting.fit import Fit
from ivvi.logs.column_patterns import Columns


def diagnose(  # noqa: PLR0913
    logs: Any,
    phi: FeatureMap | str = "linear",
    psi: FeatureMap | str | None = None,
    *,
    formula: str | None = None,
    suspects: Sequence[str] = (),
    se: StandardErrors | str = "auto",
    absorb: Columns = (),
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    client: Any = None,
) -> Diagnostics:
    """Say how strong the instruments are, what they identify and whether they are valid.

    Parameters
    ----------
    logs
        A `Log`, anything that `read_logs` opens with its defaults, a `Shard`, or a `Fit`.
    phi, psi, formula, se, absorb, seed, progress, client
        As for `estimate`; a `Fit` has its own.
    suspects
        Instrument features whose validity is tested, given that of the others.

    Examples
    --------
    >>> import ivvi
    >>> log = ivvi.make_env("linear", dim=1).collect(episodes=40, horizon=50, seed=1)
    >>> ivvi.diagnose(log).verdict.word
    'strong'
    """
    if isinstance(logs, Fit):
        fit = logs
    else:
        fit = estimate(
            logs,
            phi,
            psi,
            formula=formula,
            se=se,
            allow_unidentified=True,
            absorb=absorb,
            seed=seed,
            progress=progress,
            client=client,
        )
    if not suspects:
        return fit.diagnostics
    tested = diagnose_moments(fit.moments, fit.scored, suspects)
    return replace(tested, verdict=fit.diagnostics.verdict)
