"""The package as users meet it. `make python-test` builds a wheel, installs it into a fresh environment and runs this."""

import ast
import importlib.metadata
import inspect
import json
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import types

import pytest
import tidegate

ROOT = pathlib.Path(__file__).parents[3]
BOTTLENECK = ROOT / "scenarios/bottleneck.toml"
SHORT = {"duration": "2 s", "warmup": "500 ms"}
#: The wheel's tool.
TOOL = pathlib.Path(sys.executable).with_name("tidegate")


@pytest.fixture(scope="module")
def results():
    return tidegate.run(BOTTLENECK, seeds=2, set=SHORT)


def test_results_hold_every_table(results):
    systems = {"vanilla", "pctcp", "predictor"}
    for name in ["metrics", "circuits", "relays", "series", "latency"]:
        table = getattr(results, name)
        assert len(table) > 0, name
        assert set(table["system"]) == systems and set(table["seed"]) == {1, 2}, name
        assert all(len(table[column]) == len(table) for column in table.columns)
    assert "ttlb_s" in results.transfers.columns
    assert results.document["systems"].keys() == systems
    assert "predictor" in results.summary()
    with pytest.raises(KeyError, match="no column `nope`; there are system, seed"):
        results.metrics["nope"]
    for index in (0, slice(2), ["seed"]):
        with pytest.raises(TypeError, match="the name of a column"):
            results.metrics[index]
    assert "seed" in results.metrics and "nope" not in results.metrics and 0 not in results.metrics
    assert dict(results.metrics) == results.metrics.to_dict()


def test_digests_do_not_depend_on_threads_and_follow_the_seed(results):
    again = tidegate.run(BOTTLENECK, seeds=2, jobs=1, set='duration = "2 s"\nwarmup = "500 ms"')
    assert again.digests == results.digests and len(results.digests) == 6
    other = tidegate.run(BOTTLENECK, seed=2, set=SHORT)
    assert other.digests["vanilla", 2] == results.digests["vanilla", 2]


def test_digests_are_those_of_the_tool(results, tmp_path):
    tool = [TOOL, "run", BOTTLENECK, "--seeds=2", "--json", f"--out={tmp_path / 'out'}"]
    changes = [f"--set={key} = {json.dumps(value)}" for key, value in SHORT.items()]
    done = subprocess.run([*tool, *changes], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    per_seed = json.loads(done.stdout)["per_seed"]
    told = {(system, int(seed)): run["digest"] for system, runs in per_seed.items() for seed, run in runs.items()}
    assert told == results.digests


@pytest.mark.parametrize("page, least", [("docs/python.md", 3), ("docs/tables.md", 1), ("docs/learning.md", 1)])
def test_examples_of_pages_run(page, least, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) >= least
    names = {}
    for example in examples:
        exec(compile(example, page, "exec"), names)  # each goes on where the last one ended
    if "results" in names:
        assert len(names["results"].series) > 0
    if "joined" in names:
        joined = names["joined"]
        assert len(joined) == len(names["transfers"]) > 0, "every transfer has its exit"
        assert (joined.country.str.len() == 2).all() and joined.nickname.ne("").all()
        steps = joined[["circuit_begun_s", "circuit_built_s", "opened_s", "connect_s", "ttfb_s", "ttlb_s"]].dropna()
        assert len(steps) > 0 and (steps.diff(axis=1).iloc[:, 1:] >= 0).all(axis=None), "steps are in their order"


def test_tables_go_to_arrow_without_a_copy(results):
    pyarrow = pytest.importorskip("pyarrow")
    first, second = pyarrow.table(results.series), pyarrow.table(results.series)
    assert first.to_pydict() == results.series.to_dict()
    address = [table["value"].chunk(0).buffers()[1].address for table in (first, second)]
    assert address[0] == address[1], "both tables look at the same memory"
    keep = pyarrow.table(tidegate.run(BOTTLENECK, set=SHORT).metrics)
    assert keep.num_rows > 0, "it outlives the results"


def test_pandas_and_polars_read_tables(results):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    frame, other = results.circuits.to_pandas(), results.circuits.to_polars()
    assert isinstance(frame, pandas.DataFrame) and isinstance(other, polars.DataFrame)
    rates = frame.groupby("system")["throughput_bytes_per_s"].mean()
    assert rates["vanilla"] == pytest.approx(
        other.filter(polars.col("system") == "vanilla")["throughput_bytes_per_s"].mean()
    )


def test_scenarios_are_built_in_python():
    from_file = tidegate.Scenario(BOTTLENECK, set=SHORT)
    assert from_file.systems == ["vanilla", "pctcp", "predictor"]
    built = tidegate.Scenario(from_file.to_dict())
    assert tidegate.run(built).digests == tidegate.run(from_file).digests
    table = built.to_dict()
    table["system"] = [{"name": "vegas", "control": "vegas"}]
    assert tidegate.run(table).digests.keys() == {("vegas", 1)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"durration": "1 s"}, "unknown key `durration`"),
        ({"duration": "1 sek"}, "1 sek"),
    ],
)
def test_mistakes_are_named_as_on_the_command_line(change, message):
    with pytest.raises(tidegate.InputError, match=message) as caught:
        tidegate.Scenario(BOTTLENECK, set=change)
    assert isinstance(caught.value, ValueError) and caught.value.cause in str(caught.value)


def test_mistakes_have_a_place():
    text = BOTTLENECK.read_text().replace("duration", "durration", 1)
    with pytest.raises(tidegate.InputError, match="did you mean `duration`") as caught:
        tidegate.Scenario.parse(text)
    line = next(n for n, line in enumerate(text.splitlines(), 1) if "durration" in line)
    assert (caught.value.file, caught.value.line) == ("the scenario", line)
    with pytest.raises(tidegate.InputError, match="cannot be read"):
        tidegate.run("no-such-file.toml")
    with pytest.raises(TypeError, match="a path, a dict"):
        tidegate.run(7)
    with pytest.raises(tidegate.InputError, match=r"not a path\n.*Scenario.parse"):
        tidegate.run(text)
    with pytest.raises(ValueError, match="give 1 to 100000"):
        tidegate.run(BOTTLENECK, seeds=0)


def test_mistakes_in_a_dict_name_its_key():
    def change(edit):
        keys = tidegate.Scenario(BOTTLENECK).to_dict()
        edit(keys)
        with pytest.raises(tidegate.InputError) as caught:
            tidegate.run(keys)
        assert str(caught.value).startswith(f"{caught.value.file}: {caught.value.cause}") and caught.value.line is None
        return caught.value.file

    assert change(lambda keys: keys["user"][1]["path"].__setitem__(1, "nobody")) == "the scenario: user[1].path"
    assert change(lambda keys: keys["relay"][3].update(link="3 pigeons")) == "the scenario: relay[3].link"
    assert change(lambda keys: keys["underlay"].update(delay="1 pigeon")) == "the scenario: underlay.delay"
    assert change(lambda keys: keys["system"][2]["windows"].update(circuit="many")) == "the scenario: system[2].windows.circuit"
    assert change(lambda keys: keys.update(duration="1 pigeon")) == "the scenario: duration"
    assert change(lambda keys: keys["user"][2].pop("name")) == "the scenario: user[2]"


def wrong(_):
    """Raises in a worker."""
    tidegate.run(BOTTLENECK, set={"durration": "1 s"})


def test_mistakes_come_back_from_other_processes():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with pytest.raises(tidegate.InputError, match="did you mean `duration`") as caught:
            pool.map_async(wrong, [1]).get(timeout=120)
    assert caught.value.cure and caught.value.file


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tor": {"load": float("nan")}}, "`load` is not a finite number"),
        ({"tor": {"load": float("-inf")}}, "`load` is not a finite number"),
        ({"tor": {"load": "high"}}, '`load` is "high"'),
        ({"tor": {"load": object()}}, "object"),
        ({"tor": {1: 2}}, "the scenario"),
        ({"seed": 2**70}, "the scenario"),
        ({"relay": [None]}, "the scenario"),
    ],
)
def test_values_that_toml_lacks_are_refused(change, message):
    with pytest.raises(tidegate.InputError, match=message):
        tidegate.Scenario(ROOT / "scenarios/tor.toml", set=change)


def test_a_dict_that_contains_itself_is_refused():
    knot = {"duration": "1 s"}
    knot["tor"] = [knot]
    for call in (
        lambda: tidegate.run(knot),
        lambda: tidegate.Scenario(BOTTLENECK, set=knot),
        lambda: tidegate.fairness(knot),
        lambda: tidegate.solve([knot]),
    ):
        with pytest.raises(ValueError, match="contain itself"):
            call()


def test_numbers_of_numpy_and_other_mappings_are_accepted():
    numpy = pytest.importorskip("numpy")
    change = types.MappingProxyType({**SHORT, "seed": numpy.int64(5), "sample": None})
    assert tidegate.Scenario(BOTTLENECK, set=change).to_dict()["seed"] == 5
    keys = types.MappingProxyType(tidegate.Scenario(BOTTLENECK, set=SHORT).to_dict())
    assert tidegate.run(keys, seed=numpy.int64(2), systems="vanilla").digests.keys() == {("vanilla", 2)}


def test_overrides_may_have_dotted_keys():
    change = {**SHORT, "underlay.delay": "3 ms", "user.circuit1.traffic": "web", "tor.load": None}
    keys = tidegate.Scenario(BOTTLENECK, set=change).to_dict()
    users = {user["name"]: user["traffic"] for user in keys["user"]}
    assert (keys["duration"], keys["underlay"]["delay"], users["circuit1"]) == ("2 s", "3 ms", "web")
    assert users["circuit2"] == "bulk" and keys.get("tor") is None
    with pytest.raises(tidegate.InputError, match="did you mean `delay`"):
        tidegate.Scenario(BOTTLENECK, set=[SHORT, {"underlay.delai": "3 ms"}])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seeds": -1}, "`seeds` is -1; give 1 to 100000"),
        ({"seeds": 1.5}, "`seeds` is 1.5; give a whole number"),
        ({"seed": -1}, "`seed` is -1"),
        ({"seed": 2**63}, "`seed` is 9223372036854775808"),
        ({"seed": 2**63 - 1, "seeds": 2}, "`seed` leads to the seed 9223372036854775808"),
        ({"jobs": -1}, "`jobs` is -1"),
        ({"set": 5}, "`set` must be"),
        ({"set": b'duration = "2 s"'}, "`set` must be"),
        ({"systems": 3}, "`systems` is 3; give a name"),
        ({"systems": ["vanilla", 3]}, r"`systems` is \['vanilla', 3\]; give a name"),
        ({"control": tidegate.Window}, "`control` is <class .*; give a dict"),
        ({"control": {3: tidegate.Window}}, "`control` is a dict from names"),
        ({"progress": 3}, "`progress` is 3; give a function"),
        ({"systems": "vanila"}, "there is no system `vanila`"),
        ({"systems": []}, "`systems` is empty"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        tidegate.run(BOTTLENECK, **arguments)


def test_large_seeds_are_those_of_the_tables():
    results = tidegate.run(BOTTLENECK, seed=2**63 - 1, set=SHORT)
    assert set(results.metrics["seed"]) == {2**63 - 1}


def test_a_script_that_imports_ipykernel_is_no_notebook():
    pytest.importorskip("ipykernel")
    text = f"import ipykernel, tidegate; tidegate.run({str(BOTTLENECK)!r}, set={SHORT!r})"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


class Paced(tidegate.Controller):
    """4 cells per step of 40 ms and circuit: 100 cells/s."""

    steps = 0

    def step(self, now_s, circuits):
        Paced.steps += 1
        for circuit in circuits:
            if circuit.enters:
                circuit.package_cells = 4


def test_a_controller_of_python_steers():
    series = tidegate.run(BOTTLENECK, set=SHORT, control={"vanilla": Paced}).series
    rows = zip(*(series[name] for name in ["system", "quantity", "until_s", "value"]))
    rates = [row[3] for row in rows if row[:2] == ("vanilla", "rate_bytes_per_s") and row[2] > 1.5]
    assert sum(rates) / len(rates) == pytest.approx(100 * 498, rel=0.05) and Paced.steps > 3 * 50


class Small(tidegate.Window):
    def __init__(self):
        super().__init__()
        self.cells = 62


class Smaller(tidegate.Window):
    cells = 62


def test_a_window_of_python_bounds():
    run = lambda control: tidegate.run(BOTTLENECK, set=SHORT, systems="vanilla", control={"vanilla": control})
    results, free = run(Small), run(tidegate.Window)
    mean = lambda of: of.document["systems"]["vanilla"]["backlog_mean_bytes"]
    assert mean(results) < mean(free) / 2
    assert run(Smaller).digests == results.digests, "an attribute of the class counts, too"


def test_what_a_control_raises_is_raised():
    class Broken(tidegate.Controller):
        def step(self, now_s, circuits):
            raise ZeroDivisionError("of my own")

    class Negative(tidegate.Controller):
        def step(self, now_s, circuits):
            for circuit in circuits:
                circuit.send_cells = -1

    def window(name, value):
        return type("Odd", (tidegate.Window,), {name: value})

    for control, message in [
        (window("sendme_increment", 0), "`sendme_increment` is 0; give a whole number from 1 to 1000"),
        (window("sendme_increment", "31"), "`sendme_increment` is '31'; give a number"),
        (window("room", lambda _: float("nan")), r"`room\(\)` is NaN"),
        (window("room", lambda _: None), r"`room\(\)` is None; give a number"),
        (type("Odd", (tidegate.Controller,), {"interval_s": "40 ms"}), "`interval_s` is '40 ms'; give a number"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            tidegate.run(BOTTLENECK, set=SHORT, control={"vanilla": control})
    with pytest.raises(ZeroDivisionError, match="of my own"):
        tidegate.run(BOTTLENECK, set=SHORT, control={"vanilla": Broken})
    with pytest.raises(ValueError, match="`send_cells` is -1"):
        tidegate.run(BOTTLENECK, set=SHORT, control={"vanilla": Negative})
    with pytest.raises(ValueError, match="no system `vanila`; there are vanilla, pctcp, predictor"):
        tidegate.run(BOTTLENECK, set=SHORT, control={"vanila": Broken})
    for wrong in (dict, "vegas", tidegate.Window()):
        with pytest.raises(TypeError, match="subclass of tidegate.Controller"):
            tidegate.run(BOTTLENECK, set=SHORT, control={"vanilla": wrong})


def test_the_lock_is_free_and_progress_is_told():
    seen, counted, done = [], [0], threading.Event()

    def count():
        while not done.wait(0.001):
            counted[0] += 1

    other = threading.Thread(target=count)
    other.start()
    started = time.monotonic()
    tidegate.run(BOTTLENECK, jobs=1, set={"duration": "10 s"}, progress=lambda share, text: seen.append(share))
    took = time.monotonic() - started
    done.set()
    other.join()
    assert counted[0] > 20 * took, "another thread went on"
    assert seen == sorted(seen) and seen[-1] == pytest.approx(1)


def test_ctrl_c_ends_a_run():
    text = f"import tidegate; print('go', flush=True); tidegate.run({str(BOTTLENECK)!r}, set={{'duration': '20000 s'}})"
    child = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "go\n"
    time.sleep(1)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors and child.returncode in (-signal.SIGINT, 130, 1)


def test_results_are_saved(tmp_path, results):
    results.save(tmp_path / "out")
    assert {"report.html", "metrics.parquet", "manifest.json"} <= set(os.listdir(tmp_path / "out"))
    results.save(tmp_path / "out")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine.txt").write_text("mine")
    with pytest.raises(tidegate.InputError, match="does not hold results of tidegate\n.*choose another folder"):
        results.save(tmp_path / "other")
    with pytest.raises(tidegate.InputError, match="`force=True`"):
        tidegate.run(BOTTLENECK, set={"duration": "1 s", "warmup": "0 s"}).save(tmp_path / "out")


def test_the_mathematics_alone():
    fair = tidegate.fairness({"capacities": {"a": 1.0, "b": 4.0}, "circuits": [["a", "b"], ["b"]]})
    assert fair == {"rates": [1.0, 3.0], "bottlenecks": ["a", "b"]}
    with pytest.raises(tidegate.InputError, match="`c` has no capacity"):
        tidegate.fairness({"capacities": {"a": 1.0}, "circuits": [["c"]]})
    for odd in (float("nan"), float("inf")):
        with pytest.raises(tidegate.InputError, match="capacities.a is (NaN|inf)\n.*give finite numbers"):
            tidegate.fairness({"capacities": {"a": odd}, "circuits": [["a"]]})
    problem = json.loads((ROOT / "examples/predictor/figure-3.json").read_text())
    one = tidegate.solve(problem)
    assert not one["fallback"] and tidegate.solve([problem]) == [one]
    assert tidegate.solve((types.MappingProxyType(problem),)) == [one]
    with pytest.raises(tidegate.InputError, match=r"\[0\].s0\[1\] is NaN"):
        tidegate.solve([{**problem, "s0": [0.0, float("nan")]}])
    with pytest.raises(tidegate.InputError, match="`horizon` is"):
        tidegate.solve({**problem, "horizon": problem["horizon"] + 1})


def test_readers(tmp_path):
    analysis = tmp_path / "torperf.json"
    analysis.write_text(json.dumps({"download_times": {"51200": [1.5, 0.5]}, "daily_counts": {}}))
    table = tidegate.read_torperf(analysis)
    assert table["seconds"] == [0.5, 1.5] and set(table["quantity"]) == {"ttlb"}
    with pytest.raises(tidegate.InputError, match="nothing.txt"):
        tidegate.read_consensus(tmp_path / "nothing.txt")


def test_the_wheel_holds_the_tool():
    said = subprocess.run([TOOL, "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.split()[1] == tidegate.__version__


def test_the_wheel_holds_the_licences():
    files = [file.name for file in importlib.metadata.files("tidegate")]
    assert {"LICENSE-MIT", "LICENSE-APACHE"} <= set(files)


def documented(nodes, owner):
    """Objects of the compiled module that have a docstring in the stubs, with that docstring."""
    for node, after in zip(nodes, [*nodes[1:], None]):
        if isinstance(node, ast.ClassDef):
            yield getattr(owner, node.name), ast.get_docstring(node)
            yield from documented(node.body[1:], getattr(owner, node.name))
        elif isinstance(node, ast.FunctionDef):
            yield getattr(owner, node.name), ast.get_docstring(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
            yield getattr(owner, node.target.id), inspect.cleandoc(after.value.value)


def test_editors_show_the_docstrings():
    stubs = ast.parse((pathlib.Path(tidegate.__file__).with_name("_native.pyi")).read_text())
    public = [node for node in stubs.body if getattr(node, "name", None) in tidegate.__all__]
    told = [(of, doc) for of, doc in documented(public, tidegate) if doc is not None]
    assert len(told) > 30
    for of, doc in told:
        assert inspect.cleandoc(of.__doc__) == doc


TYPED = """
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tidegate

class Paced(tidegate.Controller):
    def step(self, now_s: float, circuits: list[tidegate.Circuit]) -> None:
        for circuit in circuits:
            circuit.send_cells = self.bandwidth_bytes_per_s * self.interval_s / 514

class Small(tidegate.Window):
    cells = 62

base = tidegate.Scenario(Path("a.toml"), set={"duration": "6 s"})
keys = tidegate.Scenario(MappingProxyType(base.to_dict()), set=["seed = 3", {"underlay.delay": "3 ms"}])
results = tidegate.run(keys, seeds=3, systems=("vanilla",), control={"vanilla": Paced, "kist": Small})
digest: str = results.digests["vanilla", 1]
values: list[Any] = results.metrics["value"]
tidegate.solve([MappingProxyType({"problem": "prototype"})])
try:
    tidegate.run("a.toml", progress=lambda share, text: print(f"{share:.0%} {text}"))
except tidegate.InputError as error:
    print(error.file, error.line, error.cure)
"""


def test_typed_programs_pass_strict_checks(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "typed.py").write_text(TYPED)
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "typed.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
