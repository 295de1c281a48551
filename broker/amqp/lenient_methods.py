"""Methods without pamqp's checks of names, and the methods of class access, which pamqp does not have.

pamqp refuses long names and unusual characters, but RabbitMQ accepts any short string. The broker sends names that
clients chose, and our clients leave the checks to their brokers.

Class access is not in AMQP 0-9-1. RabbitMQ grants every request, with a ticket that has no meaning.
Source: AMQP 0-8, class access (30).
"""

from __future__ import annotations

from typing import ClassVar, Final, TypeVar, cast

from pamqp import base, commands

TICKET: Final = 1
M = TypeVar("M", bound=base.Frame)


class AccessRequest(base.Frame):
    """The method access.request, which asks for access to a realm."""

    __slots__: ClassVar[list[str]] = ["realm", "exclusive", "passive", "active", "write", "read"]  # noqa: RUF023 - as sent
    frame_id = 10
    index = 0x001E000A
    name = "Access.Request"
    synchronous = True
    _realm = "shortstr"
    _exclusive = _passive = _active = _write = _read = "bit"


class AccessRequestOk(base.Frame):
    """The method access.request-ok, which carries the ticket."""

    __slots__: ClassVar[list[str]] = ["ticket"]
    frame_id = 11
    index = 0x001E000B
    name = "Access.RequestOk"
    _ticket = "short"

    def __init__(self, ticket: int = TICKET) -> None:
        self.ticket = ticket


ACCESS_METHODS: Final[dict[int, type[base.Frame]]] = {kind.index: kind for kind in (AccessRequest, AccessRequestOk)}


def unchecked(kind: type[M]) -> type[M]:
    """Return a subclass of a method without pamqp's checks, so that it accepts any name."""
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
