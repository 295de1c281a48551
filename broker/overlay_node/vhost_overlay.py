"""The overlay's side of one vhost: its streams, the received messages, and the interest of its bindings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.amqp.content_header import HeaderFields
from broker.amqp.header_edit import encode_header
from broker.amqp.header_facts import NO_PRIORITY, plain_facts
from broker.core.message.message import EnvelopeCache, new_message
from broker.core.names import INTEREST
from broker.core.queue.queue import Queue
from broker.overlay_node.binding_interest import BATCH_BINDINGS, BindingInterest, Wanted
from broker.overlay_node.exchange_log import ExchangeLog
from broker.overlay_node.ingress import Ingress
from broker.routing.bundle import Bundle
from broker.routing.exchange import Exchange
from broker.routing.pattern import AMQP, words_match

if TYPE_CHECKING:
    from broker.core.vhost import Vhost

FACTS: Final = plain_facts(persistent=False, priority=NO_PRIORITY, expiration_ms=None)
WANTED, UNWANTED = b"1", b"0"
AT_ONCE: Final = 500  # messages of a snapshot in one turn

Asked = tuple[str, str]
"""An exchange and a pattern."""


class InterestFeed:
    """Publish the patterns of each overlay exchange that have bindings, at this broker and at others. Each message of
    the exchange `amq.slotmq.interest` has a body of 1 or 0 (one octet) and a topic pattern, which is now wanted or no
    longer wanted. The routing key is the name of the exchange.
    Source: ZeroMQ's XPUB, which reads subscriptions as messages in the same form.

    A pattern is published when the first binding asks for it and when the last one ends. A new binding of the exchange
    gets all wanted patterns, over several turns if they are many. Invariant: the last message that a queue got about a
    pattern is true.
    """

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost
        self._counts: dict[Asked, int] = {}
        self._envelopes = EnvelopeCache()
        self._snapshots: list[tuple[Queue | Exchange, Iterator[Asked]]] = []
        self._followers: list[Callable[[str, str, bool], None]] = []

    def begin(self) -> None:
        """Create the exchange."""
        self._vhost.exchanges.add_own(INTEREST, "topic")

    def follow(self, told: Callable[[str, str, bool], None]) -> None:
        """Call `told` with exchange, pattern and whether it is wanted: now for all that is, then at each change."""
        self._followers.append(told)
        for exchange, pattern in self._counts:
            told(exchange, pattern, True)

    def came(self, asked: Iterable[Asked]) -> None:
        """Count new requests for patterns."""
        for one in asked:
            count = self._counts[one] = self._counts.get(one, 0) + 1
            if count == 1:
                self._tell(one, is_wanted=True)

    def went(self, asked: Iterable[Asked]) -> None:
        """Count ended requests for patterns."""
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
        """Send the next part of the snapshots. Patterns no longer wanted by then were reported meanwhile."""
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
        header = encode_header({"headers": {"vhost": self._vhost.name, "exchange": exchange}}, len(body))
        queues: tuple[Any, ...]
        if isinstance(only, Queue):
            queues = (only,)
        else:
            source = self._vhost.exchanges[INTEREST] if only is None else only
            queues = self._vhost.router.match(source, exchange, HeaderFields(header))
        if queues:
            envelope = self._envelopes.of(INTEREST, exchange)
            now_ms = self._vhost.ports.clock.now_ms
            self._vhost.poster.post(new_message(envelope, header, body, FACTS, now_ms, len(queues)), queues)


class VhostOverlay:
    """Connect the exchanges of a vhost that take part in the overlay.

    Shapes: ``streams`` has the stream of each existing or former exchange, by name.
    Invariant: an exchange that takes part has an outlet from its declaration on, so that a message enters the overlay
        at the first such exchange that it meets, wanted or not.
    """

    def __init__(
        self,
        vhost: Vhost,
        takes_part: Callable[[str], bool],
        schedule: Callable[[], None],
        first_number: Callable[[], int] = lambda: 1,
    ) -> None:
        """`takes_part` returns whether an exchange name is in the overlay, `schedule` requests a turn. `first_number`
        returns the first number of a new stream, above those of any former stream of its name.
        """
        self._first_number = first_number
        self.vhost = vhost
        self._takes_part = takes_part
        self._schedule = schedule
        self.bindings = BindingInterest(vhost.name, takes_part, schedule)
        self.ingress = Ingress(vhost, self.bindings)
        self.feed = InterestFeed(vhost)
        self.streams: dict[str, ExchangeLog] = {}
        self._opened: list[str] = []
        self._wanted: dict[str, set[str]] = {}

    def begin(self) -> None:
        """Take over the existing exchanges and bindings, and listen for new ones."""
        self.feed.begin()
        self.vhost.bindings.live.watches.append(self)
        for exchange in list(self.vhost.exchanges.values()):
            self.declared(exchange)
            for bundle in exchange.bundles.values():
                self.bindings.began(bundle)

    def take_opened(self) -> list[str]:
        """Return the exchanges whose streams were made or found since the last call."""
        opened, self._opened = self._opened, []
        return opened

    def forward(self, exchange: str, added: Collection[str], removed: Collection[str]) -> None:
        """Change which messages of an exchange enter its stream, by their routing keys. Cost: the changes."""
        wanted = self._wanted.setdefault(exchange, set())
        went = wanted.intersection(removed)
        came = set(added).difference(wanted, removed)
        wanted |= came
        wanted -= went
        found = self.vhost.exchanges.get(exchange)
        if found is not None:
            found.forward(came, went)
        self.feed.came((exchange, pattern) for pattern in sorted(came))
        self.feed.went((exchange, pattern) for pattern in sorted(went))

    def take_bindings(self, limit: int = BATCH_BINDINGS) -> tuple[list[Wanted], list[str]]:
        """Return the next batch of new bindings, and the ids of removed ones."""
        added, removed = self.bindings.take(limit)
        self.feed.came((asked.space.exchange, asked.pattern) for _, asked, _ in added)
        self.feed.went((asked.space.exchange, asked.pattern) for _, asked, _ in removed)
        return added, [one for one, _, _ in removed]

    # -- changes of the topology --------------------------------------------------------------------------------------

    def declared(self, exchange: Exchange) -> None:
        """Create the outlet of a new exchange, with the patterns of a former exchange of its name."""
        name = exchange.name
        if not self._takes_part(name):
            return
        stream = self.streams.get(name)
        if stream is None:
            stream = self.streams[name] = ExchangeLog(
                self.vhost, self.vhost.queues.own_stream(name, self._first_number())
            )
            self._opened.append(name)
        exchange.open_outlet(stream.queue)
        exchange.forward(self._wanted.get(name, ()))
        self._schedule()

    def deleted(self, exchange: Exchange) -> None:
        """Keep the stream of a deleted exchange: other brokers read it to its end, and its numbering continues."""

    def bound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Handle a new binding."""
        self.bindings.made(source, destination, key, arguments)
        if source.name == INTEREST:
            self.feed.bound(destination, key)

    def unbound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Handle a removed binding."""
        self.bindings.removed(source, destination, key, arguments)

    def ended(self, bundle: Bundle[Exchange]) -> None:
        """Handle bindings that ended with their exchange or their destination."""
        self.bindings.ended(bundle)
