"""Operations on exchanges and bindings, under the rules for clients."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import Any, Final

from broker.administration.deciding import decided
from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.core.auth.users import User
from broker.core.names import check_exchange_type, is_short_text, refuse_reserved
from broker.core.queue.queue import Queue
from broker.core.vhost import Vhost
from broker.event_log import get_logger
from broker.operations.destination import destination_of, exchange_named
from broker.operations.operated_broker import OperatedBroker
from broker.operations.operation import Operation
from broker.operations.queues import check_arguments, check_declare, check_name
from broker.operations.request import Asker, OperationRefused, parameters
from broker.routing.exchange import Exchange

_log = get_logger()


@parameters
class DeclareExchange:
    """The properties with which an exchange is declared."""

    exchange: str
    vhost: str = "/"
    type: str = "direct"
    transient: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)


@parameters
class DeleteExchange:
    """The exchange to delete; with `if_unused`, only if it is not the source of a binding."""

    exchange: str
    vhost: str = "/"
    if_unused: bool = False


@parameters
class Binding:
    """A binding. Shapes: `destination` is QUEUE or EXCHANGE, parsed by `destination_of`."""

    exchange: str
    destination: str
    vhost: str = "/"
    key: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)


def _may_declare(broker: OperatedBroker, user: User, asked: DeclareExchange) -> None:
    vhost = broker.vhost(asked.vhost)
    is_new = asked.exchange not in vhost.exchanges
    check_declare(broker, user, vhost.exchange_resource(asked.exchange), asked.arguments, is_new=is_new)


async def declare_exchange(broker: OperatedBroker, asked: DeclareExchange, _asker: Asker) -> dict[str, bool]:
    """Declare an exchange, and return whether it is new."""
    vhost, name, durable = broker.vhost(asked.vhost), asked.exchange, not asked.transient
    check_name("exchange", name)
    check_arguments(asked.arguments)
    check_exchange_type(asked.type)
    made = name not in vhost.exchanges
    if made:
        refuse_reserved("exchange", name)
    flags = {"durable": durable, "auto_delete": asked.auto_delete, "internal": asked.internal}
    await decided(lambda: vhost.exchanges.declare(name, asked.type, arguments=asked.arguments, **flags))
    if made:
        _log.info("exchange.declared", vhost=vhost.name, exchange=name, type=asked.type, durable=durable)
    return await _done(broker, vhost, made=made)


def _may_delete(broker: OperatedBroker, user: User, asked: DeleteExchange) -> None:
    broker.permissions.check(user, broker.vhost(asked.vhost).exchange_resource(asked.exchange), "configure")


async def delete_exchange(broker: OperatedBroker, asked: DeleteExchange, _asker: Asker) -> None:
    """Delete an exchange."""
    vhost = broker.vhost(asked.vhost)
    exchange_named(vhost, asked.exchange)
    await decided(partial(vhost.exchanges.delete, asked.exchange, if_unused=asked.if_unused))
    _log.info("exchange.deleted", vhost=vhost.name, exchange=asked.exchange)
    await broker.engine(vhost).committer.drain()


def _ends(vhost: Vhost, asked: Binding) -> tuple[Exchange, Queue | Exchange]:
    """Return the source and the destination of a binding. Raises: OperationRefused."""
    source = exchange_named(vhost, asked.exchange)
    destination, key = destination_of(vhost, asked.destination)
    if key is not None:
        raise OperationRefused(f"no queue or exchange '{asked.destination}' in vhost '{vhost.name}'")
    if not is_short_text(asked.key):
        raise OperationRefused(f"a binding key has at most {SHORT_STRING_MAX_BYTES} bytes")
    check_arguments(asked.arguments)
    return source, destination


def _may_bind(broker: OperatedBroker, user: User, asked: Binding) -> None:
    vhost, permissions = broker.vhost(asked.vhost), broker.permissions
    source, destination = _ends(vhost, asked)
    named = vhost.queue_resource if isinstance(destination, Queue) else vhost.exchange_resource
    permissions.check(user, named(destination.name), "write")
    permissions.check_source(user, vhost.exchange_resource(source.name), source, asked.key)


async def bind(broker: OperatedBroker, asked: Binding, _asker: Asker) -> dict[str, bool]:
    """Bind a queue or an exchange, and return whether the binding is new."""
    vhost = broker.vhost(asked.vhost)
    source, destination = _ends(vhost, asked)
    made = not source.is_bound(destination, asked.key, asked.arguments)
    names, bindings = (destination.name, source.name, asked.key, asked.arguments), vhost.bindings
    if isinstance(destination, Queue):
        await decided(partial(bindings.bind, *names, destination.exclusive_owner))
    else:
        await decided(partial(bindings.bind_exchange, *names))
    return await _done(broker, vhost, made=made)


async def unbind(broker: OperatedBroker, asked: Binding, _asker: Asker) -> dict[str, bool]:
    """Remove a binding."""
    vhost = broker.vhost(asked.vhost)
    source, destination = _ends(vhost, asked)
    if not source.is_bound(destination, asked.key, asked.arguments):
        raise OperationRefused(f"no such binding of '{destination.name}' to exchange '{source.name}'")
    names = (destination.name, source.name, asked.key, asked.arguments)
    if isinstance(destination, Queue):
        await decided(partial(vhost.bindings.unbind, *names, destination.exclusive_owner))
    else:
        await decided(partial(vhost.bindings.unbind_exchange, *names))
    return await _done(broker, vhost, made=False)


async def _done(broker: OperatedBroker, vhost: Vhost, *, made: bool) -> dict[str, bool]:
    await broker.engine(vhost).committer.drain()
    return {"made": made}


OPERATIONS: Final[dict[str, Operation[Any]]] = {
    "declare_exchange": Operation(declare_exchange, DeclareExchange, _may_declare, asks_database=True),
    "delete_exchange": Operation(delete_exchange, DeleteExchange, _may_delete, asks_database=True),
    "bind": Operation(bind, Binding, _may_bind, asks_database=True),
    "unbind": Operation(unbind, Binding, _may_bind, asks_database=True),
}
