"""The environments for learning, as Gymnasium's users meet it."""

import json
import pathlib
import re
import time
import warnings

import pytest

gymnasium = pytest.importorskip("gymnasium")

import numpy as np  # noqa: E402
import tidegate.gym  # noqa: E402
from gymnasium.utils.env_checker import check_env  # noqa: E402

NAME = "tidegate/Bottleneck-v0"
PATHS = "tidegate/ParallelPaths-v0"


def episode(env, seed, action):
    observation, _ = env.reset(seed=seed)
    observations, rewards = [observation], []
    while True:
        observation, reward, terminated, truncated, info = env.step(action(env, info if rewards else None))
        observations.append(observation)
        rewards.append(reward)
        if terminated or truncated:
            return np.array(observations), np.array(rewards), info


@pytest.mark.parametrize("name", [NAME, PATHS])
def test_it_keeps_gymnasiums_rules_without_warnings(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, steps=20).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("name", [NAME, PATHS])
def test_same_seed_and_actions_give_the_same_episode(name):
    def run(seed):
        env = gymnasium.make(name, steps=50)
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
    # On an idle link, reducing the rate reduces the reward.
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


def test_wrong_arguments_and_actions_are_refused():
    for name, wrong, said in [
        (NAME, {"reward": "none"}, "`reward` is 'none'; give a function, or one of pcc, orca"),
        (NAME, {"circuits": 0}, "`circuits` is 0; give 1 to 1000"),
        (NAME, {"circuits": -1}, "`circuits` is -1; give 1 to 1000"),
        (NAME, {"interval_s": 0.0}, "`interval_s` is 0; give 0.001 to 10"),
        (NAME, {"history": 0}, "`history` is 0"),
        (NAME, {"steps": 0}, "`steps` is 0"),
        (PATHS, {"reward": "none"}, "give a function, or one of goodput, q-learning"),
        (PATHS, {"others": "nobody"}, "`others`: there is no controller `nobody`; use one of"),
        (PATHS, {"others": "perfect"}, "the perfect controller knows everything"),
        (PATHS, {"peers": 4}, "3 hops among 4 peers"),
        (PATHS, {"peers": -1}, "3 hops among 0 peers"),
        (PATHS, {"hops": 9, "peers": 20}, "give 1 to 8 hops"),
        (PATHS, {"interval_s": 0}, "`interval_s` is 0; give 0.1 to 1000"),
        (PATHS, {"history": 0}, "`history` 0; give 1 or more"),
    ]:
        with pytest.raises(ValueError, match=re.escape(said)):
            gymnasium.make(name, **wrong)
    env = gymnasium.make(NAME, steps=5).unwrapped
    with pytest.raises(RuntimeError, match="call `reset` first"):
        env.step(np.zeros(3))
    env.reset(seed=1)
    for action in [np.zeros(2), [0.0, 1.0, np.nan]]:
        with pytest.raises(ValueError, match="expected 3 actions between -1 and 1"):
            env.step(action)
    env = gymnasium.make(PATHS, steps=5).unwrapped
    with pytest.raises(RuntimeError, match="call `reset` first"):
        env.step(np.zeros(9))
    env.reset(seed=1)
    for action in [np.zeros(2), 0.0, np.full(9, np.nan)]:
        with pytest.raises(ValueError, match="expected 9 actions between -1 and 1"):
            env.step(action)
    assert np.isfinite(env.step(np.zeros(9))[0]).all(), "a refused action changes nothing"


def test_rewards_of_another_shape_are_refused():
    for reward in [lambda *_: 1.0, lambda seen, *_: seen[0, :, 0], lambda seen, *_: seen]:
        env = gymnasium.make(NAME, reward=reward).unwrapped
        env.reset(seed=1)
        with pytest.raises(ValueError, match=re.escape("`reward` returned the shape") + ".*" + re.escape("return (1, 3)")):
            env.step(np.zeros(3))


def test_vectors_take_seeds_of_numpy_and_refuse_too_few():
    vector = gymnasium.make_vec(NAME, num_envs=3, vectorization_mode="vector_entry_point", steps=2)

    def rates(seed):
        vector.reset(seed=seed)
        return [vector.unwrapped._all.runs.rates(number) for number in range(3)]

    assert rates(3) == rates(np.int64(3)) == rates([3, 4, 5]) == rates(np.arange(3, 6)) != rates(4)
    with pytest.raises(ValueError, match="`seed` has 2 numbers; give one number, or one for each of 3 environments"):
        vector.reset(seed=[1, 2])


def test_who_sends_more_than_relays_carry_loses_it():
    def run(action, **keys):
        env = gymnasium.make(PATHS, steps=60, **keys)
        return episode(env, 5, lambda env, _: np.full(9, action, dtype=np.float32))

    greedy, modest = run(1.0), run(-1.0)
    assert greedy[0][-1, :, -1, 0].mean() > 0.1 > 0.01 > modest[0][-1, :, -1, 0].mean(), "the share that is lost"
    assert (greedy[2]["rates_bytes_per_s"] == 400_000).all() and (modest[2]["rates_bytes_per_s"] == 1_500).all()
    # One packet per second through each of nine peers is three packets per second.
    assert modest[1][-20:].mean() == pytest.approx(3 * 1500 / modest[2]["fair_bytes_per_s"], rel=0.1)
    # AIMD gives way, so that greed pays by the one reward, and not by the other.
    assert greedy[1][-20:].mean() > 1 > modest[1][-20:].mean()
    of_thesis = lambda action: run(action, reward="q-learning")[1][-20:].mean()
    assert of_thesis(1.0) < 0 < of_thesis(0.0)
    assert not np.array_equal(run(0.0)[0], run(0.0, others="explicit")[0]), "who else sends matters"


def test_packets_go_where_rates_are():
    env = gymnasium.make(PATHS, steps=40, reward=lambda seen, *_: float(seen[:4, 0].sum() / seen[:, 0].sum()))
    favoured = episode(env, 5, lambda env, _: np.where(np.arange(9) < 4, 0.0, -1.0).astype(np.float32))
    even = episode(env, 5, lambda env, _: np.zeros(9, dtype=np.float32))
    assert favoured[1][-5:].mean() > 0.8 > 0.6 > even[1][-5:].mean()


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
