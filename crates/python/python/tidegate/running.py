"""Runs scenarios and shows progress in terminals and notebooks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _native
from .control import Controller, Window


def _terminal(line: str) -> None:
    """Writes a line that the next one overwrites."""
    sys.stderr.write(f"\r{line:<78.78}" if line else "\r" + " " * 78 + "\r")
    sys.stderr.flush()


def _notebook() -> Callable[[str], None]:
    """Writes lines to the cell's output, where each replaces the previous one."""
    from IPython.display import display

    handle = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda line: handle.update({"text/plain": line}, raw=True)


def _shown() -> Callable[[str], None] | None:
    """Returns the function that shows a line of progress, or None without terminal or notebook."""
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

    ``scenario`` is a path, a dict with a file's keys, or a Scenario. ``seed`` is the first seed, instead of the
    scenario's. ``jobs`` is the number of threads (0: one per core). ``set`` overrides values: ``'duration = "30 s"'`` or
    ``{"duration": "30 s"}``. ``systems`` selects systems by name. ``control`` replaces controls of systems, by name, with
    Python classes (slow). ``progress`` is called with the share that is done and a text; None shows a line in terminals
    and notebooks.

    The GIL is released while it runs, and Ctrl-C stops it. Results do not depend on ``jobs``, and have the
    digests of the command line.

    Raises InputError for mistakes in the scenario, and any exception of a Python control.
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
