"""Rights to messages, taps and cursors, which depend on AMQP permissions and not on the user's tags."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.amqp.errors import ChannelError
from broker.core.auth.permissions import Kind
from broker.core.auth.users import User
from broker.core.names import Resource
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.operations.destination import destination_of
from broker.operations.operated_broker import OperatedBroker
from broker.operations.request import OfQueue
from broker.routing.exchange import Exchange
from broker.slot_files.seal_log import TAP_PREFIX


def of_queue(kind: Kind) -> Callable[[OperatedBroker, User, OfQueue], None]:
    """Return the function that checks a permission for the queue of an operation."""

    def check(broker: OperatedBroker, user: User, asked: OfQueue) -> None:
        broker.permissions.check(user, broker.vhost(asked.vhost).queue_resource(asked.queue), kind)

    return check


def may_read_tap(broker: OperatedBroker, user: User, vhost: str, tap: str) -> bool:
    """Return whether the user may read the messages of a tap."""
    return broker.permissions.allows(user, _tap(vhost, tap), "read")


def check_tap(broker: OperatedBroker, user: User, vhost: str, tap: str, kind: Kind = "read") -> None:
    """Check that the user has a permission for a tap. Raises: ChannelError (403)."""
    broker.permissions.check(user, _tap(vhost, tap), kind)


def check_seal(broker: OperatedBroker, user: User, vhost: str | None, tap: str | None) -> None:
    """Check that the user may read, and so seal, the taps with a name in a vhost; None stands for any name or vhost.

    Raises: ChannelError (403).
    """
    if vhost is not None and tap is not None:
        check_tap(broker, user, vhost, tap)  # whether it exists or not
        return
    rows = [row for row in broker.taps.listing(vhost) if tap in (None, row["name"])]
    if not all(may_read_tap(broker, user, row["vhost"], row["name"]) for row in rows):
        raise ChannelError(403, f"access to all taps refused for user '{user.name}', who may not read each of them")


def check_new_tap(broker: OperatedBroker, user: User, vhost: Vhost, tap: str, exchange: str, pattern: str) -> None:
    """Check that the user may configure a new tap, and bind to its exchange. Raises: ChannelError (403)."""
    check_tap(broker, user, vhost.name, tap, "configure")
    source, known = vhost.exchange_resource(exchange), vhost.exchanges.get(exchange)
    broker.permissions.check_source(user, source, known, pattern)
    if known is None:  # the exchange may be declared later, with type topic
        broker.permissions.check_topic(user, source, pattern, "read")


def check_cursor(broker: OperatedBroker, user: User, name: str, vhost: str, tap: str) -> None:
    """Check that the user may create, move or remove a cursor. A new cursor and the user's own require the right to
    read the tap, any other cursor the right to configure it. Raises: ChannelError (403).
    """
    known = broker.taps.view.cursor(name, vhost, tap)
    if known is None or known.user == user.name:
        check_tap(broker, user, vhost, tap)
        return
    if may_read_tap(broker, user, vhost, tap) and not broker.permissions.allows(user, _tap(vhost, tap), "configure"):
        whose = f"of user '{known.user}'" if known.user else "of no user"
        raise ChannelError(
            403,
            f"access to cursor '{name}' {whose} refused for user '{user.name}', "
            f"who may not configure {_tap(vhost, tap)}",
        )
    check_tap(broker, user, vhost, tap, "configure")


def check_publish(broker: OperatedBroker, user: User, vhost: Vhost, exchange: Exchange, keys: Iterable[str]) -> None:
    """Check that the user may publish to an exchange with these routing keys. Raises: ChannelError (403)."""
    permissions, resource = broker.permissions, vhost.exchange_resource(exchange.name)
    permissions.check(user, resource, "write")
    if exchange.internal:
        raise ChannelError(403, f"cannot publish to internal {resource}")
    for key in keys if exchange.by_topic else ():
        permissions.check_topic(user, resource, key, "write")


def check_destination(broker: OperatedBroker, user: User, vhost: Vhost, to: str) -> None:
    """Check that the user may publish to the destination QUEUE or EXCHANGE[:KEY].

    Raises: ChannelError (403); OperationRefused as `destination_of`.
    """
    destination, key = destination_of(vhost, to)
    exchange = vhost.exchanges[""] if isinstance(destination, Queue) else destination
    check_publish(broker, user, vhost, exchange, [] if key is None else [key])


def _tap(vhost: str, tap: str) -> Resource:
    """Return the queue of a tap, whose permissions apply to the tap."""
    return Resource("queue", vhost, TAP_PREFIX + tap)
