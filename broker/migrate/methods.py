"""Methods for names that pamqp refuses, such as `stocks.é` and those of more than 127 characters."""

from __future__ import annotations

from pamqp import commands

__all__ = ["AnyBind", "AnyConsume", "AnyDeclare", "AnyOpen", "AnyPublish"]


class AnyOpen(commands.Connection.Open):
    """Open any vhost."""

    def validate(self) -> None:
        """Accept any name: the broker checks it."""


class AnyDeclare(commands.Queue.Declare):
    """Declare any queue."""

    def validate(self) -> None:
        """Accept any name: the broker checks it."""


class AnyBind(commands.Queue.Bind):
    """Bind any queue."""

    def validate(self) -> None:
        """Accept any name: the broker checks it."""


class AnyConsume(commands.Basic.Consume):
    """Consume any queue."""

    def validate(self) -> None:
        """Accept any name: the broker checks it."""


class AnyPublish(commands.Basic.Publish):
    """Publish with any routing key."""

    def validate(self) -> None:
        """Accept any name: the broker checks it."""
