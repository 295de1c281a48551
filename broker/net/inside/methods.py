"""Methods for names that pamqp refuses, such as `stocks.é` and those of more than 127 characters."""

from __future__ import annotations

from typing import Final, TypeVar, cast

from pamqp import commands

from broker.amqp.codec import Method

__all__ = [
    "BindAny",
    "BindExchangeAny",
    "DeclareAny",
    "DeclareExchangeAny",
    "DeleteAny",
    "DeleteExchangeAny",
    "GetAny",
    "OpenAny",
    "PublishAny",
    "PurgeAny",
    "UnbindAny",
    "UnbindExchangeAny",
]

M = TypeVar("M", bound=Method)


def unchecked(kind: type[M]) -> type[M]:
    """Return a method that takes any name: the broker checks it."""
    return cast("type[M]", type(kind.__name__, (kind,), {"validate": lambda _self: None}))


OpenAny: Final = unchecked(commands.Connection.Open)
DeclareAny: Final = unchecked(commands.Queue.Declare)
DeleteAny: Final = unchecked(commands.Queue.Delete)
PurgeAny: Final = unchecked(commands.Queue.Purge)
BindAny: Final = unchecked(commands.Queue.Bind)
UnbindAny: Final = unchecked(commands.Queue.Unbind)
DeclareExchangeAny: Final = unchecked(commands.Exchange.Declare)
DeleteExchangeAny: Final = unchecked(commands.Exchange.Delete)
BindExchangeAny: Final = unchecked(commands.Exchange.Bind)
UnbindExchangeAny: Final = unchecked(commands.Exchange.Unbind)
PublishAny: Final = unchecked(commands.Basic.Publish)
GetAny: Final = unchecked(commands.Basic.Get)
