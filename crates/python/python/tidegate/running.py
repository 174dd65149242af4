"""Runs, with progress shown where somebody looks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _native
from .control import Controller, Window


def _terminal(line: str) -> None:
    """A line that the next one replaces."""
    sys.stderr.write(f"\r{line:<78.78}" if line else "\r" + " " * 78 + "\r")
    sys.stderr.flush()


def _notebook() -> Callable[[str], None]:
    """The same as an output of the cell, of which the saved notebook keeps the last state alone."""
    from IPython.display import display

    handle = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda line: handle.update({"text/plain": line}, raw=True)


def _shown() -> Callable[[str], None] | None:
    """Where a line of progress goes, if somebody looks."""
    if "ipykernel" in sys.modules:
        return _notebook()
    return _terminal if sys.stderr.isatty() else None


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
    show = _shown() if progress is None else _shown() or _terminal if progress is True else None
    call = (lambda share, text: show(f"{100 * share:3.0f} %  {text}")) if show else progress or None
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
        if show:
            show("")
