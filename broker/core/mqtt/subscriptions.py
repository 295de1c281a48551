"""The subscriptions of one queue of a session: their options, and which of them match a message.

A subscription is a binding of the queue; its options that differ from the defaults are arguments of the binding.
Source: RabbitMQ 4, rabbit_mqtt_processor, for the name and the fields of the argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.amqp.content_header import remember
from broker.mqtt.packets import Subscription
from broker.mqtt.properties import SUBSCRIPTION_IDENTIFIER
from broker.mqtt.wire import VARINT_MAX, varint
from broker.routing.engines.trie import Trie
from broker.routing.exchange import NO_ARGUMENTS
from broker.routing.index import TopicIndex
from broker.routing.pattern import AMQP, Pattern, TopicDialect

OPTIONS: Final = "x-mqtt-subscription-opts"
KNOWN_MAX: Final = 1024  # routing keys whose subscriptions are cached
NO_SUBSCRIPTIONS: Final[dict[str, Mapping[str, Any]]] = {}


class Match:
    """The combined options of the subscriptions that match a message.

    Shapes: `identifiers` contains the subscription identifiers, encoded as properties. `no_local` is set if all these
        subscriptions exclude messages of their own client.
    """

    __slots__ = ("identifiers", "no_local", "qos", "retain_as_published")

    def __init__(self, arguments: Sequence[Mapping[str, Any]]) -> None:
        self.qos = 1 if arguments else 2  # a subscription that was removed may have had QoS 2
        self.retain_as_published = False
        self.no_local = bool(arguments)
        identifiers: list[int] = []
        for one in arguments:
            table = one.get(OPTIONS)
            options: Mapping[str, Any] = table if isinstance(table, Mapping) else NO_ARGUMENTS
            if options.get("qos") == 2:
                self.qos = 2
            self.retain_as_published |= options.get("retain-as-published") is True
            self.no_local &= options.get("no-local") is True
            identifier = options.get("id")
            if isinstance(identifier, int) and 0 < identifier <= VARINT_MAX:
                identifiers.append(identifier)
        self.identifiers = b"".join([bytes((SUBSCRIPTION_IDENTIFIER,)) + varint(one) for one in sorted(identifiers)])


NO_MATCHES: Final[dict[str, Match]] = {}


def options_of(subscription: Subscription, qos: int, identifier: int) -> Mapping[str, Any]:
    """Return the arguments of a subscription's binding. Units: `identifier` is 0 if there is none."""
    options: dict[str, Any] = {}
    if identifier:
        options["id"] = identifier
    if subscription.no_local:
        options["no-local"] = True
    if qos > 1:
        options["qos"] = qos
    if subscription.retain_as_published:
        options["retain-as-published"] = True
    return {OPTIONS: options} if options else NO_ARGUMENTS


def match_of(arguments: Mapping[str, Any]) -> Match:
    """Return the options of a single subscription."""
    return Match([arguments])


class Subscriptions:
    """The subscriptions of one queue. They are stored here only once messages must be matched with them.

    Shapes: `matching` is set once they are stored. `_arguments` maps each binding key to the arguments of its binding,
        and `_index` finds the binding keys that match a routing key.
    """

    __slots__ = ("_arguments", "_dialect", "_index", "_known", "matching", "no_local")

    def __init__(self) -> None:
        self.matching = False
        self.no_local = False  # whether a subscription has excluded the client's own publishes
        self._arguments = NO_SUBSCRIPTIONS  # shared, because most sessions have no options
        self._known = NO_MATCHES
        self._dialect: TopicDialect = AMQP
        self._index: TopicIndex | None = None

    def load(
        self, bindings: Sequence[tuple[str, Mapping[str, Any]]], dialect: TopicDialect, *, has_messages: bool = False
    ) -> None:
        """Store the binding keys and arguments of a queue if a binding has options, or if the queue has messages that
        may belong to a removed subscription.
        """
        if has_messages or any(OPTIONS in arguments for _, arguments in bindings):
            self.matching = True
            self._arguments, self._known = {}, {}
            self._dialect = dialect
            self._index = TopicIndex(Trie(dialect), dialect=dialect)
            for key, arguments in bindings:
                self.put(key, arguments)

    def arguments_of(self, key: str) -> Mapping[str, Any]:
        return self._arguments.get(key, NO_ARGUMENTS)

    def put(self, key: str, arguments: Mapping[str, Any]) -> None:
        """Add a subscription, or replace its options. Invariant: `matching` is set."""
        index = self._index
        assert index is not None
        if key not in self._arguments:
            index.add(self._pattern(key), key)
        self._arguments[key] = arguments
        self._known.clear()
        self.no_local |= match_of(arguments).no_local

    def remove(self, key: str) -> None:
        index = self._index
        if index is not None and self._arguments.pop(key, None) is not None:
            index.remove(self._pattern(key), key)
            self._known.clear()

    def _pattern(self, key: str) -> Pattern:
        """Return a binding key as a pattern. Keys that begin with `$` are always in the AMQP dialect."""
        return (AMQP if key.startswith("$") else self._dialect).parse(key)

    def match(self, key: str) -> Match:
        """Return the combined options of the subscriptions that match a routing key. Invariant: `matching` is set."""
        found = self._known.get(key)
        if found is None:
            index = self._index
            assert index is not None
            hidden = key.startswith("$")  # a filter that begins with a wildcard does not match such a key
            keys = [one for one in index.match(key) if not hidden or one.startswith("$")]
            found = Match([self._arguments[one] for one in keys])
            remember(self._known, key, found, KNOWN_MAX)
        return found
