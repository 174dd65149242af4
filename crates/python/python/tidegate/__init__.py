"""Tidegate: simulator of traffic control in onion-routed overlays such as Tor.

    import tidegate
    results = tidegate.run("scenarios/bottleneck.toml", seeds=3)
    print(results.summary())
    transfers = results.transfers.to_pandas()

Names contain units: ``ttfb_s`` is in seconds, ``throughput_bytes_per_s`` in bytes per second.
"""

from ._native import (
    Circuit,
    Results,
    Scenario,
    Table,
    __version__,
    fairness,
    read_consensus,
    read_torperf,
    solve,
)
from .control import Controller, Window
from .errors import InputError
from .running import run

__all__ = [
    "Circuit",
    "Controller",
    "InputError",
    "Results",
    "Scenario",
    "Table",
    "Window",
    "__version__",
    "fairness",
    "read_consensus",
    "read_torperf",
    "run",
    "solve",
]
