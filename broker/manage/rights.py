"""What a user may do over HTTP to messages, taps and cursors: what AMQP's permissions allow, whatever the tags."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker.amqp.errors import ChannelError
from broker.core.queue.queue import Queue
from broker.core.resource import Resource
from broker.net.control_verbs.destination import destination_of
from broker.slot_files.seal_log import TAP_PREFIX

if TYPE_CHECKING:
    from broker.core.auth.permissions import Kind
    from broker.core.vhost import Vhost
    from broker.manage.call import Call
    from broker.routing.exchange import Exchange

__all__ = [
    "check_cursor",
    "check_destination",
    "check_new_tap",
    "check_publish",
    "check_seal",
    "check_tap",
    "may_read_tap",
]


def may_read_tap(call: Call, vhost: str, tap: str) -> bool:
    """Return whether the caller may read what a tap keeps."""
    return call.broker.permissions.allows(call.user, _tap(vhost, tap), "read")


def check_tap(call: Call, vhost: str, tap: str, kind: Kind = "read") -> None:
    """Let the caller read a tap, or configure it. Raises: ChannelError (403)."""
    call.broker.permissions.check(call.user, _tap(vhost, tap), kind)


def check_seal(call: Call, vhost: str | None, tap: str | None) -> None:
    """Let the caller seal a tap, or all of a vhost or a name: each has to be one that the caller may read.

    Raises: ChannelError (403).
    """
    if vhost is not None and tap is not None:
        check_tap(call, vhost, tap)  # whether it exists or not
        return
    rows = [row for row in call.broker.taps.listing(vhost) if tap in (None, row["name"])]
    if not all(may_read_tap(call, row["vhost"], row["name"]) for row in rows):
        raise ChannelError(
            403, f"access to all taps refused for user '{call.user.name}', who may not read each of them"
        )


def check_new_tap(call: Call, vhost: Vhost, tap: str, exchange: str, pattern: str) -> None:
    """Let the caller add a tap, which reads an exchange as a binding does. Raises: ChannelError (403)."""
    check_tap(call, vhost.name, tap, "configure")
    source, known = vhost.exchange_resource(exchange), vhost.exchanges.get(exchange)
    call.broker.permissions.check_source(call.user, source, known, pattern)
    if known is None:  # it may become a topic exchange
        call.broker.permissions.check_topic(call.user, source, pattern, "read")


def check_cursor(call: Call, name: str, vhost: str, tap: str) -> None:
    """Let the caller move or remove a cursor: to read the tap suffices for the caller's own, and for a new one.

    Raises: ChannelError (403).
    """
    known = call.broker.taps.view.cursor(name, vhost, tap)
    if known is None or known.user == call.user.name:
        check_tap(call, vhost, tap)
        return
    if may_read_tap(call, vhost, tap) and not call.broker.permissions.allows(call.user, _tap(vhost, tap), "configure"):
        whose = f"of user '{known.user}'" if known.user else "of no user"
        raise ChannelError(
            403,
            f"access to cursor '{name}' {whose} refused for user '{call.user.name}', "
            f"who may not configure {_tap(vhost, tap)}",
        )
    check_tap(call, vhost, tap, "configure")


def check_publish(call: Call, vhost: Vhost, exchange: Exchange, keys: Iterable[str]) -> None:
    """Let the caller publish to an exchange with these routing keys. Raises: ChannelError (403)."""
    permissions, resource = call.broker.permissions, vhost.exchange_resource(exchange.name)
    permissions.check(call.user, resource, "write")
    if exchange.internal:
        raise ChannelError(403, f"cannot publish to internal {resource}")
    for key in keys if exchange.by_topic else ():
        permissions.check_topic(call.user, resource, key, "write")


def check_destination(call: Call, vhost: Vhost, to: str) -> None:
    """Let the caller publish to the queue, or to the exchange with or without a key, that QUEUE or EXCHANGE:KEY names.

    Raises: ChannelError (403); ControlRefused if there is none.
    """
    destination, key = destination_of(vhost, to)
    exchange = vhost.exchanges[""] if isinstance(destination, Queue) else destination
    check_publish(call, vhost, exchange, [] if key is None else [key])


def _tap(vhost: str, tap: str) -> Resource:
    """Return the name that rights to a tap are about, that of its queue."""
    return Resource("queue", vhost, TAP_PREFIX + tap)
