"""Runs scenarios and shows progress in terminals and notebooks."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
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
        from IPython import get_ipython

        # A script may import the module without being a notebook.
        if get_ipython() is not None:
            return _notebook()
    return _terminal if sys.stderr.isatty() else None


def _whole(name: str, value: Any, least: int, most: int) -> int:
    """Checks a whole number."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` is {value!r}; give a whole number from {least} to {most}") from None
    if not least <= number <= most:
        raise ValueError(f"`{name}` is {number}; give {least} to {most}")
    return number


def _names(systems: Any) -> list[str] | None:
    """Checks names of systems."""
    if systems is None or isinstance(systems, str):
        return [systems] if systems is not None else None
    names = list(systems) if isinstance(systems, Iterable) else [systems]
    if not all(isinstance(name, str) for name in names):
        raise TypeError(f"`systems` is {systems!r}; give a name, or a list of names")
    if not names:
        raise ValueError("`systems` is empty; name a system, or leave it out for all")
    return names


def run(
    scenario: str | os.PathLike[str] | Mapping[str, Any] | _native.Scenario,
    *,
    seeds: int = 1,
    seed: int | None = None,
    jobs: int = 0,
    set: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
    systems: str | Sequence[str] | None = None,
    control: Mapping[str, type[Controller] | type[Window]] | None = None,
    progress: bool | Callable[[float, str], object] | None = None,
) -> _native.Results:
    """Runs every system of a scenario on ``seeds`` networks, the same for all systems.

    ``scenario`` is a path, a dict with a file's keys, or a Scenario. ``seed`` is the first seed, instead of the
    scenario's. ``jobs`` is the number of threads (0: one per core). ``set`` overrides values: ``'duration = "30 s"'`` or
    ``{"duration": "30 s", "underlay.delay": "20 ms"}``. ``systems`` selects systems by name. ``control`` replaces controls of systems, by name, with
    Python classes (slow). ``progress`` is called with the share that is done and a text; None shows a line in terminals
    and notebooks.

    The GIL is released while it runs, and Ctrl-C stops it. Results do not depend on ``jobs``, and have the
    digests of the command line.

    Raises InputError for mistakes in the scenario, and any exception of a Python control.
    """
    systems = _names(systems)
    if control is not None and not isinstance(control, Mapping):
        raise TypeError(f"`control` is {control!r}; give a dict from names of systems to classes")
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise TypeError(f"`progress` is {progress!r}; give a function, True, False or None")
    show = _shown() if progress is None else _shown() or _terminal if progress is True else None
    call = (lambda share, text: show(f"{100 * share:3.0f} %  {text}")) if show else progress if callable(progress) else None
    try:
        return _native.run(
            scenario,
            seeds=_whole("seeds", seeds, 1, 100_000),
            # Tables hold seeds as signed numbers.
            seed=None if seed is None else _whole("seed", seed, 0, 2**63 - 1),
            jobs=_whole("jobs", jobs, 0, 2**16),
            set=set,
            systems=systems,
            control=dict(control) if control is not None else None,
            progress=call,
        )
    finally:
        if show:
            show("")
