"""Methods for names that pamqp refuses, such as `stocks.é` and those of more than 127 characters."""

from __future__ import annotations

from pamqp import commands

__all__ = ["BindAny", "OpenAny", "PublishAny", "UnbindAny"]


class OpenAny(commands.Connection.Open):
    """Open any vhost."""

    def validate(self) -> None:
        """Accept any name: the broker checks it."""


class BindAny(commands.Queue.Bind):
    """Bind a queue to any exchange."""

    def validate(self) -> None:
        """Accept any name: the broker checks it."""


class UnbindAny(commands.Queue.Unbind):
    """Remove a binding from any exchange."""

    def validate(self) -> None:
        """Accept any name: the broker checks it."""


class PublishAny(commands.Basic.Publish):
    """Publish to any exchange."""

    def validate(self) -> None:
        """Accept any name: the broker checks it."""
