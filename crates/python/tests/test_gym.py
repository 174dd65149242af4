"""The environment for learning, as Gymnasium's users meet it."""

import json
import pathlib
import time

import pytest

gymnasium = pytest.importorskip("gymnasium")

import numpy as np  # noqa: E402
import tidegate.gym  # noqa: E402
from gymnasium.utils.env_checker import check_env  # noqa: E402

NAME = "tidegate/Bottleneck-v0"


def episode(env, seed, action):
    observation, _ = env.reset(seed=seed)
    observations, rewards = [observation], []
    while True:
        observation, reward, terminated, truncated, info = env.step(action(env, info if rewards else None))
        observations.append(observation)
        rewards.append(reward)
        if terminated or truncated:
            return np.array(observations), np.array(rewards), info


def test_it_keeps_gymnasiums_rules():
    check_env(gymnasium.make(NAME, steps=20).unwrapped, skip_render_check=True)


def test_same_seed_and_actions_give_the_same_episode():
    def run(seed):
        env = gymnasium.make(NAME, steps=50)
        env.action_space.seed(7)
        return episode(env, seed, lambda env, _: env.action_space.sample())

    one, other, third = run(1), run(1), run(2)
    assert np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])
    assert not np.array_equal(one[0], third[0])


def test_rates_decide_what_is_seen():
    def run(action, seed=3):
        env = gymnasium.make(NAME, circuits=2, steps=400, interval_s=0.1)
        return episode(env, seed, lambda env, _: np.full(2, action, dtype=np.float32))

    greedy, modest = run(1.0), run(-1.0)
    assert (greedy[2]["rates_bytes_per_s"] > 1.5 * greedy[2]["link_bytes_per_s"]).all()
    # Sending more than the link carries makes latencies grow, and clients get less than was sent.
    assert greedy[0][-1, :, -1, 1].mean() > 1.5 * modest[0][-1, :, -1, 1].mean()
    assert greedy[0][-1, :, -1, 2].mean() > 1.2
    # Where there is room, whoever sends less and less gets less.
    assert run(0.0, seed=1)[1].mean() > 5 * abs(run(-1.0, seed=1)[1].mean())


def test_a_vector_of_them_is_several_single_ones():
    count, steps = 3, 30
    vector = gymnasium.make_vec(NAME, num_envs=count, vectorization_mode="vector_entry_point", steps=steps)
    seen, _ = vector.reset(seed=11)
    actions = [np.full((count, 3), (-1) ** n * 0.5, dtype=np.float32) for n in range(steps)]
    rewards = []
    for action in actions:
        seen, reward, _, truncated, _ = vector.step(action)
        rewards.append(reward)
    assert truncated.all()
    for number in range(count):
        env = gymnasium.make(NAME, steps=steps)
        env.reset(seed=11 + number)
        for n, action in enumerate(actions):
            observation, reward, *_ = env.step(action[number])
            assert reward == pytest.approx(rewards[n][number])
        assert np.array_equal(observation, seen[number])
    seen, reward, _, truncated, _ = vector.step(actions[0])
    assert not truncated.any() and (reward == 0).all(), "a new episode begins"
    vector.close()


def test_wrong_rates_are_refused():
    with pytest.raises(KeyError):
        gymnasium.make(NAME, reward="none")
    env = gymnasium.make(NAME, steps=5)
    env.reset(seed=1)
    session = env.unwrapped._of.sessions[0]
    with pytest.raises(ValueError, match="give 3 rates in bytes/s"):
        session.step([1.0])
    with pytest.raises(ValueError, match="0 or more"):
        session.step([1.0, -1.0, float("nan")])


def test_what_was_learnt_can_be_learnt_again(monkeypatch):
    examples = pathlib.Path(__file__).parents[3] / "examples/learning"
    monkeypatch.syspath_prepend(str(examples))
    import ppo

    expected = json.loads((examples / "curve.json").read_text())["mean_reward"]
    _, curve = ppo.train(updates=2, tell=lambda text: None)
    assert curve == pytest.approx(expected[:2], rel=0.02)


@pytest.mark.skipif("not __import__('os').environ.get('TIDEGATE_SPEED')", reason="TIDEGATE_SPEED=1 measures speed")
def test_speed():
    for count in [1, 8]:
        env = gymnasium.make_vec(NAME, num_envs=count, vectorization_mode="vector_entry_point")
        env.reset(seed=1)
        action, begun, steps = np.zeros((count, 3), dtype=np.float32), time.perf_counter(), 3000
        cpu = time.process_time()
        for _ in range(steps):
            env.step(action)
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
        print(f"{count} at a time: {count * steps / took:.0f} steps/s, {count * steps / cpu:.0f} per CPU-second")
