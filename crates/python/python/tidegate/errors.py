"""Exceptions."""

from __future__ import annotations


class InputError(ValueError):
    """A mistake in a file or argument, with the command line's message.

    ``file`` (or argument, or key of a dict), ``line`` and ``column`` (from 1, or None) are the position; ``cure`` says how to
    fix ``cause``.
    """

    def __init__(
        self, message: str, file: str, line: int | None, column: int | None, cause: str, cure: str
    ) -> None:
        super().__init__(message)
        self.file = file
        self.line = line
        self.column = column
        self.cause = cause
        self.cure = cure

    def __reduce__(self) -> tuple[object, ...]:
        # Pools and clusters pickle what a worker raises, and an exception that cannot be unpickled hangs them.
        return type(self), (str(self), self.file, self.line, self.column, self.cause, self.cure)
