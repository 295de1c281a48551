"""Match messages to queues with the broker's own exchanges, which each Python worker builds from a topology."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from broker.amqp.content_header import HeaderFields
from broker.amqp.wire import PROPERTIES_AT
from broker.pipeline.faults import restated
from broker.pipeline.routes.topology import Topology
from broker.routing.exchange import Exchange, MessageFields
from broker.routing.exchange_types import PREDECLARED, make_exchange
from broker.routing.pattern import HIGHEST

UNSEEN: Final = b"\0" * PROPERTIES_AT  # stands for class, weight and body size, which no exchange reads
NO_FLAGS: Final = bytes(2)
COMPILED_MAX: Final = 4

Numbers = tuple[int, ...]

_compiled: dict[str, Matcher] = {}


class BadTopology(ValueError):
    """A topology that a broker would refuse; the text is one line for the user."""


class Match(NamedTuple):
    """The names of the queues that a message reaches, and the numbers of the bindings that route it."""

    queues: tuple[str, ...]
    bindings: tuple[int, ...]


class NamedDestination(int):
    """The number of a binding as a destination with a name, for exchanges that choose a destination by its name."""

    name: str


def further_keys(fields: MessageFields) -> list[str]:
    """Return the routing keys in the header CC. BCC is absent: the broker removes it before it stores a message."""
    keys = fields.headers.get("CC")
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []


class Matcher:
    """Route messages as a broker with these exchanges and bindings does.

    Random exchanges, and exchanges that depend on earlier messages, may decide otherwise. Bindings are numbered in the
    order of the topology; numbers from `default_at` on are routes of the default exchange.
    Shapes: `queues` lists every queue once; `queue_of` maps each number to the index of its queue there, or to -1 if
        the binding leads to another exchange.
    Invariant: `dynamic` contains each (vhost, exchange) from which a message can reach an exchange that needs more than
        the routing key.
    """

    def __init__(self, topology: Topology) -> None:
        """Build the exchanges. Raises: BadTopology. Cost: all binding keys, and a walk over bindings per exchange."""
        self.default_at = len(topology.bindings)
        self._exchanges: dict[tuple[str, str], Exchange] = {}
        self._hashed: dict[tuple[Exchange, Exchange], int] = {}
        self._onward: dict[int, Exchange] = {}
        self._places = {queue: place for place, queue in enumerate(topology.queues)}
        for entry in topology.exchanges:
            with restated(ValueError, BadTopology, f"exchange '{entry.name}' of vhost '{entry.vhost}': "):
                exchange = make_exchange(entry.name, entry.type, arguments=entry.arguments, pattern_limits=HIGHEST)
            exchange.set_alternate(entry.alternate)
            self._exchanges[entry.vhost, entry.name] = exchange
        by_name: dict[tuple[Exchange, str], NamedDestination] = {}
        self.queue_of: list[int] = []
        for number, binding in enumerate(topology.bindings):
            exchange = self._exchanges[binding.vhost, binding.exchange]
            onward = self._exchanges[binding.vhost, binding.destination] if binding.to_exchange else None
            destination: Any = number
            if onward is not None:
                self._onward[number] = onward
                self.queue_of.append(-1)
            else:
                queue = (binding.vhost, binding.destination)
                self.queue_of.append(self._places.setdefault(queue, len(self._places)))
            if exchange.chooses:  # such an exchange chooses among destinations by their names
                if onward is not None:
                    self._hashed.setdefault((exchange, onward), number)
                    destination = onward
                else:
                    destination = by_name.setdefault((exchange, binding.destination), NamedDestination(number))
                    destination.name = binding.destination
            with restated(ValueError, BadTopology, f"binding {binding}: "):
                exchange.bind(destination, binding.key, binding.arguments)
        self.queues = tuple(self._places)
        self.queue_of += range(len(self.queues))
        self.dynamic = frozenset(place for place in self._exchanges if self._is_dynamic(place))

    def match(self, vhost: str, exchange: str, key: str, properties_raw: bytes | None = None) -> Match | None:
        """Return the match of a message, or None if the exchange does not exist.

        Shapes: `properties_raw` may be None if the exchange is not `dynamic` and the message has no header CC.
        """
        numbers = self.numbers(vhost, exchange, key, properties_raw)
        if numbers is None:
            return None
        places = dict.fromkeys(self.queue_of[number] for number in numbers)
        queues = tuple(self.queues[place][1] for place in places if place >= 0)
        return Match(queues, tuple(number for number in numbers if number < self.default_at))

    def numbers(self, vhost: str, exchange: str, key: str, properties_raw: bytes | None = None) -> Numbers | None:
        """Return the numbers of the matching bindings, or None if the exchange does not exist. HOT."""
        start = self._exchanges.get((vhost, exchange))
        if start is None:
            return self._without_exchange(vhost, exchange, key, properties_raw)
        if properties_raw is None:
            if start.alternate is None and not self._onward and not start.by_headers:
                return start.route(key).destinations
            return self._walk(vhost, start, (key,), None)
        fields = HeaderFields(UNSEEN + properties_raw)
        return self._walk(vhost, start, tuple(dict.fromkeys((key, *further_keys(fields)))), fields)

    def _without_exchange(self, vhost: str, exchange: str, key: str, properties_raw: bytes | None) -> Numbers | None:
        if exchange:
            return () if exchange in PREDECLARED else None
        more = () if properties_raw is None else further_keys(HeaderFields(UNSEEN + properties_raw))
        places = [self._places.get((vhost, name)) for name in dict.fromkeys((key, *more))]
        return tuple(self.default_at + place for place in places if place is not None)

    def _walk(self, vhost: str, start: Exchange, keys: Sequence[str], fields: MessageFields | None) -> Numbers:
        """Return the numbers of the bindings that route a message from an exchange on; visit each exchange once.

        Source: the router's walk, which does not return bindings.
        """
        numbers: list[int] = []
        reached = {start}
        pending = [start]
        for current in pending:  # the list grows during the walk
            matched: list[int] = [
                self._hashed[current, found] if isinstance(found, Exchange) else found
                for found in self._matches(current, keys, fields)
            ]
            numbers += matched
            onward = [self._onward[number] for number in matched if number in self._onward]
            if not matched and current.alternate is not None:
                alternate = self._exchanges.get((vhost, current.alternate))
                onward = [] if alternate is None else [alternate]
            for exchange in onward:
                if exchange not in reached:
                    reached.add(exchange)
                    pending.append(exchange)
        return tuple(numbers)

    def _matches(self, exchange: Exchange, keys: Sequence[str], fields: MessageFields | None) -> tuple[Any, ...]:
        if len(keys) == 1 and not exchange.by_headers:
            return exchange.route(keys[0]).destinations
        return exchange.match(keys, fields or HeaderFields(UNSEEN + NO_FLAGS))

    def _is_dynamic(self, place: tuple[str, str]) -> bool:
        vhost = place[0]
        reached = {self._exchanges[place]}
        pending = list(reached)
        for current in pending:  # the list grows during the walk
            if current.by_headers:
                return True
            bound: Iterable[Any] = current.bundles
            onward = [found if isinstance(found, Exchange) else self._onward.get(found) for found in bound]
            if current.alternate is not None:
                onward.append(self._exchanges.get((vhost, current.alternate)))
            for exchange in onward:
                if exchange is not None and exchange not in reached:
                    reached.add(exchange)
                    pending.append(exchange)
        return False


def compiled(name: str, topology: Topology) -> Matcher:
    """Return the matcher of the topology with this name. A process keeps up to COMPILED_MAX matchers for its tasks."""
    matcher = _compiled.get(name)
    if matcher is None:
        if len(_compiled) >= COMPILED_MAX:
            _compiled.clear()
        matcher = _compiled[name] = Matcher(topology)
    return matcher
