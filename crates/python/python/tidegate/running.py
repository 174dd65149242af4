"""Runs, with progress shown where somebody looks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _native
from .control import Controller, Window


def _watched() -> bool:
    """Whether standard error is a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _line(share: float, text: str) -> None:
    sys.stderr.write(f"\r{100 * share:3.0f} %  {text:<70.70}")
    sys.stderr.flush()


def run(
    scenario: str | os.PathLike[str] | Mapping[str, Any] | _native.Scenario,
    *,
    seeds: int = 1,
    seed: int | None = None,
    jobs: int = 0,
    set: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
    systems: Sequence[str] | None = None,
    control: Mapping[str, type[Controller] | type[Window]] | None = None,
    progress: bool | Callable[[float, str], object] | None = None,
) -> _native.Results:
    """Runs every system of a scenario on ``seeds`` networks, the same for all systems.

    ``scenario`` is a path, a dict with a file's keys, or a Scenario. ``seed`` is the first one's, instead of the
    scenario's. ``jobs`` threads work (0: one per core). ``set`` replaces values: ``'duration = "30 s"'`` or
    ``{"duration": "30 s"}``. ``systems`` names those that run, of all. ``control`` gives systems, by name, controls written in Python (slow). ``progress`` is
    called with the share done and a text; None shows a line in terminals and notebooks.

    The interpreter's lock is free while it runs, and Ctrl-C ends it. Results do not depend on ``jobs``, and have the
    digests of the command line.

    Raises InputError for what is wrong in the scenario, and whatever a control of Python raises.
    """
    shown = _watched() if progress is None else progress is True
    call = _line if shown else (progress or None)
    try:
        return _native.run(
            scenario if not isinstance(scenario, Mapping) else dict(scenario),
            seeds=seeds,
            seed=seed,
            jobs=jobs,
            set=set,
            systems=list(systems) if systems is not None else None,
            control=dict(control) if control is not None else None,
            progress=call,
        )
    finally:
        if shown:
            sys.stderr.write("\r" + " " * 78 + "\r")
