"""Circuits that share one slow relay.

Every interval the agent changes each circuit's rate at its exit, and observes what the client received. Networks are drawn
from the training ranges of PCC-RL (Jay et al., ICML 2019); other seeds give held-out networks.

Seed and actions determine the observations. Relays are connected by TCP, so nothing is lost end to end; congestion causes
only delay.
"""

from __future__ import annotations

import operator
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from .. import _native
from .presets import preset

#: Bytes of a packet in PCC-RL's reward; its throughputs are in packets/s.
_PACKET = 1500
#: PCC-RL's ranges of the slow link's rate in bit/s, of the empty network's latency in s, and of the link's queue in packets.
LINKS, DELAYS, QUEUES = (1.2e6, 6e6), (0.05, 0.5), (1, float(np.exp(8)))
#: Features of each observed interval, and their bounds.
FEATURES = ("latency gradient", "latency ratio", "sending ratio")
BOUNDS = np.array([-1e3, 0, 0], np.float32), np.array([1e3, 1e3, 1e3], np.float32)


def reward_pcc(seen: np.ndarray, link: np.ndarray, base: np.ndarray, interval: float) -> np.ndarray:
    """PCC-RL's reward without losses: 10 throughput (packets/s) - 1000 latency (s)."""
    return 10 * seen[..., 0] / interval / _PACKET - 1e3 * seen[..., 1]


def reward_remy(seen: np.ndarray, link: np.ndarray, base: np.ndarray, interval: float) -> np.ndarray:
    """Remy's objective (Winstein and Balakrishnan, SIGCOMM 2013): log throughput - log delay, relative to an equal share of
    the link and to the empty network. The sum is largest if circuits share equally."""
    share = seen[..., 0] / interval / link * seen.shape[-2]
    return np.log(np.maximum(share, 1e-3)) - np.log(np.maximum(seen[..., 1], base) / base)


def reward_orca(seen: np.ndarray, link: np.ndarray, base: np.ndarray, interval: float) -> np.ndarray:
    """Orca's reward (Abbasloo et al., SIGCOMM 2020): power relative to the empty network. Delays up to 1.25 times that of
    the empty network count as equal to it."""
    throughput = seen[..., 0] / interval / link
    delay = np.maximum(seen[..., 1], base)
    return throughput * base / np.where(delay <= 1.25 * base, base, delay)


#: Rewards by name. Arguments: an array with the last axes circuits and (bytes, mean latency, minimum latency), rates of the
#: slow links in bytes/s, latencies of the empty networks in s, and the interval in s.
REWARDS = {"pcc": reward_pcc, "orca": reward_orca, "remy": reward_remy}


class _Networks:
    """Several networks, their runs and observations. The first axis of every array is the network."""

    def __init__(self, count: int, circuits: int, interval: float, steps: int, history: int, reward: Any) -> None:
        if steps < 1:
            raise ValueError(f"`steps` is {steps}; give 1 or more")
        self.runs = _native.Bottlenecks(count, circuits, interval, history)
        self.circuits, self.interval, self.steps = circuits, interval, steps
        self.reward = preset(reward, REWARDS)
        self.scenarios, self.seeds = ([None] * count for _ in range(2))
        self.done = np.zeros(count, dtype=int)
        self.link, self.base = np.ones((count, 1)), np.ones((count, 1))
        self.told = (count, circuits, 3)
        self.shape = (count, circuits, history, len(FEATURES))

    def begin(
        self,
        n: int,
        random: np.random.Generator,
        links: tuple[float, float] = LINKS,
        delays: tuple[float, float] = DELAYS,
        queues: tuple[float, float] = QUEUES,
        unequal: bool = False,
    ) -> None:
        """Draws a network and runs its first interval. ``unequal`` circuits begin with shares drawn uniformly."""
        seed = int(random.integers(2**32))
        link = random.uniform(*links) / 8
        delay = random.uniform(*delays)
        queue = int(np.exp(random.uniform(*np.log(queues))))
        total = link * random.uniform(0.3, 1.5)
        equal = np.full(self.circuits, total / self.circuits)
        rates = total * random.dirichlet(np.ones(self.circuits)) if unequal else equal
        self.link[n], self.base[n] = link, delay
        self.scenarios[n], self.seeds[n] = self.scenario(link, delay, queue), seed
        self.runs.begin(n, self.scenarios[n], seed, link, rates.tolist())
        self.done[n] = 0

    def scenario(self, link: float, delay: float, queue: int) -> dict[str, Any]:
        relay = lambda name, rate: {"name": name, "link": f"{int(8 * rate)} bit/s"}
        names = range(self.circuits)
        fast = 10 * link
        duration = int(1000 * self.interval * (self.steps + 1)) + 1
        return {
            "name": "bottleneck",
            "duration": f"{duration} ms",
            # A run needs one sample at least. Agents do not read them.
            "sample": f"{min(1000, duration // 2)} ms",
            "trace-one-in": 0,
            "system": [{"name": "learnt", "transport": "pctcp"}],
            # Data crosses two paths between three relays.
            "underlay": {"delay": f"{int(1e6 * delay / 2)} us"},
            "relay": [relay(f"exit{n}", fast) for n in names]
            + [relay("slow", link) | {"queue": f"{max(2, queue)} packets"}]
            + [relay(f"guard{n}", fast) for n in names],
            "user": [
                {"name": f"circuit{n}", "path": [f"guard{n}", "slow", f"exit{n}"], "traffic": "bulk"} for n in names
            ],
        }

    @property
    def seen(self) -> np.ndarray:
        """The current observations."""
        return np.frombuffer(self.runs.observed(), dtype=np.float32).reshape(self.shape)

    def step(self, actions: np.ndarray) -> np.ndarray:
        """Applies PCC-RL's actions, which change a rate by up to 1/40. Returns the reward of each circuit."""
        told = self.runs.step(np.asarray(actions, dtype=np.float32).tobytes())
        self.done += 1
        told = np.frombuffer(told).reshape(self.told)
        rewards = np.asarray(self.reward(told, self.link, self.base, self.interval), dtype=float)
        # Another shape would give an environment the rewards of others.
        if rewards.shape != self.told[:2]:
            raise ValueError(f"`reward` returned the shape {rewards.shape}; return {self.told[:2]}: networks and circuits")
        return rewards


def _spaces(circuits: int, history: int) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    low, high = (np.tile(bound, (circuits, history, 1)) for bound in BOUNDS)
    return gymnasium.spaces.Box(low, high), gymnasium.spaces.Box(-1, 1, (circuits,), np.float32)


class Bottleneck(gymnasium.Env):
    """``circuits`` circuits through one slow relay; an episode has ``steps`` steps of ``interval_s`` seconds.

    Observations are the ``FEATURES`` (PCC-RL's) of the last ``history`` intervals per circuit. Actions are one number from -1
    to 1 per circuit, which changes its rate. ``reset`` returns the network's ``scenario`` and ``seed``, which
    ``tidegate.run`` accepts with other systems.

    ``reward`` is a key of ``REWARDS``, or a function of four arguments: an array of shape (1, ``circuits``, 3) with bytes, mean
    latency and minimum latency in s; the slow link's rate in bytes/s and the empty network's latency in s, both of shape
    (1, 1); and the interval in s. It returns an array of shape (1, ``circuits``). The first axis is the network.
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
            "rates_bytes_per_s": np.array(self._of.runs.rates(0)),
        }

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._of.begin(0, self.np_random)
        network = {"scenario": self._of.scenarios[0], "seed": self._of.seeds[0]}
        return self._of.seen[0], self._info | network

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        rewards = self._of.step(action)
        return self._of.seen[0], float(rewards[0].mean()), False, bool(self._of.done[0] >= self._of.steps), self._info


class BottleneckVector(VectorEnv):
    """``num_envs`` environments, with one core per eight of them. The step after an episode's last one starts the next."""

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
        seed = int(seed) if isinstance(seed, np.integer) else seed
        super().reset(seed=seed if isinstance(seed, int) else None)
        if seed is None:
            seed = int(self.np_random.integers(2**32))
        if isinstance(seed, int):
            seeds = [seed + n for n in range(self.num_envs)]
        else:
            seeds = [one if one is None else operator.index(one) for one in seed]
        if len(seeds) != self.num_envs:
            raise ValueError(f"`seed` has {len(seeds)} numbers; give one number, or one for each of {self.num_envs} environments")
        self._randoms = [gymnasium.utils.seeding.np_random(one)[0] for one in seeds]
        for number in range(self.num_envs):
            self._all.begin(number, self._randoms[number])
        self._over[:] = False
        return self._all.seen, {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        before = self._over
        rewards = np.zeros(self.num_envs) if before.all() else self._all.step(actions).mean(axis=-1)
        if before.any():
            rewards[before] = 0.0
            for number in np.flatnonzero(before):
                self._all.begin(number, self._randoms[number])
        self._over = over = self._all.done >= self._all.steps
        for number in np.flatnonzero(over):
            self._all.runs.end(number)
        return self._all.seen, rewards, np.zeros_like(over), over.copy(), {}
