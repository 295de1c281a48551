"""The Exchange class on one channel: declare, delete, bind and unbind.

Order of checks and texts: RabbitMQ 4.3, rabbit_channel.
"""

from __future__ import annotations

from typing import Final

from pamqp import commands

from broker.core.names import check_exchange_type, refuse_default, refuse_reserved, refuse_system_deletion, strip_name
from broker.core.session.class_session import ClassSession
from broker.core.topology.changes import binding_subject, exchange_subject

UNITS: Final = 3  # the cost of each method, in units of the method budget


class ExchangeSession(ClassSession):
    """Declare, delete and bind exchanges for one channel."""

    __slots__ = ()

    def declare(self, method: commands.Exchange.Declare) -> None:
        """Create an exchange, or check that it exists. Raises: 403, 406; 404 for a passive declare."""
        self._session.method_budget.spend(UNITS)
        name = strip_name(method.exchange)
        resource = self._vhost.exchange_resource(name)
        if method.passive:
            refuse_default(resource)
            self._session.check_any(resource)
            self._vhost.exchanges.find(name)
        else:
            check_exchange_type(method.exchange_type)
            refuse_default(resource)
            self._session.check(resource, "configure")
            if name not in self._vhost.exchanges:
                refuse_reserved("exchange", name)
                self._session.check_new(resource, method.arguments or {})
            self._vhost.exchanges.declare(
                name,
                method.exchange_type,
                durable=method.durable,
                auto_delete=method.auto_delete,
                internal=method.internal,
                arguments=method.arguments,
            )
        self._answer(method, commands.Exchange.DeclareOk(), exchange_subject(name))

    def delete(self, method: commands.Exchange.Delete) -> None:
        """Delete an exchange and its bindings. Raises: 403; 406 if it is in use and `if_unused` is set."""
        self._session.method_budget.spend(UNITS)
        name = strip_name(method.exchange)
        resource = self._vhost.exchange_resource(name)
        refuse_default(resource)
        refuse_system_deletion(resource)
        self._session.check(resource, "configure")
        mark = self._vhost.answers.mark()
        self._vhost.exchanges.delete(name, if_unused=method.if_unused)
        self._answer(method, commands.Exchange.DeleteOk(), exchange_subject(name), mark)

    def bind(self, method: commands.Exchange.Bind) -> None:
        """Bind a destination exchange to a source exchange. Raises: 403, 404, 406."""
        destination, source = self._ends(method)
        self._vhost.bindings.bind_exchange(destination, source, method.routing_key, method.arguments)
        subject = binding_subject(source, "exchange", destination, method.routing_key)
        self._answer(method, commands.Exchange.BindOk(), subject)

    def unbind(self, method: commands.Exchange.Unbind) -> None:
        """Remove a binding between exchanges; a missing one is not an error. Raises: 403."""
        destination, source = self._ends(method)
        mark = self._vhost.answers.mark()
        self._vhost.bindings.unbind_exchange(destination, source, method.routing_key, method.arguments)
        subject = binding_subject(source, "exchange", destination, method.routing_key)
        self._answer(method, commands.Exchange.UnbindOk(), subject, mark)

    def _ends(self, method: commands.Exchange.Bind | commands.Exchange.Unbind) -> tuple[str, str]:
        """Check the rights of a method, and return its destination and source."""
        destination, source = strip_name(method.destination), strip_name(method.source)
        self._session.method_budget.spend(UNITS)
        resources = self._vhost.exchange_resource(destination), self._vhost.exchange_resource(source)
        self._session.check(resources[0], "write")
        refuse_default(resources[0])
        refuse_default(resources[1])
        self._session.check_source(resources[1], self._vhost.exchanges.get(source), method.routing_key)
        return destination, source
