"""The methods that carry names back to clients, with any name.

pamqp refuses names outside [a-zA-Z0-9-_.:@#,/+ ] and beyond 127 characters, as the specification would; RabbitMQ takes
any short string. These four methods must not check what a client chose.
"""

from __future__ import annotations

from pamqp import commands

__all__ = ["BasicDeliver", "BasicGetOk", "BasicReturn", "QueueDeclareOk"]


class QueueDeclareOk(commands.Queue.DeclareOk):
    """The method queue.declare-ok for any name."""

    def validate(self) -> None:
        """Accept the name that the queue was declared with."""


class BasicReturn(commands.Basic.Return):
    """The method basic.return for any name."""

    def validate(self) -> None:
        """Accept the names that the message was published with."""


class BasicDeliver(commands.Basic.Deliver):
    """The method basic.deliver for any name."""

    def validate(self) -> None:
        """Accept the names that the message was published with."""


class BasicGetOk(commands.Basic.GetOk):
    """The method basic.get-ok for any name."""

    def validate(self) -> None:
        """Accept the names that the message was published with."""
