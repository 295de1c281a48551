"""Methods that accept any name.

pamqp refuses names outside [a-zA-Z0-9-_.:@#,/+ ] and beyond 127 characters, as the specification would; RabbitMQ
accepts any short string. A broker returns the names that a client chose, and a client leaves the check to the broker.
"""

from __future__ import annotations

from typing import Final, TypeVar, cast

from pamqp import base, commands

__all__ = [
    "BasicDeliver",
    "BasicGetOk",
    "BasicReturn",
    "BindAny",
    "BindExchangeAny",
    "ConsumeAny",
    "DeclareAny",
    "DeclareExchangeAny",
    "DeleteAny",
    "DeleteExchangeAny",
    "GetAny",
    "OpenAny",
    "PublishAny",
    "QueueDeclareOk",
    "UnbindAny",
    "UnbindExchangeAny",
]

M = TypeVar("M", bound=base.Frame)


def unchecked(kind: type[M]) -> type[M]:
    """Return a method that accepts any name."""
    return cast("type[M]", type(kind.__name__, (kind,), {"validate": lambda _self: None}))


BasicDeliver: Final = unchecked(commands.Basic.Deliver)
BasicGetOk: Final = unchecked(commands.Basic.GetOk)
BasicReturn: Final = unchecked(commands.Basic.Return)
QueueDeclareOk: Final = unchecked(commands.Queue.DeclareOk)
BindAny: Final = unchecked(commands.Queue.Bind)
BindExchangeAny: Final = unchecked(commands.Exchange.Bind)
ConsumeAny: Final = unchecked(commands.Basic.Consume)
DeclareAny: Final = unchecked(commands.Queue.Declare)
DeclareExchangeAny: Final = unchecked(commands.Exchange.Declare)
DeleteAny: Final = unchecked(commands.Queue.Delete)
DeleteExchangeAny: Final = unchecked(commands.Exchange.Delete)
GetAny: Final = unchecked(commands.Basic.Get)
OpenAny: Final = unchecked(commands.Connection.Open)
PublishAny: Final = unchecked(commands.Basic.Publish)
UnbindAny: Final = unchecked(commands.Queue.Unbind)
UnbindExchangeAny: Final = unchecked(commands.Exchange.Unbind)
