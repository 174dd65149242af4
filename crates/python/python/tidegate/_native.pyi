"""Stubs of the compiled module."""

import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import pandas
import polars

_Path = str | os.PathLike[str]
_Set = str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]

__version__: str

@final
class Scenario:
    """A checked scenario, from a TOML file, a dict with the same keys, or another scenario. `set` overrides values.
    Mistakes raise InputError with position, cause and cure.
    """

    def __new__(cls, scenario: _Path | Mapping[str, Any] | Scenario, *, set: _Set | None = None) -> Scenario: ...
    @staticmethod
    def parse(text: str, *, folder: _Path = "", set: _Set | None = None) -> Scenario:
        """Creates a scenario from TOML text. File names are relative to `folder`."""
    @property
    def name(self) -> str:
        """Its name."""
    @property
    def toml(self) -> str:
        """The text that lines and columns of error messages refer to."""
    @property
    def systems(self) -> list[str]:
        """Names of its systems."""
    def to_dict(self) -> dict[str, Any]:
        """Every key with its value or default, with units as in the TOML file."""

@final
class Table:
    """A table by columns. pandas (through pyarrow), polars and pyarrow use it without a copy: `polars.DataFrame(table)`,
    `pyarrow.table(table)`. `table["name"]` is a column as a list, with None for missing values.
    """

    @property
    def columns(self) -> list[str]:
        """Names of the columns, with units."""
    def __len__(self) -> int: ...
    def __getitem__(self, column: str, /) -> list[Any]: ...
    def __contains__(self, column: object, /) -> bool: ...
    def keys(self) -> list[str]:
        """Names of the columns, so that `dict(table)` works."""
    def to_dict(self) -> dict[str, list[Any]]:
        """All columns as lists, by name."""
    def to_pandas(self) -> pandas.DataFrame:
        """Converts to pandas.DataFrame; needs pandas and pyarrow."""
    def to_polars(self) -> polars.DataFrame:
        """Converts to polars.DataFrame; needs polars."""
    def __arrow_c_schema__(self) -> object: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

@final
class Results:
    """Results of runs. Join tables by `system` and `seed`; transfers refer to relays and circuits."""

    @property
    def metrics(self) -> Table:
        """Every number of every run: system, seed, metric (with its unit), value."""
    @property
    def circuits(self) -> Table:
        """One row per user: throughput and max-min fair rate in bytes/s, latencies in s."""
    @property
    def relays(self) -> Table:
        """One row per relay: names, weight, capacity in bytes/s, queues in cells and bytes, utilisation as a share."""
    @property
    def transfers(self) -> Table:
        """One row per transfer after the warm-up: relays, size in bytes, times since the request in s."""
    @property
    def series(self) -> Table:
        """Rates in bytes/s and backlog in bytes over time, in bins that end at `until_s`."""
    @property
    def latency(self) -> Table:
        """Distribution function of the latency: share of bytes with at most this latency in seconds."""
    @property
    def document(self) -> dict[str, Any]:
        """The document of `tidegate run --json`: means over seeds, confidence intervals, paired ratios."""
    @property
    def digests(self) -> dict[tuple[str, int], str]:
        """(system, seed) -> digest of every observation: equal to the command line's."""
    def summary(self, *, all: bool = False, columns: int = 80) -> str:
        """The table of `tidegate run`, within `columns` columns if possible; `all` includes every row."""
    def save(self, folder: _Path, *, force: bool = False) -> None:
        """Writes report.html, tables and manifest.json into a folder. It must be empty or hold results of the same scenario;
        `force` replaces other results.
        """

@final
class Circuit:
    """A circuit at a relay: its queues, and the cells that it may send until the next step."""

    @property
    def key(self) -> int:
        """Number of the circuit at this relay."""
    @property
    def waiting_cells(self) -> float:
        """Cells that wait to be sent, in the circuit queue and in the output buffer."""
    @property
    def demand_cells(self) -> float:
        """Estimate of the cells that its streams' sources still have."""
    @property
    def enters(self) -> bool:
        """Whether its cells enter the overlay here: it has streams."""
    @property
    def passes(self) -> bool:
        """Whether its cells come from another relay."""
    @property
    def to_client(self) -> bool:
        """Whether the next node is the client, which accepts everything."""
    send_cells: float
    """Cells that it may send until the next step; infinite if not set."""
    package_cells: float
    """Cells that its streams may package until the next step; infinite if not set."""

@final
class Sweep:
    """A study file and the folder of its runs."""

    def __new__(cls, study: _Path, out: _Path | None = None) -> Sweep: ...
    @property
    def place(self) -> pathlib.Path: ...
    def __len__(self) -> int: ...
    def missing(self) -> list[tuple[str, str]]: ...
    def keep(self, name: str, files: dict[str, bytes]) -> None: ...
    def tabulate(self) -> int: ...

def make(order: str) -> dict[str, bytes]: ...

@final
class Bottlenecks:
    """Runs that wait at every step to be told how rates change."""

    def __new__(cls, count: int, circuits: int, interval_s: float, history: int) -> Bottlenecks: ...
    def begin(
        self, number: int, scenario: _Path | Mapping[str, Any] | Scenario, seed: int, link: float, rates: list[float]
    ) -> None: ...
    def end(self, number: int) -> None: ...
    def step(self, actions: bytes) -> bytearray: ...
    def observed(self) -> bytearray: ...
    def rates(self, number: int) -> list[float]: ...

@final
class Overlay:
    """A run that waits at every step to be told peer 0's rates."""

    def __new__(
        cls, limits: Sequence[int], hops: int, others: str, seed: int, interval_s: float, rate: float
    ) -> Overlay: ...
    def step(self, rates: bytes) -> bytearray: ...

def run(
    scenario: _Path | Mapping[str, Any] | Scenario,
    *,
    seeds: int = 1,
    seed: int | None = None,
    jobs: int = 0,
    set: _Set | None = None,
    systems: list[str] | None = None,
    control: Mapping[str, type] | None = None,
    progress: Callable[[float, str], object] | None = None,
) -> Results: ...
def solve(problem: _Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Any:
    """Solves PredicTor's optimal control problem, open loop. Takes a dict (or a JSON file) with `problem` ("prototype" or
    "journal"), `capacity` and rates in cells/s, queues in cells, `dt` in s, as in examples/predictor/figure-3.json. For a
    list of problems it returns a list of solutions.
    """
def fairness(network: _Path | Mapping[str, Any]) -> dict[str, Any]:
    """Computes max-min fair rates of circuits that share resources. Takes {"capacities": {"a": 1.0}, "circuits": [["a"]]} (or
    a JSON file); returns `rates`, in the unit of the capacities, and the bottleneck of each circuit.
    """
def read_consensus(path: _Path) -> Table:
    """Reads the relays of a consensus of either flavour, plain or .xz; weights in kB/s."""
def read_torperf(path: _Path) -> Table:
    """Reads downloads measured by torperf or OnionPerf, one row each: `quantity` is ttfb, ttlb, circuit_build or round_trip,
    in s; `size_bytes` is 0 for the last two.
    """
