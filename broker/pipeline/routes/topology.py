"""Exchanges, queues and bindings as plain values, small enough to be sent to every worker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["PREDECLARED", "RoutedBinding", "RoutedExchange", "Topology"]

PREDECLARED: Final[Mapping[str, str]] = {
    "amq.direct": "direct",
    "amq.fanout": "fanout",
    "amq.topic": "topic",
    "amq.headers": "headers",
    "amq.match": "headers",
    "amq.rabbitmq.trace": "topic",
}


@dataclass(frozen=True, slots=True)
class RoutedExchange:
    """An exchange; `alternate` comes from its arguments or a policy."""

    vhost: str
    name: str
    type: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    alternate: str | None = None


@dataclass(frozen=True, slots=True)
class RoutedBinding:
    """A binding of a queue, or of another exchange."""

    vhost: str
    exchange: str
    key: str
    destination: str
    to_exchange: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, str, str, str, bool, str]:
        """The fields by which equal bindings of two topologies are recognized."""
        arguments = repr(sorted(self.arguments.items())) if self.arguments else ""
        return self.vhost, self.exchange, self.key, self.destination, self.to_exchange, arguments

    def __str__(self) -> str:
        kind = "exchange " if self.to_exchange else ""
        return f"{self.exchange or '(default)'} --{self.key}--> {kind}{self.destination}"


@dataclass(frozen=True, slots=True)
class Topology:
    """Exchanges, queues and bindings that decide routes.

    Shapes: `queues` are (vhost, name); the default exchange reaches only these.
    Invariant: each binding occurs once, and its exchange and destination exchange are among `exchanges`.
    """

    exchanges: tuple[RoutedExchange, ...]
    queues: tuple[tuple[str, str], ...]
    bindings: tuple[RoutedBinding, ...]
