"""One check of a log (question, answer, what to do next), and all of them in sentences."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ivvi._io.plotting import IV, LS, MUTED, check_figure, finished, new_figure
from ivvi._io.result import Brief
from ivvi.sequence.cluster_tests import LargestContrast

ABOUT_Z = ("balance", "placebo", "serial dependence of z")
"""First words of the checks about the instrument; the others are about W."""

LEAST_DRAWN = 1e-4
"""Smaller p-values are drawn as arrows here."""


@dataclass(frozen=True, slots=True)
class Check:
    """One question asked of a log.

    Attributes
    ----------
    name
        A word for it.
    test
        The test, or None with a `reason`.
    level
        The p-value below which the check counts as failed.
    finding
        What was found, in words.
    advice
        What to do when it fails.
    reason
        Why the check does not apply.
    negligible
        Whether what was found is too small to matter, however significant it is.
    """

    name: str
    test: LargestContrast | None
    level: float
    finding: str = ""
    advice: str = ""
    reason: str = ""
    negligible: bool = False

    @property
    def passed(self) -> bool | None:
        """Whether the log is free of what the check looks for; None where it cannot be asked."""
        if self.test is None:
            return None
        return self.negligible or self.test.p_value >= self.level

    def to_json(self) -> dict[str, Any]:
        """Describe the check with JSON values."""
        described: dict[str, Any] = {"passed": self.passed, "reason": self.reason or None}
        if self.test is not None:
            described |= self.test.statistic.to_json()
            described["compared"] = self.test.compared
            described["p_value_adjusted"] = self.test.p_value
            described["negligible"] = self.negligible
        return described | {
            "finding": self.finding or None,
            "advice": self.advice if self.passed is False else None,
        }


def check_brief(checks: Sequence[Check]) -> Brief:
    """Say if anything speaks against the instrument or against one W, and what to do next."""
    about_z = [check for check in checks if check.name.startswith(ABOUT_Z)]
    about_w = [check for check in checks if check not in about_z]
    failed = [check for check in ranked(checks) if check.passed is False]
    next_step = (
        f"{failed[0].name} first: {failed[0].advice}."
        if failed
        else "`ivvi fit` estimates the effects; `ivvi diagnose` says how strong the instrument is."
    )
    return Brief(
        (
            ("Instrument", _verdict(about_z, "the instrument")),
            ("Dynamics", _verdict(about_w, "one W with these features")),
            ("Next", next_step.replace("..", ".")),
        )
    )


def ranked(checks: Sequence[Check]) -> list[Check]:
    """Return the checks that fail, those that pass and those that do not apply, by p-value."""
    return sorted(checks, key=_rank)


def plot_checks(
    checks: Sequence[Check], path: str | os.PathLike[str] | None, *, force: bool
) -> Any:
    """Draw the p-values of checks on a log scale, what fails first, and the level that counts."""
    check_figure(path, force=force)
    first_to_last = ranked(checks)
    figure = new_figure(6.5, 1.4 + 0.3 * len(checks))
    ax = figure.add_subplot()
    ax.set_yticks(range(len(checks), 0, -1), [check.name for check in first_to_last])
    ax.set_ylim(0.3, len(checks) + 0.7)
    ax.set_xscale("log")
    ax.set_xlim(LEAST_DRAWN / 1.5, 1.5)
    for y, check in zip(range(len(checks), 0, -1), first_to_last, strict=True):
        if check.test is None:
            ax.text(1.0, y, "not asked", color=MUTED, fontsize=8, ha="right", va="center")
            continue
        p, mark = check.test.p_value, "o" if check.test.p_value >= LEAST_DRAWN else "<"
        colour = LS if check.passed is False else IV if p >= check.level else MUTED
        ax.plot(max(p, LEAST_DRAWN), y, mark, color=colour, ms=6)
    for level in {check.level for check in checks}:
        ax.axvline(level, color=LS, ls="--", lw=1.2)
    ax.set(xlabel="p-value; only those left of the line speak against the log")
    asked = [check.passed for check in checks if check.test is not None]
    title = f"{asked.count(False)} of {len(asked)} checks fail"
    ax.set_title(title, loc="left", fontsize=10)
    ax.spines[["top", "right"]].set_visible(False)
    return finished(figure, path, force=force)


def _rank(check: Check) -> tuple[int, float]:
    if check.test is None:
        return 2, 0.0
    return int(check.passed is True), check.test.p_value


def _verdict(checks: Sequence[Check], what: str) -> str:
    asked = [check for check in checks if check.test is not None]
    if not asked:
        return f"This log allows no check of {what}."
    failed = [check for check in ranked(asked) if check.passed is False]
    level = f"{asked[0].level:.3g}"
    if failed:
        named = ", ".join(check.name for check in failed)
        return (
            f"{len(failed)} of {len(asked)} checks cast doubt on {what} (p below {level}): {named}."
        )
    smallest = min(check.test.p_value for check in asked if check.test is not None)
    if smallest < asked[0].level:  # sure, and too small to matter
        return f"{len(asked)} checks found nothing against {what} that is large enough to matter."
    checked = "the one check" if len(asked) == 1 else f"{len(asked)} checks"
    return (
        f"No evidence against {what}: the smallest p of {checked} is {smallest:.2g}, and only "
        f"below {level} counts."
    )
