"""Many learners: each circuit through one slow relay is an agent of its own (PettingZoo's parallel API).

The networks are those of ``tidegate/Bottleneck-v0``, but every circuit observes its own intervals alone, sets its own rate,
and gets its own reward. The circuits begin with unequal rates.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from .bottleneck import BOUNDS, DELAYS, LINKS, QUEUES, _Networks


def _range(name: str, bounds: Any) -> tuple[float, float]:
    """Checks the bounds of a range."""
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        low = high = np.nan
    if not 0 < low <= high < np.inf:
        raise ValueError(f"`{name}` is {bounds!r}; give two positive numbers, the smaller one first")
    return low, high


class Circuits(ParallelEnv):
    """``circuits`` agents, ``circuit_0`` and so on; an episode has ``steps`` steps of ``interval_s`` seconds.

    An agent observes the ``FEATURES`` of its last ``history`` intervals. Its action, one number from -1 to 1, changes its rate
    by up to 1/40. ``reward`` is a key of ``REWARDS``, or a function as in ``Bottleneck``. The slow link's rate, the empty
    network's latency and the link's queue are drawn from ``link_bits_per_s``, ``delay_s`` and ``queue_packets``; equal bounds
    fix them. Seed and actions determine an episode. ``reset`` returns the network's ``scenario`` and ``seed`` for each agent,
    which ``tidegate.run`` accepts with other systems.
    """

    metadata = {"name": "tidegate_circuits_v0", "render_modes": []}
    render_mode = None

    def __init__(
        self,
        circuits: int = 3,
        interval_s: float = 0.04,
        steps: int = 400,
        history: int = 10,
        reward: Any = "remy",
        link_bits_per_s: tuple[float, float] = LINKS,
        delay_s: tuple[float, float] = DELAYS,
        queue_packets: tuple[float, float] = QUEUES,
    ) -> None:
        ranges = {"link_bits_per_s": link_bits_per_s, "delay_s": delay_s, "queue_packets": queue_packets}
        self._ranges = tuple(_range(name, bounds) for name, bounds in ranges.items())
        self._of = _Networks(1, circuits, interval_s, steps, history, reward)
        self._random = np.random.default_rng()
        self.possible_agents = [f"circuit_{n}" for n in range(circuits)]
        self.agents: list[str] = []
        low, high = (np.tile(bound, (history, 1)) for bound in BOUNDS)
        self.observation_spaces = {agent: gymnasium.spaces.Box(low, high) for agent in self.possible_agents}
        self.action_spaces = {agent: gymnasium.spaces.Box(-1, 1, (1,), np.float32) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> gymnasium.spaces.Space:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Space:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._of.begin(0, self._random, *self._ranges, unequal=True)
        self.agents = self.possible_agents[:]
        network = {"scenario": self._of.scenarios[0], "seed": self._of.seeds[0]}
        return self._seen(), {agent: told | network for agent, told in self._infos().items()}

    def step(self, actions: dict[str, np.ndarray]) -> tuple[dict, dict, dict, dict, dict]:
        if not self.agents:
            return {}, {}, {}, {}, {}
        values = np.array([np.asarray(actions[agent]).item() for agent in self.agents])
        rewards = self._of.step(values)[0]
        over = bool(self._of.done[0] >= self._of.steps)
        each = lambda values: dict(zip(self.possible_agents, values))
        result = (
            self._seen(),
            each(rewards.tolist()),
            each([False] * len(rewards)),
            each([over] * len(rewards)),
            self._infos(),
        )
        if over:
            self.agents = []
        return result

    def _seen(self) -> dict[str, np.ndarray]:
        return dict(zip(self.possible_agents, self._of.seen[0].copy()))

    def _infos(self) -> dict[str, dict[str, float]]:
        link, base = float(self._of.link[0, 0]), float(self._of.base[0, 0])
        return {
            agent: {"link_bytes_per_s": link, "base_latency_s": base, "rate_bytes_per_s": rate}
            for agent, rate in zip(self.possible_agents, self._of.runs.rates(0))
        }

    def state(self) -> np.ndarray:
        """The observations of all circuits."""
        return self._of.seen[0].copy()

    def render(self) -> None:
        """Nothing is drawn: ``render_modes`` is empty."""

    def close(self) -> None:
        self._of.runs.end(0)
