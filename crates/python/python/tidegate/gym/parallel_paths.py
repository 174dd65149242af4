"""One peer of an overlay of per-packet random paths: how much to send through whom.

Every packet takes a random path of relays; each relay forwards a limited number of bytes per second and drops the rest (Raiber
2010, docs/parallel-paths.md). The agent is a source that sends as much as it may. Every second it changes its rate through
each other peer, which is a choice of paths too: through a peer of little rate few go. It sees what came back of packets through
that peer; one loss blames every relay of its path. All other peers do the same under a controller of Tidegate's.

Overlays are drawn by the seed: limits from 100 to 400 kB/s, positions in the thesis' square. Same seed and actions, same
observations.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from .. import _native
from .presets import preset

#: Bytes of a packet.
PACKET = 1500
#: Bytes/s that a peer forwards at most.
LIMITS = 100_000, 400_000
#: Bytes/s through each peer at first, at least and at most.
_FIRST, _LOWEST, _HIGHEST = 15_000.0, 1_500.0, float(LIMITS[1])
#: What an action of 1 does: a fifth more; one of -1 takes that back.
_STEP = 0.2
#: What observations hold of each interval: packets lost, of those that were acknowledged or lost; the round trip over the least
#: one; bytes acknowledged over those that were allowed; the rate over the highest possible.
FEATURES = ("loss", "latency ratio", "use", "rate")


def reward_goodput(seen: np.ndarray, rates: np.ndarray, fair: float, hops: int, interval: float) -> float:
    """What arrived, as a share of what each source gets if all get the same, less ten times the share that was lost."""
    acknowledged, lost = seen[:, 0].sum(), seen[:, 1].sum()
    return acknowledged / hops * PACKET / interval / fair - 10 * lost / max(acknowledged + lost, 1.0)


def reward_q_learning(seen: np.ndarray, rates: np.ndarray, fair: float, hops: int, interval: float) -> float:
    """The thesis' of its learner (chapter 5), the mean over all feedback: .015 s for an acknowledgement and -s for a loss, where s
    is the peer's rate in packets/s."""
    acknowledged, lost = seen[:, 0], seen[:, 1]
    return float((rates / PACKET * (0.015 * acknowledged - lost)).sum() / max((acknowledged + lost).sum(), 1.0))


#: Presets of the reward, by name: functions of an array of (peers, 3), packets acknowledged, packets lost and the round trip in s;
#: the peers' rates in bytes/s; what each source gets if all get the same, in bytes/s; relays on a path; the interval in s.
REWARDS = {"goodput": reward_goodput, "q-learning": reward_q_learning}


class ParallelPaths(gymnasium.Env):
    """A source among ``peers`` peers, whose packets take ``hops`` relays; an episode has ``steps`` steps of ``interval_s`` seconds.

    Observations: of each other peer the last ``history`` intervals' ``FEATURES``. Actions: of each other peer a number in -1..1,
    by which its rate changes. ``others`` is the controller of everybody else, as in docs/parallel-paths.md. ``reward`` is a name
    of ``REWARDS`` or a function like those.
    """

    metadata = {"render_modes": []}

    def __init__(
        self,
        peers: int = 10,
        hops: int = 3,
        others: str = "aimd",
        interval_s: float = 1.0,
        steps: int = 200,
        history: int = 3,
        reward: Any = "goodput",
    ) -> None:
        if steps < 1 or history < 1:
            raise ValueError(f"`steps` is {steps} and `history` {history}; give 1 or more")
        self._peers, self._hops, self._others, self._interval = peers, hops, others, interval_s
        self._steps, self._history, self._reward = steps, history, preset(reward, REWARDS)
        # What is wrong with the rest is said now.
        self._overlay([LIMITS[0]] * peers, 0)
        shape = (peers - 1, history, len(FEATURES))
        self.observation_space = gymnasium.spaces.Box(0, np.inf, shape, np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (peers - 1,), np.float32)

    def _overlay(self, limits: list[int], seed: int) -> _native.Overlay:
        return _native.Overlay(limits, self._hops, self._others, seed, self._interval, _FIRST)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._limits = self.np_random.integers(*LIMITS, size=self._peers, endpoint=True)
        self._run = self._overlay(self._limits.tolist(), int(self.np_random.integers(2**32)))
        # A packet counts against its relays and its destination.
        self._fair = float(self._limits.mean() / (self._hops + 1))
        self._rates = np.full(self._peers - 1, _FIRST)
        self._least, self._done = np.full(self._peers - 1, np.inf), 0
        self._seen = np.zeros(self.observation_space.shape, dtype=np.float32)
        self._seen[..., 1] = 1
        self._look()
        return self._seen.copy(), self._info | {"limits_bytes_per_s": self._limits.copy()}

    @property
    def _info(self) -> dict[str, Any]:
        return {"fair_bytes_per_s": self._fair, "rates_bytes_per_s": self._rates.copy()}

    def _look(self) -> np.ndarray:
        """Lets an interval pass at these rates, and appends it to what is observed."""
        told = np.frombuffer(self._run.step(self._rates.tobytes())).reshape(-1, 3)
        acknowledged, lost, trip = told.T
        self._least = np.where(trip > 0, np.minimum(self._least, trip), self._least)
        self._seen[:, :-1] = self._seen[:, 1:]
        new = self._seen[:, -1]
        new[:, 0] = lost / np.maximum(acknowledged + lost, 1)
        new[:, 1] = np.where(trip > 0, trip / self._least, 1)
        new[:, 2] = acknowledged * PACKET / (self._rates * self._interval)
        new[:, 3] = self._rates / _HIGHEST
        return told

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        action = np.clip(np.asarray(action, dtype=float), -1, 1)
        self._rates = np.clip(self._rates * (1 + _STEP) ** action, _LOWEST, _HIGHEST)
        told = self._look()
        self._done += 1
        reward = float(self._reward(told, self._rates, self._fair, self._hops, self._interval))
        return self._seen.copy(), reward, False, self._done >= self._steps, self._info
