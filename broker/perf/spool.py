"""A buffer of encoded messages into which a publisher writes only what changes: timestamps and never-repeated keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from broker.perf import wire
from broker.perf.wire import CONSUME_CHANNEL, CONSUMER_TAG, PUBLISH_CHANNEL

STAMP: Final = Struct(">QQ")  # the first bytes of a body: when the message was due, and when it was sent
STAMP_BYTES: Final = STAMP.size
DUE_BYTES: Final = 8  # a body with room for only one timestamp carries the due time
CHUNK_BYTES: Final = 262_144
PASS_DIGITS: Final = "~~~~~~"  # a placeholder in keys for six digits, which count the passes over the spool


@dataclass(frozen=True, slots=True)
class Material:
    """The parameters from which messages are encoded.

    Invariant: all keys have the same length; `renewed` keys contain PASS_DIGITS at the same offset.
    """

    exchange: str
    keys: tuple[str, ...]
    body_bytes: int
    persistent: bool = False
    mandatory: bool = False
    renewed: bool = False
    relayed: bool = False  # encode deliveries, for a relay that forwards the bytes unchanged

    def encoded(self, key: str, number: int, body: bytes) -> bytes:
        """Return a message as it is sent; `number` counts messages from 1."""
        exchange, persistent = self.exchange, self.persistent
        if self.relayed:
            return wire.deliver(CONSUME_CHANNEL, CONSUMER_TAG, exchange, key, body, persistent=persistent)
        return wire.publish(PUBLISH_CHANNEL, exchange, key, body, persistent=persistent, mandatory=self.mandatory)


class Spool:
    """A buffer of messages at equal strides, sent over and over. Units: `at`, `stop` and `stride` in bytes."""

    def __init__(self, material: Material, first: int, room_bytes: int) -> None:
        """Encode a message per key, from `first` on, until the room is full. Raises: ValueError for unequal lengths."""
        first %= len(material.keys)
        keys = material.keys[first:] + material.keys[:first]
        pieces: list[bytes] = []
        used, body = 0, bytes(material.body_bytes)
        while used < min(CHUNK_BYTES, room_bytes) or not pieces:  # repeat a few keys until they fill a chunk
            for key in keys:
                if pieces and used >= room_bytes:
                    break
                pieces.append(material.encoded(key, len(pieces) + 1, body))
                used += len(pieces[-1])
        if len({len(piece) for piece in pieces}) > 1:
            raise ValueError("the routing keys are not equally long")
        self.buffer = bytearray(b"".join(pieces))
        self.length = len(self.buffer)
        self.stride = len(pieces[0])
        other = material.encoded(keys[0], 1, b"\xff" * len(body))
        self._body_at = next((at for at in range(self.stride) if pieces[0][at] != other[at]), self.stride)
        self._stamped = next((size for size in (STAMP_BYTES, DUE_BYTES) if material.body_bytes >= size), 0)
        self._passes = -1
        self._pass_at = pieces[0].index(PASS_DIGITS.encode()) if material.renewed else -1
        self.renew()

    def stamp_each(self, at: int, dues_ns: Sequence[int], now_ns: int) -> None:
        """Write into each message from `at` on its own due time, and the current time as the send time."""
        place = at + self._body_at
        if self._stamped == STAMP_BYTES:
            for due_ns in dues_ns:
                STAMP.pack_into(self.buffer, place, due_ns, now_ns)
                place += self.stride
        elif self._stamped:
            for due_ns in dues_ns:
                self.buffer[place : place + DUE_BYTES] = due_ns.to_bytes(DUE_BYTES, "big")
                place += self.stride

    def stamp_all(self, at: int, stop: int, now_ns: int) -> None:
        """Write the current time as the due time into all messages from `at` to `stop`.

        Cost: eight strided assignments, regardless of the number of messages.
        """
        if not self._stamped:
            return
        count = (stop - at) // self.stride
        for place, octet in enumerate(now_ns.to_bytes(DUE_BYTES, "big"), at + self._body_at):
            self.buffer[place : stop : self.stride] = bytes((octet,)) * count

    def renew(self) -> None:
        """Give every message a routing key that it has not had for a million passes, if the keys are `renewed`."""
        if self._pass_at < 0:
            return
        self._passes = (self._passes + 1) % 10 ** len(PASS_DIGITS)
        count = self.length // self.stride
        for place, digit in enumerate(f"{self._passes:06d}".encode(), self._pass_at):
            self.buffer[place :: self.stride] = bytes((digit,)) * count
