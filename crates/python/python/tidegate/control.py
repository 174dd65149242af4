"""Controls written in Python, for prototypes.

Each step calls the interpreter, so a run is about ten times slower than with a control in Rust, and runs on several
threads share the GIL. Port successful controls to ``crates/proto/src/control``.
"""

from __future__ import annotations

import math

from ._native import Circuit


class Controller:
    """Controls the circuits of one relay in the direction to the client. Each relay has its own instance.

    Pass a subclass to ``tidegate.run(..., control={"name of a system": MyControl})``. Fixed windows still limit the
    cells in flight.
    """

    #: Time between two steps, in seconds.
    interval_s: float = 0.04
    #: Cells that a new circuit may send before its first step.
    first_send_cells: float = math.inf
    #: Cells that a new circuit's streams may package before its first step.
    first_package_cells: float = math.inf

    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        #: Rate of the relay's link; infinite if unlimited.
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s

    def step(self, now_s: float, circuits: list[Circuit]) -> None:
        """Sets ``send_cells`` and ``package_cells`` of circuits for the time until the next step."""


class Window:
    """Limits the cells in flight at one end of a circuit. Each end has its own instance. This class has a fixed limit."""

    #: Number of delivered cells that a SENDME acknowledges.
    sendme_increment: int = 31
    #: Maximum number of cells in flight.
    cells: int = 1000
    #: Current number of cells in flight.
    in_flight: int = 0

    def room(self) -> int:
        """Number of cells that may be packaged now."""
        return max(0, int(self.cells) - self.in_flight)

    def sent(self, now_s: float) -> None:
        """Called when a cell was packaged."""
        self.in_flight += 1

    def acknowledged(self, now_s: float, blocked: bool) -> None:
        """Called when a SENDME arrives. ``blocked``: the end's own circuit queue is full."""
        self.in_flight -= self.sendme_increment
