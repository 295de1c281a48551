"""The queues of a vhost, and every rule about declaring and deleting them.

Codes and texts are those of RabbitMQ 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from broker.amqp.errors import ChannelError
from broker.core.delay.delayed import HoldingQueue, is_holding_name
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import check_queue_arguments
from broker.core.queue.tap_queue import TapQueue, is_tap_name
from broker.core.resource import Resource
from broker.core.topology import changes
from broker.core.topology.equivalence import check_same_queue
from broker.core.topology.recovered_queue import RecoveredQueue

if TYPE_CHECKING:
    from broker.core.vhost import Vhost

__all__ = ["Queues"]


class Queues(dict[str, Queue]):
    """Holds the queues by name.

    Invariant: the journal hears of each change of a durable queue once, in order, before the answer is written.
        ``next_number`` is higher than every number that a queue's streams ever had. ``taps`` has those of them that
        belong to taps, by the names of the queues.
    """

    __slots__ = ("_kept", "_owned", "_vhost", "next_number", "taps")

    def __init__(self, vhost: Vhost) -> None:
        super().__init__()
        self._vhost = vhost
        self._owned: dict[object, dict[str, Queue]] = {}
        self._kept = 0  # how many of them the broker keeps for itself; no client made those
        self.taps: dict[str, TapQueue] = {}
        self.next_number = 1

    def find(self, name: str, owner: object) -> Queue:
        """Return a queue that this connection may use.

        Raises: 404; 405 when it is exclusive to another connection; 403 when it holds delayed messages.
        """
        queue = self.seen(name, owner)
        if is_holding_name(name):
            raise ChannelError(
                403, f"{self._vhost.queue_resource(name)} holds delayed messages: it can be purged, nothing else"
            )
        return queue

    def seen(self, name: str, owner: object) -> Queue:
        """Return a queue that this connection may count and purge. Raises: 404, 405; 403 for that of a tap."""
        queue = self.get(name)
        if queue is None:
            raise ChannelError(404, f"no {self._vhost.queue_resource(name)}")
        if queue.exclusive_owner is not None and queue.exclusive_owner is not owner:
            raise _locked(self._vhost.queue_resource(name))
        if queue.is_tap:
            raise ChannelError(403, f"{self._vhost.queue_resource(name)} belongs to a tap: no client can use it")
        if self._vhost.sweep.pending:
            self._vhost.sweep.update(queue)
        return queue

    def reachable(self, name: str) -> Queue | None:
        """Return the queue to which a message for the default exchange goes, if there is one."""
        queue = self.get(name)
        return None if queue is None or queue.kept else queue

    def owned_by(self, owner: object) -> Iterable[Queue]:
        """Return the exclusive queues of a connection."""
        return tuple(self._owned.get(owner, {}).values())

    def declare(
        self,
        name: str,
        *,
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
        arguments: Mapping[str, Any],
        owner: object,
    ) -> Queue:
        """Return the queue of that name, made now or found equivalent.

        An exclusive queue is not durable whatever was asked for, as it cannot outlive its connection.
        Raises: 405 when it is another connection's; 406 when it differs, for a bad argument, and at the limit.
        """
        vhost = self._vhost
        durable = durable and not exclusive
        resource = vhost.queue_resource(name)
        queue = self.get(name)
        if queue is not None:
            if queue.exclusive_owner is not (owner if exclusive else None):
                raise _locked(resource)
            check_same_queue(resource, queue, durable=durable, auto_delete=auto_delete, arguments=arguments)
            vhost.sweep.update(queue)
            queue.used()
            return queue
        vhost.limits.check_shared(durable=durable, exclusive=exclusive)
        vhost.limits.check_queues(resource, len(self) - self._kept)
        check_queue_arguments(resource, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        queue = self.add(
            name,
            number=self.next_number,
            durable=durable,
            exclusive_owner=owner if exclusive else None,
            auto_delete=auto_delete,
            arguments=dict(arguments),
        )
        if durable:
            vhost.journal(changes.queue_declared(queue))
        return queue

    def add(
        self,
        name: str,
        *,
        number: int,
        durable: bool,
        exclusive_owner: object | None,
        auto_delete: bool,
        arguments: dict[str, Any],
        recovered: bool = False,
    ) -> Queue:
        """Return a new queue under a number that no other ever had, without telling the journal."""
        usual = RecoveredQueue if recovered else Queue
        kind = HoldingQueue if is_holding_name(name) else TapQueue if is_tap_name(name) else usual
        queue = kind(
            name,
            durable=durable,
            exclusive_owner=exclusive_owner,
            auto_delete=auto_delete,
            arguments=arguments,
            number=number,
            ports=self._vhost.ports,
        )
        self.next_number = max(self.next_number, number + queue.levels)
        self[name] = queue
        self._kept += queue.kept
        if isinstance(queue, TapQueue):
            self.taps[name] = queue
            self._vhost.exchanges.tap(queue)
        if exclusive_owner is not None:
            self._owned.setdefault(exclusive_owner, {})[name] = queue
        self._vhost.apply_policies_to_queue(queue)
        self._vhost.exchanges.default.touch(name)
        return queue

    def deletable(self, name: str, owner: object, *, if_unused: bool, if_empty: bool) -> Queue | None:
        """Return a queue that this connection may delete, for `drop`; None when there is no such queue.

        Raises: 405, and 406 when it is in use or not empty and must not be.
        """
        if name not in self:
            return None
        queue = self.find(name, owner)
        if if_empty and queue.ready:
            raise ChannelError(406, f"{self._vhost.queue_resource(name)} not empty")
        if if_unused and queue.consumers:
            raise ChannelError(406, f"{self._vhost.queue_resource(name)} in use")
        return queue

    def consumer_left(self, queue: Queue) -> bool:
        """Delete an auto-delete queue whose last consumer has left, and return whether it did."""
        unused = queue.auto_delete and queue.had_consumers and not queue.consumers
        if not unused or self.get(queue.name) is not queue:
            return False
        self.drop(queue)
        return True

    def owner_gone(self, owner: object) -> None:
        """Delete the exclusive queues of a connection that ended."""
        for queue in self.owned_by(owner):
            self.drop(queue)
        self._owned.pop(owner, None)

    def drop(self, queue: Queue) -> int:
        """Delete a queue of this vhost, whoever it belongs to, and return how many messages were ready."""
        # Out of the tables first: what the deletion wakes (cancelled consumers) must not find the queue again.
        vhost = self._vhost
        del self[queue.name]
        self._kept -= queue.kept
        tap = self.taps.pop(queue.name, None)
        if tap is not None:
            vhost.exchanges.untap(tap)
        vhost.exchanges.default.touch(queue.name)
        owned = self._owned.get(queue.exclusive_owner, {})
        owned.pop(queue.name, None)
        if queue.durable:
            vhost.journal(changes.queue_deleted(queue))
        vhost.bindings.remove_of_queue(queue)
        return queue.delete()


def _locked(resource: Resource) -> ChannelError:
    return ChannelError(
        405,
        f"cannot obtain exclusive access to locked {resource}. It could be originally declared on another connection "
        "or the exclusive property value does not match that of the original declaration.",
    )
