"""How many exchanges, queues and bindings a vhost may have, and which queues at all."""

from __future__ import annotations

from dataclasses import dataclass

from broker.amqp.errors import ChannelError, ConnectionFault
from broker.core.resource import Resource

__all__ = ["VhostLimits"]


@dataclass(frozen=True, slots=True)
class VhostLimits:
    """The limits of one vhost; they hold for who declares and binds, not for what is stored already.

    The exchanges and queues that the broker makes itself are not counted.
    """

    exchanges_max: int = 100_000
    queues_max: int = 100_000
    bindings_max: int = 10_000_000
    transient_shared_queues: bool = True

    def check_exchanges(self, resource: Resource, count: int) -> None:
        """Refuses one more exchange than may be. Raises: 406."""
        if count >= self.exchanges_max:
            raise _reached(f"cannot declare exchange '{resource.name}': exchange", resource.vhost, self.exchanges_max)

    def check_queues(self, resource: Resource, count: int) -> None:
        """Refuses one more queue than may be. Raises: 406, with the text of RabbitMQ's max-queues."""
        if count >= self.queues_max:
            raise _reached(f"cannot declare queue '{resource.name}': queue", resource.vhost, self.queues_max)

    def check_shared(self, *, durable: bool, exclusive: bool) -> None:
        """Refuses a queue that is neither durable nor exclusive, where an operator wants RabbitMQ 4.3's rule.

        Raises: 541, which closes the connection.
        """
        if not (durable or exclusive or self.transient_shared_queues):
            raise ConnectionFault(
                541,
                "Feature `transient_nonexcl_queues` is deprecated. Its use is not permitted per the configuration: "
                "limits.transient_shared_queues = false",
            )

    def check_bindings(self, resource: Resource, count: int) -> None:
        """Refuses one more binding than may be. Raises: 406."""
        if count >= self.bindings_max:
            raise _reached(f"cannot bind {resource.kind} '{resource.name}': binding", resource.vhost, self.bindings_max)


def _reached(what: str, vhost: str, limit: int) -> ChannelError:
    return ChannelError(406, f"{what} limit in vhost '{vhost}' ({limit}) is reached")
