"""A plan, or its decisions, in three plain sentences: instrument, decision, next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ivvi._io.result import Brief, as_sentence
from ivvi.diagnostics.verdict import UNTRUSTED, instrument_sentence
from ivvi.planning.comparison import CLEAR, Comparison
from ivvi.planning.problem import Problem
from ivvi.rewards import SeenReward

OUTSIDE = "Do not act on it: it relies on extrapolation beyond the log. {}"
VALUE = (
    "`ivvi value` adds the uncertainty of the model to these numbers, whose +- is that of the "
    "simulation alone; `ivvi act` asks the policy what to do."
)
MOST_LEVELS = 4
"""Levels of a category that a sentence lists."""


def plan_brief(problem: Problem, compared: Comparison | None) -> Brief:
    """Return sentences: is the instrument good enough, what does the plan earn, what is next."""
    verdict = problem.model.verdict
    word = "" if verdict is None else verdict.word
    outside = () if compared is None else compared.outside
    choices = problem.choice_doubts
    advice = f"First check the actions: {choices[0]}." if choices else VALUE
    advice = OUTSIDE.format(as_sentence(outside[0])) if outside else advice
    if doubts := (*problem.fit_doubts, *problem.effect_doubts):
        advice = f"Do not act on it yet. {as_sentence(doubts[0])}"
    earned = "Not compared with other rules." if compared is None else _earned(compared)
    seen = problem.reward.words if isinstance(problem.reward, SeenReward) else ""
    return Brief(
        (
            ("Instrument", instrument_sentence(verdict)),
            ("Plan", f"{earned} {seen}".strip()),
            ("Next", _not_to_act(word) if word in UNTRUSTED else advice),
        )
    )


def _not_to_act(word: str) -> str:
    return f"Do not act on it: it rests on {UNTRUSTED[word]}."


def act_brief(
    problem: Problem,
    decisions: Mapping[str, Any],
    step: int | None,
    sure: Any = None,
    outside: tuple[str, ...] = (),
) -> Brief:
    """Return sentences: is the instrument good enough, what does the policy do, what is next.

    `decisions` are values by column of the actions; `sure` is their `Stability`, if known, and
    `outside` are warnings on those of them, or of the states, that lie outside the log.
    """
    verdict, horizon = problem.model.verdict, problem.horizon
    advice = [] if sure is not None else ["`--model` shows how firmly the log recommends this."]
    if step is None and horizon > 1:
        first = f"This is for the first of {horizon:,} steps; `--step` asks about later ones."
        advice.insert(0, first)
    if outside:
        advice = ["Do not act on it without other evidence: the log has nothing like it."]
    if doubts := problem.fit_doubts:
        advice = [f"Do not act on it yet. {as_sentence(doubts[0])}"]
    if verdict is not None and verdict.word in UNTRUSTED:
        advice = [_not_to_act(verdict.word)]
    firm = "" if sure is None else _firmness(sure)
    return Brief(
        (
            ("Instrument", instrument_sentence(verdict)),
            ("Action", f"{'; '.join(_done(name, of) for name, of in decisions.items())}.{firm}"),
            ("Next", " ".join(advice) or "Compare it with your own choice."),
        )
    )


def _earned(compared: Comparison) -> str:
    """Return what the plan earns, and how much more than the best rule that needs no plan."""
    plan, rival, share = compared.plan, compared.rival, compared.share
    earned = f"{plan.value:.4g} +- {plan.error:.2g} per episode in the model"
    if len(compared.entries) > 1 and all(entry.behind == 0 for entry in compared.entries):
        reason = "the reward does not depend on what is done"
        return f"All rules earn the same, {plan.value:.4g} per episode in the model: {reason}."
    if plan.simple:
        return f"No plan earns more than the simple rule {plan.name!r}, which earns {earned}."
    if rival is None:
        return f"It earns {earned}."
    gain = rival.behind - plan.behind
    if 0 < abs(gain) <= CLEAR * max(plan.behind_error, rival.behind_error):
        return f"It earns {earned}, about the same as the best simple rule, {rival.name!r}."
    if gain == 0:
        return f"It earns {earned}, no more than the simple rule {rival.name!r}."
    if gain < 0:
        return f"It earns {earned}, {-gain:.4g} less than the simple rule {rival.name!r}."
    most = "" if share is None else f", at least {100 * share:.3g}% of what can be gained"
    return (
        f"It earns {earned}, {gain:.4g} +- {rival.behind_error:.2g} more than the best simple "
        f"rule, {rival.name!r}{most}."
    )


def _done(name: str, values: Any) -> str:
    """Return the action in one state, or a summary over many, in words."""
    listed = np.asarray(values)
    if len(listed) == 1:
        only = listed[0]
        return f"{name} {only}" if isinstance(only, str) else f"{name} {only:.4g}"
    if listed.dtype.kind in "fiu":
        ends = f"{name} from {listed.min():.4g} to {listed.max():.4g}"
        return f"{ends}, {listed.mean():.4g} on average of {len(listed):,} states"
    levels, counts = np.unique(listed.astype(str), return_counts=True)
    order = np.argsort(-counts)[:MOST_LEVELS]
    return f"{name} " + ", ".join(f"{levels[i]} in {counts[i]:,}" for i in order)


def _firmness(sure: Any) -> str:
    """Return which share of the models that the log allows recommend the same action."""
    count = len(sure.agreement)
    outside = 0 if sure.outside is None else int(np.sum(sure.outside))
    least = "" if count == 1 else "At least "
    far = f" {outside:,} of {count:,} states with their actions are unlike the log's."
    share = f"{100 * np.min(sure.agreement):.3g}%"
    agreement = f" {least}{share} of the models that the log allows say the same."
    return agreement + (far if outside else "")
