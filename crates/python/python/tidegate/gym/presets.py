"""Rewards by name."""

from collections.abc import Callable, Mapping
from typing import Any


def preset(reward: Any, known: Mapping[str, Callable[..., Any]]) -> Callable[..., Any]:
    """Returns the function with this name, or the function itself."""
    if callable(reward):
        return reward
    if reward not in known:
        raise ValueError(f"`reward` is {reward!r}; give a function, or one of {', '.join(known)}")
    return known[reward]
