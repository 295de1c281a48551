"""Property octets with a producer's number in them, made once for all messages that share their properties."""

from __future__ import annotations

from struct import Struct
from typing import Final

from broker.amqp.content_header import FLAG_OF, KINDS
from broker.amqp.header_edit import cut_properties
from broker.amqp.producer_mark import OWN_TABLE, PRODUCER, SEQUENCE
from broker.amqp.table_writer import counted
from broker.amqp.tables import TableReader
from broker.amqp.wire import FLAGS
from broker.pipeline.sink.property_columns import FRONT, KNOWN_MAX

__all__ = ["PRODUCER_MAX_BYTES", "SEQUENCE_OCTETS", "NumberedProperties", "producer_of"]

SEQUENCE_OCTETS: Final = Struct(">q").pack  # what stands between `before` and `after`
PRODUCER_MAX_BYTES: Final = 255 - 2 * 33  # what a name may have, so that store and incarnation fit behind it
PLACE: Final = 3  # seal, slot and offset; store and incarnation follow


def producer_of(name: str, place: object) -> str:
    """Return the producer that numbers a message: seals of two histories of slots have the same numbers.

    Shapes: a place is seal, slot, offset, and store and incarnation where they are known.
    """
    origin = place[PLACE:] if isinstance(place, tuple) else ()
    return ".".join([name, *filter(None, origin)])


class NumberedProperties:
    """Writes the number of one producer into properties.

    Shapes: `parts` are the octets in front of a number and those behind it. Everything that a message had before is
        there unchanged, but for a number that it had already.
    """

    def __init__(self, producer: str) -> None:
        name = producer.encode()
        self._entries = _entry(PRODUCER, b"S" + counted(name))
        self._known: dict[bytes, tuple[bytes, bytes]] = {}

    def parts(self, properties: bytes) -> tuple[bytes, bytes]:
        """Return the octets before and behind the number, of well-formed properties."""
        known = self._known.get(properties)
        if known is None:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            known = self._known[properties] = self._split(properties)
        return known

    def _split(self, properties: bytes) -> tuple[bytes, bytes]:
        found = cut_properties(FRONT + properties)
        table = found.get("headers")
        kept = b""
        if table is not None:
            entries = TableReader(table).entries(0)
            kept = b"".join([table[entry.start : entry.end] for entry in entries if entry.key not in OURS])
            if not kept:
                kept = _entry(OWN_TABLE, b"t\x01")
        number = bytes([len(SEQUENCE)]) + SEQUENCE + b"l"
        headers = counted(kept + self._entries + number + bytes(8))
        pieces = {**found, "headers": headers}
        flags = sum(FLAG_OF[name] for name in pieces)
        before = [FLAGS.pack(flags)]
        names = [name for _, name, _ in KINDS if name in pieces]
        place = names.index("headers")
        before += [pieces[name] for name in names[:place]]
        return b"".join(before) + headers[:-8], b"".join([pieces[name] for name in names[place + 1 :]])


OURS: Final = frozenset((PRODUCER, SEQUENCE, OWN_TABLE))


def _entry(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value
