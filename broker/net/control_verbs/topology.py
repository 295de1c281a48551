"""Declares queues and exchanges, binds and unbinds, for an operator: by the rules for clients except rights."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from broker.administration.deciding import decided
from broker.amqp.table_writer import encode_table
from broker.amqp.wire import SHORT_STRING_MAX_BYTES
from broker.core.names import check_exchange_type, is_short_text, refuse_reserved
from broker.core.queue.default_type import with_default_type
from broker.core.queue.queue import Queue
from broker.event_log import get_logger
from broker.net.control_request import ControlRefused, Request, Verb
from broker.net.control_verbs.destination import destination_of, exchange_named
from broker.net.control_verbs.refusing import vhost_of

if TYPE_CHECKING:
    from broker.administration.administration import Administration
    from broker.core.vhost import Vhost
    from broker.routing.exchange import Exchange

__all__ = ["topology_verbs"]

_log = get_logger()


def topology_verbs(administration: Administration) -> dict[str, Verb]:
    """Return the verbs. Refusals have the texts that a client gets."""

    async def declare_queue(request: Request) -> dict[str, bool]:
        vhost, name, arguments = vhost_of(request, administration), name_of(request, "queue"), table_of(request)
        durable, auto_delete = not request.flag("transient"), request.flag("auto_delete")
        arguments = dict(
            with_default_type(
                arguments, vhost.default_queue_type, durable=durable, exclusive=False, auto_delete=auto_delete
            )
        )
        made = name not in vhost.queues
        if made:
            refuse_reserved("queue", name)
        declare = vhost.queues.declare
        await decided(lambda: declare(name, durable=durable, auto_delete=auto_delete, arguments=arguments))
        if made:
            _log.info("queue.declared", vhost=vhost.name, queue=name, durable=durable, arguments=arguments)
        return await done(vhost, made=made)

    async def declare_exchange(request: Request) -> dict[str, bool]:
        vhost, name, arguments = vhost_of(request, administration), name_of(request, "exchange"), table_of(request)
        type_, durable = request.text("type", "direct"), not request.flag("transient")
        check_exchange_type(type_)
        made = name not in vhost.exchanges
        if made:
            refuse_reserved("exchange", name)
        auto_delete, internal = request.flag("auto_delete"), request.flag("internal")
        declare = vhost.exchanges.declare
        await decided(
            lambda: declare(
                name, type_, durable=durable, auto_delete=auto_delete, internal=internal, arguments=arguments
            )
        )
        if made:
            _log.info("exchange.declared", vhost=vhost.name, exchange=name, type=type_, durable=durable)
        return await done(vhost, made=made)

    async def bind_(request: Request) -> dict[str, bool]:
        vhost = vhost_of(request, administration)
        source, destination, key, arguments = binding_of(request, vhost)
        made = not source.is_bound(destination, key, arguments)
        if isinstance(destination, Queue):
            owner = destination.exclusive_owner
            bind = partial(vhost.bindings.bind, destination.name, source.name, key, arguments, owner)
        else:
            bind = partial(vhost.bindings.bind_exchange, destination.name, source.name, key, arguments)
        await decided(bind)
        return await done(vhost, made=made)

    async def unbind_(request: Request) -> dict[str, bool]:
        vhost = vhost_of(request, administration)
        source, destination, key, arguments = binding_of(request, vhost)
        if not source.is_bound(destination, key, arguments):
            raise ControlRefused(f"no such binding of '{destination.name}' to exchange '{source.name}'")
        if isinstance(destination, Queue):
            owner = destination.exclusive_owner
            unbind = partial(vhost.bindings.unbind, destination.name, source.name, key, arguments, owner)
        else:
            unbind = partial(vhost.bindings.unbind_exchange, destination.name, source.name, key, arguments)
        await decided(unbind)
        return await done(vhost, made=False)

    async def done(vhost: Vhost, *, made: bool) -> dict[str, bool]:
        await administration.vhosts.engines[vhost.name].committer.drain()
        return {"made": made}

    return {"declare_queue": declare_queue, "declare_exchange": declare_exchange, "bind": bind_, "unbind": unbind_}


def binding_of(request: Request, vhost: Vhost) -> tuple[Exchange, Queue | Exchange, str, dict[str, Any]]:
    """Return source, destination, key and arguments of a binding. Raises: ControlRefused."""
    source = exchange_named(vhost, request.text("exchange"))
    destination, none = destination_of(vhost, request.text("destination"))
    if none is not None:
        raise ControlRefused(f"no queue or exchange '{request.text('destination')}' in vhost '{vhost.name}'")
    key = request.text("key", "")
    if not is_short_text(key):
        raise ControlRefused(f"a binding key has at most {SHORT_STRING_MAX_BYTES} bytes")
    return source, destination, key, table_of(request)


def name_of(request: Request, kind: str) -> str:
    """Return the name of the declared object. Raises: ControlRefused."""
    name = request.text(kind)
    if not name or not is_short_text(name) or not name.isprintable():
        raise ControlRefused(
            f"the name of {'an' if kind == 'exchange' else 'a'} {kind} has 1 to 255 bytes of printable text"
        )
    return name


def table_of(request: Request) -> dict[str, Any]:
    """Return the arguments. Raises: ControlRefused for arguments that no client can send."""
    arguments = request.table("arguments") if request.has("arguments") else {}
    try:
        encode_table(arguments)
    except ValueError as error:
        raise ControlRefused(f"the arguments cannot be: {error}") from None
    return arguments
