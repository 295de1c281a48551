"""The overlay's part of one vhost: its streams, the ingress of received messages, and the interest of its bindings."""

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
AT_ONCE: Final = 500  # messages of snapshots that are published in one turn

Interest = tuple[str, str]
"""The name of an exchange, and a pattern."""


class InterestFeed:
    """Publish which patterns of each overlay exchange are wanted, at this broker or at others.

    The body of a message of the exchange `amq.slotmq.interest` is an octet, 1 or 0, followed by a topic pattern that is
    now wanted or no longer wanted. The routing key is the name of the exchange.

    A pattern is published when the first binding asks for it and when the last one is removed. A new binding of this
    exchange receives all wanted patterns of the exchanges that its key matches, over several turns if they are many.
    Invariant: the last message that a queue received about a pattern is true.
    Source: ZeroMQ's XPUB sockets, which receive subscriptions as messages in the same form.
    """

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost
        self._counts: dict[Interest, int] = {}
        self._envelopes = EnvelopeCache()
        self._snapshots: list[tuple[Queue | Exchange, Iterator[Interest]]] = []
        self._followers: list[Callable[[str, str, bool], None]] = []

    def begin(self) -> None:
        """Create the exchange."""
        self._vhost.exchanges.add_own(INTEREST, "topic")

    def follow(self, notify: Callable[[str, str, bool], None]) -> None:
        """Call `notify` with exchange, pattern and whether wanted: now for each wanted pattern, then at changes."""
        self._followers.append(notify)
        for exchange, pattern in self._counts:
            notify(exchange, pattern, True)

    def add(self, interests: Iterable[Interest]) -> None:
        """Count new bindings that ask for patterns."""
        for interest in interests:
            count = self._counts[interest] = self._counts.get(interest, 0) + 1
            if count == 1:
                self._announce(interest, is_wanted=True)

    def remove(self, interests: Iterable[Interest]) -> None:
        """Count removed bindings that asked for patterns."""
        for interest in interests:
            count = self._counts[interest] = self._counts[interest] - 1
            if not count:
                del self._counts[interest]
                self._announce(interest, is_wanted=False)

    def _announce(self, interest: Interest, *, is_wanted: bool) -> None:
        self._publish(interest, WANTED if is_wanted else UNWANTED)
        for notify in self._followers:
            notify(*interest, is_wanted)

    def bound(self, destination: Queue | Exchange, key: str) -> None:
        """Start a snapshot for a new binding: the wanted patterns of the exchanges whose names its key matches."""
        pattern = AMQP.parse(key).words
        names = {name for name, _ in self._counts if words_match(pattern, AMQP.words(name))}
        self._snapshots.append((destination, iter([interest for interest in self._counts if interest[0] in names])))
        self._continue()

    def _continue(self) -> None:
        """Publish the next part of the snapshots, without patterns that are no longer wanted."""
        left = AT_ONCE
        while self._snapshots and left:
            destination, interests = self._snapshots[0]
            interest = next(interests, None)
            if interest is None or destination.deleted:
                del self._snapshots[0]
            elif interest in self._counts:
                left -= 1
                self._publish(interest, WANTED, destination)
        if self._snapshots:
            ports = self._vhost.ports
            ports.deadlines.set(self, ports.clock.now_ms, self._continue)

    def _publish(self, interest: Interest, octet: bytes, only: Queue | Exchange | None = None) -> None:
        exchange, pattern = interest
        body = octet + pattern.encode()
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

    Shapes: `streams` contains the stream of each existing or former exchange, by name.
    Invariant: an exchange that takes part has an outlet from its declaration on, so that a message enters the overlay
        at the first such exchange on its route, wanted or not.
    """

    def __init__(
        self,
        vhost: Vhost,
        takes_part: Callable[[str], bool],
        schedule: Callable[[], None],
        first_number: Callable[[], int] = lambda: 1,
    ) -> None:
        """Take functions: `takes_part` returns whether an exchange name is in the overlay, `schedule` requests a turn,
        and `first_number` returns the first number of a new stream, above those of former streams of its name.
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
        """Add the existing exchanges and bindings, and watch for changes."""
        self.feed.begin()
        self.vhost.bindings.live.watches.append(self)
        for exchange in list(self.vhost.exchanges.values()):
            self.declared(exchange)
            for bundle in exchange.bundles.values():
                self.bindings.added_all(bundle)

    def take_opened(self) -> list[str]:
        """Return the exchanges whose streams were created or recovered since the last call."""
        opened, self._opened = self._opened, []
        return opened

    def forward(self, exchange: str, added: Collection[str], removed: Collection[str]) -> None:
        """Change the patterns of the messages that enter the stream of an exchange. Cost: O(changes)."""
        wanted = self._wanted.setdefault(exchange, set())
        unwanted = wanted.intersection(removed)
        new = set(added).difference(wanted, removed)
        wanted |= new
        wanted -= unwanted
        found = self.vhost.exchanges.get(exchange)
        if found is not None:
            found.forward(new, unwanted)
        self.feed.add((exchange, pattern) for pattern in sorted(new))
        self.feed.remove((exchange, pattern) for pattern in sorted(unwanted))

    def take_bindings(self, limit: int = BATCH_BINDINGS) -> tuple[list[Wanted], list[str]]:
        """Return the next batch of added bindings, and the ids of removed ones."""
        added, removed = self.bindings.take(limit)
        self.feed.add((wanted.space.exchange, wanted.pattern) for _, wanted, _ in added)
        self.feed.remove((wanted.space.exchange, wanted.pattern) for _, wanted, _ in removed)
        return added, [binding for binding, _, _ in removed]

    # -- changes of the topology --------------------------------------------------------------------------------------

    def declared(self, exchange: Exchange) -> None:
        """Open the outlet of a new exchange, with the patterns of a former exchange of its name."""
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
        self.bindings.added(source, destination, key, arguments)
        if source.name == INTEREST:
            self.feed.bound(destination, key)

    def unbound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        self.bindings.removed(source, destination, key, arguments)

    def ended(self, bundle: Bundle[Exchange]) -> None:
        """Handle the end of bindings whose exchange or destination was deleted."""
        self.bindings.removed_all(bundle)
