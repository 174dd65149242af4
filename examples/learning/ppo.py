"""Proximal policy optimisation (Schulman et al. 2017) on tidegate/Bottleneck-v0, with numpy alone and a fixed seed.

    python examples/learning/ppo.py train            # writes policy.npz and curve.json beside this file
    python examples/learning/ppo.py compare          # on held-out networks, against Vegas, PredicTor and AIMD

One small network (30 inputs, 32 and 16 tanh units, as in PCC-RL) controls each circuit separately; all circuits get the mean
reward, Orca's power. Held-out networks are other seeds of the same ranges.
"""

import argparse
import json
import pathlib

import gymnasium
import numpy as np
import tidegate
import tidegate.gym

HERE = pathlib.Path(__file__).parent
ENVS, STEPS, UPDATES = 8, 400, 80
GAMMA, LAMBDA, CLIP, EPOCHS, BATCHES, RATE = 0.98, 0.95, 0.2, 6, 8, 1e-3
HELD_OUT = range(1_000_000, 1_000_024)
#: Initial deviation of actions. An action changes a rate by at most 1/40, so a larger deviation would hide its effect.
FIRST_DEVIATION = 0.5


class Policy:
    """Separate networks for mean and value, and a deviation that does not depend on observations."""

    def __init__(self, random):
        def layers(outputs):
            sizes = [30, 32, 16, outputs]
            return [
                array
                for one, two in zip(sizes, sizes[1:])
                for array in (random.normal(0, (1 if two > outputs else 0.1) / np.sqrt(one), (one, two)), np.zeros(two))
            ]

        self.mean, self.value, self.deviation = layers(1), layers(1), [np.array([np.log(FIRST_DEVIATION)])]

    @classmethod
    def stored(cls, path):
        policy = cls(np.random.default_rng(1))
        with np.load(path) as stored:
            for parameter, name in zip(policy.parameters, stored.files):
                parameter[...] = stored[name]
        return policy

    @property
    def parameters(self):
        return self.mean + self.value + self.deviation

    @staticmethod
    def inputs(seen):
        """Returns the last intervals of every circuit, scaled to similar magnitudes."""
        gradient, latency, sending = seen[..., 0], seen[..., 1], seen[..., 2]
        scaled = [np.clip(gradient, -2, 2), np.clip(np.log(latency), 0, 3), np.clip(sending - 1, -1, 3)]
        return np.stack(scaled, axis=-1).reshape(-1, 30).astype(float)

    @staticmethod
    def forward(layers, inputs):
        kept = [inputs]
        for weights, bias in zip(layers[::2], layers[1::2]):
            sums = kept[-1] @ weights + bias
            kept.append(np.tanh(sums) if weights.shape[1] > 1 else sums)
        return kept

    @staticmethod
    def backward(layers, kept, slope):
        """Returns the gradients of the layers from that of the output."""
        gradients = []
        for number in reversed(range(len(layers) // 2)):
            weights, before = layers[2 * number], kept[number]
            gradients = [before.T @ slope, slope.sum(axis=0), *gradients]
            slope = (slope @ weights.T) * (1 - before**2) if number > 0 else None
        return gradients


class Adam:
    def __init__(self, parameters):
        self.parameters, self.count = parameters, 0
        self.first, self.second = ([np.zeros_like(one) for one in parameters] for _ in range(2))

    def step(self, gradients, rate):
        self.count += 1
        norm = np.sqrt(sum((one**2).sum() for one in gradients))
        for n, gradient in enumerate(gradients):
            gradient = gradient * min(1.0, 0.5 / (norm + 1e-9))
            self.first[n] = 0.9 * self.first[n] + 0.1 * gradient
            self.second[n] = 0.999 * self.second[n] + 0.001 * gradient**2
            first = self.first[n] / (1 - 0.9**self.count)
            second = self.second[n] / (1 - 0.999**self.count)
            self.parameters[n] -= rate * first / (np.sqrt(second) + 1e-8)


def advantages_of(rewards, values, last):
    """Generalised advantage estimates of an episode. `last` is the value after it."""
    advantages, ahead, after = np.zeros_like(rewards), np.zeros_like(last), last
    for n in reversed(range(len(rewards))):
        ahead = rewards[n] + GAMMA * after - values[n] + GAMMA * LAMBDA * ahead
        advantages[n], after = ahead, values[n]
    return advantages


def collect(policy, env, seed, random):
    """Runs an episode of every environment; returns it with the advantage of each step."""
    seen, _ = env.reset(seed=seed)
    kept = {name: [] for name in ("inputs", "actions", "rewards", "values")}
    for _ in range(STEPS):
        inputs = policy.inputs(seen)
        mean = policy.forward(policy.mean, inputs)[-1]
        actions = mean + np.exp(policy.deviation[0]) * random.normal(size=mean.shape)
        values = policy.forward(policy.value, inputs)[-1]
        seen, rewards, *_ = env.step(actions.reshape(ENVS, -1))
        for name, what in zip(kept, (inputs, actions, np.repeat(rewards, len(inputs) // ENVS)[:, None], values)):
            kept[name].append(what)
    kept = {name: np.array(what) for name, what in kept.items()}
    last = policy.forward(policy.value, policy.inputs(seen))[-1]
    advantages = advantages_of(kept["rewards"], kept["values"], last)
    flat = lambda what: what.reshape(-1, what.shape[-1])
    returns = flat(advantages + kept["values"])
    return flat(kept["inputs"]), flat(kept["actions"]), flat(advantages), returns, float(kept["rewards"].mean())


def improve(policy, adam, rate, random, inputs, actions, advantages, returns):
    """Makes several passes over the collected steps."""
    density = lambda mean, log: -((actions_of - mean) ** 2) / (2 * np.exp(2 * log)) - log
    before_mean, before_log = policy.forward(policy.mean, inputs)[-1], policy.deviation[0].copy()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    for _ in range(EPOCHS):
        for part in np.array_split(random.permutation(len(inputs)), BATCHES):
            actions_of, advantage = actions[part], advantages[part]
            kept, log = policy.forward(policy.mean, inputs[part]), policy.deviation[0]
            ratio = np.exp(density(kept[-1], log) - density(before_mean[part], before_log))
            # The gradient is zero where the clipped objective is the smaller one.
            free = ~((advantage > 0) & (ratio > 1 + CLIP) | (advantage < 0) & (ratio < 1 - CLIP))
            weight = -(free * ratio) * advantage / len(part)
            away = (actions_of - kept[-1]) / np.exp(2 * log)
            of_mean = policy.backward(policy.mean, kept, weight * away)
            of_log = (weight * (away * (actions_of - kept[-1]) - 1)).sum(axis=0) - 1e-3
            values = policy.forward(policy.value, inputs[part])
            of_value = policy.backward(policy.value, values, (values[-1] - returns[part]) / len(part))
            adam.step(of_mean + of_value + [of_log], rate)


def train(updates=UPDATES, seed=1, tell=lambda text: print(text, flush=True)):
    """Returns a policy, and the mean reward of the episodes of every update."""
    random = np.random.default_rng(seed)
    policy = Policy(random)
    adam = Adam(policy.parameters)
    env = gymnasium.make_vec(
        "tidegate/Bottleneck-v0", num_envs=ENVS, vectorization_mode="vector_entry_point", steps=STEPS + 1, reward="orca"
    )
    curve = []
    for update in range(updates):
        *collected, reward = collect(policy, env, 1000 * seed + ENVS * update, random)
        improve(policy, adam, RATE * (1 - update / UPDATES), random, *collected)
        curve.append(reward)
        if update % 10 == 9:
            tell(f"update {update + 1}: mean reward of the last ten {np.mean(curve[-10:]):.4f}")
    return policy, curve


class Aimd(tidegate.Window):
    """A window that grows by one increment per window, and halves if a round trip takes twice the minimum."""

    def __init__(self):
        super().__init__()
        self.cells, self.sent_at, self.least, self.rested_until = 124.0, [], np.inf, 0.0

    def sent(self, now_s):
        super().sent(now_s)
        self.sent_at.append(now_s)

    def acknowledged(self, now_s, blocked):
        super().acknowledged(now_s, blocked)
        trip = now_s - self.sent_at[self.sendme_increment - 1]
        del self.sent_at[: self.sendme_increment]
        self.least = min(self.least, trip)
        self.cells += self.sendme_increment**2 / self.cells
        if trip > 2 * self.least and now_s > self.rested_until:
            self.cells, self.rested_until = max(62.0, self.cells / 2), now_s + trip


#: Controls to compare: parts of a system, and a Python control if there is one.
OTHERS = {
    "vegas": ({"control": "vegas"}, None),
    "predictor": ({"transport": "pctcp", "control": "predictor"}, None),
    "aimd": ({}, Aimd),
}
WARM_UP = 100


def power(throughput, latency, base):
    """Orca's power over a whole run."""
    return throughput * base / (base if latency <= 1.25 * base else latency)


def learnt(policy, seed):
    """Runs the policy on a network; returns share of the link, latency in s, and the network."""
    told = []

    def reward(seen, link, base, interval):
        told.append(seen[0])
        return seen[..., 0]

    env = gymnasium.make("tidegate/Bottleneck-v0", steps=STEPS, reward=reward)
    seen, info = env.reset(seed=seed)
    for _ in range(STEPS):
        action = policy.forward(policy.mean, policy.inputs(seen))[-1].ravel()
        seen, *_ = env.step(action)
    delivered, latency = np.array(told)[WARM_UP:, :, 0], np.array(told)[WARM_UP:, :, 1]
    share = delivered.sum() / (info["link_bytes_per_s"] * 0.04 * len(delivered))
    return share, float((delivered * latency).sum() / delivered.sum()), info


def compare(policy, seeds=HELD_OUT):
    """Returns means over held-out networks of (share of the link, latency over that of the empty network, power), and on
    how many networks each control has the most power."""
    rows = {name: [] for name in ("learnt", *OTHERS)}
    for seed in seeds:
        share, latency, info = learnt(policy, seed)
        base = info["base_latency_s"]
        rows["learnt"].append((share, latency / base, power(share, latency, base)))
        for name, (parts, control) in OTHERS.items():
            scenario = {**info["scenario"], "system": [{"name": name, **parts}], "warmup": f"{WARM_UP * 40} ms"}
            results = tidegate.run(scenario, seed=info["seed"], control={name: control} if control else None)
            summary = results.document["systems"][name]
            share = summary["throughput_total_bytes_per_s"] / info["link_bytes_per_s"]
            latency = summary["latency_mean_s"]
            rows[name].append((share, latency / base, power(share, latency, base)))
    best = np.argmax([[row[2] for row in of] for of in rows.values()], axis=0)
    table = {}
    for n, (name, of) in enumerate(rows.items()):
        share, latency, mean = np.mean(of, axis=0)
        spread = 1.96 * np.std([row[2] for row in of]) / np.sqrt(len(of))
        table[name] = {
            "share_of_link": round(float(share), 4),
            "latency_over_base": round(float(latency), 3),
            "power": round(float(mean), 4),
            "power_within": round(float(spread), 4),
            "best_on": int((best == n).sum()),
        }
    return table


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=["train", "compare"])
    what = arguments.parse_args().what
    if what == "train":
        policy, curve = train()
        np.savez(HERE / "policy.npz", *policy.parameters)
        (HERE / "curve.json").write_text(json.dumps({"mean_reward": [round(one, 5) for one in curve]}) + "\n")
    else:
        table = compare(Policy.stored(HERE / "policy.npz"))
        (HERE / "compared.json").write_text(json.dumps(table, indent=2) + "\n")
        print(f"{'':>10}  {'of link':>8}  {'latency':>8}  {'power':>15}  best on")
        for name, row in table.items():
            held = f"{row['power']:.3f} +- {row['power_within']:.3f}"
            print(f"{name:>10}  {row['share_of_link']:8.3f}  {row['latency_over_base']:8.2f}  {held:>15}  {row['best_on']}")


if __name__ == "__main__":
    main()
