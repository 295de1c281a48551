"""The interest of the bindings of one exchange, and the redeclaration of the exchange."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from broker.core.queue.queue import Queue
from broker.overlay.aggregation import conjunction
from broker.overlay.packets import Space
from broker.routing.bundle import Bundle
from broker.routing.exchange import Exchange

if TYPE_CHECKING:
    from broker.core.vhost import Vhost

AT_ONCE: Final = 2000  # bindings in one callback of the loop, of some microseconds each


class ExchangeWatch:
    """Watch an exchange of a vhost by its name.

    Shapes: `wanted` gets a topic pattern when the first binding asks for it, `unwanted` when the last one has ended.
        `renewed` is called when the exchange was declared.
    Cost: some microseconds for each binding added or removed; those of a deleted queue are handled over several turns.
    """

    def __init__(
        self,
        vhost: Vhost,
        exchange: str,
        *,
        wanted: Callable[[str], None],
        unwanted: Callable[[str], None],
        renewed: Callable[[], None],
    ) -> None:
        self._space = Space(vhost.name, exchange)
        self._wanted = wanted
        self._unwanted = unwanted
        self._renewed = renewed
        self._counts: dict[str, int] = {}
        self._changes: deque[Iterator[tuple[str, int]]] = deque()
        self._scheduled = False
        vhost.bindings.live.watch_with(self)
        found = vhost.exchanges.get(exchange)
        for bundle in [] if found is None else found.bundles.values():
            self._note(bundle.source, [key for key, _ in bundle.items()], 1)

    # -- what the topology tells --------------------------------------------------------------------------------------

    def declared(self, exchange: Exchange) -> None:
        """Report the new exchange, which has no bindings yet."""
        if exchange.name == self._space.exchange:
            self._renewed()

    def deleted(self, exchange: Exchange) -> None:
        """Do nothing: `ended` told of its bindings."""

    def bound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Count a new binding."""
        self._note(source, [key], 1)

    def unbound(self, source: Exchange, destination: Queue | Exchange, key: str, arguments: Mapping[str, Any]) -> None:
        """Count a binding that was removed."""
        self._note(source, [key], -1)

    def ended(self, bundle: Bundle[Exchange]) -> None:
        """Count bindings that ended together."""
        if bundle.source.name == self._space.exchange:
            self._note(bundle.source, [key for key, _ in bundle.items()], -1)

    def _note(self, source: Exchange, keys: list[str], count: int) -> None:
        if source.name == self._space.exchange:
            kind = source.kind_of_patterns
            self._changes.append((conjunction(self._space, kind, key).pattern, count) for key in keys)
            if not self._scheduled:
                self._scheduled = True
                asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        """Count the next changes."""
        left = AT_ONCE
        while self._changes and left:
            taken = list(islice(self._changes[0], left))
            left -= len(taken)
            if left:
                self._changes.popleft()
            for pattern, change in taken:
                self._count(pattern, change)
        self._scheduled = bool(self._changes)
        if self._scheduled:
            asyncio.get_running_loop().call_soon(self._take)

    def _count(self, pattern: str, change: int) -> None:
        count = self._counts.get(pattern, 0) + change
        if count:
            self._counts[pattern] = count
        else:
            del self._counts[pattern]
        if change > 0 and count == 1:
            self._wanted(pattern)
        elif not count:
            self._unwanted(pattern)
