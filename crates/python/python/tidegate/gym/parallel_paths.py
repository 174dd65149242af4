"""One peer of an overlay with per-packet random paths, which sets its rate through each other peer.

Every packet takes a random path of relays. Each relay forwards a limited number of bytes per second and drops the rest
(Raiber 2010, docs/parallel-paths.md). The agent is a source that sends as fast as its rates allow. Every second it changes
its rate through each other peer, which also determines how often paths use that peer. It observes the feedback of packets
through each peer; a loss counts for every relay of its path. All other peers use a controller of Tidegate.

The seed determines the overlay: limits from 100 to 400 kB/s, positions in the thesis' square. Seed and actions determine
the observations.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from .. import _native
from .presets import preset

#: Bytes of a packet.
PACKET = 1500
#: Range of peers' forwarding limits in bytes/s.
LIMITS = 100_000, 400_000
#: Initial, minimum and maximum rate through each peer in bytes/s.
_FIRST, _LOWEST, _HIGHEST = 15_000.0, 1_500.0, float(LIMITS[1])
#: Effect of an action: 1 raises the rate by 20 %, -1 reverts that.
_STEP = 0.2
#: Largest value of a feature.
_MOST = 1e3
#: Features of each observed interval: share of lost packets; round trip over the minimum one; acknowledged over allowed bytes;
#: rate over the maximum rate.
FEATURES = ("loss", "latency ratio", "use", "rate")


def reward_goodput(seen: np.ndarray, rates: np.ndarray, fair: float, hops: int, interval: float) -> float:
    """Received rate over an equal share of all sources, minus ten times the share of lost packets."""
    acknowledged, lost = seen[:, 0].sum(), seen[:, 1].sum()
    return acknowledged / hops * PACKET / interval / fair - 10 * lost / max(acknowledged + lost, 1.0)


def reward_q_learning(seen: np.ndarray, rates: np.ndarray, fair: float, hops: int, interval: float) -> float:
    """Reward of the thesis' learner (chapter 5), as the mean over all feedback: 0.015 s for an acknowledgement and -s for a
    loss, where s is the peer's rate in packets/s."""
    acknowledged, lost = seen[:, 0], seen[:, 1]
    return float((rates / PACKET * (0.015 * acknowledged - lost)).sum() / max((acknowledged + lost).sum(), 1.0))


#: Rewards by name. Arguments: an array of (peers, 3) with packets acknowledged, packets lost and the round trip in s; rates of
#: peers in bytes/s; an equal share of all sources in bytes/s; number of relays on a path; the interval in s.
REWARDS = {"goodput": reward_goodput, "q-learning": reward_q_learning}


class ParallelPaths(gymnasium.Env):
    """A source among ``peers`` peers, whose packets take ``hops`` relays; an episode has ``steps`` steps of ``interval_s`` seconds.

    Observations are the ``FEATURES`` of the last ``history`` intervals per other peer. Actions are one number from -1 to 1 per
    other peer, which changes the rate through it. ``others`` is the controller of all other peers (docs/parallel-paths.md).

    ``reward`` is a key of ``REWARDS``, or a function of five arguments: an array of shape (``peers`` - 1, 3) with packets
    acknowledged, packets lost and the round trip in s; the rates through peers in bytes/s; an equal share of all sources in
    bytes/s; ``hops``; and the interval in s. It returns a number.
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
        # Raises for mistakes in the other arguments.
        self._overlay([LIMITS[0]] * peers, 0)
        shape = (peers - 1, history, len(FEATURES))
        self.observation_space = gymnasium.spaces.Box(0, _MOST, shape, np.float32)
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
        """Runs an interval with these rates, and appends it to the observations."""
        told = np.frombuffer(self._run.step(self._rates.tobytes())).reshape(-1, 3)
        acknowledged, lost, trip = told.T
        self._least = np.where(trip > 0, np.minimum(self._least, trip), self._least)
        self._seen[:, :-1] = self._seen[:, 1:]
        new = self._seen[:, -1]
        new[:, 0] = lost / np.maximum(acknowledged + lost, 1)
        new[:, 1] = np.where(trip > 0, trip / self._least, 1)
        new[:, 2] = acknowledged * PACKET / (self._rates * self._interval)
        new[:, 3] = self._rates / _HIGHEST
        np.minimum(new, _MOST, out=new)
        return told

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not hasattr(self, "_run"):
            raise RuntimeError("no overlay is running; call `reset` first")
        action = np.asarray(action, dtype=float)
        # Rates would stay NaN.
        if action.shape != self.action_space.shape or np.isnan(action).any():
            raise ValueError(f"expected {self._peers - 1} actions between -1 and 1, got {action.tolist()}")
        action = np.clip(action, -1, 1)
        self._rates = np.clip(self._rates * (1 + _STEP) ** action, _LOWEST, _HIGHEST)
        told = self._look()
        self._done += 1
        reward = float(self._reward(told, self._rates, self._fair, self._hops, self._interval))
        return self._seen.copy(), reward, False, self._done >= self._steps, self._info
