"""The packets between brokers with constraint vectors, as values."""

from __future__ import annotations

from dataclasses import dataclass

from broker.overlay.packets import Conjunction, ReferencePacket, Space, Vector


@dataclass(frozen=True, slots=True)
class Increment(ReferencePacket):
    """What one batch at one leaf changed; it may be applied where V_b equals the constraint in each of its elements.

    A `whole` constraint has an element for every leaf behind the sender: those that it does not name have 0. It holds
    only where the patterns are those that the sender had announced before, too, which `checksum` tells. `spaces` are
    those in which the leaf is interested now, `durable` whether a binding of it is, and `touched` the spaces whose
    bindings have changed.
    """

    leaf: str
    time: int
    added: tuple[Conjunction, ...]
    removed: tuple[Conjunction, ...]
    constraint: Vector
    whole: bool = False
    checksum: int = 0
    spaces: tuple[Space, ...] = ()
    durable: bool = False
    touched: tuple[Space, ...] = ()


@dataclass(frozen=True, slots=True)
class FullState(ReferencePacket):
    """All that the sender announces, complete up to a vector.

    A leaf that sees messages without its last virtual time begins a refresh: every broker passes its own full state on
    once, news or not. `refresh` is the leaf, and its time and a count, by which a repetition is known.
    """

    patterns: tuple[Conjunction, ...]
    slice: Vector
    interested: tuple[tuple[Space, tuple[str, ...]], ...] = ()
    durable: tuple[str, ...] = ()
    refresh: tuple[str, tuple[int, int]] | None = None


@dataclass(frozen=True, slots=True)
class InterestSummary(ReferencePacket):
    """What the sender announces without the patterns, so that a receiver notices what it lacks.

    `checksum` is that of the patterns. The serial rises when the leaves in `interested` or `reachable` change: acks
    count for these. `forgotten` are the leaves that the sender was told to give up.
    """

    serial: int
    slice: Vector
    checksum: int
    interested: tuple[tuple[Space, tuple[str, ...]], ...] = ()
    reachable: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lagging(ReferencePacket):
    """What the receiver sent is later than what the sender of this knows, or differs: send the full state."""


ConstraintPacket = Increment | FullState | InterestSummary | Lagging
"""What brokers with constraint vectors tell each other of the interest behind them."""
