"""The overlay's side of one vhost: its streams, what it receives, and what its bindings want."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from broker.core.names import INTEREST
from broker.core.queue.queue import Queue
from broker.overlay_node.vhost.binding_interest import BATCH_BINDINGS, BindingInterest, Wanted
from broker.overlay_node.vhost.exchange_log import ExchangeLog
from broker.overlay_node.vhost.ingress import Ingress
from broker.overlay_node.vhost.interest_feed import InterestFeed
from broker.routing.bundle import Bundle
from broker.routing.exchange import Exchange

if TYPE_CHECKING:
    from broker.core.vhost import Vhost

__all__ = ["VhostOverlay"]


class VhostOverlay:
    """Connects the exchanges of a vhost that take part in the overlay.

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
        """`takes_part` tells whether an exchange of that name is in the overlay, `schedule` asks for a turn.

        `first_number` returns the first number of a new stream, above those of any former one of its name.
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
        self.vhost.bindings.live.watch_with(self)
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
        """Give a new exchange its outlet, with the patterns that a former one of its name had."""
        name = exchange.name
        if not self._takes_part(name):
            return
        stream = self.streams.get(name)
        if stream is None:
            stream = self.streams[name] = ExchangeLog(
                self.vhost, self.vhost.queues.add_level(name, self._first_number())
            )
            self._opened.append(name)
        exchange.open_outlet(stream.queue)
        exchange.forward(self._wanted.get(name, ()))
        self._schedule()

    def deleted(self, exchange: Exchange) -> None:
        """Keep the stream of a deleted exchange: other brokers read it to its end, and its numbering continues."""

    def bound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Note a new binding."""
        self.bindings.made(source, destination, key, arguments)
        if source.name == INTEREST:
            self.feed.bound(destination, key)

    def unbound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Note a binding that was removed."""
        self.bindings.removed(source, destination, key, arguments)

    def ended(self, bundle: Bundle[Exchange]) -> None:
        """Note bindings that ended with their exchange or their destination."""
        self.bindings.ended(bundle)
