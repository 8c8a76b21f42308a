"""Rewards r(x, a, x') of a step: known formulas, and functions that a user writes."""

from ivvi.rewards.builtin import Learned, Linear, Quadratic, RatingReward, Reward
from ivvi.rewards.make_reward import (
    is_reward,
    make_reward,
    parse_reward,
    reward_from_json,
    reward_to_json,
)
from ivvi.rewards.next_state_rewards import SeenReward
from ivvi.rewards.user_functions import Function

__all__ = [
    "Function",
    "Learned",
    "Linear",
    "Quadratic",
    "RatingReward",
    "Reward",
    "SeenReward",
    "is_reward",
    "make_reward",
    "parse_reward",
    "reward_from_json",
    "reward_to_json",
]
