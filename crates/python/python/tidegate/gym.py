"""Environments for learning, of Gymnasium: ``import tidegate.gym``, then ``gymnasium.make("tidegate/Bottleneck-v0")``.

Circuits share one slow relay. Every interval the agent changes each circuit's rate at its exit, and sees what its client
saw. Networks are drawn from the ranges that PCC-RL was trained on (Jay et al., ICML 2019): held-out networks are other seeds.

Same seed and actions, same observations. Relays are connected by TCP, so that nothing is lost end to end: what congestion
does is delay.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from . import _native

#: Bytes of a packet in PCC-RL's reward; its throughputs are in packets/s.
_PACKET = 1500
#: Largest change of a rate by one action (PCC-RL).
_STEP = 0.025
#: What observations hold of each interval.
FEATURES = ("latency gradient", "latency ratio", "sending ratio")


def reward_pcc(seen: np.ndarray, link: np.ndarray, base: np.ndarray, interval: float) -> np.ndarray:
    """PCC-RL's: 10 throughput (packets/s) - 1000 latency (s); nothing is lost."""
    return 10 * seen[..., 0] / interval / _PACKET - 1e3 * seen[..., 1]


def reward_orca(seen: np.ndarray, link: np.ndarray, base: np.ndarray, interval: float) -> np.ndarray:
    """Orca's (Abbasloo et al., SIGCOMM 2020): power, as a share of what the empty network has. Delays of up to 1.25 times
    the empty network's count as that."""
    throughput = seen[..., 0] / interval / link
    delay = np.maximum(seen[..., 1], base)
    return throughput * base / np.where(delay <= 1.25 * base, base, delay)


#: Presets of the reward, by name: functions of an array whose last axes are circuits and (bytes, mean latency, least
#: latency), the slow links' bytes/s, the empty networks' latencies in s, and the interval in s.
REWARDS = {"pcc": reward_pcc, "orca": reward_orca}


class _Networks:
    """Networks side by side, their runs, and what was seen of them: the first axis of every array."""

    def __init__(self, count: int, circuits: int, interval: float, steps: int, history: int, reward: Any) -> None:
        self.circuits, self.interval, self.steps = circuits, interval, steps
        self.reward = REWARDS[reward] if isinstance(reward, str) else reward
        self.sessions, self.scenarios, self.seeds = ([None] * count for _ in range(3))
        self.done = np.zeros(count, dtype=int)
        self.link, self.base = np.ones((count, 1)), np.ones((count, 1))
        self.rates, self.least, self.before = (np.zeros((count, circuits)) for _ in range(3))
        self.seen = np.zeros((count, circuits, history, len(FEATURES)), dtype=np.float32)

    def begin(self, n: int, random: np.random.Generator) -> None:
        """Draws a network and looks at its first interval."""
        seed = int(random.integers(2**32))
        link = random.uniform(1.2e6, 6e6) / 8
        delay = random.uniform(0.05, 0.5)
        queue = int(np.exp(random.uniform(0, 8)))
        self.rates[n] = link * random.uniform(0.3, 1.5) / self.circuits
        self.link[n], self.base[n] = link, delay
        self.scenarios[n], self.seeds[n] = self.scenario(link, delay, queue), seed
        self.sessions[n] = _native.Session(self.scenarios[n], seed, self.interval, float(self.rates[n, 0]))
        self.done[n], self.least[n], self.before[n] = 0, np.inf, 0.0
        self.seen[n] = (0.0, 1.0, 1.0)
        self.look([n], np.array([self.sessions[n].begin()]))

    def scenario(self, link: float, delay: float, queue: int) -> dict[str, Any]:
        relay = lambda name, rate: {"name": name, "link": f"{int(8 * rate)} bit/s"}
        names = range(self.circuits)
        fast = 10 * link
        return {
            "name": "bottleneck",
            "duration": f"{int(1000 * self.interval * (self.steps + 1)) + 1} ms",
            "sample": "1 s",
            "trace-one-in": 0,
            "system": [{"name": "learnt", "transport": "pctcp"}],
            # Data cross two paths between three relays.
            "underlay": {"delay": f"{int(1e6 * delay / 2)} us"},
            "relay": [relay(f"exit{n}", fast) for n in names]
            + [relay("slow", link) | {"queue": f"{max(2, queue)} packets"}]
            + [relay(f"guard{n}", fast) for n in names],
            "user": [
                {"name": f"circuit{n}", "path": [f"guard{n}", "slow", f"exit{n}"], "traffic": "bulk"} for n in names
            ],
        }

    def look(self, which: Any, told: np.ndarray) -> None:
        """Appends an interval of these networks to what is observed."""
        delivered, latency, least = told[..., 0], told[..., 1], told[..., 2]
        came, before = delivered > 0, self.before[which]
        self.least[which] = lowest = np.where(came, np.minimum(self.least[which], least), self.least[which])
        seen = self.seen[which]
        seen[:, :, :-1] = seen[:, :, 1:]
        new = seen[:, :, -1]
        new[..., 0] = np.where(came & (before > 0), (latency - before) / self.interval, 0.0)
        new[..., 1] = np.where(came, latency / np.where(came, lowest, 1.0), 1.0)
        sent = self.rates[which] * self.interval
        new[..., 2] = np.where(came, np.minimum(sent / np.maximum(delivered, 1.0), 1e3), 10.0)
        self.before[which] = np.where(came, latency, before)
        self.seen[which] = seen

    def step(self, which: Any, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """PCC-RL's actions: a rate grows or shrinks by up to a fortieth. Gives of each network the mean reward, and whether
        the step was its last one."""
        action = np.clip(np.asarray(actions, dtype=float), -1, 1)
        factor = np.where(action >= 0, 1 + _STEP * action, 1 / (1 - _STEP * action))
        self.rates[which] = rates = np.clip(self.rates[which] * factor, 1e3, 10 * self.link[which])
        told = np.array(_native.step_all([self.sessions[n] for n in which], rates.tolist()))
        self.look(which, told)
        self.done[which] += 1
        rewards = self.reward(told, self.link[which], self.base[which], self.interval)
        return rewards.mean(axis=-1), self.done[which] >= self.steps


def _spaces(circuits: int, history: int) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    shape = (circuits, history, len(FEATURES))
    return gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32), gymnasium.spaces.Box(-1, 1, (circuits,), np.float32)


class Bottleneck(gymnasium.Env):
    """``circuits`` circuits through one slow relay; an episode has ``steps`` steps of ``interval_s`` seconds.

    Observations: of each circuit the last ``history`` intervals' ``FEATURES`` (PCC-RL's). Actions: of each circuit a number
    in -1..1, by which its rate changes. ``reward`` is a name of ``REWARDS`` or a function like those. ``reset`` tells the
    network's ``scenario`` and ``seed``, which ``tidegate.run`` takes under other systems.
    """

    metadata = {"render_modes": []}

    def __init__(
        self, circuits: int = 3, interval_s: float = 0.04, steps: int = 400, history: int = 10, reward: Any = "pcc"
    ) -> None:
        self._of = _Networks(1, circuits, interval_s, steps, history, reward)
        self.observation_space, self.action_space = _spaces(circuits, history)

    @property
    def _info(self) -> dict[str, Any]:
        return {
            "link_bytes_per_s": float(self._of.link[0, 0]),
            "base_latency_s": float(self._of.base[0, 0]),
            "rates_bytes_per_s": self._of.rates[0].copy(),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._of.begin(0, self.np_random)
        network = {"scenario": self._of.scenarios[0], "seed": self._of.seeds[0]}
        return self._of.seen[0].copy(), self._info | network

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        rewards, over = self._of.step([0], np.asarray(action)[None])
        return self._of.seen[0].copy(), float(rewards[0]), False, bool(over[0]), self._info


class BottleneckVector(VectorEnv):
    """``num_envs`` of them, stepped on as many cores as there are; each begins anew with the step after its last."""

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        circuits: int = 3,
        interval_s: float = 0.04,
        steps: int = 400,
        history: int = 10,
        reward: Any = "pcc",
    ) -> None:
        self.num_envs = num_envs
        self._all = _Networks(num_envs, circuits, interval_s, steps, history, reward)
        self.single_observation_space, self.single_action_space = _spaces(circuits, history)
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)
        self._over = np.zeros(num_envs, dtype=bool)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is None:
            seed = int(self.np_random.integers(2**32))
        seeds = [seed + n for n in range(self.num_envs)] if isinstance(seed, int) else list(seed)
        self._randoms = [gymnasium.utils.seeding.np_random(one)[0] for one in seeds]
        for number in range(self.num_envs):
            self._all.begin(number, self._randoms[number])
        self._over[:] = False
        return self._all.seen.copy(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        going = np.flatnonzero(~self._over)
        rewards, over = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=bool)
        if len(going) > 0:
            rewards[going], over[going] = self._all.step(going, np.asarray(actions)[going])
        for number in np.flatnonzero(self._over):
            self._all.begin(number, self._randoms[number])
        self._over = over
        return self._all.seen.copy(), rewards, np.zeros_like(over), over.copy(), {}


gymnasium.register(
    id="tidegate/Bottleneck-v0", entry_point=Bottleneck, vector_entry_point=BottleneckVector
)
