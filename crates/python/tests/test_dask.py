"""Runs on a local Dask cluster. Skipped where `distributed` is not installed."""

import os
import pathlib
import signal
import threading
import time

import pytest

import tidegate
import tidegate.dask

distributed = pytest.importorskip("distributed")
BOTTLENECK = pathlib.Path(__file__).parents[3] / "scenarios/bottleneck.toml"
SHORT = {"duration": "2 s", "warmup": "500 ms"}


@pytest.fixture(scope="module")
def client():
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client:
            yield client


def test_results_are_those_of_one_machine(client):
    here = tidegate.run(BOTTLENECK, seeds=2, set=SHORT)
    there = tidegate.dask.run(client, BOTTLENECK, seeds=2, set=SHORT, tables=["metrics", "circuits"])
    assert there.digests == here.digests and len(there) == 6
    rows = lambda table: sorted(zip(*(map(str, column) for column in table.values())))
    assert rows(there.table("circuits")) == rows(here.circuits.to_dict())
    points = tidegate.dask.run(client, BOTTLENECK, set=SHORT, points=[{"underlay.delay": f"{ms} ms"} for ms in (20, 60)])
    means = [
        value
        for metric, value in zip(points.table()["metric"], points.table()["value"])
        if metric == "latency_mean_s"
    ]
    assert set(points.table()["underlay.delay"]) == {"20 ms", "60 ms"} and max(means[:3]) < max(means[3:])


def test_a_worker_that_is_killed_costs_nothing(client):
    workers = client.run(os.getpid)
    lost = []

    def kill():
        time.sleep(1)
        address, pid = next(iter(workers.items()))
        lost.extend(client.processing()[address])
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    longer = {"duration": "20 s", "warmup": "500 ms"}
    there = tidegate.dask.run(client, BOTTLENECK, seeds=6, set=longer)
    killer.join()
    assert lost, "it was killed in mid-run"
    assert there.digests == tidegate.run(BOTTLENECK, seeds=6, set=longer).digests
    assert set(client.run(os.getpid).values()) != set(workers.values()), "the worker was another one's place"


def test_mistakes_are_told_before_anything_is_sent(client):
    with pytest.raises(tidegate.InputError, match="unknown key `underlay.dely`|unknown key `dely`"):
        tidegate.dask.run(client, BOTTLENECK, points=[{"underlay.dely": "20 ms"}])
    with pytest.raises(tidegate.InputError, match="there is no system `nobody`"):
        tidegate.run(BOTTLENECK, systems=["nobody"])
    with pytest.raises(ValueError, match="`seeds` is 0"):
        tidegate.dask.run(client, BOTTLENECK, seeds=0)
