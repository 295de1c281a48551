"""The settings of an overlay: the brokers of this process and their neighbours."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from broker.settings.fields import GiB, KiB, Milliseconds, SettingsSection, Size, checked_name, number, text

SCHEMES: Final = ("amqp", "amqps")


class Neighbour(SettingsSection):
    """A broker of a neighbouring tree node.

    Shapes: without a URL, the neighbour is a broker of this process, or connects to this broker.
    """

    node: str
    """The neighbour's tree node."""
    broker: str
    """The neighbour's name."""
    url: SecretStr = SecretStr("")
    """The neighbour's address, as amqp://user:password@host:port, or amqps:// with TLS."""
    password_file: str = text()
    """A file that contains the password, instead of the URL."""
    cafile: str = text()
    """The only authorities that are trusted to sign the neighbour's certificate, in PEM; empty means the system's."""
    subscriptions: Literal["all", "none"] = "all"
    """Whether binding patterns are sent over the link. With none, each end sends all messages of an exchange that has a
    binding beyond the other end, which filters them. Both ends and all brokers of a tree node need the same value."""

    _names = field_validator("node", "broker")(checked_name)

    @field_validator("url")
    @classmethod
    def _is_amqp(cls, url: SecretStr) -> SecretStr:
        """Refuse a URL that is not AMQP. The error does not repeat the URL, which may contain a password."""
        value = url.get_secret_value()
        if value:
            try:
                parts = urlsplit(value)
                (parts.hostname or "").encode("idna")  # as the resolver does
                usable = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
            except ValueError:
                usable = False
            if not usable:
                raise ValueError("should be amqp://user:password@host:port or amqps://user:password@host:port")
        return url

    @model_validator(mode="after")
    def _has_one_password(self) -> Self:
        if self.password_file and not self.url.get_secret_value():
            raise ValueError("password_file is set and url is not")
        if self.password_file and urlsplit(self.url.get_secret_value()).password is not None:
            raise ValueError("only one of password_file and a password in url can be set")
        return self


class OverlayBroker(SettingsSection):
    """A broker of the overlay in this process."""

    broker: str
    """The broker's name, unique in the overlay."""
    node: str
    """The broker's tree node. The brokers of a tree node share the load and replace each other."""
    leaf: bool = False
    """Whether clients of this process publish and subscribe through this broker."""
    neighbours: tuple[Neighbour, ...] = Field(min_length=1)
    """All brokers of the neighbouring tree nodes."""

    _names = field_validator("node", "broker")(checked_name)

    @model_validator(mode="after")
    def _fits_its_neighbours(self) -> Self:
        """Refuse neighbours that contradict each other or the broker."""
        for name, times in Counter(neighbour.broker for neighbour in self.neighbours).items():
            if name == self.broker:
                raise ValueError(f"{name} cannot be its own neighbour")
            if times > 1:
                raise ValueError(f"{self.broker} has the neighbour {name} twice")
        nodes = {neighbour.node: neighbour.subscriptions for neighbour in self.neighbours}
        for neighbour in self.neighbours:
            if neighbour.subscriptions != nodes[neighbour.node]:
                raise ValueError(f"{self.broker} has more than one value of subscriptions for {neighbour.node}")
        if self.node in nodes:
            raise ValueError(f"{self.broker} is in the tree node {self.node} and so cannot have it as a neighbour")
        if self.leaf and len(nodes) > 1:
            raise ValueError(f"the leaf {self.broker} can have one neighbouring tree node, not {len(nodes)}")
        return self


class Overlay(SettingsSection):
    """The overlay: brokers at several sites that forward to each other the messages that match bindings there.

    Without a broker in `node` this process takes no part.
    """

    exchanges: tuple[str, ...] = ()
    """The exchanges that take part, the same at all leaves: names in which * matches any characters, each preceded by
    a vhost and a colon unless it is in the default vhost."""
    aggregation: Literal["none", "identical", "covering"] = "covering"
    """Which subscriptions are forwarded: with none all of them, with identical each pattern once, with covering only
    patterns that no other one covers. Brokers of an overlay can differ."""
    patterns_max: int = number(100_000, 1, 10_000_000, "patterns")
    """How many patterns of an exchange are forwarded to a neighbour; with more it gets every message."""
    max_bytes: Size = number(10 * GiB, 64 * KiB, 1024 * 1024 * GiB, "bytes")
    """The size of messages that an exchange keeps for absent leaves; beyond it, the oldest are lost, with a warning."""
    max_age_ms: Milliseconds = number(604_800_000, 1000, 31_536_000_000, "ms")
    """How long messages are kept for absent leaves."""
    silence_ms: Milliseconds = number(100, 10, 60_000, "ms")
    """After this time a leaf is told that none of the last messages were for it."""
    withdraw_after_ms: Milliseconds = number(30_000, 0, 86_400_000, "ms")
    """How long the subscriptions of a lost neighbour are kept, unless they have durable queues."""
    node: tuple[OverlayBroker, ...] = ()
    """The brokers of the overlay in this process, each as a table [[overlay.node]] with broker, node, leaf and
    neighbours, which is a list of { node, broker, url, password_file, cafile, subscriptions }."""

    @property
    def is_on(self) -> bool:
        return bool(self.node)

    @field_validator("exchanges")
    @classmethod
    def _are_named(cls, exchanges: tuple[str, ...]) -> tuple[str, ...]:
        if not all(exchanges):
            raise ValueError("should not have an empty name: the default exchange takes no part")
        return exchanges

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        """Refuse brokers whose descriptions contradict each other."""
        own = {broker.broker: broker for broker in self.node}
        if len(own) < len(self.node):
            raise ValueError("two brokers of node have the same name")
        leaves = [broker for broker in self.node if broker.leaf]
        if len(leaves) > 1:
            raise ValueError(f"a process can have one leaf, not {len(leaves)}")
        if self.exchanges and not self.node:
            raise ValueError("exchanges is set and there is no [[overlay.node]]: this process would take no part")
        if leaves and not self.exchanges:
            raise ValueError("exchanges is missing: no exchange would take part")
        nodes: dict[str, str] = {broker.broker: broker.node for broker in self.node}
        for broker in self.node:
            if any(other.leaf and other is not broker and other.node == broker.node for other in leaves):
                raise ValueError(f"the leaf {leaves[0].broker} is not alone in its tree node {broker.node}")
            for neighbour in broker.neighbours:
                if nodes.setdefault(neighbour.broker, neighbour.node) != neighbour.node:
                    raise ValueError(f"the broker {neighbour.broker} is in two tree nodes")
                other = own.get(neighbour.broker)
                if other is not None:
                    self._check_inner_link(broker, neighbour, other)
        return self

    def _check_inner_link(self, broker: OverlayBroker, neighbour: Neighbour, other: OverlayBroker) -> None:
        """Check a link between two brokers of this process. Raises: ValueError."""
        if neighbour.url.get_secret_value():
            raise ValueError(f"{neighbour.broker} is a broker of this process: a link to it has no url")
        back = next((back for back in other.neighbours if back.broker == broker.broker), None)
        if back is None:
            raise ValueError(f"{broker.broker} has the neighbour {other.broker}, which does not have {broker.broker}")
        if back.subscriptions != neighbour.subscriptions:
            raise ValueError(f"{broker.broker} and {other.broker} differ in subscriptions for the link between them")
