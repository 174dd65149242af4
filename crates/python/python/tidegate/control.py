"""Controls written in Python, for trying ideas out.

Each step calls back into the interpreter, so that a run is some ten times slower than with a control of Rust, and
runs on several threads take turns. What has proved itself belongs into ``crates/proto/src/control``.
"""

from __future__ import annotations

import math

from ._native import Circuit


class Controller:
    """Steers the circuits of one relay, in the direction to the client; every relay has an object of its own.

    Give a subclass to ``tidegate.run(..., control={"name of a system": MyControl})``. Fixed windows bound what is in
    flight, as ever.
    """

    #: Time between two steps, in seconds.
    interval_s: float = 0.04
    #: Cells that a new circuit may send before its first step.
    first_send_cells: float = math.inf
    #: Cells that its streams may package before it.
    first_package_cells: float = math.inf

    def __init__(self, bandwidth_bytes_per_s: float) -> None:
        #: What the relay's link carries; infinite if no limit is known.
        self.bandwidth_bytes_per_s = bandwidth_bytes_per_s

    def step(self, now_s: float, circuits: list[Circuit]) -> None:
        """Sets ``send_cells`` and ``package_cells`` of circuits: what they may do until the next step."""


class Window:
    """What one end of a circuit may have in flight; every end has an object of its own. This one is fixed."""

    #: Delivered cells that a SENDME acknowledges.
    sendme_increment: int = 31

    def __init__(self) -> None:
        #: Cells in flight, at most.
        self.cells = 1000
        #: Cells in flight now.
        self.in_flight = 0

    def room(self) -> int:
        """Cells that may be packaged now."""
        return max(0, int(self.cells) - self.in_flight)

    def sent(self, now_s: float) -> None:
        """A cell was packaged."""
        self.in_flight += 1

    def acknowledged(self, now_s: float, blocked: bool) -> None:
        """A SENDME arrived; ``blocked``: the end's own circuit queue has stopped it."""
        self.in_flight -= self.sendme_increment
