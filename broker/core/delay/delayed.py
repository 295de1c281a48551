"""Delayed messages: exchanges of the type x-delayed-message keep them until they are due.

Each such exchange has a queue of its own in which its messages wait, so they are stored, counted, listed and purged
like all others. A message that is due is routed as the exchange would route it at that moment.
Source: the plugin rabbitmq_delayed_message_exchange.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from broker.amqp.content_header import facts_of
from broker.amqp.header_edit import edit_header
from broker.amqp.header_facts import MISSING
from broker.core.delay.due_moments import DueMoments, Moment, SlotMoments
from broker.core.message.delay import RECEIVED, delay_of, due_ms_of
from broker.core.message.fields import HeaderFields
from broker.core.message.message import Message
from broker.core.publishing.posting import Poster, charge_bytes
from broker.core.queue.holding_queue import is_holding_name
from broker.core.queue.level import Level
from broker.core.queue.ports import QueuePorts
from broker.core.queue.queue import Queue
from broker.event_log import get_logger
from broker.routing.exchange import Exchange
from broker.slots.slot import Slot
from broker.slots.states import Tenure
from broker.store.record import due_target

if TYPE_CHECKING:
    from broker.core.topology.exchanges import Exchanges
    from broker.core.topology.queues import Queues
    from broker.routing.router import Router

__all__ = ["FETCH_BYTES", "Delay", "Delays"]

_log = get_logger()

RECEIVED_OCTETS: Final = RECEIVED.encode()
RELEASE_SHARE: Final = 4  # units of the turn's share that one due message takes
LOOK_SHARE: Final = 16  # ... and a look into a slot
FETCH_MESSAGES: Final = 256  # due messages that are read at once, about a turn's share; or
FETCH_BYTES: Final = 4 << 20  # ... this size of them, and at least one message


class Delay:
    """Releases the messages of one holding queue when they are due.

    A slot on disk stays there. Its entries in the queue log show which of its messages come next. A message itself is
    read when it is due, many with one read.
    Invariant: messages are released in the order of their moments. Nothing is released before the first moment of each
        slot that existed at the start is known.
    Cost: memory grows with the slots; in addition it holds at most FETCH_MESSAGES messages or FETCH_BYTES.
    """

    __slots__ = ("_fetched", "_moments", "_ports", "_poster", "_reading", "_router", "_unread", "exchange", "queue")

    def __init__(
        self, ports: QueuePorts[Level, Queue], router: Router, poster: Poster, exchange: Exchange, queue: Queue
    ) -> None:
        self._ports = ports
        self._router = router
        self._poster = poster
        self.exchange = exchange
        self._moments = DueMoments()
        self._unread: deque[Slot] = deque()  # slots that existed before the start
        self._fetched: deque[tuple[int, Slot, Message | None]] = deque()  # due, and read
        self._reading = False
        self.queue = queue

    def hold(self, message: Message, delay_ms: int, number: bytes = b"") -> None:
        """Keep a message for a while."""
        self._forget_purged()
        due_ms = message.timestamp_ms + delay_ms
        self._poster.post(message, (self.queue,), number=number + due_target(due_ms))
        manager = self.queue.level.manager
        message_id = manager.next_id - 1
        slot = next(slot for slot in reversed(manager.slots.values()) if slot.first <= message_id)
        self._moments.add(slot, message_id, due_ms)
        self._arm()

    def gather(self, slots: Iterable[Slot]) -> None:
        """Read the moments of the messages that were held before the broker started."""
        self._unread.extend(slots)
        self._gather()

    def _gather(self) -> None:
        while self._unread:
            slot = self._unread[0]
            if slot.contents is None and not _is_gone(slot):
                self._read_moments(slot, self._gathered)
                return
            self._gathered(slot, _in_memory(slot))
        self._arm()

    def _gathered(self, slot: Slot, moments: Iterable[Moment]) -> None:
        self._unread.popleft()
        self._moments.begin(slot, moments)

    def close(self) -> None:
        """Forget everything: the exchange was deleted."""
        self._forget()
        self._ports.deadlines.cancel(self)

    def _arm(self) -> None:
        deadlines = self._ports.deadlines
        next_ms = self._ports.clock.now_ms if self._fetched else self._moments.next_ms
        if self._reading or next_ms is None:
            deadlines.cancel(self)
        else:
            deadlines.set(self, next_ms, self.release)

    def release(self) -> None:
        """Route the due messages, as far as the turn's share allows."""
        self._forget_purged()
        now_ms, deadlines = self._ports.clock.now_ms, self._ports.deadlines
        while deadlines.left > 0 and not self._reading:
            if self._fetched:
                deadlines.spend(RELEASE_SHARE)
                self._release(*self._fetched.popleft())
            elif (known := self._moments.hidden(now_ms)) is not None:
                deadlines.spend(LOOK_SHARE)
                self._look(known, now_ms)
            elif (taken := self._moments.take(now_ms)) is not None:
                self._fetch(taken, now_ms)
            else:
                break
        self._arm()

    # -- on disk ------------------------------------------------------------------------------------------------------

    def _look(self, known: SlotMoments, now_ms: int) -> None:
        """Keep the next messages of a slot one by one."""
        slot = known.slot
        if _is_gone(slot):
            self._moments.forget(slot)
        elif slot.contents is None:
            self._read_moments(slot, lambda _slot, moments: self._moments.look(known, moments, now_ms))
        else:
            self._moments.look(known, _in_memory(slot), now_ms)

    def _read_moments(self, slot: Slot, then: Callable[[Slot, Iterable[Moment]], None]) -> None:
        self._reading = True
        self._ports.moments(self.queue.level, slot, partial(self._moments_were_read, slot, then))

    def _moments_were_read(
        self, slot: Slot, then: Callable[[Slot, Iterable[Moment]], None], due_ms: Sequence[int]
    ) -> None:
        self._reading = False
        if not self.queue.deleted:
            gone = _is_gone(slot)
            ready: Iterable[int] = () if gone else slot.acks.unsettled(0, slot.length)
            then(slot, [(due_ms[index], slot.first + index) for index in ready])
            self._gather()

    def _fetch(self, first: tuple[int, int, Slot], now_ms: int) -> None:
        """Read due messages whose slots are on disk; the first is given."""
        batch = [first]
        while len(batch) < FETCH_MESSAGES and (taken := self._moments.take(now_ms)) is not None:
            batch.append(taken)
        wanted = [(message_id, slot) for _, message_id, slot in batch if _is_on_disk(slot, message_id)]
        if wanted:
            self._reading = True
            self._ports.fetch(self.queue.level, wanted, partial(self._were_fetched, batch))
        else:
            self._were_fetched(batch, {})

    def _were_fetched(self, batch: Sequence[tuple[int, int, Slot]], found: Mapping[int, Message | None]) -> None:
        """Take the messages that were read, up to the first that was not: the rest is read later."""
        self._reading = False
        if self.queue.deleted:
            return
        for place, (_, message_id, slot) in enumerate(batch):
            if message_id in found:
                self._fetched.append((message_id, slot, found[message_id]))
            elif slot.contents is not None:
                self._fetched.append((message_id, slot, slot.contents[message_id - slot.first]))
            elif _is_on_disk(slot, message_id):
                for moment in batch[place:]:
                    self._moments.put_back(*moment)
                break
        self._arm()

    # -- release ------------------------------------------------------------------------------------------------------

    def _release(self, message_id: int, slot: Slot, message: Message | None) -> None:
        level, index = self.queue.level, message_id - slot.first
        if _is_gone(slot) or index in slot.acks:  # purged
            return
        if message is not None:
            self.send(message)
        else:
            _log.error("messages.lost", queue=self.queue.name, slot=slot.first, count=1)
        if not self.queue.deleted:
            # After the record of the message in its new queues: a crash between the two duplicates, and never loses.
            level.lose(slot, (index,))
            if _is_gone(slot):
                self._moments.forget(slot)

    def send(self, held: Message) -> None:
        """Route a message as if it were published now, with its x-delay negated, as the plugin does.

        A message from another broker of the overlay is not forwarded to others.
        """
        negated = {"x-delay": -(delay_of(held.facts.delay) or 0)}
        header = edit_header(held.header, set_headers=negated, drop_headers=(RECEIVED,))
        copies = () if held.facts.cc is MISSING else [key for key in held.facts.cc if isinstance(key, str)]
        queues = self._router.match(self.exchange, held.envelope.key, HeaderFields(header), copies)
        if RECEIVED_OCTETS in held.header and RECEIVED in HeaderFields(held.header).headers:
            queues = tuple([queue for queue in queues if not queue.is_overlay])
        if queues:
            charge = charge_bytes(header, held.body, len(queues))
            now_ms = self._ports.clock.now_ms
            self._poster.post(Message(held.envelope, header, held.body, charge, facts_of(header), now_ms), queues)

    def _forget_purged(self) -> None:
        if not self.queue.ready and not self._reading:
            self._forget()

    def _forget(self) -> None:
        self._moments.clear()
        self._unread.clear()
        self._fetched.clear()


def _is_gone(slot: Slot) -> bool:
    """Return whether a slot was deleted."""
    return slot.tenure is Tenure.DELETED


def _in_memory(slot: Slot) -> Iterable[Moment]:
    """Yield the moments of the ready messages of a slot that is in memory."""
    for index, message in enumerate(slot.contents or ()):
        if message is not None:
            yield due_ms_of(message), slot.first + index


def _is_on_disk(slot: Slot, message_id: int) -> bool:
    """Return whether a message is unsettled and not in memory."""
    return slot.contents is None and not _is_gone(slot) and message_id - slot.first not in slot.acks


class Delays:
    """Holds the delays of a vhost by the names of their exchanges."""

    __slots__ = ("_by_name", "_exchanges", "_kind", "_ports", "_poster", "_queues")

    def __init__(
        self,
        exchanges: Exchanges,
        queues: Queues,
        poster: Poster,
        ports: QueuePorts[Level, Queue],
        kind: Callable[..., Delay] = Delay,
    ) -> None:
        self._kind = kind
        self._exchanges = exchanges
        self._queues = queues
        self._poster = poster
        self._ports = ports
        self._by_name: dict[str, Delay] = {}

    def hold(self, exchange: Exchange, message: Message, delay_ms: int, number: bytes = b"") -> None:
        """Keep a message of an exchange for a while; drop it when the exchange was deleted meanwhile."""
        delay = self._by_name.get(exchange.name)
        if delay is not None and delay.exchange is exchange:
            delay.hold(message, delay_ms, number)

    def open(self, exchange: Exchange) -> None:
        """Make the holding queue of an exchange, as durable as the exchange."""
        queue = self._queues.add_holding(exchange.name, durable=exchange.durable)
        router = self._exchanges.router
        self._by_name[exchange.name] = self._kind(self._ports, router, self._poster, exchange, queue)

    def close(self, exchange: Exchange) -> None:
        """Delete the holding queue of an exchange with its messages."""
        delay = self._by_name.pop(exchange.name)
        delay.close()
        self._queues.drop(delay.queue)

    def restored(self) -> None:
        """Restore what recovery found: open missing holding queues, and drop those without an exchange."""
        for exchange in list(self._exchanges.values()):
            if exchange.delayed and exchange.name not in self._by_name:
                self.open(exchange)
                delay = self._by_name[exchange.name]
                delay.gather(list(delay.queue.level.manager.slots.values()))
        held = {delay.queue.name for delay in self._by_name.values()}
        for name in [name for name in self._queues if is_holding_name(name) and name not in held]:
            self._queues.drop(self._queues[name])
