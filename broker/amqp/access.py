"""Class access: what clients of AMQP 0-8 and 0-9 ask before they use anything.

It is neither in AMQP 0-9-1 nor in pamqp. RabbitMQ still grants every request, with a ticket that has no meaning.
Source: AMQP 0-8, class access (30).
"""

from __future__ import annotations

from typing import ClassVar, Final

from pamqp import base

__all__ = ["ACCESS_METHODS", "AccessRequest", "AccessRequestOk"]

TICKET: Final = 1


class AccessRequest(base.Frame):
    """The method access.request: may the client use the realm?"""

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
