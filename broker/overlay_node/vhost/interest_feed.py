"""The interest feed of a vhost: publishers hear which messages somebody wants, and stay silent while nobody does.

Each message of the exchange `amq.slotmq.interest` has a body of 1 or 0 (one octet) and a topic pattern: somebody wants
what it matches, or nobody does any more. The routing key is the name of the exchange.
Source: ZeroMQ's XPUB, which reads subscriptions as messages in the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.content_header import FLAG_OF
from broker.amqp.header_facts import NO_PRIORITY, plain_facts
from broker.amqp.table_writer import encode_table
from broker.core.message.fields import HeaderFields
from broker.core.message.message import EnvelopeCache, Message
from broker.core.names import INTEREST
from broker.core.publishing.posting import charge_bytes
from broker.core.queue.queue import Queue
from broker.routing.dialect import AMQP
from broker.routing.engines.conventional import words_match
from broker.routing.exchange import Exchange

if TYPE_CHECKING:
    from broker.core.vhost import Vhost

__all__ = ["InterestFeed"]

HEADER: Final = Struct(">HHQH")  # class, weight, body size, flags
FACTS: Final = plain_facts(persistent=False, priority=NO_PRIORITY, expiration_ms=None)
WANTED, UNWANTED = b"1", b"0"
AT_ONCE: Final = 500  # messages of a snapshot in one turn

Asked = tuple[str, str]
"""An exchange and a pattern."""


class InterestFeed:
    """Publishes which patterns of each overlay exchange have bindings, at this broker and at others.

    A pattern is told when the first one asks for it and when the last one does not any more. A new binding gets all
    that is wanted then, in several turns if it is much.
    Invariant: the last message about a pattern that a queue got is true.
    """

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost
        self._counts: dict[Asked, int] = {}
        self._envelopes = EnvelopeCache()
        self._snapshots: list[tuple[Queue | Exchange, Iterator[Asked]]] = []
        self._followers: list[Callable[[str, str, bool], None]] = []

    def begin(self) -> None:
        """Make the exchange."""
        self._vhost.exchanges.add_own(INTEREST, "topic")

    def follow(self, told: Callable[[str, str, bool], None]) -> None:
        """Call `told` with exchange, pattern and whether it is wanted: now for all that is, then at each change."""
        self._followers.append(told)
        for exchange, pattern in self._counts:
            told(exchange, pattern, True)

    def came(self, asked: Iterable[Asked]) -> None:
        """Count patterns that somebody asks for."""
        for one in asked:
            count = self._counts[one] = self._counts.get(one, 0) + 1
            if count == 1:
                self._tell(one, is_wanted=True)

    def went(self, asked: Iterable[Asked]) -> None:
        """Count patterns that somebody does not ask for any more."""
        for one in asked:
            count = self._counts[one] = self._counts[one] - 1
            if not count:
                del self._counts[one]
                self._tell(one, is_wanted=False)

    def _tell(self, one: Asked, *, is_wanted: bool) -> None:
        self._publish(one, WANTED if is_wanted else UNWANTED)
        for told in self._followers:
            told(*one, is_wanted)

    def bound(self, destination: Queue | Exchange, key: str) -> None:
        """Add to a new binding the patterns wanted of the exchanges that its key matches."""
        pattern = AMQP.parse(key).words
        names = {name for name, _ in self._counts if words_match(pattern, AMQP.words(name))}
        self._snapshots.append((destination, iter([one for one in self._counts if one[0] in names])))
        self._go_on()

    def _go_on(self) -> None:
        """Send the next part of the snapshots. What is not wanted any more by then was told meanwhile."""
        left = AT_ONCE
        while self._snapshots and left:
            destination, asked = self._snapshots[0]
            one = next(asked, None)
            if one is None or destination.deleted:
                del self._snapshots[0]
            elif one in self._counts:
                left -= 1
                self._publish(one, WANTED, destination)
        if self._snapshots:
            ports = self._vhost.ports
            ports.deadlines.set(self, ports.clock.now_ms, self._go_on)

    def _publish(self, asked: Asked, sign: bytes, only: Queue | Exchange | None = None) -> None:
        exchange, pattern = asked
        body = sign + pattern.encode()
        table = encode_table({"vhost": self._vhost.name, "exchange": exchange})
        header = HEADER.pack(60, 0, len(body), FLAG_OF["headers"]) + table
        queues: tuple[Any, ...]
        if isinstance(only, Queue):
            queues = (only,)
        else:
            source = self._vhost.exchanges[INTEREST] if only is None else only
            queues = self._vhost.router.match(source, exchange, HeaderFields(header))
        if queues:
            envelope = self._envelopes.of(INTEREST, exchange)
            charge = charge_bytes(header, body, len(queues))
            now_ms = self._vhost.ports.clock.now_ms
            self._vhost.poster.post(Message(envelope, header, body, charge, FACTS, now_ms), queues)
