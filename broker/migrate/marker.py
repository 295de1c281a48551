"""The marker: a message that identifies the batch being moved, in a queue of the migration at the source.

Each batch is one AMQP transaction at the source, which acknowledges the previous batch and replaces the marker by one
with the fingerprints and numbers of the batch's messages. Only then are these messages published at the target. So
after a failure, the marker lists the messages that may be in both brokers. Each of them is published again with its old
number, and the target drops it if it is a duplicate.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections import deque
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self

from broker.amqp.client import Received
from broker.amqp.header_edit import cut_properties, edit_table
from broker.core.definitions.json_text import read_json
from broker.migrate.link import MigrationFault

Fingerprint = str

FINGERPRINT_BYTES: Final = 12
COUNTED: Final = ("x-delivery-count", "x-acquired-count")  # a quorum queue of the source adds them on redelivery
NO_ENTRIES: Final = bytes(4)


class Marker(NamedTuple):
    """The state of a drain.

    Shapes: `next_number` is the first unused number; `in_flight` contains the numbers and fingerprints of the messages
        that may be in both brokers. `settled` contains the fingerprints of the batch that was acknowledged last; the
        source redelivers that batch only if it has lost the acknowledgement.
    """

    producer: str
    next_number: int
    in_flight: Sequence[tuple[int, Fingerprint]]
    settled: Sequence[Fingerprint]

    @classmethod
    def new(cls) -> Self:
        """Return a marker for a queue that has none."""
        return cls(f"migrate-{secrets.token_hex(16)}", 0, (), ())

    def encode(self) -> bytes:
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Return the marker in a message. Raises: MigrationFault if it is not one."""
        try:
            fields: dict[str, Any] = read_json(body)
            in_flight = [(int(number), str(digest)) for number, digest in fields["in_flight"]]
            return cls(
                str(fields["producer"]), int(fields["next_number"]), in_flight, list(map(str, fields["settled"]))
            )
        except (ValueError, KeyError, TypeError):
            raise MigrationFault("the marker at the source is not one of this version: delete its queue") from None


class Numbered(NamedTuple):
    """A message with its number; `doubtful` if the target may have a copy with another number."""

    delivery: Received
    number: int
    fingerprint: Fingerprint
    doubtful: bool


class Numbering:
    """Assign a number to each message: its number in the marker if it was in flight, else the next unused number.

    A message that was in flight is delivered again, with the flag redelivered. Equal messages are interchangeable.
    """

    def __init__(self, marker: Marker) -> None:
        self.producer = marker.producer
        self._next_number = marker.next_number
        self._returning: dict[Fingerprint, deque[int]] = {}
        for number, print_ in marker.in_flight:
            self._returning.setdefault(print_, deque()).append(number)
        self._settled = frozenset(marker.settled)

    def number(self, delivery: Received) -> Numbered:
        print_ = fingerprint(delivery)
        redelivered = delivery.method.redelivered
        known = self._returning.get(print_) if redelivered else None
        if known:
            number = known.popleft()
            if not known:
                del self._returning[print_]
            return Numbered(delivery, number, print_, doubtful=False)
        number, self._next_number = self._next_number, self._next_number + 1
        return Numbered(delivery, number, print_, doubtful=redelivered and print_ in self._settled)

    @property
    def absent(self) -> int:
        """How many in-flight messages of the marker have not been redelivered."""
        return sum(map(len, self._returning.values()))

    def marker(self, batch: Sequence[Numbered], previous: Sequence[Numbered]) -> Marker:
        """Return the marker to commit with the acknowledgement of `previous`, before `batch` is published."""
        absent = [(number, print_) for print_, numbers in self._returning.items() for number in numbers]
        in_flight = absent + [(one.number, one.fingerprint) for one in batch]
        return Marker(self.producer, self._next_number, in_flight, [one.fingerprint for one in previous])


def fingerprint(delivery: Received) -> Fingerprint:
    """Return a digest of a message: its exchange, key, properties, headers and body, without delivery counts."""
    properties = cut_properties(delivery.header)
    table = edit_table(properties.pop("headers", None), {}, COUNTED)
    if table is not None and table != NO_ENTRIES:
        properties["headers"] = table
    digest = blake2b(digest_size=FINGERPRINT_BYTES)
    method = delivery.method
    for part in ((method.exchange or "").encode(), (method.routing_key or "").encode(), delivery.body):
        digest.update(len(part).to_bytes(8, "big") + part)
    for name, octets in properties.items():
        digest.update(name.encode() + octets)
    return base64.b85encode(digest.digest()).decode()
