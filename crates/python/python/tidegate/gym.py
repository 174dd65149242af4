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


def reward_pcc(seen: np.ndarray, link: float, base: float, interval: float) -> np.ndarray:
    """PCC-RL's: 10 throughput (packets/s) - 1000 latency (s); nothing is lost."""
    return 10 * seen[:, 0] / interval / _PACKET - 1e3 * seen[:, 1]


def reward_orca(seen: np.ndarray, link: float, base: float, interval: float) -> np.ndarray:
    """Orca's (Abbasloo et al., SIGCOMM 2020): power, as a share of what the empty network has. Delays of up to 1.25 times
    the empty network's count as that."""
    throughput = seen[:, 0] / interval / link
    delay = np.maximum(seen[:, 1], base)
    return throughput * base / np.where(delay <= 1.25 * base, base, delay)


#: Presets of the reward, by name: functions of (bytes, mean latency, least latency) of each circuit, the slow link's
#: bytes/s, the empty network's latency in s, and the interval in s.
REWARDS = {"pcc": reward_pcc, "orca": reward_orca}


class _Circuits:
    """One network, its run, and what was seen of it."""

    def __init__(self, circuits: int, interval: float, steps: int, history: int) -> None:
        self.circuits, self.interval, self.steps, self.history = circuits, interval, steps, history

    def begin(self, seed: int, random: np.random.Generator) -> None:
        self.link = random.uniform(1.2e6, 6e6) / 8
        delay = random.uniform(0.05, 0.5)
        self.base = delay
        queue = int(np.exp(random.uniform(0, 8)))
        self.rates = np.full(self.circuits, self.link * random.uniform(0.3, 1.5) / self.circuits)
        bits = lambda rate: f"{int(8 * rate)} bit/s"
        relay = lambda name, rate: {"name": name, "link": bits(rate)}
        names = range(self.circuits)
        fast = 10 * self.link
        scenario = {
            "name": "bottleneck",
            "duration": f"{int(1000 * self.interval * (self.steps + 1)) + 1} ms",
            "sample": "1 s",
            "system": [{"name": "learnt", "transport": "pctcp"}],
            # Data cross two paths between three relays.
            "underlay": {"delay": f"{int(1e6 * delay / 2)} us"},
            "relay": [relay(f"exit{n}", fast) for n in names]
            + [relay("slow", self.link) | {"queue": f"{max(2, queue)} packets"}]
            + [relay(f"guard{n}", fast) for n in names],
            "user": [
                {"name": f"circuit{n}", "path": [f"guard{n}", "slow", f"exit{n}"], "traffic": "bulk"} for n in names
            ],
        }
        self.session = _native.Session(scenario, seed, self.interval, float(self.rates[0]))
        self.done = 0
        self.least = np.full(self.circuits, np.inf)
        self.before = np.zeros(self.circuits)
        self.seen = np.tile(np.array([0.0, 1.0, 1.0], dtype=np.float32), (self.circuits, self.history, 1))
        self.look(np.array(self.session.begin()))

    def look(self, seen: np.ndarray) -> None:
        """Appends an interval to what is observed."""
        delivered, latency, least = seen.T
        any_came = delivered > 0
        self.least = np.where(any_came, np.minimum(self.least, least), self.least)
        gradient = np.where(any_came & (self.before > 0), (latency - self.before) / self.interval, 0.0)
        ratio = np.where(any_came, latency / np.where(any_came, self.least, 1.0), 1.0)
        sending = np.where(any_came, self.rates * self.interval / np.maximum(delivered, 1.0), 10.0)
        self.before = np.where(any_came, latency, self.before)
        new = np.stack([gradient, ratio, np.minimum(sending, 1e3)], axis=1)
        self.seen = np.concatenate([self.seen[:, 1:], new[:, None, :].astype(np.float32)], axis=1)

    def change(self, action: np.ndarray) -> list[float]:
        """PCC-RL's actions: a rate grows or shrinks by up to a fortieth."""
        action = np.clip(np.asarray(action, dtype=float), -1, 1)
        factor = np.where(action >= 0, 1 + _STEP * action, 1 / (1 - _STEP * action))
        self.rates = np.clip(self.rates * factor, 1e3, 10 * self.link)
        return self.rates.tolist()

    def after(self, seen: list[list[float]] | None, reward: Any) -> tuple[float, bool]:
        """What a step has brought: the mean reward, and whether it was the last one."""
        self.done += 1
        if seen is None:
            return 0.0, True
        table = np.array(seen)
        self.look(table)
        return float(np.mean(reward(table, self.link, self.base, self.interval))), self.done >= self.steps

    @property
    def info(self) -> dict[str, Any]:
        return {"link_bytes_per_s": self.link, "rates_bytes_per_s": self.rates.copy()}


def _spaces(circuits: int, history: int) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    shape = (circuits, history, len(FEATURES))
    return gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32), gymnasium.spaces.Box(-1, 1, (circuits,), np.float32)


class Bottleneck(gymnasium.Env):
    """``circuits`` circuits through one slow relay; an episode has ``steps`` steps of ``interval_s`` seconds.

    Observations: of each circuit the last ``history`` intervals' ``FEATURES`` (PCC-RL's). Actions: of each circuit a number
    in -1..1, by which its rate changes. ``reward`` is a name of ``REWARDS`` or a function like those.
    """

    metadata = {"render_modes": []}

    def __init__(
        self, circuits: int = 3, interval_s: float = 0.04, steps: int = 400, history: int = 10, reward: Any = "pcc"
    ) -> None:
        self._of = _Circuits(circuits, interval_s, steps, history)
        self._reward = REWARDS[reward] if isinstance(reward, str) else reward
        self.observation_space, self.action_space = _spaces(circuits, history)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._of.begin(int(self.np_random.integers(2**32)), self.np_random)
        return self._of.seen, self._of.info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        seen = self._of.session.step(self._of.change(action))
        reward, over = self._of.after(seen, self._reward)
        return self._of.seen, reward, False, over, self._of.info


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
        self._all = [_Circuits(circuits, interval_s, steps, history) for _ in range(num_envs)]
        self._reward = REWARDS[reward] if isinstance(reward, str) else reward
        self.single_observation_space, self.single_action_space = _spaces(circuits, history)
        batch = gymnasium.vector.utils.batch_space
        self.observation_space = batch(self.single_observation_space, num_envs)
        self.action_space = batch(self.single_action_space, num_envs)
        self._over = np.zeros(num_envs, dtype=bool)

    def _begin(self, number: int) -> None:
        random = self._randoms[number]
        self._all[number].begin(int(random.integers(2**32)), random)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is None:
            seed = int(self.np_random.integers(2**32))
        seeds = [seed + n for n in range(self.num_envs)] if isinstance(seed, int) else list(seed)
        self._randoms = [gymnasium.utils.seeding.np_random(one)[0] for one in seeds]
        for number in range(self.num_envs):
            self._begin(number)
        self._over[:] = False
        return np.stack([one.seen for one in self._all]), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        going = np.flatnonzero(~self._over)
        sessions = [self._all[n].session for n in going]
        seen = _native.step_all(sessions, [self._all[n].change(actions[n]) for n in going])
        rewards, over = np.zeros(self.num_envs), np.zeros(self.num_envs, dtype=bool)
        for number in np.flatnonzero(self._over):
            self._begin(number)
        for number, one in zip(going, seen):
            rewards[number], over[number] = self._all[number].after(one, self._reward)
        self._over = over
        return np.stack([one.seen for one in self._all]), rewards, np.zeros_like(over), over.copy(), {}


gymnasium.register(
    id="tidegate/Bottleneck-v0", entry_point=Bottleneck, vector_entry_point=BottleneckVector
)
