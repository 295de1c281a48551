"""The queues of a vhost, and every rule about declaring and deleting them.

Codes and texts are those of RabbitMQ 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from broker.amqp.errors import ChannelError
from broker.core.names import Resource
from broker.core.policy.policy import Policies
from broker.core.policy.policy_sweep import PolicySweep
from broker.core.postponed import carry_out
from broker.core.queue.kinds import OverlayQueue, TapQueue, holding_name, overlay_arguments, overlay_queue_name
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.core.queue.queue_arguments import QueueDeclaration, check_queue_arguments
from broker.core.statistics.vhost_tally import VhostTally
from broker.core.topology import changes
from broker.core.topology.changes import Journal
from broker.core.topology.equivalence import check_same_queue
from broker.core.topology.exchanges import Exchanges
from broker.core.topology.live_bindings import LiveBindings
from broker.core.vhost_limits import VhostLimits
from broker.store.record import QUEUE_NUMBERS

__all__ = ["Queues"]


class Queues(dict[str, Queue]):
    """Holds the queues by name.

    Invariant: `journal` decides each change of a queue once, in order, before it is made.
        ``next_number`` is higher than every number that a queue's levels ever had. ``taps`` has the queues of taps by
        name. ``paused`` has the names of the queues that operators paused; there may be no such queue.
    """

    def __init__(
        self,
        vhost_name: str,
        ports: QueuePorts[Level, Queue],
        exchanges: Exchanges,
        live: LiveBindings,
        policies: Policies,
        sweep: PolicySweep,
        journal: Journal,
        limits: VhostLimits,
        tally: VhostTally,
    ) -> None:
        super().__init__()
        self._vhost_name = vhost_name
        self._ports = ports
        self._exchanges = exchanges
        self._live = live
        self._policies = policies
        self._sweep = sweep
        self._journal = journal
        self._limits = limits
        self._tally = tally
        self._owned: dict[object, dict[str, Queue]] = {}
        self._kept = 0  # queues that the broker keeps for itself; no client made them
        self.taps = exchanges.taps
        self.next_number = 1
        self.paused: set[str] = set()

    def find(self, name: str, owner: object) -> Queue:
        """Return a queue that this connection may use.

        Raises: 404; 405 when it is exclusive to another connection; 403 when the broker keeps it for an exchange.
        """
        queue = self.seen(name, owner)
        if queue.kept:
            raise ChannelError(403, f"{self._resource(name)} holds {queue.holds}: it can be purged, nothing else")
        return queue

    def seen(self, name: str, owner: object) -> Queue:
        """Return a queue that this connection may count and purge.

        Raises: 404, 405; 403 for that of a tap or of the overlay.
        """
        queue = self.get(name)
        if queue is None:
            raise ChannelError(404, f"no {self._resource(name)}")
        if queue.exclusive_owner is not None and queue.exclusive_owner is not owner:
            raise _locked(self._resource(name))
        if isinstance(queue, TapQueue):
            raise ChannelError(403, f"{self._resource(name)} belongs to a tap: no client can use it")
        if queue.is_overlay:
            raise ChannelError(403, f"{self._resource(name)} belongs to the overlay: no client can use it")
        if self._sweep.pending:
            self._sweep.update(queue)
        return queue

    def reachable(self, name: str) -> Queue | None:
        """Return the queue to which a message for the default exchange goes, if there is one."""
        queue = self.get(name)
        return None if queue is None or queue.kept else queue

    @property
    def declared_count(self) -> int:
        """How many queues clients have declared; the limit of the vhost holds for them."""
        return len(self) - self._kept

    @property
    def owners(self) -> list[object]:
        """The connections that have exclusive queues."""
        return list(self._owned)

    def owned_by(self, owner: object) -> Sequence[Queue]:
        """Return the exclusive queues of a connection."""
        return tuple(self._owned.get(owner, {}).values())

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
        """Return the queue of that name, made now or found equivalent.

        An exclusive queue is not durable, whatever the declare asks for: it cannot outlive its connection.
        Raises: 405 when it is another connection's; 406 when it differs, for a bad argument, and at the limit.
        """
        arguments = arguments or {}
        durable = durable and not exclusive
        resource = self._resource(name)
        queue = self.get(name)
        if queue is not None:
            if queue.exclusive_owner is not (owner if exclusive else None):
                raise _locked(resource)
            check_same_queue(resource, queue, durable=durable, auto_delete=auto_delete, arguments=arguments)
            self._sweep.update(queue)
            queue.used()
            self._tally.declared()
            return queue
        self._limits.check_shared(durable=durable, exclusive=exclusive)
        self._limits.check_queues(resource, self.declared_count)
        if arguments.get("x-message-deduplication") is True:
            self._limits.check_alone(resource, "x-message-deduplication")
        check_queue_arguments(resource, arguments, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
        declaration = QueueDeclaration(
            name,
            self.next_number,
            durable=durable,
            exclusive_owner=owner if exclusive else None,
            auto_delete=auto_delete,
            arguments=dict(arguments),
        )
        self._journal.decide(changes.new_queue(declaration), durable=durable, owner=declaration.exclusive_owner)
        self._tally.declared()
        self._tally.created()
        return self.add(declaration)

    def add(self, declaration: QueueDeclaration) -> Queue:
        """Return a new queue under a number that no other ever had; do not journal it."""
        name, exclusive_owner = declaration.name, declaration.exclusive_owner
        queue = self._ports.kind_of(name, declaration.recovered)(declaration, self._ports)
        self.reserve_numbers(queue.number + len(queue.levels))
        self[name] = queue
        self._kept += queue.kept
        if isinstance(queue, TapQueue):
            self._exchanges.tap(queue)
        if exclusive_owner is not None:
            self._owned.setdefault(exclusive_owner, {})[name] = queue
        self._policies.apply_to_queue(queue)
        if name in self.paused and not queue.kept:
            queue.pause()
        self._exchanges.default.touch(name)
        return queue

    def add_holding(self, exchange: str, *, durable: bool) -> Queue:
        """Return the holding queue of an x-delayed-message exchange, made and journalled now or found."""
        name = holding_name(exchange)
        queue = self.get(name)
        return self._add_own(QueueDeclaration(name, self.next_number, durable=durable)) if queue is None else queue

    def add_memory(self, name: str, arguments: dict[str, Any], *, durable: bool) -> Queue:
        """Return the memory of an exchange, made and journalled now or found."""
        queue = self.get(name)
        if queue is None:
            queue = self._add_own(QueueDeclaration(name, self.next_number, durable=durable, arguments=arguments))
        return queue

    def add_level(self, exchange: str, first_number: int = 1) -> OverlayQueue:
        """Return the stream queue of an exchange of the overlay, made and journalled now or found."""
        name = overlay_queue_name(exchange)
        queue = self.get(name)
        if queue is None:
            arguments = overlay_arguments(first_number)
            queue = self._add_own(QueueDeclaration(name, self.next_number, arguments=arguments))
        assert isinstance(queue, OverlayQueue)
        return queue

    def add_recovered(self, number: int, new_name: Callable[[str], str]) -> Queue:
        """Return a new durable queue under the number of one whose declaration was lost, and journal it."""
        name = f"recovered.{number}"
        while name in self:
            name = new_name(f"recovered.{number}.")
        return self._add_own(QueueDeclaration(name, number, recovered=True))

    def change_expiry(self, queue: Queue, expires_ms: int) -> None:
        """Let a queue expire after another time without use. The change is journalled."""
        if queue.arguments.get("x-expires") != expires_ms:
            declaration = replace(queue.declaration, arguments={**queue.arguments, "x-expires": expires_ms})
            self._journal.decide(changes.new_queue(declaration), durable=queue.durable)
            self.redeclare(queue, declaration)

    def redeclare(self, queue: Queue, declaration: QueueDeclaration) -> None:
        """Give a queue the arguments of a new declaration, which is journalled."""
        queue.redeclare(declaration)
        self._policies.apply_to_queue(queue)

    def add_tap(self, name: str, number: int, arguments: dict[str, Any]) -> None:
        """Make the queue of a tap and journal it; its first message gets the id that the arguments say."""
        queue = self._add_own(QueueDeclaration(name, number, arguments=arguments))
        queue.level.lose_sealed(self.taps[name].first_id)

    def _add_own(self, declaration: QueueDeclaration) -> Queue:
        self._journal.decide(changes.new_queue(declaration), durable=declaration.durable)
        return self.add(declaration)

    def set_paused(self, name: str, *, paused: bool) -> None:
        """Pause or resume the queue of that name, also one that is declared later."""
        queue = self.get(name)
        if paused:
            self.paused.add(name)
        else:
            self.paused.discard(name)
        if queue is None or queue.kept or queue.paused is paused:
            return
        if paused:
            queue.pause()
        else:
            queue.resume()

    def reserve_numbers(self, below: int) -> None:
        """Give no new queue a number below this one, which may be that of a level."""
        self.next_number = max(self.next_number, ((below - 1) & QUEUE_NUMBERS) + 1)

    def deletable(self, name: str, owner: object, *, if_unused: bool, if_empty: bool) -> Queue | None:
        """Return a queue that this connection may delete, for `drop`; None when there is no such queue.

        Raises: 405, and 406 when it is in use or not empty and must not be.
        """
        if name not in self:
            return None
        queue = self.find(name, owner)
        queue.before("delete", owner)
        messages, consumers = queue.counts()
        if if_empty and (messages or queue.delayed):
            raise ChannelError(406, f"{self._resource(name)} not empty")
        if if_unused and consumers:
            raise ChannelError(406, f"{self._resource(name)} in use")
        return queue

    def delete(self, name: str, owner: object, *, if_unused: bool = False, if_empty: bool = False) -> int:
        """Delete a queue and return how many messages were ready; a queue that does not exist had none.

        Raises: 405, 406.
        """
        queue = self.deletable(name, owner, if_unused=if_unused, if_empty=if_empty)
        return 0 if queue is None else self.drop(queue)

    def unused(self, queue: Queue) -> None:
        """Delete a queue that nobody uses any more, unless it is deleted already; no client waits for that."""
        change = changes.queue_deleted(queue)
        if self.get(queue.name) is queue and self._journal.retire(change, durable=queue.durable):
            self.drop_decided(queue)

    def consumer_left(self, queue: Queue) -> bool:
        """Delete an auto-delete queue whose last consumer has left, and return whether it did."""
        unused = queue.auto_delete and queue.had_consumers and not queue.consumers
        if not unused or self.get(queue.name) is not queue:
            return False
        self.unused(queue)
        return True

    def owner_gone(self, owner: object, done: Callable[[], None] = lambda: None) -> None:
        """Delete the exclusive queues of a connection that ended, and call `done` when all are deleted."""
        self.drop_all(self.owned_by(owner), done)

    def drop_all(self, queues: Sequence[Queue], done: Callable[[], None]) -> None:
        """Delete queues, whatever their owner, and call `done` when all are deleted; no client waits for that."""
        left = len(queues)

        def dropped() -> None:
            nonlocal left
            left -= 1
            if not left:
                done()

        for queue in queues:
            carry_out(partial(self._drop_found, queue), dropped)
        if not queues:
            done()

    def drop(self, queue: Queue) -> int:
        """Delete a queue of this vhost, whatever its owner, and return how many messages were ready."""
        self.decide_drop(queue)
        return self.drop_decided(queue)

    def decide_drop(self, queue: Queue) -> None:
        """Decide to delete a queue, before the answer is written; `drop_decided` is to follow."""
        self._journal.decide(changes.queue_deleted(queue), durable=queue.durable, owner=queue.exclusive_owner)

    def drop_decided(self, queue: Queue) -> int:
        """Delete a queue whose deletion is decided, and return how many messages were ready."""
        # Out of the tables first: what the deletion wakes (cancelled consumers) must not find the queue again.
        del self[queue.name]
        self._kept -= queue.kept
        if not queue.kept:
            self._tally.deleted()
        if isinstance(queue, TapQueue):
            del self.taps[queue.name]
            self._exchanges.untap(queue)
        self._exchanges.default.touch(queue.name)
        owned = self._owned.get(queue.exclusive_owner, {})
        owned.pop(queue.name, None)
        if not owned:
            self._owned.pop(queue.exclusive_owner, None)
        self._exchanges.drop_unbound(self._live.end_leading_to(queue))
        return queue.delete()

    def _drop_found(self, queue: Queue) -> None:
        if self.get(queue.name) is queue:
            self.drop(queue)

    def _resource(self, name: str) -> Resource:
        return Resource("queue", self._vhost_name, name)


def _locked(resource: Resource) -> ChannelError:
    return ChannelError(
        405,
        f"cannot obtain exclusive access to locked {resource}. It could be originally declared on another connection "
        "or the exclusive property value does not match that of the original declaration.",
    )
