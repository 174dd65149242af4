"""Environments with many learners, as PettingZoo's users meet them."""

import json
import pathlib
import warnings

import pytest

pytest.importorskip("pettingzoo")

import numpy as np  # noqa: E402
import tidegate  # noqa: E402
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test  # noqa: E402
from pettingzoo.utils.conversions import parallel_to_aec  # noqa: E402
from tidegate.gym.bottleneck import reward_remy  # noqa: E402
from tidegate.gym.circuits import Circuits  # noqa: E402


def test_it_keeps_pettingzoos_rules_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(Circuits(steps=30), num_cycles=100)
        parallel_seed_test(lambda: Circuits(steps=30), num_cycles=30)
        api_test(parallel_to_aec(Circuits(steps=30)), num_cycles=100, verbose_progress=False)


def episode(env, seed, act):
    seen, infos = env.reset(seed=seed)
    kept = []
    while env.agents:
        seen, rewards, *_, infos = env.step({agent: np.array([act(agent, infos)], np.float32) for agent in env.agents})
        kept.append(list(rewards.values()))
    return np.array(kept), infos


def test_each_circuit_acts_for_itself():
    rates = lambda infos: [of["rate_bytes_per_s"] for of in infos.values()]
    env = Circuits(steps=50)
    _, before = env.reset(seed=4)
    assert len(set(rates(before))) == 3, "circuits begin unequal"
    _, after = episode(env, 4, lambda agent, _: float(agent == "circuit_1"))
    assert [new / old for new, old in zip(rates(after), rates(before))] == pytest.approx([1, 1.025**50, 1])
    assert set(before["circuit_0"]) > {"scenario", "seed"}


def test_rewards_are_remys_objective():
    reward = lambda bytes, latencies: reward_remy(
        np.array([[[b, l, l] for b, l in zip(bytes, latencies)]]), np.array([[100.0]]), np.array([[0.1]]), 1.0
    )[0]
    # An equal share of the link on an empty network is worth nothing; log 2 more is twice the rate.
    assert reward([50, 50], [0.1, 0.1]) == pytest.approx([0, 0])
    assert reward([100, 25], [0.1, 0.2]) == pytest.approx([np.log(2), -np.log(4)])
    assert reward([80, 20], [0.1, 0.1]).sum() < 0, "an equal share has the largest sum"
    assert np.isfinite(reward([0, 0], [0, 0])).all(), "nothing arrived"


def test_the_stored_policy_is_as_fair_as_recorded(monkeypatch):
    examples = pathlib.Path(__file__).parents[3] / "examples/learning"
    monkeypatch.syspath_prepend(str(examples))
    import fairness

    recorded = json.loads((examples / "fairness.json").read_text())["as learnt"]
    row = fairness.compare(fairness.Policy.stored(examples / "fairness.npz"), {"as learnt": {}})["as learnt"]
    assert row == pytest.approx(recorded, abs=0.02)
    assert recorded["gain"] > recorded["gain_within"]


def test_wrong_arguments_are_refused():
    for wrong in [
        {"link_bits_per_s": (2, 1)},
        {"link_bits_per_s": 3e6},
        {"link_bits_per_s": (1, float("inf"))},
        {"delay_s": (0, 1)},
        {"delay_s": (1, 2, 3)},
        {"queue_packets": (2, 1)},
        {"queue_packets": None},
        {"circuits": 0},
        {"circuits": -1},
        {"reward": "none"},
    ]:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Circuits(**wrong)


def test_its_networks_run_with_other_systems():
    _, infos = Circuits(steps=200).reset(seed=1)
    scenario = {**infos["circuit_0"]["scenario"], "system": [{"name": "vegas", "control": "vegas"}]}
    summary = tidegate.run(scenario, seed=infos["circuit_0"]["seed"]).document["systems"]["vegas"]
    assert summary["cells_delivered"] > 0
