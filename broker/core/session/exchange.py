"""The Exchange class on one channel: declare and delete. Order of checks and texts: RabbitMQ 3.10.8, rabbit_channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pamqp import commands

from broker.core.names import check_exchange_type, refuse_default, refuse_system_deletion, strip_name
from broker.core.vhost import Vhost

if TYPE_CHECKING:
    from broker.amqp.channel import Channel
    from broker.core.session.connection import SessionOfConnection

__all__ = ["ExchangeSession"]


class ExchangeSession:
    """Declares and deletes exchanges for one channel."""

    __slots__ = ("_channel", "_session", "_vhost")

    def __init__(self, channel: Channel, session: SessionOfConnection, vhost: Vhost) -> None:
        self._channel = channel
        self._session = session
        self._vhost = vhost

    def declare(self, method: commands.Exchange.Declare) -> None:
        """Makes an exchange, or finds that it exists.

        Raises: 403, 404 when passive, 406, 503, 540.
        """
        name = strip_name(method.exchange)
        resource = self._vhost.exchange_resource(name)
        if method.passive:
            refuse_default(resource)
            self._vhost.exchange(name)
        else:
            check_exchange_type(method.exchange_type)
            refuse_default(resource)
            self._session.check(resource, "configure")
            self._vhost.declare_exchange(
                name,
                method.exchange_type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=method.arguments,
            )
        if not method.nowait:
            self._channel.send(commands.Exchange.DeclareOk())

    def delete(self, method: commands.Exchange.Delete) -> None:
        """Deletes an exchange and its bindings.

        Raises: 403, 406 when it is in use and must not be.
        """
        name = strip_name(method.exchange)
        resource = self._vhost.exchange_resource(name)
        refuse_default(resource)
        refuse_system_deletion(resource)
        self._session.check(resource, "configure")
        self._vhost.delete_exchange(name, if_unused=method.if_unused)
        if not method.nowait:
            self._channel.send(commands.Exchange.DeleteOk())
