"""Is fairness that circuits learnt in one network kept in others? Many learners share one policy, with numpy alone.

    python examples/learning/fairness.py train       # writes fairness.npz beside this file
    python examples/learning/fairness.py compare     # writes fairness.json

Three circuits begin with unequal rates on a link of 3 Mbit/s with 200 ms of delay, observe only themselves, and get Orca's
power as their own reward. `compare` measures Jain's index of what they receive from second 20 to second 40, in that network
and in others, paired by seed with circuits that keep their first rates.
"""

import argparse
import json
import pathlib

import numpy as np
from ppo import Adam, Policy, advantages_of, improve
from tidegate.gym.circuits import Circuits

HERE = pathlib.Path(__file__).parent
ENVS, STEPS, UPDATES, RATE = 8, 200, 40, 1e-3
HOME = {"circuits": 3, "interval_s": 0.2, "link_bits_per_s": (3e6, 3e6), "delay_s": (0.2, 0.2), "queue_packets": (100, 100)}
#: Networks to try. Each changes one property of the one that was learnt.
NETWORKS = {
    "as learnt": {},
    "link of 1.2 Mbit/s": {"link_bits_per_s": (1.2e6, 1.2e6)},
    "link of 12 Mbit/s": {"link_bits_per_s": (12e6, 12e6)},
    "delay of 50 ms": {"delay_s": (0.05, 0.05)},
    "delay of 500 ms": {"delay_s": (0.5, 0.5)},
    "queue of 20 packets": {"queue_packets": (20, 20)},
    "queue of 1,000 packets": {"queue_packets": (1000, 1000)},
    "two circuits": {"circuits": 2},
    "ten circuits": {"circuits": 10},
}
SEEDS = range(1_000_000, 1_000_024)


def stacked(of):
    return np.stack(list(of.values()))


def collect(policy, envs, random, seed):
    """Runs an episode of every environment; returns it with the advantage of each step of each circuit."""
    kept = []
    for number, env in enumerate(envs):
        seen, _ = env.reset(seed=seed + number)
        told = {name: [] for name in ("inputs", "actions", "rewards", "values")}
        while env.agents:
            inputs = policy.inputs(stacked(seen))
            mean = policy.forward(policy.mean, inputs)[-1]
            actions = mean + np.exp(policy.deviation[0]) * random.normal(size=mean.shape)
            values = policy.forward(policy.value, inputs)[-1]
            seen, rewards, *_ = env.step(dict(zip(env.agents, np.clip(actions, -1, 1))))
            for name, what in zip(told, (inputs, actions, stacked(rewards)[:, None], values)):
                told[name].append(what)
        told = {name: np.array(what) for name, what in told.items()}
        after = policy.forward(policy.value, policy.inputs(stacked(seen)))[-1]
        told["advantages"] = advantages_of(told["rewards"], told["values"], after)
        kept.append(told)
    flat = lambda name: np.concatenate([told[name].reshape(-1, told[name].shape[-1]) for told in kept])
    returns = flat("advantages") + flat("values")
    return flat("inputs"), flat("actions"), flat("advantages"), returns, float(flat("rewards").mean())


def train(updates=UPDATES, seed=1, tell=lambda text: print(text, flush=True)):
    """Returns a policy, and the mean reward of the episodes of every update."""
    random = np.random.default_rng(seed)
    policy, envs = Policy(random), [Circuits(steps=STEPS, reward="orca", **HOME) for _ in range(ENVS)]
    adam, curve = Adam(policy.parameters), []
    for update in range(updates):
        *collected, reward = collect(policy, envs, random, 1000 * seed + ENVS * update)
        improve(policy, adam, RATE * (1 - update / UPDATES), random, *collected)
        curve.append(reward)
        if update % 10 == 9:
            tell(f"update {update + 1}: mean reward of the last ten {np.mean(curve[-10:]):.4f}")
    return policy, curve


def jain(received):
    return float(received.sum() ** 2 / (len(received) * (received**2).sum()))


def fairness(policy, network, seed):
    """Jain's index and the share of the link in the second half of an episode; `None` keeps the first rates."""
    told = []

    def reward(seen, link, base, interval):
        told.append(seen[0, :, 0].copy())
        return seen[..., 0]

    env = Circuits(steps=STEPS, reward=reward, **(HOME | network))
    seen, infos = env.reset(seed=seed)
    link = infos["circuit_0"]["link_bytes_per_s"]
    while env.agents:
        inputs = policy.inputs(stacked(seen)) if policy else None
        actions = np.clip(policy.forward(policy.mean, inputs)[-1], -1, 1) if policy else np.zeros((len(env.agents), 1))
        seen, *_ = env.step(dict(zip(env.agents, actions)))
    received = np.array(told)[STEPS // 2 :].sum(axis=0)
    return jain(received), float(received.sum() / (link * HOME["interval_s"] * (STEPS - STEPS // 2)))


def compare(policy, networks=NETWORKS, seeds=SEEDS):
    """Per network: the mean index, its paired gain over first rates with a 95 % interval, and the share of the link."""
    table = {}
    for name, network in networks.items():
        steered = np.array([fairness(policy, network, seed) for seed in seeds])
        kept = np.array([fairness(None, network, seed) for seed in seeds])
        gains = steered[:, 0] - kept[:, 0]
        # Student's t for 23 degrees of freedom.
        within = 2.069 * gains.std(ddof=1) / np.sqrt(len(gains))
        table[name] = {
            "n": len(gains),
            "fairness": round(float(steered[:, 0].mean()), 4),
            "fairness_of_first_rates": round(float(kept[:, 0].mean()), 4),
            "gain": round(float(gains.mean()), 4),
            "gain_within": round(float(within), 4),
            "share_of_link": round(float(steered[:, 1].mean()), 4),
        }
    return table


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=["train", "compare"])
    if arguments.parse_args().what == "train":
        policy, curve = train()
        np.savez(HERE / "fairness.npz", *policy.parameters)
        print(f"mean reward: {curve[0]:.3f} at first, {np.mean(curve[-5:]):.3f} at last")
        return
    table = compare(Policy.stored(HERE / "fairness.npz"))
    (HERE / "fairness.json").write_text(json.dumps(table, indent=2) + "\n")
    print(f"{'':>22}  {'fairness':>8}  {'gain over first rates':>22}  of link")
    for name, row in table.items():
        gain = f"{row['gain']:.3f} +- {row['gain_within']:.3f}"
        print(f"{name:>22}  {row['fairness']:8.3f}  {gain:>22}  {row['share_of_link']:7.3f}")


if __name__ == "__main__":
    main()
