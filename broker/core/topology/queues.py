"""The queues of a vhost, and the rules for declaring and deleting them. Codes and texts: RabbitMQ 4.3."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from broker.amqp.errors import ChannelError
from broker.core.names import Resource
from broker.core.postponed import carry_out
from broker.core.queue.kinds import FIRST_NUMBER, STREAM_PREFIX, OverlayQueue, TapQueue
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import QueueDeclaration, check_queue_arguments
from broker.core.queue.rules import POISONED_ARGUMENTS
from broker.core.statistics.vhost_tally import VhostTally
from broker.core.topology import changes
from broker.core.topology.equivalence import check_same_queue
from broker.core.topology.exchanges import Exchanges
from broker.core.topology.parts import TopologyParts
from broker.event_log import get_logger
from broker.store.record import QUEUE_NUMBERS

_log = get_logger()


class Queues(dict[str, Queue]):
    """The queues of a vhost by name. `taps` maps names to the queues of taps; `paused` contains the names that
    operators have paused, also of queues that do not exist.

    Invariant: the journal decides each change of a queue before it is made. `next_number` is higher than every number
        that a level of a queue ever had, ignoring the bits above QUEUE_NUMBERS.
    """

    def __init__(
        self,
        parts: TopologyParts,
        ports: QueuePorts[Level, Queue],
        exchanges: Exchanges,
        tally: VhostTally,
    ) -> None:
        super().__init__()
        self._parts = parts
        self._ports = ports
        self._exchanges = exchanges
        self._tally = tally
        self._owned: dict[object, dict[str, Queue]] = {}
        self._internal = 0  # the number of internal queues
        self.taps = exchanges.taps
        self.next_number = 1
        self.paused: set[str] = set()

    def find(self, name: str, owner: object) -> Queue:
        """Return a queue that a connection may use.

        Raises: 404; 405 if it is exclusive to another connection; 403 for an internal queue.
        """
        queue = self.countable(name, owner)
        if queue.is_internal:
            raise ChannelError(403, f"{self._parts.queue(name)} holds {queue.holds}: it can be purged, nothing else")
        return queue

    def countable(self, name: str, owner: object) -> Queue:
        """Return a queue whose messages a connection may count and purge.

        Raises: 404, 405; 403 for the queue of a tap or of the overlay.
        """
        queue = self.get(name)
        if queue is None:
            raise ChannelError(404, f"no {self._parts.queue(name)}")
        if queue.exclusive_owner is not None and queue.exclusive_owner is not owner:
            raise _locked(self._parts.queue(name))
        if isinstance(queue, TapQueue):
            raise ChannelError(403, f"{self._parts.queue(name)} belongs to a tap: no client can use it")
        if queue.is_overlay:
            raise ChannelError(403, f"{self._parts.queue(name)} belongs to the overlay: no client can use it")
        if self._parts.sweep.pending:
            self._parts.sweep.update(queue)
        return queue

    def reachable(self, name: str) -> Queue | None:
        """Return the queue to which the default exchange routes a name, or None if there is none."""
        queue = self.get(name)
        return None if queue is None or queue.is_internal else queue

    @property
    def declared_count(self) -> int:
        """The number of queues that clients have declared, to which the limit of the vhost applies."""
        return len(self) - self._internal

    @property
    def owners(self) -> list[object]:
        return list(self._owned)

    def declare(
        self,
        name: str,
        *,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        owner: object = None,
    ) -> Queue:
        """Return the queue with a name, creating it unless an equivalent one exists. An exclusive queue is never
        durable, because it does not outlive its connection. Raises: 405 if it has another exclusive owner; 406 if it
        differs from the existing one, for an invalid argument, and at the limit; 541 if settings forbid it; Postponed.
        """
        arguments = arguments or {}
        durable = durable and not exclusive
        resource = self._parts.queue(name)
        queue = self.get(name)
        if queue is not None:
            if queue.exclusive_owner is not (owner if exclusive else None):
                raise _locked(resource)
            check_same_queue(resource, queue, durable=durable, auto_delete=auto_delete, arguments=arguments)
            self._parts.sweep.update(queue)
            queue.used()
            self._tally.declared()
            return queue
        self._parts.limits.check_shared(durable=durable, exclusive=exclusive)
        self._parts.limits.check_queues(resource, self.declared_count)
        if arguments.get("x-message-deduplication") is True:
            self._parts.limits.check_alone(resource, "x-message-deduplication")
        check_queue_arguments(resource, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        declaration = QueueDeclaration(
            name,
            self.next_number,
            durable=durable,
            exclusive_owner=owner if exclusive else None,
            auto_delete=auto_delete,
            arguments=dict(arguments),
        )
        self._parts.journal.decide(changes.new_queue(declaration), durable=durable, owner=declaration.exclusive_owner)
        self._tally.declared()
        self._tally.created()
        return self.add(declaration)

    def add(self, declaration: QueueDeclaration) -> Queue:
        """Create a queue without journaling it."""
        name, exclusive_owner = declaration.name, declaration.exclusive_owner
        queue = self._ports.kind_of(name)(declaration, self._ports)
        self.reserve_numbers(queue.number + len(queue.levels))
        self[name] = queue
        self._internal += queue.is_internal
        if isinstance(queue, TapQueue):
            self._exchanges.tap(queue)
        if exclusive_owner is not None:
            self._owned.setdefault(exclusive_owner, {})[name] = queue
        self._parts.policies.apply_to_queue(queue)
        if name in self.paused and not queue.is_internal:
            queue.pause()
        self._exchanges.default.touch(name)
        return queue

    def own(self, name: str, *, durable: bool = True, arguments: dict[str, Any] | None = None) -> Queue:
        """Return an internal queue, creating and journaling it if necessary."""
        queue = self.get(name)
        if queue is None:
            declaration = QueueDeclaration(name, self.next_number, durable=durable, arguments=arguments or {})
            queue = self._add_own(declaration)
        return queue

    def own_stream(self, exchange: str, first_number: int = 1) -> OverlayQueue:
        """Return the stream queue of an overlay exchange, creating and journaling it if necessary."""
        queue = self.own(STREAM_PREFIX + exchange, arguments={FIRST_NUMBER: first_number})
        assert isinstance(queue, OverlayQueue)
        return queue

    def add_recovered(self, number: int, new_name: Callable[[str], str]) -> Queue:
        """Create and journal a durable queue with the number of a queue whose declaration was lost."""
        name = f"recovered.{number}"
        while name in self:
            name = new_name(f"recovered.{number}.")
        return self._add_own(QueueDeclaration(name, number, recovered=True))

    def change_expiry(self, queue: Queue, expires_ms: int) -> None:
        """Change the time after which a queue expires if it is unused, and journal that."""
        if queue.arguments.get("x-expires") != expires_ms:
            declaration = replace(queue.declaration, arguments={**queue.arguments, "x-expires": expires_ms})
            self._parts.journal.decide(changes.new_queue(declaration), durable=queue.durable)
            self.redeclare(queue, declaration)

    def redeclare(self, queue: Queue, declaration: QueueDeclaration) -> None:
        """Apply a new declaration of a queue, which has been journaled."""
        queue.redeclare(declaration)
        self._parts.policies.apply_to_queue(queue)

    def add_tap(self, name: str, number: int, arguments: dict[str, Any]) -> None:
        """Create and journal the queue of a tap. The arguments state the id of its first message."""
        queue = self._add_own(QueueDeclaration(name, number, arguments=arguments))
        queue.level.lose_sealed(self.taps[name].first_id)

    def _add_own(self, declaration: QueueDeclaration) -> Queue:
        self._parts.journal.decide(changes.new_queue(declaration), durable=declaration.durable)
        return self.add(declaration)

    def set_paused(self, name: str, *, paused: bool) -> None:
        """Pause or resume the queue with a name, now or when it is declared."""
        queue = self.get(name)
        if paused:
            self.paused.add(name)
        else:
            self.paused.discard(name)
        if queue is None or queue.is_internal or queue.paused is paused:
            return
        if paused:
            queue.pause()
        else:
            queue.resume()

    def reserve_numbers(self, below: int) -> None:
        """Use no number below `below` for a new queue; these may be the numbers of other queues' levels."""
        self.next_number = max(self.next_number, ((below - 1) & QUEUE_NUMBERS) + 1)

    def deletable(self, name: str, owner: object, *, if_unused: bool, if_empty: bool) -> Queue | None:
        """Return a queue that a connection may delete, for `drop`, or None if there is no such queue. Raises: 403 for
        an internal queue; 405; 406 if `if_unused` or `if_empty` is set and not met; Postponed.
        """
        if name not in self:
            return None
        queue = self.find(name, owner)
        queue.prepare_for("delete", owner)
        messages, consumers = queue.counts()
        if if_empty and (messages or queue.delayed):
            raise ChannelError(406, f"{self._parts.queue(name)} not empty")
        if if_unused and consumers:
            raise ChannelError(406, f"{self._parts.queue(name)} in use")
        return queue

    def delete(self, name: str, owner: object, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue and return the number of ready messages, or 0 if it does not exist. Raises: as `deletable`."""
        queue = self.deletable(name, owner, if_unused=if_unused, if_empty=if_empty)
        return 0 if queue is None else self.drop(queue)

    def unused(self, queue: Queue) -> None:
        """Delete an unused queue, unless it has already been deleted."""
        change = changes.queue_deleted(queue)
        if self.get(queue.name) is queue and self._parts.journal.retire(change, durable=queue.durable):
            self.drop_decided(queue)

    def with_poisoned(self, name: str, then: Callable[[], None]) -> None:
        """Call `then` once the queue of that name for poisoned messages exists, or could not be declared."""
        if name in self:
            then()
        else:
            carry_out(partial(self._declare_poisoned, name), then)

    def _declare_poisoned(self, name: str) -> None:
        try:
            self.declare(name, durable=True, arguments=POISONED_ARGUMENTS)
        except ChannelError as error:
            _log.error("poisoned.dropped", vhost=self._parts.vhost_name, queue=name, reason=str(error))

    def consumer_left(self, queue: Queue) -> bool:
        """Delete a queue and return True if it is auto-delete and has lost its last consumer; else return False."""
        unused = queue.auto_delete and queue.had_consumers and not queue.consumers
        if not unused or self.get(queue.name) is not queue:
            return False
        self.unused(queue)
        return True

    def owner_gone(self, owner: object, done: Callable[[], None] = lambda: None) -> None:
        """Delete the exclusive queues of a closed connection, and call `done` when all are deleted."""
        self.drop_all(tuple(self._owned.get(owner, {}).values()), done)

    def drop_all(self, queues: Sequence[Queue], done: Callable[[], None]) -> None:
        """Delete queues, whatever their owner, and call `done` when all are deleted."""
        remaining = len(queues)

        def dropped() -> None:
            nonlocal remaining
            remaining -= 1
            if not remaining:
                done()

        for queue in queues:
            carry_out(partial(self._drop_found, queue), dropped)
        if not queues:
            done()

    def drop(self, queue: Queue) -> int:
        """Delete a queue, whatever its owner, and return the number of ready messages."""
        self.decide_drop(queue)
        return self.drop_decided(queue)

    def decide_drop(self, queue: Queue) -> None:
        """Decide the deletion of a queue; the caller must call `drop_decided` next."""
        self._parts.journal.decide(changes.queue_deleted(queue), durable=queue.durable, owner=queue.exclusive_owner)

    def drop_decided(self, queue: Queue) -> int:
        """Delete a queue whose deletion is decided, and return the number of ready messages."""
        # Remove the queue from the tables first, so that code that the deletion calls does not find it.
        del self[queue.name]
        self._internal -= queue.is_internal
        if not queue.is_internal:
            self._tally.deleted()
        if isinstance(queue, TapQueue):
            del self.taps[queue.name]
            self._exchanges.untap(queue)
        self._exchanges.default.touch(queue.name)
        owned = self._owned.get(queue.exclusive_owner, {})
        owned.pop(queue.name, None)
        if not owned:
            self._owned.pop(queue.exclusive_owner, None)
        self._exchanges.drop_unbound(self._parts.live.end_leading_to(queue))
        return queue.delete()

    def _drop_found(self, queue: Queue) -> None:
        if self.get(queue.name) is queue:
            self.drop(queue)


def _locked(resource: Resource) -> ChannelError:
    return ChannelError(
        405,
        f"cannot obtain exclusive access to locked {resource}. It could be originally declared on another connection "
        "or the exclusive property value does not match that of the original declaration.",
    )
