"""Runs on a local Dask cluster. Skipped where `distributed` is not installed."""

import csv
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

import tidegate
import tidegate.dask

distributed = pytest.importorskip("distributed")
ROOT = pathlib.Path(__file__).parents[3]
BOTTLENECK = ROOT / "scenarios/bottleneck.toml"
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


STUDY = """
scenario = "{scenario}"
seeds = 2
overrides = ["duration = '{duration}'", "warmup = '500 ms'"]
[vary]
underlay.delay = ["20 ms", "60 ms"]
systems = ["vanilla", "predictor"]
"""


def study(folder, duration):
    path = folder / "delays.toml"
    path.write_text(STUDY.format(scenario=BOTTLENECK, duration=duration))
    return path


def runs(folder):
    """Digests of the runs that are kept, by name."""
    # With a dot in front is what was being written.
    records = folder.glob("runs/*/[!.]*/record.json")
    return {record.parent.name: json.loads(record.read_text())["digest"] for record in records}


def tool(*arguments):
    command = [pathlib.Path(sys.executable).with_name("tidegate"), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=True)
    return done.stdout + done.stderr


def test_a_sweep_is_the_tools_folder(client, tmp_path):
    path = study(tmp_path, "2 s")
    here = tidegate.dask.sweep(client, path, out=tmp_path / "out")
    tool("sweep", path, "--out", tmp_path / "other")
    assert here == tmp_path / "out" and runs(here) == runs(tmp_path / "other") and len(runs(here)) == 8
    for table in ["metrics.csv", "metrics.parquet"]:
        assert (here / table).read_bytes() == (tmp_path / "other" / table).read_bytes()
    listed = tool("runs", "ls", tmp_path)
    assert re.search(r"/out +delays +8 runs", listed) and re.search(r"/other +delays +8 runs", listed)
    # Each goes on with what the other has begun.
    names = sorted(runs(here))
    for name, folder in zip(names[:3], [here, here, tmp_path / "other"]):
        shutil.rmtree(next(folder.glob(f"runs/*/{name}")))
    assert "8 runs, 6 of them already stored" in tool("sweep", path, "--out", here)
    tidegate.dask.sweep(client, path, out=tmp_path / "other")
    assert runs(here) == runs(tmp_path / "other") and len(runs(here)) == 8


def test_a_sweep_survives_workers_and_itself(tmp_path):
    path, out = study(tmp_path, "30 s"), tmp_path / "out"
    script = f"""
import distributed, os, tidegate.dask
if __name__ == "__main__":
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client:
            print(*client.run(os.getpid).values(), flush=True)
            tidegate.dask.sweep(client, {str(path)!r}, out={str(out)!r})
"""
    (tmp_path / "sweep.py").write_text(script)
    begin = lambda: subprocess.Popen(
        [sys.executable, tmp_path / "sweep.py"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    first = begin()
    workers = [int(pid) for pid in first.stdout.readline().split()]
    time.sleep(1)
    os.kill(workers[0], signal.SIGKILL)
    while len(runs(out)) < 2:
        assert first.poll() is None
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = runs(out)
    assert 2 <= len(kept) < 8
    records = lambda: {name: next(out.glob(f"runs/*/{name}/record.json")).read_text() for name in kept}
    before = records()
    assert begin().wait() == 0
    assert len(runs(out)) == 8 and json.loads((out / "manifest.json").read_text())["complete"]
    assert records() == before, "made once: a record says how long it took"
    with (out / "metrics.csv").open() as table:
        rows = {(row["underlay.delay"], row["system"], row["seed"]) for row in csv.DictReader(table)}
    assert len(rows) == 8


def test_wrong_studies_are_refused(client, tmp_path):
    path = study(tmp_path, "2 s")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter").write_text("mine")
    with pytest.raises(tidegate.InputError, match="does not hold results of tidegate(.|\n)*choose another folder with `out`"):
        tidegate.dask.sweep(client, path, out=tmp_path / "full")
    path.write_text(path.read_text().replace("60 ms", "60"))
    with pytest.raises(tidegate.InputError, match="at the point systems = vanilla, underlay.delay = 60"):
        tidegate.dask.sweep(client, path, out=tmp_path / "out")
    with pytest.raises(tidegate.InputError, match="nothing.toml"):
        tidegate.dask.sweep(client, tmp_path / "nothing.toml")
    assert not (tmp_path / "out").exists()


def test_mistakes_are_told_before_anything_is_sent(client):
    with pytest.raises(tidegate.InputError, match="unknown key `underlay.dely`|unknown key `dely`"):
        tidegate.dask.run(client, BOTTLENECK, points=[{"underlay.dely": "20 ms"}])
    with pytest.raises(tidegate.InputError, match="there is no system `nobody`"):
        tidegate.run(BOTTLENECK, systems=["nobody"])
    with pytest.raises(ValueError, match="`seeds` is 0"):
        tidegate.dask.run(client, BOTTLENECK, seeds=0)
    with pytest.raises(ValueError, match="there is no table `nothing`; there are metrics, circuits"):
        tidegate.dask.run(client, BOTTLENECK, tables="nothing")
