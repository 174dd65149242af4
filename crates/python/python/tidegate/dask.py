"""Runs on a Dask cluster, one task per run.

``tidegate.dask.sweep(client, "STUDY.toml")`` stores results in a folder, ``tidegate.dask.run(client, "FILE", seeds=25,
points=[...])`` in memory.

Workers need the package and the same files. A run is a pure function of scenario, system and seed, so another worker
can repeat it if one dies, and results equal those of one machine.
"""

from __future__ import annotations

import os
import pathlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _native
from .running import run as _run


#: Names of the tables of results.
TABLES = ("metrics", "circuits", "relays", "transfers", "series", "latency")


@dataclass(frozen=True)
class Run:
    """The result of one run."""

    #: Overrides of the scenario.
    point: Mapping[str, Any]
    #: The system's name.
    system: str
    #: Root of the run's seed tree.
    seed: int
    #: Digest of every observation, in order.
    digest: str
    #: Columns of the requested tables, by name.
    tables: Mapping[str, Mapping[str, list[Any]]]


class Runs(Sequence[Run]):
    """All runs, by point, seed and system."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._runs = list(runs)

    def __getitem__(self, index: Any) -> Any:
        return self._runs[index]

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def digests(self) -> dict[tuple[str, int], str]:
        """Digests by system and seed, as ``Results.digests``; with several points, those of the last one."""
        return {(run.system, run.seed): run.digest for run in self._runs}

    def table(self, name: str = "metrics") -> dict[str, list[Any]]:
        """One table of all runs, with a column for each overridden key."""
        keys = list(dict.fromkeys(key for run in self._runs for key in run.point))
        merged: dict[str, list[Any]] = {}
        for run in self._runs:
            columns = run.tables[name]
            count = len(next(iter(columns.values())))
            for key, values in [*((key, [run.point.get(key)] * count) for key in keys), *columns.items()]:
                merged.setdefault(key, []).extend(values)
        return merged


def _one(scenario: Any, set: Sequence[Any], point: Mapping[str, Any], system: str, seed: int, tables: Sequence[str]) -> Run:
    """Makes one run on a worker."""
    results = _run(scenario, seed=seed, jobs=1, set=[*set, point], systems=[system], progress=False)
    kept = {name: getattr(results, name).to_dict() for name in tables}
    return Run(dict(point), system, seed, results.digests[system, seed], kept)


def run(
    client: Any,
    scenario: str | os.PathLike[str] | Mapping[str, Any],
    *,
    seeds: int = 1,
    seed: int | None = None,
    set: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] = (),
    points: Sequence[Mapping[str, Any]] = ({},),
    tables: str | Sequence[str] = ("metrics",),
    retries: int = 3,
) -> Runs:
    """Runs every system of a scenario on ``seeds`` networks at each of ``points``, on a ``distributed.Client``.

    A point overrides values by dotted keys: ``{"user.web.count": 50, "tor.load": 1.5}``. ``set`` applies to all points, as
    in ``tidegate.run``. ``tables`` are the tables to return. A run that raises is repeated up to ``retries`` times; if a
    worker dies, the scheduler's ``allowed-failures`` is the limit.

    Raises InputError for mistakes in the scenario or a point, and ValueError for an unknown table, before any task is submitted.
    """
    if seeds < 1:
        raise ValueError(f"`seeds` is {seeds}; give 1 or more")
    tables = [tables] if isinstance(tables, str) else list(tables)
    if unknown := [name for name in tables if name not in TABLES]:
        raise ValueError(f"there is no table `{unknown[0]}`; there are {', '.join(TABLES)}")
    scenario = dict(scenario) if isinstance(scenario, Mapping) else os.path.abspath(scenario)
    common = [set] if isinstance(set, (str, Mapping)) else list(set)
    tasks = []
    for point in points:
        checked = _native.Scenario(scenario, set=[*common, point])
        first = checked.to_dict()["seed"] if seed is None else seed
        tasks += [(point, system, first + n) for n in range(seeds) for system in checked.systems]
    made = [
        client.submit(_one, scenario, common, point, system, one, tables, retries=retries, pure=False)
        for point, system, one in tasks
    ]
    return Runs(client.gather(made))


def sweep(
    client: Any, study: str | os.PathLike[str], *, out: str | os.PathLike[str] | None = None, retries: int = 3
) -> pathlib.Path:
    """Runs a study file like ``tidegate sweep``, on a ``distributed.Client``. Returns the folder of results.

    The folder is ``out``, by default out/<study>, where ``tidegate runs`` finds it. Each run is stored as soon as it returns.
    If this process dies, only the runs under way are lost; a second call, or ``tidegate sweep`` of the same version, makes
    the missing ones. A run that raises is repeated up to ``retries`` times; if a worker dies, the scheduler's
    ``allowed-failures`` is the limit.

    Raises InputError for mistakes in the study, or if the folder holds other results, before any task is submitted.
    """
    import distributed

    folder = _native.Sweep(os.path.abspath(study), out)
    names = {
        client.submit(_native.make, order, key=f"tidegate-{name}-{uuid.uuid4()}", retries=retries): name
        for name, order in folder.missing()
    }
    try:
        for made, files in distributed.as_completed(names, with_results=True):
            folder.keep(names.pop(made), files)
            made.release()
    finally:
        client.cancel(list(names))
        folder.tabulate()
    return folder.place
