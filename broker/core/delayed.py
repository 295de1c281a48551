"""Delayed messages: what exchanges of the type x-delayed-message keep until it is due.

Each such exchange has a queue of its own in which its messages wait, so they are stored, counted, listed and purged
like all others. What is due is routed as the exchange would route it at that moment.
Source: the plugin rabbitmq_delayed_message_exchange.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.content_header import facts_of
from broker.amqp.header_edit import edit_header
from broker.amqp.header_facts import MISSING
from broker.core import topology
from broker.core.message import Message
from broker.core.message_fields import HeaderFields
from broker.core.posting import charge_bytes, post
from broker.core.queue import Queue
from broker.slots.slot import Slot, Tenure

if TYPE_CHECKING:
    from broker.core.vhost import Vhost
    from broker.routing.exchange import Exchange

__all__ = ["DELAY_MAX_MS", "Delays", "HoldingQueue", "delay_of", "is_holding_name"]

HOLDING_PREFIX: Final = "amq.delayed."
DELAY_MAX_MS: Final = (1 << 32) - 1  # the plugin's: the longest timer of Erlang
RELEASE_SHARE: Final = 4  # what one message that is due takes of the turn's share


def is_holding_name(name: str) -> bool:
    """Tells whether a queue of that name holds delayed messages; no client can declare such a name."""
    return name.startswith(HOLDING_PREFIX)


def delay_of(value: Any) -> int | None:
    """Returns the delay that an x-delay header asks for, None when there is none.

    Units: milliseconds.
    Source: the plugin, get_delay/1: text is read as a number, a fraction cut off; what is beyond 32 bits is no delay.
    """
    if isinstance(value, bool) or not isinstance(value, int | str | float | Decimal):
        return None
    try:
        delay_ms = int(value)
    except (ValueError, OverflowError):
        return None
    return delay_ms if 0 < delay_ms <= DELAY_MAX_MS else None


class HoldingQueue(Queue):
    """The queue in which the messages of one exchange wait. Their own time to live begins when they leave it.

    Which queues a message goes to is known only when it is due. One of them may persist all that it accepts, so the
    holding queue of a durable exchange does too.
    """

    __slots__ = ()

    kept = True
    persists_all = True

    def expires_ms(self, message: Message) -> None:
        """Returns that nothing expires here."""


class Delay:
    """Knows when each message of one holding queue is due.

    Shapes: an entry of the heap is the moment, the message's id and its slot.
    Invariant: every ready message of the queue has an entry, once `gather` has read what was there before. An entry
        whose message is gone is passed over when it comes up, and none outlives a purge by more than a turn.
    Cost: one entry per message, O(log n) to hold and to release.
    """

    __slots__ = ("_due", "_reading", "_vhost", "exchange", "queue")

    def __init__(self, vhost: Vhost, exchange: Exchange, queue: Queue) -> None:
        self._vhost = vhost
        self.exchange = exchange
        self._due: list[tuple[int, int, Slot]] = []
        self._reading = False
        self.queue = queue

    def hold(self, message: Message, delay_ms: int, number: bytes = b"") -> None:
        """Keeps a message for a while."""
        self._forget_purged()
        post(self._vhost, message, (self.queue,), number=number)
        manager = self.queue.stream.manager
        message_id = manager.next_id - 1
        slot = next(slot for slot in reversed(manager.slots.values()) if slot.first <= message_id)
        heappush(self._due, (message.timestamp_ms + delay_ms, message_id, slot))
        self._arm()

    def gather(self, slots: Iterable[Slot]) -> None:
        """Finds out when the messages are due that were held before the broker started."""
        for slot in (pending := iter(slots)):
            if slot.contents is None and slot.tenure is not Tenure.DELETED:
                self._vhost.ports.read(self.queue.stream, slot, partial(self._gather_again, slot, pending))
                return
            self._gather(slot)
        self._arm()

    def _gather_again(self, slot: Slot, pending: Iterable[Slot]) -> None:
        self._gather(slot)
        self.gather(pending)

    def _gather(self, slot: Slot) -> None:
        for index, message in enumerate(slot.contents or ()):
            if message is not None:
                due_ms = message.timestamp_ms + (delay_of(message.facts.delay) or 0)
                heappush(self._due, (due_ms, slot.first + index, slot))

    def close(self) -> None:
        """Forgets everything, as the exchange is gone."""
        self._due.clear()
        self._vhost.ports.deadlines.cancel(self)

    def _arm(self) -> None:
        deadlines = self._vhost.ports.deadlines
        if not self._due:
            deadlines.cancel(self)
        elif not self._reading:
            deadlines.set(self, self._due[0][0], self.release)

    def release(self) -> None:
        """Routes what is due."""
        self._forget_purged()
        due, now_ms, deadlines = self._due, self._vhost.ports.clock.now_ms, self._vhost.ports.deadlines
        while due and due[0][0] <= now_ms and deadlines.left > 0:
            deadlines.left -= RELEASE_SHARE
            _, message_id, slot = due[0]
            if slot.contents is None and slot.tenure is not Tenure.DELETED:
                self._reading = True
                self._vhost.ports.read(self.queue.stream, slot, self._was_read)
                return
            heappop(due)
            self._release(slot, message_id - slot.first)
        self._arm()

    def _was_read(self) -> None:
        self._reading = False
        if not self.queue.deleted:
            self.release()

    def _release(self, slot: Slot, index: int) -> None:
        stream = self.queue.stream
        if slot.tenure is Tenure.DELETED:
            return
        try:
            stream.manager.pick(slot, index)
        except ValueError:  # purged
            return
        assert slot.contents is not None
        message: Message | None = slot.contents[index]
        if message is not None:
            self._send(message)
        if not self.queue.deleted:
            # Behind the record of the message where it went: a crash between the two gives it twice, never not at all.
            stream.settle(slot, (index,))

    def _send(self, held: Message) -> None:
        """Routes a message as if it was published now, with its x-delay negated, as the plugin does."""
        vhost = self._vhost
        header = edit_header(held.header, set_headers={"x-delay": -(delay_of(held.facts.delay) or 0)})
        copies = () if held.facts.cc is MISSING else [key for key in held.facts.cc if isinstance(key, str)]
        queues = vhost.router.match(self.exchange, held.envelope.key, HeaderFields(header), copies)
        if queues:
            charge = charge_bytes(header, held.body, len(queues))
            now_ms = vhost.ports.clock.now_ms
            post(vhost, Message(held.envelope, header, held.body, charge, facts_of(header), now_ms), queues)

    def _forget_purged(self) -> None:
        if not self.queue.ready and not self._reading:
            self._due.clear()


class Delays:
    """Holds the delays of a vhost by the names of their exchanges."""

    __slots__ = ("_by_name", "_vhost")

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost
        self._by_name: dict[str, Delay] = {}

    def hold(self, exchange: Exchange, message: Message, delay_ms: int, number: bytes = b"") -> None:
        """Keeps a message of an exchange for a while; of one that is gone by now, it is gone too."""
        delay = self._by_name.get(exchange.name)
        if delay is not None and delay.exchange is exchange:
            delay.hold(message, delay_ms, number)

    def open(self, exchange: Exchange) -> None:
        """Makes the holding queue of an exchange, as durable as the exchange."""
        queues = self._vhost.queues
        name = HOLDING_PREFIX + exchange.name
        queue = queues.get(name)
        if queue is None:
            queue = queues.add(
                name,
                number=queues.next_number,
                durable=exchange.durable,
                exclusive_owner=None,
                auto_delete=False,
                arguments={},
            )
            if queue.durable:
                self._vhost.journal(topology.queue_declared(queue))
        self._by_name[exchange.name] = Delay(self._vhost, exchange, queue)

    def close(self, exchange: Exchange) -> None:
        """Deletes the holding queue of an exchange and what is in it."""
        delay = self._by_name.pop(exchange.name)
        delay.close()
        self._vhost.queues.drop(delay.queue)

    def restored(self) -> None:
        """Takes up what the store had. A crash may have come between an exchange and its queue: both go or stay."""
        vhost = self._vhost
        for exchange in list(vhost.exchanges.values()):
            if exchange.delayed and exchange.name not in self._by_name:
                self.open(exchange)
                delay = self._by_name[exchange.name]
                delay.gather(list(delay.queue.stream.manager.slots.values()))
        held = {delay.queue.name for delay in self._by_name.values()}
        for name in [name for name in vhost.queues if is_holding_name(name) and name not in held]:
            vhost.queues.drop(vhost.queues[name])
